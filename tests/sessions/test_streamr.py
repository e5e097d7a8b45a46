"""Streamr conversations as playbooks: a frame in, the commands and answers that come out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment import metrics, model
from catchment.core.access import Access
from catchment.core.broker import Publish, Status
from catchment.errors import PeerFault
from catchment.model import MAX_SAFE_INTEGER, Range, Ref, Topic
from catchment.popstellar.hub import Hub
from catchment.sessions import streamr
from catchment.sessions.base import Command, Resend, Send, Subscribe, Unsubscribe
from catchment.sessions.registry import BY_PATH, DIALECTS, House, Upgrade
from catchment.sessions.streamr import MAX_FRAME, MAX_RESEND_LAST, StreamrSession, negotiate
from catchment.sessions.streamr_forms import PAIRS
from catchment.sessions.streamr_publish import MAX_FUTURE_MS
from catchment.store.memory import MemoryStore
from catchment.wire.streamr.fields import MessageRef

from .mosaichelp import Room

NOW = 1_700_000_000_000_000
"""Microseconds; the messages of `make_message` are of that very millisecond."""

VERSIONS = {"controlLayerVersion": "2", "messageLayerVersion": "32"}

MakeMessage = Callable[..., bytes]


@pytest.fixture
def session() -> StreamrSession:
    return StreamrSession.open(VERSIONS)


def says(session: StreamrSession, frame: str | bytes | Sequence[Any], *, now: int = NOW, text: bool = True) -> Command:
    """The one command a frame leads to."""
    if isinstance(frame, str):
        data = frame.encode()
    elif isinstance(frame, bytes):
        data = frame
    else:
        data = json.dumps(frame).encode()
    commands = session.receive(data, text=text, now=now)
    assert len(commands) == 1
    return commands[0]


def error_of(command: Command) -> tuple[str, str, str]:
    """(request id, code, text) of an ErrorResponse."""
    assert isinstance(command, Send), command
    version, kind, request_id, text, code = json.loads(command.payload)
    assert (version, kind) == (2, 7)
    return request_id, code, text


class TestRequests:
    """What each request makes the node do, and how it is answered."""

    TOPIC = Topic("s", 3)

    @pytest.mark.parametrize(
        ("frame", "topic", "answer"),
        [
            ([2, 9, "r", "s", 3, "tok"], Topic("s", 3), [2, 2, "r", "s", 3]),
            ([2, 9, "r", "s", 3, None], Topic("s", 3), [2, 2, "r", "s", 3]),
            ([2, 9, "r", "s", 3], Topic("s", 3), [2, 2, "r", "s", 3]),
            ([2, 9, "r", "s", None, "tok"], Topic("s", 0), [2, 2, "r", "s", 0]),
            ([2, 9, "r", "s"], Topic("s", 0), [2, 2, "r", "s", 0]),
            ([2, 9, "", "s"], Topic("s", 0), [2, 2, "", "s", 0]),
            ([2, 9, "ä\u0000", "strömm/ä", 1], Topic("strömm/ä", 1), [2, 2, "ä\u0000", "strömm/ä", 1]),
        ],
    )
    def test_subscribe_then_unsubscribe(
        self, session: StreamrSession, frame: list[Any], topic: Topic, answer: list[Any]
    ) -> None:
        command = says(session, frame)
        assert isinstance(command, Subscribe)
        assert command.topic == topic
        assert json.loads(command.answer) == answer
        command = says(session, [2, 10, "u", topic.name, topic.partition])
        assert isinstance(command, Unsubscribe)
        assert command.topic == topic
        assert json.loads(command.answer) == [2, 3, "u", topic.name, topic.partition]

    def test_unsubscribe_without_partition(self, session: StreamrSession) -> None:
        says(session, [2, 9, "r", "s", 0])
        command = says(session, [2, 10, "u", "s"])
        assert isinstance(command, Unsubscribe)
        assert json.loads(command.answer) == [2, 3, "u", "s", 0]

    def test_subscribing_twice_is_answered_twice_and_ends_once(self, session: StreamrSession) -> None:
        for request_id in ("a", "b"):
            command = says(session, [2, 9, request_id, "s", 0])
            assert isinstance(command, Subscribe)
            assert json.loads(command.answer)[2] == request_id
        assert isinstance(says(session, [2, 10, "u", "s", 0]), Unsubscribe)
        assert "Not subscribed" in error_of(says(session, [2, 10, "u", "s", 0]))[2]

    @pytest.mark.parametrize(
        ("asked", "last"), [(0, 0), (1, 1), (10_000, 10_000), (10_001, 10_000), (MAX_SAFE_INTEGER, MAX_RESEND_LAST)]
    )
    def test_resend_last(self, session: StreamrSession, asked: int, last: int) -> None:
        assert says(session, [2, 11, "r", "s", 3, asked, "tok"]) == Resend("r", Range(self.TOPIC), last=last)
        assert says(session, [2, 11, "r", "s", None, asked]) == Resend("r", Range(Topic("s", 0)), last=last)

    @pytest.mark.parametrize(
        ("rest", "start", "publisher", "chain"),
        [
            ([[5, 6], None, None], Ref(5, 6), None, None),
            ([[5, 6], None], Ref(5, 6), None, None),
            ([[5, None], None, None], Ref(5, 0), None, None),
            ([[5], None, None], Ref(5, 0), None, None),
            ([[5, 6], "0xAB", "tok"], Ref(5, 6), "0xab", None),
            ([[5, 6], "Name", "tok"], Ref(5, 6), "Name", None),
            ([[5, 6], "0xAB", "ch", "tok"], Ref(5, 6), "0xab", "ch"),
            ([[5, 6], "0xAB", "ch", None], Ref(5, 6), "0xab", "ch"),
            ([[5, 6], "0xAB", None, None], Ref(5, 6), "0xab", None),
        ],
    )
    def test_resend_from(
        self, session: StreamrSession, rest: list[Any], start: Ref, publisher: str | None, chain: str | None
    ) -> None:
        question = Range(self.TOPIC, start, model.LAST_REF, publisher=publisher, chain=chain)
        assert says(session, [2, 12, "r", "s", 3, *rest]) == Resend("r", question)

    @pytest.mark.parametrize(
        ("first", "last", "start", "end"),
        [
            ([5, 6], [7, 8], Ref(5, 6), Ref(7, 8)),
            ([5, 6], [5, 6], Ref(5, 6), Ref(5, 6)),
            ([5], [5], Ref(5, 0), Ref(5, MAX_SAFE_INTEGER)),
            ([5, 9], [5, None], Ref(5, 9), Ref(5, MAX_SAFE_INTEGER)),
            ([0, 0], [MAX_SAFE_INTEGER, MAX_SAFE_INTEGER], Ref(0, 0), model.LAST_REF),
        ],
    )
    @pytest.mark.parametrize("who", [(None, None), ("0xAB", "ch")])
    def test_resend_range(
        self,
        session: StreamrSession,
        first: list[Any],
        last: list[Any],
        start: Ref,
        end: Ref,
        who: tuple[str | None, str | None],
    ) -> None:
        publisher = None if who[0] is None else who[0].lower()
        question = Range(self.TOPIC, start, end, publisher=publisher, chain=who[1])
        assert says(session, [2, 13, "r", "s", 3, first, last, *who, "tok"]) == Resend("r", question)

    def test_resend_answers(self, session: StreamrSession, make_message: MakeMessage) -> None:
        request = says(session, [2, 11, "r", "s", 3, 5])
        assert isinstance(request, Resend)
        published = says(session, b'[2,8,"p",%b]' % make_message())
        assert isinstance(published, Publish)
        assert session.resend_started(request) == b'[2,4,"r","s",3]'
        assert session.resend_message(request, published.entry) == b'[2,1,"r",%b]' % make_message()
        assert session.resend_ended(request, 1) == b'[2,5,"r","s",3]'
        assert session.resend_ended(request, 0) == b'[2,6,"r","s",3]'
        request_id, code, text = error_of(Send(session.resend_failed(request)))
        assert (request_id, code) == ("r", "RESEND_FAILED")
        assert "stream s and partition 3" in text

    def test_what_is_sent_to_subscribers(self, session: StreamrSession, make_message: MakeMessage) -> None:
        published = says(session, b'[2,8,"p",%b]' % make_message())
        assert isinstance(published, Publish)
        assert session.form.encode(published.entry) == b'[2,0,"",%b]' % make_message()
        assert StreamrSession.open(VERSIONS).form is session.form  # shared, so that it is encoded once
        assert session.form is PAIRS[2, 32].form


class TestPublish:
    def judged(self, command: Command) -> tuple[Publish, model.Verdict]:
        assert isinstance(command, Publish), command
        return command, model.Verdict.UNSIGNED if command.check is None else command.check()

    def test_signed(self, session: StreamrSession, make_message: MakeMessage) -> None:
        raw = make_message()
        publish, verdict = self.judged(says(session, b'[2,8,"r",%b,"secret"]' % raw))
        assert verdict is model.Verdict.OK
        assert (publish.request_id, publish.entry.raw) == ("r", raw)
        assert publish.entry.raw == raw
        assert publish.entry.received_at == NOW
        assert publish.entry.kind is model.Kind.MESSAGE

    def test_forged(self, session: StreamrSession, make_message: MakeMessage) -> None:
        _, verdict = self.judged(says(session, b'[2,8,"r",%b]' % make_message(forge=True)))
        assert verdict is model.Verdict.BAD_SIGNATURE

    def test_unsigned_needs_no_check(self, session: StreamrSession, make_message: MakeMessage) -> None:
        publish, _ = self.judged(says(session, b'[2,8,"r",%b]' % make_message(sign=False)))
        assert publish.check is None
        assert publish.entry.verdict is model.Verdict.UNSIGNED

    def test_the_message_is_kept_as_it_came(self, session: StreamrSession, make_message: MakeMessage) -> None:
        spaced = json.dumps(json.loads(make_message()), indent=1).replace("river", "\\u0072iver").encode()
        publish, verdict = self.judged(says(session, b'[ 2 , 8 , "r" , %b , "secret" ]' % spaced))
        assert verdict is model.Verdict.OK
        assert publish.entry.raw == spaced
        assert b"secret" not in publish.entry.raw
        assert publish.entry.topic == "river"

    def test_key_exchange_is_a_kind_of_its_own(self, session: StreamrSession, make_message: MakeMessage) -> None:
        raw = make_message(
            message_type=28, stream_id="SYSTEM/keyexchange/0x" + "ab" * 20, content='["r","s","PEM",["key-1"]]'
        )
        publish, _ = self.judged(says(session, b'[2,8,"r",%b]' % raw))
        assert publish.entry.kind is model.Kind.KEYEXCHANGE

    @pytest.mark.parametrize(("ahead", "allowed"), [(0, True), (MAX_FUTURE_MS, True), (MAX_FUTURE_MS + 1, False)])
    @pytest.mark.parametrize("fraction", [0, 999])
    def test_future_timestamps(
        self, session: StreamrSession, make_message: MakeMessage, ahead: int, allowed: bool, fraction: int
    ) -> None:
        raw = make_message(timestamp=NOW // 1000 + ahead)
        command = says(session, b'[2,8,"r",%b]' % raw, now=NOW + fraction)
        if allowed:
            assert isinstance(command, Publish)
        else:
            request_id, code, text = error_of(command)
            assert (request_id, code) == ("r", "FUTURE_TIMESTAMP")
            assert text == (
                "Failed publish to stream river, reason: future timestamps are not allowed, max allowed +300000 ms"
            )

    @pytest.mark.parametrize("timestamp", [0, 1])
    def test_the_past_is_welcome(self, session: StreamrSession, make_message: MakeMessage, timestamp: int) -> None:
        assert isinstance(says(session, b'[2,8,"r",%b]' % make_message(timestamp=timestamp)), Publish)

    @pytest.mark.parametrize("acknowledge", [True, False])
    @pytest.mark.parametrize("status", [Status.STORED, Status.DUPLICATE])
    def test_success(self, acknowledge: bool, status: Status, make_message: MakeMessage) -> None:
        session = StreamrSession.open(VERSIONS | ({"publishAck": "1"} if acknowledge else {}))
        answer = session.published("r", status, model.Verdict.OK)
        word = {Status.STORED: b"stored", Status.DUPLICATE: b"duplicate"}[status]
        assert answer == (b'[2,100,"r","%b"]' % word if acknowledge else None)
        command = says(session, b'[2,8,"r",%b]' % make_message())
        assert isinstance(command, Publish)
        assert command.acknowledge is acknowledge

    @pytest.mark.parametrize("value", ["0", "", "true", "yes"])
    def test_only_1_asks_for_acknowledgements(self, value: str) -> None:
        session = StreamrSession.open(VERSIONS | {"publishAck": value})
        assert session.published("r", Status.STORED, model.Verdict.OK) is None

    @pytest.mark.parametrize("verdict", [verdict for verdict in model.Verdict if not verdict.accepted])
    @pytest.mark.parametrize("query", [{}, {"publishAck": "1"}])
    def test_refused(self, query: Mapping[str, str], verdict: model.Verdict) -> None:
        answer = StreamrSession.open(VERSIONS | query).published("r", Status.REFUSED, verdict)
        assert answer is not None
        request_id, code, text = error_of(Send(answer))
        denied = verdict is model.Verdict.NOT_PERMITTED
        assert (request_id, code) == ("r", "PERMISSION_DENIED" if denied else "REQUEST_FAILED")
        assert text.startswith("You are not allowed to write" if denied else "Publish request failed: ")

    @pytest.mark.parametrize("query", [{}, {"publishAck": "1"}])
    def test_failed(self, query: Mapping[str, str]) -> None:
        answer = StreamrSession.open(VERSIONS | query).published("r", Status.FAILED, model.Verdict.OK)
        assert answer is not None
        request_id, code, text = error_of(Send(answer))
        assert (request_id, code) == ("r", "REQUEST_FAILED")
        assert "later" in text

    def test_captured_from_a_client(self, session: StreamrSession, shared_captured_frame: str) -> None:
        assert not isinstance(says(session, shared_captured_frame, now=1_794_706_091_000_000), Send)


REF = [1, 0]
BOMB = "[" * 50_000 + "]" * 50_000

BAD: dict[str, tuple[str | list[Any], str, str]] = {
    "not json": ("hello", "", "not valid JSON"),
    "empty": ("", "", "not valid JSON"),
    "half a frame": ('[2,9,"r","s"', "", "not valid JSON"),
    "two frames": ('[2,9,"r","s"][2,9,"r","s"]', "", "not valid JSON"),
    "an object without a stream": ('{"type":"subscribe"}', "", "missing required field `stream`"),
    "an object of no known type": ('{"type":"publsh","stream":"s"}', "", "Unknown request type"),
    "an object without a type": ('{"stream":"s"}', "", "missing required field `type`"),
    "an empty array": ([], "", "array that begins with its version"),
    "version 1, whose third element is no id": ([1, 9, "r", "s"], "", "streamPartition"),
    "version 0, which has objects": ([0, 9, "r", "s"], "", "not known in control 0"),
    "version 3": ([3, 9, "r", "s"], "r", "version 3 is not supported"),
    "version as text": (["2", 9, "r", "s"], "r", "array that begins with its version"),
    "version as a float": ('[2.0,9,"r","s"]', "r", "array that begins with its version"),
    "unknown type": ([2, 14, "r", "s"], "r", "type of this control message is not known"),
    "type as a float": ('[2,9.0,"r","s"]', "r", "array that begins with its version"),
    "type as text": ([2, "9", "r", "s"], "r", "array that begins with its version"),
    "type null": ([2, None, "r", "s"], "r", "array that begins with its version"),
    "id as a number": ([2, 9, 7, "s"], "", "requestId"),
    "id null": ([2, 9, None, "s"], "", "requestId"),
    "no id": ([2, 9], "", "SubscribeRequest"),
    "no stream": ([2, 9, "r"], "r", "SubscribeRequest"),
    "stream empty": ([2, 9, "r", ""], "r", "streamId"),
    "stream a number": ([2, 9, "r", 5, 0, None], "r", "streamId"),
    "partition a float": ('[2,9,"r","s",0.0]', "r", "streamPartition"),
    "partition with an exponent": ('[2,9,"r","s",1e0]', "r", "streamPartition"),
    "partition negative": ([2, 9, "r", "s", -1], "r", "streamPartition"),
    "partition beyond 2**53": ([2, 9, "r", "s", 2**53], "r", "streamPartition"),
    "partition beyond 2**64": ([2, 9, "r", "s", 2**64], "r", "streamPartition"),
    "partition as text": ([2, 9, "r", "s", "0"], "r", "streamPartition"),
    "partition true": ([2, 9, "r", "s", True], "r", "streamPartition"),
    "token a number": ([2, 9, "r", "s", 0, 5], "r", "sessionToken"),
    "subscribe, surplus": ([2, 9, "r", "s", 0, None, None], "r", "at most length 6"),
    "unsubscribe, surplus": ([2, 10, "r", "s", 0, None], "r", "at most length 5"),
    "publish, surplus": ([2, 8, "r", [], None, None], "r", "at most length 5"),
    "resend last, surplus": ([2, 11, "r", "s", 0, 1, None, None], "r", "at most length 7"),
    "resend from, surplus": ([2, 12, "r", "s", 0, REF, None, None, None, None], "r", "at most length 9"),
    "resend range, surplus": ([2, 13, "r", "s", 0, REF, REF, None, None, None, None], "r", "at most length 10"),
    "publish, no message": ([2, 8, "r"], "r", "PublishRequest"),
    "publish, message null": ([2, 8, "r", None], "r", "not an array that begins with its version"),
    "publish, message text": ([2, 8, "r", "[32]"], "r", "not an array that begins with its version"),
    "publish, message 27": ([2, 8, "r", [27]], "r", "Message version 27 is not supported"),
    "publish, message too short": ([2, 8, "r", [32]], "r", "Message 32"),
    "resend last, none named": ([2, 11, "r", "s", 0], "r", "ResendLastRequest"),
    "resend last, float": ('[2,11,"r","s",0,1.5]', "r", "numberLast"),
    "resend last, negative": ([2, 11, "r", "s", 0, -1], "r", "numberLast"),
    "resend last, null": ([2, 11, "r", "s", 0, None], "r", "numberLast"),
    "resend from, no reference": ([2, 12, "r", "s", 0, None, None], "r", "fromMsgRef"),
    "resend from, reference a number": ([2, 12, "r", "s", 0, 5, None], "r", "fromMsgRef"),
    "resend from, reference of floats": ('[2,12,"r","s",0,[1.5,0],null]', "r", "fromMsgRef.timestamp"),
    "resend from, reference beyond": ([2, 12, "r", "s", 0, [1, 2**53], None], "r", "fromMsgRef.sequenceNumber"),
    "range backwards in time": ([2, 13, "r", "s", 0, [6, 0], [5, 9], None, None], "r", "is after toMsgRef"),
    "range backwards in sequence": ([2, 13, "r", "s", 0, [5, 3], [5, 2], None, None], "r", "is after toMsgRef"),
    "range, publisher without chain": ([2, 13, "r", "s", 0, REF, REF, "p", None], "r", "Invalid combination"),
    "range, chain without publisher": ([2, 13, "r", "s", 0, REF, REF, None, "c"], "r", "Invalid combination"),
    "not subscribed": ([2, 10, "r", "s", 4], "r", "Not subscribed to stream s partition 4!"),
    "bomb as message": (f'[2,8,"r",{BOMB}]', "r", "nested too deeply"),
    "bomb as partition": (f'[2,9,"r","s",{BOMB}]', "r", "nested too deeply"),
    "bomb as the frame": (BOMB, "", "array that begins with its version"),
    "long number": (f'[2,9,"r","s",{"9" * 100_000}]', "r", "streamPartition"),
    "lone surrogate": ('[2,9,"r","\\ud800 and more text"]', "", "not valid JSON"),
} | {
    f"a response: {kind}": (frame, frame[2], "is not a request")
    for kind, frame in {
        "broadcast": [2, 0, "", []],
        "unicast": [2, 1, "r", []],
        "subscribed": [2, 2, "r", "s", 0],
        "unsubscribed": [2, 3, "r", "s", 0],
        "resending": [2, 4, "r", "s", 0],
        "resent": [2, 5, "r", "s", 0],
        "no resend": [2, 6, "r", "s", 0],
        "error": [2, 7, "r", "text", "CODE"],
        "acknowledged": [2, 100, "r", "stored"],
    }.items()
}


class TestBadInput:
    @pytest.mark.parametrize(("frame", "request_id", "words"), BAD.values(), ids=list(BAD))
    def test_is_answered_and_the_conversation_goes_on(
        self, session: StreamrSession, frame: str | list[Any], request_id: str, words: str
    ) -> None:
        answered, code, text = error_of(says(session, frame))
        assert (answered, code) == (request_id, "INVALID_REQUEST")
        assert words in text
        assert isinstance(says(session, [2, 9, "after", "s"]), Subscribe)

    @pytest.mark.parametrize(
        ("position", "within", "value", "words"),
        [
            (0, None, 33, "Message version 33"),
            (1, 2, 1.7e12, "msgId.timestamp"),
            (1, 2, 2**53, "msgId.timestamp"),
            (1, 2, -1, "msgId.timestamp"),
            (1, 1, True, "msgId.streamPartition"),
            (1, 1, None, "msgId.streamPartition"),
            (1, 0, "", "msgId.streamId"),
            (2, None, [1.5, 0], "prevMsgRef.timestamp"),
            (2, None, [1_700_000_000_000, 0], "must come before"),
            (3, None, 99, "messageType"),
            (7, None, ["an", "array"], "content"),
            (7, None, "", "content"),
            (10, None, None, "no signature"),
            (9, None, 0, "there is a signature"),
        ],
    )
    def test_messages(
        self,
        session: StreamrSession,
        make_message: MakeMessage,
        position: int,
        within: int | None,
        value: Any,
        words: str,
    ) -> None:
        elements = json.loads(make_message())
        if within is None:
            elements[position] = value
        else:
            elements[position][within] = value
        request_id, code, text = error_of(says(session, [2, 8, "r", elements, None]))
        assert (request_id, code) == ("r", "INVALID_REQUEST")
        assert words in text

    @pytest.mark.parametrize(
        "data", [b'[2,9,"r","\xff"]', b"\xff\xfe", b'[2,8,"r",["\xff"],null]', b'[2,9,"\xed\xa0\x80","s"]']
    )
    def test_invalid_utf8(self, session: StreamrSession, data: bytes) -> None:
        assert error_of(says(session, data))[1] == "INVALID_REQUEST"

    def test_binary_frames(self, session: StreamrSession) -> None:
        request_id, code, text = error_of(says(session, [2, 9, "r", "s"], text=False))
        assert (request_id, code) == ("", "INVALID_REQUEST")
        assert "binary" in text

    def test_frames_over_the_limit(self, session: StreamrSession) -> None:
        (command,) = session.frame_too_large(MAX_FRAME + 1, b"[" * 100)
        request_id, code, text = error_of(command)
        assert (request_id, code) == ("", "INVALID_REQUEST")
        (command,) = session.frame_too_large(MAX_FRAME + 1, b'[2,8,"r",[32,["s",0')
        assert error_of(command)[:2] == ("r", "INVALID_REQUEST")
        assert str(MAX_FRAME) in text
        assert session.max_frame == MAX_FRAME == 1024 * 1024

    def test_a_frame_at_the_limit(self, session: StreamrSession, make_message: MakeMessage) -> None:
        overhead = len(b'[2,8,"r",%b]' % make_message(content="x"))
        frame = b'[2,8,"r",%b]' % make_message(content="x" * (MAX_FRAME - overhead + 1))
        assert len(frame) == MAX_FRAME
        assert isinstance(says(session, frame), Publish)

    def test_a_refused_subscribe_is_no_subscription(self, session: StreamrSession) -> None:
        says(session, [2, 9, "r", "s", 0, None, "surplus"])
        assert "Not subscribed" in error_of(says(session, [2, 10, "u", "s", 0]))[2]

    def test_is_counted(self, session: StreamrSession) -> None:
        def counted() -> float:
            return metrics.REQUESTS_INVALID.labels("streamr", "INVALID_REQUEST")._value.get()

        before = counted()
        says(session, "hello")
        session.frame_too_large(MAX_FRAME + 1, b"")
        assert counted() == before + 2

    @given(st.binary(max_size=100), st.booleans())
    def test_any_bytes_are_answered(self, data: bytes, text: bool) -> None:
        commands = StreamrSession.open(VERSIONS).receive(data, text=text, now=NOW)
        assert len(commands) == 1

    @given(
        st.integers(0, 15),
        st.lists(
            st.none() | st.booleans() | st.integers(-2, 2**54) | st.text(max_size=5) | st.lists(st.integers(0, 9)),
            max_size=9,
        ),
    )
    def test_any_array_is_answered(self, kind: int, rest: list[Any]) -> None:
        (command,) = StreamrSession.open(VERSIONS).receive(json.dumps([2, kind, *rest]).encode(), text=True, now=NOW)
        if isinstance(command, Send):
            request_id, code, _ = error_of(command)
            assert code == "INVALID_REQUEST"
            assert request_id == (rest[0] if rest and isinstance(rest[0], str) else "")


class TestNegotiation:
    @pytest.mark.parametrize("pair", sorted(PAIRS))
    def test_every_pair(self, pair: tuple[int, int]) -> None:
        """Brokers accepted any pair of supported versions (facts/streamr.md, section 1)."""
        asked = {"controlLayerVersion": str(pair[0]), "messageLayerVersion": str(pair[1])}
        assert negotiate(asked) == pair
        assert negotiate(asked | {"streamrClient": "5.2.1"}) == pair
        assert StreamrSession.open(asked).version == pair[1]

    def test_the_pairs(self) -> None:
        assert set(PAIRS) == {(control, version) for control in (0, 1, 2) for version in range(28, 33)}

    @pytest.mark.parametrize(
        "query", [{}, {"controlLayerVersion": "2"}, {"messageLayerVersion": "32"}, {"controllayerversion": "2"}]
    )
    def test_a_client_that_does_not_name_both_is_older_than_negotiation(self, query: Mapping[str, str]) -> None:
        assert negotiate(query) == (0, 28)

    @pytest.mark.parametrize("name", VERSIONS)
    @pytest.mark.parametrize(
        "value", ["", "3", "27", "33", "2.0", "-2", "+2", " 2", "x", "\u0662", "²", "9" * 5000, "2\x00"]
    )
    def test_unsupported(self, name: str, value: str) -> None:
        with pytest.raises(PeerFault, match=f"Unsupported {name}") as caught:
            StreamrSession.open(VERSIONS | {name: value})
        assert len(caught.value.message) < 200

    def test_the_registry_knows_the_path(self) -> None:
        dialect = BY_PATH["/api/v1/ws"]
        assert dialect in DIALECTS
        session = dialect.open(
            Upgrade(VERSIONS), House(Access(open_to_all=True), Room().house, Hub(bytes(32), MemoryStore()), PAIRS)
        )
        assert (session.protocol, session.version, session.max_frame) == (dialect.protocol, 32, dialect.max_frame)


def test_two_clients_in_one_conversation(make_message: MakeMessage) -> None:
    """What one publishes, in whatever spelling, the other reads as the same bytes."""
    publisher, subscriber = StreamrSession.open(VERSIONS), StreamrSession.open(VERSIONS)
    assert isinstance(says(subscriber, [2, 9, "sub", "river", 0]), Subscribe)
    raw = make_message(prev_msg_ref=MessageRef(1, 0))
    command = says(publisher, b'[2,8,"pub",%b,"secret"]' % raw)
    assert isinstance(command, Publish)
    delivered = subscriber.form.encode(command.entry)
    assert delivered == b'[2,0,"",%b]' % raw
    assert bytes(msgspec.json.decode(delivered, type=list[msgspec.Raw])[3]) == raw


def test_one_connection_cannot_hold_any_number_of_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamr, "MAX_SUBSCRIPTIONS", 3)
    session = streamr.StreamrSession(2, 32, publish_ack=False)
    for number in range(3):
        assert isinstance(session.receive(b'[2,9,"r","s%d",0]' % number, text=True, now=0)[0], Subscribe)
    (refused,) = session.receive(b'[2,9,"r","s3",0]', text=True, now=0)
    assert isinstance(refused, Send)
    assert b"Too many subscriptions" in refused.payload
    assert isinstance(session.receive(b'[2,10,"r","s1",0]', text=True, now=0)[0], Unsubscribe)
    assert isinstance(session.receive(b'[2,9,"r","s3",0]', text=True, now=0)[0], Subscribe)


@pytest.mark.parametrize(
    "frame",
    [
        b'[2,9,"r","%b",0]' % (b"x" * 1025),
        b'[2,9,"%b","s",0]' % (b"x" * 257),
        b'[2,8,"r",[32,["s",0,1,0,"","%b"],null,27,0,0,null,"{}",null,0,null],null]' % (b"x" * 1025),
    ],
)
def test_names_are_bounded(frame: bytes) -> None:
    session = streamr.StreamrSession(2, 32, publish_ack=False)
    (refused,) = session.receive(frame, text=True, now=0)
    assert isinstance(refused, Send)
    assert b"INVALID_REQUEST" in refused.payload
    assert len(refused.payload) < 500
