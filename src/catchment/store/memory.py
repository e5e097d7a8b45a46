"""The store contract in memory: for tests, simulations and nodes that may forget.

Small and plain on purpose: it is the second opinion `tests/store/test_contract.py` holds the durable store against.
Names are numbered in the order of their first use, so that messages with equal (timestamp, sequence) come in the same
order as from the durable store.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from catchment import errors, model
from catchment.store import base, records
from catchment.store.blocks import Block, block_of
from catchment.store.memory_postings import MemoryPostings
from catchment.store.postings import Extract

_ANY: Final = model.Topic("", 0)
"""Keys are kept apart by topic already, so the topic within them is always this one."""

_Step = tuple[bytes, bool, int]
"""Order key, whether an id is the entry's identity, offset: sorts as the durable store's order index does."""


class MemoryStore:
    """A `store.base.Store` that is gone with the process.

    Args:
        max_bytes: refuse batches that would bring the records kept over this many bytes.
        random_bytes: where the node's name and the epochs come from.
        extracts: by which terms the entries of a protocol are found.
    """

    def __init__(
        self,
        *,
        max_bytes: int | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
        extracts: Mapping[model.Protocol, Extract] = MappingProxyType({}),
    ) -> None:
        self._random_bytes = random_bytes
        self._max_bytes = max_bytes
        self._lock = threading.RLock()
        self.postings = MemoryPostings(extracts, self._lock)
        self._node = random_bytes(16)
        self._epoch = int.from_bytes(random_bytes(8), "big") >> 1
        self._rows: dict[int, model.Row] = {}
        self._sizes: dict[int, int] = {}
        self._used = 0
        self._first = 0
        self._next = 0
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._order: dict[model.Topic, list[_Step]] = {}
        self._identities: dict[object, int] = {}
        self._meta: dict[str, bytes] = {}

    @property
    def node(self) -> bytes:
        """See `Store.node`."""
        return self._node

    @property
    def epoch(self) -> int:
        """See `Store.epoch`."""
        return self._epoch

    @property
    def next_offset(self) -> int:
        """See `Store.next_offset`."""
        return self._next

    @property
    def first_hot_offset(self) -> int:
        """See `Store.first_hot_offset`."""
        return self._first

    def append(self, entries: Sequence[model.Entry]) -> list[int]:
        """See `Store.append`.

        Raises:
            StoreFull: the batch would go over `max_bytes`.
            ValueError: a number of an entry is negative or too large to be kept.
        """
        with self._lock:
            offsets: list[int] = []
            batch: dict[object, int] = {}
            kept: list[tuple[model.Row, object, int]] = []
            for entry in entries:
                identity = _identity(entry)
                if identity is not None and (identity in self._identities or identity in batch):
                    offsets.append(base.DUPLICATE)
                    continue
                offset = self._next + len(kept)
                size = len(records.encode_inline(entry, offset, self._epoch))
                if identity is not None:
                    batch[identity] = offset
                kept.append((model.Row(offset, self._epoch, entry), identity, size))
                offsets.append(offset)
            used = self._used + sum(size for _, _, size in kept)
            if self._max_bytes is not None and used > self._max_bytes:
                raise errors.StoreFull(f"the store would hold {used} bytes, {self._max_bytes} are allowed")
            for row, identity, size in kept:
                self._keep(row, identity, size)
            return offsets

    def _keep(self, row: model.Row, identity: object, size: int) -> None:
        self._rows[row.offset] = row
        self._sizes[row.offset] = size
        self._used += size
        self._next = row.offset + 1
        if identity is not None:
            entry = row.entry
            self._identities[identity] = row.offset
            if entry.id and entry.protocol in self.postings.extracts:
                self.postings.add(entry, row.offset)
                return
            steps = self._order.setdefault(model.Topic(entry.topic, entry.partition, entry.protocol), [])
            insort(steps, (self._key(entry.order_key, intern=True), bool(entry.id), row.offset))

    def _key(self, key: model.OrderKey, *, intern: bool = False) -> bytes:
        if intern:
            for name in (key.publisher, key.chain):
                if name not in self._numbers:
                    self._numbers[name] = len(self._names) + 1
                    self._names.append(name)
        publisher, chain = self._numbers.get(key.publisher, 0), self._numbers.get(key.chain, 0)
        return records.pack_order(_ANY, key, (0, publisher, chain))

    def read(self, start: int, limit: int) -> list[model.Row]:
        """See `Store.read`."""
        with self._lock:
            first = max(start, self._first)
            return [self._rows[offset] for offset in range(first, min(first + limit, self._next))]

    def read_block(self, start: int, limit: int) -> Block | None:
        """See `Store.read_block`."""
        rows = self.read(start, limit)
        return block_of(rows).of_first_epoch() if rows else None

    def walk(
        self, question: model.Range, *, after: model.OrderKey | None = None, limit: int, max_bytes: int | None = None
    ) -> tuple[list[base.Place], model.OrderKey | None]:
        """See `Store.walk`.

        Raises:
            ValueError: `limit` is below 1.
        """
        if limit < 1:
            raise ValueError("a page holds at least one place")
        least, greatest = records.order_bounds(0, msgspec.structs.replace(question, topic=_ANY))
        with self._lock:
            steps = self._order.get(question.topic, [])
            if after is not None:
                least = max(least, records.successor(self._key(after)))
            first, stop = bisect_left(steps, (least,)), bisect_right(steps, (greatest, True, self._next))
            places: list[base.Place] = []
            size = 0
            for at in range(first, stop):
                full = len(places) >= limit or at - first >= limit * records.SCAN_PER_PLACE
                full = full or (max_bytes is not None and size >= max_bytes)
                if full and steps[at][0] != steps[at - 1][0]:
                    return places, self._place(steps[at - 1]).key
                place = self._place(steps[at])
                if question.publisher in (None, place.key.publisher) and question.chain in (None, place.key.chain):
                    places.append(place)
                    size += 0 if place.row is None else len(place.row.entry.raw)
            return places, None

    def _place(self, step: _Step) -> base.Place:
        key, _, offset = step
        numbers = records.unpack_order(key)
        publisher, chain = self._names[numbers.publisher - 1], self._names[numbers.chain - 1]
        order_key = model.OrderKey(numbers.timestamp, numbers.sequence, publisher, chain)
        return base.Place(order_key, offset, self._rows.get(offset))

    def walk_last(self, topic: model.Topic, count: int) -> list[base.Place]:
        """See `Store.walk_last`."""
        with self._lock:
            steps = self._order.get(topic, [])
            return [self._place(step) for step in steps[max(0, len(steps) - max(0, count)) :]]

    def before_last(self, topic: model.Topic, count: int) -> model.OrderKey | None:
        """See `Store.before_last`."""
        with self._lock:
            steps = self._order.get(topic, [])
            return self._place(steps[-count - 1]).key if len(steps) > count else None

    def find(self, protocol: model.Protocol, entry_id: bytes) -> model.Row | None:
        """See `Store.find`."""
        with self._lock:
            offset = self._identities.get((protocol, entry_id))
            return None if offset is None else self._rows.get(offset)

    def find_all(self, protocol: model.Protocol, entry_ids: Sequence[bytes]) -> list[model.Row | None]:
        """See `Store.find_all`."""
        with self._lock:
            found = [self._identities.get((protocol, entry_id)) for entry_id in entry_ids]
            return [None if offset is None else self._rows.get(offset) for offset in found]

    def rows_of(self, protocol: model.Protocol) -> Iterator[model.Row]:
        """See `Store.rows_of`."""
        with self._lock:
            rows = list(self._rows.values())
        return (row for row in rows if row.entry.protocol is protocol and row.entry.kind not in records.UNINDEXED)

    def drop(self, before: int, *, limit: int) -> int:
        """See `Store.drop`."""
        with self._lock:
            going = range(self._first, min(before, self._next, self._first + limit))
            for offset in going:
                del self._rows[offset]
                self._used -= self._sizes.pop(offset)
            self._first += len(going)
            return len(going)

    def new_epoch(self) -> int:
        """See `Store.new_epoch`."""
        with self._lock:
            self._epoch = int.from_bytes(self._random_bytes(8), "big") >> 1
            return self._epoch

    def get_meta(self, name: str) -> bytes | None:
        """See `Store.get_meta`."""
        with self._lock:
            return self._meta.get(name)

    def put_meta(self, name: str, value: bytes) -> None:
        """See `Store.put_meta`."""
        self.put_metas({name: value})

    def put_metas(self, values: Mapping[str, bytes | None]) -> None:
        """See `Store.put_metas`."""
        with self._lock:
            for name, value in values.items():
                if value is None:
                    self._meta.pop(name, None)
                else:
                    self._meta[name] = value

    def metas(self, prefix: str) -> list[tuple[str, bytes]]:
        """See `Store.metas`."""
        with self._lock:
            return sorted((name, value) for name, value in self._meta.items() if name.startswith(prefix))

    def sync(self) -> None:
        """See `Store.sync`: there is no disk to wait for."""

    def close(self) -> None:
        """See `Store.close`."""


def _identity(entry: model.Entry) -> object:
    if entry.kind in records.UNINDEXED:
        return None
    if entry.id:
        return entry.protocol, entry.id
    return entry.protocol, entry.topic, entry.partition, entry.order_key
