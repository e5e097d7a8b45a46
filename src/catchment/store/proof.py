"""`catchment lake verify`: the proof that nothing sealed was changed, taken away, or slipped in.

DESIGN.md, "Sealing"; the digest is defined in `lake.py`. Each node and epoch has a chain of ranges in the commits of
the raw table; every range is computed again from the rows the table has now. Ranges are of offsets and not of files,
so compaction changes nothing. Whatever is wrong becomes a `Problem` with node, epoch, offsets and file: bad data never
raises, and never hides what comes after it.

Rows are taken in windows of offsets that fit the memory allowed; a file is read once for each window it has rows of.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from catchment import lake
from catchment.errors import OurFault
from catchment.store.rawtable import Commit, File, RawTable, Sealed, read_commits

MEMORY: Final = 128 * 2**20
"""About how many bytes of rows are held at once."""

_FILE_SCHEMA: Final = pa.schema([field for field in lake.RAW_SCHEMA if field.name not in lake.PARTITION_COLUMNS])
_PLACE: Final = ["node", "epoch", "offset"]
_FORMAT: Final = ds.ParquetFileFormat()
_READ_ERRORS: Final = (OSError, pa.ArrowException, UnicodeDecodeError)
_DAY_US: Final = 86_400_000_000
_BLOCK_ROWS: Final = 4096
_ROW_BYTES: Final = 600
"""What a row takes in memory beyond its encoded bytes: names are stored once in a file, and again for each row here."""
_SAME_TYPE: Final = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
"""Arrow has several forms of what is one type in Parquet."""


class Problem(msgspec.Struct, frozen=True):
    """Something that is not as it was sealed.

    Attributes:
        what: `log`, `table`, `file`, `chain`, `head`, `missing`, `twice`, `stray`, `checksum`, `partition`, `digest`.
        text: one sentence for people.
        node: whose rows, in hexadecimal.
        epoch: of which epoch.
        first: the first offset concerned.
        last: the last offset concerned.
        files: the files it is about, relative to the table.
    """

    what: str
    text: str
    node: str | None = None
    epoch: int | None = None
    first: int | None = None
    last: int | None = None
    files: tuple[str, ...] = ()


class Report(msgspec.Struct):
    """What was looked at and what was found.

    Attributes:
        heads: the end of each chain, `last offset:digest`; kept elsewhere, it proves later that nothing was cut off.
    """

    lake: str
    version: int | None = None
    ranges: int = 0
    rows: int = 0
    files: int = 0
    heads: dict[str, str] = {}
    problems: list[Problem] = []

    @property
    def ok(self) -> bool:
        """Whether everything is as it was sealed."""
        return not self.problems


class _Piece(NamedTuple):
    """The rows of one node and epoch in one file."""

    file: File
    first: int
    last: int


def verify_lake(
    address: str,
    *,
    node: bytes | None = None,
    heads: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    memory: int = MEMORY,
) -> Report:
    """Compute every sealed range again from the rows in the raw table.

    Args:
        address: the lake.
        node: look at this node's rows only.
        heads: ends of chains remembered outside the lake (`sealing.read_heads`): without them a lake that lost its
            newest commits looks like one that never had them.
        progress: called with the rows proved so far and all rows.
        memory: about how many bytes of rows to hold at once.

    Raises:
        UserError: the table is of a newer format, or not ours.
    """
    report = Report(address)
    try:
        table = RawTable.open(address)
    except OurFault as fault:
        report.problems += [Problem("log", str(fault)), *_log_faults(list(read_commits(lake.raw_address(address))))]
        return report
    proof = _Proof(report, table, None if node is None else node.hex(), memory)
    if table is not None:
        proof.read_log(table)
    proof.check_heads(heads or {})
    if table is not None:
        proof.index_files(table)
        proof.prove(table, progress or (lambda _done, _all: None))
    return report


class _Proof:
    """One run of `verify_lake`."""

    def __init__(self, report: Report, table: RawTable | None, node: str | None, memory: int) -> None:
        self._report = report
        self._node = node
        self._memory = memory
        self._chains: dict[str, list[Sealed]] = {}
        self._pieces: dict[str, list[_Piece]] = {}
        self._unreadable: dict[str, File] = {}
        self._row_bytes = _ROW_BYTES
        report.version = table.delta.version() if table is not None else None

    def _found(self, problem: Problem) -> None:
        self._report.problems.append(problem)

    def read_log(self, table: RawTable) -> None:
        """Collect the chains, and check that each is whole in itself."""
        features = table.delta.protocol().reader_features
        if features:
            self._found(Problem("table", f"the table uses {', '.join(features)}: rows may be hidden that are in files"))
        commits = list(table.commits())
        self._report.problems += _log_faults(commits)
        for sealed in (commit.sealed for commit in commits if commit.sealed is not None):
            if self._node in (None, sealed.node):
                self._chains.setdefault(sealed.app, []).append(sealed)
        for app, chain in self._chains.items():
            self._report.problems += _chain_faults(chain, table.sealed_to(app))
            self._report.heads[app] = chain[-1].head
            self._report.ranges += len(chain)

    def check_heads(self, heads: Mapping[str, str]) -> None:
        """A remembered end must stand in the chain; the chain may have gone on since."""
        for app, head in heads.items():
            node, _, epoch = app.partition("-")
            if self._node not in (None, node):
                continue
            chain = self._chains.get(app, [])
            if head in (sealed.head for sealed in chain):
                continue
            reached = chain[-1].last if chain else None
            last = int(head.partition(":")[0])
            text = f"{app} was sealed up to {last}, the lake ends at {reached}"
            if reached is not None and reached >= last:
                text = f"the range of {app} that ended at {last} is not the one that was sealed"
            first = 0 if reached is None else reached + 1
            self._found(Problem("head", text, node, int(epoch), min(first, last), last))

    def index_files(self, table: RawTable) -> None:
        """Find out which node, epoch and offsets each file has rows of, without trusting the log's statistics."""
        for file in table.live_files():
            self._report.files += 1
            try:
                self._index_file(table, file)
            except _READ_ERRORS as error:
                self._unreadable_file(file, error)

    def _index_file(self, table: RawTable, file: File) -> None:
        with pq.ParquetFile(file.path, filesystem=table.files) as parquet:
            fault = _schema_fault(parquet.schema_arrow)
            if fault:
                self._found(Problem("file", f"{file.path} {fault}", files=(file.path,)))
            if not set(_FILE_SCHEMA.names) <= set(parquet.schema_arrow.names):
                self._unreadable[file.path] = file
                return
            count = parquet.metadata.num_rows
            if file.rows not in (None, count):
                text = f"{file.path} has {count} rows, the log says {file.rows}"
                self._found(Problem("file", text, files=(file.path,)))
            size = sum(parquet.metadata.row_group(at).total_byte_size for at in range(parquet.num_row_groups))
            self._row_bytes = max(self._row_bytes, _ROW_BYTES + size // max(1, count))
            batches = parquet.iter_batches(1 << 16, columns=_PLACE)
            places = list(_places(pa.Table.from_batches([batch]) for batch in batches))
        for node, epoch, first, last in places:
            self._add_piece(node, epoch, _Piece(file, first, last))

    def _add_piece(self, node: str, epoch: int, piece: _Piece) -> None:
        app = f"{node}-{epoch}"
        self._pieces.setdefault(app, []).append(piece)
        if self._node not in (None, node):
            return
        chain = self._chains.get(app)
        path = piece.file.path
        if chain is None:
            text = f"{path} has rows of {app}, which never sealed any"
            self._found(Problem("stray", text, node, epoch, piece.first, piece.last, (path,)))
            return
        begin, end = min(sealed.first for sealed in chain), max(sealed.last for sealed in chain)
        for first, last in ((piece.first, min(begin - 1, piece.last)), (max(end + 1, piece.first), piece.last)):
            if first <= last:
                text = f"{path} has rows of {app} outside what was sealed, from {first} to {last}"
                self._found(Problem("stray", text, node, epoch, first, last, (path,)))

    def _unreadable_file(self, file: File, error: BaseException) -> None:
        if file.path not in self._unreadable:
            self._unreadable[file.path] = file
            text = f"{file.path} cannot be read: {error}"
            first, last, epoch = file.offset.low, file.offset.high, file.epoch.low
            known = isinstance(first, int) and isinstance(last, int) and isinstance(epoch, int)
            place = (epoch, first, last) if known else (None, None, None)
            self._found(Problem("file", text, None, *place, files=(file.path,)))  # type: ignore[arg-type]

    def prove(self, table: RawTable, progress: Callable[[int, int], None]) -> None:
        """Compute the digests, chain by chain and window by window."""
        total = sum(sealed.rows for chain in self._chains.values() for sealed in chain)
        done = 0
        progress(0, total)
        for app, chain in self._chains.items():
            for window in _windows(chain, max(1, self._memory // self._row_bytes)):
                rows, sources = self._read_window(table, app, window)
                lost = [file.path for file in self._unreadable.values() if _may(file, window)]
                self._report.problems += _Window(rows, sources, lost).problems(window)
                self._report.rows += rows.num_rows
                done += sum(sealed.rows for sealed in window)
                progress(done, total)

    def _read_window(self, table: RawTable, app: str, window: Sequence[Sealed]) -> tuple[pa.Table, list[File]]:
        """The rows of a window by offset, and the files the column `file` counts."""
        first, last = min(sealed.first for sealed in window), max(sealed.last for sealed in window)
        condition = (
            (pc.field("node") == bytes.fromhex(window[0].node))
            & (pc.field("epoch") == window[0].epoch)
            & (pc.field("offset") >= first)
            & (pc.field("offset") <= last)
        )
        names = [*lake.DIGEST_COLUMNS, "crc"]
        sources: list[File] = []
        nothing = pa.schema([lake.RAW_SCHEMA.field(name) for name in names]).empty_table()
        found = [nothing.append_column("file", _count(0, 0))]
        for piece in self._pieces.get(app, []):
            if piece.last < first or piece.first > last or piece.file.path in self._unreadable:
                continue
            fragment = _FORMAT.make_fragment(
                piece.file.path, table.files, partition_expression=pc.field("protocol") == piece.file.protocol
            )
            try:
                rows = ds.FileSystemDataset([fragment], lake.RAW_SCHEMA, _FORMAT).to_table(names, filter=condition)
                rows.validate(full=True)
            except _READ_ERRORS as error:
                self._unreadable_file(piece.file, error)
                continue
            found.append(rows.append_column("file", _count(len(sources), rows.num_rows)))
            sources.append(piece.file)
        return pa.concat_tables(found, promote_options="permissive").sort_by("offset"), sources


class _Window:
    """The rows of some successive ranges, by offset, and what is wrong with them."""

    def __init__(self, rows: pa.Table, sources: Sequence[File], unreadable: Sequence[str]) -> None:
        at = rows.column_names.index("received_at")
        self._rows = rows.set_column(at, "received_at", rows["received_at"].cast(pa.int64()))
        self._offsets: list[int] = rows["offset"].to_pylist()
        self._of: list[int] = rows["file"].to_pylist()
        self._sources = sources
        self._days = [_day(file.date) for file in sources]
        self._unreadable = unreadable

    def problems(self, window: Sequence[Sealed]) -> Iterator[Problem]:
        """Everything wrong with these ranges."""
        covered = 0
        for sealed in window:
            start, stop = bisect_left(self._offsets, sealed.first), bisect_right(self._offsets, sealed.last)
            yield from self._between(sealed, covered, start)
            covered = max(covered, stop)
            faults: list[Problem] = []
            digest = lake.chain_digest(bytes.fromhex(sealed.previous), self._values(sealed, start, stop, faults))
            yield from faults
            if stop - start != _span(sealed) or len(set(self._offsets[start:stop])) != _span(sealed):
                yield from self._counting_faults(sealed, start, stop)
            elif digest.hex() != sealed.digest:
                text = f"offsets {sealed.first} to {sealed.last} of {sealed.app} are not what was sealed"
                yield _problem("digest", text, sealed, self._files(start, stop))

    def _values(self, sealed: Sealed, start: int, stop: int, faults: list[Problem]) -> Iterator[Sequence[object]]:
        """The digested values of each row; on the way, faults in what the digest does not cover are noted."""
        names = [*lake.DIGEST_COLUMNS, "crc", "file"]
        raw_at, time_at = names.index("raw"), names.index("received_at")
        for at in range(start, stop, _BLOCK_ROWS):
            block = self._rows.slice(at, min(_BLOCK_ROWS, stop - at))
            for *values, crc, file in zip(*(block[name].to_pylist() for name in names), strict=True):
                raw, received_at = values[raw_at], values[time_at]
                if not isinstance(raw, bytes) or crc32(raw) != crc:
                    faults.append(self._row_fault("checksum", "does not match its checksum", sealed, values[0], file))
                if not isinstance(received_at, int) or received_at // _DAY_US != self._days[file]:
                    faults.append(self._row_fault("partition", "is filed under a wrong date", sealed, values[0], file))
                yield values

    def _row_fault(self, what: str, fault: str, sealed: Sealed, offset: int, file: int) -> Problem:
        path = self._sources[file].path
        text = f"the row at offset {offset} of {sealed.app} {fault} in {path}"
        return _problem(what, text, sealed, (path,), (offset, offset))

    def _between(self, sealed: Sealed, start: int, stop: int) -> Iterator[Problem]:
        if start < stop:
            text = f"{stop - start} rows of {sealed.app} before offset {sealed.first} belong to no sealed range"
            bounds = (self._offsets[start], self._offsets[stop - 1])
            yield _problem("stray", text, sealed, self._files(start, stop), bounds)

    def _counting_faults(self, sealed: Sealed, start: int, stop: int) -> Iterator[Problem]:
        counts = Counter(self._offsets[start:stop])
        absent = _span(sealed) - len(counts)
        if absent > 0:
            first, last = _hole(sealed, counts)
            text = f"{absent} rows of {sealed.app} from offset {first} to {last} are missing"
            yield _problem("missing", text, sealed, tuple(self._unreadable) or self._files(start, stop), (first, last))
        twice = [offset for offset, count in counts.items() if count > 1]
        if twice:
            files = self._files(bisect_left(self._offsets, twice[0]), bisect_right(self._offsets, twice[-1]))
            text = f"{len(twice)} rows of {sealed.app} from offset {twice[0]} to {twice[-1]} are there more than once"
            yield _problem("twice", text, sealed, files, (twice[0], twice[-1]))

    def _files(self, start: int, stop: int) -> tuple[str, ...]:
        return tuple(sorted({self._sources[at].path for at in self._of[start:stop]}))


def _problem(
    what: str, text: str, sealed: Sealed, files: tuple[str, ...], bounds: tuple[int, int] | None = None
) -> Problem:
    first, last = bounds or (sealed.first, sealed.last)
    return Problem(what, text, sealed.node, sealed.epoch, first, last, files)


def _log_faults(commits: Sequence[Commit]) -> Iterator[Problem]:
    """Files of the transaction log that cannot be believed, and holes in their numbers."""
    expected = 0
    for commit in commits:
        if commit.version != expected:
            text = f"the commits {expected} to {commit.version - 1} are gone from the transaction log"
            yield Problem("log", text)
        expected = commit.version + 1
        if commit.fault:
            yield Problem("log", f"{commit.path} {commit.fault}", files=(commit.path,))


def _chain_faults(chain: Sequence[Sealed], sealed_to: int | None) -> Iterator[Problem]:
    previous = lake.FIRST_DIGEST.hex()
    following: int | None = None
    for sealed in chain:
        where = f"the range {sealed.first} to {sealed.last} of {sealed.app} (commit {sealed.version})"
        if sealed.previous != previous:
            yield _problem("chain", f"{where} is not chained to the one before it", sealed, ())
        if following is not None and sealed.first != following:
            yield _problem("chain", f"{where} should begin at {following}", sealed, ())
        if sealed.rows != sealed.last - sealed.first + 1:
            yield _problem("chain", f"{where} says it has {sealed.rows} rows", sealed, ())
        previous, following = sealed.digest, sealed.last + 1
    if sealed_to != chain[-1].last:
        text = f"{chain[-1].app} is chained up to {chain[-1].last}, its transaction number is {sealed_to}"
        yield _problem("chain", text, chain[-1], ())


def _schema_fault(schema: pa.Schema) -> str:
    """How the columns of a file differ from the raw table's; empty when they do not."""
    faults = []
    for field in _FILE_SCHEMA:
        at = schema.get_field_index(field.name)
        if at < 0:
            faults.append(f"lacks the column {field.name}")
        elif _SAME_TYPE.get(schema.field(at).type, schema.field(at).type) != field.type:
            faults.append(f"has {schema.field(at).type} in the column {field.name}")
    foreign = sorted(set(schema.names) - set(_FILE_SCHEMA.names))
    if foreign:
        faults.append(f"has foreign columns: {', '.join(foreign)}")
    return "; ".join(faults)


def _places(groups: Iterable[pa.Table]) -> Iterator[tuple[str, int, int, int]]:
    """Node, epoch, first and last offset of what is in some batches; rows without a place count as epoch -1."""
    bounds: dict[tuple[str, int], tuple[int, int]] = {}
    for group in groups:
        summary = group.group_by(["node", "epoch"]).aggregate([("offset", "min"), ("offset", "max")])
        for row in summary.to_pylist():
            key = ((row["node"] or b"").hex(), -1 if row["epoch"] is None else row["epoch"])
            low, high = row["offset_min"], row["offset_max"]
            if low is None:
                low, high = -1, -1
            old = bounds.get(key, (low, high))
            bounds[key] = (min(old[0], low), max(old[1], high))
    for (node, epoch), (low, high) in bounds.items():
        yield node, epoch, low, high


def _windows(chain: Sequence[Sealed], rows: int) -> Iterator[Sequence[Sealed]]:
    """Successive ranges, as many as fit; a range is never divided."""
    start, held = 0, 0
    for at, sealed in enumerate(chain):
        if held and held + sealed.rows > rows:
            yield chain[start:at]
            start, held = at, 0
        held += sealed.rows
    if start < len(chain):
        yield chain[start:]


def _may(file: File, window: Sequence[Sealed]) -> bool:
    """Whether the log's statistics allow a file to have rows of a window."""
    epoch = window[0].epoch
    first, last = min(sealed.first for sealed in window), max(sealed.last for sealed in window)
    return file.epoch.meets(epoch, epoch) and file.offset.meets(first, last)


def _span(sealed: Sealed) -> int:
    return max(0, sealed.last - sealed.first + 1)


def _hole(sealed: Sealed, present: Container[int]) -> tuple[int, int]:
    """The first and the last offset of a range that is not present; at least one is not."""
    first, last = sealed.first, sealed.last
    while first in present:
        first += 1
    while last in present:
        last -= 1
    return first, last


def _day(date: str) -> int | None:
    """The number of a day since 1970, None for what is no date."""
    try:
        return (dt.date.fromisoformat(date) - dt.date(1970, 1, 1)).days
    except ValueError:
        return None


def _count(value: int, length: int) -> pa.Array:
    return pa.array([value] * length, pa.int64())
