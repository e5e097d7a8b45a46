"""ElGamal encryption of a few bytes on the Ed25519 group, through libsodium.

Used for PoPStellar's secret ballots (facts/popstellar.md, section 2: a vote is K and C, and M = C - secret * K). The
bytes are embedded in a point as the election servers in use do it: the point's encoding begins with their number and
then the bytes themselves; the rest is chance, drawn until it encodes a point of the prime-order group. Points outside
that group are refused, since they would give away the secret modulo the cofactor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nacl import bindings

POINT_BYTES: Final = 32
CIPHERTEXT_BYTES: Final = 2 * POINT_BYTES
MAX_EMBEDDED: Final = 29
"""One byte holds the number of bytes, and two are left to chance."""

RandomBytes = Callable[[int], bytes]
"""Where chance comes from: `os.urandom`, or something a test can repeat."""


def is_point(public: bytes) -> bool:
    """Whether these bytes are a point of the prime-order group, in its one encoding."""
    return len(public) == POINT_BYTES and bindings.crypto_core_ed25519_is_valid_point(public)


def make_secret(random_bytes: RandomBytes) -> bytes:
    """A secret scalar, uniform below the group order and not zero."""
    while True:
        secret: bytes = bindings.crypto_core_ed25519_scalar_reduce(random_bytes(64))
        if any(secret):
            return secret


def public_of(secret: bytes) -> bytes:
    """The public point of a secret scalar."""
    public: bytes = bindings.crypto_scalarmult_ed25519_base_noclamp(secret)
    return public


def encrypt(public: bytes, data: bytes, random_bytes: RandomBytes) -> bytes:
    """K and C, 64 bytes.

    Raises:
        ValueError: `public` is no point of the group, or there are more than 29 bytes.
    """
    if not is_point(public):
        raise ValueError("the public key is no point of the prime-order group")
    if len(data) > MAX_EMBEDDED:
        raise ValueError(f"{len(data)} bytes do not fit into a point; {MAX_EMBEDDED} do")
    point = _embed(data, random_bytes)
    ephemeral = make_secret(random_bytes)
    shared = bindings.crypto_scalarmult_ed25519_noclamp(ephemeral, public)
    made: bytes = public_of(ephemeral) + bindings.crypto_core_ed25519_add(shared, point)
    return made


def decrypt(secret: bytes, ciphertext: bytes) -> bytes | None:
    """The bytes inside, or None when there are none that this secret opens.

    Never raises on what a voter may send.
    """
    ephemeral, hidden = ciphertext[:POINT_BYTES], ciphertext[POINT_BYTES:]
    if not is_point(ephemeral) or not is_point(hidden):
        return None
    shared = bindings.crypto_scalarmult_ed25519_noclamp(secret, ephemeral)
    point = bindings.crypto_core_ed25519_sub(hidden, shared)
    size = point[0]
    return point[1 : 1 + size] if size <= MAX_EMBEDDED else None


def _embed(data: bytes, random_bytes: RandomBytes) -> bytes:
    head = bytes([len(data)]) + data
    while True:  # one in sixteen encodings is a point of the group
        point = head + random_bytes(POINT_BYTES - len(head))
        if is_point(point):
            return point
