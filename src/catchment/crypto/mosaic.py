"""Mosaic's signatures: Ed25519ph with BLAKE3 as its prehash and the context "Mosaic" (facts/mosaic.md, section 1.2).

No library offers this scheme, so the equation is put together from libsodium's group operations. The strict rules: the
public key is no point of small order, key and R are in their one encoding, S is below the group order, and the
equation is the cofactored one, [8][S]B = [8]R + [8][k]A.

`verify_prehash` decides nearly every valid signature without a constant-time multiplication of an Edwards point, which
would cost more than everything else together (decision 0020 has what was tried and measured):

* [S]B - R = [k]A holds exactly when D = [S + kc]B - R is [k](A + cB), for any c. The right side is multiplied on the
  Montgomery curve, where only the coordinate u is known, that is, a point up to its sign.
* c is chance and never leaves this process. A false signature for which D = -[k](A + cB) would need S = r - k(a + 2c),
  which nobody can make without c. So equal coordinates mean that the equation holds.
* X25519 clears three bits and sets one of its scalar. A multiple of 8 in its range that is k or -k modulo the group
  order always exists, up to cases nobody can find; those, and every signature that does not pass, are decided by the
  plain cofactored equation.

What passes here passes there: a multiple of 8 takes out the key's part of small order, so D and [k](A + cB) differ at
most by a point that the cofactor takes out.
"""

from __future__ import annotations

from hashlib import sha512
from typing import Final

from blake3 import blake3
from nacl import bindings

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
PREHASH_BYTES: Final = 64

CONTEXT: Final = b"Mosaic"
DOM2: Final = b"SigEd25519 no Ed25519 collisions" + bytes((1, len(CONTEXT))) + CONTEXT
"""RFC 8032, section 2: dom2 with the flag of a prehash."""

PRIME: Final = 2**255 - 19
ORDER: Final = 2**252 + 27742317777372353535851937790883648493
"""The order of the base point."""

_Y_MASK: Final = (1 << 255) - 1
_IDENTITY: Final = b"\1" + bytes(31)
_X_IS_ZERO: Final = (1, PRIME - 1)
"""The y of the two points whose x is zero: they have no odd x, so their sign bit must be clear."""

SMALL_ORDER: Final = frozenset(
    bytes.fromhex(point)
    for point in (
        "0100000000000000000000000000000000000000000000000000000000000000",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0000000000000000000000000000000000000000000000000000000000000080",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    )
)
"""The eight points that eight times themselves is zero, in their one encoding."""

# Chance that changes no answer: it only keeps others from preparing a signature for the quick test (see above).
_BLIND: Final = int.from_bytes(bindings.randombytes(64), "little") % ORDER
_BLIND_POINT: Final = bindings.crypto_scalarmult_ed25519_base_noclamp(_BLIND.to_bytes(32, "little"))

_MAX_KNOWN_KEYS: Final = 65_536
_known_keys: dict[bytes, bytes] = {}
"""A key that was found good -> the coordinate u of the blinded key."""


def prehash(data: bytes) -> bytes:
    """What is signed of `data`: 64 bytes of BLAKE3."""
    return blake3(data).digest(PREHASH_BYTES)


def is_key(public: bytes) -> bool:
    """Whether these bytes are a public key by the strict rules: a point in its one encoding, not of small order."""
    return public in _known_keys or _blinded(public) is not None


def verify(public: bytes, data: bytes, signature: bytes) -> bool:
    """Whether `signature` over `data` is valid for the key `public`. Never raises on what a peer may send."""
    return verify_prehash(public, prehash(data), signature)


def verify_prehash(public: bytes, hashed: bytes, signature: bytes) -> bool:
    """Whether `signature` over data with this prehash is valid for the key `public`.

    Never raises on what a peer may send: anything that is not a key or a signature is just not valid.
    """
    blinded = _known_keys.get(public) or _blinded(public)
    if blinded is None or len(signature) != SIGNATURE_BYTES:
        return False
    point = signature[:32]
    s = int.from_bytes(signature[32:], "little")
    if s >= ORDER or not _is_canonical(point):
        return False
    k = int.from_bytes(sha512(DOM2 + point + public + hashed).digest(), "little") % ORDER
    return _holds_blinded(blinded, point, s, k) or _holds(public, point, s, k)


def _is_canonical(point: bytes) -> bool:
    """Whether a point is written in its one way: y below the prime, and no sign on an x of zero."""
    number = int.from_bytes(point, "little")
    y = number & _Y_MASK
    return y < PRIME and not (number > _Y_MASK and y in _X_IS_ZERO)


def _blinded(public: bytes) -> bytes | None:
    """The coordinate u of the key plus the blinding point, remembered; None when the key is none."""
    if len(public) != KEY_BYTES or public in SMALL_ORDER or not _is_canonical(public):
        return None
    try:
        moved = bindings.crypto_core_ed25519_add(public, _BLIND_POINT)
    except RuntimeError:
        return None  # not on the curve
    y = int.from_bytes(moved, "little") & _Y_MASK
    if y == 1:
        return bytes(KEY_BYTES)  # the key is the blinding point's negative; the quick test never holds for it
    u = (1 + y) * pow(1 - y, -1, PRIME) % PRIME
    if len(_known_keys) >= _MAX_KNOWN_KEYS:
        _known_keys.clear()
    _known_keys[public] = found = u.to_bytes(32, "little")
    return found


def _holds_blinded(blinded: bytes, point: bytes, s: int, k: int) -> bool:
    """The quick test of the module's docstring. True means that the equation holds; False means nothing."""
    odd = 3 * k & 7  # the group order is 5 modulo 8, so k + 3k * order is a multiple of 8
    scalar = k + odd * ORDER if odd >= 4 else (8 - odd) * ORDER - k
    if scalar > _Y_MASK:
        return False
    try:
        u = bindings.crypto_scalarmult(scalar.to_bytes(32, "little"), blinded)
        left = bindings.crypto_scalarmult_ed25519_base_noclamp(((s + k * _BLIND) % ORDER).to_bytes(32, "little"))
        difference = bindings.crypto_core_ed25519_sub(left, point)
    except RuntimeError:
        return False  # R is not on the curve, or one of the multiples is zero
    y = int.from_bytes(difference, "little") & _Y_MASK
    return (int.from_bytes(u, "little") * (1 - y) - (1 + y)) % PRIME == 0


def _holds(public: bytes, point: bytes, s: int, k: int) -> bool:
    """The cofactored equation, as it is written."""
    try:
        left = _multiple_of_base(8 * s % ORDER)
        right = bindings.crypto_core_ed25519_add(_times_eight(point), _multiple(_times_eight(public), k))
    except RuntimeError:
        return False  # R is not on the curve
    return bool(left == right)


def _times_eight(point: bytes) -> bytes:
    for _ in range(3):
        point = bindings.crypto_core_ed25519_add(point, point)
    return point


def _multiple_of_base(scalar: int) -> bytes:
    # libsodium refuses to compute the neutral element.
    if scalar == 0:
        return _IDENTITY
    made: bytes = bindings.crypto_scalarmult_ed25519_base_noclamp(scalar.to_bytes(32, "little"))
    return made


def _multiple(point: bytes, scalar: int) -> bytes:
    if scalar == 0:
        return _IDENTITY
    made: bytes = bindings.crypto_scalarmult_ed25519_noclamp(scalar.to_bytes(32, "little"), point)
    return made


class Signer:
    """A secret key that signs as Mosaic does."""

    def __init__(self, secret: bytes) -> None:
        """Take a key.

        Args:
            secret: 32 bytes, what RFC 8032 calls the private key.

        Raises:
            ValueError: not 32 bytes.
        """
        if len(secret) != KEY_BYTES:
            raise ValueError(f"a secret key has {KEY_BYTES} bytes, not {len(secret)}")
        self.secret = secret
        self.public: bytes = bindings.crypto_sign_seed_keypair(secret)[0]
        expanded = sha512(secret).digest()
        clamped = bytes((expanded[0] & 0xF8, *expanded[1:31], expanded[31] & 0x7F | 0x40))
        # Secret numbers go through libsodium, whose arithmetic takes the same time for all of them.
        self._scalar = bindings.crypto_core_ed25519_scalar_reduce(clamped + bytes(32))
        self._prefix = expanded[32:]

    def sign(self, data: bytes) -> bytes:
        """Sign; deterministic, 64 bytes."""
        return self.sign_prehash(prehash(data))

    def sign_prehash(self, hashed: bytes) -> bytes:
        """Sign data with this prehash."""
        r = bindings.crypto_core_ed25519_scalar_reduce(sha512(DOM2 + self._prefix + hashed).digest())
        point: bytes = bindings.crypto_scalarmult_ed25519_base_noclamp(r)
        k = bindings.crypto_core_ed25519_scalar_reduce(sha512(DOM2 + point + self.public + hashed).digest())
        s: bytes = bindings.crypto_core_ed25519_scalar_add(r, bindings.crypto_core_ed25519_scalar_mul(k, self._scalar))
        return point + s

    def __repr__(self) -> str:
        # The key itself is never shown.
        return f"Signer({self.public.hex()})"
