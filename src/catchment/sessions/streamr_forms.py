"""How a message of the log is shown to Streamr clients, once for each pair of versions in use.

What was signed is kept as it came; a client of another message version is shown a conversion, made on the way out and
once for all who share the pair (facts/streamr.md, section 3; DESIGN.md, "Rules that follow").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from catchment import model
from catchment.core.subscriptions import Form
from catchment.store.base import Place
from catchment.wire.streamr import control, convert, message
from catchment.wire.streamr.kinds import ErrorCode

MAX_TOPICS: Final = 65_536
"""Stream-partitions whose last offset is remembered; beyond it the one longest not shown is forgotten."""

THROWS_ON_ETH: Final = 29
"""Clients of this version know ETH_LEGACY only and throw on anything newer: they are sent such messages unsigned."""


class Shown(NamedTuple):
    """The message of a stream-partition that clients of message 28 or 29 were shown last."""

    offset: int
    timestamp: int


Lookup = Callable[[model.Topic, int], Sequence[Place]]
"""What the log holds in a topic at a time."""


class Offsets:
    """Offsets for clients of message 28 and 29, which pass over what does not increase.

    An offset is the message's timestamp, or the last one shown plus one (DESIGN.md, "Rules that follow").
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], Shown] = {}

    def next(self, entry: model.Entry) -> tuple[int, Shown | None]:
        """The offset of a message about to be shown, and what was shown before it in the stream-partition."""
        topic = (entry.topic, entry.partition)
        before = self._last.pop(topic, None)
        offset = _after(before, entry)
        self._remember(topic, Shown(offset, entry.timestamp))
        return offset, before

    def resent(self, entry: model.Entry, before: Shown | None) -> int:
        """The offset of a message of a resend, given the one before it there.

        A resend has its own order, which begins anywhere in the past; what is shown live goes on behind its end.
        """
        offset = _after(before, entry)
        topic = (entry.topic, entry.partition)
        last = self._last.get(topic)
        if last is None or offset > last.offset:
            self._remember(topic, Shown(offset, entry.timestamp))
        return offset

    def _remember(self, topic: tuple[str, int], shown: Shown) -> None:
        self._last[topic] = shown
        if len(self._last) > MAX_TOPICS:
            del self._last[next(iter(self._last))]


def _after(before: Shown | None, entry: model.Entry) -> int:
    return entry.timestamp if before is None else max(entry.timestamp, before.offset + 1)


class PairForm:
    """One pair of versions: its broadcasts, which all its subscribers share, and its unicasts."""

    def __init__(self, control_version: int, message_version: int, lookup: Lookup | None = None) -> None:
        self._control = control_version
        self._version = message_version
        self._lookup = lookup
        self._offsets = Offsets() if message_version in convert.OFFSETS else None
        self._broadcast = control.BROADCAST[control_version]
        name = f"streamr-{control_version}-{message_version}"
        self.form = Form(name, self._broadcast_form() if self._offsets is None else self._broadcast_with_offset)

    def _broadcast_form(self) -> Callable[[model.Entry], bytes]:
        around, version, converted = self._broadcast, self._version, self._converted

        def encode(entry: model.Entry) -> bytes:
            # Most messages are of the version their readers want: then the signed bytes go out as they are.
            return around % entry.raw if entry.version == version else converted(entry)

        return encode

    def _converted(self, entry: model.Entry) -> bytes:
        shown = self._shown(entry)
        return self._error("", shown) if isinstance(shown, str) else self._broadcast % message.encode(shown)

    def _broadcast_with_offset(self, entry: model.Entry) -> bytes:
        assert self._offsets is not None
        shown = self._shown(entry)
        if isinstance(shown, str):
            return self._error("", shown)
        offset, before = self._offsets.next(entry)
        placed = msgspec.structs.replace(shown, offset=offset, previous_offset=self._previous(entry, before))
        return self._broadcast % message.encode(placed)

    def _previous(self, entry: model.Entry, before: Shown | None) -> int | None:
        """The `previousOffset` of a message shown live: the timestamp of the publisher's previous message, as shipped.

        A client that has not seen that one asks for it, holds everything back until it comes, and asks again without
        end if it does not. So it is named only if the log has something of that time which these clients can be shown;
        else it is the message shown before.
        """
        previous = entry.prev_timestamp
        if previous is None or self._lookup is None or (before is not None and previous <= before.timestamp):
            return previous
        for place in self._lookup(model.Topic(entry.topic, entry.partition), previous):
            if place.row is None or not isinstance(self._shown(place.row.entry), str):
                return previous
        return None if before is None else before.timestamp

    def unicast(self, request_id: str, entry: model.Entry, before: Shown | None) -> tuple[bytes, Shown | None]:
        """One message of a resend, and what was shown last in it; `before` is what this was before."""
        if self._offsets is None and entry.version == self._version:
            return control.unicast(request_id, entry.raw, self._control), None
        shown = self._shown(entry)
        if isinstance(shown, str):
            return self._error(request_id, shown), before
        if self._offsets is None:
            return control.unicast(request_id, message.encode(shown), self._control), None
        offset = self._offsets.resent(entry, before)
        # While a resend runs, clients look for no gaps.
        raw = message.encode(msgspec.structs.replace(shown, offset=offset, previous_offset=entry.prev_timestamp))
        return control.unicast(request_id, raw, self._control), Shown(offset, entry.timestamp)

    def _shown(self, entry: model.Entry) -> message.StreamMessage | str:
        """The message as this pair's clients read it, or why they cannot be shown it."""
        parsed = message.decode(entry.raw)
        reason = convert.why_not_shown(parsed, self._version)
        if reason is not None:
            return reason
        shown = convert.to_version(parsed, self._version)
        if self._version == THROWS_ON_ETH and shown.signature_type is message.SignatureType.ETH:
            shown = convert.unsigned(shown)
        return shown

    def _error(self, request_id: str, text: str) -> bytes:
        return control.error_response(request_id, text, ErrorCode.REQUEST_FAILED, self._control)


Pairs = Mapping[tuple[int, int], PairForm]


def make_pairs(lookup: Lookup | None = None) -> Pairs:
    """Every pair that can be negotiated, for one node; `lookup` asks its log."""
    return {
        (control_version, message_version): PairForm(control_version, message_version, lookup)
        for control_version in control.SUPPORTED
        for message_version in message.ROWS
    }


PAIRS: Final = make_pairs()
"""For conversations with nobody's log behind them."""
