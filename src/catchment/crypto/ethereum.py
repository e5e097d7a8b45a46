"""Ethereum's personal_sign: keccak-256 over a prefixed payload, ECDSA on secp256k1, the signer named by its address.

Used for Streamr signatures (facts/streamr.md, section 4). One rule decides, in the node and in Spark (DESIGN.md, "The
entry"): a signature is valid if, after normalising s, either recovery id gives the claimed address. The last byte of
a signature is therefore only a hint which id to try first.

The curve is libsecp256k1 through coincurve's own bindings, called directly: they release the GIL, and the buffers
they fill are kept per thread instead of being allocated for every message. A public key once recovered for an address
is remembered, because checking against a known key costs about two thirds of recovering it; the answer is the same.
"""

from __future__ import annotations

import threading
from binascii import unhexlify
from typing import Final

import sha3
from coincurve import PrivateKey
from coincurve._libsecp256k1 import ffi, lib
from coincurve.context import GLOBAL_CONTEXT

SIGNATURE_BYTES: Final = 65
ADDRESS_HEX: Final = 42

_CONTEXT: Final = GLOBAL_CONTEXT.ctx
_UNCOMPRESSED: Final = lib.SECP256K1_EC_UNCOMPRESSED
_MAX_KNOWN_KEYS: Final = 65_536

_HALF_ORDER: Final = bytes.fromhex("7fffffffffffffffffffffffffffffff5d576e7357a4501ddfe92f46681b20a0")
"""The greatest s of a normal signature, as it stands in one."""

_known_keys: dict[bytes, ffi.CData] = {}
"""Address -> libsecp256k1's public key value. Emptied when full: it is only a shortcut."""


class _Buffers(threading.local):
    """What libsecp256k1 writes into, one set per thread."""

    def __init__(self) -> None:
        self.recoverable = ffi.new("secp256k1_ecdsa_recoverable_signature *")
        self.signature = ffi.new("secp256k1_ecdsa_signature *")
        self.key = ffi.new("secp256k1_pubkey *")
        self.serialized = ffi.new("unsigned char[65]")
        self.length = ffi.new("size_t *")


_buffers = _Buffers()


def keccak256(data: bytes) -> bytes:
    """Keccak-256 as Ethereum uses it (the padding before SHA-3 was standardised)."""
    digest: bytes = sha3.keccak_256(data).digest()
    return digest


def personal_digest(payload: bytes) -> bytes:
    """What personal_sign signs: the payload behind a prefix and its length in decimal."""
    return _digest_counting(len(payload), payload)


def _digest_counting(length: int, payload: bytes) -> bytes:
    return keccak256(b"\x19Ethereum Signed Message:\n%d%b" % (length, payload))


def _utf16_length(payload: bytes) -> int | None:
    """The payload's length as JavaScript counts a string, or None when it is no text."""
    try:
        return len(payload.decode().encode("utf-16-le")) // 2
    except UnicodeDecodeError:
        return None


def parse_address(address: str) -> bytes | None:
    """The 20 bytes of an address in any case, or None when it is none."""
    if len(address) != ADDRESS_HEX or address[:2] not in ("0x", "0X"):
        return None
    return _hex_bytes(address[2:])


def _hex_bytes(text: str) -> bytes | None:
    # bytes.fromhex would pass over white space, which is no part of a signature or an address.
    try:
        return unhexlify(text)
    except ValueError:
        return None


def signed_by(address: str, payload: bytes, signature: str) -> bool:
    """Whether `signature` (hex, with or without 0x) over `payload` was made by the key of `address`.

    Never raises on what a peer may send: anything that is not an address or a signature is just not valid.

    Clients 2.x and 3.x sign with ethers 4, which puts the length of the JavaScript string before the payload instead
    of the number of its bytes. Outside ASCII the two differ, and both are taken.
    """
    claimed = parse_address(address)
    made = _hex_bytes(signature[2:] if signature[:2] in ("0x", "0X") else signature)
    if claimed is None or made is None or len(made) != SIGNATURE_BYTES:
        return False
    if _made_by(claimed, personal_digest(payload), made):
        return True
    if payload.isascii():
        return False
    length = _utf16_length(payload)
    return length is not None and _made_by(claimed, _digest_counting(length, payload), made)


def _made_by(claimed: bytes, digest: bytes, made: bytes) -> bool:
    known = _known_keys.get(claimed)
    if known is not None:
        return _verify(known, digest, made[:64])
    first = (made[64] - 27) & 1
    return _recovers(claimed, digest, made[:64], first) or _recovers(claimed, digest, made[:64], 1 - first)


def _verify(key: ffi.CData, digest: bytes, compact: bytes) -> bool:
    # A known key satisfies the ECDSA equation exactly when one of the recovery ids gives it: that is what recovery
    # solves. (An x coordinate beyond the group order would need ids 2 and 3; no one can make a second such signature
    # for a key without its private half, and the first is always checked by recovery.)
    signature = _buffers.signature
    if not lib.secp256k1_ecdsa_signature_parse_compact(_CONTEXT, signature, compact):
        return False
    if compact[32:] > _HALF_ORDER:
        lib.secp256k1_ecdsa_signature_normalize(_CONTEXT, signature, signature)
    return bool(lib.secp256k1_ecdsa_verify(_CONTEXT, signature, digest, key))


def _recovers(claimed: bytes, digest: bytes, compact: bytes, recovery_id: int) -> bool:
    # Recovery takes a high s as it is; normalising it is the same as trying the other id.
    buffers = _buffers
    if not lib.secp256k1_ecdsa_recoverable_signature_parse_compact(
        _CONTEXT, buffers.recoverable, compact, recovery_id
    ) or not lib.secp256k1_ecdsa_recover(_CONTEXT, buffers.key, buffers.recoverable, digest):
        return False
    if _address_of_key(buffers) != claimed:
        return False
    if len(_known_keys) >= _MAX_KNOWN_KEYS:
        _known_keys.clear()
    known = ffi.new("secp256k1_pubkey *")
    ffi.memmove(known, buffers.key, 64)
    _known_keys[claimed] = known
    return True


def _address_of_key(buffers: _Buffers) -> bytes:
    buffers.length[0] = 65
    lib.secp256k1_ec_pubkey_serialize(_CONTEXT, buffers.serialized, buffers.length, buffers.key, _UNCOMPRESSED)
    return keccak256(bytes(ffi.buffer(buffers.serialized, 65))[1:])[12:]


def has_high_s(signature: str) -> bool:
    """Whether s lies in the upper half of the group order: valid, but not what a normal signer makes."""
    # That half begins with the digit 7; this stands in the way of every message, and most show by one digit.
    if signature[-66:-65] in "0123456":
        return False
    made = _hex_bytes(signature[2:] if signature[:2] in ("0x", "0X") else signature)
    if made is None or len(made) != SIGNATURE_BYTES:
        return False
    buffers = _buffers
    if not lib.secp256k1_ecdsa_signature_parse_compact(_CONTEXT, buffers.signature, made[:64]):
        return False
    return bool(lib.secp256k1_ecdsa_signature_normalize(_CONTEXT, ffi.NULL, buffers.signature))


class Signer:
    """A private key that signs as personal_sign does."""

    def __init__(self, private_key: bytes) -> None:
        """Take a key.

        Args:
            private_key: 32 bytes, a number below the group order and not zero.

        Raises:
            ValueError: the bytes are no such number.
        """
        if len(private_key) != 32:
            raise ValueError(f"a private key has 32 bytes, not {len(private_key)}")
        self._key = PrivateKey(private_key)
        self.address = "0x" + keccak256(self._key.public_key.format(compressed=False)[1:])[12:].hex()

    def sign(self, payload: bytes) -> str:
        """Sign, deterministically (RFC 6979), with low s: 0x + r + s + v."""
        made: bytes = self._key.sign_recoverable(personal_digest(payload), hasher=None)
        return "0x" + made[:64].hex() + bytes([made[64] + 27]).hex()

    def __repr__(self) -> str:
        # The key itself is never shown.
        return f"Signer({self.address})"
