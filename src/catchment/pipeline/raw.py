"""The rows of the raw table that no run has processed yet.

DESIGN.md, "The pipeline": files are chosen by their statistics in the Delta log and read by Spark's own Parquet
reader. Offsets are dense within a node and epoch, and a sealed transaction is whole, so at any version of the table
everything up to its greatest offset is there: where a run ends is one number for each node and epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from catchment import lake
from catchment.errors import OurFault, UserError
from catchment.pipeline.tables import check_format, filesystem, spark_paths, spark_root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DDL_TYPES: Final[Mapping[pa.DataType, str]] = {
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.timestamp("us", tz="UTC"): "timestamp",
}
RAW_DDL: Final = ", ".join(f"`{field.name}` {_DDL_TYPES[field.type]}" for field in lake.RAW_SCHEMA)


class Span(msgspec.Struct, frozen=True):
    """Offsets of one node and epoch: those beyond `after`, up to and with `last`."""

    node: str
    epoch: int
    after: int
    last: int


class New(NamedTuple):
    """What there is to do: the spans, the latest time of receipt (UTC microseconds) in their files, how many rows."""

    spans: list[Span]
    watermark: int
    rows: int


class _File(NamedTuple):
    path: str
    epochs: tuple[int, int]
    offsets: tuple[int, int]


def open_raw(address: str, *, version: int | None = None) -> DeltaTable | None:
    """The raw table of a lake, None when nothing was sealed yet.

    Raises:
        UserError: it is of a newer format, or not ours.
        OurFault: its log cannot be read.
    """
    where = lake.raw_address(address)
    try:
        delta = DeltaTable(where, version=version)
    except TableNotFoundError:
        return None
    except DeltaError as error:
        raise OurFault(f"the raw table {where} cannot be opened: {error}") from error
    check_format(where, delta, lake.RAW_FORMAT)
    return delta


def find_new(delta: DeltaTable, done: Mapping[tuple[str, int], int]) -> New:
    """What lies beyond the last processed offset of each node and epoch.

    Raises:
        UserError: a file the log names is missing or no Parquet file.
    """
    reached: dict[int, list[int]] = {}
    for (_, epoch), last in done.items():
        reached.setdefault(epoch, []).append(last)
    files = filesystem(delta)
    ends: dict[tuple[str, int], int] = {}
    watermark = count = 0
    for file in _files(delta):
        low, high = file.epochs
        # An epoch is all but certainly one node's; the least of several is safe.
        if low == high and low in reached and file.offsets[1] <= min(reached[low]):
            continue
        try:
            with files.open_input_file(file.path) as source:
                rows = pq.read_table(source, columns=["node", "epoch", "offset", "received_at"], partitioning=None)
        except (OSError, pa.ArrowException) as error:
            raise UserError(
                f"the file {file.path} of the raw table {delta.table_uri} cannot be read ({error}): "
                "run `catchment lake verify`"
            ) from error
        watermark = max(watermark, pc.max(rows["received_at"]).value)
        for owner in rows.group_by(["node", "epoch"]).aggregate([]).to_pylist():
            key = (owner["node"].hex(), owner["epoch"])
            mine = (pc.field("node") == owner["node"]) & (pc.field("epoch") == owner["epoch"])
            fresh = rows.filter(mine & (pc.field("offset") > done.get(key, -1)))
            if fresh.num_rows:
                count += fresh.num_rows
                ends[key] = max(ends.get(key, -1), pc.max(fresh["offset"]).as_py())
    spans = [Span(*key, done.get(key, -1), last) for key, last in sorted(ends.items())]
    return New(spans, watermark, count)


def read_spans(spark: SparkSession, delta: DeltaTable, spans: Sequence[Span], kinds: Iterable[str]) -> DataFrame:
    """The rows of `spans` that are of one of `kinds`."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - an extra

    wanted = [file.path for file in _files(delta) if any(_meets(file, span) for span in spans)]
    rows = (
        spark.read.schema(RAW_DDL)
        .option("basePath", spark_root(delta))
        .parquet(*spark_paths(delta, wanted))
        .where(sf.col("kind").isin(*kinds))
    )
    chosen = sf.lit(False)
    for span in spans:
        chosen = chosen | (
            (sf.col("node") == sf.lit(bytes.fromhex(span.node)))
            & (sf.col("epoch") == span.epoch)
            & (sf.col("offset") > span.after)
            & (sf.col("offset") <= span.last)
        )
    return rows.where(chosen)


def _meets(file: _File, span: Span) -> bool:
    return (
        file.epochs[0] <= span.epoch <= file.epochs[1] and file.offsets[1] > span.after and file.offsets[0] <= span.last
    )


def _files(delta: DeltaTable) -> list[_File]:
    """The files of a version, with the bounds the log gives; without bounds a file may hold anything."""
    anything = (-(2**63), 2**63 - 1)
    found = []
    for action in pa.table(delta.get_add_actions()).to_pylist():
        low, high = action.get("min") or {}, action.get("max") or {}
        bounds = {
            name: (low[name], high[name]) if low.get(name) is not None and high.get(name) is not None else anything
            for name in ("epoch", "offset")
        }
        found.append(_File(unquote(action["path"]), bounds["epoch"], bounds["offset"]))
    return found
