"""Every table of the lake: its columns, their types, and what each one means.

DESIGN.md, "The pipeline": explicit schemas, nullable additions only, a format number in each table. Names are written
here and nowhere else; what other engines see (Delta's schema, with these sentences as comments) is made from it.
Nothing here needs Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import pyarrow as pa

TABLE_FORMAT: Final = "1"
"""Written into each table's properties under `lake.FORMAT_PROPERTY`; a reader refuses a greater number."""

EVENT_DATE: Final = "event_date"

PROVISIONAL: Final = "provisional"
OPEN: Final = "open"
FILLED: Final = "filled"

_ARROW: Final[Mapping[str, pa.DataType]] = {
    "array<binary>": pa.list_(pa.binary()),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "int": pa.int32(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


class Column(NamedTuple):
    """A column: its name, its Spark type, and a sentence about it."""

    name: str
    type: str
    doc: str


class Table(NamedTuple):
    """A table of the lake."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    partition_by: tuple[str, ...] = (EVENT_DATE,)
    key: tuple[str, ...] = ()
    """What no two rows have in common."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def arrow(self) -> pa.Schema:
        """The schema as Delta keeps it."""
        return pa.schema([pa.field(c.name, _ARROW[c.type], metadata={"comment": c.doc}) for c in self.columns])

    @property
    def file_ddl(self) -> str:
        """The columns that stand in the table's files, as Spark's DDL: partition columns are in the log only."""
        return ", ".join(f"`{c.name}` {c.type}" for c in self.columns if c.name not in self.partition_by)


_CHAIN_KEY = Column(
    "chain_key", "binary", "16 bytes of BLAKE3 over what names the chain: equal for all messages of one chain."
)
_PLACE = (
    Column("node", "binary", "The node whose log this is from."),
    Column("epoch", "bigint", "The epoch of that log."),
    Column("offset", "bigint", "The place in that log."),
    Column("received_at", "timestamp", "When the node received it."),
)
_CHAIN = (
    Column("protocol", "string", "The wire protocol: streamr, popstellar, mosaic."),
    Column("topic", "string", "The stream or channel."),
    Column("partition", "bigint", "The partition of the stream."),
    Column("publisher", "string", "The publisher in canonical form (addresses in lower case)."),
    Column("chain", "string", "The publisher's message chain."),
)
_REF = (
    Column("timestamp", "bigint", "The protocol's own timestamp (Streamr: milliseconds)."),
    Column("sequence", "bigint", "The protocol's own sequence number within the timestamp."),
)
_PREV = (
    Column("prev_timestamp", "bigint", "The timestamp of the message this one says it follows; null for none."),
    Column("prev_sequence", "bigint", "The sequence number of the message this one says it follows."),
)
_ID = Column("id", "binary", "The id of the message as sealed (Streamr: its order key as a JSON array).")
_EVENT_TIME = Column("event_time", "timestamp", "When the publisher says it happened, in UTC.")
_RUN = Column("run", "bigint", "The pipeline run that wrote the row as it is.")
_DATE = Column(EVENT_DATE, "date", "The UTC date of event_time.")

IDENTITY: Final = ("chain_key", "timestamp", "sequence")
"""What a message is known by in every table; `verify.chain_key` says why this is enough for every protocol."""

MESSAGES: Final = Table(
    "messages",
    "Every message once: the earliest copy the nodes received, read and checked again from its signed bytes.",
    (
        _CHAIN_KEY,
        *_CHAIN,
        *_REF,
        *_PREV,
        _ID,
        _EVENT_TIME,
        Column("kind", "string", "What it is: message, or record (Mosaic)."),
        Column("version", "int", "The wire version it came in."),
        Column("content", "string", "The content as the publisher sent it (JSON), encrypted where encryption says so."),
        Column("encryption", "string", "How the content is encrypted: none, rsa, aes or (Streamr 31) new_key_and_aes."),
        Column("group_key_id", "string", "The group key the content needs; null when it is not encrypted."),
        Column("node_verdict", "string", "What the node found."),
        Column("verdict", "string", "What the pipeline found from the signed bytes alone: ok or unsigned."),
        *_PLACE,
        Column("raw", "binary", "The exact signed bytes."),
        _RUN,
        _DATE,
    ),
    key=IDENTITY,
)

QUARANTINE: Final = Table(
    "quarantine",
    "What the node refused and what failed the pipeline's own check, with its bytes. Names and numbers are the node's.",
    (
        *_CHAIN,
        *_REF,
        *_PREV,
        _ID,
        _EVENT_TIME,
        Column("kind", "string", "What the node kept it as: refused, message or record."),
        Column("version", "int", "The wire version it came in."),
        Column("node_verdict", "string", "What the node found."),
        Column("verdict", "string", "What the pipeline found from the bytes alone."),
        Column("agrees", "boolean", "Whether both found the same; null where bytes alone cannot tell (not_permitted)."),
        Column("reason", "string", "Why the pipeline did not accept it, in one sentence; empty when it would have."),
        *_PLACE,
        Column("raw", "binary", "The bytes as they were kept."),
        _RUN,
        _DATE,
    ),
    key=("node", "epoch", "offset"),
)

DUPLICATES: Final = Table(
    "duplicates",
    "One row for each message that came more than once, to one node or to several.",
    (
        _CHAIN_KEY,
        *_CHAIN,
        *_REF,
        _ID,
        _EVENT_TIME,
        Column("copies", "bigint", "How many times it came beyond the one in messages."),
        Column("nodes", "array<binary>", "The nodes it came to, the one of the kept copy included, sorted."),
        Column("first_seen", "timestamp", "When the first copy was received."),
        Column("last_seen", "timestamp", "When the last copy was received."),
        _RUN,
        _DATE,
    ),
    key=IDENTITY,
)

GAPS: Final = Table(
    "gaps",
    "Holes in message chains: a message says it follows one that is not there.",
    (
        _CHAIN_KEY,
        *_CHAIN,
        Column("from_timestamp", "bigint", "The last message known before the hole (not missing): its timestamp."),
        Column("from_sequence", "bigint", "The last message known before the hole: its sequence number."),
        Column("to_timestamp", "bigint", "The last missing message: its timestamp."),
        Column("to_sequence", "bigint", "The last missing message: its sequence number."),
        Column("next_timestamp", "bigint", "The message that revealed the hole and follows it: its timestamp."),
        Column("next_sequence", "bigint", "The message that revealed the hole: its sequence number."),
        _EVENT_TIME._replace(doc="When the publisher says the revealing message happened, in UTC."),
        Column("since", "timestamp", "When the revealing message was received."),
        Column("status", "string", "provisional (may still come), open (did not come in time) or filled (came late)."),
        Column("filled_at", "timestamp", "When the last missing message was received; null unless filled."),
        _RUN,
        _DATE,
    ),
    key=("chain_key", "next_timestamp", "next_sequence"),
)

RUNS: Final = Table(
    "runs",
    "What the pipeline did: for each run a row when it was planned and a row when it was finished.",
    (
        Column("run", "bigint", "The number of the run, from 1."),
        Column("phase", "string", "planned or finished."),
        Column("raw_version", "bigint", "The version of the raw table that was read."),
        Column("watermark", "timestamp", "The latest received_at among all rows processed up to this run."),
        Column("plan", "string", "What to read and from which versions, as JSON."),
        Column("counts", "string", "Rows in each table after the run, as JSON; null when planned."),
    ),
    partition_by=(),
    key=("run", "phase"),
)

TABLES: Final[Mapping[str, Table]] = {table.name: table for table in (MESSAGES, QUARANTINE, DUPLICATES, GAPS, RUNS)}
"""All tables by name."""

WRITTEN: Final = (QUARANTINE, MESSAGES, DUPLICATES, GAPS)
"""The tables a run writes, in the order of their commits."""
