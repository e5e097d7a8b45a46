"""The tracker's pages (facts/streamr.md, section 8): topology, location and counts, as JSON."""

from __future__ import annotations

from typing import Final, Protocol
from urllib.parse import unquote

from catchment.wire.streamr.tracker import Location

PREFIXES: Final = ("/topology", "/location", "/metrics/")


class TrackerView(Protocol):
    """What the pages show of a tracker."""

    def topology(self, stream: str | None = None, partition: int | None = None) -> dict[str, dict[str, list[str]]]:
        """Each stream-partition's nodes with their neighbours."""

    def locations(self) -> dict[str, Location]:
        """Where the nodes say they are."""

    def counts(self) -> dict[str, int]:
        """How much there is to track."""


def answer(tracker: TrackerView, path: str) -> object | None:
    """The page at a path as it was sent, still percent-encoded; None when there is none."""
    page, *rest = path.strip("/").split("/")
    parts = [unquote(part) for part in rest]
    if page == "metrics" and not parts:
        return tracker.counts()
    if page == "topology":
        return _topology(tracker, parts)
    if page == "location":
        return _location(tracker, parts)
    return None


def _topology(tracker: TrackerView, parts: list[str]) -> object | None:
    if not parts:
        return tracker.topology()
    # A stream id may hold slashes that older tools do not encode: what is no partition belongs to it.
    last = parts[-1]
    if len(parts) > 1 and last.isascii() and last.isdecimal() and len(last) < 10:
        return tracker.topology("/".join(parts[:-1]), int(last))
    return tracker.topology("/".join(parts))


def _location(tracker: TrackerView, parts: list[str]) -> object | None:
    found = tracker.locations()
    if not parts:
        return found
    return found.get("/".join(parts), {}) if len(parts) == 1 else None
