"""Bootstraps: where a server listens, and which servers a user uses (facts/mosaic.md, section 1.9).

Short texts, kept in the Mainline DHT as mutable items (BEP 44) under the master key, signed with plain Ed25519. This
module makes and reads texts and items; nothing here talks to a DHT.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import Enum, IntFlag
from typing import Final
from urllib.parse import urlsplit

import msgspec

from catchment.crypto import ed25519
from catchment.errors import PeerFault
from catchment.wire.mosaic import keys
from catchment.wire.mosaic.keys import Printable
from catchment.wire.mosaic.results import invalid

MAX_TEXT: Final = 983
"""Bytes of UTF-8: what fits into an item beside its frame."""

MAX_SERVERS: Final = 16
MAX_SEQUENCE: Final = 2**63 - 1

SCHEMES: Final = frozenset({"mosaic", "mosaictcp", "mosaicwss"})
OLD_SCHEMES: Final = frozenset({"wss", "https"})
"""What the Rust implementation still writes; read, never written."""

_WHITESPACE: Final = " \t\r\n"


class Salt(Enum):
    """Which of a key's items a bootstrap is."""

    SERVER = b"msb24"
    USER = b"mub25"


class Usage(IntFlag):
    """What a user uses a server for."""

    OUTBOX = 1
    INBOX = 2
    ENCRYPTION = 4


class Use(msgspec.Struct, frozen=True):
    """One server of a user."""

    usage: Usage
    server: bytes


# Texts.


def server_text(urls: Sequence[str]) -> str:
    """The bootstrap of a server.

    Raises:
        ValueError: an address that is none, or too many.
    """
    for url in urls:
        if _scheme(url) not in SCHEMES:
            raise ValueError(f"{url} is no Mosaic address: mosaic, mosaictcp or mosaicwss, and no path or query")
    return _fitting("\n".join(("S", *urls)))


def user_text(uses: Sequence[Use]) -> str:
    """The bootstrap of a user.

    Raises:
        ValueError: a server without a use, or too many.
    """
    if len(uses) > MAX_SERVERS or not all(use.usage for use in uses):
        raise ValueError(f"a bootstrap names up to {MAX_SERVERS} servers, each with a use")
    lines = [f"{int(use.usage)} {keys.encode(Printable.SERVER_KEY, use.server)}" for use in uses]
    return _fitting("\n".join(("U", *lines)))


def read_server(text: str) -> list[str]:
    """The addresses in a server's bootstrap.

    Raises:
        PeerFault: it is none.
    """
    urls = _lines(text, "S")
    for url in urls:
        if _scheme(url) not in SCHEMES | OLD_SCHEMES:
            raise invalid(f"{url[:80]!r} is no address of a Mosaic server.")
    return urls


def read_user(text: str) -> list[Use]:
    """The servers in a user's bootstrap.

    Raises:
        PeerFault: it is none.
    """
    lines = _lines(text, "U")
    if len(lines) > MAX_SERVERS:
        raise invalid(f"A bootstrap names up to {MAX_SERVERS} servers, not {len(lines)}.")
    return [_use(line) for line in lines]


def _use(line: str) -> Use:
    digit, _, key = line.partition(" ")
    if digit not in tuple("1234567"):
        raise invalid(f"{digit[:8]!r} says no use of a server.")
    # The Rust implementation writes servers as users (mopub0).
    return Use(Usage(int(digit)), keys.decode(key, Printable.SERVER_KEY, Printable.USER_KEY))


def _lines(text: str, letter: str) -> list[str]:
    if len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT:
        raise invalid(f"A bootstrap has at most {MAX_TEXT} bytes.")
    first, *lines = text.split("\n")
    if first != letter or any(line != line.strip(_WHITESPACE) or not line for line in lines):
        raise invalid(f"A bootstrap is the line {letter!r} and lines without white space at their ends.")
    return lines


def _scheme(url: str) -> str:
    """The scheme of an address that has nothing but host and port; empty when it has more or less."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return ""
    plain = parts.hostname and parts.path in ("", "/") and not (parts.query or parts.fragment or "@" in parts.netloc)
    return parts.scheme if plain and port != 0 else ""


def _fitting(text: str) -> str:
    if len(text.encode()) > MAX_TEXT:
        raise ValueError(f"a bootstrap has at most {MAX_TEXT} bytes")
    return text


# Items.


class Item(msgspec.Struct, frozen=True):
    """A mutable item of the DHT (BEP 44)."""

    public_key: bytes
    salt: Salt
    sequence: int
    text: str
    signature: bytes

    @property
    def target(self) -> bytes:
        """Where the DHT keeps it."""
        return target_of(self.public_key, self.salt)


def target_of(public_key: bytes, salt: Salt) -> bytes:
    """Where the DHT keeps an item of a key."""
    return hashlib.sha1(public_key + salt.value, usedforsecurity=False).digest()


def signable(salt: Salt, sequence: int, text: str) -> bytes:
    """The bytes an item's signature covers."""
    value = text.encode()
    return b"4:salt%d:%b3:seqi%de1:v%d:%b" % (len(salt.value), salt.value, sequence, len(value), value)


def make_item(signer: ed25519.Signer, salt: Salt, sequence: int, text: str) -> Item:
    """A signed item.

    Raises:
        ValueError: the sequence is not from 1 to 2**63 - 1.
    """
    if not 1 <= sequence <= MAX_SEQUENCE:
        raise ValueError("an item's sequence begins at 1")
    return Item(signer.public, salt, sequence, text, signer.sign(signable(salt, sequence, text)))


def check_item(item: Item) -> None:
    """Whether an item is a bootstrap and its key has signed it.

    Raises:
        PeerFault: it is not.
    """
    (read_server if item.salt is Salt.SERVER else read_user)(item.text)
    if not 1 <= item.sequence <= MAX_SEQUENCE:
        raise invalid("An item's sequence begins at 1.")
    try:
        signed = signable(item.salt, item.sequence, item.text)
    except UnicodeEncodeError:
        raise invalid("The text is not UTF-8.") from None
    if not ed25519.verify(item.public_key, signed, item.signature):
        raise PeerFault("The item is not signed by its key.", code="INVALID")
