"""Entries found by what they are about: lists of entries by term, newest first.

Some protocols ask by author, kind or tag and not by topic. What an entry is found by, a function of its protocol says
(`Extract`, given to the store when it is opened; stores know no protocol). For each term the store keeps a list,
sorted by rank; an answer merges the lists of one group of terms, from the greatest rank down.

Entries with terms stand in no topic's order, so no question about a topic can reach them. Their bytes are kept a second
time beside the lists: the log's own rows may be dropped once they are sealed, in any order the log likes, and these
stay.

Entries of one slot replace each other. A slot has an owner, and holders who may or may not act for the owner. What the
owner puts there replaces everything older in the slot; what another holder puts there replaces only what the same
holder put there before. So nobody can push out what is not theirs, and what replaced something is never served beside
it.

In the LMDB database `postings` every key begins with a section and the protocol:

    0  term, rank, offset -> nothing          the lists
    1  term -> how many entries have it        to choose the shortest way
    2  slot, holder -> rank, offset            what stands in a slot
    3  received_at, offset -> rank             by time of receipt

and in `kept` the offset leads to received_at and the raw bytes, under a checksum.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol, TypeAlias

import lmdb
import msgspec

from catchment import errors, model
from catchment.store import records

RANK_BYTES: Final = 16
SPOT_BYTES: Final = RANK_BYTES + 8
MAX_IN_SLOT: Final = 1000
"""How many holders of a slot are looked at when its owner writes; more than anyone has keys."""

_LIST: Final = b"\0"
_COUNT: Final = b"\1"
_SLOT: Final = b"\2"
_RECEIVED: Final = b"\3"

_Txn: TypeAlias = "lmdb.Transaction[bytes]"


class Posting(msgspec.Struct, frozen=True, gc=False):
    """What an entry is found by.

    Attributes:
        rank: 16 bytes; of two entries the later has the greater.
        terms: under which lists it stands. Terms that begin with the same byte have the same length.
        slot: what it replaces others in; empty when it replaces nothing.
        holder: who put it there.
        owner: whose slot it is.
    """

    rank: bytes
    terms: tuple[bytes, ...]
    slot: bytes = b""
    holder: bytes = b""
    owner: bytes = b""


Extract: TypeAlias = Callable[[bytes], Posting]
"""What the raw bytes of an entry are found by."""


class Lane(NamedTuple):
    """A stretch of one term's list, both ends included."""

    term: bytes
    low: bytes
    high: bytes


class Group(NamedTuple):
    """Lanes that together hold every entry of an answer (and perhaps others)."""

    lanes: tuple[Lane, ...]
    weight: int | None = None
    """About how many entries they hold; None when the counts of their terms tell."""


class Hit(NamedTuple):
    """An entry that was found. Its spot is where a search goes on."""

    spot: bytes
    offset: int
    received_at: int
    raw: bytes


class Postings(Protocol):
    """What may be asked of the lists. Part of the store's contract: any thread asks, each call is one short read."""

    def keeps(self, protocol: model.Protocol) -> bool:
        """Whether entries of a protocol are found here, and stay when the log's rows are dropped."""

    def search(
        self,
        protocol: model.Protocol,
        groups: Sequence[Group],
        *,
        before: bytes | None = None,
        below: int | None = None,
        limit: int,
        max_bytes: int,
    ) -> tuple[list[Hit], bytes | None]:
        """A page of the lightest group, the greatest rank first, and the spot to go on `before` (None at the end).

        Args:
            protocol: whose entries.
            groups: each on its own holds the whole answer.
            before: the spot an earlier page gave.
            below: pass over entries with this offset or a greater one.
            limit: how many entries at most.
            max_bytes: the page ends with the entry that reaches this many.
        """

    def weigh(self, protocol: model.Protocol, groups: Sequence[Group]) -> int:
        """About how many entries the lightest group holds."""

    def received(self, protocol: model.Protocol, since: int, until: int, *, limit: int) -> list[bytes] | None:
        """The spots of what came between two times (microseconds), greatest rank first; None if above `limit`."""

    def fetch(self, spots: Sequence[bytes]) -> list[Hit]:
        """The entries at these spots, those that were replaced meanwhile left out."""


def spot_of(rank: bytes, offset: int) -> bytes:
    """Where an entry stands in every list it is in."""
    return rank + records.pack_offset(offset)


def offset_of(spot: bytes) -> int:
    """The offset in a spot."""
    return int.from_bytes(spot[RANK_BYTES:], "big")


class LmdbPostings:
    """`Postings` in two databases of an LMDB store."""

    def __init__(
        self,
        postings: lmdb._Database,
        kept: lmdb._Database,
        extracts: Mapping[model.Protocol, Extract],
        read: Callable[[], AbstractContextManager[_Txn]],
    ) -> None:
        self.extracts = extracts
        self._postings = postings
        self._kept = kept
        self._read = read

    def keeps(self, protocol: model.Protocol) -> bool:
        """See `Postings.keeps`."""
        return protocol in self.extracts

    def writer(self, txn: _Txn) -> PostingWriter:
        """What files entries in a write transaction."""
        return PostingWriter(txn, self._postings, self._kept, self.extracts)

    def search(
        self,
        protocol: model.Protocol,
        groups: Sequence[Group],
        *,
        before: bytes | None = None,
        below: int | None = None,
        limit: int,
        max_bytes: int,
    ) -> tuple[list[Hit], bytes | None]:
        """See `Postings.search`.

        Raises:
            StoreCorrupt: an entry does not match its checksum or is missing.
        """
        hits: list[Hit] = []
        size = 0
        with self._read() as txn:
            group = min(groups, key=lambda group: self._weight(txn, protocol, group), default=Group(()))
            lanes = [self._descend(txn, protocol, lane, before) for lane in group.lanes]
            merged = lanes[0] if len(lanes) == 1 else heapq.merge(*lanes, reverse=True)
            last = b""
            for spot in merged:
                if spot == last:
                    continue  # it has several terms of the group
                if len(hits) >= limit or size >= max_bytes:
                    return hits, last
                last = spot
                if below is None or offset_of(spot) < below:
                    hits.append(self._hit(txn, spot))
                    size += len(hits[-1].raw)
        return hits, None

    def weigh(self, protocol: model.Protocol, groups: Sequence[Group]) -> int:
        """See `Postings.weigh`."""
        with self._read() as txn:
            return min((self._weight(txn, protocol, group) for group in groups), default=0)

    def received(self, protocol: model.Protocol, since: int, until: int, *, limit: int) -> list[bytes] | None:
        """See `Postings.received`."""
        prefix = _RECEIVED + bytes((protocol,))
        found: list[bytes] = []
        with self._read() as txn:
            cursor = txn.cursor(db=self._postings)
            if not cursor.set_range(prefix + records.pack_offset(max(0, since))):
                return found
            end = prefix + records.pack_offset(min(until, 2**63 - 1)) + b"\xff" * 9
            for key, rank in cursor:
                if key > end:
                    break
                if len(found) >= limit:
                    return None
                found.append(rank + key[-8:])
        return sorted(found, reverse=True)

    def fetch(self, spots: Sequence[bytes]) -> list[Hit]:
        """See `Postings.fetch`."""
        with self._read() as txn:
            there = [spot for spot in spots if txn.get(spot[RANK_BYTES:], db=self._kept) is not None]
            return [self._hit(txn, spot) for spot in there]

    def _weight(self, txn: _Txn, protocol: model.Protocol, group: Group) -> int:
        if group.weight is not None:
            return group.weight
        prefix = _COUNT + bytes((protocol,))
        return sum(int.from_bytes(txn.get(prefix + lane.term, b"", db=self._postings), "big") for lane in group.lanes)

    def _descend(self, txn: _Txn, protocol: model.Protocol, lane: Lane, before: bytes | None) -> Iterator[bytes]:
        """The spots of a lane, the greatest first."""
        prefix = _LIST + bytes((protocol,)) + lane.term
        # One byte longer than any key, so it stands behind all of that rank.
        start = prefix + lane.high + b"\xff" * 9
        if before is not None:
            start = min(start, prefix + before)
        least = prefix + lane.low
        cursor = txn.cursor(db=self._postings)
        if not (cursor.prev() if cursor.set_range(start) else cursor.last()):
            return
        at = len(prefix)
        for key in cursor.iterprev(values=False):
            if key < least:
                return
            yield key[at:]

    def _hit(self, txn: _Txn, spot: bytes) -> Hit:
        return _read_hit(txn, self._kept, spot)


class PostingWriter:
    """Files entries under their terms, within one write transaction."""

    def __init__(
        self,
        txn: _Txn,
        postings: lmdb._Database,
        kept: lmdb._Database,
        extracts: Mapping[model.Protocol, Extract],
    ) -> None:
        self._txn = txn
        self._postings = postings
        self._kept = kept
        self._extracts = extracts
        self._counts: Counter[bytes] = Counter()

    def add(self, entry: model.Entry, offset: int) -> None:
        """File an entry, unless something newer stands in its slot; take out what it replaces."""
        protocol = bytes((entry.protocol,))
        posting = self._extracts[entry.protocol](entry.raw)
        spot = spot_of(posting.rank, offset)
        if posting.slot and not self._take_slot(entry.protocol, posting, spot):
            return
        key = records.pack_offset(offset)
        kept = records.pack_offset(entry.received_at) + entry.raw
        self._txn.put(key, records.with_checksum(key, kept), db=self._kept)
        for term in posting.terms:
            self._txn.put(_LIST + protocol + term + spot, b"", db=self._postings)
            self._counts[protocol + term] += 1
        received = _RECEIVED + protocol + records.pack_offset(entry.received_at) + key
        self._txn.put(received, posting.rank, db=self._postings)

    def finish(self) -> None:
        """Bring the counts up to date; call once, before the transaction ends."""
        for term, more in self._counts.items():
            key = _COUNT + term
            count = int.from_bytes(self._txn.get(key, b"", db=self._postings), "big") + more
            if count > 0:
                self._txn.put(key, records.pack_offset(count), db=self._postings)
            else:
                self._txn.delete(key, db=self._postings)

    def _take_slot(self, protocol: model.Protocol, posting: Posting, spot: bytes) -> bool:
        """Put a spot into its slot; False when what stands there is newer."""
        prefix = _SLOT + bytes((protocol,)) + posting.slot
        for holder in {posting.holder, posting.owner}:
            current = self._txn.get(prefix + holder, db=self._postings)
            if current is not None and current > spot:
                return False
        if posting.holder == posting.owner:
            replaced = [(key, value) for key, value in self._in_slot(prefix) if value < spot]
        else:
            own = self._txn.get(prefix + posting.holder, db=self._postings)
            replaced = [] if own is None else [(prefix + posting.holder, own)]
        for key, value in replaced:
            self._remove(protocol, value)
            self._txn.delete(key, db=self._postings)
        self._txn.put(prefix + posting.holder, spot, db=self._postings)
        return True

    def _in_slot(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        cursor = self._txn.cursor(db=self._postings)
        if cursor.set_range(prefix):
            for key, value in cursor:
                if not key.startswith(prefix) or len(found) >= MAX_IN_SLOT:
                    break
                found.append((key, value))
        return found

    def _remove(self, protocol: model.Protocol, spot: bytes) -> None:
        """Take an entry out of every list."""
        hit = _read_hit(self._txn, self._kept, spot)
        packed = bytes((protocol,))
        for term in self._extracts[protocol](hit.raw).terms:
            self._txn.delete(_LIST + packed + term + spot, db=self._postings)
            self._counts[packed + term] -= 1
        key = spot[RANK_BYTES:]
        self._txn.delete(_RECEIVED + packed + records.pack_offset(hit.received_at) + key, db=self._postings)
        self._txn.delete(key, db=self._kept)


def _read_hit(txn: _Txn, kept: lmdb._Database, spot: bytes) -> Hit:
    key = spot[RANK_BYTES:]
    stored = txn.get(key, db=kept)
    if stored is None:
        raise errors.StoreCorrupt(f"the kept bytes of offset {offset_of(spot)} are missing")
    value = records.without_checksum(key, stored)
    return Hit(spot, offset_of(spot), int.from_bytes(value[:8], "big"), value[8:])
