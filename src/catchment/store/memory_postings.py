"""`Postings` in memory: small and plain, the second opinion on the durable ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

from catchment import model
from catchment.store.postings import Extract, Group, Hit, Posting, offset_of, spot_of

_Slot = tuple[model.Protocol, bytes]


class MemoryPostings:
    """Every entry in one dictionary, looked through for each question, under the store's lock."""

    def __init__(self, extracts: Mapping[model.Protocol, Extract], lock: threading.RLock) -> None:
        self.extracts = extracts
        self._lock = lock
        self._found: dict[bytes, tuple[model.Protocol, Posting, Hit]] = {}
        self._slots: dict[_Slot, dict[bytes, bytes]] = {}

    def keeps(self, protocol: model.Protocol) -> bool:
        """See `Postings.keeps`."""
        return protocol in self.extracts

    def add(self, entry: model.Entry, offset: int) -> None:
        """File an entry, unless something newer stands in its slot; take out what it replaces."""
        posting = self.extracts[entry.protocol](entry.raw)
        spot = spot_of(posting.rank, offset)
        if posting.slot:
            holders = self._slots.setdefault((entry.protocol, posting.slot), {})
            if max(holders.get(posting.holder, b""), holders.get(posting.owner, b"")) > spot:
                return
            everyone = posting.holder == posting.owner
            for holder, other in list(holders.items()):
                if other < spot and (everyone or holder == posting.holder):
                    del self._found[holders.pop(holder)]
            holders[posting.holder] = spot
        self._found[spot] = (entry.protocol, posting, Hit(spot, offset, entry.received_at, entry.raw))

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
        """See `Postings.search`."""
        with self._lock:
            group = min(groups, key=lambda group: self._weight(protocol, group), default=Group(()))
            found = {spot: self._found[spot][2] for spot in self._within(protocol, group)}
        hits: list[Hit] = []
        size = 0
        last: bytes | None = None
        for spot in sorted(found, reverse=True):
            if before is not None and spot >= before:
                continue
            if len(hits) >= limit or size >= max_bytes:
                return hits, last
            last = spot
            if below is None or offset_of(spot) < below:
                hits.append(found[spot])
                size += len(hits[-1].raw)
        return hits, None

    def weigh(self, protocol: model.Protocol, groups: Sequence[Group]) -> int:
        """See `Postings.weigh`."""
        with self._lock:
            return min((self._weight(protocol, group) for group in groups), default=0)

    def received(self, protocol: model.Protocol, since: int, until: int, *, limit: int) -> list[bytes] | None:
        """See `Postings.received`."""
        with self._lock:
            spots = [spot for spot, hit in self._of(protocol) if since <= hit.received_at <= until]
        return None if len(spots) > limit else sorted(spots, reverse=True)

    def fetch(self, spots: Sequence[bytes]) -> list[Hit]:
        """See `Postings.fetch`."""
        with self._lock:
            return [self._found[spot][2] for spot in spots if spot in self._found]

    def _of(self, protocol: model.Protocol) -> Iterator[tuple[bytes, Hit]]:
        return ((spot, hit) for spot, (owner, _, hit) in self._found.items() if owner is protocol)

    def _within(self, protocol: model.Protocol, group: Group) -> Iterator[bytes]:
        for spot, (owner, posting, _) in self._found.items():
            if owner is protocol and any(
                lane.term in posting.terms and lane.low <= posting.rank <= lane.high for lane in group.lanes
            ):
                yield spot

    def _weight(self, protocol: model.Protocol, group: Group) -> int:
        if group.weight is not None:
            return group.weight
        terms = [lane.term for lane in group.lanes]
        postings = [posting for owner, posting, _ in self._found.values() if owner is protocol]
        return sum(term in posting.terms for term in terms for posting in postings)
