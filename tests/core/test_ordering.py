"""Ordered delivery: one rule a test, then any arrival order, repeats and losses against a naive model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.core.ordering import AskGap, ChainKey, Deliver, GapOpen, Ordering, Patience, Placed, Why
from catchment.model import Ref

A = ChainKey("0xa", "c")
B = ChainKey("0xb", "c")
PATIENCE = Patience(gap_delay=100, retry_delay=50, max_requests=3, max_queued=10)


def placed(number: int, key: ChainKey = A, *, prev: int | None = -1) -> Placed[int]:
    """Message `number` of a chain whose messages follow each other; 0 names no predecessor."""
    before = number - 1 if prev == -1 else prev
    return Placed(key, Ref(number, 0), None if before is None or before < 0 else Ref(before, 0), number)


def delivered(events: list[Any]) -> list[int]:
    return [event.placed.item for event in events if isinstance(event, Deliver)]


def add(ordering: Ordering[int], *numbers: int, key: ChainKey = A, now: int = 0) -> list[Any]:
    return [event for number in numbers for event in ordering.add(placed(number, key), now)]


def test_what_follows_is_delivered_at_once() -> None:
    ordering: Ordering[int] = Ordering(PATIENCE)
    assert delivered(add(ordering, 5, 6, 7)) == [5, 6, 7]
    assert ordering.next_wake is None
    assert ordering.positions() == {A: Ref(7, 0)}


def test_the_first_message_of_a_chain_is_taken_as_it_comes() -> None:
    ordering: Ordering[int] = Ordering(PATIENCE)
    assert delivered(add(ordering, 5)) == [5]
    assert delivered(add(ordering, 4, 3)) == []
    assert ordering.dropped == 2


def test_repeats_are_dropped_delivered_or_waiting() -> None:
    ordering: Ordering[int] = Ordering(PATIENCE)
    assert delivered(add(ordering, 0, 0, 2, 2, 0)) == [0]
    assert ordering.dropped == 3
    assert delivered(add(ordering, 1, 1, 2)) == [1, 2]
    assert ordering.dropped == 5


def test_a_message_that_names_no_predecessor_is_delivered_when_it_is_newer() -> None:
    ordering: Ordering[int] = Ordering(PATIENCE)
    add(ordering, 5)
    assert delivered(ordering.add(placed(9, prev=None), 0)) == [9]
    assert delivered(ordering.add(placed(8, prev=None), 0)) == []


def test_a_message_whose_predecessor_is_before_the_last_leaves_no_gap() -> None:
    ordering: Ordering[int] = Ordering(PATIENCE)
    add(ordering, 5, 6)
    assert delivered(ordering.add(placed(9, prev=2), 0)) == [9]


def test_what_came_early_waits_and_goes_in_order() -> None:
    ordering: Ordering[int] = Ordering(PATIENCE)
    assert delivered(add(ordering, 0, 3, 2)) == [0]
    assert ordering.waiting == 2
    assert delivered(add(ordering, 1)) == [1, 2, 3]
    assert ordering.waiting == 0
    assert ordering.next_wake is None


def test_sequence_numbers_order_within_a_millisecond() -> None:
    ordering: Ordering[int] = Ordering(PATIENCE)
    refs = [Ref(5, 0), Ref(5, 1), Ref(6, 0)]
    made = [Placed(A, ref, prev, number) for number, (ref, prev) in enumerate(zip(refs, [None, *refs], strict=False))]
    assert delivered([event for each in (made[0], made[2], made[1]) for event in ordering.add(each, 0)]) == [0, 1, 2]


def test_a_gap_is_asked_for_after_a_delay_then_again_then_left_open() -> None:
    ordering: Ordering[int] = Ordering(PATIENCE)
    add(ordering, 0, now=1000)
    add(ordering, 4, 5, now=1000)
    assert ordering.next_wake == 1100
    assert ordering.wake(1099) == []
    assert ordering.wake(1100) == [AskGap(A, Ref(0, 1), Ref(3, 0), 1)]
    assert ordering.next_wake == 1150
    assert ordering.wake(1150) == [AskGap(A, Ref(0, 1), Ref(3, 0), 2)]
    assert ordering.wake(1200) == [AskGap(A, Ref(0, 1), Ref(3, 0), 3)]
    assert ordering.wake(1249) == []
    opened, *rest = ordering.wake(1250)
    assert opened == GapOpen(A, Ref(0, 1), Ref(3, 0), Why.NOT_FILLED)
    assert delivered(rest) == [4, 5]
    assert ordering.next_wake is None
    # What comes now belongs behind what was delivered.
    assert delivered(add(ordering, 2)) == []
    assert delivered(add(ordering, 6)) == [6]


def test_a_gap_filled_in_part_is_asked_for_anew() -> None:
    ordering: Ordering[int] = Ordering(PATIENCE)
    add(ordering, 0, 4)
    ordering.wake(100)
    ordering.wake(150)
    assert delivered(add(ordering, 1, now=160)) == [1]
    assert ordering.next_wake == 260
    assert ordering.wake(260) == [AskGap(A, Ref(1, 1), Ref(3, 0), 1)]


def test_a_gap_that_shrinks_at_its_end_keeps_its_timer() -> None:
    ordering: Ordering[int] = Ordering(PATIENCE)
    add(ordering, 0, 4, now=0)
    add(ordering, 3, now=90)
    assert ordering.wake(100) == [AskGap(A, Ref(0, 1), Ref(2, 0), 1)]


def test_several_gaps_are_worked_off_one_after_the_other() -> None:
    ordering: Ordering[int] = Ordering(PATIENCE)
    add(ordering, 0, 2, 4)
    events = [event for now in range(0, 2000, 10) for event in ordering.wake(now)]
    assert [event.start for event in events if isinstance(event, GapOpen)] == [Ref(0, 1), Ref(2, 1)]
    assert delivered(events) == [2, 4]
    assert len([event for event in events if isinstance(event, AskGap)]) == 6


def test_chains_do_not_wait_for_each_other() -> None:
    ordering: Ordering[int] = Ordering(PATIENCE)
    add(ordering, 0, 5)
    assert delivered(add(ordering, 0, 1, 2, key=B)) == [0, 1, 2]
    assert ordering.wake(100) == [AskGap(A, Ref(0, 1), Ref(4, 0), 1)]
    add(ordering, 4, key=B, now=110)
    assert [event.key for event in ordering.wake(10_000)] == [A, B]


def test_when_too_many_wait_the_gap_is_left_open() -> None:
    ordering: Ordering[int] = Ordering(PATIENCE)
    assert delivered(add(ordering, 0, *range(2, 12))) == [0]
    assert ordering.waiting == PATIENCE.max_queued
    opened, *rest = add(ordering, 12)
    assert opened == GapOpen(A, Ref(0, 1), Ref(1, 0), Why.TOO_MANY_WAITING)
    assert delivered(rest) == list(range(2, 13))
    assert ordering.waiting == 0


def test_the_chain_that_was_quiet_longest_is_forgotten() -> None:
    ordering: Ordering[int] = Ordering(Patience(max_chains=2))
    keys = [ChainKey("0xa", str(number)) for number in range(3)]
    add(ordering, 5, key=keys[0])
    add(ordering, 5, key=keys[1])
    add(ordering, 6, key=keys[0])
    add(ordering, 5, key=keys[2])
    assert set(ordering.positions()) == {keys[0], keys[2]}


def test_after_a_restart_the_next_newer_message_is_taken_as_it_comes() -> None:
    ordering: Ordering[int] = Ordering(PATIENCE)
    add(ordering, 0, 1)
    ordering.restart()
    assert delivered(add(ordering, 1, 7, 8, 10)) == [7, 8]
    assert ordering.waiting == 1


def test_a_chain_with_a_gap_is_not_forgotten() -> None:
    ordering: Ordering[int] = Ordering(Patience(max_chains=1))
    add(ordering, 0, 5)
    add(ordering, 0, key=B)
    assert set(ordering.positions()) == {A, B}


Arrival = tuple[int, int, int]
ARRIVALS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(0, 120)), max_size=40)
"""Chain, number, and how much later than the one before."""


class Naive:
    """The same rules, found out anew from everything that arrived, whenever something happens."""

    def __init__(self) -> None:
        self.arrived: set[int] = set()
        self.last: int | None = None
        self.out: list[int | tuple[str, int, int]] = []
        self.gap: int | None = None
        self.since = 0
        self.asked = 0

    def settle(self, now: int) -> None:
        while True:
            waiting = sorted(number for number in self.arrived if self.last is None or number > self.last)
            if not waiting:
                self.gap = None
                return
            if self.last is None or waiting[0] - 1 <= self.last:
                self.last = waiting[0]
                self.out.append(waiting[0])
                continue
            if self.gap != self.last:
                self.gap, self.since, self.asked = self.last, now + PATIENCE.gap_delay, 0
            if len(waiting) <= PATIENCE.max_queued:
                return
            self.open(waiting)

    def open(self, waiting: list[int]) -> None:
        assert self.last is not None
        self.out.append(("open", self.last, waiting[0] - 1))
        self.last = waiting[0] - 1

    def arrive(self, number: int, now: int) -> None:
        if self.last is None or number > self.last:
            self.arrived.add(number)
        self.settle(now)

    def tick(self, now: int) -> None:
        if self.gap is None or now < self.since:
            return
        assert self.last is not None
        waiting = sorted(number for number in self.arrived if number > self.last)
        if self.asked < PATIENCE.max_requests:
            self.asked += 1
            self.since = now + PATIENCE.retry_delay
            self.out.append(("ask", self.last, waiting[0] - 1))
        else:
            self.open(waiting)
            self.settle(now)


@given(ARRIVALS)
def test_any_arrival_order_repeats_and_losses(arrivals: list[Arrival]) -> None:
    ordering: Ordering[int] = Ordering(PATIENCE)
    naive = {A: Naive(), B: Naive()}
    out: dict[ChainKey, list[int | tuple[str, int, int]]] = {A: [], B: []}
    arrived: dict[ChainKey, list[int]] = {A: [], B: []}

    def take(events: list[Any]) -> None:
        for event in events:
            if isinstance(event, Deliver):
                out[event.placed.key].append(event.placed.item)
            else:
                name = "ask" if isinstance(event, AskGap) else "open"
                assert event.start.sequence == 1
                out[event.key].append((name, event.start.timestamp, event.end.timestamp))

    def pass_time(start: int, end: int) -> None:
        for moment in range(start + 1, end + 1):
            take(ordering.wake(moment))
            for model in naive.values():
                model.tick(moment)

    now = 0
    for which, number, later in arrivals:
        pass_time(now, now + later)
        now += later
        key = (A, B)[which]
        arrived[key].append(number)
        take(ordering.add(placed(number, key), now))
        naive[key].arrive(number, now)
    pass_time(now, now + 4000)
    for key in (A, B):
        assert out[key] == naive[key].out
        numbers = [each for each in out[key] if isinstance(each, int)]
        assert numbers == sorted(set(numbers))
        assert set(numbers) <= set(arrived[key])
        assert numbers[-1:] == ([max(arrived[key])] if arrived[key] else [])
        # Every number between the first and the last was delivered or is in a gap that was said to be open.
        opened = {
            n
            for each in out[key]
            if isinstance(each, tuple) and each[0] == "open"
            for n in range(each[1] + 1, each[2] + 1)
        }
        if numbers:
            assert set(range(numbers[0], numbers[-1] + 1)) == set(numbers) | opened
            assert not set(numbers) & opened
    assert ordering.next_wake is None
    assert ordering.waiting == 0


@pytest.mark.parametrize("size", [1, 5, 9])
@given(data=st.data())
def test_nothing_is_lost_when_everything_arrives_in_time(size: int, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(1, size + 1)))
    ordering: Ordering[int] = Ordering(PATIENCE)
    assert delivered(add(ordering, 0, *order)) == list(range(size + 1))
