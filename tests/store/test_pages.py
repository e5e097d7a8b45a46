"""Pages bounded in bytes, and where the last rows begin: what a resend is made of."""

from __future__ import annotations

import pytest

from catchment import model
from catchment.store.base import Store

from .conftest import _make_entry as entry

TOPIC = model.Topic("s", 0)


def _filled(store: Store, sizes: list[int]) -> None:
    store.append([entry(topic="s", timestamp=1000 + at, raw=bytes(size)) for at, size in enumerate(sizes)])


def test_a_page_ends_with_the_row_that_reaches_the_bytes(store: Store) -> None:
    _filled(store, [100, 100, 100, 5000, 100])
    after: model.OrderKey | None = None
    pages = []
    while True:
        page, after = store.walk(model.Range(TOPIC), after=after, limit=10, max_bytes=200)
        pages.append([place.key.timestamp - 1000 for place in page])
        if after is None:
            break
    assert pages == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 6, 100])
def test_after_the_key_before_the_last_come_exactly_the_last(store: Store, count: int) -> None:
    _filled(store, [10] * 5)
    after = store.before_last(TOPIC, count)
    page, _ = store.walk(model.Range(TOPIC), after=after, limit=10)
    assert [place.offset for place in page] == [0, 1, 2, 3, 4][max(0, 5 - count) :]
    assert store.before_last(model.Topic("nowhere", 0), count) is None
