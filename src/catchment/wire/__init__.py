"""Bytes to typed values and back, per protocol. Pure: no I/O, no clock, no randomness."""
