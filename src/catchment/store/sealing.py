"""Sealing: the committed tail of the log goes into the raw Delta table, each row once.

DESIGN.md, "Sealing". One transaction covers the offsets first..last of one node and epoch; it carries the
application transaction (node-epoch, last offset) and a note with the digest that chains it to the one before. Where to
go on is asked of the table alone, so a crash at any point leaves at most a data file that no transaction names.

Data files are written here and committed with `create_write_transaction`, not by `write_deltalake`: both take the same
time, and only so can the rows be forced to disk before the transaction that names them. Two sealers of one node are
kept apart by a lock file; should one get past it, Delta refuses the second commit of an application id that moved
since the table was read.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from catchment import lake, model
from catchment.errors import OurFault
from catchment.store.base import Store
from catchment.store.blocks import Block
from catchment.store.columns import Partition, batch_of, columns_of, digested, partitioned
from catchment.store.rawtable import ROW_GROUP_ROWS, STATISTICS_COLUMNS, RawTable, Sealed

HEAD_META: Final = "seal_head:"
"""Beside the log, one for each application id: the end of its chain, `last offset:digest`."""

APPS_META: Final = "seal_apps"
"""Beside the log: the application ids this store sealed under, one a line."""

MAX_BYTES: Final = 64 * 2**20
"""A transaction takes no further rows once it holds this many bytes of messages."""

_READ_ROWS: Final = 512
_ATTEMPTS: Final = 8
_EPOCH_TIME: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_DICTIONARY: Final = ["node", "epoch", "kind", "version", "topic", "partition", "publisher", "chain", "verdict"]

_log = logging.getLogger(__name__)
_json = msgspec.json.Encoder().encode


class RolledBack(msgspec.Struct, frozen=True):
    """What `Sealer.check_rollback` found and did: the lake had more of `epoch` than the store, so `new_epoch` began."""

    epoch: int
    sealed_to: int
    next_offset: int
    new_epoch: int


class _Part(NamedTuple):
    path: str
    add: AddAction


def read_heads(store: Store) -> dict[str, str]:
    """The end of each chain this store sealed, for `proof.verify_lake`."""
    heads = {}
    for app in (store.get_meta(APPS_META) or b"").decode().split():
        head = store.get_meta(HEAD_META + app)
        if head is not None:
            heads[app] = head.decode()
    return heads


class Sealer:
    """Moves the rows of one store into the raw table of a lake.

    Args:
        store: the log. Sealing reads it and keeps small named values in it; it appends and drops nothing.
        lake_address: folder or address of the lake.
        lock_path: a file beside the store that keeps two sealers of this store apart, also in two processes.
    """

    def __init__(self, store: Store, lake_address: str, *, lock_path: Path | None = None) -> None:
        self._store = store
        self._lake = lake_address
        self._lock_path = lock_path
        self._table: RawTable | None = None
        self._tail: Sealed | None = None

    def seal(self, *, max_rows: int = 50_000) -> Sealed | None:
        """Seal the next rows in one transaction; None when nothing is new.

        Raises:
            OurFault: the lake cannot be written, or lake and store do not belong together any more.
            UserError: the table is of a newer format, or not ours.
        """
        with self._locked():
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    return self._seal(max_rows)
                except CommitFailedError as error:
                    # Another writer changed the table in a way that does not commute: look again and go on from there.
                    self._table = None
                    if attempt == _ATTEMPTS:
                        raise OurFault(f"sealing into {self._lake} failed {attempt} times: {error}") from error
                except (DeltaError, OSError, pa.ArrowException) as error:
                    self._table = None
                    raise OurFault(f"sealing into {self._lake} failed: {error}") from error
            return None

    def seal_all(self, *, max_rows: int = 50_000) -> list[Sealed]:
        """Seal until nothing is new."""
        done = []
        while (sealed := self.seal(max_rows=max_rows)) is not None:
            done.append(sealed)
        return done

    def check_rollback(self) -> RolledBack | None:
        """Begin a new epoch when the lake has offsets of the current one that the store does not.

        Then the store was restored from a copy: offsets it is going to give are taken in the lake. Rows of the new
        epoch start at the store's `next_offset`; the rows before it stay in theirs, and what the lake has of the old
        epoch beyond is left as it is. To be called before anything is appended, by the process that appends.
        """
        with self._locked():
            table = self._open()
            epoch, next_offset = self._store.epoch, self._store.next_offset
            sealed_to = table.sealed_to(lake.seal_app(self._store.node, epoch))
            if sealed_to is None or sealed_to < next_offset:
                return None
            return RolledBack(epoch, sealed_to, next_offset, self._store.new_epoch())

    def last_sealed(self) -> int:
        """The last offset of this store that is in the lake, and with it all before; -1 when none is."""
        return self._start(self._open()) - 1

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self._lock_path is None:
            yield
            return
        try:
            file = self._lock_path.open("ab")
        except OSError as error:
            raise OurFault(f"the lock {self._lock_path} cannot be opened: {error.strerror}") from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _open(self) -> RawTable:
        if self._table is None:
            self._table = RawTable.open_or_create(self._lake)
        else:
            self._table.refresh()
        return self._table

    def _seal(self, max_rows: int) -> Sealed | None:
        table = self._open()
        start = self._start(table)
        first = self._store.read_block(start, 1)
        if first is None:
            return None
        epoch, node = first.epoch[0], self._store.node
        previous = self._previous(table, epoch)
        digest = lake.ChainDigest(previous)
        batches: dict[Partition, list[pa.RecordBatch]] = {}
        count = 0
        for block in self._blocks(start, max_rows, max_bytes=MAX_BYTES):
            columns = columns_of(block)
            digest.update(digested(columns))
            for partition, part in partitioned(columns).items():
                batches.setdefault(partition, []).append(batch_of(node, part))
            count += len(block.offset)
        # A reader may see rows whose commit is not on disk yet; the lake must never be ahead of the log.
        self._store.sync()
        sealed = Sealed(
            node.hex(), epoch, start, start + count - 1, count, digest.digest().hex(), previous.hex(), version=0
        )
        parts = {partition: pa.Table.from_batches(rows).combine_chunks() for partition, rows in batches.items()}
        sealed = _commit(table, sealed, _write_parts(table, sealed, parts))
        self._remember(sealed)
        return sealed

    def _start(self, table: RawTable) -> int:
        """The first offset that is not in the lake."""
        store = self._store
        current = lake.seal_app(store.node, store.epoch)
        sealed_to = table.sealed_to(current)
        if sealed_to is None:
            return self._start_before_epoch(table)
        if sealed_to >= store.next_offset:
            raise OurFault(
                f"the lake has offsets of {current} up to {sealed_to}, the store ends before {store.next_offset}: it "
                "was restored from a copy; restart the node, which then begins a new epoch"
            )
        self._check_hot(current, sealed_to + 1)
        return sealed_to + 1

    def _start_before_epoch(self, table: RawTable) -> int:
        """Where to go on while nothing of the current epoch is sealed: earlier epochs may have an unsealed end."""
        store = self._store
        offset = store.first_hot_offset
        while rows := store.read(offset, 1):
            offset, epoch = rows[0].offset, rows[0].epoch
            app = lake.seal_app(store.node, epoch)
            sealed_to = table.sealed_to(app)
            if sealed_to is None:
                if store.get_meta(HEAD_META + app) is not None:
                    self._check_hot(app, 0)
                return offset
            end = self._end_of_epoch(offset, epoch)
            # Of an epoch the store was rolled back from, the lake may have more than the store.
            if sealed_to + 1 < end:
                self._check_hot(app, sealed_to + 1)
                return max(offset, sealed_to + 1)
            offset = end
        return store.next_offset

    def _end_of_epoch(self, start: int, epoch: int) -> int:
        """The first offset after `start` of another epoch: each epoch is one stretch of offsets."""
        low, high = start + 1, self._store.next_offset
        while low < high:
            middle = (low + high) // 2
            rows = self._store.read(middle, 1)
            if rows and rows[0].epoch == epoch:
                low = rows[0].offset + 1
            else:
                high = middle
        return low

    def _check_hot(self, app: str, start: int) -> None:
        """Rows the lake must still get have to be hot; if not, the lake lost what it once had."""
        first_hot = self._store.first_hot_offset
        if start < first_hot:
            raise OurFault(
                f"the lake {self._lake} lacks offsets {start} to {first_hot - 1} of {app}, which the store dropped "
                "after they were sealed: the lake was replaced or rolled back; bring the old one back"
            )
        head = self._store.get_meta(HEAD_META + app)
        remembered = int(head.split(b":")[0]) if head is not None else -1
        if start <= remembered:
            _log.warning("the lake lost offsets %d to %d of %s: sealing them again", start, remembered, app)

    def _blocks(self, start: int, max_rows: int, *, max_bytes: float = inf) -> Iterator[Block]:
        """Rows of one epoch from `start` on, bounded in number and bytes."""
        following, size, epoch = start, 0, None
        while following < start + max_rows and size < max_bytes:
            block = self._store.read_block(following, min(_READ_ROWS, start + max_rows - following))
            if block is None or epoch not in (None, block.epoch[0]):
                break
            if block.offset[0] != following:
                raise OurFault(f"the store has no row at offset {following}, which is not sealed yet")
            yield block
            following, size, epoch = block.offset[-1] + 1, size + block.size, block.epoch[0]

    def _previous(self, table: RawTable, epoch: int) -> bytes:
        """The digest to chain to: the one of the table's newest range of this epoch."""
        app = lake.seal_app(self._store.node, epoch)
        sealed_to = table.sealed_to(app)
        if sealed_to is None:
            return lake.FIRST_DIGEST
        tail = self._tail
        if tail is None or tail.app != app or tail.last != sealed_to:
            tail = table.tail(app)
            if tail is None or tail.last != sealed_to:
                raise OurFault(f"the commit that sealed {app} up to {sealed_to} is gone from the log of {self._lake}")
            self._check_same(tail)
            self._remember(tail)
        return bytes.fromhex(tail.digest)

    def _check_same(self, tail: Sealed) -> None:
        """Make sure that the newest range in the lake was sealed from this store.

        A store that was rolled back and written to, or a second copy of it, has other rows under the same offsets.
        The head beside the log says so at once; it is behind only if a sealer ended between commit and note.
        """
        head = self._store.get_meta(HEAD_META + tail.app)
        if head == tail.head.encode() or tail.first < self._store.first_hot_offset:
            return
        digest, end = lake.ChainDigest(bytes.fromhex(tail.previous)), tail.first
        for block in self._blocks(tail.first, tail.rows):
            digest.update(digested(columns_of(block)))
            end = block.offset[-1] + 1
        if end != tail.last + 1 or digest.digest().hex() != tail.digest:
            raise OurFault(
                f"offsets {tail.first} to {tail.last} of {tail.app} are not the same in store and lake: the store was "
                "rolled back and written to, or two copies of it are in use"
            )

    def _remember(self, sealed: Sealed) -> None:
        self._tail = sealed
        apps = (self._store.get_meta(APPS_META) or b"").decode().split()
        if sealed.app not in apps:
            self._store.put_meta(APPS_META, "\n".join([*apps, sealed.app]).encode())
        self._store.put_meta(HEAD_META + sealed.app, sealed.head.encode())


def retire(store: Store, *, sealed_to: int, older_than_us: int, limit: int, slice_rows: int = 256) -> int:
    """Drop hot rows that are sealed, were received before `older_than_us`, and are not needed; return how many went.

    Streamr's rows are read from the lake again, and those found by terms are kept beside the log (`postings.py`).
    The store drops a prefix of the log, so this stops at the first row that may not go: one PoPStellar row keeps all
    after it hot. Drops at most `limit` rows, `slice_rows` at a time, so that commits get in between.
    To be called by the thread that appends.

    Args:
        store: the log.
        sealed_to: `Sealer.last_sealed()`.
        older_than_us: UTC microseconds.
        limit: the most rows to drop.
        slice_rows: the most rows to drop in one go.
    """
    dropped = 0
    while dropped < limit:
        rows = store.read(store.first_hot_offset, min(slice_rows, limit - dropped))
        before = -1
        for row in rows:
            entry = row.entry
            needed = entry.protocol is not model.Protocol.STREAMR and not store.postings.keeps(entry.protocol)
            if row.offset > sealed_to or entry.received_at >= older_than_us or needed:
                break
            before = row.offset + 1
        went = store.drop(before, limit=slice_rows) if before >= 0 else 0
        dropped += went
        if not went or before <= rows[-1].offset:
            break
    return dropped


def _write_parts(table: RawTable, sealed: Sealed, parts: Mapping[Partition, pa.Table]) -> list[_Part]:
    """Write the rows as one sorted file for each partition, and force them to disk."""
    written = [_write_part(table, sealed, partition, rows) for partition, rows in sorted(parts.items())]
    table.settle([part.path for part in written])
    return written


def _write_part(table: RawTable, sealed: Sealed, partition: Partition, rows: pa.Table) -> _Part:
    values = partition._asdict()
    folder = "/".join(f"{name}={values[name]}" for name in lake.PARTITION_COLUMNS)
    path = f"{folder}/{sealed.node[:8]}-{sealed.first}-{sealed.last}-{uuid.uuid4().hex}.zstd.parquet"
    table.files.create_dir(folder, recursive=True)
    pq.write_table(
        rows.sort_by([(name, "ascending") for name in lake.SORT_COLUMNS]),
        path,
        filesystem=table.files,
        compression="zstd",
        row_group_size=ROW_GROUP_ROWS,
        use_dictionary=_DICTIONARY,
        write_statistics=list(STATISTICS_COLUMNS),
        store_schema=False,
    )
    size = table.files.get_file_info(path).size
    return _Part(path, AddAction(path, size, values, time.time_ns() // 1_000_000, True, _statistics(rows)))


def _statistics(rows: pa.Table) -> str:
    """Delta's per-file statistics, as JSON."""
    bounds = {name: pc.min_max(rows[name]) for name in STATISTICS_COLUMNS}
    values = {f"{end}Values": {name: _plain(both[end]) for name, both in bounds.items()} for end in ("min", "max")}
    return _json({"numRecords": rows.num_rows, **values, "nullCount": dict.fromkeys(STATISTICS_COLUMNS, 0)}).decode()


def _plain(value: pa.Scalar) -> object:
    if pa.types.is_timestamp(value.type):
        return _EPOCH_TIME + dt.timedelta(microseconds=value.value)
    return value.as_py()


def _commit(table: RawTable, sealed: Sealed, parts: list[_Part]) -> Sealed:
    """Name the files in one transaction and return the range with the version it became."""
    before = table.delta.version()
    note = {name: value for name, value in msgspec.structs.asdict(sealed).items() if name != "version"}
    table.delta.create_write_transaction(
        [part.add for part in parts],
        mode="append",
        schema=lake.RAW_SCHEMA,
        partition_by=list(lake.PARTITION_COLUMNS),
        commit_properties=CommitProperties(
            custom_metadata=note, app_transactions=[Transaction(sealed.app, sealed.last)]
        ),
        post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
    )
    table.refresh()
    for version in range(before + 1, table.delta.version() + 1):
        commit = table.commit(version)
        if commit.sealed is not None and commit.sealed.app == sealed.app and commit.sealed.last == sealed.last:
            table.settle([commit.path])
            return commit.sealed
    raise OurFault(f"the transaction that seals {sealed.app} up to {sealed.last} is not in the log of the table")
