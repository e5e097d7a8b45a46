"""The layout of the lake: folders, the columns of the raw table, and the digest that chains its transactions.

`store/sealing.py` writes the raw table, `store/history.py` and `pipeline/` read it; each name is written here and
nowhere else. Addresses are strings, so that any filesystem both Spark and delta-rs read will do.

The digest chain (DESIGN.md, "Sealing"): a sealed transaction covers the offsets first..last of one node and epoch.
Its digest is BLAKE3 over the previous digest (32 bytes, zeros for the first of an epoch) followed, in the order of
the offsets, by the MessagePack array of each row's `DIGEST_COLUMNS`. Anyone with a BLAKE3 and a MessagePack library
can compute it again from the table alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

import msgspec
import pyarrow as pa
from blake3 import blake3

from catchment import model

RAW_FORMAT: Final = "1"
"""Written into the raw table's properties; a reader refuses a greater number."""

FORMAT_PROPERTY: Final = "catchment.format"
PARTITION_COLUMNS: Final = ("protocol", "date")

RAW_SCHEMA: Final = pa.schema(
    [
        pa.field("node", pa.binary(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("received_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("version", pa.int32(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int64(), nullable=False),
        pa.field("publisher", pa.string(), nullable=False),
        pa.field("chain", pa.string(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("prev_timestamp", pa.int64()),
        pa.field("prev_sequence", pa.int64()),
        pa.field("event_time", pa.int64(), nullable=False),
        pa.field("id", pa.binary(), nullable=False),
        pa.field("verdict", pa.string(), nullable=False),
        pa.field("raw", pa.binary(), nullable=False),
        pa.field("crc", pa.int64(), nullable=False),
        pa.field("protocol", pa.string(), nullable=False),
        pa.field("date", pa.date32(), nullable=False),
    ]
)
"""Partition columns last, as Hive-style paths put them. `event_time` is UTC nanoseconds as a number: Delta's own
timestamps end at microseconds."""

RAW_DOC: Final = "The log: every accepted message as its exact signed bytes, and notes of what was refused or repeated."

RAW_DOCS: Final = {
    "node": "The node whose log this is: 16 random bytes made with its store.",
    "epoch": "A random number, new whenever a store was created, restored or rolled back.",
    "offset": "The place in that log, dense from 0.",
    "received_at": "When the node received it.",
    "kind": "What it is: message, keyexchange, refused, duplicate, and the kinds of other protocols.",
    "version": "The wire version it came in.",
    "topic": "The stream or channel.",
    "partition": "The partition of the stream.",
    "publisher": "The publisher in canonical form (addresses in lower case).",
    "chain": "The publisher's message chain.",
    "timestamp": "The protocol's own timestamp (Streamr: milliseconds).",
    "sequence": "The protocol's own sequence number within the timestamp.",
    "prev_timestamp": "The timestamp of the message it says it follows; null for the first of a chain.",
    "prev_sequence": "The sequence number of the message it says it follows.",
    "event_time": "The timestamp as UTC nanoseconds.",
    "id": "The protocol's own unique id; empty where the order key is the identity.",
    "verdict": "What the node found.",
    "raw": "The exact signed bytes, never the request around them.",
    "crc": "CRC32 of raw.",
    "protocol": "The wire protocol.",
    "date": "The UTC date of received_at.",
}
"""A sentence for each column of `RAW_SCHEMA`; docs/tables.md is made from it."""

SORT_COLUMNS: Final = ("topic", "partition", "timestamp", "sequence")

DIGEST_COLUMNS: Final = (
    "offset",
    "received_at",
    "kind",
    "protocol",
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
    "id",
    "verdict",
    "raw",
)
"""`received_at` is digested as integer microseconds."""

FIRST_DIGEST: Final = bytes(32)


def raw_address(lake: str) -> str:
    """Where the raw table of a lake lies."""
    return f"{lake.rstrip('/')}/raw"


def table_address(lake: str, name: str) -> str:
    """Where the pipeline's table `name` lies."""
    return f"{lake.rstrip('/')}/tables/{name}"


def kind_name(kind: model.Kind) -> str:
    """The word for a kind in the lake."""
    return kind.name.lower()


def protocol_name(protocol: model.Protocol) -> str:
    """The word for a protocol in the lake and on the command line."""
    return protocol.name.lower()


def verdict_name(verdict: model.Verdict) -> str:
    """The word for a verdict in the lake."""
    return verdict.name.lower()


def seal_app(node: bytes, epoch: int) -> str:
    """The application id under which a node's epoch commits to the raw table."""
    return f"{node.hex()}-{epoch}"


_encode = msgspec.msgpack.Encoder().encode
_DIGEST_ROWS: Final = 128


def chain_digest(previous: bytes, rows: Iterable[Sequence[object]]) -> bytes:
    """The digest of one sealed range.

    Args:
        previous: the digest of the range before it, `FIRST_DIGEST` for the first of an epoch.
        rows: the values of `DIGEST_COLUMNS` of each row, in the order of the offsets.
    """
    digest = ChainDigest(previous)
    digest.update(rows)
    return digest.digest()


class ChainDigest:
    """`chain_digest` for rows that come little by little."""

    def __init__(self, previous: bytes) -> None:
        self._hash = blake3(previous)

    def update(self, rows: Iterable[Sequence[object]]) -> None:
        """Take further rows in."""
        encoded = map(_encode, rows)
        # BLAKE3 works on several kilobytes at a time: some rows at once cost a third of what they cost one by one.
        while chunk := b"".join(islice(encoded, _DIGEST_ROWS)):
            self._hash.update(chunk)

    def digest(self) -> bytes:
        """The digest of all rows so far."""
        return self._hash.digest()
