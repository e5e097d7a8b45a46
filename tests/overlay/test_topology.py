"""The topology: regular, connected, and changed by few links, whatever comes and goes."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.overlay.simulation import is_connected
from catchment.overlay.topology import Topology

STEPS = st.lists(st.tuples(st.sampled_from(["add", "add", "remove", "part"]), st.integers(0, 10_000)), max_size=120)


def check(topology: Topology) -> None:
    assert is_connected(topology)
    for node, linked in topology.links.items():
        assert len(linked) <= topology.degree
        assert len(set(linked)) == len(linked)
        assert node not in linked
        assert all(node in topology.links[other] for other in linked)


def grown(count: int, seed: int = 1, degree: int = 4) -> Topology:
    topology = Topology(Random(seed), degree=degree)
    for number in range(count):
        topology.add(f"n{number}")
    return topology


@settings(max_examples=200)
@given(STEPS, st.integers(0, 2**32), st.sampled_from([2, 3, 4, 5]))
def test_any_history_keeps_it_connected_and_tells_everyone_whose_neighbours_changed(
    steps: list[tuple[str, int]], seed: int, degree: int
) -> None:
    topology = Topology(Random(seed), degree=degree)
    alive: list[str] = []
    for number, (step, choice) in enumerate(steps):
        before = {node: set(linked) for node, linked in topology.links.items()}
        if step == "remove" and alive:
            changed = topology.remove(alive.pop(choice % len(alive)))
        elif step == "part" and alive and topology.links[alive[choice % len(alive)]]:
            node = alive[choice % len(alive)]
            changed = topology.part(node, topology.links[node][choice % len(topology.links[node])])
        else:
            alive.append(f"n{number}")
            changed = topology.add(alive[-1])
        check(topology)
        after = {node: set(linked) for node, linked in topology.links.items()}
        assert {node for node in after if after[node] != before.get(node, set())} <= set(changed)
        assert set(changed) <= set(after)


@pytest.mark.parametrize("count", range(1, 6))
def test_few_nodes_are_all_neighbours(count: int) -> None:
    assert all(len(linked) == count - 1 for linked in grown(count).links.values())


def test_more_nodes_have_four_neighbours_each() -> None:
    for count in (6, 7, 50, 501):
        topology = grown(count)
        assert {len(linked) for linked in topology.links.values()} == {4}


def test_everyone_has_four_neighbours_again_after_a_third_has_gone() -> None:
    topology = grown(300)
    for number in range(100):
        topology.remove(f"n{number}")
    assert {len(linked) for linked in topology.links.values()} == {4}
    check(topology)


def test_a_join_changes_two_links_of_others_and_a_leave_mends_two() -> None:
    topology = grown(200)
    assert len(topology.add("new")) == 5
    assert len(topology.remove("n7")) <= 8


def test_reported_links_are_kept() -> None:
    before = grown(100).links
    again = Topology(Random(2))
    again.adopt(before)
    check(again)
    assert {node: set(linked) for node, linked in again.links.items()} == {n: set(ls) for n, ls in before.items()}


@given(st.dictionaries(st.integers(0, 20), st.lists(st.integers(0, 25), max_size=8), max_size=20), st.integers(0, 99))
def test_whatever_is_reported_it_is_connected(reported: dict[int, list[int]], seed: int) -> None:
    topology = Topology(Random(seed))
    topology.adopt({f"n{node}": [f"n{other}" for other in linked] for node, linked in reported.items()})
    check(topology)
    assert len(topology) == len(reported)


def test_nobody_is_its_own_neighbour_whatever_it_says() -> None:
    topology = grown(3)
    topology.add("liar", ["liar", "liar", "n1"])
    check(topology)


def test_a_link_that_cannot_be_made_is_replaced() -> None:
    topology = grown(30)
    one = "n3"
    other = topology.links[one][0]
    changed = topology.part(one, other)
    assert {one, other} < set(changed)
    assert other not in topology.links[one]
    check(topology)


def test_in_a_small_network_there_is_no_other_way() -> None:
    topology = grown(5)
    assert topology.part("n0", "n1") == []
    assert "n1" in topology.links["n0"]


def test_parts_torn_apart_are_linked_again() -> None:
    """Two rings that only one node holds together."""
    topology = Topology(Random(1), degree=4)
    for name in ("a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3", "middle"):
        topology._links[name] = []
        topology._place[name] = len(topology._order)
        topology._order.append(name)
        topology._open[name] = None
    for side in "ab":
        for number in range(4):
            topology._link(f"{side}{number}", f"{side}{(number + 1) % 4}")
        topology._link("middle", f"{side}0")
        topology._link("middle", f"{side}2")
    topology.remove("middle")
    check(topology)


def test_nearer_links_are_preferred() -> None:
    places = {f"n{number}": number for number in range(400)}

    def cost(one: str, other: str) -> float:
        return abs(places[one] - places[other])

    near, far = Topology(Random(1), cost=cost), Topology(Random(1))
    order = list(places)
    Random(5).shuffle(order)
    for node in order:
        near.add(node)
        far.add(node)

    def mean(topology: Topology) -> float:
        lengths = [cost(one, other) for one, linked in topology.links.items() for other in linked]
        return sum(lengths) / len(lengths)

    assert mean(near) < mean(far) * 0.85
    check(near)


def test_a_slow_link_is_shortened_only_where_it_pays() -> None:
    def same(_one: str, _other: str) -> float:
        return 10.0

    topology = Topology(Random(1), cost=same)
    for number in range(50):
        topology.add(f"n{number}")
    assert topology.shorten("n1", topology.links["n1"][0], 0.4) == []


def test_the_same_seed_gives_the_same_links() -> None:
    assert dict(grown(100, seed=3).links) == dict(grown(100, seed=3).links)
    assert dict(grown(100, seed=3).links) != dict(grown(100, seed=4).links)


def test_a_node_is_added_once() -> None:
    topology = grown(3)
    with pytest.raises(ValueError, match="already"):
        topology.add("n0")
