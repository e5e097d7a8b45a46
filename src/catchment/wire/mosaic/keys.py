"""Mosaic's printable forms: a prefix and z-base-32 (facts/mosaic.md, section 1.8), and secrets under a password.

There is no checksum, so a text is read strictly: the right length, the right letters, no bits left over.
"""

from __future__ import annotations

import base64
import hashlib
import unicodedata
from enum import Enum
from typing import Final

from catchment.wire.mosaic.results import invalid

ALPHABET: Final = "ybndrfg8ejkmcpqxot1uwisza345h769"
MAX_TEXT: Final = 2 * 1024 * 1024
"""Characters looked at: a record of 1 MiB needs 1.68 million."""

_LETTERS: Final = frozenset(ALPHABET)
_RFC_4648: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_FROM_RFC_4648: Final = bytes.maketrans(_RFC_4648, ALPHABET.encode())
_TO_RFC_4648: Final = bytes.maketrans(ALPHABET.encode(), _RFC_4648)


class Printable(Enum):
    """What a text may be, by its prefix."""

    USER_KEY = "mopub0"
    SERVER_KEY = "mosrv0"
    SECRET = "mosec0"  # noqa: S105 - a prefix
    ENCRYPTED_SECRET = "mocryptsec0"  # noqa: S105 - a prefix
    REFERENCE = "moref0"
    RECORD = "morecord0"


_SIZES: Final = {
    Printable.USER_KEY: 32,
    Printable.SERVER_KEY: 32,
    Printable.SECRET: 32,
    Printable.ENCRYPTED_SECRET: 58,
    Printable.REFERENCE: 48,
}
"""How many bytes each form has; a record has as many as it has."""


def encode(form: Printable, data: bytes) -> str:
    """The text of some bytes."""
    return form.value + zbase32(data)


def decode(text: str, *expected: Printable) -> bytes:
    """The bytes of a text that must be one of the `expected` forms.

    Raises:
        PeerFault: it is none of them, or not written as they are.
    """
    for form in expected:
        if text.startswith(form.value):
            data = from_zbase32(text[len(form.value) :])
            if len(data) != _SIZES.get(form, len(data)):
                raise invalid(f"After {form.value} come {_SIZES[form]} bytes, not {len(data)}.")
            return data
    wanted = " or ".join(form.value for form in expected)
    raise invalid(f"A text beginning with {wanted} is needed, not {text[:16]!r}.")


def zbase32(data: bytes) -> str:
    """Five bits a letter, the first bit first, zeros behind the last: RFC 4648 with other letters and no padding."""
    return base64.b32encode(data).rstrip(b"=").translate(_FROM_RFC_4648).decode()


def from_zbase32(text: str) -> bytes:
    """The bytes that `zbase32` writes as this text.

    Raises:
        PeerFault: a letter that is none, or bits behind the last byte that are not zero.
    """
    if len(text) > MAX_TEXT:
        raise invalid(f"A printable text has at most {MAX_TEXT} characters.")
    if not _LETTERS.issuperset(text):
        raise invalid(f"{next(letter for letter in text if letter not in _LETTERS)!r} is no letter of z-base-32.")
    padding = b"=" * (-len(text) % 8)
    try:
        data = base64.b32decode(text.encode().translate(_TO_RFC_4648) + padding)
    except ValueError:
        data = b""
    if zbase32(data) != text:
        raise invalid("The text has more bits than its bytes.")
    return data


# Secrets under a password.

MAX_LOG_N: Final = 22
"""facts/mosaic.md, section 1.8. Each step doubles the memory: 22 takes four gigabytes."""

_VERSION: Final = 1
_CHECK: Final = bytes.fromhex("b960a1e2")
_SALT: Final = slice(2, 18)
_SEALED: Final = slice(18, 58)


def encrypt_secret(secret: bytes, password: str, *, log_n: int, salt: bytes, chance: bytes) -> str:
    """A secret key under a password, as text.

    Args:
        secret: 32 bytes.
        password: any text.
        log_n: scrypt's cost as a power of two.
        salt: 16 random bytes.
        chance: 4 random bytes.
    """
    checked = secret + chance + _xor(chance, _CHECK)
    data = bytes((_VERSION, log_n)) + salt + _xor(checked, _stretch(password, salt, log_n))
    return encode(Printable.ENCRYPTED_SECRET, data)


def decrypt_secret(text: str, password: str, *, max_log_n: int = MAX_LOG_N) -> bytes:
    """The secret key in a text that `encrypt_secret` made.

    Raises:
        PeerFault: not such a text, a cost above `max_log_n`, or another password.
    """
    data = decode(text, Printable.ENCRYPTED_SECRET)
    version, log_n = data[:2]
    if version != _VERSION or not 1 <= log_n <= max_log_n:
        raise invalid(f"An encrypted secret of version {version} and cost {log_n} cannot be read.")
    opened = _xor(data[_SEALED], _stretch(password, data[_SALT], log_n))
    if _xor(opened[32:36], _CHECK) != opened[36:]:
        raise invalid("The password is not the one this secret was encrypted with.")
    return opened[:32]


def _stretch(password: str, salt: bytes, log_n: int) -> bytes:
    normal = unicodedata.normalize("NFKC", password).encode("utf-8", "surrogatepass")
    # 128 * r bytes for each of n blocks, and a little for itself.
    memory = 128 * 8 * (2**log_n + 4)
    return hashlib.scrypt(normal, salt=salt, n=2**log_n, r=8, p=1, maxmem=memory + 4096, dklen=40)


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
