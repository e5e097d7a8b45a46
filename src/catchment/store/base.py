"""The store contract: a dense, durable, append-only log with indexes.

One thread appends and drops; any thread reads. `tests/store/test_contract.py` runs one suite over every
implementation.

Identity (DESIGN.md, "The entry"): an entry with an `id` is identified by (protocol, id); one without is identified by
its order key (topic, partition, timestamp, sequence, publisher, chain). Entries with an id whose protocol asks by terms
(`postings.py`) stand in no topic's order. `REFUSED` and `DUPLICATE` entries have no
identity: they get an offset and are found by offset only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from catchment import model
from catchment.store.blocks import Block
from catchment.store.postings import Postings

DUPLICATE: Final = -1
"""Stands in `Store.append`'s answer for an entry whose identity the log already has."""


class Place(NamedTuple):
    """One step of a walk in order: the key, the offset, and the row unless it was dropped from the hot store."""

    key: model.OrderKey
    offset: int
    row: model.Row | None


class Store(Protocol):
    """What the rest of the house may ask of a log."""

    @property
    def node(self) -> bytes:
        """16 random bytes made with the store."""

    @property
    def epoch(self) -> int:
        """A random number below 2**63, new whenever the store is created, restored or rolled back."""

    @property
    def next_offset(self) -> int:
        """The offset the next entry will get; offsets are dense from 0."""

    @property
    def first_hot_offset(self) -> int:
        """No hot row has a smaller offset."""

    @property
    def postings(self) -> Postings:
        """Entries by what they are about, for protocols that ask so."""

    def append(self, entries: Sequence[model.Entry]) -> list[int]:
        """Keep a batch, whole or not at all, and return once it is on disk.

        Returns:
            An offset for each entry, or `DUPLICATE` where the identity is already in the log (or earlier in the
            batch) and nothing was kept.

        Raises:
            StoreFull: no room; nothing of the batch was kept and the store can be used on.
        """

    def read(self, start: int, limit: int) -> list[model.Row]:
        """Hot rows by offset, ascending, from `start` on.

        Raises:
            StoreCorrupt: a record does not match its checksum.
        """

    def read_block(self, start: int, limit: int) -> Block | None:
        """As `read`, column by column: rows of one epoch, perhaps fewer than `limit`; None when there are none.

        Raises:
            StoreCorrupt: a record does not match its checksum.
        """

    def walk(
        self, question: model.Range, *, after: model.OrderKey | None = None, limit: int, max_bytes: int | None = None
    ) -> tuple[list[Place], model.OrderKey | None]:
        """A page of a topic in order, dropped rows included, and the key to go on `after` (None at the end).

        A page may hold fewer places than `limit` (even none) before the end when a filter passes over many keys. It
        also ends with the place whose hot row brings the page's raw bytes to `max_bytes`.
        """

    def before_last(self, topic: model.Topic, count: int) -> model.OrderKey | None:
        """The key `after` which the last `count` places of a topic begin; None when they begin with its first."""

    def walk_last(self, topic: model.Topic, count: int) -> list[Place]:
        """The last `count` places of a topic, in ascending order."""

    def find(self, protocol: model.Protocol, entry_id: bytes) -> model.Row | None:
        """The hot row with this id; None when unknown or dropped."""

    def find_all(self, protocol: model.Protocol, entry_ids: Sequence[bytes]) -> list[model.Row | None]:
        """`find` for many ids, seen at one moment and in their order."""

    def rows_of(self, protocol: model.Protocol) -> Iterator[model.Row]:
        """Every hot row of a protocol that has a place in the order, by offset: for a state that is a fold over them.

        Meant for protocols whose rows stay hot; rows dropped are passed over.
        """

    def drop(self, before: int, *, limit: int) -> int:
        """Drop up to `limit` hot rows with offsets below `before`, keep their keys, and return how many went."""

    def new_epoch(self) -> int:
        """Begin a new epoch (the store was restored or rolled back) and return it. Rows kept before stay in theirs."""

    def get_meta(self, name: str) -> bytes | None:
        """A small named value kept beside the log."""

    def put_meta(self, name: str, value: bytes) -> None:
        """Keep a small named value durably."""

    def put_metas(self, values: Mapping[str, bytes | None]) -> None:
        """Keep several, whole or not at all; None forgets one, and forgetting what is not there is fine."""

    def metas(self, prefix: str) -> list[tuple[str, bytes]]:
        """The named values whose names begin with `prefix`, by name."""

    def sync(self) -> None:
        """Return when everything appended is on disk."""

    def close(self) -> None:
        """Release the store; nothing may be asked of it afterwards."""
