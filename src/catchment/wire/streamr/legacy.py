"""Control 0: requests are JSON objects, responses are arrays around one payload.

spec/streamr-legacy-0-28.md, and facts/streamr.md, section 2, for what shipped: `sub` is echoed in every answer to a
resend, the third element of a response is null except in a unicast. Requests other than publish mean the same as
their successors and are turned into the same `Control`; a publish has no stream message yet, the node makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from catchment.errors import PeerFault
from catchment.model import MAX_SAFE_INTEGER
from catchment.wire.refusals import split_path
from catchment.wire.streamr.fields import (
    INVALID_REQUEST,
    LooseMessageRef,
    MessageID,
    Name,
    Number,
    RequestId,
    StreamId,
    content_text,
    not_json,
)
from catchment.wire.streamr.kinds import Control, ControlType
from catchment.wire.streamr.message import (
    ContentType,
    EncryptionType,
    MessageType,
    SignatureType,
    StreamMessage,
    check,
)

VERSION: Final = 0

_Key = str | None | UnsetType


class _Request(msgspec.Struct, frozen=True, gc=False, tag_field="type", rename="camel"):
    """What every request of control 0 has. Fields that a type does not know are passed over, as shipped."""

    stream: StreamId


class PublishRequest(_Request, frozen=True, gc=False, tag="publish", rename="camel"):
    """A message without an identity of its own."""

    auth_key: _Key = UNSET
    session_token: _Key = UNSET
    msg: msgspec.Raw = msgspec.Raw(b"")
    ts: int | float | str | UnsetType | None = UNSET
    pkey: Name | int | float | UnsetType | None = UNSET
    addr: Name | UnsetType | None = UNSET
    sigtype: Number | UnsetType | None = UNSET
    sig: str | UnsetType | None = UNSET


class SubscribeRequest(_Request, frozen=True, gc=False, tag="subscribe", rename="camel"):
    """Deliver a stream-partition from now on."""

    partition: Number | None = 0
    auth_key: _Key = UNSET
    session_token: _Key = UNSET


class UnsubscribeRequest(_Request, frozen=True, gc=False, tag="unsubscribe", rename="camel"):
    """Deliver a stream-partition no more."""

    partition: Number | None = 0


class ResendRequest(_Request, frozen=True, gc=False, tag="resend", rename=None):
    """Send history. The document's table says the type is "unsubscribe"; its example and all software say "resend"."""

    partition: Number | None = 0
    sub: RequestId | Number | UnsetType = UNSET
    auth_key: _Key = msgspec.field(name="authKey", default=UNSET)
    session_token: _Key = msgspec.field(name="sessionToken", default=UNSET)
    resend_all: bool | UnsetType | None = UNSET
    resend_last: Number | UnsetType | None = UNSET
    resend_from: Number | UnsetType | None = UNSET
    resend_to: Number | UnsetType | None = UNSET
    resend_from_time: Number | UnsetType | None = UNSET


Request = PublishRequest | SubscribeRequest | UnsubscribeRequest | ResendRequest

_decode_request: Final[Callable[[bytes], Request]] = msgspec.json.Decoder(Request).decode
_encode_json = msgspec.json.Encoder().encode


def is_request(data: bytes) -> bool:
    """Whether a frame is an object, as only requests of control 0 are."""
    return data[:1] == b"{" or data.lstrip(b" \t\r\n")[:1] == b"{"


def decode_request(data: bytes) -> Request:
    """Read one request.

    Raises:
        PeerFault: it is not JSON, its type is not known, or a field is not what it should be.
    """
    try:
        request = _decode_request(data)
    except msgspec.ValidationError as error:
        raise PeerFault(_explain(error), code=INVALID_REQUEST) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(error) from None
    if isinstance(request, ResendRequest) and request.sub is UNSET:
        raise PeerFault("A resend request needs `sub`, the id of the subscription.", code=INVALID_REQUEST)
    if isinstance(request, PublishRequest) and not bytes(request.msg):
        raise PeerFault("A publish request needs `msg`, the message as text.", code=INVALID_REQUEST)
    return request


def _explain(error: msgspec.ValidationError) -> str:
    text, path = split_path(error)
    if path == ".type":
        return f"Unknown request type: {text}"
    return f"Request, {path.removeprefix('.')}: {text}" if path else f"Request: {text}"


def encode_request(request: Request) -> bytes:
    """The object of a request; what is unset is left out."""
    return _encode_json(request)


def to_control(request: Request) -> Control:
    """The request as its successors say it.

    Raises:
        PeerFault: it is a publish, which has no stream message, or a resend that says of nothing what to send.
    """
    match request:
        case SubscribeRequest():
            return Control(
                ControlType.SUBSCRIBE_REQUEST,
                stream_id=request.stream,
                stream_partition=request.partition or 0,
                session_token=given(request.session_token),
                auth_key=given(request.auth_key),
            )
        case UnsubscribeRequest():
            return Control(
                ControlType.UNSUBSCRIBE_REQUEST, stream_id=request.stream, stream_partition=request.partition or 0
            )
        case ResendRequest():
            return _resend(request)
        case PublishRequest():
            raise PeerFault("A publish request of control 0 carries no stream message.", code=INVALID_REQUEST)


def given(value: str | UnsetType | None) -> str | None:
    """A field of a request, None where it was left out."""
    return None if value is UNSET else value


def _number(value: int | UnsetType | None) -> int | None:
    return None if value is UNSET else value


def _resend(request: ResendRequest) -> Control:
    """Options in the order brokers tested them (facts/streamr.md, section 2). Offsets are timestamps (section 3)."""
    first, last = _number(request.resend_from), _number(request.resend_to)
    since, count = _number(request.resend_from_time), _number(request.resend_last)
    options: dict[str, object]
    if request.resend_all is True:
        kind, options = ControlType.RESEND_FROM_REQUEST, {"from_msg_ref": LooseMessageRef(0)}
    elif first is not None and last is not None:
        kind = ControlType.RESEND_RANGE_REQUEST
        options = {"from_msg_ref": LooseMessageRef(first), "to_msg_ref": LooseMessageRef(last)}
    elif first is not None:
        kind, options = ControlType.RESEND_FROM_REQUEST, {"from_msg_ref": LooseMessageRef(first)}
    elif count is not None:
        kind, options = ControlType.RESEND_LAST_REQUEST, {"number_last": count}
    elif since is not None:
        kind, options = ControlType.RESEND_FROM_REQUEST, {"from_msg_ref": LooseMessageRef(since)}
    else:
        raise PeerFault(
            "Unknown resend options: give resend_all, resend_last, resend_from (with resend_to) or resend_from_time.",
            code=INVALID_REQUEST,
            request_id=subscription(request),
        )
    return Control(
        kind,
        subscription(request),
        stream_id=request.stream,
        stream_partition=request.partition or 0,
        session_token=given(request.session_token),
        auth_key=given(request.auth_key),
        **options,  # type: ignore[arg-type]  # each is of its field's type
    )


def subscription(request: ResendRequest) -> str:
    """The subscription's id as it is echoed."""
    return "" if request.sub is UNSET else str(request.sub)


def stream_message(request: PublishRequest, *, partition: int, now_ms: int, sequence: int) -> StreamMessage:
    """The message 30 that a publish becomes (facts/streamr.md, section 3, "Conversion").

    Raises:
        PeerFault: its message, time or signature is not what it should be.
    """
    timestamp = _timestamp(request)
    try:
        signature_type = SignatureType(_number(request.sigtype) or 0)
    except ValueError:
        raise PeerFault(f"Request, sigtype: {request.sigtype} is not known.", code=INVALID_REQUEST) from None
    made = StreamMessage(
        version=30,
        msg_id=MessageID(
            request.stream,
            partition,
            now_ms if timestamp is None else timestamp,
            sequence,
            given(request.addr) or "",
            "",
        ),
        prev_msg_ref=None,
        message_type=MessageType.STREAM_MESSAGE,
        content_type=ContentType.JSON,
        encryption_type=EncryptionType.NONE,
        group_key_id=None,
        content=content_text(request.msg, "Request, msg"),
        new_group_key=None,
        signature_type=signature_type,
        signature=given(request.sig) or None,
    )
    check(made)
    return made


def _timestamp(request: PublishRequest) -> int | None:
    """The time a publish gives itself; None when the server's time is meant.

    "Number(x) || Date.parse(x)" (facts/streamr.md, section 2): milliseconds as number or text, or an ISO date.
    """
    value = request.ts
    if value is UNSET or not value:
        return None
    try:
        found = _milliseconds(value)
    except (ValueError, OverflowError):
        found = -1
    if not 0 <= found <= MAX_SAFE_INTEGER:
        raise PeerFault(f"Request, ts: {str(value)[:40]!r} is not a time.", code=INVALID_REQUEST)
    return found or None


def _milliseconds(value: int | float | str) -> int:
    if not isinstance(value, str):
        return int(value)
    try:
        return int(float(value))
    except ValueError:
        date = datetime.fromisoformat(value)
    aware = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)


class _Payload(msgspec.Struct, frozen=True, gc=False):
    """The payload of an answer about a stream-partition; `sub` in answers to resends."""

    stream: StreamId
    partition: Number = 0
    sub: RequestId | UnsetType = UNSET


class _Error(msgspec.Struct, frozen=True, gc=False):
    error: str


class _Outcome(msgspec.Struct, frozen=True, gc=False):
    outcome: str


class _Response(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    version: Number
    type: Number
    sub: RequestId | None
    payload: msgspec.Raw


_RESENDS: Final = frozenset(
    {
        ControlType.RESEND_RESPONSE_RESENDING,
        ControlType.RESEND_RESPONSE_RESENT,
        ControlType.RESEND_RESPONSE_NO_RESEND,
    }
)
_PAYLOADS: Final[Mapping[ControlType, type[msgspec.Struct]]] = {
    ControlType.SUBSCRIBE_RESPONSE: _Payload,
    ControlType.UNSUBSCRIBE_RESPONSE: _Payload,
    **dict.fromkeys(_RESENDS, _Payload),
    ControlType.ERROR_RESPONSE: _Error,
    ControlType.PUBLISH_ACKNOWLEDGED: _Outcome,
}
_MESSAGES: Final = (ControlType.BROADCAST_MESSAGE, ControlType.UNICAST_MESSAGE)

_decode_response = msgspec.json.Decoder(_Response).decode
_payload_decoders: Final = {kind: msgspec.json.Decoder(struct).decode for kind, struct in _PAYLOADS.items()}


def decode_response(data: bytes, kind: ControlType | None) -> Control:
    """Read one response; the 2018 server wrote "" where later ones wrote null, both are read.

    Raises:
        PeerFault: it is no response of control 0.
    """
    if kind not in _PAYLOADS and kind not in _MESSAGES:
        raise PeerFault("The type of this control message is not known in control 0.", code=INVALID_REQUEST)
    assert kind is not None
    try:
        response = _decode_response(data)
        if kind in _MESSAGES:
            return Control(kind, response.sub or "", message=response.payload)
        payload = _payload_decoders[kind](response.payload)
    except msgspec.ValidationError as error:
        raise PeerFault(f"{kind.document_name}: {error}", code=INVALID_REQUEST) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(error) from None
    match payload:
        case _Error():
            return Control(kind, error_message=payload.error)
        case _Outcome():
            return Control(kind, outcome=payload.outcome)
        case _:
            assert isinstance(payload, _Payload)
            sub = "" if payload.sub is UNSET else payload.sub
            return Control(kind, sub, stream_id=payload.stream, stream_partition=payload.partition)


def encode_response(control: Control) -> bytes:
    """The array of a response.

    Raises:
        ValueError: requests are objects and written by `encode_request`.
    """
    kind = control.type
    payload: msgspec.Struct
    if kind in _MESSAGES:
        sub = b"null" if kind is ControlType.BROADCAST_MESSAGE else _encode_json(control.request_id)
        return b"[0,%d,%b,%b]" % (kind, sub, bytes(control.message))
    if kind in _RESENDS:
        payload = _Payload(control.stream_id, control.stream_partition, control.request_id)
    elif kind is ControlType.ERROR_RESPONSE:
        payload = _Error(control.error_message)
    elif kind is ControlType.PUBLISH_ACKNOWLEDGED:
        payload = _Outcome(control.outcome)
    elif kind in _PAYLOADS:
        payload = _Payload(control.stream_id, control.stream_partition)
    else:
        raise ValueError(f"{kind.document_name} is no response")
    return _encode_json([VERSION, kind, None, payload])
