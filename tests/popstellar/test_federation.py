"""Two servers in conversation, frame by frame, without sockets or clocks."""

from __future__ import annotations

import json
import logging
from collections import deque
from typing import Any

import msgspec
import pytest

from catchment.core.broker import Broker, Publish
from catchment.core.limits import NoteQuota
from catchment.core.subscriptions import Subscriptions
from catchment.popstellar.federation import ASK_AGAIN, FIRST_RETRY, MAX_TRIES, PATIENCE, Federation, parts
from catchment.popstellar.hub import Hub
from catchment.popstellar.state import State
from catchment.popstellar.steps import Missing
from catchment.popstellar.values import Source
from catchment.sessions.base import Send, Serve
from catchment.sessions.popstellar_peer import ASK_AT_ONCE, PopstellarPeerSession
from catchment.store.memory import MemoryStore
from catchment.wire.popstellar import channels, message, social
from catchment.wire.popstellar.channels import ROOT
from catchment.wire.popstellar.submission import read

from .world import (
    BALLOT,
    CHIRPS,
    CLOSED,
    ELECTION,
    KEYS,
    LAO,
    NOW,
    OWN,
    PRIVATE,
    REACTIONS,
    TIME,
    TOKEN,
    chirp,
    election_end,
    election_open,
    greet,
    lao_create,
    result,
    roll_call_close,
    roll_call_create,
    roll_call_open,
    setup,
    signed,
    vote,
    witnessed,
)


class Origin:
    """A client that remembers how its publishes ended."""

    sender = "192.0.2.1"

    def __init__(self) -> None:
        self.codes: list[int] = []

    def published(self, request_id: str, status: Any, verdict: Any) -> None:
        self.codes.append(0 if status.name == "STORED" else -9)

    def refused(self, request_id: str, fault: Any) -> None:
        self.codes.append(int(fault.code))


class Server:
    """A server without sockets: what its sessions want is done at once or in turn."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.store = MemoryStore()
        self.hub = Hub(PRIVATE[name], self.store, address=f"ws://{name.replace(' ', '-')}.example/client")
        self.hub.server_address = self.hub.address.replace("client", "server")
        quota = NoteQuota(notes_per_second=0, notes_burst=1e6, bytes_per_second=0, bytes_burst=1e9)
        self.broker = Broker(self.store, Subscriptions(), quota)
        self.queue: deque[Publish] = deque()
        self.hub.submit = self.queue.append
        self.now = NOW

    def commit(self) -> bool:
        """Everything that waits, as one batch."""
        if not self.queue:
            return False
        batch, self.queue = list(self.queue), deque()
        self.hub.submit = self.queue.append
        self.broker.judge(batch)
        whole = self.broker.admit(batch, self.now)
        self.broker.commit(whole, self.now)
        self.broker.settle()
        self.broker.deliver(whole)
        return True

    def say(self, who: str, channel: str, value: Any) -> str:
        sent = signed(who, value)
        assert self.bring(sent, channel) == 0
        return sent.message_id

    def bring(self, sent: message.Message, channel: str) -> int:
        origin = Origin()
        publish = self.hub.publish("1", read(channel, message.encode(sent)), Source.CLIENT, self.now)
        publish.origin = origin
        self.queue.append(publish)
        self.commit()
        return origin.codes[0]

    @property
    def held(self) -> dict[str, list[str]]:
        """What stands on which channel, in any order."""
        return {name: sorted(each.messages) for name, each in self.hub.state.channels.items() if each.messages}


class Wire:
    """Two sessions and the frames between them."""

    def __init__(self, dialler: Server, other: Server) -> None:
        self.servers = (dialler, other)
        self.frames: deque[tuple[int, bytes]] = deque()
        self.log: list[tuple[str, Any]] = []
        self.sessions = (
            PopstellarPeerSession(dialler.hub, dialled=True),
            PopstellarPeerSession(other.hub, dialled=False),
        )
        for side in (0, 1):
            self.sessions[side].connected("192.0.2.9", self._sender(side))

    def _sender(self, side: int) -> Any:
        return lambda payload: self.frames.append((1 - side, payload))

    def run(self) -> None:
        """Until nothing is left to say."""
        while self.frames or any(server.commit() for server in self.servers):
            while self.frames:
                self._deliver(*self.frames.popleft())

    def _deliver(self, side: int, payload: bytes) -> None:
        server, session = self.servers[side], self.sessions[side]
        self.log.append((server.name, json.loads(payload)))
        for command in session.receive(payload, text=True, now=server.now):
            match command:
                case Publish():
                    command.origin = session._origin
                    server.queue.append(command)
                case Send():
                    self.frames.append((1 - side, command.payload))
                case Serve():
                    self.frames.extend((1 - side, each) for each in command.source.page())
                case _:
                    raise AssertionError(command)

    def cut(self) -> None:
        for session in self.sessions:
            session.disconnected()

    def methods(self, to: Server) -> list[str]:
        return [frame.get("method", "answer") for name, frame in self.log if name == to.name]


@pytest.fixture
def here() -> Server:
    return Server("server")


@pytest.fixture
def there() -> Server:
    return Server("peer server")


def fill(server: Server) -> None:
    """A whole history: roll call, chirp, election."""
    server.say("organizer", ROOT, lao_create())
    server.say("organizer", OWN, roll_call_create())
    server.say("organizer", OWN, roll_call_open())
    server.say("organizer", OWN, roll_call_close())
    server.say("attendee", TOKEN, chirp())
    server.say("organizer", OWN, setup())
    server.say("organizer", BALLOT, election_open())
    server.say("attendee", BALLOT, vote(1))
    server.say("organizer", BALLOT, election_end(vote(1)))


def test_greetings_are_exchanged_once(here: Server, there: Server) -> None:
    wire = Wire(here, there)
    wire.run()
    greetings = [(name, frame["params"]) for name, frame in wire.log if frame.get("method") == "greet_server"]
    assert [name for name, _ in greetings] == ["peer server", "server"]
    assert greetings[0][1] == {
        "public_key": KEYS["server"],
        "client_address": "ws://server.example/client",
        "server_address": "ws://server.example/server",
    }
    wire.sessions[1].receive(
        json.dumps({"jsonrpc": "2.0", "method": "greet_server", "params": greetings[0][1]}).encode(), text=True, now=NOW
    )
    assert not wire.frames
    assert (wire.sessions[0].peer_key, wire.sessions[1].peer_key) == (KEYS["peer server"], KEYS["server"])


def test_a_new_connection_brings_both_to_the_same(here: Server, there: Server) -> None:
    fill(here)
    there.say("organizer", ROOT, lao_create("another"))
    wire = Wire(there, here)
    wire.run()
    assert here.held == there.held
    assert len(here.hub.state.laos) == 2
    election = there.hub.state.laos[LAO].elections
    assert [each.results for each in election.values()] == [{KEYS["server"]: result(0, 1)}]
    servers = there.hub.state.laos[LAO].servers
    assert servers.keys() == {KEYS["server"], KEYS["peer server"]}


def test_what_is_new_travels_by_itself_and_heartbeats_name_nothing_else(here: Server, there: Server) -> None:
    fill(here)
    wire = Wire(here, there)
    wire.run()
    wire.log.clear()
    second = channels.of_attendee(LAO, KEYS["other attendee"])
    made = there.say("other attendee", second, chirp("second"))
    wire.run()
    assert here.held == there.held
    beats = [frame["params"] for name, frame in wire.log if frame.get("method") == "heartbeat" and name == "server"]
    assert [sorted(each) for each in beats] == [[CHIRPS, second]]
    assert beats[0][second] == [made]
    # What came from a server is not named to it again.
    assert wire.methods(there) == ["get_messages_by_id"]


def test_what_a_third_server_brought_is_passed_on(here: Server, there: Server) -> None:
    third = Server("stranger")
    first, second = Wire(here, there), Wire(there, third)
    first.run()
    second.run()
    here.say("organizer", ROOT, lao_create())
    for _ in range(4):
        first.run()
        second.run()
    assert here.held.keys() == there.held.keys() == third.held.keys()
    assert set(here.held[ROOT]) == set(third.held[ROOT])
    # Each of the three greets, and all hear of it.
    assert here.hub.state.laos[LAO].servers.keys() == third.hub.state.laos[LAO].servers.keys()


def test_messages_in_the_wrong_order_find_their_way(here: Server, there: Server) -> None:
    fill(here)
    wire = Wire(here, there)
    original = there.hub.state.messages
    assert not original
    # The answers come with the last first.
    frames: deque[tuple[int, bytes]] = deque()
    while wire.frames:
        side, payload = wire.frames.popleft()
        frame = json.loads(payload)
        if isinstance(frame.get("result"), dict):
            frame["result"] = {name: each[::-1] for name, each in reversed(frame["result"].items())}
            payload = json.dumps(frame).encode()
        wire._deliver(side, payload)
        for server in wire.servers:
            if not wire.frames:
                server.commit()
    assert not frames
    wire.run()
    assert here.held == there.held


def test_what_raced_with_the_end_of_something_is_kept_everywhere(here: Server, there: Server) -> None:
    """A vote, a reaction and a chirp that one server took before the other's news of an end reached it."""
    fill_to = [
        ("organizer", ROOT, lao_create()),
        ("organizer", OWN, roll_call_create()),
        ("organizer", OWN, roll_call_open()),
        ("organizer", OWN, roll_call_close()),
        ("organizer", OWN, setup()),
        ("organizer", BALLOT, election_open()),
    ]
    for step in fill_to:
        here.say(*step)
    Wire(here, there).run()
    chirped = here.say("attendee", TOKEN, chirp())
    wire = Wire(here, there)
    wire.run()
    wire.cut()
    like = social.ReactionAdd(reaction_codepoint="👍", chirp_id=chirped, timestamp=TIME + 400)
    there.say("other attendee", BALLOT, vote(0))
    there.say("other attendee", REACTIONS, like)
    here.say("attendee", BALLOT, vote(1))
    here.say("attendee", TOKEN, social.ChirpDelete(chirp_id=chirped, timestamp=TIME + 401))
    here.say("organizer", OWN, roll_call_open(CLOSED, TIME + 30, "reopen"))
    reopened = roll_call_open(CLOSED, TIME + 30, "reopen").update_id
    here.say("organizer", OWN, roll_call_close(reopened, TIME + 40, ["attendee"]))
    here.say("organizer", BALLOT, election_end(vote(1)))
    wire = Wire(here, there)
    wire.run()
    for _ in range(PATIENCE):
        there.now += FIRST_RETRY * 8
        wire.sessions[1].look(there.now)
        wire.run()
    assert here.held == there.held
    counted = here.hub.state.laos[LAO].elections[ELECTION]
    assert list(counted.votes) == [KEYS["attendee"]]
    # A restart takes the same from the log.
    again = State()
    assert again.replay(row.entry for row in here.store.read(0, 1000) if row.entry.kind.indexed) == 0
    assert again.laos == here.hub.state.laos


def test_a_forged_message_is_not_taken_not_passed_on_and_asked_for_again_later(
    here: Server, there: Server, caplog: pytest.LogCaptureFixture
) -> None:
    fill(here)
    wire = Wire(here, there)
    wire.run()
    sent = signed("attendee", chirp("forged"))
    forged = msgspec.structs.replace(sent, sender=KEYS["other attendee"])
    channel = channels.of_attendee(LAO, KEYS["other attendee"])
    frame = {
        "jsonrpc": "2.0",
        "method": "broadcast",
        "params": {"channel": channel, "message": msgspec.to_builtins(forged)},
    }
    before = there.held
    with caplog.at_level(logging.WARNING):
        wire.frames.append((1, json.dumps(frame).encode()))
        wire.run()
    assert there.held == before == here.held
    assert sent.message_id in caplog.text
    wire.log.clear()
    beat = {"jsonrpc": "2.0", "method": "heartbeat", "params": {channel: [sent.message_id]}}
    wire.frames.append((1, json.dumps(beat).encode()))
    wire.run()
    assert wire.methods(here) == []
    there.now += FIRST_RETRY
    wire.frames.append((1, json.dumps(beat).encode()))
    wire.run()
    assert wire.methods(here) == ["get_messages_by_id"]


def test_a_broadcast_from_a_server_is_taken_also_on_root(here: Server, there: Server) -> None:
    wire = Wire(here, there)
    wire.run()
    sent = signed("organizer", lao_create())
    params = {"channel": ROOT, "message": msgspec.to_builtins(sent)}
    wire.frames.append((1, json.dumps({"jsonrpc": "2.0", "method": "broadcast", "params": params}).encode()))
    wire.run()
    assert LAO in there.hub.state.laos
    # And goes on to the others by a heartbeat, but not back.
    assert sent.message_id in there.hub.state.messages


def test_late_witness_signatures_come_with_a_catchup_of_root(here: Server, there: Server) -> None:
    fill(here)
    Wire(here, there).run()
    created = signed("organizer", lao_create())
    assert here.bring(witnessed(created, "witness"), ROOT) == 0
    Wire(there, here).run()
    assert there.hub.state.has_witnessed(created.message_id, KEYS["witness"])


def test_a_message_that_is_named_and_not_delivered_is_asked_for_again(here: Server, there: Server) -> None:
    wire = Wire(here, there)
    wire.run()
    wire.log.clear()
    name = signed("stranger", chirp()).message_id
    beat = json.dumps({"jsonrpc": "2.0", "method": "heartbeat", "params": {OWN: [name]}}).encode()
    wire.frames.append((1, beat))
    wire.run()
    assert wire.methods(here) == ["get_messages_by_id"]
    there.now += FIRST_RETRY
    wire.sessions[1].look(there.now)
    wire.run()
    assert wire.methods(here) == ["get_messages_by_id"] * 2


def test_two_servers_are_not_asked_for_the_same_at_once(here: Server, there: Server) -> None:
    third = Server("stranger")
    fill(here)
    Wire(here, there).run()
    first, second = Wire(here, third), Wire(there, third)
    for wire in (first, second):
        while wire.frames:
            wire._deliver(*wire.frames.popleft())
    asked = [
        name
        for wire, server in ((first, here), (second, there))
        for to, frame in wire.log
        if to == server.name and frame.get("method") == "get_messages_by_id"
        for names in frame["params"].values()
        for name in names
    ]
    assert len(asked) == len(set(asked))
    assert asked


def test_when_a_server_goes_another_is_asked(here: Server, there: Server) -> None:
    third = Server("stranger")
    fill(here)
    Wire(here, there).run()
    gone = Wire(here, third)
    while gone.frames:
        side, payload = gone.frames.popleft()
        if side == 1:
            gone._deliver(side, payload)  # what the third asks is never answered
    gone.cut()
    Wire(there, third).run()
    assert set(third.held) == set(there.held)


def test_questions_are_small_and_not_all_at_once(here: Server, there: Server) -> None:
    fill(here)
    for number in range(300):
        here.say("attendee", TOKEN, chirp(str(number)))
    wire = Wire(here, there)
    wire.run()
    assert here.held == there.held
    sizes = [
        sum(len(names) for names in frame["params"].values())
        for name, frame in wire.log
        if name == "server" and frame.get("method") == "get_messages_by_id"
    ]
    assert max(sizes) <= ASK_AT_ONCE
    assert sum(sizes) >= 600


def test_greetings_of_servers_that_are_not_trusted_are_not_taken(here: Server, there: Server) -> None:
    there.hub.trusted = frozenset({KEYS["stranger"]})
    fill(here)
    Wire(here, there).run()
    servers = there.hub.state.laos[LAO].servers
    assert servers.keys() == {KEYS["peer server"]}
    assert there.hub.state.laos[LAO].elections[next(iter(there.hub.state.laos[LAO].elections))].results == {}
    there.hub.trusted = frozenset({KEYS["server"]})
    there.now += FIRST_RETRY * 4
    wire = Wire(here, there)
    wire.run()
    for _ in range(3):
        there.now += FIRST_RETRY * 8
        wire.sessions[1].look(there.now)
        wire.run()
    assert here.held == there.held


def test_a_server_on_its_connection_may_subscribe_to_root(here: Server, there: Server) -> None:
    wire = Wire(here, there)
    (command,) = wire.sessions[1].receive(
        b'{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{"channel":"/root"}}', text=True, now=NOW
    )
    assert type(command).__name__ == "Subscribe"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"[]",
        b'{"jsonrpc":"2.0","id":99,"result":0}',
        b'{"jsonrpc":"2.0","id":99,"result":7,"more":1}',
        b'{"jsonrpc":"2.0","method":"heartbeat","params":{"x":["a"]}}',
        b'{"jsonrpc":"2.0","method":"broadcast"}',
    ],
)
def test_notifications_and_answers_that_are_wrong_are_passed_over(here: Server, there: Server, payload: bytes) -> None:
    wire = Wire(here, there)
    wire.run()
    assert list(wire.sessions[1].receive(payload, text=True, now=NOW)) == []


def test_a_wrong_answer_to_a_question_spoils_nothing(here: Server, there: Server) -> None:
    fill(here)
    wire = Wire(here, there)
    spoiled = 0
    for _ in range(10_000):
        if not wire.frames:
            if not any(server.commit() for server in wire.servers):
                break
            continue
        side, payload = wire.frames.popleft()
        frame = json.loads(payload)
        if isinstance(frame.get("result"), dict) and not spoiled:
            spoiled += 1
            name = next(iter(frame["result"]))
            frame["result"][name].insert(0, {"not": "a message"})
            payload = json.dumps(frame).encode()
        wire._deliver(side, payload)
    assert spoiled
    assert here.held == there.held


class TestTheFederation:
    def test_tries_end_with_a_reason_in_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        federation, now = Federation(State()), NOW
        waits = []
        with caplog.at_level(logging.INFO):
            for _ in range(MAX_TRIES + 1):
                federation.refused(OWN, "id", Missing("its parent is missing"), now)
                due = federation.due(now + 10**15)
                if due:
                    assert due == {OWN: ["id"]}
                    waits.append(federation._trouble["id"].due - now)
        assert waits[:3] == [FIRST_RETRY, 2 * FIRST_RETRY, 4 * FIRST_RETRY]
        assert waits == sorted(waits)
        assert "gave up" in caplog.text
        assert "its parent is missing" in caplog.text
        # Whoever names it next is asked again.
        assert federation.wants(OWN, "id", now)

    def test_an_answer_that_does_not_come_is_asked_for_again(self) -> None:
        federation = Federation(State())
        assert federation.wants(OWN, "id", NOW)
        assert not federation.wants(OWN, "id", NOW + ASK_AGAIN - 1)
        assert federation.wants(OWN, "id", NOW + ASK_AGAIN)

    def test_heartbeats_are_split_under_their_limit(self) -> None:
        pairs = [(f"/root/{number % 7}", f"message {number:040}") for number in range(3000)]
        found = list(parts(pairs, 10_000))
        assert [pair for part in found for channel, names in part.items() for pair in [(channel, n) for n in names]]
        assert sorted((c, n) for part in found for c, names in part.items() for n in names) == sorted(pairs)
        for part in found:
            assert len(json.dumps(part, separators=(",", ":"))) <= 10_000 + 10
        assert list(parts([], 10)) == []

    def test_the_greeting_of_a_lao_is_everyones_own(self, here: Server, there: Server) -> None:
        assert signed("peer server", greet()).sender == there.hub.public_key
        here.say("organizer", ROOT, lao_create())
        Wire(here, there).run()
        assert len(here.hub.state.laos[LAO].servers) == 2
