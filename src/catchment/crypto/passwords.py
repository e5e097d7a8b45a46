"""Passwords as scrypt hashes (RFC 7914): slow and memory-hard on purpose, so never on the event loop."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

import msgspec

SALT_BYTES: Final = 16
HASH_BYTES: Final = 32

COST: Final = 2**15
BLOCK: Final = 8
PARALLEL: Final = 1
"""32 MiB and some tens of milliseconds for each try."""

MAX_PASSWORD: Final = 1024
"""Bytes; longer ones are refused before they are hashed."""


class PasswordHash(msgspec.Struct, frozen=True):
    """A hash with all that is needed to compute it again."""

    salt: bytes
    hash: bytes
    cost: int = COST
    block: int = BLOCK
    parallel: int = PARALLEL


def hash_password(password: str, salt: bytes) -> PasswordHash:
    """Hash a password with `SALT_BYTES` random bytes.

    Raises:
        ValueError: it is empty or longer than `MAX_PASSWORD` bytes.
    """
    if not 0 < len(_secret(password)) <= MAX_PASSWORD:
        raise ValueError(f"a password has 1 to {MAX_PASSWORD} bytes")
    return PasswordHash(salt, _derive(password, salt, COST, BLOCK, PARALLEL))


def matches(stored: PasswordHash | None, password: str) -> bool:
    """Whether a password is the one that was hashed; a user without one takes as long to be refused."""
    asked = stored or _NOBODY
    made = _derive(password, asked.salt, asked.cost, asked.block, asked.parallel)
    return hmac.compare_digest(made, asked.hash) and stored is not None


def _secret(password: str) -> bytes:
    return password.encode("utf-8", "surrogatepass")


def _derive(password: str, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    # One byte more than any stored password had, so that a longer one matches none.
    secret = _secret(password)[: MAX_PASSWORD + 1]
    return hashlib.scrypt(secret, salt=salt, n=cost, r=block, p=parallel, maxmem=256 * cost * block, dklen=HASH_BYTES)


_NOBODY: Final = PasswordHash(bytes(SALT_BYTES), bytes(HASH_BYTES))
