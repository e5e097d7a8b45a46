"""The Control Protocol: requests and responses around stream messages.

A version is a table of rows, a row the elements of one type after `[version, type, ...]`; one decode and one encode
read the rows, and every type fills the one `Control`. Layouts: Control Protocol 2
(spec/streamr-control2-stream32-tracker.md) and facts/streamr.md, section 2. Control 0, which is not made of such rows,
is in `legacy.py` and reached from here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from catchment.errors import PeerFault
from catchment.wire.streamr import legacy
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
from catchment.wire.streamr.kinds import Control, ControlType, ErrorCode

__all__ = ["CONTROL_1", "CONTROL_2", "SUPPORTED", "VERSIONS", "Control", "ControlType", "ErrorCode", "decode", "encode"]


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

_NUMBER_LAST = Field("number_last", "numberLast", Number)
_OUTCOME = Field("outcome", "outcome", str)

Rows = Mapping[ControlType, Sequence[Sequence[Field]]]

_ANSWER_1 = (_STREAM_ID, _LAST_PARTITION)
_RESEND_ANSWER_1 = (_STREAM_ID, _PARTITION, _REQUEST_ID)

CONTROL_1: Final[Rows] = {
    ControlType.BROADCAST_MESSAGE: ((_MESSAGE,),),
    ControlType.UNICAST_MESSAGE: ((_REQUEST_ID, _MESSAGE),),
    ControlType.SUBSCRIBE_RESPONSE: (_ANSWER_1,),
    ControlType.UNSUBSCRIBE_RESPONSE: (_ANSWER_1,),
    ControlType.RESEND_RESPONSE_RESENDING: (_RESEND_ANSWER_1,),
    ControlType.RESEND_RESPONSE_RESENT: (_RESEND_ANSWER_1,),
    ControlType.RESEND_RESPONSE_NO_RESEND: (_RESEND_ANSWER_1,),
    ControlType.ERROR_RESPONSE: ((Field("error_message", "errorMessage", str),),),
    ControlType.PUBLISH_REQUEST: ((_MESSAGE, _TOKEN),),
    ControlType.SUBSCRIBE_REQUEST: ((_STREAM_ID, _LAST_PARTITION, _TOKEN),),
    ControlType.UNSUBSCRIBE_REQUEST: (_ANSWER_1,),
    ControlType.RESEND_LAST_REQUEST: ((_STREAM_ID, _PARTITION, _REQUEST_ID, _NUMBER_LAST, _TOKEN),),
    ControlType.RESEND_FROM_REQUEST: ((_STREAM_ID, _PARTITION, _REQUEST_ID, _FROM, _PUBLISHER, _CHAIN, _TOKEN),),
    ControlType.RESEND_RANGE_REQUEST: ((_STREAM_ID, _PARTITION, _REQUEST_ID, _FROM, _TO, _PUBLISHER, _CHAIN, _TOKEN),),
    ControlType.PUBLISH_ACKNOWLEDGED: ((_OUTCOME,),),
}
"""Types of control 1: only resends have a request id, and it stands behind the partition."""

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
    # The document's wrapped example has no request id (streamr-network-control2-message31.md, WrapperMessage); it is
    # told apart by the partition standing where the stream would be.
    ControlType.SUBSCRIBE_REQUEST: (
        (_REQUEST_ID, _STREAM_ID, _LAST_PARTITION, _TOKEN),
        (_STREAM_ID, _PARTITION, _TOKEN),
    ),
    ControlType.UNSUBSCRIBE_REQUEST: (_STREAM_ANSWER,),
    ControlType.RESEND_LAST_REQUEST: ((_REQUEST_ID, _STREAM_ID, _PARTITION, _NUMBER_LAST, _TOKEN),),
    # Shipped without msgChainId, documented with it; told apart by length (facts/streamr.md, section 2).
    ControlType.RESEND_FROM_REQUEST: (
        (_REQUEST_ID, _STREAM_ID, _PARTITION, _FROM, _PUBLISHER, _TOKEN),
        (_REQUEST_ID, _STREAM_ID, _PARTITION, _FROM, _PUBLISHER, _CHAIN, _TOKEN._replace(optional=False)),
    ),
    ControlType.RESEND_RANGE_REQUEST: ((_REQUEST_ID, _STREAM_ID, _PARTITION, _FROM, _TO, _PUBLISHER, _CHAIN, _TOKEN),),
    ControlType.PUBLISH_ACKNOWLEDGED: ((_REQUEST_ID, _OUTCOME),),
}
"""Types of control 2. Where a type has two rows, the one we emit comes first."""

VERSIONS: Final[Mapping[int, Rows]] = {1: CONTROL_1, 2: CONTROL_2}
"""The versions made of rows."""

SUPPORTED: Final = (legacy.VERSION, *VERSIONS)

_is_second_row: Final[Mapping[tuple[int, ControlType], Callable[[Sequence[msgspec.Raw]], bool]]] = {
    (2, ControlType.SUBSCRIBE_REQUEST): lambda elements: len(elements) in (4, 5) and bytes(elements[3]).isdigit(),
    (2, ControlType.RESEND_FROM_REQUEST): lambda elements: len(elements) > 8,
}
"""What tells the second row of a type from its first, given all elements of the array."""

_NO_REQUEST_ID: Final = (b"0", b"1")
"""Versions whose third element is something else."""

_REQUEST_ID_IN_HEAD: Final = re.compile(rb'\s*\[\s*(?:[2-9]|\d\d+)\s*,\s*\d+\s*,\s*("(?:[^"\\]|\\.)*")')

_HEAD: Final = (Field("version", "version", Number), Field("type", "type", Number))


class _Form(msgspec.Struct, frozen=True):
    """A row made ready: its reader and the attributes it fills."""

    reader: ArrayReader
    attributes: tuple[str, ...]


def _forms(kind: ControlType, rows: Sequence[Sequence[Field]]) -> list[_Form]:
    return [
        _Form(ArrayReader(kind.document_name, (*_HEAD, *row)), tuple(field.attribute for field in row)) for row in rows
    ]


_forms_by_version: Final = {
    version: {kind: _forms(kind, rows) for kind, rows in table.items()} for version, table in VERSIONS.items()
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
_ACKNOWLEDGED: Final = int(ControlType.PUBLISH_ACKNOWLEDGED)


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
    if legacy.is_request(data):
        return legacy.to_control(legacy.decode_request(data))
    version, kind = _read_head(data)
    if version == legacy.VERSION:
        return legacy.decode_response(data, kind)
    table = _forms_by_version.get(version)
    if table is None:
        supported = ", ".join(str(known) for known in SUPPORTED)
        raise PeerFault(f"Control version {version} is not supported, only {supported}.", code=INVALID_REQUEST)
    forms = table.get(kind) if kind is not None else None
    if forms is None or kind is None:
        raise PeerFault("The type of this control message is not known.", code=INVALID_REQUEST)
    form = forms[0]
    if len(forms) > 1 and _is_second_row[version, kind](_decode_elements(data)):
        form = forms[1]
    values = form.reader.read(data)
    found = {name: getattr(values, name) for name in form.attributes}
    if found.get("stream_partition", 0) is None:
        found["stream_partition"] = 0
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
    """The request id of a frame that cannot be read as a whole; empty when that cannot be read either.

    Only where control 2 has it: control 1 answers errors without one, and has another field there.
    """
    try:
        head = _decode_request_id(data)
        return "" if bytes(head.version) in _NO_REQUEST_ID else head.request_id
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
    if version == legacy.VERSION:
        return legacy.encode_response(control)
    form = _forms_by_version[version][control.type][0]
    values = [getattr(control, name) for name in form.attributes]
    if "message" not in form.attributes:
        return _encode_json([version, control.type, *values])
    # A stream message goes in as the bytes it came in, which a JSON encoder must not touch.
    elements = [
        value if name == "message" else _encode_json(value) for name, value in zip(form.attributes, values, strict=True)
    ]
    return b"[%d,%d,%b]" % (version, control.type, b",".join(bytes(element) for element in elements))


BROADCAST: Final[Mapping[int, bytes]] = {0: b"[0,0,null,%b]", 1: b"[1,0,%b]", 2: b'[2,0,"",%b]'}
"""A BroadcastMessage around a stream message; its request id is always empty (facts/streamr.md, section 2)."""


def broadcast(message: bytes, version: int = 2) -> bytes:
    """A BroadcastMessage around a stream message."""
    return BROADCAST[version] % message


def unicast(request_id: str, message: bytes, version: int = 2) -> bytes:
    """A UnicastMessage around a stream message: the same elements in every version."""
    return b"[%d,1,%b,%b]" % (version, _encode_json(request_id), message)


def publish_acknowledged(request_id: str, outcome: str, version: int = 2) -> bytes:
    """A PublishAcknowledged as `encode` writes it: there may be one for every message, so the usual is made at once."""
    if version == 2:
        return _encode_json((2, _ACKNOWLEDGED, request_id, outcome))
    return encode(Control(ControlType.PUBLISH_ACKNOWLEDGED, request_id, outcome=outcome), version)


def error_response(request_id: str, message: str, code: str, version: int = 2) -> bytes:
    """An ErrorResponse."""
    return encode(Control(ControlType.ERROR_RESPONSE, request_id, error_message=message, error_code=code), version)
