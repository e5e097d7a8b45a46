"""Ed25519's group in plain integers, slow and obvious: the second opinion for signatures that no honest signer makes.

Points are pairs of coordinates on -x*x + y*y = 1 + d*x*x*y*y modulo 2**255 - 19 (RFC 8032, section 5.1).
"""

from __future__ import annotations

import hashlib

from blake3 import blake3

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
ROOT = pow(2, (P - 1) // 4, P)
"""A square root of -1."""

Point = tuple[int, int]
ZERO: Point = (0, 1)
DOM2 = b"SigEd25519 no Ed25519 collisions\x01\x06Mosaic"


def add(a: Point, b: Point) -> Point:
    product = D * a[0] * b[0] * a[1] * b[1] % P
    x = (a[0] * b[1] + a[1] * b[0]) * pow(1 + product, -1, P) % P
    y = (a[1] * b[1] + a[0] * b[0]) * pow(1 - product, -1, P) % P
    return x, y


def multiply(number: int, point: Point) -> Point:
    result = ZERO
    while number:
        if number & 1:
            result = add(result, point)
        point = add(point, point)
        number >>= 1
    return result


def encode(point: Point) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


def decode(data: bytes) -> Point | None:
    """The point, None when it is none or not written in its one way."""
    number = int.from_bytes(data, "little")
    y, sign = number & (1 << 255) - 1, number >> 255
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * ROOT % P
    if (x * x - square) % P or (x == 0 and sign):
        return None
    return (x if x & 1 == sign else P - x), y


BASE = decode((4 * pow(5, -1, P) % P).to_bytes(32, "little"))
assert BASE is not None

_y = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")
_eighth = decode(_y.to_bytes(32, "little"))
assert _eighth is not None
TORSION = [multiply(number, _eighth) for number in range(8)]
"""The points of small order."""


def secret_of(seed: bytes) -> int:
    number = int.from_bytes(hashlib.sha512(seed).digest()[:32], "little")
    return number & (1 << 254) - 8 | 1 << 254


def challenge(point: bytes, public: bytes, data: bytes) -> int:
    hashed = blake3(data).digest(64)
    return int.from_bytes(hashlib.sha512(DOM2 + point + public + hashed).digest(), "little") % L


def verify(public: bytes, data: bytes, signature: bytes) -> bool:
    """The strict rules, one after the other (facts/mosaic.md, section 1.2)."""
    if len(signature) != 64 or len(public) != 32:
        return False
    a, r, s = decode(public), decode(signature[:32]), int.from_bytes(signature[32:], "little")
    if a is None or r is None or s >= L or a in TORSION:
        return False
    k = challenge(signature[:32], public, data)
    return multiply(8 * s, BASE) == multiply(8, add(r, multiply(k, a)))


def sign(secret: int, data: bytes, *, nonce: int, key_torsion: int = 0, r_torsion: int = 0) -> tuple[bytes, bytes]:
    """A key and a signature that may have parts of small order."""
    public = encode(add(multiply(secret, BASE), TORSION[key_torsion]))
    point = encode(add(multiply(nonce, BASE), TORSION[r_torsion]))
    s = (nonce + challenge(point, public, data) * secret) % L
    return public, point + s.to_bytes(32, "little")
