"""One conversation per protocol: bytes in, commands out, no I/O and no clock."""
