"""Runs: everything new in the raw table goes into the tables, exactly once, wherever a run may be cut off.

DESIGN.md, "The pipeline". A run is planned first: which offsets of which node and epoch, the version of the raw table,
the versions of the tables it builds upon, the watermark. The plan is committed to the table `runs`; all that follows
is a function of it. Each table is then committed once with the run's number as its transaction version. A run that was
cut off is done again from its plan: tables that have its number are left alone. Two runs at once are kept apart by a
lock file where the lake is a folder of this machine; elsewhere Delta refuses the second plan.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
from deltalake.transaction import AddAction

from catchment.errors import OurFault, UserError
from catchment.pipeline import chains, raw
from catchment.pipeline import verify as verification
from catchment.pipeline.columns import DUPLICATES, GAPS, MESSAGES, QUARANTINE, RUNS, WRITTEN, Table
from catchment.pipeline.session import spark_session
from catchment.pipeline.tables import APP, FILE_COLUMN, PLAN_APP, LakeTable, event_date

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GRACE_S: Final = 60.0
"""How long a missing message may take before its hole is open."""

STEPS: Final = ("plan", "verify", *(table.name for table in WRITTEN), "finish")
"""The steps of a run, as progress names them."""

Progress = Callable[[str, int, int], None]
"""Called with a step's name, how many steps are done and how many there are."""

Checkpoint = Callable[[str], None]
"""Called between steps with a name; tests end the process there."""


class Plan(msgspec.Struct, frozen=True):
    """All that decides what a run does."""

    run: int
    raw_version: int
    spans: list[raw.Span]
    done: list[raw.Span]
    """Where each node and epoch stands after the run, `after` being -1."""
    watermark: int
    grace: int
    rows: int
    versions: dict[str, int]
    """Of each table, before the run."""


class RunReport(msgspec.Struct, frozen=True):
    """What was done.

    Attributes:
        run: the number of the last run done, 0 when nothing was new.
        resumed: the run that had been cut off before and was finished first, 0 when none was.
        rows_read: rows of the raw table that were processed.
        added: rows by which each table grew.
        totals: rows each table has now.
        gaps: rows of `gaps` by status.
    """

    run: int = 0
    resumed: int = 0
    rows_read: int = 0
    added: dict[str, int] = {}
    totals: dict[str, int] = {}
    gaps: dict[str, int] = {}


def run_pipeline(
    address: str,
    *,
    spark: SparkSession | None = None,
    master: str | None = None,
    progress: Progress | None = None,
    verify: str = "all",
    grace_s: float = GRACE_S,
    checkpoint: Checkpoint | None = None,
) -> RunReport:
    """Process everything that is sealed and not processed yet, then end.

    Args:
        address: the lake.
        spark: a session to use; one is started for `master` when there is something to do.
        master: see `spark_session`.
        progress: told of each step.
        verify: which rows to check again; only "all" so far.
        grace_s: how long a missing message may take, for the runs planned now.
        checkpoint: called between steps.

    Raises:
        UserError: nothing was ever sealed here, another run is under way, Spark cannot start, ...
        OurFault: the run was cut off; it goes on when called again.
    """
    if verify != "all":
        raise UserError(f"verify={verify} is not known: use all")
    with _lock(address):
        job = _Job(address, spark, master, progress or _silent, checkpoint or _unchecked)
        return job.everything(round(grace_s * 1_000_000))


def last_plan(address: str) -> tuple[Plan, bool] | None:
    """The newest plan of a lake and whether it was finished; None when there never was a run."""
    runs = LakeTable.open(address, RUNS)
    rows = runs.newest("run").to_pylist() if runs is not None else []
    if not rows:
        return None
    return msgspec.json.decode(rows[0]["plan"], type=Plan), any(row["phase"] == "finished" for row in rows)


class _Job:
    """One call of `run_pipeline`."""

    def __init__(
        self, address: str, spark: SparkSession | None, master: str | None, progress: Progress, checkpoint: Checkpoint
    ) -> None:
        self.address = address
        self.spark = spark
        self.master = master
        self.progress = progress
        self.checkpoint = checkpoint

    def everything(self, grace: int) -> RunReport:
        self._step("plan")
        last = last_plan(self.address)
        resumed = read = 0
        before: dict[str, int] = {}
        if last is not None and not last[1]:
            plan = last[0]
            before = self._rows_at(plan.versions)
            self._execute(plan)
            resumed, read = plan.run, plan.rows
        fresh = self._plan(last[0] if last is not None else None, grace)
        if fresh is not None:
            before = before or self._rows_at(fresh.versions)
            self._execute(fresh)
            read += fresh.rows
        run = fresh.run if fresh is not None else resumed
        totals = self._totals()
        added = {name: totals[name] - before[name] for name in totals} if run else {}
        return RunReport(run, resumed, read, added, totals, self._gap_counts() if totals else {})

    def _plan(self, last: Plan | None, grace: int) -> Plan | None:
        """Plan a run over what is new and commit the plan; None when nothing is."""
        delta = raw.open_raw(self.address)
        if delta is None:
            raise UserError(f"nothing was sealed into {self.address} yet: run `catchment lake seal` first")
        done = {(span.node, span.epoch): span.last for span in last.done} if last is not None else {}
        new = raw.find_new(delta, done)
        if not new.spans:
            return None
        done |= {(span.node, span.epoch): span.last for span in new.spans}
        tables = {table.name: LakeTable.open_or_create(self.address, table) for table in WRITTEN}
        plan = Plan(
            run=last.run + 1 if last is not None else 1,
            raw_version=delta.version(),
            spans=new.spans,
            done=[raw.Span(*key, -1, end) for key, end in sorted(done.items())],
            watermark=max(new.watermark, last.watermark if last is not None else 0),
            grace=grace,
            rows=new.rows,
            versions={name: table.version for name, table in tables.items()},
        )
        self.checkpoint("before plan")
        _note(self.address, plan, "planned", None)
        self.checkpoint("planned")
        return plan

    def _execute(self, plan: Plan) -> None:
        """Do what the plan says and the tables do not have yet."""
        todo = [table for table in WRITTEN if self._open(table).last_run < plan.run]
        if todo:
            self._write(plan, todo)
        self._step("finish")
        self.checkpoint("before finish")
        _note(self.address, plan, "finished", self._totals())
        self.checkpoint("finished")

    def _write(self, plan: Plan, todo: list[Table]) -> None:
        self._step("verify")
        if self.spark is None:
            self.spark = spark_session(self.master)
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra
        from pyspark.errors import PySparkException  # noqa: PLC0415

        try:
            with _prepared(self.spark, self.address, plan) as prepared:
                for table in todo:
                    self._step(table.name)
                    self.checkpoint(f"before {table.name}")
                    adds, removes = _WRITERS[table.name](prepared, self._open(table))
                    self.checkpoint(f"written {table.name}")
                    self._open(table).commit(plan.run, adds, removes)
                    self.checkpoint(f"committed {table.name}")
        except (PySparkException, Py4JError) as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
            raise OurFault(f"run {plan.run} was cut off ({reason}): run `catchment lake run` again") from error

    def _open(self, table: Table) -> LakeTable:
        found = LakeTable.open(self.address, table)
        if found is None:
            raise OurFault(f"the table {table.name} of {self.address} is gone: bring it back, or begin a new lake")
        return found

    def _step(self, name: str) -> None:
        self.progress(name, STEPS.index(name), len(STEPS))

    def _totals(self) -> dict[str, int]:
        opened = {table.name: LakeTable.open(self.address, table) for table in WRITTEN}
        return {name: table.rows() for name, table in opened.items() if table is not None}

    def _rows_at(self, versions: Mapping[str, int]) -> dict[str, int]:
        opened = {t.name: LakeTable.open(self.address, t, version=versions[t.name]) for t in WRITTEN}
        return {name: table.rows() for name, table in opened.items() if table is not None}

    def _gap_counts(self) -> dict[str, int]:
        statuses = self._open(GAPS).delta.to_pyarrow_dataset().to_table(columns=["status"])["status"]
        return {pair["values"]: pair["counts"] for pair in statuses.value_counts().to_pylist()}


class _Prepared(NamedTuple):
    """What the tables of a run are made from."""

    spark: SparkSession
    address: str
    plan: Plan
    ranked: DataFrame
    """All sightings in order, kept on disk for the length of the run."""
    touched: DataFrame
    """The keys of the chains this run may change."""
    dates: set[str]
    """The event dates of this run's rows."""
    refused: int
    """Rows for `quarantine`."""
    fresh: int
    """Rows for `messages`."""
    superseded: list[str]
    """Files of `messages` with rows that give way to an earlier copy."""

    def before(self, table: Table) -> LakeTable:
        """A table as it was when the run was planned."""
        found = LakeTable.open(self.address, table, version=self.plan.versions[table.name])
        assert found is not None, table.name
        return found


Written = tuple[list[AddAction], list[str]]
"""Files to add, and paths of files to remove."""


@contextmanager
def _prepared(spark: SparkSession, address: str, plan: Plan) -> Iterator[_Prepared]:
    """Read, verify and order the rows of a plan: the one pass through Python and the one shuffle."""
    from pyspark import StorageLevel  # noqa: PLC0415 - an extra
    from pyspark.sql import functions as sf  # noqa: PLC0415

    delta = raw.open_raw(address, version=plan.raw_version)
    assert delta is not None
    rows = raw.read_spans(spark, delta, plan.spans, verification.KINDS)
    fresh = chains.fresh_sightings(verification.judged(rows))
    touched = verification.chains(rows).persist(StorageLevel.DISK_ONLY)
    messages = LakeTable.open(address, MESSAGES, version=plan.versions[MESSAGES.name])
    assert messages is not None
    existing = None
    if messages.files():
        existing = chains.existing_sightings(messages.read(spark, with_file=True), touched)
    ranked = chains.ranked(fresh, existing).persist(StorageLevel.DISK_ONLY)
    try:
        facts = ranked.select(
            sf.collect_set(sf.when(sf.col(FILE_COLUMN).isNull(), event_date(sf.col("event_time")).cast("string"))),
            sf.count(sf.when(sf.col("role") == int(verification.Role.QUARANTINE), 1)),
            sf.count(sf.when(chains.is_new(), 1)),
            sf.collect_set(sf.when(chains.gives_way(), sf.col(FILE_COLUMN))),
        ).first()
        assert facts is not None
        files = sorted(messages.relative(file) for file in facts[3])
        yield _Prepared(spark, address, plan, ranked, touched, set(facts[0]), facts[1], facts[2], files)
    finally:
        ranked.unpersist()
        touched.unpersist()


def _write_quarantine(run: _Prepared, table: LakeTable) -> Written:
    if not run.refused:
        return [], []
    return table.write(chains.quarantine(run.ranked, run.plan.run), run.plan.run), []


def _write_messages(run: _Prepared, table: LakeTable) -> Written:
    if not run.fresh:
        return [], []
    rows = chains.messages(run.ranked, run.plan.run)
    if run.superseded:
        gone = run.ranked.where(chains.gives_way()).select(*MESSAGES.key)
        old = run.before(MESSAGES).read(run.spark, only=run.superseded)
        rows = rows.unionByName(old.join(gone, list(MESSAGES.key), "left_anti"))
    return table.write(rows, run.plan.run), run.superseded


def _write_duplicates(run: _Prepared, table: LakeTable) -> Written:
    before = run.before(DUPLICATES)
    # A repeat carries the same signed time: no other date can have its row.
    paths = [file.path for file in before.files() if file.partition["event_date"] in run.dates]
    old = before.read(run.spark, only=paths, with_file=True) if paths else None
    return _merge(run, table, before, chains.duplicates(run.ranked, old, run.plan.run))


def _write_gaps(run: _Prepared, table: LakeTable) -> Written:
    plan, before = run.plan, run.before(GAPS)
    now = chains.gaps(run.ranked, watermark=plan.watermark, grace=plan.grace, run=plan.run)
    if not before.files():
        return table.write(now, plan.run), []
    old = before.read(run.spark, with_file=True)
    changes = chains.gap_changes(now, old, run.touched, watermark=plan.watermark, grace=plan.grace)
    return _merge(run, table, before, changes)


def _merge(run: _Prepared, table: LakeTable, before: LakeTable, changes: DataFrame) -> Written:
    """Write changed rows, and again the rest of the files that hold an older form of one.

    `changes` are the table's columns, the file of the row to replace (null for a new one), and whether it is `gone`.
    """
    from pyspark import StorageLevel  # noqa: PLC0415 - an extra
    from pyspark.sql import functions as sf  # noqa: PLC0415

    changes = changes.persist(StorageLevel.DISK_ONLY)
    try:
        facts = changes.select(sf.count(sf.lit(1)), sf.collect_set(FILE_COLUMN)).first()
        assert facts is not None
        files = sorted(before.relative(file) for file in facts[1])
        if not facts[0]:
            return [], []
        rows = changes.where(~sf.col("gone")).select(*before.spec.names)
        if files:
            replaced = changes.where(sf.col(FILE_COLUMN).isNotNull()).select(*before.spec.key)
            rest = before.read(run.spark, only=files).join(replaced, list(before.spec.key), "left_anti")
            rows = rows.unionByName(rest)
        return table.write(rows, run.plan.run), files
    finally:
        changes.unpersist()


_WRITERS: Final[Mapping[str, Callable[[_Prepared, LakeTable], Written]]] = {
    QUARANTINE.name: _write_quarantine,
    MESSAGES.name: _write_messages,
    DUPLICATES.name: _write_duplicates,
    GAPS.name: _write_gaps,
}


def _note(address: str, plan: Plan, phase: str, counts: dict[str, int] | None) -> None:
    row = {
        "run": plan.run,
        "phase": phase,
        "raw_version": plan.raw_version,
        "watermark": plan.watermark,
        "plan": msgspec.json.encode(plan).decode(),
        "counts": None if counts is None else msgspec.json.encode(counts).decode(),
    }
    columns = {field.name: pa.array([row[field.name]], field.type) for field in RUNS.arrow}
    runs = LakeTable.open_or_create(address, RUNS)
    runs.append(pa.table(columns), plan.run, app=PLAN_APP if phase == "planned" else APP)


@contextmanager
def _lock(address: str) -> Iterator[None]:
    """Keep a second run out of a lake on this machine."""
    parts = urlsplit(address)
    if parts.scheme not in ("", "file"):
        yield
        return
    folder = Path(unquote(parts.path) if parts.scheme else address)
    if not folder.is_dir():
        raise UserError(f"there is no lake at {address}: run `catchment lake seal` first, or name it with --lake")
    with (folder / "pipeline.lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another run is at work on {address}: wait until it has ended") from None
        yield


def _silent(step: str, done: int, total: int) -> None:
    """Tell nobody."""


def _unchecked(name: str) -> None:
    """Go on."""
