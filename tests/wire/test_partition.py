"""Which partition a key belongs to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.wire.streamr.partition import partition_of


def test_shared(shared_partitioner: dict[str, Any]) -> None:
    found = [partition_of(f"key-{number}", shared_partitioner["partitions"]) for number in range(100)]
    assert found == shared_partitioner["expected"]


@pytest.mark.parametrize(
    ("key", "digest"), [("", 0xD98C1DD4), ("a", 0xB975C10C), ("device", 0x499C3F91), ("\u00e4", 0x1CB71984)]
)
@pytest.mark.parametrize("partitions", [2, 7, 100])
def test_by_the_first_four_bytes_of_md5(key: str, digest: int, partitions: int) -> None:
    """The numbers are the digests' first eight hex digits, read backwards by bytes: any md5sum shows them."""
    signed = digest - 2**32 if digest >= 2**31 else digest
    assert partition_of(key, partitions) == abs(signed) % partitions


@pytest.mark.parametrize(("key", "partition"), [(0, 0), (7, 1), (-7, 1), (6, 0)])
def test_numbers_are_taken_as_they_are(key: int, partition: int) -> None:
    assert partition_of(key, 3) == partition


@given(st.text() | st.integers() | st.floats(allow_nan=False), st.integers(1, 100))
def test_is_one_of_them(key: str | float, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions


@given(st.text() | st.integers())
def test_one_partition_is_the_first(key: str | int) -> None:
    assert partition_of(key, 1) == 0
