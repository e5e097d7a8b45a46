"""`catchment lake`: seal the log, prove the lake, run the pipeline, look into its tables.

Results go to standard output, progress bars to standard error and only on a terminal. Reading a table needs no Spark:
delta-rs answers the SQL.
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable
from rich.text import Text

from catchment import lake
from catchment.cli import output
from catchment.errors import UserError
from catchment.pipeline.columns import TABLES
from catchment.pipeline.raw import open_raw
from catchment.pipeline.tables import LakeTable
from catchment.store.lmdb import LmdbStore
from catchment.store.proof import Report, verify_lake
from catchment.store.sealing import Sealer, read_heads

if TYPE_CHECKING:
    from catchment.pipeline.jobs import RunReport

    SubParsers = argparse._SubParsersAction[argparse.ArgumentParser]

DEFAULT_DATA: Final = "catchment-data"
SHOWN_ROWS: Final = 20
"""Rows of a table on a terminal unless `--limit` says otherwise."""

RAW: Final = "raw"
"""The name under which the raw table itself can be looked at."""

BRIEF: Final[Mapping[str, tuple[str, ...]]] = {
    RAW: ("offset", "received_at", "kind", "topic", "partition", "publisher", "timestamp", "sequence", "verdict"),
    "messages": ("event_time", "topic", "partition", "publisher", "sequence", "verdict", "content"),
    "quarantine": ("received_at", "topic", "publisher", "kind", "node_verdict", "verdict", "agrees", "reason"),
    "duplicates": ("event_time", "topic", "partition", "publisher", "sequence", "copies", "first_seen", "last_seen"),
    "gaps": ("topic", "publisher", "from_timestamp", "to_timestamp", "next_timestamp", "since", "status", "filled_at"),
    "runs": ("run", "phase", "raw_version", "watermark", "counts"),
}
"""What a terminal has room for; `--json` and `--csv` give every column."""


def add_parsers(commands: SubParsers) -> None:
    """Add `catchment lake ...` to the command line."""
    parser = commands.add_parser("lake", help="seal the log, run the pipeline, look into the tables")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    seal = _verb(verbs, "seal", seal_log, "seal the committed log into the raw table")
    seal.add_argument("--json", action="store_true", help="one JSON object for each sealed range")
    prove = _verb(verbs, "verify", prove_lake, "prove that nothing sealed was changed or taken away")
    prove.add_argument("--json", action="store_true", help="the report as one JSON object")
    run = _verb(verbs, "run", run_lake, "process everything new into the tables, then end")
    run.add_argument("--master", metavar="URL", help="Spark's master (default: all cores of this machine)")
    run.add_argument("--json", action="store_true", help="the report as one JSON object")
    table = _verb(verbs, "table", show_table, "show rows of a table")
    table.add_argument("name", metavar="NAME", help=f"one of {', '.join(_names())}")
    table.add_argument("--where", metavar="SQL", help="a condition, such as \"publisher = '0x...'\"")
    table.add_argument("--limit", metavar="N", type=_count, help=f"at most N rows (on a terminal: {SHOWN_ROWS})")
    form = table.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object for each row, bytes in hex")
    form.add_argument("--csv", action="store_true", help="as CSV, bytes in hex")
    files = _verb(verbs, "files", show_files, "list the Parquet files of a table")
    files.add_argument("name", metavar="NAME", help=f"one of {', '.join(_names())}")
    files.add_argument("--json", action="store_true", help="one JSON object for each file")


def _verb(
    verbs: SubParsers, name: str, handler: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument("--data", metavar="DIR", default=DEFAULT_DATA, help=f"the node's folder (./{DEFAULT_DATA})")
    parser.add_argument("--lake", metavar="ADDRESS", help="folder or address of the lake (DIR/lake)")
    parser.set_defaults(run=handler)
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number


def _names() -> list[str]:
    return [*TABLES, RAW]


def _lake(arguments: argparse.Namespace) -> str:
    return str(arguments.lake or Path(arguments.data) / "lake")


def seal_log(arguments: argparse.Namespace) -> int:
    """`catchment lake seal`."""
    folder = Path(arguments.data)
    if not (folder / "store").is_dir():
        raise UserError(f"there is no store in {folder}: name the node's folder with --data")
    store = LmdbStore.open(folder / "store")
    try:
        sealer = Sealer(store, _lake(arguments), lock_path=folder / "seal.lock")
        with _bar("sealing", store.next_offset) as advance:
            advance(sealer.last_sealed() + 1, store.next_offset)
            ranges = []
            while (sealed := sealer.seal()) is not None:
                ranges.append(sealed)
                advance(sealed.last + 1, store.next_offset)
    finally:
        store.close()
    if arguments.json:
        for sealed in ranges:
            output.json_line(sealed)
    else:
        rows = sum(sealed.rows for sealed in ranges)
        output.line(f"sealed {rows} rows into {_lake(arguments)}" if rows else "nothing new to seal")
    return 0


def prove_lake(arguments: argparse.Namespace) -> int:
    """`catchment lake verify`: 0 when the lake is as it was sealed, 1 when it is not."""
    heads = _heads(Path(arguments.data)) if arguments.lake is None else None
    with _bar("verifying", 1) as advance:
        report = verify_lake(_lake(arguments), heads=heads, progress=advance)
    if arguments.json:
        output.json_line(report)
    else:
        _print_proof(report)
    return 0 if report.ok else 1


def _heads(data: Path) -> dict[str, str] | None:
    """The ends of the chains as the store remembers them; a lake may also be looked at without its store."""
    if not (data / "store").is_dir():
        return None
    store = LmdbStore.open(data / "store")
    try:
        return read_heads(store)
    finally:
        store.close()


def _print_proof(report: Report) -> None:
    for problem in report.problems:
        output.line(f"{problem.what}: {problem.text}")
    if report.problems:
        output.line(f"{len(report.problems)} problems in {report.lake}")
    elif report.version is None:
        output.line(f"nothing was sealed into {report.lake} yet")
    else:
        output.line(f"{report.rows} rows in {report.ranges} sealed ranges are as they were sealed")


def run_lake(arguments: argparse.Namespace) -> int:
    """`catchment lake run`."""
    from catchment.pipeline.jobs import STEPS, run_pipeline  # noqa: PLC0415 - needs the spark extra

    with _bar("pipeline", len(STEPS)) as advance:

        def progress(step: str, done: int, total: int) -> None:
            advance(done, total, step)

        report = run_pipeline(_lake(arguments), master=arguments.master, progress=progress)
    if arguments.json:
        output.json_line(report)
    else:
        _print_run(report)
    return 0


def _print_run(report: RunReport) -> None:
    if not report.run:
        output.line("nothing new: the tables have every sealed row")
        return
    if report.resumed:
        output.line(f"run {report.resumed} had been cut off and was finished")
    output.line(f"run {report.run}: {report.rows_read} rows read")
    table = RichTable("table", "added", "rows now")
    for name, rows in report.totals.items():
        table.add_row(name, str(report.added.get(name, 0)), str(rows))
    output.table(table)
    if report.gaps:
        output.line("gaps: " + ", ".join(f"{count} {status}" for status, count in sorted(report.gaps.items())))


def show_table(arguments: argparse.Namespace) -> int:
    """`catchment lake table`."""
    limit = arguments.limit
    if limit is None and not (arguments.json or arguments.csv):
        limit = SHOWN_ROWS
    batches = _query(_open(arguments), arguments.name, arguments.where, limit)
    if arguments.json:
        for row in _rows(batches):
            output.json_line(row)
    elif arguments.csv:
        _print_csv(arguments.name, batches)
    else:
        _print_table(arguments.name, list(_rows(batches)))
    return 0


def show_files(arguments: argparse.Namespace) -> int:
    """`catchment lake files`."""
    delta = _open(arguments)
    root = delta.table_uri.rstrip("/").removeprefix("file://")
    actions = pa.table(delta.get_add_actions()).to_pylist()
    for action in sorted(actions, key=lambda action: str(action["path"])):
        path = f"{root}/{action['path']}"
        if arguments.json:
            output.json_line({"path": path, "rows": action["num_records"], "bytes": action["size_bytes"]})
        else:
            output.line(path)
    return 0


def _open(arguments: argparse.Namespace) -> DeltaTable:
    name, address = arguments.name, _lake(arguments)
    if name == RAW:
        delta = open_raw(address)
    elif name in TABLES:
        table = LakeTable.open(address, TABLES[name])
        delta = table.delta if table is not None else None
    else:
        raise UserError(f"there is no table {name}: the tables are {', '.join(_names())}")
    if delta is None:
        step = "seal" if name == RAW else "run"
        raise UserError(f"{address} has no table {name} yet: run `catchment lake {step}` first, or name the lake")
    return delta


def _query(delta: DeltaTable, name: str, where: str | None, limit: int | None) -> Iterator[pa.RecordBatch]:
    sql = f'SELECT * FROM "{name}"'  # noqa: S608 - the user's own question to the user's own files
    sql += f" WHERE ({where})" if where else ""
    sql += f" LIMIT {limit}" if limit is not None else ""
    try:
        for batch in QueryBuilder().register(name, delta).execute(sql):
            yield pa.record_batch(batch)
    except (DeltaError, ValueError, OSError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(f"the table {name} does not answer {sql!r}: {reason}") from None


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, object]]:
    for batch in batches:
        for row in batch.to_pylist():
            yield {name: _plain(value) for name, value in row.items()}


def _plain(value: object) -> object:
    """A value as JSON has it: bytes in hex, times in ISO 8601."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _print_csv(name: str, batches: Iterator[pa.RecordBatch]) -> None:
    columns = lake.RAW_SCHEMA.names if name == RAW else TABLES[name].names
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    for row in _rows(batches):
        cells = (row.get(column) for column in columns)
        writer.writerow([msgspec.json.encode(cell).decode() if isinstance(cell, list) else cell for cell in cells])


def _print_table(name: str, rows: Sequence[Mapping[str, object]]) -> None:
    columns = BRIEF[name]
    table = RichTable(*columns, title=name, title_justify="left")
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    output.table(table)
    output.note(f"{len(rows)} rows shown; --json and --csv give every column")


def _cell(value: object) -> Text:
    """A value for a terminal: text from the network must not be markup to rich, nor commands to the terminal."""
    text = "" if value is None else str(value)
    return Text("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text))


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[..., None]]:
    """A progress bar on standard error, when that is a terminal; yields `advance(done, total, step="")`."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task: TaskID = bar.add_task(what, total=total)

        def advance(done: int, total: int, step: str = "") -> None:
            bar.update(task, completed=done, total=total, description=f"{what} {step}".strip())

        yield advance
