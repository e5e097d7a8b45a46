"""The Control Protocol: requests and responses around stream messages.

A version is a table of rows, a row the elements of one type after `[version, type, ...]`; one decode and one encode
read the rows, and every type fills the one `Control`. Layouts: Control Protocol 2
(spec/streamr-control2-stream32-tracker.md) and facts/streamr.md, section 2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final

import msgspec

from catchment.errors import PeerFault
from catchment.wire.streamr.fields import (
    INVALID_REQUEST,
    ArrayReader,
    Field,
    LooseMessageRef,
    Name,
    Number,
    RequestId,
    StreamId,
    not_json,
)


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


class ErrorCode:
    """ErrorResponse codes as shipped (facts/streamr.md, section 7)."""

    INVALID_REQUEST: Final = INVALID_REQUEST
    AUTHENTICATION_FAILED: Final = "AUTHENTICATION_FAILED"
    PERMISSION_DENIED: Final = "PERMISSION_DENIED"
    NOT_FOUND: Final = "NOT_FOUND"
    FUTURE_TIMESTAMP: Final = "FUTURE_TIMESTAMP"
    REQUEST_FAILED: Final = "REQUEST_FAILED"
    RESEND_FAILED: Final = "RESEND_FAILED"
    ERROR_WHILE_HANDLING_REQUEST: Final = "ERROR_WHILE_HANDLING_REQUEST"


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


_REQUEST_ID = Field("request_id", "requestId", RequestId)
_STREAM_ID = Field("stream_id", "streamId", StreamId)
# "Optional, defaults to 0": null counts as left out.
_PARTITION = Field("stream_partition", "streamPartition", Number | None)
_LAST_PARTITION = _PARTITION._replace(optional=True)
_MESSAGE = Field("message", "streamProtocolMessage", msgspec.Raw)
_TOKEN = Field("session_token", "sessionToken", str | None, optional=True)
_FROM = Field("from_msg_ref", "fromMsgRef", LooseMessageRef)
_TO = Field("to_msg_ref", "toMsgRef", LooseMessageRef)
_PUBLISHER = Field("publisher_id", "publisherId", Name | None)
_CHAIN = Field("msg_chain_id", "msgChainId", Name | None)

_STREAM_ANSWER = (_REQUEST_ID, _STREAM_ID, _LAST_PARTITION)

Rows = Mapping[ControlType, Sequence[Sequence[Field]]]

CONTROL_2: Final[Rows] = {
    ControlType.BROADCAST_MESSAGE: ((_REQUEST_ID, _MESSAGE),),
    ControlType.UNICAST_MESSAGE: ((_REQUEST_ID, _MESSAGE),),
    ControlType.SUBSCRIBE_RESPONSE: (_STREAM_ANSWER,),
    ControlType.UNSUBSCRIBE_RESPONSE: (_STREAM_ANSWER,),
    ControlType.RESEND_RESPONSE_RESENDING: (_STREAM_ANSWER,),
    ControlType.RESEND_RESPONSE_RESENT: (_STREAM_ANSWER,),
    ControlType.RESEND_RESPONSE_NO_RESEND: (_STREAM_ANSWER,),
    ControlType.ERROR_RESPONSE: (
        (
            _REQUEST_ID,
            Field("error_message", "errorMessage", str),
            Field("error_code", "errorCode", str),
        ),
    ),
    ControlType.PUBLISH_REQUEST: ((_REQUEST_ID, _MESSAGE, _TOKEN),),
    ControlType.SUBSCRIBE_REQUEST: ((_REQUEST_ID, _STREAM_ID, _LAST_PARTITION, _TOKEN),),
    ControlType.UNSUBSCRIBE_REQUEST: (_STREAM_ANSWER,),
    ControlType.RESEND_LAST_REQUEST: (
        (_REQUEST_ID, _STREAM_ID, _PARTITION, Field("number_last", "numberLast", Number), _TOKEN),
    ),
    # Shipped without msgChainId, documented with it; told apart by length (facts/streamr.md, section 2).
    ControlType.RESEND_FROM_REQUEST: (
        (_REQUEST_ID, _STREAM_ID, _PARTITION, _FROM, _PUBLISHER, _TOKEN),
        (_REQUEST_ID, _STREAM_ID, _PARTITION, _FROM, _PUBLISHER, _CHAIN, _TOKEN._replace(optional=False)),
    ),
    ControlType.RESEND_RANGE_REQUEST: ((_REQUEST_ID, _STREAM_ID, _PARTITION, _FROM, _TO, _PUBLISHER, _CHAIN, _TOKEN),),
    ControlType.PUBLISH_ACKNOWLEDGED: ((_REQUEST_ID, Field("outcome", "outcome", str)),),
}
"""Types of control 2. Where a type has two rows they differ in length, the one we emit first."""

VERSIONS: Final[Mapping[int, Rows]] = {2: CONTROL_2}

_REQUEST_ID_IN_HEAD: Final = re.compile(rb'\s*\[\s*\d+\s*,\s*\d+\s*,\s*("(?:[^"\\]|\\.)*")')

_HEAD: Final = (Field("version", "version", Number), Field("type", "type", Number))


class _Form(msgspec.Struct, frozen=True):
    """A row made ready: its reader and the attributes it fills."""

    reader: ArrayReader
    attributes: tuple[str, ...]


def _forms(version: int, kind: ControlType, rows: Sequence[Sequence[Field]]) -> list[_Form]:
    name = kind.name.title().replace("_", "")
    return [_Form(ArrayReader(name, (*_HEAD, *row)), tuple(field.attribute for field in row)) for row in rows]


_forms_by_version: Final = {
    version: {kind: _forms(version, kind, rows) for kind, rows in table.items()} for version, table in VERSIONS.items()
}


class _Head(msgspec.Struct, array_like=True):
    """The two elements every control message begins with."""

    version: Number
    type: Number


class _HeadAndRequest(msgspec.Struct, array_like=True):
    """As much as is needed to answer under the right request id."""

    version: msgspec.Raw
    type: msgspec.Raw
    request_id: RequestId


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_request_id = msgspec.json.Decoder(_HeadAndRequest).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode_json = msgspec.json.Encoder().encode


def decode(data: bytes) -> Control:
    """Read one frame.

    Raises:
        PeerFault: with the request's id where that could be read.
    """
    try:
        return _decode_any(data)
    except PeerFault as fault:
        fault.request_id = readable_request_id(data)
        raise


def _decode_any(data: bytes) -> Control:
    version, kind = _read_head(data)
    table = _forms_by_version.get(version)
    if table is None:
        supported = ", ".join(str(known) for known in VERSIONS)
        raise PeerFault(f"Control version {version} is not supported, only {supported}.", code=INVALID_REQUEST)
    forms = table.get(kind) if kind is not None else None
    if forms is None:
        raise PeerFault("The type of this control message is not known.", code=INVALID_REQUEST)
    form = forms[0]
    if len(forms) > 1 and len(_decode_elements(data)) > len(form.attributes) + len(_HEAD):
        form = forms[1]
    values = form.reader.read(data)
    found = {name: getattr(values, name) for name in form.attributes}
    if found.get("stream_partition", 0) is None:
        found["stream_partition"] = 0
    assert kind is not None
    return Control(kind, **found)


def _read_head(data: bytes) -> tuple[int, ControlType | None]:
    try:
        head = _decode_head(data)
    except msgspec.ValidationError:
        raise PeerFault(
            "A control message is an array that begins with its version and type, both whole numbers.",
            code=INVALID_REQUEST,
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(error) from None
    try:
        return head.version, ControlType(head.type)
    except ValueError:
        return head.version, None


def readable_request_id(data: bytes) -> str:
    """The request id of a frame that cannot be read as a whole; empty when that cannot be read either."""
    try:
        return _decode_request_id(data).request_id
    except RecursionError:
        # Valid JSON as far as anyone looked; the bomb stands behind the id.
        return request_id_in_head(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def request_id_in_head(head: bytes) -> str:
    """The request id at the beginning of a frame of which no more can be read; empty when there is none."""
    found = _REQUEST_ID_IN_HEAD.match(head)
    try:
        return "" if found is None else _decode_text(found.group(1))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def encode(control: Control, version: int = 2) -> bytes:
    """The array of a control message in the given version (the first row of its type)."""
    form = _forms_by_version[version][control.type][0]
    values = [getattr(control, name) for name in form.attributes]
    if "message" not in form.attributes:
        return _encode_json([version, control.type, *values])
    # A stream message goes in as the bytes it came in, which a JSON encoder must not touch.
    elements = [
        value if name == "message" else _encode_json(value) for name, value in zip(form.attributes, values, strict=True)
    ]
    return b"[%d,%d,%b]" % (version, control.type, b",".join(bytes(element) for element in elements))


def broadcast(message: bytes, version: int = 2) -> bytes:
    """A BroadcastMessage around a stream message; its request id is always empty (facts/streamr.md, section 2)."""
    return b'[%d,0,"",%b]' % (version, message)


def unicast(request_id: str, message: bytes, version: int = 2) -> bytes:
    """A UnicastMessage around a stream message."""
    return b"[%d,1,%b,%b]" % (version, _encode_json(request_id), message)


def error_response(request_id: str, message: str, code: str, version: int = 2) -> bytes:
    """An ErrorResponse."""
    return encode(Control(ControlType.ERROR_RESPONSE, request_id, error_message=message, error_code=code), version)
