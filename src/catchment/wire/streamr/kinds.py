"""The control layer's types and codes, and the one value that control messages of every version fill.

Control Protocol, table of types (spec/streamr-control2-stream32-tracker.md); error codes as shipped (facts/streamr.md,
section 7).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

from catchment.wire.streamr.fields import INVALID_REQUEST, LooseMessageRef


class ControlType(IntEnum):
    """Control Protocol, table of types. PUBLISH_ACKNOWLEDGED is ours, sent only where `publishAck=1` asked for it."""

    BROADCAST_MESSAGE = 0
    UNICAST_MESSAGE = 1
    SUBSCRIBE_RESPONSE = 2
    UNSUBSCRIBE_RESPONSE = 3
    RESEND_RESPONSE_RESENDING = 4
    RESEND_RESPONSE_RESENT = 5
    RESEND_RESPONSE_NO_RESEND = 6
    ERROR_RESPONSE = 7
    PUBLISH_REQUEST = 8
    SUBSCRIBE_REQUEST = 9
    UNSUBSCRIBE_REQUEST = 10
    RESEND_LAST_REQUEST = 11
    RESEND_FROM_REQUEST = 12
    RESEND_RANGE_REQUEST = 13
    PUBLISH_ACKNOWLEDGED = 100

    @property
    def document_name(self) -> str:
        """As the documents call the type."""
        return self.name.title().replace("_", "")


class ErrorCode:
    """ErrorResponse codes as shipped (facts/streamr.md, section 7). Control 0 and 1 send only the text."""

    INVALID_REQUEST: Final = INVALID_REQUEST
    AUTHENTICATION_FAILED: Final = "AUTHENTICATION_FAILED"
    PERMISSION_DENIED: Final = "PERMISSION_DENIED"
    NOT_FOUND: Final = "NOT_FOUND"
    FUTURE_TIMESTAMP: Final = "FUTURE_TIMESTAMP"
    REQUEST_FAILED: Final = "REQUEST_FAILED"
    RESEND_FAILED: Final = "RESEND_FAILED"
    ERROR_WHILE_HANDLING_REQUEST: Final = "ERROR_WHILE_HANDLING_REQUEST"
    UNKNOWN: Final = "UNKNOWN"
    """What a reader of control 0 and 1 fills in."""


class Control(msgspec.Struct, frozen=True, gc=False):
    """A control message of any version and type; fields its type does not have keep their defaults."""

    type: ControlType
    request_id: str = ""
    stream_id: str = ""
    stream_partition: int = 0
    message: msgspec.Raw | bytes = b""
    """A stream message, exactly as it stands in the frame."""
    session_token: str | None = None
    number_last: int = 0
    from_msg_ref: LooseMessageRef | None = None
    to_msg_ref: LooseMessageRef | None = None
    publisher_id: str | None = None
    msg_chain_id: str | None = None
    error_message: str = ""
    error_code: str = ""
    outcome: str = ""
    auth_key: str | None = None
    """An API key or an anonymous stream key; control 0 only."""
