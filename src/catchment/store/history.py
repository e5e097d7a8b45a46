"""One read path over hot and sealed rows.

DESIGN.md, "Sealing", last line, and "Order, said once". The store knows the order, identity and offset of everything
it ever accepted, because dropping a hot row keeps its key. So a page is walked in the store; rows that are still hot
come with it, and the dropped ones are fetched from the raw table by offset. An answer is never silently shorter than
the log.

Files are skipped by the statistics in the transaction log, row groups by those in the files' footers, which are
remembered: doing this here takes a tenth of the time pyarrow's dataset scan does for a page out of 500 row groups.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from catchment import lake, model
from catchment.errors import OurFault, StoreCorrupt
from catchment.store.base import Place, Store
from catchment.store.columns import sealed_id
from catchment.store.rawtable import Bounds, File, RawTable

_WORDS: Final[dict[str, dict[str, model.Kind] | dict[str, model.Protocol] | dict[str, model.Verdict]]] = {
    "kind": {lake.kind_name(kind): kind for kind in model.Kind},
    "protocol": {lake.protocol_name(protocol): protocol for protocol in model.Protocol},
    "verdict": {lake.verdict_name(verdict): verdict for verdict in model.Verdict},
}
_COLUMNS: Final = ("offset", "epoch", "crc", *model.Entry.__struct_fields__)
_FILE_SCHEMA: Final = pa.schema([lake.RAW_SCHEMA.field(name) for name in ("node", *_COLUMNS) if name != "protocol"])
_FOOTERS: Final = 4096
"""How many files' footers are remembered."""


class _Group(NamedTuple):
    """What a footer says of one row group."""

    topic: Bounds
    partition: Bounds
    timestamp: Bounds
    offset: Bounds


class _Footer(NamedTuple):
    metadata: pq.FileMetaData
    groups: list[_Group]


class _Wanted(NamedTuple):
    """A question to the files: rows of one topic within bounds of time and offset."""

    topic: model.Topic
    keys: Mapping[int, model.OrderKey]
    since: int
    until: int
    first: int
    last: int

    def may_be_in(self, place: File | _Group, name: str | bytes) -> bool:
        """Whether the statistics of a file or row group allow it; `name` is the topic in their type."""
        return (
            place.offset.meets(self.first, self.last)
            and place.timestamp.meets(self.since, self.until)
            and place.topic.meets(name, name)
            and place.partition.meets(self.topic.partition, self.topic.partition)
        )


SEALED_SLICE: Final = 64
"""Places of a page that is bounded in bytes and holds dropped rows."""


class History:
    """Answers "last, from, range" over everything the log ever accepted. Any thread may ask.

    Args:
        store: the log.
        lake_address: where its rows are sealed, None when they never are.
    """

    def __init__(self, store: Store, lake_address: str | None) -> None:
        self._store = store
        self._sealed = SealedRows(store, lake_address) if lake_address is not None else None

    def range(
        self, question: model.Range, *, after: model.OrderKey | None = None, limit: int, max_bytes: int | None = None
    ) -> tuple[list[model.Row], model.OrderKey | None]:
        """A page of a topic in order, and the key to go on `after` (None at the end).

        As with `Store.walk`, a page may hold fewer rows than `limit`, even none, before the end. It also ends with
        the row that brings its raw bytes to `max_bytes`, unless the next has the same key.

        Raises:
            OurFault: a row that was dropped is not in the lake.
            StoreCorrupt: a row does not match its checksum.
        """
        places, more = self._store.walk(question, after=after, limit=limit, max_bytes=max_bytes)
        if max_bytes is not None and len(places) > SEALED_SLICE and any(place.row is None for place in places):
            # How large dropped rows are is not known before they are read: few at a time.
            places, more = self._store.walk(question, after=after, limit=SEALED_SLICE, max_bytes=max_bytes)
        rows = self._rows(question.topic, places)
        if all(place.row is not None for place in places):
            # The store has counted the bytes of what is hot.
            return rows, more
        size = 0
        for at, (row, following) in enumerate(itertools.pairwise(rows), start=1):
            size += len(row.entry.raw)
            full = max_bytes is not None and size >= max_bytes
            if full and row.entry.order_key != following.entry.order_key:
                return rows[:at], row.entry.order_key
        return rows, more

    def before_last(self, topic: model.Topic, count: int) -> model.OrderKey | None:
        """See `Store.before_last`: with `range` it gives the last rows page by page."""
        return self._store.before_last(topic, count)

    def last(self, topic: model.Topic, count: int) -> list[model.Row]:
        """The last `count` rows of a topic, in ascending order.

        Raises:
            OurFault: a row that was dropped is not in the lake.
            StoreCorrupt: a row does not match its checksum.
        """
        return self._rows(topic, self._store.walk_last(topic, count))

    def _rows(self, topic: model.Topic, places: Sequence[Place]) -> list[model.Row]:
        # A row dropped after the walk is no loss: what was hot then came with its place.
        dropped = {place.offset: place.key for place in places if place.row is None}
        found: Mapping[int, model.Row] = {}
        if dropped and self._sealed is not None:
            found = self._sealed.fetch(topic, dropped)
        rows = []
        for place in places:
            row = place.row if place.row is not None else found.get(place.offset)
            if row is None:
                where = "is not in the lake" if self._sealed is not None else "no lake is configured"
                raise OurFault(f"offset {place.offset} of {topic.name!r} was dropped from the hot store, and {where}")
            rows.append(row)
        return rows


class SealedRows:
    """Finds rows of one store in the raw table. The table's file list is read again only when a row is not found."""

    def __init__(self, store: Store, lake_address: str) -> None:
        self._store = store
        self._lake = lake_address
        self._lock = threading.Lock()
        self._table: RawTable | None = None
        self._files: list[File] | None = None
        self._footers: dict[str, _Footer] = {}

    def fetch(self, topic: model.Topic, wanted: Mapping[int, model.OrderKey]) -> dict[int, model.Row]:
        """The rows at these offsets that the lake has, by offset.

        Args:
            topic: of all rows.
            wanted: the key of each row by its offset.
        """
        files = self._current()
        try:
            found = self._search(files, topic, wanted)
        except FileNotFoundError:
            # Compacted away since the list was read.
            found = {}
        if len(found) == len(wanted):
            return found
        missing = {offset: key for offset, key in wanted.items() if offset not in found}
        files = self._refresh(files)
        try:
            return found | self._search(files, topic, missing)
        except FileNotFoundError as error:
            raise OurFault(f"the raw table of {self._lake} names a file that is not there: {error}") from error

    def _current(self) -> list[File]:
        with self._lock:
            files = self._files
        return files if files is not None else self._refresh(None)

    def _refresh(self, seen: list[File] | None) -> list[File]:
        """The file list of the newest version, unless another thread has replaced `seen` already."""
        with self._lock:
            if self._files is not None and self._files is not seen:
                return self._files
            if self._table is None:
                self._table = RawTable.open(self._lake)
            else:
                self._table.refresh()
            self._files = self._table.live_files() if self._table is not None else []
            alive = {file.path for file in self._files}
            for path in [path for path in self._footers if path not in alive]:
                del self._footers[path]
            return self._files

    def _search(
        self, files: Iterable[File], topic: model.Topic, keys: Mapping[int, model.OrderKey]
    ) -> dict[int, model.Row]:
        times = [key.timestamp for key in keys.values()]
        wanted = _Wanted(topic, keys, min(times), max(times), min(keys), max(keys))
        rows: list[model.Row] = []
        for file in files:
            if wanted.may_be_in(file, topic.name):
                try:
                    rows += self._read_file(file, wanted)
                except FileNotFoundError:
                    raise
                except (OSError, pa.ArrowException, UnicodeDecodeError, KeyError) as error:
                    raise OurFault(f"sealed rows of {topic.name!r} cannot be read from {file.path}: {error}") from error
        return self._choose(rows, keys)

    def _read_file(self, file: File, wanted: _Wanted) -> list[model.Row]:
        assert self._table is not None
        footer = self._footers.get(file.path)
        with pq.ParquetFile(
            file.path, filesystem=self._table.files, metadata=footer.metadata if footer is not None else None
        ) as parquet:
            if footer is None:
                footer = _Footer(parquet.metadata, _groups(parquet.metadata))
                with self._lock:
                    if len(self._footers) >= _FOOTERS:
                        self._footers.clear()
                    self._footers[file.path] = footer
            name = wanted.topic.name.encode()
            groups = [at for at, group in enumerate(footer.groups) if wanted.may_be_in(group, name)]
            if not groups:
                return []
            table = parquet.read_row_groups(groups, columns=_FILE_SCHEMA.names, use_threads=False)
        # Files that delta-rs rewrote come with string views.
        table = table.select(_FILE_SCHEMA.names).cast(_FILE_SCHEMA)
        table = table.filter(
            (pc.field("topic") == wanted.topic.name)
            & (pc.field("partition") == wanted.topic.partition)
            & pc.field("offset").isin(list(wanted.keys))
            & (pc.field("node") == self._store.node)
        )
        return rows_of(table.append_column("protocol", pa.array([file.protocol] * table.num_rows, pa.string())))

    def _choose(self, rows: Iterable[model.Row], wanted: Mapping[int, model.OrderKey]) -> dict[int, model.Row]:
        """One row for each offset.

        After a rollback the lake has offsets of the epoch that was left; rows under the same offset, and even of the
        same message, may be there twice. The range that was sealed last has what the store has.
        """
        found: dict[int, model.Row] = {}
        rivals: dict[int, dict[int, model.Row]] = {}
        for row in rows:
            if row.entry.order_key != wanted[row.offset]:
                continue
            other = found.setdefault(row.offset, row)
            if other.epoch != row.epoch:
                rivals.setdefault(row.offset, {other.epoch: other})[row.epoch] = row
        for offset, by_epoch in rivals.items():
            found[offset] = by_epoch[self._newest_epoch(offset, by_epoch)]
        return found

    def _newest_epoch(self, offset: int, epochs: Iterable[int]) -> int:
        assert self._table is not None
        apps = {lake.seal_app(self._store.node, epoch): epoch for epoch in epochs}
        for commit in self._table.commits(newest_first=True):
            sealed = commit.sealed
            if sealed is not None and sealed.app in apps and sealed.first <= offset <= sealed.last:
                return sealed.epoch
        raise OurFault(f"offset {offset} is in the lake under {len(apps)} epochs, and no commit says which is newer")


def _groups(metadata: pq.FileMetaData) -> list[_Group]:
    """The statistics of every row group; text as UTF-8 bytes, as Parquet compares it."""
    if not metadata.num_row_groups:
        return []
    first = metadata.row_group(0)
    columns = {first.column(at).path_in_schema: at for at in range(first.num_columns)}
    places = [columns.get(name) for name in _Group._fields]
    return [
        _Group(*(_bounds(metadata.row_group(at), place) for place in places)) for at in range(metadata.num_row_groups)
    ]


def _bounds(group: pq.RowGroupMetaData, column: int | None) -> Bounds:
    statistics = group.column(column).statistics if column is not None else None
    if statistics is None or not statistics.has_min_max:
        return Bounds(None, None)
    if statistics.physical_type == "BYTE_ARRAY":
        return Bounds(statistics.min_raw, statistics.max_raw)
    return Bounds(statistics.min, statistics.max)


def rows_of(table: pa.Table) -> list[model.Row]:
    """Rows of the log from rows of the raw table.

    Raises:
        StoreCorrupt: the signed bytes do not match their checksum.
    """
    columns = {name: table[name] for name in _COLUMNS}
    columns["received_at"] = columns["received_at"].cast(pa.int64())
    values = {name: column.to_pylist() for name, column in columns.items()}
    for name, words in _WORDS.items():
        values[name] = [words[word] for word in values[name]]
    ids, values["id"] = values["id"], [b""] * table.num_rows
    entries = map(model.Entry, *(values[name] for name in model.Entry.__struct_fields__))
    rows = []
    for offset, epoch, crc, own, entry in zip(
        values["offset"], values["epoch"], values["crc"], ids, entries, strict=True
    ):
        if crc32(entry.raw) != crc:
            raise StoreCorrupt(f"the signed bytes at offset {offset} of the lake do not match their checksum")
        known = entry if sealed_id(entry) == own else msgspec.structs.replace(entry, id=own)
        rows.append(model.Row(offset, epoch, known))
    return rows
