"""Many rows of the log at once, column by column.

Reading a record is mostly overhead that has to be paid for each field of each record. Here the fixed headers of many
records are taken apart together, every check of `records.decode` is made for all of them at once, and each field comes
out as one sequence: what sealing wants, and half of what whole rows cost one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from operator import add
from typing import Final, NamedTuple
from zlib import crc32

from catchment import model
from catchment.store import records

BLOCK_ROWS: Final = 512
"""The most records `decode_block` takes."""

_FIELDS: Final = 20
_HEADS = struct.Struct(">" + "I5BiI3q2I6qI" * BLOCK_ROWS)
"""Checksum and flat header (see `records.py`) of that many records."""

_WORTH_IT: Final = 64
"""Fewer rows are read faster one by one."""


class Block(NamedTuple):
    """Rows of the log. The columns are those of `model.Entry`, numbers instead of members."""

    offset: Sequence[int]
    epoch: Sequence[int]
    kind: Sequence[int]
    protocol: Sequence[int]
    version: Sequence[int]
    topic: Sequence[str]
    partition: Sequence[int]
    publisher: Sequence[str]
    chain: Sequence[str]
    timestamp: Sequence[int]
    sequence: Sequence[int]
    prev_timestamp: Sequence[int | None]
    prev_sequence: Sequence[int | None]
    event_time: Sequence[int]
    id: Sequence[bytes]
    verdict: Sequence[int]
    received_at: Sequence[int]
    raw: Sequence[bytes]

    @property
    def size(self) -> int:
        """The sum of `model.Entry.size`."""
        return sum(sum(map(len, part)) for part in (self.raw, self.id, self.topic, self.publisher, self.chain))

    def of_first_epoch(self) -> Block:
        """The rows before the first of another epoch: each epoch is one stretch of offsets."""
        same = self.epoch.count(self.epoch[0])
        return self if same == len(self.epoch) else Block._make(column[:same] for column in self)


def block_of(rows: Sequence[model.Row]) -> Block:
    """The same rows column by column."""
    entries = [row.entry for row in rows]
    columns = [[getattr(entry, name) for entry in entries] for name in model.Entry.__struct_fields__]
    return Block([row.offset for row in rows], [row.epoch for row in rows], *columns)


def decode_rows(found: Sequence[bytes], offsets: Sequence[int], names: Mapping[int, str]) -> list[model.Row]:
    """The rows that records hold: `records.decode` for any number of them.

    Raises:
        StoreCorrupt: a record does not match its checksum or stands at the wrong offset.
        OurFault: a newer version of this software wrote one.
    """
    rows: list[model.Row] = []
    for start in range(0, len(found), BLOCK_ROWS):
        part, places = found[start : start + BLOCK_ROWS], offsets[start : start + BLOCK_ROWS]
        if len(part) < _WORTH_IT:
            rows += [records.decode(data, offset, names) for data, offset in zip(part, places, strict=True)]
        else:
            rows += _rows_of(decode_block(part, places, names))
    return rows


def _rows_of(block: Block) -> list[model.Row]:
    entries = map(
        model.Entry,
        map(records.KINDS.__getitem__, block.kind),
        map(records.PROTOCOLS.__getitem__, block.protocol),
        *block[4:-3],
        map(records.VERDICTS.__getitem__, block.verdict),
        block.received_at,
        block.raw,
    )
    return list(map(model.Row, block.offset, block.epoch, entries))


def decode_block(found: Sequence[bytes], offsets: Sequence[int], names: Mapping[int, str]) -> Block:
    """The rows that records hold, column by column.

    Where something is not as it should be, `records.decode` says what and where.

    Args:
        found: the records, at least one and at most `BLOCK_ROWS`.
        offsets: where each was found.
        names: the names interned under their numbers.

    Raises:
        StoreCorrupt: a record does not match its checksum or stands at the wrong offset.
        OurFault: a newer version of this software wrote one.
    """
    count = len(found)
    heads = b"".join([data[: records.BODY_AT] for data in found])
    flat = _HEADS.unpack(heads.ljust(_HEADS.size, b"\0"))
    columns = [flat[at : count * _FIELDS : _FIELDS] for at in range(_FIELDS)]
    crcs, formats, kinds, protocols, verdicts, flags, versions, topics, partitions, timestamps = columns[:10]
    sequences, publishers, chains, prev_timestamps, prev_sequences = columns[10:15]
    event_times, received_ats, epochs, own_offsets, id_lengths = columns[15:]
    if not (
        len(heads) == count * records.BODY_AT
        and crcs == tuple([crc32(data[4:]) for data in found])
        and max(formats) <= records.RECORD_FORMAT
        and own_offsets == tuple(offsets)
        and records.KINDS.keys() >= set(kinds)
        and records.PROTOCOLS.keys() >= set(protocols)
        and records.VERDICTS.keys() >= set(verdicts)
    ):
        for data, offset in zip(found, offsets, strict=True):
            records.decode(data, offset, names)
        raise AssertionError("what is wrong with a block is wrong with one of its records")
    inline: dict[int, model.Entry] = {}
    if any(flag & records.INLINE_NAMES for flag in set(flags)):
        own = [at for at, flag in enumerate(flags) if flag & records.INLINE_NAMES]
        inline = {at: records.decode(found[at], offsets[at], names).entry for at in own}
    id_at = [records.BODY_AT] * count
    for at in inline:
        id_at[at] += topics[at] + publishers[at] + chains[at]
    raw_at = list(map(add, id_at, id_lengths))
    return Block(
        own_offsets,
        epochs,
        kinds,
        protocols,
        versions,
        _named(topics, {at: entry.topic for at, entry in inline.items()}, names),
        partitions,
        _named(publishers, {at: entry.publisher for at, entry in inline.items()}, names),
        _named(chains, {at: entry.chain for at, entry in inline.items()}, names),
        timestamps,
        sequences,
        _optional(prev_timestamps, flags, records.HAS_PREV_TIMESTAMP),
        _optional(prev_sequences, flags, records.HAS_PREV_SEQUENCE),
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
