"""The table in the document is one of these cases and these clients, and hides nothing."""

from __future__ import annotations

import pytest

from . import test_access, test_clients, test_crossed, test_encryption, test_http, test_partitions  # noqa: F401  they declare the cases
from .cases import CASES, VERSIONS
from .table import BEGIN, END, OURS, PAGE, Results


def rows(first: str) -> dict[str, list[str]]:
    """The rows of the table whose head begins with these words."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    inside, _, _ = rest.partition(END)
    block = next(block for block in inside.split("\n\n") if block.startswith(f"| {first} |"))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
    return {row[0]: row[1:] for row in cells}


def test_the_table_names_every_case_and_every_client() -> None:
    table = rows("case")
    assert table["case"] == list(VERSIONS)
    assert [title for title in table if title in CASES] == list(CASES)


def test_a_cell_is_ok_or_says_why_it_is_none() -> None:
    table = rows("case")
    for title, lacks in CASES.items():
        for version, cell in zip(VERSIONS, table[title], strict=True):
            assert cell.startswith("n/a (") if version in lacks else cell == "ok", (title, version)


def test_every_reason_is_written_out() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f". {reason}\n" in text for lacks in CASES.values() for reason in lacks.values())


def test_every_publisher_reaches_every_receiver() -> None:
    table = rows("published by")
    assert table["published by"] == [*VERSIONS, OURS]
    publishers = [version for version in [*VERSIONS, OURS] if version != "0.9.3"]
    for publisher in publishers:
        assert set(table[publisher]) <= {"verified", "delivered"}, publisher


def test_half_a_run_is_not_written() -> None:
    before = PAGE.read_bytes()
    results = Results()
    results.note(next(iter(CASES)), VERSIONS[0], "call", "passed")
    with pytest.raises(AssertionError, match="not run"):
        results.write()
    assert PAGE.read_bytes() == before


def test_a_case_is_ok_only_when_nothing_about_it_failed() -> None:
    results = Results()
    for version, phases in {
        "good": [("setup", "passed"), ("call", "passed"), ("teardown", "passed")],
        "broken": [("setup", "passed"), ("call", "failed"), ("teardown", "passed")],
        "left in a mess": [("setup", "passed"), ("call", "passed"), ("teardown", "failed")],
        "not begun": [("setup", "skipped"), ("teardown", "passed")],
    }.items():
        for when, outcome in phases:
            results.note("case", version, when, outcome)
    assert results.outcomes("case") == {
        "good": "ok",
        "broken": "failed",
        "left in a mess": "failed",
        "not begun": "skipped",
    }
