"""One log entry as bytes: the record codec of the hot store, and the keys it is found by.

A record (DESIGN.md, "The entry"; facts/reliability.md, "checksum every record") is

    CRC32 of all that follows (4 bytes) | header (fixed) | inline names | id | raw

with every number big-endian. The header carries the record's own offset, so that a record standing at a wrong key is
noticed too. Entries of indexed kinds name topic, publisher and chain by interned numbers. `REFUSED` and `DUPLICATE`
entries keep those strings inline, their byte lengths standing where the numbers would: a sender chooses them freely
and must not grow the intern tables.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from zlib import crc32

from catchment import errors, model

RECORD_FORMAT: Final = 1
"""The header's first byte. A reader refuses a greater number; a smaller one it must go on reading."""

UNINDEXED: Final = tuple(kind for kind in model.Kind if not kind.indexed)

_CRC = struct.Struct(">I")
_ORDER = struct.Struct(">IqqqII")
"""topic, partition, timestamp, sequence, publisher, chain: bytes sort as numbers do, since none is negative."""
_HEADER = struct.Struct(f">BBBBBi{_ORDER.size}sqqqqqqI")
"""format, kind, protocol, verdict, flags, version, order key, prev_timestamp, prev_sequence, event_time, received_at,
epoch, offset, length of id."""
_FLAT_HEADER = struct.Struct(">BBBBBiIqqqIIqqqqqqI")
"""The same bytes with the order key taken apart."""
BODY_AT: Final = _CRC.size + _HEADER.size
ORDER_SLICE: Final = slice(13, 13 + _ORDER.size)
"""Where a record holds its order key."""
_OFFSET = struct.Struct(">Q")
_TOPIC_PREFIX = struct.Struct(">Iq")
_REF = struct.Struct(">qq")

HAS_PREV_TIMESTAMP: Final = 1
HAS_PREV_SEQUENCE: Final = 2
INLINE_NAMES: Final = 4

KINDS = {kind.value: kind for kind in model.Kind}
PROTOCOLS = {protocol.value: protocol for protocol in model.Protocol}
VERDICTS = {verdict.value: verdict for verdict in model.Verdict}

SCAN_PER_PLACE: Final = 20
"""How many keys one page of a filtered walk may look at for each place it was asked for, so that a page is short."""

PUBLISHER_SLICE: Final = slice(28, 32)
"""Where an order key holds the publisher's number."""
CHAIN_SLICE: Final = slice(32, 36)
"""Where an order key holds the chain's number."""

pack_offset: Final = _OFFSET.pack
pack_number: Final = _CRC.pack
_pack_order = _ORDER.pack
_pack_header = _HEADER.pack


class OrderNumbers(NamedTuple):
    """What an order key holds."""

    topic: int
    partition: int
    timestamp: int
    sequence: int
    publisher: int
    chain: int


def entry_crc(entry: model.Entry) -> int:
    """The `crc` column of the lake: CRC32 (as zlib computes it) of the entry's raw bytes and nothing else.

    A stored record has its own CRC over header, names, id and raw; that one never leaves the store.
    """
    return crc32(entry.raw)


def encode_name(name: str) -> bytes:
    """A name as bytes. JSON can spell lone surrogates, and one such name must not fail its batch."""
    return name.encode("utf-8", "surrogatepass")


def decode_name(data: bytes) -> str:
    """The name that `encode_name` made these bytes of."""
    return data.decode("utf-8", "surrogatepass")


def unpack_offset(data: bytes) -> int:
    """The number in an 8-byte offset."""
    return int.from_bytes(data, "big")


def unpack_offsets(packed: Sequence[bytes]) -> tuple[int, ...]:
    """The numbers in many 8-byte offsets."""
    return struct.unpack(f">{len(packed)}Q", b"".join(packed))


def pack_order(topic: model.Topic, key: model.OrderKey, names: tuple[int, int, int]) -> bytes:
    """The order key of a place in a topic, with the numbers of topic, publisher and chain.

    Raises:
        ValueError: partition, timestamp or sequence is not one `entry_order` would allow.
    """
    if (topic.partition | key.timestamp | key.sequence) >> 63:
        raise ValueError(f"no entry stands at {topic} {key}: its numbers are negative or beyond 63 bits")
    return _pack_order(names[0], topic.partition, key.timestamp, key.sequence, names[1], names[2])


def entry_order(entry: model.Entry, names: tuple[int, int, int]) -> bytes:
    """The order key of an entry whose topic, publisher and chain have these numbers.

    Raises:
        ValueError: partition, timestamp or sequence is negative or beyond 63 bits. The lake's columns end there too,
            and a row that could never be sealed must not enter the log.
    """
    partition, timestamp, sequence = entry.partition, entry.timestamp, entry.sequence
    if (partition | timestamp | sequence) >> 63:
        raise ValueError(
            f"an entry cannot be kept: partition {partition}, timestamp {timestamp} and sequence {sequence} "
            "must be from 0 to 2**63 - 1"
        )
    return _pack_order(names[0], partition, timestamp, sequence, names[1], names[2])


def unpack_order(key: bytes) -> OrderNumbers:
    """The numbers in an order key."""
    return OrderNumbers._make(_ORDER.unpack(key))


def order_bounds(topic: int, question: model.Range) -> tuple[bytes, bytes]:
    """The least and the greatest order key a range allows, in the topic with this number.

    Raises:
        ValueError: no entry can have this partition or these refs.
    """
    try:
        prefix = topic_prefix(topic, question.topic.partition)
        return prefix + _REF.pack(*question.start) + bytes(8), prefix + _REF.pack(*question.end) + b"\xff" * 8
    except struct.error as error:
        raise ValueError(f"no entry can be in {question}: {error}") from error


def topic_prefix(topic: int, partition: int) -> bytes:
    """What all order keys of a stream-partition begin with."""
    return _TOPIC_PREFIX.pack(topic, partition)


def successor(key: bytes) -> bytes:
    """The next greater key of the same length."""
    return (int.from_bytes(key, "big") + 1).to_bytes(len(key), "big")


def encode(entry: model.Entry, offset: int, epoch: int, order: bytes, *, inline: bytes | None = None) -> bytes:
    """The record of an entry.

    Args:
        entry: the entry.
        offset: the place the log gives it.
        epoch: the epoch it is kept in.
        order: its order key, which the header repeats.
        inline: the names themselves, when `order` holds their lengths instead of their numbers.

    Raises:
        ValueError: a number does not fit its field.
    """
    prev_timestamp, prev_sequence = entry.prev_timestamp, entry.prev_sequence
    flags = 0
    if prev_timestamp is None:
        prev_timestamp = 0
    else:
        flags = HAS_PREV_TIMESTAMP
    if prev_sequence is None:
        prev_sequence = 0
    else:
        flags |= HAS_PREV_SEQUENCE
    if inline is None:
        inline = b""
    else:
        flags |= INLINE_NAMES
    try:
        head = _pack_header(
            RECORD_FORMAT,
            entry.kind,
            entry.protocol,
            entry.verdict,
            flags,
            entry.version,
            order,
            prev_timestamp,
            prev_sequence,
            entry.event_time,
            entry.received_at,
            epoch,
            offset,
            len(entry.id),
        )
    except struct.error as error:
        raise ValueError(f"an entry cannot be kept: {error}") from error
    body = head + inline + entry.id + entry.raw
    return pack_number(crc32(body)) + body


def encode_inline(entry: model.Entry, offset: int, epoch: int) -> bytes:
    """The record of an entry that keeps its names to itself (`UNINDEXED` kinds).

    Raises:
        ValueError: a number does not fit its field.
    """
    topic, publisher, chain = encode_name(entry.topic), encode_name(entry.publisher), encode_name(entry.chain)
    order = entry_order(entry, (len(topic), len(publisher), len(chain)))
    return encode(entry, offset, epoch, order, inline=topic + publisher + chain)


def raw_size(data: bytes) -> int:
    """How many of a record's bytes are the entry's `raw`, if it is not damaged and names nothing inline."""
    return len(data) - BODY_AT - int.from_bytes(data[BODY_AT - 4 : BODY_AT], "big")


def decode(data: bytes, offset: int, names: Mapping[int, str]) -> model.Row:
    """The row a record holds.

    Args:
        data: the record.
        offset: where it was found; the record must say the same.
        names: the names interned under their numbers.

    Raises:
        StoreCorrupt: the record does not match its checksum or stands at the wrong offset.
        OurFault: a newer version of this software wrote it.
    """
    if len(data) < BODY_AT or crc32(data[4:]) != int.from_bytes(data[:4], "big"):
        raise errors.StoreCorrupt(f"the record at offset {offset} does not match its checksum")
    if data[4] > RECORD_FORMAT:
        raise errors.OurFault(
            f"the record at offset {offset} has format {data[4]}, this version reads up to {RECORD_FORMAT}: "
            "use the newer Catchment that wrote it"
        )
    (
        _,
        kind,
        protocol,
        verdict,
        flags,
        version,
        topic,
        partition,
        timestamp,
        sequence,
        publisher,
        chain,
        prev_timestamp,
        prev_sequence,
        event_time,
        received_at,
        epoch,
        own_offset,
        id_length,
    ) = _FLAT_HEADER.unpack_from(data, 4)
    if own_offset != offset:
        raise errors.StoreCorrupt(f"the record at offset {offset} belongs to offset {own_offset}")
    body_at = BODY_AT
    if flags & INLINE_NAMES:
        publisher_at, chain_at = body_at + topic, body_at + topic + publisher
        body_at = chain_at + chain
        topic_name = decode_name(data[BODY_AT:publisher_at])
        publisher_name = decode_name(data[publisher_at:chain_at])
        chain_name = decode_name(data[chain_at:body_at])
    else:
        topic_name, publisher_name, chain_name = names[topic], names[publisher], names[chain]
    raw_at = body_at + id_length
    try:
        known = KINDS[kind], PROTOCOLS[protocol], VERDICTS[verdict]
    except KeyError as error:
        raise errors.OurFault(
            f"the record at offset {offset} has a kind, protocol or verdict this version does not know ({error}): "
            "use the newer Catchment that wrote it"
        ) from error
    entry = model.Entry(
        known[0],
        known[1],
        version,
        topic_name,
        partition,
        publisher_name,
        chain_name,
        timestamp,
        sequence,
        prev_timestamp if flags & HAS_PREV_TIMESTAMP else None,
        prev_sequence if flags & HAS_PREV_SEQUENCE else None,
        event_time,
        data[body_at:raw_at],
        known[2],
        received_at,
        data[raw_at:],
    )
    return model.Row(offset, epoch, entry)


def with_checksum(key: bytes, value: bytes) -> bytes:
    """A small value guarded, together with the key it stands at, by a CRC32 before it."""
    return _CRC.pack(crc32(value, crc32(key))) + value


def without_checksum(key: bytes, stored: bytes) -> bytes:
    """The value `with_checksum` guarded.

    Raises:
        StoreCorrupt: key and value do not match the checksum.
    """
    value = stored[4:]
    if len(stored) < _CRC.size or crc32(value, crc32(key)) != int.from_bytes(stored[:4], "big"):
        raise errors.StoreCorrupt(f"the value stored at {key[:64]!r} does not match its checksum")
    return value
