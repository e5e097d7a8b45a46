"""Records: what Mosaic signs, keeps and serves (facts/mosaic.md, sections 1.1 to 1.5).

`decode` checks what a record says about itself and costs little; `judge` proves id and signature. Both are the node's,
the client's and the pipeline's.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum, IntFlag
from typing import Final

import msgspec

from catchment import model
from catchment.crypto import mosaic
from catchment.wire.mosaic import tags, timestamp
from catchment.wire.mosaic.results import Result, fault, invalid

HEADER: Final = 152
MIN_RECORD: Final = HEADER + mosaic.SIGNATURE_BYTES
MAX_RECORD: Final = 1_048_576
ID_BYTES: Final = 48
ADDRESS_BYTES: Final = 48
REFERENCE_BYTES: Final = 48
"""An id or an address; the first bit tells: 0 for an id, 1 for an address."""

ID_PREFIX_BYTES: Final = 32
"""By so much of its id a record is named in answers and excluded by filters."""

MAX_TAGS: Final = 1000
"""Each distinct tag is a line in an index, so a record of tags alone would cost many times its size."""

VERSION: Final = 0
"""The major version of Mosaic this is."""

_HEAD = struct.Struct(">Q40s8sQ32s32sQ")
"""id timestamp, id hash, nonce, kind, author, signer, timestamp; all big-endian."""
_LENGTHS = struct.Struct("<QHHI")
"""flags, and the lengths of tags, signature and payload; all little-endian."""
_SIGNED_AT: Final = 48
_LENGTHS_AT: Final = 136

_RECORD: Final = model.Kind.RECORD
_REFUSED: Final = model.Kind.REFUSED
_MOSAIC: Final = model.Protocol.MOSAIC


class Flag(IntFlag):
    """The first byte of the flags; all its other bits and the two bytes behind must be clear."""

    ZSTD = 0x01
    FROM_AUTHOR = 0x04


_RESERVED_FLAGS: Final = 0xFFFFFF & ~int(Flag.ZSTD | Flag.FROM_AUTHOR)
"""With the two bits of the signature scheme, of which only Ed25519 (00) is defined. Bytes 3 to 7 are ignored."""


class Duplicates(IntEnum):
    """What becomes of records with the same address: the two lowest bits of a kind."""

    UNIQUE = 0
    EPHEMERAL = 1
    REPLACEABLE = 2
    VERSIONED = 3


class ReadAccess(IntEnum):
    """Who may read a record: the next two bits of a kind. The reserved value opens nothing."""

    AUTHOR = 0
    AUTHOR_AND_TAGGED = 1
    RESERVED = 2
    EVERYBODY = 3


_KIND_RESERVED: Final = 0xFFE0
"""facts/mosaic.md, section 1.5: bits 15 to 5 of a kind must be 0."""

KEY_SCHEDULE: Final = 0x000000000001000E
PROFILE: Final = 0x000000000002000E
MICROBLOG: Final = 0x000000010001001C
EXAMPLE: Final = 0x000000630001001C


def duplicates_of(kind: int) -> Duplicates:
    """How records of a kind treat others with their address."""
    return Duplicates(kind & 3)


def read_access_of(kind: int) -> ReadAccess:
    """Who may read records of a kind."""
    return ReadAccess(kind >> 2 & 3)


def application_of(kind: int) -> int:
    """The application a kind belongs to."""
    return kind >> 32


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record whose lengths and flags are sound. Whether id and signature are, `judge` says."""

    raw: bytes
    kind: int
    author: bytes
    signer: bytes
    timestamp: int
    flags: int
    tag_bytes: int
    payload_bytes: int
    tags: tuple[bytes, ...]
    """Each whole, in their order."""

    @property
    def id(self) -> bytes:
        """The timestamp and a hash."""
        return self.raw[:ID_BYTES]

    @property
    def id_prefix(self) -> bytes:
        """The part of the id that answers and filters carry."""
        return self.raw[:ID_PREFIX_BYTES]

    @property
    def address(self) -> bytes:
        """Nonce, kind and author: what replaceable and versioned records have in common."""
        return self.raw[48:96]

    @property
    def nonce(self) -> bytes:
        """The part of the address that is the author's choice."""
        return self.raw[48:56]

    @property
    def payload(self) -> bytes:
        """The payload, compressed if the flag says so."""
        start = HEADER + _padded(self.tag_bytes)
        return self.raw[start : start + self.payload_bytes]

    @property
    def text(self) -> str | None:
        """The payload where it is text; None when it is compressed or anything else."""
        if self.flags & Flag.ZSTD:
            return None
        try:
            return self.payload.decode()
        except UnicodeDecodeError:
            return None

    @property
    def signature(self) -> bytes:
        """The signature."""
        return self.raw[-mosaic.SIGNATURE_BYTES :]

    @property
    def signed(self) -> bytes:
        """The bytes that are hashed and signed."""
        return self.raw[_SIGNED_AT : -mosaic.SIGNATURE_BYTES]

    @property
    def duplicates(self) -> Duplicates:
        """How it treats others with its address."""
        return duplicates_of(self.kind)

    @property
    def from_author(self) -> bool:
        """Whether only its author may submit it."""
        return bool(self.flags & Flag.FROM_AUTHOR)

    def readable_by(self, key: bytes | None) -> bool:
        """Whether the holder of `key` (None: nobody in particular) may read it (facts/mosaic.md, section 1.5)."""
        access = self.kind >> 2 & 3
        if access == ReadAccess.EVERYBODY:
            return True
        if key is None:
            return False
        # A user may be authenticated by the master key or by the key that signed.
        if key in (self.author, self.signer):
            return True
        return access == ReadAccess.AUTHOR_AND_TAGGED and any(tags.tagged_key(tag) == key for tag in self.tags)


def _padded(size: int) -> int:
    return size + 7 & ~7


def decode(raw: bytes) -> Record:
    """Read a record.

    Raises:
        PeerFault: its lengths, flags, timestamps, nonce, kind or tags are not what a record has (facts/mosaic.md,
            section 1.3, rules 1, 2, 8 and 11), or it is too large.
    """
    size = len(raw)
    if not MIN_RECORD <= size <= MAX_RECORD:
        if size > MAX_RECORD:
            raise fault(Result.TOO_LARGE, f"A record has at most {MAX_RECORD} bytes, not {size}.")
        raise invalid(f"A record has at least {MIN_RECORD} bytes, not {size}.")
    id_time, _, nonce, kind, author, signer, time = _HEAD.unpack_from(raw)
    flags, tag_bytes, signature_bytes, payload_bytes = _LENGTHS.unpack_from(raw, _LENGTHS_AT)
    if signature_bytes != mosaic.SIGNATURE_BYTES:
        raise invalid(f"An Ed25519 signature has {mosaic.SIGNATURE_BYTES} bytes, not {signature_bytes}.")
    expected = MIN_RECORD + (tag_bytes + 7 & ~7) + (payload_bytes + 7 & ~7)
    if size != expected:
        raise invalid(f"The record's lengths add up to {expected} bytes, but it has {size}.")
    if id_time != time or time > timestamp.MAX_TIMESTAMP:
        raise invalid("The id's timestamp is not the record's, or beyond the times there are.")
    if not nonce[0] & 0x80:
        raise invalid("The first bit of an address is 1.")
    if flags & _RESERVED_FLAGS:
        raise invalid(f"Flags that are reserved are set: {flags & 0xFFFFFF:#x}.")
    if kind & _KIND_RESERVED:
        raise invalid(f"Bits of the kind that must be 0 are set: {kind:#018x}.")
    found = tags.split(raw[HEADER : HEADER + tag_bytes]) if tag_bytes else ()
    if len(found) > MAX_TAGS:
        raise fault(Result.TOO_LARGE, f"A record may have {MAX_TAGS} tags, not {len(found)}.")
    return Record(raw, kind, author, signer, time, flags & 0xFF, tag_bytes, payload_bytes, tuple(found))


def judge(record: Record) -> model.Verdict:
    """What id, keys and signature prove (facts/mosaic.md, section 1.3, rules 3, 4, 6, 7 and 9)."""
    raw = record.raw
    hashed = mosaic.prehash(record.signed)
    if hashed[:40] != raw[8:ID_BYTES]:
        return model.Verdict.BAD_ID
    if record.author != record.signer and not mosaic.is_key(record.author):
        return model.Verdict.BAD_SIGNATURE
    if mosaic.verify_prehash(record.signer, hashed, record.signature):
        return model.Verdict.OK
    return model.Verdict.BAD_SIGNATURE


def make(
    signer: mosaic.Signer,
    *,
    kind: int,
    nonce: bytes,
    timestamp: int,
    payload: bytes,
    tag_list: Sequence[bytes] = (),
    author: bytes | None = None,
    flags: int = 0,
) -> bytes:
    """A signed record.

    Args:
        signer: who signs.
        kind: application, application's kind and flags as one number.
        nonce: 8 bytes; the first bit is set here.
        timestamp: on Mosaic's scale (`wire.mosaic.timestamp`).
        payload: the payload, compressed already if `flags` say so.
        tag_list: whole tags, as `tags.make` makes them.
        author: the master key; by default the signer's own.
        flags: of `Flag`.

    Raises:
        ValueError: tags or record are too large.
    """
    section = b"".join(tag_list)
    lengths = _LENGTHS.pack(flags, len(section), mosaic.SIGNATURE_BYTES, len(payload)) if len(section) < 65_536 else b""
    size = MIN_RECORD + _padded(len(section)) + _padded(len(payload))
    if not lengths or size > MAX_RECORD:
        raise ValueError(f"a record has at most 65535 bytes of tags and {MAX_RECORD} in all: {len(section)}, {size}")
    time = timestamp.to_bytes(8, "big")
    signed = b"".join(
        (
            bytes((nonce[0] | 0x80,)) + nonce[1:8],
            kind.to_bytes(8, "big"),
            signer.public if author is None else author,
            signer.public,
            time,
            lengths,
            section.ljust(_padded(len(section)), b"\0"),
            payload.ljust(_padded(len(payload)), b"\0"),
        )
    )
    hashed = mosaic.prehash(signed)
    return time + hashed[:40] + signed + signer.sign_prehash(hashed)


def nonce_of(key: bytes) -> bytes:
    """A nonce that is the same for the same `key`: so an address can be found again."""
    hashed = mosaic.prehash(key)
    return bytes((hashed[0] | 0x80,)) + hashed[1:8]


def to_entry(record: Record, *, verdict: model.Verdict, received_at: int) -> model.Entry:
    """The log's line for a record: its kind is the topic, its author the publisher, its signing key the chain."""
    return model.Entry(
        _RECORD if verdict.accepted else _REFUSED,
        _MOSAIC,
        VERSION,
        f"{record.kind:016x}",
        0,
        record.author.hex(),
        record.signer.hex(),
        record.timestamp,
        0,
        None,
        None,
        timestamp.to_unix(record.timestamp),
        record.id,
        verdict,
        received_at,
        record.raw,
    )
