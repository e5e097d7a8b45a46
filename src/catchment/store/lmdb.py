"""The store contract in LMDB: the durable hot log of a node (DESIGN.md, "The entry", the LMDB paragraph).

Seven databases in one environment, every number in a key big-endian so that bytes sort as numbers:

    rows   offset -> record (`records.py`); written at the end only, dropped from the front
    order  topic, partition, timestamp, sequence, publisher, chain -> offset
    ids    protocol, id -> offset
    names  the intern table: kind, name -> number, and number -> kind, name
    meta   format, node, epoch, floor, and the named values of `put_meta`
    postings, kept   entries by what they are about, for protocols that ask so (`postings.py`)

Commits use LMDB's default sync (facts/performance.md, "Traps": it loses nothing in a power cut). Another process may
have the store open too: LMDB lets one write at a time, and what a write builds on is read inside its transaction. The
only caches are of interned names, and a name keeps its number for ever.

Offsets from the floor (one past the last dropped row) on are all there, so a row missing above it is reported as
corruption and never passed over.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias

import lmdb

from catchment import errors, model
from catchment.store import base, records
from catchment.store.blocks import BLOCK_ROWS, Block, decode_block, decode_rows
from catchment.store.environment import (
    EPOCH_KEY,
    MAP_SIZES,
    Databases,
    open_environment,
    prepare,
    random_epoch,
    sync_folders,
)
from catchment.store.names import LONGEST_KEY, TOPIC_OF, Fresh, Names, NameView, Naming, short_key
from catchment.store.postings import Extract, LmdbPostings

_FLOOR_KEY: Final = b"floor"
_USER_PREFIX: Final = b"user:"

_ID_IS_IDENTITY: Final = 1 << 63
"""Set in an order value when the entry is identified by its id: such entries may share an order key."""
_IDENTITY_BIT: Final = b"\x80"
"""Values from here on have it set."""

_PAGE_ROWS: Final = 512
_FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PROBE_BYTES: Final = 1 << 20
_CORRUPT: Final = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError)

_Txn: TypeAlias = "lmdb.Transaction[bytes]"


class LmdbStore:
    """A `store.base.Store` in a folder. Made by `LmdbStore.open`."""

    def __init__(
        self,
        env: lmdb.Environment,
        databases: Databases,
        *,
        path: Path,
        node: bytes,
        max_bytes: int | None,
        random_bytes: Callable[[int], bytes],
        extracts: Mapping[model.Protocol, Extract],
    ) -> None:
        self._env = env
        self._db = databases
        self._path = path
        self._node = node
        self._random_bytes = random_bytes
        self._names = Names(databases.names)
        self.postings = LmdbPostings(databases.postings, databases.kept, extracts, self._read)
        self._writing = threading.Lock()
        self.max_bytes = max_bytes
        self._page_size = env.stat()["psize"]

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        map_size: int | None = None,
        max_bytes: int | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
        extracts: Mapping[model.Protocol, Extract] = MappingProxyType({}),
    ) -> LmdbStore:
        """Open the store in a folder, made with its parents if it is not there.

        Args:
            path: the folder.
            map_size: the most bytes the store can ever hold; by default the largest of `MAP_SIZES` the system grants.
            max_bytes: refuse batches that would bring the bytes in use over this many.
            random_bytes: where the node's name and the epochs come from.
            extracts: by which terms the entries of a protocol are found; of one that is not here, by none.

        Raises:
            UserError: the folder cannot be used; the text says why and what to do.
        """
        folder = Path(path)
        sizes = MAP_SIZES if map_size is None else (map_size,)
        env = open_environment(folder, sizes)
        try:
            databases, node = prepare(env, folder, random_bytes)
            sync_folders(folder)
            return cls(
                env,
                databases,
                path=folder,
                node=node,
                max_bytes=max_bytes,
                random_bytes=random_bytes,
                extracts=extracts,
            )
        except BaseException:
            env.close()
            raise

    @property
    def node(self) -> bytes:
        """See `Store.node`."""
        return self._node

    @property
    def epoch(self) -> int:
        """See `Store.epoch`."""
        with self._read() as txn:
            return self._epoch_of(txn)

    @property
    def next_offset(self) -> int:
        """See `Store.next_offset`."""
        with self._read() as txn:
            return self._next_of(txn)

    @property
    def first_hot_offset(self) -> int:
        """See `Store.first_hot_offset`."""
        with self._read() as txn:
            return self._floor_of(txn)

    @property
    def used_bytes(self) -> int:
        """The bytes of the pages in use; what `max_bytes` bounds."""
        with self._read() as txn:
            return self._used_of(txn)

    def append(self, entries: Sequence[model.Entry]) -> list[int]:
        """See `Store.append`.

        Raises:
            StoreFull: no room; nothing of the batch was kept and the store can be used on.
            ValueError: a number of an entry is negative or too large to be kept; nothing of the batch was kept.
        """
        fresh: Fresh = {}
        with self._write(entries) as txn:
            offsets = self._append(txn, entries, fresh)
            if self.max_bytes is not None and (used := self._used_of(txn)) > self.max_bytes:
                raise errors.StoreFull(
                    f"the store in {self._path} would use {used} bytes, {self.max_bytes} are allowed"
                )
        self._names.remember(fresh)
        return offsets

    def _append(self, txn: _Txn, entries: Sequence[model.Entry], fresh: Fresh) -> list[int]:
        numbers, intern = self._names.numbers, self._names.intern
        topics = [numbers[naming] for naming in TOPIC_OF]
        publishers, chains = numbers[Naming.PUBLISHER], numbers[Naming.CHAIN]
        epoch, offset = self._epoch_of(txn), self._next_of(txn)
        order = txn.cursor(db=self._db.order)
        rows: list[tuple[bytes, bytes]] = []
        offsets: list[int] = []
        refused, repeat = model.Kind.REFUSED, model.Kind.DUPLICATE
        extracts, filing = self.postings.extracts, self.postings.writer(txn)
        for entry in entries:
            value = records.pack_offset(offset)
            kind = entry.kind
            if kind is refused or kind is repeat:
                record = records.encode_inline(entry, offset, epoch)
            elif entry.id and not txn.put(_id_key(entry.protocol, entry.id), value, overwrite=False, db=self._db.ids):
                offsets.append(base.DUPLICATE)
                continue
            elif entry.id and entry.protocol in extracts:
                record = records.encode_inline(entry, offset, epoch)
                filing.add(entry, offset)
            else:
                protocol = entry.protocol
                topic = topics[protocol].get(entry.topic) or intern(txn, TOPIC_OF[protocol], entry.topic, fresh)
                publisher = publishers.get(entry.publisher) or intern(txn, Naming.PUBLISHER, entry.publisher, fresh)
                chain = chains.get(entry.chain) or intern(txn, Naming.CHAIN, entry.chain, fresh)
                key = records.entry_order(entry, (topic, publisher, chain))
                if entry.id:
                    order.put(key, records.pack_offset(offset | _ID_IS_IDENTITY))
                elif not order.put(key, value, True, False) and not self._index_beside(order, key, value):
                    offsets.append(base.DUPLICATE)
                    continue
                record = records.encode(entry, offset, epoch, key)
            rows.append((value, record))
            offsets.append(offset)
            offset += 1
        filing.finish()
        _, added = txn.cursor(db=self._db.rows).putmulti(rows, append=True)
        assert added == len(rows), "rows grow at their end only"
        return offsets

    @staticmethod
    def _index_beside(order: lmdb.Cursor[bytes], key: bytes, value: bytes) -> bool:
        """Index an entry without id at a taken key, unless one without id is already there (it would sort first)."""
        order.set_key(key)
        if not records.unpack_offset(order.value()) & _ID_IS_IDENTITY:
            return False
        return order.put(key, value)

    def read(self, start: int, limit: int) -> list[model.Row]:
        """See `Store.read`.

        Raises:
            StoreCorrupt: a record does not match its checksum, or one that was never dropped is missing.
        """
        with self._read() as txn:
            offsets, found = self._successive(txn, start, limit)
            return decode_rows(found, offsets, self._names.view(txn))

    def read_block(self, start: int, limit: int) -> Block | None:
        """See `Store.read_block`.

        Raises:
            StoreCorrupt: a record does not match its checksum, or one that was never dropped is missing.
        """
        with self._read() as txn:
            offsets, found = self._successive(txn, start, min(limit, BLOCK_ROWS))
            return decode_block(found, offsets, self._names.view(txn)).of_first_epoch() if found else None

    def _successive(self, txn: _Txn, start: int, limit: int) -> tuple[range, list[bytes]]:
        """Offsets from `start` on that are hot, and their records."""
        first = max(start, self._floor_of(txn))
        offsets = range(first, max(first, min(first + limit, self._next_of(txn))))
        if not offsets:
            return offsets, []
        cursor = txn.cursor(db=self._db.rows)
        cursor.set_range(records.pack_offset(first))
        found = list(islice(cursor.iternext(keys=False), len(offsets)))
        # Keys ascend: if the last is the one it should be, so are all before it.
        if len(found) < len(offsets) or cursor.key() != records.pack_offset(offsets[-1]):
            for offset in offsets:
                self._record(txn, offset, first)
            raise errors.StoreCorrupt(f"the records from offset {first} on do not stand in order")
        return offsets, found

    def walk(
        self, question: model.Range, *, after: model.OrderKey | None = None, limit: int, max_bytes: int | None = None
    ) -> tuple[list[base.Place], model.OrderKey | None]:
        """See `Store.walk`.

        `after` is a key an earlier page gave. One that names a publisher or chain the log has never seen goes on at
        its (timestamp, sequence). Entries that share an order key (they are told apart by id) come in one page.

        Raises:
            StoreCorrupt: a row does not match its checksum or its key.
            ValueError: `limit` is below 1.
        """
        if limit < 1:
            raise ValueError("a page holds at least one place")
        with self._read() as txn:
            topic = self._names.look_up(txn, TOPIC_OF[question.topic.protocol], question.topic.name)
            publisher, chain = self._filter(txn, question)
            if topic is None or publisher is None or chain is None:
                return [], None
            least, greatest = records.order_bounds(topic, question)
            if after is not None:
                least = max(least, records.successor(self._key_of(txn, topic, question.topic, after)))
            steps, resume = self._scan(txn, (least, greatest), publisher, chain, limit)
            names = self._names.view(txn)
            places = self._places(txn, steps, names, max_bytes)
            if len(places) < len(steps):
                resume = steps[len(places) - 1][0]
            return places, None if resume is None else _order_key(resume, names)

    def _filter(self, txn: _Txn, question: model.Range) -> tuple[bytes | None, bytes | None]:
        """The packed numbers to filter by: empty for no filter, None for a name that no message can have."""
        packed: list[bytes | None] = []
        for kind, name in ((Naming.PUBLISHER, question.publisher), (Naming.CHAIN, question.chain)):
            if name is None:
                packed.append(b"")
            else:
                number = self._names.look_up(txn, kind, name)
                packed.append(None if number is None else records.pack_number(number))
        return packed[0], packed[1]

    def _key_of(self, txn: _Txn, number: int, topic: model.Topic, key: model.OrderKey) -> bytes:
        publisher = self._names.look_up(txn, Naming.PUBLISHER, key.publisher) or 0
        chain = self._names.look_up(txn, Naming.CHAIN, key.chain) or 0
        return records.pack_order(topic, key, (number, publisher, chain))

    def _scan(
        self, txn: _Txn, bounds: tuple[bytes, bytes], publisher: bytes, chain: bytes, limit: int
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """The steps of one page, and the last key looked at unless the range ends there."""
        steps: list[tuple[bytes, bytes]] = []
        least, greatest = bounds
        cursor = txn.cursor(db=self._db.order)
        if not cursor.set_range(least):
            return steps, None
        last, unfiltered = b"", not publisher and not chain
        for looked_at, (key, value) in enumerate(cursor):
            if key > greatest:
                break
            if (len(steps) >= limit or looked_at >= limit * records.SCAN_PER_PLACE) and key != last:
                return steps, last
            last = key
            if unfiltered or (
                publisher in (b"", key[records.PUBLISHER_SLICE]) and chain in (b"", key[records.CHAIN_SLICE])
            ):
                steps.append((key, value))
        return steps, None

    def walk_last(self, topic: model.Topic, count: int) -> list[base.Place]:
        """See `Store.walk_last`.

        Raises:
            StoreCorrupt: a row does not match its checksum or its key.
        """
        with self._read() as txn:
            return self._places(txn, self._last_steps(txn, topic, count), self._names.view(txn))

    def before_last(self, topic: model.Topic, count: int) -> model.OrderKey | None:
        """See `Store.before_last`."""
        with self._read() as txn:
            steps = self._last_steps(txn, topic, count + 1)
            return _order_key(steps[0][0], self._names.view(txn)) if len(steps) > count else None

    def _last_steps(self, txn: _Txn, topic: model.Topic, count: int) -> list[tuple[bytes, bytes]]:
        number = self._names.look_up(txn, TOPIC_OF[topic.protocol], topic.name)
        if number is None or count < 1:
            return []
        prefix = records.topic_prefix(number, topic.partition)
        cursor = txn.cursor(db=self._db.order)
        found = cursor.prev() if cursor.set_range(records.successor(prefix)) else cursor.last()
        steps: list[tuple[bytes, bytes]] = []
        while found and len(steps) < count and cursor.key().startswith(prefix):
            steps.append(cursor.item())
            found = cursor.prev()
        return steps[::-1]

    def _places(
        self, txn: _Txn, steps: list[tuple[bytes, bytes]], names: NameView, max_bytes: int | None = None
    ) -> list[base.Place]:
        """The places of `steps`, up to the one whose row brings their raw bytes to `max_bytes`."""
        offsets = [offset & ~_ID_IS_IDENTITY for offset in records.unpack_offsets([value for _, value in steps])]
        found = self._records(txn, steps, offsets, max_bytes)
        keys = [key for key, _ in steps[: len(found)]]
        hot = [at for at, data in enumerate(found) if data is not None]
        data = [data for data in found if data is not None]
        rows = decode_rows(data, [offsets[at] for at in hot], names)
        for at, record in zip(hot, data, strict=True):
            if record[records.ORDER_SLICE] != keys[at]:
                raise errors.StoreCorrupt(
                    f"the record at offset {offsets[at]} does not belong to the key that leads to it"
                )
        places = [base.Place(row.entry.order_key, row.offset, row) for row in rows]
        if len(hot) == len(found):
            return places
        following = iter(places)
        return [
            base.Place(_order_key(key, names), offset, None) if data is None else next(following)
            for key, offset, data in zip(keys, offsets, found, strict=False)
        ]

    def _records(
        self, txn: _Txn, steps: list[tuple[bytes, bytes]], offsets: list[int], max_bytes: int | None
    ) -> list[bytes | None]:
        """The records of `steps` as far as `max_bytes` allows, None for those that were dropped."""
        floor, get, rows = self._floor_of(txn), txn.get, self._db.rows
        found: list[bytes | None] = []
        size, last = 0, b""
        for (key, value), offset in zip(steps, offsets, strict=True):
            if max_bytes is not None and size >= max_bytes and key != last:
                break
            last = key
            has_id = value >= _IDENTITY_BIT
            data = get(records.pack_offset(offset) if has_id else value, None, rows)
            found.append(data)
            if data is not None:
                size += records.raw_size(data) if has_id else len(data) - records.BODY_AT
            elif offset >= floor:
                raise errors.StoreCorrupt(f"the record at offset {offset} is missing")
        return found

    def _record(self, txn: _Txn, offset: int, floor: int) -> bytes | None:
        data = txn.get(records.pack_offset(offset), db=self._db.rows)
        if data is None and offset >= floor:
            raise errors.StoreCorrupt(f"the record at offset {offset} is missing")
        return data

    def find(self, protocol: model.Protocol, entry_id: bytes) -> model.Row | None:
        """See `Store.find`.

        Raises:
            StoreCorrupt: the row does not match its checksum or its id.
        """
        return self.find_all(protocol, (entry_id,))[0]

    def find_all(self, protocol: model.Protocol, entry_ids: Sequence[bytes]) -> list[model.Row | None]:
        """See `Store.find_all`.

        Raises:
            StoreCorrupt: a row does not match its checksum or its id.
        """
        rows: list[model.Row | None] = []
        with self._read() as txn:
            floor, names = self._floor_of(txn), self._names.view(txn)
            for entry_id in entry_ids:
                value = txn.get(_id_key(protocol, entry_id), db=self._db.ids)
                offset = -1 if value is None else records.unpack_offset(value)
                data = None if value is None else self._record(txn, offset, floor)
                row = None if data is None else records.decode(data, offset, names)
                if row is not None and (row.entry.protocol, row.entry.id) != (protocol, entry_id):
                    raise errors.StoreCorrupt(
                        f"the record at offset {offset} does not belong to the id that leads to it"
                    )
                rows.append(row)
        return rows

    def rows_of(self, protocol: model.Protocol) -> Iterator[model.Row]:
        """See `Store.rows_of`. Read in pages, each in a transaction of its own.

        Raises:
            StoreCorrupt: a row does not match its checksum.
        """
        with self._read() as txn:
            topics = self._names.numbers_of(txn, TOPIC_OF[protocol])
            order = txn.cursor(db=self._db.order)
            offsets = sorted(offset for topic in topics for offset in _offsets_below(order, topic))
        for start in range(0, len(offsets), _PAGE_ROWS):
            with self._read() as txn:
                floor, names = self._floor_of(txn), self._names.view(txn)
                found = [(offset, self._record(txn, offset, floor)) for offset in offsets[start : start + _PAGE_ROWS]]
                page = [records.decode(data, offset, names) for offset, data in found if data is not None]
            yield from (row for row in page if row.entry.protocol is protocol)

    def drop(self, before: int, *, limit: int) -> int:
        """See `Store.drop`.

        Raises:
            StoreFull: no room for the pages a deletion copies; readers or the disk hold it.
        """
        dropped = 0
        with self._write() as txn:
            # Readers that were killed keep old pages from being used again until they are noticed.
            self._env.reader_check()
            cursor = txn.cursor(db=self._db.rows)
            cursor.first()
            floor = 0
            # Behind the last row the cursor's key is empty.
            while dropped < limit and (key := cursor.key()) and (offset := records.unpack_offset(key)) < before:
                cursor.delete()
                floor = offset + 1
                dropped += 1
            if dropped:
                self._put(txn, _FLOOR_KEY, records.pack_offset(floor))
        return dropped

    def new_epoch(self) -> int:
        """See `Store.new_epoch`."""
        epoch = random_epoch(self._random_bytes)
        with self._write() as txn:
            self._put(txn, EPOCH_KEY, records.pack_offset(epoch))
        return epoch

    def get_meta(self, name: str) -> bytes | None:
        """See `Store.get_meta`."""
        with self._read() as txn:
            return self._get(txn, _USER_PREFIX + records.encode_name(name))

    def put_meta(self, name: str, value: bytes) -> None:
        """See `Store.put_meta`.

        Raises:
            StoreFull: no room.
            ValueError: the name is longer than a key can be.
        """
        self.put_metas({name: value})

    def put_metas(self, values: Mapping[str, bytes | None]) -> None:
        """See `Store.put_metas`.

        Raises:
            StoreFull: no room.
            ValueError: a name is longer than a key can be.
        """
        with self._write() as txn:
            for name, value in values.items():
                key = _USER_PREFIX + records.encode_name(name)
                if len(key) > LONGEST_KEY:
                    raise ValueError(f"a name of at most {LONGEST_KEY - len(_USER_PREFIX)} bytes is needed")
                if value is None:
                    txn.delete(key, db=self._db.meta)
                else:
                    self._put(txn, key, value)

    def metas(self, prefix: str) -> list[tuple[str, bytes]]:
        """See `Store.metas`."""
        start = _USER_PREFIX + records.encode_name(prefix)
        found: list[tuple[str, bytes]] = []
        with self._read() as txn:
            cursor = txn.cursor(db=self._db.meta)
            if cursor.set_range(start):
                for key, stored in cursor:
                    if not key.startswith(start):
                        break
                    name = records.decode_name(key[len(_USER_PREFIX) :])
                    found.append((name, records.without_checksum(key, stored)))
        return found

    def sync(self) -> None:
        """See `Store.sync`."""
        try:
            self._env.sync(True)
        except lmdb.Error as error:
            raise errors.OurFault(f"the store in {self._path} could not be synced: {error}") from error

    def close(self) -> None:
        """See `Store.close`."""
        self._env.close()

    @contextmanager
    def _read(self) -> Iterator[_Txn]:
        """One short read transaction: a long one would keep pages from being used again."""
        try:
            with self._env.begin() as txn:
                yield txn
        except _CORRUPT as error:
            raise errors.StoreCorrupt(f"the store in {self._path} is damaged: {error}") from error
        except lmdb.Error as error:
            raise errors.OurFault(f"the store in {self._path} cannot be read: {error}") from error

    @contextmanager
    def _write(self, entries: Sequence[model.Entry] = ()) -> Iterator[_Txn]:
        """One durable write transaction, whole or not at all, of these entries or something small."""
        with self._writing:
            try:
                with self._env.begin(write=True) as txn:
                    yield txn
            except _CORRUPT as error:
                raise errors.StoreCorrupt(f"the store in {self._path} is damaged: {error}") from error
            except lmdb.Error as error:
                if self._is_full(error, entries):
                    raise errors.StoreFull(f"no room for the store in {self._path} (LMDB: {error})") from error
                raise errors.OurFault(f"the store in {self._path} cannot be written: {error}") from error

    def _is_full(self, error: lmdb.Error, entries: Sequence[model.Entry]) -> bool:
        code = getattr(error, "code", 0)
        if isinstance(error, lmdb.MapFullError) or code in _FULL_ERRNOS:
            return True
        if code != errno.EIO:
            return False
        return self._is_out_of_room(_PROBE_BYTES + 2 * sum(len(entry.raw) for entry in entries))

    def _is_out_of_room(self, size: int) -> bool:
        """Whether the data file cannot grow: LMDB reports a short write, which is how a disk gets full, as EIO."""
        try:
            # Other processes write only when they hold this transaction.
            with self._env.begin(write=True):
                fd = os.open(self._path / "data.mdb", os.O_RDWR)
                try:
                    if not hasattr(os, "posix_fallocate"):
                        room = os.fstatvfs(fd)
                        return room.f_bavail * room.f_frsize < size
                    end = (self._env.info()["last_pgno"] + 1) * self._page_size
                    os.posix_fallocate(fd, end, size)
                finally:
                    os.close(fd)
        except OSError as error:
            return error.errno in _FULL_ERRNOS
        except lmdb.Error:
            return False
        return False

    def _get(self, txn: _Txn, key: bytes) -> bytes | None:
        stored = txn.get(key, db=self._db.meta)
        return None if stored is None else records.without_checksum(key, stored)

    def _put(self, txn: _Txn, key: bytes, value: bytes) -> None:
        txn.put(key, records.with_checksum(key, value), db=self._db.meta)

    def _epoch_of(self, txn: _Txn) -> int:
        stored = self._get(txn, EPOCH_KEY)
        if stored is None:
            raise errors.StoreCorrupt(f"the store in {self._path} has lost its epoch")
        return records.unpack_offset(stored)

    def _floor_of(self, txn: _Txn) -> int:
        return records.unpack_offset(self._get(txn, _FLOOR_KEY) or b"")

    def _next_of(self, txn: _Txn) -> int:
        cursor = txn.cursor(db=self._db.rows)
        if cursor.last():
            return records.unpack_offset(cursor.key()) + 1
        return self._floor_of(txn)

    def _used_of(self, txn: _Txn) -> int:
        used = 0
        for db in self._db:
            stat = txn.stat(db)
            used += (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]) * stat["psize"]
        return used


def _offsets_below(order: lmdb.Cursor[bytes], topic: int) -> Iterator[int]:
    """The offsets of every place of a topic, whatever its partition."""
    prefix = records.pack_number(topic)
    if order.set_range(prefix):
        for key, value in order:
            if not key.startswith(prefix):
                return
            yield records.unpack_offset(value) & ~_ID_IS_IDENTITY


def _id_key(protocol: model.Protocol, entry_id: bytes) -> bytes:
    return bytes((protocol,)) + short_key(entry_id)


def _order_key(packed: bytes, names: NameView) -> model.OrderKey:
    numbers = records.unpack_order(packed)
    return model.OrderKey(numbers.timestamp, numbers.sequence, names[numbers.publisher], names[numbers.chain])
