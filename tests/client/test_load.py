"""`catchment bench` and the load behind it, against real nodes; small numbers, no times asserted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from catchment import model
from catchment.cli import main as command_line
from catchment.client import load
from catchment.client.load import Load, Measured, Quantiles
from catchment.client.streamr import Chain, Received, StreamrClient
from catchment.wire.streamr import message

from ..net.nodehelp import running_node
from ..net.processes import NodeProcess, node_process

FEW = ("--seconds", "0.2", "--window", "8")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with node_process(tmp_path_factory.mktemp("node")) as process:
        yield process


def bench(*words: str) -> int:
    return command_line.main(["bench", *words])


@pytest.mark.parametrize("private_key", [None, b"\x05" * 32], ids=["unsigned", "signed"])
def test_what_is_acknowledged_reaches_every_subscriber_once_and_in_order(
    tmp_path: Path, private_key: bytes | None
) -> None:
    async def main() -> Measured:
        async with running_node(tmp_path) as node:
            wanted = Load(
                url=node.addresses["ws"],
                stream="load",
                publishers=2,
                subscribers=3,
                seconds=0.2,
                window=8,
                private_key=private_key,
            )
            measured = await load.run(wanted)
            assert node.store.next_offset == measured.acknowledged
            return measured

    measured = asyncio.run(main())
    assert measured.acknowledged == measured.published > 0
    assert measured.delivered == 3 * measured.published
    assert (measured.missing, measured.out_of_order, measured.refused) == (0, 0, {})
    assert measured.flawless
    for times in (measured.acknowledgement_ms, measured.latency_ms):
        assert 0 < times.p50 <= times.p99


def test_a_content_has_the_size_that_was_asked_for(tmp_path: Path) -> None:
    async def main() -> list[Received]:
        async with running_node(tmp_path) as node, StreamrClient(node.addresses["ws"]) as client:
            url = node.addresses["ws"]
            await load.run(Load(url=url, stream="sized", subscribers=0, seconds=0.05, window=2, size=777))
            return [received async for received in client.resend_last("sized", 5)]

    assert {len(received.message.content) for received in asyncio.run(main())} == {777}


def test_deliveries_that_are_not_the_next_of_their_publisher_are_counted() -> None:
    wanted = Load(url="", stream="s")
    subscriber = load._Subscriber(wanted, None)  # type: ignore[arg-type]
    chain = Chain("s", 0, signer=None)
    for publisher, number in ((0, 0), (1, 0), (0, 1), (0, 3), (0, 4), (1, 0)):
        raw = chain.make(f'{{"p":{publisher},"n":{number},"t":0}}', 1)
        subscriber._on_message(Received(message.decode(raw), model.Verdict.UNSIGNED, raw))
    assert subscriber.delivered == 6
    assert subscriber.out_of_order == 2


def test_quantiles_are_in_milliseconds() -> None:
    assert load.quantiles([0.001 * number for number in range(101)]) == Quantiles(50.0, 99.0)
    assert load.quantiles([]) == Quantiles(0.0, 0.0)


def test_the_command_shows_rates_and_times(node: NodeProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(node.url, "--subscribers", "2", "--publishers", "2", "--signed", "--stream", "s", *FEW) == 0
    told = capsys.readouterr()
    head, acknowledged, delivered = told.out.splitlines()
    assert head.startswith("2 publishers with 8 messages of 300 bytes in flight, 2 subscribers")
    assert acknowledged.startswith("acknowledged")
    assert delivered.startswith("delivered")
    assert "p99" in acknowledged
    assert "stay in the node's log, in the stream 's'" in told.err


def test_json_has_everything(node: NodeProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(node.url, "--subscribers", "1", "--json", *FEW) == 0
    told = msgspec.json.decode(capsys.readouterr().out)
    assert told["stream"].startswith("bench-")
    assert told["acknowledged"] == told["delivered"] > 0
    assert set(told["latency_ms"]) == {"p50", "p99"}
    assert isinstance(told["generator_was_the_limit"], bool)


def test_without_subscribers_only_acknowledgements_are_shown(
    node: NodeProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(node.url, "--subscribers", "0", *FEW) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_it_says_when_it_was_the_limit(
    node: NodeProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "LIMIT", -1.0)
    assert bench(node.url, "--subscribers", "1", *FEW) == 0
    assert "This generator was the limit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--publishers", "0"], "--publishers takes a number from 1"),
        (["--subscribers", "-1"], "--subscribers takes a number from 0"),
        (["--window", "0"], "--window takes a number from 1"),
        (["--size", "10"], "--size takes a number from 64"),
        (["--seconds", "0"], "--seconds takes a time above 0"),
        (["--seconds", "nan"], "--seconds takes a time above 0"),
        (["http://127.0.0.1:7170"], "begins with ws:// or wss://"),
        (["--cafile", "/no/such/file"], "cannot be read"),
    ],
)
def test_wrong_arguments_end_with_code_2(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(*words) == 2
    assert said in capsys.readouterr().err


def test_a_node_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert bench(f"ws://127.0.0.1:{port}", *FEW) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert f"127.0.0.1:{port}" in told.err


def test_a_subscription_that_is_refused_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with node_process(tmp_path, "--access", "closed") as closed:
        assert bench(closed.url, *FEW) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1


def test_publishes_that_are_refused_are_counted_by_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with node_process(tmp_path, "--access", "closed") as closed:
        assert bench(closed.url, "--subscribers", "0", "--json", *FEW) == 1
    told = msgspec.json.decode(capsys.readouterr().out)
    assert told["acknowledged"] == 0
    assert sum(told["refused"].values()) == told["published"] > 0
