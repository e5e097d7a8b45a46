"""Plain Ed25519 (RFC 8032, section 5.1), through OpenSSL.

Used for PoPStellar's signatures (facts/popstellar.md, section 2). OpenSSL refuses a signature whose second half is
not below the group order, so no third party can make a second valid signature out of a first.
"""

from __future__ import annotations

import functools
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64


@functools.lru_cache(maxsize=4096)
def _public_key(public: bytes) -> Ed25519PublicKey:
    """The key as OpenSSL holds it. Making one costs an allocation and nothing is proven by it."""
    return Ed25519PublicKey.from_public_bytes(public)


def verify(public: bytes, payload: bytes, signature: bytes) -> bool:
    """Whether `signature` over `payload` was made by the private half of `public`.

    Never raises on what a peer may send: anything that is not a key or a signature is just not valid.
    """
    if len(public) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        _public_key(public).verify(signature, payload)
    except InvalidSignature:
        return False
    return True


class Signer:
    """A private key that signs."""

    def __init__(self, private_key: bytes) -> None:
        """Take a key.

        Args:
            private_key: the 32 bytes RFC 8032 calls the private key (others call them the seed).

        Raises:
            ValueError: not 32 bytes.
        """
        if len(private_key) != KEY_BYTES:
            raise ValueError(f"a private key has {KEY_BYTES} bytes, not {len(private_key)}")
        self._key = Ed25519PrivateKey.from_private_bytes(private_key)
        self.public: bytes = self._key.public_key().public_bytes_raw()

    def sign(self, payload: bytes) -> bytes:
        """Sign; deterministic, 64 bytes."""
        return self._key.sign(payload)

    def __repr__(self) -> str:
        # The key itself is never shown.
        return f"Signer({self.public.hex()})"
