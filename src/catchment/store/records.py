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
from operator import add
from typing import Final, NamedTuple
from zlib import crc32

from catchment import errors, model
from catchment.store.blocks import Block

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
_BODY_AT: Final = _CRC.size + _HEADER.size
_KEY_AT: Final = slice(13, 13 + _ORDER.size)
_OFFSET = struct.Struct(">Q")

BLOCK_ROWS: Final = 512
"""The most records `decode_block` takes."""

_FIELDS: Final = 20
_BLOCK = struct.Struct(">" + "I5BiI3q2I6qI" * BLOCK_ROWS)
"""Checksum and flat header of that many records: all at once, for half of what it costs one by one."""
_TOPIC_PREFIX = struct.Struct(">Iq")
_REF = struct.Struct(">qq")

_HAS_PREV_TIMESTAMP: Final = 1
_HAS_PREV_SEQUENCE: Final = 2
_INLINE_NAMES: Final = 4

_KINDS = {kind.value: kind for kind in model.Kind}
_PROTOCOLS = {protocol.value: protocol for protocol in model.Protocol}
_VERDICTS = {verdict.value: verdict for verdict in model.Verdict}

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
        flags = _HAS_PREV_TIMESTAMP
    if prev_sequence is None:
        prev_sequence = 0
    else:
        flags |= _HAS_PREV_SEQUENCE
    if inline is None:
        inline = b""
    else:
        flags |= _INLINE_NAMES
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


def record_order(data: bytes) -> bytes:
    """The order key within a record."""
    return data[_KEY_AT]


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
    if len(data) < _BODY_AT or crc32(data[4:]) != int.from_bytes(data[:4], "big"):
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
    body_at = _BODY_AT
    if flags & _INLINE_NAMES:
        publisher_at, chain_at = body_at + topic, body_at + topic + publisher
        body_at = chain_at + chain
        topic_name = decode_name(data[_BODY_AT:publisher_at])
        publisher_name = decode_name(data[publisher_at:chain_at])
        chain_name = decode_name(data[chain_at:body_at])
    else:
        topic_name, publisher_name, chain_name = names[topic], names[publisher], names[chain]
    raw_at = body_at + id_length
    try:
        known = _KINDS[kind], _PROTOCOLS[protocol], _VERDICTS[verdict]
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
        prev_timestamp if flags & _HAS_PREV_TIMESTAMP else None,
        prev_sequence if flags & _HAS_PREV_SEQUENCE else None,
        event_time,
        data[body_at:raw_at],
        known[2],
        received_at,
        data[raw_at:],
    )
    return model.Row(offset, epoch, entry)


def decode_block(found: Sequence[bytes], first: int, names: Mapping[int, str]) -> Block:
    """The rows that successive records hold, column by column, up to the first of another epoch.

    Everything `decode` checks is checked here for all records at once. Where something is not as it should be,
    `decode` says what and where.

    Args:
        found: the records, at least one and at most `BLOCK_ROWS`.
        first: where the first was found, the others behind it.
        names: the names interned under their numbers.

    Raises:
        StoreCorrupt: a record does not match its checksum or stands at the wrong offset.
        OurFault: a newer version of this software wrote one.
    """
    count = len(found)
    heads = b"".join([data[:_BODY_AT] for data in found])
    flat = _BLOCK.unpack(heads.ljust(_BLOCK.size, b"\0"))
    columns = [flat[at : count * _FIELDS : _FIELDS] for at in range(_FIELDS)]
    crcs, formats, kinds, protocols, verdicts, flags, versions, topics, partitions, timestamps = columns[:10]
    sequences, publishers, chains, prev_timestamps, prev_sequences = columns[10:15]
    event_times, received_ats, epochs, offsets, id_lengths = columns[15:]
    if not (
        len(heads) == count * _BODY_AT
        and crcs == tuple([crc32(data[4:]) for data in found])
        and max(formats) <= RECORD_FORMAT
        and offsets == tuple(range(first, first + count))
        and _KINDS.keys() >= set(kinds)
        and _PROTOCOLS.keys() >= set(protocols)
        and _VERDICTS.keys() >= set(verdicts)
    ):
        for offset, data in enumerate(found, first):
            decode(data, offset, names)
        raise AssertionError("what is wrong with a block is wrong with one of its records")
    same = epochs.count(epochs[0])
    if same < count:
        return decode_block(found[:same], first, names)
    inline: dict[int, model.Entry] = {}
    if any(flag & _INLINE_NAMES for flag in set(flags)):
        own = [at for at, flag in enumerate(flags) if flag & _INLINE_NAMES]
        inline = {at: decode(found[at], first + at, names).entry for at in own}
    id_at = [_BODY_AT] * count
    for at in inline:
        id_at[at] += topics[at] + publishers[at] + chains[at]
    raw_at = list(map(add, id_at, id_lengths))
    return Block(
        epochs[0],
        first,
        kinds,
        protocols,
        versions,
        _named(topics, {at: entry.topic for at, entry in inline.items()}, names),
        partitions,
        _named(publishers, {at: entry.publisher for at, entry in inline.items()}, names),
        _named(chains, {at: entry.chain for at, entry in inline.items()}, names),
        timestamps,
        sequences,
        _optional(prev_timestamps, flags, _HAS_PREV_TIMESTAMP),
        _optional(prev_sequences, flags, _HAS_PREV_SEQUENCE),
        event_times,
        [data[start:end] for data, start, end in zip(found, id_at, raw_at, strict=True)],
        verdicts,
        received_ats,
        [data[start:] for data, start in zip(found, raw_at, strict=True)],
    )


def _named(numbers: Sequence[int], inline: Mapping[int, str], names: Mapping[int, str]) -> list[str]:
    """The names of a block's rows: by their numbers, or the row's own."""
    if not inline:
        return list(map(names.__getitem__, numbers))
    return [inline[at] if at in inline else names[number] for at, number in enumerate(numbers)]


def _optional(values: Sequence[int], flags: Sequence[int], bit: int) -> Sequence[int | None]:
    """The values of the rows that have this flag, None for the others."""
    if all(flag & bit for flag in set(flags)):
        return values
    return [value if flag & bit else None for value, flag in zip(values, flags, strict=True)]


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
