"""The tracker: what it tells whom, and what cannot make it do otherwise."""

from __future__ import annotations

from random import Random

import pytest

from catchment.model import Topic
from catchment.overlay.simulation import is_connected
from catchment.overlay.tracker import MAX_SHORTENED, STRIKES, Instruct, Tracker
from catchment.wire.streamr.tracker import Links, Location, Status

KEY, TOPIC = "s::0", Topic("s", 0)


def address(node: str) -> str:
    return f"ws://{node}"


class Network:
    """A tracker and nodes that do as they are told."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        assert tracker.settle() == []
        self.told: dict[tuple[str, str], Instruct] = {}

    def carry_out(self, instructions: list[Instruct]) -> list[Instruct]:
        for instruct in instructions:
            self.told[instruct.node, f"{instruct.topic.name}::{instruct.topic.partition}"] = instruct
        return instructions

    def join(self, node: str, *keys: str, storage: bool = False) -> list[Instruct]:
        first = self.tracker.joined(node, address(node), storage=storage)
        return self.carry_out(first + self.tracker.status(node, Status({key: Links() for key in keys or (KEY,)})))

    def status_of(self, node: str, **changes: Links) -> Status:
        streams = {}
        for (name, key), instruct in self.told.items():
            if name == node:
                linked = [neighbour.removeprefix("ws://") for neighbour in instruct.addresses]
                streams[key] = Links(linked, linked, instruct.counter)
        return Status(streams | changes)

    def report(self, node: str, status: Status | None = None) -> list[Instruct]:
        return self.carry_out(self.tracker.status(node, status or self.status_of(node)))


@pytest.fixture
def network() -> Network:
    network = Network(Tracker(Random(1)))
    for number in range(10):
        network.join(f"n{number}")
    return network


def wanted(network: Network, key: str = KEY) -> dict[str, set[str]]:
    return {node: set(linked) for node, linked in network.tracker.overlays[key].links.items()}


def test_everyone_is_told_its_neighbours(network: Network) -> None:
    for node, linked in wanted(network).items():
        assert {neighbour.removeprefix("ws://") for neighbour in network.told[node, KEY].addresses} == linked


def test_a_node_alone_is_told_so() -> None:
    (instruct,) = Network(Tracker(Random(1))).join("a")
    assert instruct == Instruct("a", TOPIC, [], 1)


def test_a_status_as_it_should_be_changes_nothing(network: Network) -> None:
    for number in range(10):
        assert network.report(f"n{number}") == []


def test_only_those_whose_neighbours_changed_are_told(network: Network) -> None:
    before = wanted(network)
    told = {instruct.node for instruct in network.join("new")}
    after = wanted(network)
    assert told == {node for node in after if after[node] != before.get(node)}


def test_counters_only_grow(network: Network) -> None:
    before = network.told["n1", KEY].counter
    for number in range(20, 40):
        network.join(f"n{number}")
    assert network.told["n1", KEY].counter >= before


def test_an_old_status_cannot_undo_a_newer_instruction(network: Network) -> None:
    old = network.status_of("n1")
    counter = network.told["n1", KEY].counter
    number = 20
    while network.told["n1", KEY].counter == counter:
        network.join(f"n{number}")
        number += 1
    linked = wanted(network)
    assert network.report("n1", old) == []
    assert wanted(network) == linked


def test_who_reports_a_stream_no_more_has_left_it(network: Network) -> None:
    assert network.report("n3", Status())
    assert "n3" not in wanted(network)
    assert network.report("n3", Status()) == []


def test_who_disconnects_has_left_everything(network: Network) -> None:
    network.join("both", KEY, "t::1")
    instructions = network.tracker.left("both")
    assert instructions
    assert "both" not in wanted(network)
    assert "t::1" not in network.tracker.overlays, "the last one out"
    assert network.tracker.left("both") == []


def test_many_comings_and_goings_leave_it_connected(network: Network) -> None:
    random, alive = Random(7), [f"n{number}" for number in range(10)]
    for number in range(10, 300):
        if len(alive) > 3 and random.random() < 0.5:
            network.carry_out(network.tracker.left(alive.pop(random.randrange(len(alive)))))
        else:
            alive.append(f"n{number}")
            network.join(alive[-1])
        assert is_connected(network.tracker.overlays[KEY])


def test_a_missing_neighbour_is_told_again_and_in_the_end_replaced(network: Network) -> None:
    lost = sorted(wanted(network)["n1"])[0]
    for strike in range(STRIKES + 1):
        status = network.status_of("n1").streams[KEY]
        linked = [node for node in status.inbound_nodes if node != lost]
        instructions = network.report("n1", Status({KEY: Links(linked, linked, status.counter)}))
        assert any(instruct.node == "n1" for instruct in instructions)
        assert (lost in wanted(network)["n1"]) == (strike < STRIKES)
    assert is_connected(network.tracker.overlays[KEY])


def test_a_neighbour_that_comes_back_ends_the_strikes(network: Network) -> None:
    lost = sorted(wanted(network)["n1"])[0]
    for _ in range(3 * STRIKES):
        status = network.status_of("n1").streams[KEY]
        linked = [node for node in status.inbound_nodes if node != lost]
        network.report("n1", Status({KEY: Links(linked, linked, status.counter)}))
        network.report("n1")
    assert lost in wanted(network)["n1"]


def test_a_tracker_that_was_restarted_listens_first_and_keeps_the_links_it_hears_of(network: Network) -> None:
    again = Tracker(Random(99))
    for node in wanted(network):
        assert again.joined(node, address(node)) == []
        assert again.status(node, network.status_of(node)) == []
    again.joined("new", address("new"))
    again.status("new", Status({KEY: Links(), "nonsense": Links()}))
    again.joined("keeper", address("keeper"), storage=True)
    instructions = again.settle()
    assert {instruct.node for instruct in instructions} == {*wanted(network), "new", "keeper"}
    before = wanted(network)
    after = again.overlays[KEY].links
    assert is_connected(again.overlays[KEY])
    kept = sum(len(linked & set(after[node])) for node, linked in before.items())
    assert kept >= 0.75 * sum(len(linked) for linked in before.values()), "room for two more, and no other change"
    assert list(again.overlays) == [KEY]
    assert again.settle() == []


def test_storage_nodes_are_in_every_overlay_they_are_assigned_to() -> None:
    network = Network(Tracker(Random(1), assigned=lambda node, topic: topic.name != "private"))
    network.join("n1", "s::0")
    network.join("keeper", storage=True)
    network.join("n2", "t::3", "private::0")
    links = {key: set(overlay.links) for key, overlay in network.tracker.overlays.items()}
    assert links == {"s::0": {"n1", "keeper"}, "t::3": {"n2", "keeper"}, "private::0": {"n2"}}
    assert network.tracker.storage_nodes(Topic("t", 3)) == ["ws://keeper"]
    assert network.tracker.storage_nodes(Topic("private", 0)) == []
    network.report("keeper", Status())
    assert "keeper" in network.tracker.overlays["t::3"], "it may not have heard of the stream yet"


def test_a_stream_only_storage_nodes_hold_needs_no_overlay() -> None:
    network = Network(Tracker(Random(1)))
    network.join("k1", "s::0", storage=True)
    network.join("n1", "s::0")
    network.carry_out(network.tracker.left("n1"))
    assert network.tracker.overlays == {}
    network.join("n2", "s::0")
    assert "k1" in network.tracker.overlays["s::0"]


def test_what_is_no_stream_partition_is_passed_over(network: Network) -> None:
    assert network.report("n1", network.status_of("n1", **{"nonsense": Links(), "s::-1": Links()})) == []
    assert list(network.tracker.overlays) == [KEY]


def test_neighbours_a_node_only_claims_to_have_are_nobody(network: Network) -> None:
    network.tracker.joined("liar", address("liar"))
    network.report("liar", Status({KEY: Links(["liar", "ghost", "n1"], ["ghost"], 0)}))
    assert "ghost" not in wanted(network)
    assert "liar" not in wanted(network)["liar"]


def test_a_node_connects_once(network: Network) -> None:
    with pytest.raises(ValueError, match="already"):
        network.tracker.joined("n1", address("n1"))


def test_where_nodes_say_they_are_is_kept(network: Network) -> None:
    here = Location(60.2, 24.9, "FI", "Helsinki")
    network.report("n1", Status(network.status_of("n1").streams, "today", {}, here))
    network.report("n1")
    assert network.tracker.nodes["n1"].location == here


def test_slow_links_are_replaced_by_faster_ones_a_few_times() -> None:
    network = Network(Tracker(Random(3)))
    places = {f"n{number}": Random(number).random() * 200 for number in range(60)}
    for node in places:
        network.join(node)

    def measured() -> float:
        pairs = [(one, other) for one, linked in wanted(network).items() for other in linked]
        return sum(abs(places[one] - places[other]) for one, other in pairs) / len(pairs)

    before, first = measured(), wanted(network)
    for _ in range(40):
        for node, place in places.items():
            status = network.status_of(node)
            rtts = {peer: abs(place - places[peer]) + 1 for peer in wanted(network)[node]}
            network.report(node, Status(status.streams, "", rtts))
    assert measured() < 0.8 * before
    assert is_connected(network.tracker.overlays[KEY])
    assert any(first[node] & wanted(network)[node] for node in places)
    memberships = [network.tracker.nodes[node].memberships[KEY] for node in places]
    assert min(membership.shortened for membership in memberships) <= MAX_SHORTENED
