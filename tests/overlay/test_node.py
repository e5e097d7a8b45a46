"""A node of the network: what it does when told, asked, left alone or lied to."""

from __future__ import annotations

import pytest

from catchment.model import Topic
from catchment.overlay import node as overlay
from catchment.overlay.node import (
    ClosePeer,
    Command,
    DialPeer,
    DialTracker,
    OverlayNode,
    Replay,
    SubscribePeer,
    ToTracker,
    UnsubscribePeer,
)
from catchment.wire.streamr.tracker import InstructionMessage, Links, StatusMessage, tracker_of

TRACKER = "ws://tracker"
TOPIC = Topic("s", 0)


def make(*, storage: bool = False, trackers: tuple[str, ...] = (TRACKER,), denied: str = "") -> OverlayNode:
    return OverlayNode(
        "me", address="ws://me", trackers=trackers, storage=storage, allowed=lambda address: address != denied
    )


@pytest.fixture
def node() -> OverlayNode:
    """One that takes part in a stream and whose tracker is there."""
    made = make()
    made.join(TOPIC, 0.0)
    made.tracker_connected(TRACKER, 0.0)
    return made


def instruct(node: OverlayNode, *peers: str, counter: int | None = 1, now: float = 1.0) -> list[Command]:
    message = InstructionMessage("", TOPIC, [f"ws://{peer}" for peer in peers], counter)
    return node.instructed(TRACKER, message, now)


def dials(node: OverlayNode, now: float = 2.0) -> list[Command]:
    return [command for command in node.tick(now) if isinstance(command, DialPeer)]


def status(commands: list[Command]) -> dict[str, Links]:
    (command,) = [command for command in commands if isinstance(command, ToTracker)]
    assert isinstance(command.message, StatusMessage)
    return dict(command.message.status.streams)


def linked(node: OverlayNode, *peers: str) -> None:
    instruct(node, *peers)
    for peer in peers:
        assert SubscribePeer(peer, TOPIC) in node.peer_connected(peer, f"ws://{peer}", 1.0)


def test_it_dials_its_trackers_and_reports_to_each_its_own_streams() -> None:
    trackers = ("ws://a", "ws://b")
    node = make(trackers=trackers)
    assert node.start() == [DialTracker("ws://a"), DialTracker("ws://b")]
    topics = [Topic(f"s{number}", 0) for number in range(20)]
    for topic in topics:
        node.join(topic, 0.0)
    for tracker in trackers:
        reported = status(node.tracker_connected(tracker, 1.0))
        assert list(reported) == [f"{t.name}::0" for t in topics if tracker_of(t, trackers) == tracker]
        assert reported


def test_a_change_is_reported_a_moment_later_together_with_what_follows(node: OverlayNode) -> None:
    node.join(Topic("t", 0), 5.0)
    node.join(Topic("u", 0), 5.5)
    assert node.due == 5.0 + overlay.STATUS_DELAY
    assert node.tick(5.9) == []
    assert list(status(node.tick(6.0))) == ["s::0", "t::0", "u::0"]
    assert node.due is None


def test_an_instruction_is_carried_out(node: OverlayNode) -> None:
    assert instruct(node, "a", "b") == []
    assert dials(node) == [DialPeer("ws://a"), DialPeer("ws://b")]
    assert node.peer_connected("a", "ws://a", 1.1) == [SubscribePeer("a", TOPIC)]
    assert node.peer_connected("b", "ws://b", 1.1) == [SubscribePeer("b", TOPIC)]
    assert node.neighbours(TOPIC) == ["a", "b"]
    assert status(node.tick(3.0)) == {"s::0": Links(["a", "b"], ["a", "b"], 1)}
    assert node.peers == {"a": "ws://a", "b": "ws://b"}


def test_those_no_longer_named_are_let_go_and_closed_when_nothing_is_shared(node: OverlayNode) -> None:
    linked(node, "a", "b")
    node.tick(2.5)
    assert instruct(node, "b", "c", counter=2, now=10.0) == [UnsubscribePeer("a", TOPIC)]
    assert dials(node, 11.0) == [DialPeer("ws://c")]
    assert node.neighbours(TOPIC) == ["b"]
    node.tick(12.0)
    assert node.tick(10.0 + overlay.UNSHARED_SECONDS) == [
        ClosePeer("a", overlay.NORMAL_CLOSURE, overlay.NO_SHARED_STREAMS)
    ]


def test_a_peer_shared_again_in_time_stays(node: OverlayNode) -> None:
    linked(node, "a")
    instruct(node, counter=2, now=10.0)
    assert instruct(node, "a", counter=3, now=11.0) == [SubscribePeer("a", TOPIC)]
    assert not any(isinstance(command, ClosePeer) for command in node.tick(60.0))


def test_an_older_instruction_is_not_followed(node: OverlayNode) -> None:
    instruct(node, "a", counter=5)
    instruct(node, "b", counter=4)
    assert dials(node) == [DialPeer("ws://a")]
    instruct(node, "b", counter=None, now=3.0)
    assert dials(node, 4.0) == [DialPeer("ws://b")], "without a counter it is the newest"


def test_a_tracker_that_begins_anew_is_followed(node: OverlayNode) -> None:
    instruct(node, "a", counter=50)
    node.tracker_lost(TRACKER, 2.0)
    assert DialTracker(TRACKER) in node.tick(3.0)
    node.tracker_connected(TRACKER, 3.1)
    instruct(node, "b", counter=1, now=4.0)
    assert dials(node, 5.0) == [DialPeer("ws://b")]


def test_a_lost_tracker_costs_no_neighbour_and_is_dialled_again_ever_more_slowly(node: OverlayNode) -> None:
    linked(node, "a")
    now, waits = 10.0, []
    for _ in range(8):
        node.tracker_lost(TRACKER, now)
        assert node.due is not None
        waits.append(node.due - now)
        now = node.due
        assert DialTracker(TRACKER) in node.tick(now)
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    assert node.neighbours(TOPIC) == ["a"]


@pytest.mark.parametrize("tracker", ["ws://stranger", "ws://b"])
def test_instructions_from_anyone_but_the_streams_tracker_are_ignored(tracker: str) -> None:
    trackers = ("ws://a", "ws://b")
    node = make(trackers=trackers)
    topic = next(t for t in (Topic(f"s{n}", 0) for n in range(50)) if tracker_of(t, trackers) == "ws://a")
    node.join(topic, 0.0)
    assert node.instructed(tracker, InstructionMessage("", topic, ["ws://x"], 1), 1.0) == []
    assert node.refused == 1


def test_an_address_that_is_not_allowed_is_not_dialled() -> None:
    node = make(denied="ws://10.0.0.1")
    node.join(TOPIC, 0.0)
    instruct(node, "10.0.0.1", "me", "b")
    assert dials(node) == [DialPeer("ws://b")], "nor is our own"
    assert node.refused == 2


def test_a_broker_does_not_enter_streams_it_has_no_interest_in() -> None:
    node = make()
    instruct(node, "a")
    assert dials(node) == []


def test_a_storage_node_enters_every_stream_it_is_told_of() -> None:
    node = make(storage=True)
    instruct(node, "a")
    assert dials(node) == [DialPeer("ws://a")]
    node.peer_connected("a", "ws://a", 2.0)
    assert node.subscribe_requested("a", Topic("other", 3), 2.0) == []
    assert node.streams == [TOPIC, Topic("other", 3)]


def test_a_subscribe_request_links_both_ways(node: OverlayNode) -> None:
    node.peer_connected("a", "ws://a", 1.0)
    assert node.subscribe_requested("a", TOPIC, 1.0) == []
    assert node.neighbours(TOPIC) == ["a"]
    node.unsubscribe_requested("a", TOPIC, 2.0)
    assert node.neighbours(TOPIC) == []


def test_a_request_for_a_stream_we_are_not_in_is_turned_down(node: OverlayNode) -> None:
    node.peer_connected("a", "ws://a", 1.0)
    other = Topic("other", 0)
    assert node.subscribe_requested("a", other, 1.0) == [UnsubscribePeer("a", other)]
    node.unsubscribe_requested("a", other, 1.0)
    assert node.streams == [TOPIC]


def test_nobody_gets_more_neighbours_than_it_may_have(node: OverlayNode) -> None:
    for number in range(overlay.MAX_NEIGHBOURS + 5):
        node.peer_connected(f"p{number}", f"ws://p{number}", 1.0)
        node.subscribe_requested(f"p{number}", TOPIC, 1.0)
    assert len(node.neighbours(TOPIC)) == overlay.MAX_NEIGHBOURS
    assert node.refused == 5


def test_an_accepted_message_goes_to_every_neighbour_but_its_source(node: OverlayNode) -> None:
    linked(node, "a", "b", "c")
    assert node.accepted(TOPIC, b"1", "b", 2.0) == ["a", "c"]
    assert node.accepted(TOPIC, b"2", "", 2.0) == ["a", "b", "c"]
    assert node.accepted(Topic("other", 0), b"3", "", 2.0) == []


def test_a_new_neighbour_gets_what_it_may_have_missed(node: OverlayNode) -> None:
    node.accepted(TOPIC, b"old", "", 1.0)
    node.accepted(Topic("other", 0), b"other", "", 50.0)
    node.accepted(TOPIC, b"new", "", 1.5 + overlay.RECENT_SECONDS)
    instruct(node, "a", now=62.0)
    assert node.peer_connected("a", "ws://a", 62.0) == [SubscribePeer("a", TOPIC), Replay("a", TOPIC, [b"new"])]
    node.peer_connected("b", "ws://b", 62.0)
    assert node.subscribe_requested("b", TOPIC, 62.0) == [Replay("b", TOPIC, [b"new"])]


def test_nobody_gets_back_what_came_from_it(node: OverlayNode) -> None:
    linked(node, "a")
    node.accepted(TOPIC, b"1", "a", 2.0)
    node.peer_lost("a", 3.0)
    assert node.peer_connected("a", "ws://a", 4.0) == [SubscribePeer("a", TOPIC)]


def test_what_is_kept_is_bounded_in_number_and_bytes(node: OverlayNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay, "RECENT_MESSAGES", 5)
    monkeypatch.setattr(overlay, "RECENT_BYTES", 100)
    for number in range(20):
        node.accepted(TOPIC, b"%d" % number, "", 1.0)
    node.peer_connected("a", "ws://a", 1.0)
    assert node.subscribe_requested("a", TOPIC, 1.0) == [Replay("a", TOPIC, [b"15", b"16", b"17", b"18", b"19"])]
    node.accepted(TOPIC, b"x" * 99, "", 1.0)
    assert node.subscribe_requested("a", TOPIC, 1.0) == [Replay("a", TOPIC, [b"x" * 99])]


def test_a_lost_peer_is_reported_and_dialled_again_while_it_is_wanted(node: OverlayNode) -> None:
    linked(node, "a")
    node.tick(2.5)
    node.peer_lost("a", 10.0)
    node.peer_lost("a", 10.0)
    assert node.neighbours(TOPIC) == []
    commands = node.tick(11.0)
    assert DialPeer("ws://a") in commands
    assert status(commands) == {"s::0": Links([], [], 1)}
    node.dial_failed("ws://a", 11.5)
    assert DialPeer("ws://a") in node.tick(13.5)
    instruct(node, counter=2, now=14.0)
    node.dial_failed("ws://a", 14.0)
    assert dials(node, 100.0) == [], "it is not wanted any more"


def test_nobody_is_dialled_twice_at_once(node: OverlayNode) -> None:
    instruct(node, "a")
    assert dials(node) == [DialPeer("ws://a")]
    instruct(node, "a", counter=2, now=3.0)
    assert dials(node, 9.0) == []


def test_who_comes_by_itself_is_not_dialled(node: OverlayNode) -> None:
    instruct(node, "a")
    assert SubscribePeer("a", TOPIC) in node.peer_connected("a", "ws://a", 1.1)
    assert dials(node, 9.0) == []


def test_of_two_that_are_told_of_each_other_the_lesser_address_dials_first() -> None:
    lesser, greater = (
        OverlayNode(name, address=f"ws://{name}", trackers=[TRACKER], allowed=lambda _: True) for name in "ab"
    )
    for node, other in ((lesser, "b"), (greater, "a")):
        node.join(TOPIC, 0.0)
        instruct(node, other, now=1.0)
    soon = 1.0 + overlay.DIAL_DELAY
    assert dials(lesser, soon) == [DialPeer("ws://b")]
    assert dials(greater, soon) == []
    assert dials(greater, 1.0 + 2 * overlay.DIAL_DELAY) == [DialPeer("ws://a")]


def test_leaving_a_stream_tells_the_neighbours_and_the_tracker(node: OverlayNode) -> None:
    linked(node, "a", "b")
    node.tick(2.5)
    assert node.leave(TOPIC, 10.0) == [UnsubscribePeer("a", TOPIC), UnsubscribePeer("b", TOPIC)]
    assert status(node.tick(11.0)) == {}
    assert node.leave(TOPIC, 12.0) == []


def test_stopping_says_goodbye(node: OverlayNode) -> None:
    linked(node, "a")
    assert node.stop() == [ClosePeer("a", overlay.NORMAL_CLOSURE, overlay.GRACEFUL_SHUTDOWN)]
    assert node.due is None


def test_round_trips_are_reported(node: OverlayNode) -> None:
    linked(node, "a")
    node.measured("a", 12.5)
    node.measured("stranger", 1.0)
    (command,) = node.tick(3.0)
    assert isinstance(command, ToTracker)
    assert isinstance(command.message, StatusMessage)
    assert command.message.status.rtts == {"a": 12.5}
