"""The network under virtual time: nothing lost, nothing twice, and the same seed is the same history."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from catchment.overlay import simulation
from catchment.overlay.results import Options, Result, Spread
from catchment.overlay.simulation import Broken, Simulation

from ..net.processes import run

SMALL = Options(nodes=60, streams=3, nodes_per_stream=30, messages=60, churn=0.3, loss=0.2)


def play(**changes: float) -> Result:
    return Simulation(msgspec.structs.replace(SMALL, **changes)).run()


def test_the_same_seed_gives_the_same_result_byte_for_byte() -> None:
    assert msgspec.json.encode(play(seed=4)) == msgspec.json.encode(play(seed=4))
    assert msgspec.json.encode(play(seed=4)) != msgspec.json.encode(play(seed=5))


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_under_heavy_churn(seed: int) -> None:
    result = play(seed=seed, churn=0.6, loss=0.5, kill=0.4)
    assert result.deliveries > 1000
    assert result.killed == 24
    assert 0 < result.repair_seconds < simulation.REPAIR_LIMIT


@pytest.mark.parametrize("seconds", [1.0, 8.0, 20.0, 30.0])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_when_the_network_was_split_in_two(seed: int, seconds: float) -> None:
    result = play(seed=seed, partition=seconds, churn=0.3, kill=0.2, messages=90)
    assert 0 < result.heal_seconds < simulation.REPAIR_LIMIT


def test_a_network_that_does_not_heal_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation.overlay, "RECENT_SECONDS", 1.0)
    with pytest.raises(Broken, match="never reached"):
        play(partition=20.0, churn=0.0, loss=0.0, kill=0.0)


@pytest.mark.parametrize("nodes", [30, 100, 1000])
def test_hops_grow_no_faster_than_the_logarithm_of_the_nodes(nodes: int) -> None:
    """With four neighbours a hop reaches three new ones, so log3 of the nodes is the least it can be."""
    result = Simulation(Options(nodes=nodes, streams=1, nodes_per_stream=nodes, messages=20)).run()
    assert result.hops.mean <= math.log(nodes, 3) + 1
    assert result.hops.p50 <= math.log(nodes, 3) + 1


def test_a_node_sends_a_message_no_more_than_to_its_neighbours() -> None:
    result = Simulation(Options(nodes=100, streams=1, nodes_per_stream=100, messages=50, churn=0, loss=0, kill=0)).run()
    assert result.load.most <= 4.0
    assert result.deliveries == 100 * 50
    assert result.hops_counted[0] == 50


def test_a_message_that_is_lost_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Simulation._send

    def lose(self: Simulation, alive: object, peer: str, topic: object, number: int, hops: int) -> None:
        if number != 7:
            forward(self, alive, peer, topic, number, hops)  # type: ignore[arg-type]

    monkeypatch.setattr(Simulation, "_send", lose)
    with pytest.raises(Broken, match=r"message 7 .* never reached"):
        play()


def test_a_network_that_does_not_repair_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation.Tracker, "left", lambda self, node: [])
    with pytest.raises(Broken, match="not linked again"):
        play(churn=0.0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"nodes": 1}, "nodes"),
        ({"nodes_per_stream": 61}, "per stream"),
        ({"streams": 0}, "a stream"),
        ({"messages": 0}, "a message"),
        ({"churn": 1.0}, "share"),
        ({"kill": -0.1}, "share"),
        ({"partition": 31.0}, "partition"),
    ],
)
def test_networks_that_cannot_be(changes: dict[str, float], says: str) -> None:
    wrong = msgspec.structs.replace(SMALL, **changes).check()
    assert wrong is not None
    assert says in wrong


def test_a_spread_of_nothing_is_zero() -> None:
    assert Spread.of([]) == Spread(0, 0, 0, 0, 0)
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 2.0, 3.0, 3.0, 3.0)


def test_the_command_prints_a_table_and_draws_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "network.png"
    done = run(
        "simulate", "--nodes", "30", "--nodes", "60", "--streams", "2", "--nodes-per-stream", "all", "--messages", "20",
        "--partition", "5", "--picture", str(picture),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "delivery" in done.stdout
    assert "healed" in done.stdout
    assert done.stdout.count("died") == 2
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_command_prints_json() -> None:
    done = run("simulate", "--nodes", "20", "--messages", "5", "--streams", "1", "--json")
    assert done.returncode == 0, done.stderr
    result = msgspec.json.decode(done.stdout, type=Result)
    assert result.options.nodes == 20
    assert result == Simulation(result.options).run()


def test_the_command_refuses_what_cannot_be() -> None:
    done = run("simulate", "--nodes", "1")
    assert done.returncode == 2
    assert "cannot be" in done.stderr
