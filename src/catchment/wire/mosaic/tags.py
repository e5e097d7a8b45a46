"""Tags: what a record says about itself in short (facts/mosaic.md, section 1.6).

A tag is a length (two bytes, counting the whole tag), a type (two bytes) and a value; numbers are little-endian. A
length of zero begins the padding. Tags are compared whole, as bytes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from catchment.wire.mosaic.results import invalid

HEADER: Final = 4
LONGEST: Final = 65_535


class TagType(IntEnum):
    """The types this package knows by name; all others are carried and compared alike."""

    NOTIFY_PUBKEY = 0x1
    REPLY = 0x2
    ROOT = 0x3
    NOSTR_SISTER = 0x8
    SUBKEY = 0x10
    USER_MENTION = 0x20
    SERVER_MENTION = 0x21
    QUOTE = 0x22
    URL = 0x24
    IMAGE = 0x25
    VIDEO = 0x26


KEY_TAGS: Final = frozenset({TagType.NOTIFY_PUBKEY, TagType.USER_MENTION})
"""The types that name a user: who is tagged by one of them may read what is for author and tagged."""

_KEY_TAG_BYTES: Final = 40


def make(tag_type: int, value: bytes) -> bytes:
    """One tag.

    Raises:
        ValueError: the value is too long.
    """
    size = HEADER + len(value)
    if size > LONGEST:
        raise ValueError(f"a tag has at most {LONGEST} bytes, not {size}")
    return size.to_bytes(2, "little") + tag_type.to_bytes(2, "little") + value


def notify(public: bytes) -> bytes:
    """The tag that tells a user of a record."""
    return make(TagType.NOTIFY_PUBKEY, bytes(4) + public)


def split(data: bytes) -> list[bytes]:
    """The tags in a section, in their order, each whole.

    Raises:
        PeerFault: a length below its own header, or beyond the section.
    """
    found: list[bytes] = []
    at, end = 0, len(data)
    while at < end:
        size = int.from_bytes(data[at : at + 2], "little")
        if size == 0:
            break  # padding
        if size < HEADER or at + size > end:
            raise invalid(f"A tag of {size} bytes stands where {end - at} are left.")
        found.append(data[at : at + size])
        at += size
    return found


def type_of(tag: bytes) -> int:
    """The type of a whole tag."""
    return int.from_bytes(tag[2:4], "little")


def value_of(tag: bytes) -> bytes:
    """The value of a whole tag."""
    return tag[HEADER:]


def tagged_key(tag: bytes) -> bytes | None:
    """The user a tag names, None when it names none."""
    if type_of(tag) in KEY_TAGS and len(tag) == _KEY_TAG_BYTES:
        return tag[8:]
    return None
