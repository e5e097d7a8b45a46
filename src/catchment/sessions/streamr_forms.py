"""How a message of the log is shown to Streamr clients, once for each pair of versions in use.

What was signed is kept as it came; a client of another message version is shown a conversion, made on the way out and
once for all who share the pair (facts/streamr.md, section 3; DESIGN.md, "Rules that follow").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from catchment import model
from catchment.core.subscriptions import Form
from catchment.wire.streamr import control, convert, message
from catchment.wire.streamr.kinds import ErrorCode

MAX_TOPICS: Final = 65_536
"""Stream-partitions whose last offset is remembered; beyond it the one longest not shown is forgotten."""

THROWS_ON_ETH: Final = 29
"""Clients of this version know ETH_LEGACY only and throw on anything newer: they are sent such messages unsigned."""


class Offsets:
    """Offsets for clients of message 28 and 29, which pass over what does not increase.

    An offset is the message's timestamp, or the last one shown plus one (DESIGN.md, "Rules that follow").
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], int] = {}

    def next(self, entry: model.Entry) -> int:
        """The offset of a message about to be shown."""
        topic = (entry.topic, entry.partition)
        offset = max(entry.timestamp, self._last.pop(topic, -1) + 1)
        self._last[topic] = offset
        if len(self._last) > MAX_TOPICS:
            del self._last[next(iter(self._last))]
        return offset

    def resent(self, entry: model.Entry, after: int) -> int:
        """The offset of a message of a resend, `after` being the one before it there (-1 for none).

        A resend has its own order, which begins anywhere in the past; what is shown live goes on behind its end.
        """
        offset = max(entry.timestamp, after + 1)
        topic = (entry.topic, entry.partition)
        if offset > self._last.get(topic, -1):
            self._last[topic] = offset
        return offset


class PairForm:
    """One pair of versions: its broadcasts, which all its subscribers share, and its unicasts."""

    def __init__(self, control_version: int, message_version: int) -> None:
        self._control = control_version
        self._version = message_version
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
        shown = self._shown(entry, None)
        return self._error("", shown) if isinstance(shown, str) else self._broadcast % shown

    def _broadcast_with_offset(self, entry: model.Entry) -> bytes:
        assert self._offsets is not None
        shown = self._shown(entry, self._offsets.next(entry))
        return self._error("", shown) if isinstance(shown, str) else self._broadcast % shown

    def unicast(self, request_id: str, entry: model.Entry, after: int) -> tuple[bytes, int]:
        """One message of a resend, and its offset; `after` is the offset of the one before it, -1 for none."""
        offset = None if self._offsets is None else self._offsets.resent(entry, after)
        shown = entry.raw if offset is None and entry.version == self._version else self._shown(entry, offset)
        if isinstance(shown, str):
            return self._error(request_id, shown), -1 if offset is None else offset
        return control.unicast(request_id, shown, self._control), -1 if offset is None else offset

    def _shown(self, entry: model.Entry, offset: int | None) -> bytes | str:
        """The message as this pair's clients read it, or why they cannot be shown it."""
        parsed = message.decode(entry.raw)
        reason = convert.why_not_shown(parsed, self._version)
        if reason is not None:
            return reason
        shown = convert.to_version(parsed, self._version)
        if self._version == THROWS_ON_ETH and shown.signature_type is message.SignatureType.ETH:
            shown = convert.unsigned(shown)
        if offset is not None:
            prev = parsed.prev_msg_ref
            shown = msgspec.structs.replace(
                shown, offset=offset, previous_offset=None if prev is None else prev.timestamp
            )
        return message.encode(shown)

    def _error(self, request_id: str, text: str) -> bytes:
        return control.error_response(request_id, text, ErrorCode.REQUEST_FAILED, self._control)


PAIRS: Final = {
    (control_version, message_version): PairForm(control_version, message_version)
    for control_version in control.SUPPORTED
    for message_version in message.ROWS
}
"""Every pair that can be negotiated."""
