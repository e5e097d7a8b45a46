"""Delta tables without a jar: Spark writes Parquet files, delta-rs commits them, once for each run.

DESIGN.md, "The pipeline". A run writes the files of a table into a folder of its own below the table; nothing sees
them until one transaction names them, which also carries the run's number, so that a table knows which runs it has.
Files a crash leaves unnamed are harmless, and go when the run is done again.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction

from catchment import lake
from catchment.errors import OurFault, UserError
from catchment.pipeline.columns import EVENT_DATE, TABLE_FORMAT, Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

APP: Final = "catchment-run"
"""The application id runs commit under; its version is the run's number."""

PLAN_APP: Final = "catchment-plan"
"""The application id under which a run is planned."""

FILE_COLUMN: Final = "_file"
"""Which file a row came from, beside the columns of a table."""

_GLOB: Final = str.maketrans({char: f"\\{char}" for char in "{}[]*?\\"})
_LONGEST_STATISTIC: Final = 32


class LiveFile(NamedTuple):
    """A file that a version of a table names."""

    path: str
    size: int
    rows: int
    partition: dict[str, str | None]


class LakeTable:
    """One of the pipeline's tables, at one version.

    Attributes:
        spec: its columns.
        delta: delta-rs' handle.
    """

    def __init__(self, spec: Table, delta: DeltaTable) -> None:
        self.spec = spec
        self.delta = delta

    @classmethod
    def open(cls, address: str, spec: Table, *, version: int | None = None) -> LakeTable | None:
        """The table of the lake at `address`, None when no run ever made it.

        Raises:
            UserError: a newer version of this software made it, or somebody else did.
            OurFault: its transaction log cannot be read.
        """
        where = lake.table_address(address, spec.name)
        try:
            delta = DeltaTable(where, version=version)
        except TableNotFoundError:
            return None
        except DeltaError as error:
            raise OurFault(f"the table {where} cannot be opened: {error}") from error
        check_format(where, delta, TABLE_FORMAT)
        return cls(spec, delta)

    @classmethod
    def open_or_create(cls, address: str, spec: Table) -> LakeTable:
        """As `open`, and make an empty table when there is none."""
        found = cls.open(address, spec)
        if found is None:
            DeltaTable.create(
                lake.table_address(address, spec.name),
                schema=spec.arrow,
                mode="ignore",
                partition_by=list(spec.partition_by),
                name=spec.name,
                description=spec.doc,
                configuration={lake.FORMAT_PROPERTY: TABLE_FORMAT},
                raise_if_key_not_exists=False,
            )
            found = cls.open(address, spec)
            assert found is not None
        return found

    @property
    def version(self) -> int:
        """The version of the table this is."""
        return self.delta.version()

    @property
    def last_run(self) -> int:
        """The last run this version has; 0 for none."""
        return self.delta.transaction_version(APP) or 0

    def files(self) -> list[LiveFile]:
        """The files of this version."""
        actions = pa.table(self.delta.get_add_actions())
        return [
            LiveFile(
                unquote(action["path"]),
                action["size_bytes"],
                action["num_records"],
                {name: str(value) for name, value in (action.get("partition") or {}).items()},
            )
            for action in actions.to_pylist()
        ]

    def rows(self) -> int:
        """How many rows this version has."""
        return sum(file.rows for file in self.files())

    def read(self, spark: SparkSession, *, only: Iterable[str] | None = None, with_file: bool = False) -> DataFrame:
        """The rows of this version, read by Spark's own Parquet reader.

        Args:
            spark: the session.
            only: paths of the files to read; all by default.
            with_file: add `FILE_COLUMN`, whose values `relative` turns into paths.
        """
        from pyspark.sql import functions as sf  # noqa: PLC0415 - an extra

        paths = [file.path for file in self.files()] if only is None else list(only)
        if paths:
            rows = spark.read.schema(self.spec.file_ddl).parquet(*spark_paths(self.delta, paths))
            file = sf.col("_metadata.file_path")
        else:
            rows, file = spark.createDataFrame([], self.spec.file_ddl), sf.lit("")
        if with_file:
            rows = rows.withColumn(FILE_COLUMN, file)
        if self.spec.partition_by:
            # Each run has its own folder, so the date is not read from the path.
            rows = rows.withColumn(EVENT_DATE, event_date(sf.col("event_time")))
        return rows.select(*self.spec.names, *((FILE_COLUMN,) if with_file else ()))

    def relative(self, file: str) -> str:
        """The path of a file, as the log has it, from a value of `FILE_COLUMN`."""
        return unquote(urlsplit(file).path).removeprefix(urlsplit(spark_root(self.delta)).path).lstrip("/")

    def write(self, rows: DataFrame, run: int) -> list[AddAction]:
        """Let Spark write rows into the run's own folder, in place of what an earlier try left there."""
        folder = f"run-{run:08d}"
        ordered = ("topic", "partition", "timestamp", "sequence")
        sort = [name for name in (*self.spec.partition_by, *ordered) if name in self.spec.names]
        rows.select(*self.spec.names).sortWithinPartitions(*sort).write.mode("overwrite").partitionBy(
            *self.spec.partition_by
        ).parquet(f"{spark_root(self.delta)}/{folder}")
        return self._written(folder)

    def commit(self, run: int, adds: Sequence[AddAction], removes: Iterable[str] = ()) -> None:
        """Commit a run's files in one transaction, and take away the files they replace."""
        live = {file.path: file for file in self.files()}
        now = time.time_ns() // 1_000_000
        gone = [
            RemoveAction(path, True, now, live[path].size, dict(live[path].partition)) for path in sorted(set(removes))
        ]
        _commit(self.delta, self.spec, [*adds, *gone], Transaction(APP, run))

    def append(self, rows: pa.Table, run: int, *, app: str = APP) -> None:
        """Commit a few rows without Spark."""
        files = filesystem(self.delta)
        files.create_dir("rows", recursive=True)
        path = f"rows/{run:08d}-{time.time_ns():x}.parquet"
        pq.write_table(rows.cast(self.spec.arrow), path, filesystem=files)
        _settle(self.delta, [path])
        _commit(self.delta, self.spec, [_add_action(files, path, {})], Transaction(app, run))

    def newest(self, column: str) -> pa.Table:
        """The rows of the files with the greatest value of a number column, found by their statistics."""
        actions = pa.table(self.delta.get_add_actions(flatten=True))
        highs = actions[f"max.{column}"] if actions.num_rows else pa.chunked_array([], pa.int64())
        paths = [unquote(path) for path in actions["path"].filter(pc.equal(highs, pc.max(highs))).to_pylist()]
        files = filesystem(self.delta)
        found = []
        for path in paths:
            with files.open_input_file(path) as source:
                found.append(pq.read_table(source, schema=self.spec.arrow, partitioning=None))
        return pa.concat_tables(found) if found else self.spec.arrow.empty_table()

    def _written(self, folder: str) -> list[AddAction]:
        files = filesystem(self.delta)
        found = files.get_file_info(pafs.FileSelector(folder, recursive=True, allow_not_found=True))
        adds = []
        for info in sorted((info for info in found if info.path.endswith(".parquet")), key=lambda info: info.path):
            path = folder + info.path.split(folder, 1)[1]
            values = dict(step.split("=", 1) for step in path.split("/") if "=" in step)
            adds.append(_add_action(files, path, {name: unquote(values[name]) for name in self.spec.partition_by}))
        _settle(self.delta, [add.path for add in adds])
        return adds


def event_date(event_time: Column) -> Column:
    """The UTC date of a timestamp column, whatever the session's time zone."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - an extra

    return sf.date_from_unix_date(sf.floor(sf.unix_micros(event_time) / 86_400_000_000).cast("int"))


def filesystem(delta: DeltaTable) -> pafs.FileSystem:
    """A filesystem whose root is the table's folder."""
    address = urlsplit(delta.table_uri)
    if address.scheme in ("", "file"):
        return pafs.SubTreeFileSystem(unquote(address.path), pafs.LocalFileSystem())
    return pafs.PyFileSystem(DeltaStorageHandler(delta.table_uri))


def spark_root(delta: DeltaTable) -> str:
    """The table's folder as Spark spells it: a URI that is not percent-encoded."""
    return unquote(delta.table_uri).rstrip("/")


def spark_paths(delta: DeltaTable, paths: Iterable[str]) -> list[str]:
    """Files of a table as Spark's readers take them; they read braces, brackets and stars as patterns."""
    root = spark_root(delta).translate(_GLOB)
    return [f"{root}/{path.translate(_GLOB)}" for path in paths]


def check_format(where: str, delta: DeltaTable, newest: str) -> None:
    """Refuse a table that is not ours or of a newer format.

    Raises:
        UserError: it is.
    """
    found = delta.metadata().configuration.get(lake.FORMAT_PROPERTY)
    if found is None or not found.isdecimal():
        raise UserError(f"{where} is a Delta table but none of Catchment's: choose another lake")
    if int(found) > int(newest):
        raise UserError(f"{where} has format {found}, this version knows {newest}: upgrade Catchment")


def _commit(delta: DeltaTable, spec: Table, actions: list[AddAction | RemoveAction], transaction: Transaction) -> None:
    try:
        delta.create_write_transaction(
            actions,
            mode="append",
            schema=spec.arrow,
            partition_by=list(spec.partition_by),
            commit_properties=CommitProperties(app_transactions=[transaction]),
        )
    except DeltaError as error:
        raise OurFault(f"run {transaction.version} could not commit the table {spec.name}: {error}") from error
    delta.update_incremental()


def _settle(delta: DeltaTable, paths: Iterable[str]) -> None:
    """Force files to disk before a transaction names them (a lake on this machine only)."""
    address = urlsplit(delta.table_uri)
    if address.scheme not in ("", "file"):
        return
    root = Path(unquote(address.path))
    targets = [root / path for path in paths]
    for target in [*targets, *sorted({target.parent for target in targets})]:
        handle = os.open(target, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _add_action(files: pafs.FileSystem, path: str, partition: dict[str, str]) -> AddAction:
    size = files.get_file_info(path).size
    with files.open_input_file(path) as source:
        statistics = file_statistics(pq.read_metadata(source))
    modified = time.time_ns() // 1_000_000
    return AddAction(path, size, dict(partition), modified, True, msgspec.json.encode(statistics).decode())


def file_statistics(footer: pq.FileMetaData) -> dict[str, object]:
    """Delta's statistics of a file from its Parquet footer: for skipping files, of numbers, times and short texts."""
    lows: dict[str, object] = {}
    highs: dict[str, object] = {}
    nulls: dict[str, int] = {}
    for index in range(footer.num_columns):
        name = footer.schema.column(index).path
        chunks = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        if "." in name or any(chunk is None or not chunk.has_null_count for chunk in chunks):
            continue
        nulls[name] = sum(chunk.null_count for chunk in chunks)
        # A row group of nulls alone has no bounds, and hides none.
        bounded = [chunk for chunk in chunks if chunk.has_min_max]
        if len(bounded) < len([chunk for chunk in chunks if chunk.num_values]) or not bounded:
            continue
        low, high = _statistic(min(c.min for c in bounded)), _statistic(max(c.max for c in bounded), up=True)
        if low is not None and high is not None:
            lows[name], highs[name] = low, high
    return {"numRecords": footer.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}


def _statistic(value: object, *, up: bool = False) -> object:
    """A value as Delta's statistics spell it, None when they are better without it."""
    if isinstance(value, dt.datetime):
        # Delta rounds times to milliseconds: down is right for the least only.
        whole = value.replace(microsecond=value.microsecond // 1000 * 1000)
        if up and whole != value:
            whole += dt.timedelta(milliseconds=1)
        return whole.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_STATISTIC else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
