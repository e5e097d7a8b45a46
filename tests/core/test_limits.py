"""Quotas under every kind of clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.core import limits
from catchment.core.limits import Bucket, NoteQuota

SECOND = 1_000_000


class TestBucket:
    def test_burst_then_rate(self) -> None:
        bucket = Bucket(rate=2, burst=3, now=0)
        assert [bucket.take(1, 0) for _ in range(4)] == [True, True, True, False]
        assert not bucket.take(1, SECOND // 2 - 1)
        assert bucket.take(1, SECOND // 2)
        assert not bucket.take(1, SECOND // 2)

    def test_never_holds_more_than_the_burst(self) -> None:
        bucket = Bucket(rate=1000, burst=2, now=0)
        assert [bucket.take(1, 100 * SECOND) for _ in range(3)] == [True, True, False]

    def test_more_than_the_burst_is_never_there(self) -> None:
        bucket = Bucket(rate=1000, burst=2, now=0)
        assert not bucket.take(3, 100 * SECOND)
        assert bucket.take(2, 100 * SECOND)

    def test_a_refused_attempt_costs_nothing(self) -> None:
        bucket = Bucket(rate=0, burst=2, now=0)
        assert not bucket.take(3, 0)
        assert bucket.take(2, 0)

    def test_a_clock_set_back_gives_nothing_and_goes_on(self) -> None:
        day = 86_400 * SECOND
        bucket = Bucket(rate=1, burst=1, now=day)
        assert bucket.take(1, day)
        assert not bucket.take(1, 0)
        assert not bucket.take(1, SECOND - 1)
        assert bucket.take(1, SECOND)  # not only a day later

    @given(st.lists(st.tuples(st.integers(-5 * SECOND, 5 * SECOND), st.integers(0, 4)), max_size=30))
    def test_never_gives_more_than_burst_and_rate(self, steps: list[tuple[int, int]]) -> None:
        bucket = Bucket(rate=2, burst=5, now=0)
        now, forward, taken = 0, 0, 0
        for step, amount in steps:
            now += step
            forward += max(0, step)
            taken += amount if bucket.take(amount, now) else 0
            assert taken <= 5 + 2 * forward / SECOND + 1e-6


class TestNoteQuota:
    def test_senders_are_apart(self) -> None:
        quota = NoteQuota(notes_per_second=0, notes_burst=1, bytes_per_second=0, bytes_burst=100)
        assert quota.allows("a", 1, 0)
        assert not quota.allows("a", 1, 0)
        assert quota.allows("b", 1, 0)

    def test_both_limits_hold(self) -> None:
        quota = NoteQuota(notes_per_second=0, notes_burst=3, bytes_per_second=0, bytes_burst=10)
        assert quota.allows("a", 10, 0)
        assert not quota.allows("a", 1, 0)
        assert quota.allows("a", 0, 0)
        assert not quota.allows("a", 0, 0)

    def test_refills(self) -> None:
        quota = NoteQuota(notes_per_second=1, notes_burst=1, bytes_per_second=10, bytes_burst=10)
        assert quota.allows("a", 10, 0)
        assert not quota.allows("a", 10, SECOND // 2)
        assert quota.allows("a", 10, 2 * SECOND)

    def test_the_longest_silent_sender_is_forgotten_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "_MAX_SENDERS", 2)
        quota = NoteQuota(notes_per_second=0, notes_burst=1, bytes_per_second=0, bytes_burst=100)
        for sender in ("a", "b"):
            assert quota.allows(sender, 1, 0)
        assert not quota.allows("a", 1, 0)  # heard of again, so b has been silent longest
        assert quota.allows("c", 1, 0)
        assert not quota.allows("a", 1, 0)
        assert quota.allows("b", 1, 0)
        assert len(quota._senders) == 2
