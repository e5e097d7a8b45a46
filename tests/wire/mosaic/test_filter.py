"""Filters: vectors, each element alone and with others, and round trips."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.crypto import mosaic
from catchment.errors import PeerFault
from catchment.wire.mosaic import filter as filters
from catchment.wire.mosaic import record, tags
from catchment.wire.mosaic.filter import Filter

from .conftest import Case, own

ALICE = mosaic.Signer(b"\x01" * 32)
BOB = mosaic.Signer(b"\x02" * 32)
CASES = own("mosaic_filters.json")
TIME = 1_790_000_000_000_000_000
URL = tags.make(tags.TagType.URL, bytes(4) + b"https://example.org")
NOTIFY = tags.notify(BOB.public)


def verdict_of(data: bytes) -> str:
    try:
        found = filters.decode(data)
    except PeerFault as fault:
        return fault.code
    return "narrow" if found.is_narrow else "open"


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_verdicts(case: Case) -> None:
    assert verdict_of(bytes.fromhex(case["filter"])) == case["result"]


def test_shared_filters(shared_filter: Case) -> None:
    data = bytes.fromhex(shared_filter["hex"])
    found = filters.decode(data)
    assert found.is_narrow is shared_filter["narrow"]
    assert filters.decode(filters.encode(found)) == found
    assert len(filters.encode(found)) == len(data)
    if shared_filter["name"] in ("exclude_ids", "received", "signing_keys", "since_until", "timestamps"):
        assert filters.encode(found) == data  # the others have their values in another order


def test_shared_filters_cut_or_with_bytes_behind_are_invalid(shared_filter: Case) -> None:
    data = bytes.fromhex(shared_filter["hex"])
    for size in range(len(data)):
        assert verdict_of(data[:size]) == "INVALID"
    for more in range(1, 10):
        assert verdict_of(data + bytes(more)) == "INVALID"


def test_kinds_are_big_endian(shared_filter: Case) -> None:
    if shared_filter["name"] == "author_kinds":
        found = filters.decode(bytes.fromhex(shared_filter["hex"]))
        assert found.kinds == {0x000000010001001C, 0x000000010002001C}


def make(**changes: Any) -> record.Record:
    values: dict[str, Any] = {"kind": record.EXAMPLE, "nonce": b"\x81" + bytes(7), "timestamp": TIME, "payload": b"p"}
    return record.decode(record.make(changes.pop("signer", ALICE), **(values | changes)))


TAGGED = make(signer=BOB, author=ALICE.public, tag_list=[URL, NOTIFY])
OTHER = b"\x55" * 32
OTHER_TAG = tags.make(77, b"other")


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (Filter(), True),
        (Filter(authors=frozenset({ALICE.public, OTHER})), True),
        (Filter(authors=frozenset({BOB.public})), False),
        (Filter(authors=frozenset()), False),
        (Filter(signing_keys=frozenset({BOB.public})), True),
        (Filter(signing_keys=frozenset({ALICE.public})), False),
        (Filter(kinds=frozenset({record.EXAMPLE, 0})), True),
        (Filter(kinds=frozenset({record.MICROBLOG})), False),
        (Filter(timestamps=frozenset({TIME})), True),
        (Filter(timestamps=frozenset({TIME + 1})), False),
        (Filter(included_tags=(frozenset({URL, OTHER_TAG}),)), True),
        (Filter(included_tags=(frozenset({URL}), frozenset({NOTIFY}))), True),
        (Filter(included_tags=(frozenset({URL}), frozenset({OTHER_TAG}))), False),
        (Filter(included_tags=(frozenset(),)), False),
        (Filter(included_tags=(frozenset({URL[:-1]}),)), False),
        (Filter(since=TIME), True),
        (Filter(since=TIME + 1), False),
        (Filter(until=TIME), True),
        (Filter(until=TIME - 1), False),
        (Filter(received_since=500), True),
        (Filter(received_since=501), False),
        (Filter(received_until=500), True),
        (Filter(received_until=499), False),
        (Filter(excluded_ids=frozenset({TAGGED.id_prefix})), False),
        (Filter(excluded_ids=frozenset({OTHER})), True),
        (Filter(excluded_tags=frozenset({NOTIFY})), False),
        (Filter(excluded_tags=frozenset({OTHER_TAG})), True),
        (Filter(authors=frozenset({ALICE.public}), since=TIME + 1), False),
    ],
)
def test_elements(question: Filter, expected: bool) -> None:
    assert question.matches(TAGGED, 500) is expected
    assert filters.decode(filters.encode(question)).matches(TAGGED, 500) is expected


def test_only_the_first_of_an_element_that_counts_once_counts() -> None:
    first = filters.encode(Filter(authors=frozenset({BOB.public})))
    second = filters.encode(Filter(authors=frozenset({ALICE.public})))
    both = (len(first) + len(second) - 8).to_bytes(2, "little") + bytes(6) + first[8:] + second[8:]
    assert filters.decode(both).authors == {BOB.public}


keys = st.binary(min_size=32, max_size=32)
times = st.integers(0, 2**63 - 1)
some_tags = st.frozensets(st.builds(tags.make, st.integers(0, 65535), st.binary(max_size=30)), max_size=5)
questions = st.builds(
    Filter,
    authors=st.none() | st.frozensets(keys, max_size=5),
    signing_keys=st.none() | st.frozensets(keys, max_size=5),
    kinds=st.none() | st.frozensets(st.integers(0, 2**64 - 1), max_size=5),
    timestamps=st.none() | st.frozensets(times, max_size=5),
    included_tags=st.lists(some_tags, max_size=3).map(tuple),
    since=st.none() | times,
    until=st.none() | times,
    received_since=st.none() | times,
    received_until=st.none() | times,
    excluded_ids=st.frozensets(keys, max_size=5),
    excluded_tags=some_tags,
)


@given(questions)
def test_what_is_written_is_read(question: Filter) -> None:
    assert filters.decode(filters.encode(question)) == question


@given(st.binary(max_size=200))
def test_nothing_but_a_peers_fault_comes_of_any_bytes(data: bytes) -> None:
    verdict_of(data)
    verdict_of((8 + len(data)).to_bytes(2, "little") + bytes(6) + data)


def test_what_is_too_large_is_not_written() -> None:
    many = frozenset(number.to_bytes(32, "big") for number in range(64))
    with pytest.raises(ValueError, match="at most"):
        filters.encode(Filter(authors=many))
    full = frozenset(tags.make(1, bytes(200) + bytes((number,))) for number in range(9))
    with pytest.raises(ValueError, match="at most"):
        filters.encode(Filter(included_tags=(full,) * 40))
