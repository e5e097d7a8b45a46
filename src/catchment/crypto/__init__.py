"""Signature schemes as plain functions: bytes and keys in, a yes or no out. No protocol, no I/O."""
