"""PublishRequest as nearly every client writes it, read in one pass.

Almost every frame a node receives is a control-2 PublishRequest around a message of version 32 in compact JSON. Here
request and message are decoded together and the message's exact bytes are cut out of the frame; everything written
otherwise (white space, escapes, other versions, errors) is left to `control.decode` and `message.decode`, which give
the same result and word the refusals. `tests/wire/test_publish.py` holds the two ways against each other.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from catchment.errors import PeerFault
from catchment.wire.streamr.fields import RequestId
from catchment.wire.streamr.message import StreamMessage, check

_BEGINS: Final = b'[2,8,"'
_MESSAGE: Final = b",[32,"
"""What follows the request id's closing quote where the message begins."""

_NO_TOKEN: Final = b",null]"
_TOKEN: Final = b',"'
_BACKSLASH: Final = ord("\\")
_CLOSES: Final = ord("]")


class _Request(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """The rows of PublishRequest and message 32 in one."""

    version: int
    type: int
    request_id: RequestId
    message: StreamMessage
    session_token: str | None = None


class Published(NamedTuple):
    """A publish request: its id, the message, the message's bytes as they stand in the frame, and the token."""

    request_id: str
    message: StreamMessage
    raw: bytes
    session_token: str | None = None


_decode = msgspec.json.Decoder(_Request).decode


def read(data: bytes) -> Published | None:
    """Read a frame of the usual form; None when it is not one.

    Raises:
        PeerFault: the message contradicts itself (see `message.check`).
    """
    if not data.startswith(_BEGINS):
        return None
    # The first quote closes the request id, unless a backslash stands before it: then it may be part of the id.
    quote = data.find(b'"', len(_BEGINS))
    if data[quote - 1] == _BACKSLASH or not data.startswith(_MESSAGE, quote + 1):
        return None
    start = quote + 2
    end = _end_of_message(data)
    if data[end - 1] != _CLOSES:
        return None
    try:
        request = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    try:
        check(request.message)
    except PeerFault as fault:
        fault.request_id = request.request_id
        raise
    token = request.session_token
    if token is not None and data[end:] != b',"%b"]' % token.encode():
        return None
    return Published(request.request_id, request.message, data[start:end], token)


def _end_of_message(data: bytes) -> int:
    """Where the message ends if what follows it is nothing, null or a token without escapes."""
    if data.endswith(b"]]"):
        return len(data) - 1
    if data.endswith(_NO_TOKEN):
        return len(data) - len(_NO_TOKEN)
    return max(data.rfind(_TOKEN), 0)
