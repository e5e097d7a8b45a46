"""Which clients there are, and what is tried with each.

A case is a test marked with `case`. It runs once for each client, except for those that lack what it tries; why is
said beside it, and the table in `docs/protocols/streamr.md` repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

VERSIONS: Final = ("0.9.3", "0.12.2", "1.0.2", "2.2.7", "3.2.1", "4.1.6", "5.2.1", "5.4.1")
SPEAKS: Final = {
    "0.9.3": "0/28",
    "0.12.2": "0/28",
    "1.0.2": "0/29",
    "2.2.7": "1/31",
    "3.2.1": "1/31",
    "4.1.6": "2/32",
    "5.2.1": "2/32",
    "5.4.1": "2/32",
}
"""Control and message version each client negotiates."""

CALLBACKS: Final = VERSIONS[:3]
"""Control 0: no references, no chains, no encryption."""

CASES: Final[dict[str, Mapping[str, str]]] = {}
"""Every case by its title, in the order of the tests, with the clients that lack it and why."""


def lacking(reason: str, *versions: str) -> dict[str, str]:
    """These clients cannot do this."""
    return dict.fromkeys(versions, reason)


def case(title: str, lacks: Mapping[str, str] | None = None) -> Callable[[Any], Any]:
    """Mark a test as a case: it takes a `version` and runs for each client that can do it."""
    assert title not in CASES, title
    CASES[title] = dict(lacks or {})
    able = [version for version in VERSIONS if version not in CASES[title]]

    def mark(test: Any) -> Any:
        return pytest.mark.case(title)(pytest.mark.parametrize("version", able)(test))

    return mark


NO_PUBLISH: Final = lacking("0.9.3 cannot publish.", "0.9.3")


def numbered(count: int, start: int = 0) -> list[object]:
    """The contents most cases send."""
    return [{"n": number} for number in range(start, start + count)]
