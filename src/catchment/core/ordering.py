"""Message chains put in order for a subscriber: duplicates dropped, gaps asked for, given up in the end.

facts/streamr.md, section 5: a chain is what one publisher sends under one chain id, each message naming the one before
it. What comes too early waits in a bounded queue. After a delay the hole is asked for, again and again up to a
maximum; then a `GapOpen` says that it stays open, and the chain goes on behind it. Chains do not wait for each other.

Nothing here knows a clock: times are arguments, in milliseconds on any clock that does not go back, so the same code
runs under a real one and under a simulated one. Whoever uses it calls `wake` at `next_wake`.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from catchment.model import Ref

T = TypeVar("T")

MAX_CHAINS: Final = 65_536


class ChainKey(NamedTuple):
    """Whose chain it is."""

    publisher: str
    chain: str


class Patience(msgspec.Struct, frozen=True):
    """How long to wait for what is missing; the defaults are those of the published clients (facts, section 5).

    Attributes:
        gap_delay: milliseconds a message may come late before its gap is asked for.
        retry_delay: milliseconds between two requests for the same gap.
        max_requests: requests after which a gap is left open.
        max_queued: messages of one chain that may wait; when there are more, its first gap is left open at once.
        max_chains: chains to remember; of those without a gap the one that was quiet longest is forgotten.
    """

    gap_delay: int = 5000
    retry_delay: int = 5000
    max_requests: int = 5
    max_queued: int = 10_000
    max_chains: int = MAX_CHAINS


class Placed(NamedTuple, Generic[T]):
    """A message with its place in its chain."""

    key: ChainKey
    ref: Ref
    prev: Ref | None
    item: T


class Why(Enum):
    """Why a gap is left open."""

    NOT_FILLED = "asked for and not filled"
    TOO_MANY_WAITING = "too many messages wait behind it"


class Deliver(NamedTuple, Generic[T]):
    """The next message of its chain."""

    placed: Placed[T]


class AskGap(NamedTuple):
    """Ask for the messages of a chain from `start` to `end`, both included."""

    key: ChainKey
    start: Ref
    end: Ref
    attempt: int


class GapOpen(NamedTuple):
    """Messages of a chain from `start` to `end`, of which the last is known to exist, will not be delivered."""

    key: ChainKey
    start: Ref
    end: Ref
    why: Why


Event = Deliver[T] | AskGap | GapOpen


class _Chain(Generic[T]):
    """One chain: what was delivered last, and what waits."""

    __slots__ = ("due", "heap", "last", "loose", "queued", "requests", "start")

    def __init__(self) -> None:
        self.last: Ref | None = None
        self.loose = True
        """Whether the next one is taken as it comes."""
        self.heap: list[tuple[Ref, Placed[T]]] = []
        self.queued: set[Ref] = set()
        self.start: Ref | None = None
        """Where the gap begins that is timed, None when nothing is missing."""
        self.due = 0
        self.requests = 0

    def knows(self, ref: Ref) -> bool:
        return (self.last is not None and ref <= self.last) or ref in self.queued

    def push(self, placed: Placed[T]) -> None:
        heapq.heappush(self.heap, (placed.ref, placed))
        self.queued.add(placed.ref)

    def ready(self) -> Iterator[Placed[T]]:
        """What may go now: the first of all, what follows the last, and what names no predecessor."""
        while self.heap:
            ref, placed = self.heap[0]
            if not (self.loose or self.last is None or placed.prev is None or placed.prev <= self.last):
                return
            self.loose = False
            heapq.heappop(self.heap)
            self.queued.discard(ref)
            self.last = ref
            yield placed

    def gap(self) -> tuple[Ref, Ref]:
        """What is missing before the first that waits."""
        prev = self.heap[0][1].prev
        assert prev is not None
        assert self.last is not None
        return Ref(self.last.timestamp, self.last.sequence + 1), prev


class Ordering(Generic[T]):
    """The chains of one stream-partition."""

    def __init__(self, patience: Patience | None = None) -> None:
        """Begin with nothing known: the first message of each chain is taken as it comes."""
        self._patience = Patience() if patience is None else patience
        self._chains: dict[ChainKey, _Chain[T]] = {}
        self._timers: list[tuple[int, int, ChainKey]] = []
        self._numbers = itertools.count()
        self.dropped = 0
        """Messages that were not delivered because they, or later ones of their chain, had been already."""

    @property
    def next_wake(self) -> int | None:
        """When `wake` has something to do, None while nothing is missing."""
        while self._timers:
            due, _, key = self._timers[0]
            chain = self._chains.get(key)
            if chain is not None and chain.start is not None and chain.due == due:
                return due
            heapq.heappop(self._timers)  # the gap was filled, or its timer set anew
        return None

    @property
    def waiting(self) -> int:
        """Messages that wait for what is missing before them."""
        return sum(len(chain.heap) for chain in self._chains.values())

    def positions(self) -> dict[ChainKey, Ref]:
        """What was delivered last of each chain: where to go on after an interruption."""
        return {key: chain.last for key, chain in self._chains.items() if chain.last is not None}

    def restart(self) -> None:
        """Take the next message of every chain as it comes, if it is newer: what lies between is not wanted."""
        for chain in self._chains.values():
            if not chain.heap:
                chain.loose = True

    def add(self, placed: Placed[T], now: int) -> list[Event[T]]:
        """Take a message; what it sets free comes back in order."""
        chain = self._chains.pop(placed.key, None)
        if chain is None:
            chain = _Chain()
            self._forget()
        self._chains[placed.key] = chain  # at the end: the quiet ones stand in front
        if chain.knows(placed.ref):
            self.dropped += 1
            return []
        chain.push(placed)
        events: list[Event[T]] = [Deliver(each) for each in chain.ready()]
        while len(chain.heap) > self._patience.max_queued:
            events += self._give_up(placed.key, chain, Why.TOO_MANY_WAITING)
        self._time(placed.key, chain, now)
        return events

    def wake(self, now: int) -> list[Event[T]]:
        """Do what is due: ask for gaps, and leave open those asked for often enough."""
        events: list[Event[T]] = []
        while (due := self.next_wake) is not None and due <= now:
            _, _, key = heapq.heappop(self._timers)
            chain = self._chains[key]
            if chain.requests < self._patience.max_requests:
                chain.requests += 1
                events.append(AskGap(key, *chain.gap(), chain.requests))
                self._set_timer(key, chain, now + self._patience.retry_delay)
            else:
                events += self._give_up(key, chain, Why.NOT_FILLED)
                self._time(key, chain, now)
        return events

    def _give_up(self, key: ChainKey, chain: _Chain[T], why: Why) -> list[Event[T]]:
        start, end = chain.gap()
        chain.last = end
        return [GapOpen(key, start, end, why), *(Deliver(each) for each in chain.ready())]

    def _time(self, key: ChainKey, chain: _Chain[T], now: int) -> None:
        """Time the gap at the head of the queue; one that has only become smaller at its end keeps its timer."""
        if not chain.heap:
            chain.start = None
            return
        start, _ = chain.gap()
        if start != chain.start:
            chain.start = start
            chain.requests = 0
            self._set_timer(key, chain, now + self._patience.gap_delay)

    def _set_timer(self, key: ChainKey, chain: _Chain[T], due: int) -> None:
        chain.due = due
        heapq.heappush(self._timers, (due, next(self._numbers), key))

    def _forget(self) -> None:
        """Make room for one more chain. What waits is never forgotten: its queue is bounded, and its time is."""
        if len(self._chains) >= self._patience.max_chains:
            for key, chain in self._chains.items():
                if not chain.heap:
                    del self._chains[key]
                    return
