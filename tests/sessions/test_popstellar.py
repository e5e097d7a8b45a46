"""The conversation with a PoPStellar client: every query, every code, without a socket."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment import model
from catchment.core.broker import Publish, Status
from catchment.errors import OurFault, PeerFault
from catchment.sessions.base import Close, Send, Serve, Subscribe, Unsubscribe
from catchment.sessions.popstellar import MAX_FRAME, MAX_SUBSCRIPTIONS, PopstellarSession, topic_of
from catchment.store.memory import MemoryStore
from catchment.wire.popstellar import message
from catchment.wire.popstellar.channels import ROOT

from ..popstellar.world import KEYS, LAO, NOW, OWN, World, lao_create, roll_call_create, signed, witnessed


def frame(method: str, query_id: int | None = 1, **params: Any) -> bytes:
    value: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(value if query_id is None else value | {"id": query_id}).encode()


@pytest.fixture
def world() -> World:
    return World().with_roll_call()


@pytest.fixture
def session(world: World) -> PopstellarSession:
    return PopstellarSession(world.hub)


def receive(session: PopstellarSession, data: bytes, *, text: bool = True) -> list[Any]:
    return list(session.receive(data, text=text, now=NOW))


def error(session: PopstellarSession, data: bytes, *, text: bool = True) -> tuple[Any, int]:
    """The id and code of the one error a frame is answered with."""
    (command,) = receive(session, data, text=text)
    assert isinstance(command, Send)
    answer = json.loads(command.payload)
    assert answer.keys() == {"jsonrpc", "id", "error"}
    assert answer["error"]["description"]
    return answer["id"], answer["error"]["code"]


def answer(session: PopstellarSession, data: bytes) -> Any:
    """What a question about messages is answered with."""
    (command,) = receive(session, data)
    assert isinstance(command, Serve)
    (payload,) = command.source.page()
    assert command.source.done
    made = json.loads(payload)
    assert made["jsonrpc"] == "2.0"
    return made["result"]


class TestSubscriptions:
    def test_subscribe_and_unsubscribe(self, session: PopstellarSession) -> None:
        zero = b'{"jsonrpc":"2.0","id":7,"result":0}'
        assert receive(session, frame("subscribe", 7, channel=OWN)) == [Subscribe(topic_of(OWN), zero)]
        assert receive(session, frame("unsubscribe", 7, channel=OWN)) == [Unsubscribe(topic_of(OWN), zero)]

    def test_subscribing_twice_is_fine(self, session: PopstellarSession) -> None:
        for _ in range(2):
            (command,) = receive(session, frame("subscribe", channel=OWN))
            assert isinstance(command, Subscribe)

    def test_clients_do_not_subscribe_to_root(self, session: PopstellarSession) -> None:
        assert error(session, frame("subscribe", 3, channel=ROOT)) == (3, -5)
        assert error(session, frame("unsubscribe", 3, channel=ROOT)) == (3, -5)

    def test_an_unknown_channel(self, session: PopstellarSession) -> None:
        assert error(session, frame("subscribe", 3, channel="/root/none")) == (3, -2)
        assert error(session, frame("catchup", 4, channel="/root/none")) == (4, -2)

    def test_not_subscribed(self, session: PopstellarSession) -> None:
        assert error(session, frame("unsubscribe", 3, channel=OWN)) == (3, -2)

    def test_subscriptions_are_bounded(self, session: PopstellarSession) -> None:
        session._channels = {str(number) for number in range(MAX_SUBSCRIPTIONS)}
        assert error(session, frame("subscribe", 3, channel=OWN)) == (3, -5)


class TestPublishing:
    def test_a_message_goes_to_the_broker_with_its_gate(self, session: PopstellarSession, world: World) -> None:
        sent = signed("organizer", roll_call_create("second"))
        raw = json.loads(message.encode(sent))
        (command,) = receive(session, frame("publish", -4, channel=OWN, message=raw))
        assert isinstance(command, Publish)
        assert command.request_id == "-4"
        assert command.gate is world.hub
        assert (command.entry.topic, command.entry.publisher) == (OWN, KEYS["organizer"])
        assert command.check is not None
        assert command.check() is model.Verdict.OK
        assert world.hub.admit(command, NOW) == []

    @pytest.mark.parametrize(
        "changes", [{"data": "?"}, {"sender": KEYS["organizer"][:-1]}, {"more": 1}, {"witness_signatures": None}]
    )
    def test_what_is_no_message(self, session: PopstellarSession, changes: dict[str, Any]) -> None:
        raw = json.loads(message.encode(signed("organizer", roll_call_create()))) | changes
        assert error(session, frame("publish", 5, channel=OWN, message=raw)) == (5, -4)

    @pytest.mark.parametrize(
        ("status", "verdict", "code"),
        [
            (Status.STORED, model.Verdict.OK, 0),
            (Status.DUPLICATE, model.Verdict.OK, -3),
            (Status.REFUSED, model.Verdict.BAD_SIGNATURE, -4),
            (Status.REFUSED, model.Verdict.BAD_ID, -4),
            (Status.FAILED, model.Verdict.OK, -6),
        ],
    )
    def test_how_it_ended(self, session: PopstellarSession, status: Status, verdict: model.Verdict, code: int) -> None:
        made = session.published("-9", status, verdict)
        assert made is not None
        told = json.loads(made)
        assert told["id"] == -9
        assert told.get("result", told.get("error", {}).get("code")) == code

    def test_why_it_was_refused(self, session: PopstellarSession) -> None:
        told = json.loads(session.refused("3", PeerFault("because", code="-1")))
        assert (told["id"], told["error"]) == (3, {"code": -1, "description": "because"})

    def test_a_broadcast_is_the_message_on_its_channel(self, session: PopstellarSession, world: World) -> None:
        entry = world.log[-1]
        made = json.loads(session.form.encode(entry))
        assert made == {
            "jsonrpc": "2.0",
            "method": "broadcast",
            "params": {"channel": OWN, "message": json.loads(entry.raw)},
        }


class TestHistory:
    def test_catchup_is_complete_and_oldest_first(self, session: PopstellarSession, world: World) -> None:
        found = answer(session, frame("catchup", channel=OWN))
        assert [each["message_id"] for each in found] == world.state.channels[OWN].messages
        assert found == [json.loads(entry.raw) for entry in world.log]
        assert answer(session, frame("catchup", channel=ROOT)) == [json.loads(world.log[0].raw)]
        assert answer(session, frame("catchup", channel=f"{OWN}/coin")) == []

    def test_witness_signatures_are_merged(self, session: PopstellarSession, world: World) -> None:
        late = witnessed(world.sent[-1], "witness")
        assert world.bring(late, OWN) == 0
        found = answer(session, frame("catchup", channel=OWN))
        assert found[-1] == json.loads(message.encode(late))
        found = answer(session, frame("get_messages_by_id", **{OWN: [late.message_id]}))
        assert found == {OWN: [json.loads(message.encode(late))]}

    def test_what_is_being_written_is_not_there_yet(self, session: PopstellarSession, world: World) -> None:
        world.hub.store = MemoryStore()
        world.hub.store.append(world.log)
        world.ok("organizer", OWN, roll_call_create("not yet"))
        assert len(answer(session, frame("catchup", channel=OWN))) == len(world.log) - 1
        found = answer(session, frame("get_messages_by_id", **{OWN: [world.last_id()]}))
        assert found == {}

    def test_a_hole_is_our_fault_and_never_a_shorter_list(self, session: PopstellarSession, world: World) -> None:
        world.hub.store = MemoryStore()
        world.hub.store.append([world.log[0], *world.log[2:]])
        (command,) = receive(session, frame("catchup", 5, channel=OWN))
        assert isinstance(command, Serve)
        with pytest.raises(OurFault):
            command.source.page()
        failed = json.loads(command.source.failed())
        assert (failed["id"], failed["error"]["code"]) == (5, -6)

    def test_pages_go_backwards(self, session: PopstellarSession, world: World) -> None:
        whole = world.state.channels[OWN].messages
        ask = lambda **more: [  # noqa: E731
            each["message_id"]
            for each in answer(session, frame("paged_catchup", channel=OWN, number_of_messages=2, **more))
        ]
        assert ask() == whole[-2:]
        assert ask(before_message_id=whole[-1]) == whole[-3:-1]
        assert ask(before_message_id=whole[1]) == whole[:1]
        assert ask(before_message_id=whole[0]) == []

    def test_pages_of_what_is_not_there(self, session: PopstellarSession) -> None:
        other = signed("stranger", lao_create()).message_id
        page = {"number_of_messages": 1}
        assert error(session, frame("paged_catchup", channel="/root/none", **page)) == (1, -2)
        assert error(session, frame("paged_catchup", channel=OWN, before_message_id=other, **page)) == (1, -2)
        assert error(session, frame("paged_catchup", channel=OWN, number_of_messages=0)) == (1, -4)

    def test_messages_by_id_on_the_channels_they_stand_on(self, session: PopstellarSession, world: World) -> None:
        created, roll_call = world.sent[0], world.sent[1]
        wanted = {
            ROOT: [created.message_id, roll_call.message_id, "no base64!", ""],
            OWN: [roll_call.message_id, roll_call.message_id, created.message_id],
            "/root/none": [created.message_id],
        }
        found = answer(session, frame("get_messages_by_id", **wanted))
        assert found == {
            ROOT: [json.loads(message.encode(created))],
            OWN: [json.loads(message.encode(roll_call)), json.loads(message.encode(created))],
        }
        assert answer(session, frame("get_messages_by_id")) == {}


class TestBadInput:
    @pytest.mark.parametrize(
        ("data", "expected"),
        [
            (b"", (None, -4)),
            (b"{", (None, -4)),
            (b"[" * 50_000, (None, -4)),
            (b'{"jsonrpc":"2.0","id":1}', (1, -4)),
            (b'{"jsonrpc":"2.0","id":1,"method":"dance","params":{}}', (1, -4)),
            (b'{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{"channel":"x"}}', (1, -4)),
            (b'{"jsonrpc":"2.0","id":"1","method":"subscribe","params":{"channel":"/root/a"}}', (None, -4)),
            (
                b'{"jsonrpc":"2.0","id":%b,"method":"subscribe","params":{"channel":"/root/a"}}' % (b"9" * 400),
                (None, -4),
            ),
        ],
    )
    def test_is_answered_under_its_id_or_null(
        self, session: PopstellarSession, data: bytes, expected: tuple[Any, int]
    ) -> None:
        assert error(session, data) == expected
        (command,) = receive(session, frame("subscribe", channel=OWN))
        assert isinstance(command, Subscribe)

    def test_binary_frames_are_refused(self, session: PopstellarSession) -> None:
        assert error(session, frame("subscribe", channel=OWN), text=False) == (None, -4)

    def test_too_large_a_frame_ends_the_connection(self, session: PopstellarSession) -> None:
        (command,) = session.frame_too_large(MAX_FRAME + 1, b"{")
        assert isinstance(command, Close)
        assert command.code == 1009

    @pytest.mark.parametrize(
        "data",
        [
            frame("heartbeat", None, **{OWN: ["a"]}),
            frame("broadcast", None, channel=OWN, message={}),
            frame(
                "greet_server",
                None,
                public_key=KEYS["server"],
                client_address="ws://a/client",
                server_address="ws://a/server",
            ),
            b'{"jsonrpc":"2.0","id":1,"result":0}',
        ],
    )
    def test_notifications_and_answers_are_passed_over(self, session: PopstellarSession, data: bytes) -> None:
        assert receive(session, data) == []

    @given(data=st.binary())
    def test_nothing_raises(self, data: bytes) -> None:
        session = PopstellarSession(World().hub)
        for command in session.receive(data, text=True, now=NOW):
            assert isinstance(command, Send)


def test_the_lao_of_the_tests_is_there(world: World) -> None:
    assert LAO in world.state.laos
    assert msgspec.json.decode(world.log[0].raw)["sender"] == KEYS["organizer"]
