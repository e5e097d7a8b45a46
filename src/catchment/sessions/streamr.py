"""The conversation with a Streamr client: control requests in, responses and messages out.

Control 0, 1 and 2 (spec/streamr-*.md), error codes and resend semantics as shipped (facts/streamr.md, sections 6 and
7). Frames are read by the version they carry; what is sent follows the pair of versions negotiated by the query of the
upgrade request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from catchment import metrics, model
from catchment.core.access import ANONYMOUS, Access, Caller
from catchment.core.broker import Publish, Status
from catchment.errors import PeerFault
from catchment.sessions.base import Command, Resend, Send, Subscribe, TextSession, Unsubscribe
from catchment.sessions.streamr_forms import PAIRS, Pairs, Shown
from catchment.sessions.streamr_publish import prepare, with_sequence
from catchment.wire.streamr import control, legacy, message, publish
from catchment.wire.streamr.fields import INVALID_REQUEST
from catchment.wire.streamr.kinds import Control, ControlType, ErrorCode
from catchment.wire.streamr.message import SignatureType, StreamMessage
from catchment.wire.streamr.partition import partition_of
from catchment.wire.streamr.publish import Published

MAX_FRAME: Final = 1024 * 1024
"""facts/streamr.md, section 1: maxPayloadLength 1 MiB."""

MAX_RESEND_LAST: Final = 10_000
"""facts/streamr.md, section 6: numberLast is capped."""

MAX_SUBSCRIPTIONS: Final = 10_000
MAX_REMEMBERED: Final = 1_000
"""Stream-partitions of which a session remembers its last publish of control 0."""

OLDEST: Final = (legacy.VERSION, 28)
"""What a client speaks that says nothing about it (facts/streamr.md, section 1)."""


def negotiate(query: Mapping[str, str]) -> tuple[int, int]:
    """The pair of versions an upgrade request asks for.

    A request that does not name both comes from a client older than negotiation, as old brokers took it.

    Raises:
        PeerFault: a version is no number or not supported (facts/streamr.md, section 1: answered with HTTP 400).
    """
    if "controlLayerVersion" not in query or "messageLayerVersion" not in query:
        return OLDEST
    return (
        _supported(query, "controlLayerVersion", control.SUPPORTED),
        _supported(query, "messageLayerVersion", message.ROWS),
    )


def _supported(query: Mapping[str, str], name: str, versions: Iterable[int]) -> int:
    value, known = query[name], sorted(versions)
    if not (value.isascii() and value.isdecimal()) or len(value) > 4 or int(value) not in known:
        raise PeerFault(f"Unsupported {name} {value[:20]!r}: this node supports {known}.", code=INVALID_REQUEST)
    return int(value)


class StreamrSession(TextSession):
    """One client's conversation."""

    protocol = model.Protocol.STREAMR
    max_frame = MAX_FRAME

    def __init__(
        self,
        control_version: int,
        message_version: int,
        *,
        publish_ack: bool,
        access: Access | None = None,
        pairs: Pairs = PAIRS,
    ) -> None:
        """Begin a conversation.

        Args:
            control_version: what the client is answered in.
            message_version: what it is shown messages in.
            publish_ack: whether it wants to hear of success.
            access: who may do what where; without one everything is allowed in every partition.
            pairs: how the node shows its messages.
        """
        self.version = message_version
        self._pair = pairs[control_version, message_version]
        self.form = self._pair.form
        self._control_version = control_version
        self._publish_ack = publish_ack
        self._access = access
        self._topics: dict[model.Topic, Caller] = {}
        """What is subscribed to, and for whom."""
        self._last_shown: dict[int, Shown] = {}
        """What was shown last in each resend under way, by the identity of its request."""
        self._last_legacy: dict[tuple[str, int, str], tuple[int, int]] = {}
        """Timestamp and sequence of the last publish of control 0, by stream, partition and publisher."""
        self._unkeyed = 0

    @classmethod
    def open(cls, query: Mapping[str, str], access: Access | None = None, pairs: Pairs = PAIRS) -> StreamrSession:
        """Begin the conversation an upgrade request asks for.

        Raises:
            PeerFault: the versions asked for are not supported.
        """
        control_version, message_version = negotiate(query)
        acknowledge = query.get("publishAck") == "1"
        return cls(control_version, message_version, publish_ack=acknowledge, access=access, pairs=pairs)

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
                return (self.publish(usual, now),)
            if legacy.is_request(data):
                old = legacy.decode_request(data)
                if isinstance(old, legacy.PublishRequest):
                    return (self._publish_legacy(old, now),)
                request = legacy.to_control(old)
            else:
                request = control.decode(data)
            request_id = request.request_id
            if request.type is ControlType.PUBLISH_REQUEST:
                parsed, raw = message.read(bytes(request.message))
                return (self.publish(Published(request_id, parsed, raw, request.session_token), now),)
            return (self._handle(request, now),)
        except PeerFault as fault:
            metrics.REQUESTS_INVALID.labels("streamr", fault.reason).inc()
            return (Send(self._error(fault.request_id or request_id, fault.message, fault.code)),)

    def frame_too_large(self, size: int, head: bytes) -> Sequence[Command]:
        """Word the refusal of a frame that is not read, under its request id where the head shows one."""
        metrics.REQUESTS_INVALID.labels("streamr", ErrorCode.INVALID_REQUEST).inc()
        text = f"A frame of {size} bytes is over the limit of {self.max_frame}."
        return (Send(self._error(control.request_id_in_head(head), text, ErrorCode.INVALID_REQUEST)),)

    def published(self, request_id: str, status: Status, verdict: model.Verdict) -> bytes | None:
        """Answer a publish: silence is success in every version, unless the client asked for more."""
        if status is Status.REFUSED:
            code, text = _REFUSALS[verdict]
            return self._error(request_id, text, code)
        if status is Status.FAILED:
            text = "Publish request failed: the node cannot store messages at the moment. Send it again later."
            return self._error(request_id, text, ErrorCode.REQUEST_FAILED)
        if not self._publish_ack:
            return None  # every version takes silence for success
        outcome = "stored" if status is Status.STORED else "duplicate"
        return control.publish_acknowledged(request_id, outcome, self._control_version)

    def refused(self, request_id: str, fault: PeerFault) -> bytes:
        """Answer a publish that was refused for a reason of its own."""
        return self._error(request_id, fault.message, fault.code)

    def resend_started(self, request: Resend) -> bytes | None:
        """ResendResponseResending goes just before the first message (facts/streamr.md, section 6)."""
        return self._resend_response(ControlType.RESEND_RESPONSE_RESENDING, request)

    def resend_message(self, request: Resend, entry: model.Entry) -> bytes:
        """One UnicastMessage, or what is said instead to a client that cannot be shown it."""
        payload, shown = self._pair.unicast(request.request_id, entry, self._last_shown.get(id(request)))
        if shown is not None:
            self._last_shown[id(request)] = shown
        return payload

    def resend_ended(self, request: Resend, count: int) -> bytes:
        """ResendResponseResent, or NoResend when there was nothing."""
        self._last_shown.pop(id(request), None)
        kind = ControlType.RESEND_RESPONSE_RESENT if count else ControlType.RESEND_RESPONSE_NO_RESEND
        return self._resend_response(kind, request)

    def resend_failed(self, request: Resend) -> bytes:
        """The history could not be read: our fault, no detail."""
        self._last_shown.pop(id(request), None)
        topic = request.question.topic
        text = f"Failed to resend from stream {topic.name} and partition {topic.partition}. Ask again later."
        return self._error(request.request_id, text, ErrorCode.RESEND_FAILED)

    def publish(self, request: Published, now: int) -> Publish:
        """A message somebody wants kept and delivered.

        Raises:
            PeerFault: it cannot be taken, whatever its signature proves.
        """
        request_id, parsed, raw, token = request
        publish = prepare(self._access, parsed, raw, now, token)
        publish.request_id = request_id
        publish.acknowledge = self._publish_ack
        return publish

    def _publish_legacy(self, request: legacy.PublishRequest, now: int) -> Publish:
        """A publish of control 0 is kept as the message 30 the node makes of it (DESIGN.md, "Rules that follow")."""
        made = legacy.stream_message(request, partition=self._partition(request), now_ms=now // 1000, sequence=0)
        if made.signature_type is SignatureType.NONE:
            made = self._numbered(made)
        token, key = legacy.given(request.session_token), legacy.given(request.auth_key)
        # What ETH signs has a sequence; nothing else does.
        unnumbered = made.signature_type is SignatureType.NONE
        publish = prepare(self._access, made, message.encode(made), now, token, key, unnumbered=unnumbered)
        publish.acknowledge = self._publish_ack
        return publish

    def _numbered(self, made: StreamMessage) -> StreamMessage:
        """The sequence that follows this session's last publish of the same time, which is most likely free."""
        msg_id = made.msg_id
        chain = (msg_id.stream_id, msg_id.stream_partition, msg_id.publisher_id)
        timestamp, sequence = self._last_legacy.get(chain, (-1, -1))
        sequence = sequence + 1 if timestamp == msg_id.timestamp else 0
        if len(self._last_legacy) >= MAX_REMEMBERED:
            self._last_legacy.clear()
        self._last_legacy[chain] = (msg_id.timestamp, sequence)
        return made if not sequence else with_sequence(made, sequence)

    def _partition(self, request: legacy.PublishRequest) -> int:
        """The partition of the key; without one, each in turn (facts/streamr.md, section 5: any)."""
        partitions = 1 if self._access is None else self._access.stream(request.stream).partitions
        if request.pkey is msgspec.UNSET or request.pkey is None:
            self._unkeyed += 1
            return self._unkeyed % partitions
        return partition_of(request.pkey, partitions)

    def _handle(self, request: Control, now: int) -> Command:
        handler = _HANDLERS.get(request.type)
        if handler is None:
            raise PeerFault(f"{request.type.document_name} is not a request.", code=ErrorCode.INVALID_REQUEST)
        return handler(self, request, now)

    def _check_subscribe(self, request: Control, now: int) -> model.Topic:
        """The stream-partition a client may subscribe to and read the history of.

        Raises:
            PeerFault: it may not.
        """
        return self._readable(request, now)[0]

    def _readable(self, request: Control, now: int) -> tuple[model.Topic, Caller]:
        caller = ANONYMOUS
        if self._access is not None:
            caller = self._access.authenticate(request.session_token, request.auth_key, now)
            self._access.check_subscribe(caller, request.stream_id, request.stream_partition)
        return model.Topic(request.stream_id, request.stream_partition), caller

    def recheck(self, stream_id: str) -> Sequence[Command]:
        """End the subscriptions to a stream that are no longer allowed: its permissions or partitions changed."""
        commands: list[Command] = []
        for topic, caller in list(self._topics.items()):
            if topic.name != stream_id or self._access is None:
                continue
            try:
                self._access.check_subscribe(caller, topic.name, topic.partition)
            except PeerFault as fault:
                del self._topics[topic]
                commands.append(Unsubscribe(topic, self._error("", fault.message, fault.code)))
        return commands

    def _subscribe(self, request: Control, now: int) -> Command:
        topic, caller = self._readable(request, now)
        if len(self._topics) >= MAX_SUBSCRIPTIONS:
            raise PeerFault(
                f"Too many subscriptions on one connection; {MAX_SUBSCRIPTIONS} are allowed.",
                code=ErrorCode.INVALID_REQUEST,
            )
        self._topics[topic] = caller
        return Subscribe(topic, self._stream_response(ControlType.SUBSCRIBE_RESPONSE, request.request_id, topic))

    def _unsubscribe(self, request: Control, now: int) -> Command:
        topic = model.Topic(request.stream_id, request.stream_partition)
        if topic not in self._topics:
            # Client 5.x looks for the words "Not subscribed to stream" (facts/streamr.md, section 7).
            raise PeerFault(
                f"Not subscribed to stream {topic.name} partition {topic.partition}!", code=ErrorCode.INVALID_REQUEST
            )
        del self._topics[topic]
        return Unsubscribe(topic, self._stream_response(ControlType.UNSUBSCRIBE_RESPONSE, request.request_id, topic))

    def resend(self, request: Control, now: int) -> Resend:
        """The history a request asks for.

        Raises:
            PeerFault: it may not be read, or the request contradicts itself.
        """
        topic = self._check_subscribe(request, now)
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


_FAILED: Final = "Publish request failed: "
_REFUSALS: Final = {
    model.Verdict.BAD_SIGNATURE: (
        ErrorCode.REQUEST_FAILED,
        _FAILED + "the signature is not that of the message's publisher.",
    ),
    model.Verdict.NOT_PERMITTED: (ErrorCode.PERMISSION_DENIED, "You are not allowed to write to this stream."),
    model.Verdict.BAD_ID: (ErrorCode.REQUEST_FAILED, _FAILED + "the id is not that of the message."),
    model.Verdict.MALFORMED: (ErrorCode.REQUEST_FAILED, _FAILED + "the message cannot be read."),
}

_HANDLERS: Final[Mapping[ControlType, Callable[[StreamrSession, Control, int], Command]]] = {
    ControlType.SUBSCRIBE_REQUEST: StreamrSession._subscribe,
    ControlType.UNSUBSCRIBE_REQUEST: StreamrSession._unsubscribe,
    ControlType.RESEND_LAST_REQUEST: StreamrSession.resend,
    ControlType.RESEND_FROM_REQUEST: StreamrSession.resend,
    ControlType.RESEND_RANGE_REQUEST: StreamrSession.resend,
}
"""What each request does; a type that is not here is none."""
