"""Reading and judging signed bytes again, batch by batch, with the node's own functions.

DESIGN.md, "The pipeline": Python runs only where cryptography needs it, over Arrow batches; `wire.registry` decides.
What the node wrote beside the bytes is a claim: a row whose names or numbers differ from what its bytes say is
`bad_id`, one whose bytes do not match their checksum is `malformed`. facts/spark.md: an Arrow UDF is the cheapest way
through Python, as the columns it does not ask for stay in the JVM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

import msgspec
import pyarrow as pa
from blake3 import blake3

from catchment import lake, model
from catchment.wire.registry import is_key_exchange, read_again

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SERVED: Final = (lake.kind_name(model.Kind.MESSAGE), lake.kind_name(model.Kind.RECORD))
"""The kinds that become rows of `messages` when nothing is wrong with them."""

KINDS: Final = (*SERVED, lake.kind_name(model.Kind.REFUSED), lake.kind_name(model.Kind.DUPLICATE))
"""The kinds of rows the tables of today are made from. Key exchanges are none of them: they stay out of `messages`."""

CLAIMS: Final = (
    "version",
    "topic",
    "partition",
    "publisher",
    "chain",
    "timestamp",
    "sequence",
    "prev_timestamp",
    "prev_sequence",
    "event_time",
)
"""What the node wrote beside the bytes and the bytes say themselves."""

ASKED: Final = ("protocol", "kind", "offset", "crc", "raw", "id", *CLAIMS)

JUDGED_DDL: Final = (
    "role int, chain_key binary, verdict string, reason string, content string, encryption string, group_key_id string"
)

_PROTOCOLS: Final = {lake.protocol_name(protocol): protocol for protocol in model.Protocol}
_VERDICTS: Final = {verdict: lake.verdict_name(verdict) for verdict in model.Verdict}
_DUPLICATE: Final = lake.kind_name(model.Kind.DUPLICATE)
_encode = msgspec.msgpack.Encoder().encode


class Role(IntEnum):
    """What becomes of a row. Copies of one message sort in this order."""

    MESSAGE = 0
    NOTE = 1
    """A repeat the node noted by its id."""
    QUARANTINE = 2
    NOTHING = 3
    """A noted repeat of what is in no table: the note does not say of which kind the message was, its topic does."""


class Judged(NamedTuple):
    """The answer for one row, in the order of `JUDGED_DDL`."""

    role: Role
    chain_key: bytes
    verdict: str
    reason: str = ""
    content: str | None = None
    encryption: str | None = None
    group_key_id: str | None = None


@lru_cache(maxsize=65_536)
def chain_key(protocol: str, topic: str, partition: int, publisher: str, chain: str) -> bytes:
    """One short key for a chain, so that shuffles and sorts need not carry its names.

    A cryptographic hash, because publishers choose the names: no one can put two chains under one key.
    """
    return blake3(_encode((protocol, topic, partition, publisher, chain))).digest(16)


def identity_key(protocol: str, entry_id: bytes, names: tuple[str, int, str, str]) -> bytes:
    """The chain key of a row: with timestamp and sequence it identifies the message, whatever the protocol.

    A Streamr message is identified by its order key; another protocol's by its id, which then is the key, so that
    such a message is a chain of its own (DESIGN.md, "The entry").
    """
    if protocol != lake.protocol_name(model.Protocol.STREAMR) and entry_id:
        return blake3(_encode((protocol, entry_id))).digest(16)
    return chain_key(protocol, *names)


def judge_row(  # noqa: PLR0917 - called for every row, in the order of ASKED
    protocol: str, kind: str, offset: int, crc: int, raw: bytes, entry_id: bytes, claims: tuple[object, ...]
) -> Judged:
    """Read one row of the raw table again.

    Args:
        protocol: as the lake names it.
        kind: one of `KINDS`.
        offset: its place in the log, which spreads the rows of the quarantine.
        crc: the checksum beside the bytes.
        raw: the signed bytes; empty for a noted repeat.
        entry_id: the id beside the bytes.
        claims: the values of `CLAIMS` beside the bytes.
    """
    names: tuple[str, int, str, str] = claims[1:5]  # type: ignore[assignment]  # the raw table's types
    if kind == _DUPLICATE:
        if is_key_exchange(protocol, names[0]):
            return Judged(Role.NOTHING, offset.to_bytes(8, "big", signed=True), _VERDICTS[model.Verdict.OK])
        return Judged(Role.NOTE, identity_key(protocol, entry_id, names), _VERDICTS[model.Verdict.OK])
    # Of another length than a chain's key, so no chain is touched.
    aside = offset.to_bytes(8, "big", signed=True)
    if crc32(raw) != crc:
        return _aside(aside, model.Verdict.MALFORMED, "The bytes do not match the checksum they were sealed with.")
    known = _PROTOCOLS.get(protocol)
    if known is None:
        return _aside(aside, model.Verdict.MALFORMED, f"This version does not know the protocol {protocol}.")
    reading = read_again(known, raw, names[0])
    entry = reading.entry
    if entry is None:
        return _aside(aside, reading.verdict, reading.reason)
    if differing := _difference(kind, entry, entry_id, claims):
        return _aside(aside, model.Verdict.BAD_ID, f"The row and its signed bytes differ in {differing}.")
    if kind not in SERVED or not reading.verdict.accepted:
        return _aside(aside, reading.verdict, reading.reason)
    return Judged(
        Role.MESSAGE,
        identity_key(protocol, entry.id, names),
        _VERDICTS[reading.verdict],
        "",
        reading.content,
        reading.encryption,
        reading.group_key_id,
    )


def _aside(key: bytes, verdict: model.Verdict, reason: str) -> Judged:
    return Judged(Role.QUARANTINE, key, _VERDICTS[verdict], reason)


def _difference(kind: str, entry: model.Entry, entry_id: bytes, claims: tuple[object, ...]) -> str:
    said = (
        entry.version,
        entry.topic,
        entry.partition,
        entry.publisher,
        entry.chain,
        entry.timestamp,
        entry.sequence,
        entry.prev_timestamp,
        entry.prev_sequence,
        entry.event_time,
    )
    if said != claims:
        return ", ".join(name for name, own, row in zip(CLAIMS, said, claims, strict=True) if own != row)
    if entry.id and entry.id != entry_id:
        return "id"
    # What was refused may be of any kind; what was accepted as a message or a record has to be one.
    if kind in SERVED and entry.verdict.accepted and lake.kind_name(entry.kind) != kind:
        return "kind"
    return ""


def judge_rows(columns: Iterable[Iterable[object]]) -> Iterator[Judged]:
    """Judge rows given as the columns of `ASKED`."""
    for protocol, kind, offset, crc, raw, entry_id, *claims in zip(*columns, strict=True):
        yield judge_row(protocol, kind, offset, crc, raw, entry_id, tuple(claims))


def judge_batch(*columns: pa.Array) -> pa.Array:
    """Judge one Arrow batch of the columns of `ASKED` into a struct array of `JUDGED_DDL`."""
    rows = list(judge_rows([column.to_pylist() for column in columns]))
    made = list(zip(*rows, strict=True)) if rows else [()] * len(Judged._fields)
    roles, keys, *texts = made
    arrays = [
        pa.array(roles, pa.int32()),
        pa.array(keys, pa.binary()),
        *(pa.array(values, pa.string()) for values in texts),
    ]
    return pa.StructArray.from_arrays(arrays, names=list(Judged._fields))


def judged(raw: DataFrame) -> DataFrame:
    """The rows of the raw table with the columns of `JUDGED_DDL` beside them; the node's verdict is `node_verdict`."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - an extra
    from pyspark.sql.pandas.functions import arrow_udf  # noqa: PLC0415

    check = arrow_udf(judge_batch, JUDGED_DDL)  # type: ignore[call-overload]  # its overloads want the kind, it itself wants hints
    named = raw.withColumnRenamed("verdict", "node_verdict")
    return named.withColumn("judged", check(*(sf.col(name) for name in ASKED))).select(
        *(sf.col(name) for name in named.columns), "judged.*"
    )


def chains(raw: DataFrame) -> DataFrame:
    """The chain key of every row of the raw table that may touch a chain, each once, found without cryptography."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - an extra
    from pyspark.sql.pandas.functions import arrow_udf  # noqa: PLC0415

    names = ("protocol", "topic", "partition", "publisher", "chain")
    touching = raw.where(sf.col("kind").isin(*SERVED, _DUPLICATE))
    # Only where the id is the identity does it belong to the key.
    by_id = sf.when(sf.col("protocol") == lake.protocol_name(model.Protocol.STREAMR), sf.lit(b"")).otherwise(
        sf.col("id")
    )
    distinct = touching.select(*names, by_id.alias("id")).distinct()
    key = arrow_udf(_key_batch, "binary")  # type: ignore[call-overload]  # its overloads want the kind, it itself wants hints
    return distinct.select(key("protocol", "id", *names[1:]).alias("chain_key")).distinct()


def _key_batch(*columns: pa.Array) -> pa.Array:
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return pa.array([identity_key(row[0], row[1], row[2:]) for row in rows], pa.binary())
