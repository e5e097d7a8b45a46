"""The raw table's columns: from blocks of the log to the values that are digested, and to Arrow.

Names and meanings are in `lake.py`. `sealing.py` writes what comes out of here.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Final, NamedTuple, TypeAlias, cast
from zlib import crc32

import msgspec
import pyarrow as pa

from catchment import lake, model
from catchment.store.arrow import maker, repeated
from catchment.store.blocks import Block

FILE_SCHEMA: Final = pa.schema([field for field in lake.RAW_SCHEMA if field.name not in lake.PARTITION_COLUMNS])
"""What a data file has: the partition's values stand in its path."""

_MAKERS: Final = [(field.name, maker(field.type)) for field in FILE_SCHEMA if field.name != "node"]
_DAY_US: Final = 86_400_000_000
_EPOCH_DAY: Final = dt.date(1970, 1, 1)
_STREAMR: Final = int(model.Protocol.STREAMR)
_KINDS: Final = {int(kind): lake.kind_name(kind) for kind in model.Kind}
_PROTOCOLS: Final = {int(protocol): lake.protocol_name(protocol) for protocol in model.Protocol}
_VERDICTS: Final = {int(verdict): lake.verdict_name(verdict) for verdict in model.Verdict}

_json = msgspec.json.Encoder().encode

Columns: TypeAlias = "dict[str, Sequence[object]]"
"""Values of the raw table by column, rows in the same order in each."""


class Partition(NamedTuple):
    """Which part of the raw table a row is filed in."""

    protocol: str
    date: str


def sealed_id(entry: model.Entry) -> bytes:
    """What stands in the `id` column: for a Streamr message, whose identity is its order key, that as a JSON array."""
    if entry.id or entry.protocol is not model.Protocol.STREAMR:
        return entry.id
    return _json((entry.topic, entry.partition, entry.timestamp, entry.sequence, entry.publisher, entry.chain))


def columns_of(block: Block) -> Columns:
    """The values of the raw table column by column, except `node` and the date, in the order of the block.

    `received_at` is integer microseconds.
    """
    places = zip(
        block.topic, block.partition, block.timestamp, block.sequence, block.publisher, block.chain, strict=True
    )
    ids = zip(block.id, block.protocol, map(_json, places), strict=True)
    return {
        "epoch": block.epoch,
        "offset": block.offset,
        "received_at": block.received_at,
        "kind": [_KINDS[kind] for kind in block.kind],
        "version": block.version,
        "topic": block.topic,
        "partition": block.partition,
        "publisher": block.publisher,
        "chain": block.chain,
        "timestamp": block.timestamp,
        "sequence": block.sequence,
        "prev_timestamp": block.prev_timestamp,
        "prev_sequence": block.prev_sequence,
        "event_time": block.event_time,
        # The rule of `sealed_id`.
        "id": [place if protocol == _STREAMR and not own else own for own, protocol, place in ids],
        "verdict": [_VERDICTS[verdict] for verdict in block.verdict],
        "raw": block.raw,
        "crc": [crc32(raw) for raw in block.raw],
        "protocol": [_PROTOCOLS[protocol] for protocol in block.protocol],
    }


def digested(columns: Columns) -> Iterator[Sequence[object]]:
    """The values of `lake.DIGEST_COLUMNS`, row by row."""
    return zip(*(columns[name] for name in lake.DIGEST_COLUMNS), strict=True)


def partitioned(columns: Columns) -> dict[Partition, Columns]:
    """The columns of each partition: nearly always all of them in one, as they are."""
    protocols, times = cast(Sequence[str], columns["protocol"]), cast(Sequence[int], columns["received_at"])
    if len(set(protocols)) == 1 and min(times) // _DAY_US == max(times) // _DAY_US:
        return {_partition(protocols[0], times[0]): columns}
    keys = list(map(_partition, protocols, times))
    return {
        key: {name: list(compress(values, [key == own for own in keys])) for name, values in columns.items()}
        for key in set(keys)
    }


def _partition(protocol: str, received_at: int) -> Partition:
    return Partition(protocol, (_EPOCH_DAY + dt.timedelta(days=received_at // _DAY_US)).isoformat())


def batch_of(node: bytes, columns: Columns) -> pa.RecordBatch:
    """The rows as a data file has them."""
    arrays = [make(columns[name]) for name, make in _MAKERS]
    return pa.RecordBatch.from_arrays(
        [repeated(pa.binary(), node, len(columns["offset"])), *arrays], schema=FILE_SCHEMA
    )
