"""The page about REST names every route, method and error there is, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from catchment.web.streamr_rest import ROUTES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "protocols" / "streamr-rest.md").read_text(encoding="utf-8")


def test_every_route_is_in_the_table() -> None:
    listed = dict(re.findall(r"^\| `(/[^`]+)` \| ([A-Z, ]+) \|", PAGE, re.MULTILINE))
    assert listed == {route.path: ", ".join(sorted(route.pages, key=_usual)) for route in ROUTES}


def _usual(method: str) -> int:
    return ("GET", "POST", "PUT", "DELETE").index(method)


def test_every_error_of_the_pages_is_in_the_table() -> None:
    section = PAGE.split("## Errors")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\d{3}) \| ([A-Z_, ]+) \|", section, re.MULTILINE)
    listed = {(status, code) for status, codes in rows for code in codes.split(", ")}
    raised: set[tuple[str, str]] = set()
    for path in (ROOT / "src" / "catchment" / "web").glob("*.py"):
        raised |= set(re.findall(r'RestFault\(\s*(\d{3}),\s*"([A-Z_]+)"', path.read_text(encoding="utf-8")))
    raised -= {("500", "INTERNAL_ERROR")}  # a bug is no part of the protocol
    assert raised <= listed
    assert {code for _, code in listed - raised} == {"INVALID_REQUEST", "REQUEST_FAILED", "FUTURE_TIMESTAMP"}
