"""The conversation with a Streamr client: control requests in, responses and messages out.

Control Protocol 2 (spec/streamr-control2-stream32-tracker.md), error codes and resend semantics as shipped
(facts/streamr.md, sections 6 and 7). Frames are read by the version they carry; what is sent follows the pair of
versions negotiated by the query of the upgrade request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from catchment import metrics, model
from catchment.core.broker import Publish, Status
from catchment.core.subscriptions import Form
from catchment.errors import PeerFault
from catchment.sessions.base import Command, Resend, Send, Subscribe, Unsubscribe
from catchment.wire.streamr import control, message, publish
from catchment.wire.streamr.control import Control, ControlType, ErrorCode
from catchment.wire.streamr.publish import Published

MAX_FRAME: Final = 1024 * 1024
"""facts/streamr.md, section 1: maxPayloadLength 1 MiB."""

MAX_FUTURE_MS: Final = 300_000
"""facts/streamr.md, section 7: timestamps may be five minutes ahead."""

MAX_RESEND_LAST: Final = 10_000
"""facts/streamr.md, section 6: numberLast is capped."""

NEGOTIABLE: Final = {
    (control_version, message_version) for control_version in control.VERSIONS for message_version in message.ROWS
}


MAX_SUBSCRIPTIONS: Final = 10_000


def _broadcast_form(control_version: int, message_version: int) -> Form:
    def encode(entry: model.Entry) -> bytes:
        return control.broadcast(entry.raw, control_version)

    return Form(f"streamr-{control_version}-{message_version}", encode)


FORMS: Final = {pair: _broadcast_form(*pair) for pair in sorted(NEGOTIABLE)}


def negotiate(query: Mapping[str, str]) -> tuple[int, int]:
    """The pair of versions an upgrade request asks for.

    Raises:
        PeerFault: a parameter is missing, no number, or not supported (as brokers 11 and later answered with HTTP
            400: facts/streamr.md, section 1).
    """
    asked = []
    for name, supported in (
        ("controlLayerVersion", sorted({pair[0] for pair in NEGOTIABLE})),
        ("messageLayerVersion", sorted({pair[1] for pair in NEGOTIABLE})),
    ):
        value = query.get(name)
        if value is None:
            raise PeerFault(
                "Missing version negotiation: give controlLayerVersion and messageLayerVersion as query parameters.",
                code=ErrorCode.INVALID_REQUEST,
            )
        if not (value.isascii() and value.isdecimal()) or len(value) > 4 or int(value) not in supported:
            raise PeerFault(
                f"Unsupported {name} {value[:20]!r}: this node supports {supported}.", code=ErrorCode.INVALID_REQUEST
            )
        asked.append(int(value))
    return asked[0], asked[1]


class StreamrSession:
    """One client's conversation."""

    protocol = model.Protocol.STREAMR
    max_frame = MAX_FRAME

    def __init__(self, control_version: int, message_version: int, *, publish_ack: bool) -> None:
        self.version = message_version
        self.form = FORMS[control_version, message_version]
        self._control_version = control_version
        self._publish_ack = publish_ack
        self._topics: set[model.Topic] = set()

    @classmethod
    def open(cls, query: Mapping[str, str]) -> StreamrSession:
        """Begin the conversation an upgrade request asks for.

        Raises:
            PeerFault: the versions asked for are missing or not supported.
        """
        control_version, message_version = negotiate(query)
        return cls(control_version, message_version, publish_ack=query.get("publishAck") == "1")

    def receive(self, data: bytes, *, text: bool, now: int) -> Sequence[Command]:
        """Take one frame."""
        request_id = ""
        try:
            if not text:
                raise PeerFault(
                    "Control messages are sent as text, not as binary frames.", code=ErrorCode.INVALID_REQUEST
                )
            usual = publish.read(data)
            if usual is not None:
                request_id = usual.request_id
                return (self._publish(usual, now),)
            request = control.decode(data)
            request_id = request.request_id
            if request.type is ControlType.PUBLISH_REQUEST:
                raw = bytes(request.message)
                return (self._publish(Published(request_id, message.decode(raw), raw), now),)
            return (self._handle(request),)
        except PeerFault as fault:
            metrics.REQUESTS_INVALID.labels("streamr", fault.code).inc()
            return (Send(self._error(fault.request_id or request_id, fault.message, fault.code)),)

    def frame_too_large(self, size: int, head: bytes) -> Sequence[Command]:
        """Word the refusal of a frame that is not read, under its request id where the head shows one."""
        metrics.REQUESTS_INVALID.labels("streamr", ErrorCode.INVALID_REQUEST).inc()
        text = f"A frame of {size} bytes is over the limit of {self.max_frame}."
        return (Send(self._error(control.request_id_in_head(head), text, ErrorCode.INVALID_REQUEST)),)

    def published(self, request_id: str, status: Status, verdict: model.Verdict) -> bytes | None:
        """Answer a publish: silence is success in every version, unless the client asked for more."""
        if status is Status.REFUSED:
            text = f"Publish request failed: {_REFUSALS[verdict]}"
            return self._error(request_id, text, ErrorCode.REQUEST_FAILED)
        if status is Status.FAILED:
            text = "Publish request failed: the node cannot store messages at the moment. Send it again later."
            return self._error(request_id, text, ErrorCode.REQUEST_FAILED)
        if not self._publish_ack:
            return None  # every version takes silence for success
        outcome = "stored" if status is Status.STORED else "duplicate"
        return control.encode(
            Control(ControlType.PUBLISH_ACKNOWLEDGED, request_id, outcome=outcome), self._control_version
        )

    def resend_started(self, request: Resend) -> bytes | None:
        """ResendResponseResending goes just before the first message (facts/streamr.md, section 6)."""
        return self._resend_response(ControlType.RESEND_RESPONSE_RESENDING, request)

    def resend_message(self, request: Resend, entry: model.Entry) -> bytes:
        """One UnicastMessage."""
        return control.unicast(request.request_id, entry.raw, self._control_version)

    def resend_ended(self, request: Resend, count: int) -> bytes:
        """ResendResponseResent, or NoResend when there was nothing."""
        kind = ControlType.RESEND_RESPONSE_RESENT if count else ControlType.RESEND_RESPONSE_NO_RESEND
        return self._resend_response(kind, request)

    def resend_failed(self, request: Resend) -> bytes:
        """The history could not be read: our fault, no detail."""
        topic = request.question.topic
        text = f"Failed to resend from stream {topic.name} and partition {topic.partition}. Ask again later."
        return self._error(request.request_id, text, ErrorCode.RESEND_FAILED)

    def _publish(self, request: Published, now: int) -> Publish:
        request_id, parsed, raw = request
        if parsed.msg_id.timestamp > now // 1000 + MAX_FUTURE_MS:
            raise PeerFault(
                f"Failed publish to stream {parsed.msg_id.stream_id}, reason: future timestamps are not allowed, "
                f"max allowed +{MAX_FUTURE_MS} ms",
                code=ErrorCode.FUTURE_TIMESTAMP,
            )
        if not message.needs_check(parsed):
            entry = message.to_entry(parsed, raw, verdict=model.Verdict.UNSIGNED, received_at=now)
            return Publish(request_id, entry, None, self._publish_ack)
        entry = message.to_entry(parsed, raw, verdict=model.Verdict.OK, received_at=now)
        return Publish(request_id, entry, partial(message.judge, parsed), self._publish_ack)

    def _handle(self, request: Control) -> Command:
        handler = _HANDLERS.get(request.type)
        if handler is None:
            raise PeerFault(
                f"{request.type.name.title().replace('_', '')} is not a request.", code=ErrorCode.INVALID_REQUEST
            )
        return handler(self, request)

    def _subscribe(self, request: Control) -> Command:
        topic = model.Topic(request.stream_id, request.stream_partition)
        if len(self._topics) >= MAX_SUBSCRIPTIONS:
            raise PeerFault(
                f"Too many subscriptions on one connection; {MAX_SUBSCRIPTIONS} are allowed.",
                code=ErrorCode.INVALID_REQUEST,
            )
        self._topics.add(topic)
        return Subscribe(topic, self._stream_response(ControlType.SUBSCRIBE_RESPONSE, request.request_id, topic))

    def _unsubscribe(self, request: Control) -> Command:
        topic = model.Topic(request.stream_id, request.stream_partition)
        if topic not in self._topics:
            # Client 5.x looks for the words "Not subscribed to stream" (facts/streamr.md, section 7).
            raise PeerFault(
                f"Not subscribed to stream {topic.name} partition {topic.partition}!", code=ErrorCode.INVALID_REQUEST
            )
        self._topics.discard(topic)
        return Unsubscribe(topic, self._stream_response(ControlType.UNSUBSCRIBE_RESPONSE, request.request_id, topic))

    def _resend(self, request: Control) -> Command:
        topic = model.Topic(request.stream_id, request.stream_partition)
        if request.type is ControlType.RESEND_LAST_REQUEST:
            return Resend(request.request_id, model.Range(topic), last=min(request.number_last, MAX_RESEND_LAST))
        start, end = model.FIRST_REF, model.LAST_REF
        if request.from_msg_ref is not None:
            start = model.Ref(request.from_msg_ref.timestamp, request.from_msg_ref.sequence_number or 0)
        if request.to_msg_ref is not None:
            last = request.to_msg_ref.sequence_number
            end = model.Ref(request.to_msg_ref.timestamp, model.MAX_SAFE_INTEGER if last is None else last)
            _check_range(request, start, end)
        publisher = request.publisher_id
        return Resend(
            request.request_id,
            model.Range(
                topic,
                start,
                end,
                publisher=None if publisher is None else model.canonical_publisher(publisher),
                chain=request.msg_chain_id,
            ),
        )

    def _stream_response(self, kind: ControlType, request_id: str, topic: model.Topic) -> bytes:
        answer = Control(kind, request_id, stream_id=topic.name, stream_partition=topic.partition)
        return control.encode(answer, self._control_version)

    def _resend_response(self, kind: ControlType, request: Resend) -> bytes:
        return self._stream_response(kind, request.request_id, request.question.topic)

    def _error(self, request_id: str, text: str, code: str) -> bytes:
        return control.error_response(request_id, text, code, self._control_version)


def _check_range(request: Control, start: model.Ref, end: model.Ref) -> None:
    """A range runs forward, and names a publisher and a chain together or neither (facts/streamr.md, section 6)."""
    if start > end:
        raise PeerFault(
            f"fromMsgRef [{start.timestamp},{start.sequence}] is after toMsgRef [{end.timestamp},{end.sequence}].",
            code=ErrorCode.INVALID_REQUEST,
        )
    if (request.publisher_id is None) != (request.msg_chain_id is None):
        raise PeerFault(
            "Invalid combination: give both publisherId and msgChainId, or neither.", code=ErrorCode.INVALID_REQUEST
        )


_REFUSALS: Final = {
    model.Verdict.BAD_SIGNATURE: "the signature is not that of the message's publisher.",
    model.Verdict.NOT_PERMITTED: "the publisher may not write to this stream.",
    model.Verdict.BAD_ID: "the id is not that of the message.",
    model.Verdict.MALFORMED: "the message cannot be read.",
}

_HANDLERS: Final[Mapping[ControlType, Callable[[StreamrSession, Control], Command]]] = {
    ControlType.SUBSCRIBE_REQUEST: StreamrSession._subscribe,
    ControlType.UNSUBSCRIBE_REQUEST: StreamrSession._unsubscribe,
    ControlType.RESEND_LAST_REQUEST: StreamrSession._resend,
    ControlType.RESEND_FROM_REQUEST: StreamrSession._resend,
    ControlType.RESEND_RANGE_REQUEST: StreamrSession._resend,
}
"""What each request does; a type that is not here is none."""
