"""Published nodes of the Streamr network beside ours: joined to our tracker, and we to theirs.

Version 19 speaks the object form, 20 and 22 the arrays (facts/streamr.md, section 8). Nodes from 23 on speak WebRTC and
are out of scope.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from catchment.client.streamr import now_ms
from catchment.net import tracking
from catchment.net.server import Node

from ..net.nodehelp import Peer, connected, messages, on_loop, running_node
from .clients import Driver, install, missing_tools

pytestmark = pytest.mark.clients

FOLDER = Path(__file__).parents[2] / "conformance" / "network"
VERSIONS = ("19.0.7", "20.1.0", "22.1.0")
PATIENCE = 30.0


@pytest.fixture(scope="module")
def drivers() -> Iterator[Callable[[str], Driver]]:
    """A process for each published version."""
    missing = missing_tools()
    if missing:
        pytest.skip(f"the published nodes were not run: this machine has no {' and no '.join(missing)}")
    install(FOLDER)
    running: dict[str, Driver] = {}

    def of(version: str) -> Driver:
        if version not in running:
            running[version] = Driver(version, FOLDER)
        return running[version]

    yield of
    for driver in running.values():
        driver.close()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "SETTLE_SECONDS", 0.0)


_numbers = itertools.count(1)


def free_port() -> int:
    """A port for a published node, which has to know it beforehand."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Published:
    """A published node or tracker."""

    def __init__(self, driver: Driver, kind: str, **details: object) -> None:
        self.name = f"{kind}-{driver.version}-{next(_numbers)}"
        self.address = f"ws://127.0.0.1:{(port := free_port())}"
        self._driver = driver
        self._mark = len(driver.events())
        self._order(kind, port=port, **details)

    def _order(self, action: str, **details: object) -> Any:
        return self._driver.answer(self._driver.tell(action, name=self.name, **details), patience=PATIENCE)

    def subscribe(self, stream: str) -> None:
        self._order("subscribe", stream=stream)

    def publish(self, raw: bytes) -> None:
        self._order("publish", raw=raw.decode())

    def resend(self, stream: str, last: int) -> list[Any]:
        found: list[Any] = self._order("resend", stream=stream, last=last)
        return found

    def waits_for(self, raw: bytes) -> None:
        """Wait for a message, exactly as it was signed."""
        wanted = json.loads(raw)
        self._driver.wait(
            lambda event: event["event"] == "message" and event["name"] == self.name and event["raw"] == wanted,
            patience=PATIENCE,
            since=self._mark,
        )

    def count(self, raw: bytes) -> int:
        wanted = json.loads(raw)
        events = self._driver.events()[self._mark :]
        return sum(event.get("raw") == wanted and event.get("name") == self.name for event in events)

    def stop(self) -> None:
        self._order("stop")


@contextlib.asynccontextmanager
async def published(driver: Driver, kind: str, **details: object) -> AsyncIterator[Published]:
    made = await asyncio.to_thread(Published, driver, kind, **details)
    try:
        yield made
    finally:
        await asyncio.to_thread(made.stop)


@contextlib.asynccontextmanager
async def our_node(folder: Path, tracker: str, **settings: object) -> AsyncIterator[tuple[Node, Peer]]:
    async with (
        running_node(folder, trackers=tracker, network_allow="127.0.0.0/8", **settings) as node,
        connected(node) as client,
    ):
        yield node, client


async def received(client: Peer) -> bytes:
    frame = await asyncio.wait_for(client.frames.get(), PATIENCE)
    assert frame is not None
    return frame.removeprefix(b'[2,0,"",').removesuffix(b"]")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_published_node_and_ours_exchange_messages_under_our_tracker(
    version: str, drivers: Callable[[str], Driver], tmp_path: Path
) -> None:
    @on_loop
    async def run() -> None:
        async with running_node(tmp_path / "T", roles="tracker") as tracker:
            where = tracker.addresses["ws"]
            async with (
                our_node(tmp_path / "A", where) as (_, client),
                published(drivers(version), "node", trackers=[where]) as theirs,
            ):
                await client.subscribe("s")
                await asyncio.to_thread(theirs.subscribe, "s")
                mine, other = messages("s", 2)
                client.publish(mine)
                assert await received(client) == mine
                await asyncio.to_thread(theirs.waits_for, mine)
                await asyncio.to_thread(theirs.publish, other)
                assert await received(client) == other
                assert theirs.count(mine) == 1

    run()


@pytest.mark.parametrize("version", VERSIONS)
def test_published_nodes_find_each_other_through_our_tracker(
    version: str, drivers: Callable[[str], Driver], tmp_path: Path
) -> None:
    @on_loop
    async def run() -> None:
        async with running_node(tmp_path / "T", roles="tracker") as tracker:
            where = tracker.addresses["ws"]
            driver = drivers(version)
            async with (
                published(driver, "node", trackers=[where]) as one,
                published(driver, "node", trackers=[where]) as two,
                published(driver, "node", trackers=[where]) as three,
            ):
                for node in (one, two, three):
                    await asyncio.to_thread(node.subscribe, "s")
                (raw,) = messages("s", 1)
                await asyncio.to_thread(one.publish, raw)
                for node in (two, three):
                    await asyncio.to_thread(node.waits_for, raw)

    run()


def test_nodes_of_different_versions_and_ours_are_one_network(drivers: Callable[[str], Driver], tmp_path: Path) -> None:
    @on_loop
    async def run() -> None:
        async with running_node(tmp_path / "T", roles="tracker") as tracker:
            where = tracker.addresses["ws"]
            async with (
                our_node(tmp_path / "A", where) as (_, client),
                published(drivers("20.1.0"), "node", trackers=[where]) as old,
                published(drivers("22.1.0"), "node", trackers=[where]) as new,
            ):
                await client.subscribe("s")
                for node in (old, new):
                    await asyncio.to_thread(node.subscribe, "s")
                start = now_ms() - 1000
                sent = messages("s", 3, start=start)
                await asyncio.to_thread(old.publish, sent[0])
                assert await received(client) == sent[0]
                await asyncio.to_thread(new.waits_for, sent[0])
                await asyncio.to_thread(new.publish, sent[1])
                assert await received(client) == sent[1]
                await asyncio.to_thread(old.waits_for, sent[1])
                client.publish(sent[2])
                for node in (old, new):
                    await asyncio.to_thread(node.waits_for, sent[2])

    run()


@pytest.mark.parametrize("version", ["20.1.0", "22.1.0"])
def test_our_node_joins_a_published_tracker(version: str, drivers: Callable[[str], Driver], tmp_path: Path) -> None:
    @on_loop
    async def run() -> None:
        driver = drivers(version)
        async with (
            published(driver, "tracker") as tracker,
            our_node(tmp_path / "A", tracker.address) as (_, client),
            published(driver, "node", trackers=[tracker.address]) as theirs,
        ):
            await client.subscribe("s")
            await asyncio.to_thread(theirs.subscribe, "s")
            mine, other = messages("s", 2)
            client.publish(mine)
            await asyncio.to_thread(theirs.waits_for, mine)
            assert await received(client) == mine
            await asyncio.to_thread(theirs.publish, other)
            assert await received(client) == other

    run()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_published_node_gets_history_from_our_storage_node(
    version: str, drivers: Callable[[str], Driver], tmp_path: Path
) -> None:
    @on_loop
    async def run() -> None:
        async with running_node(tmp_path / "T", roles="tracker") as tracker:
            where = tracker.addresses["ws"]
            async with (
                our_node(tmp_path / "S", where, roles="storage") as (_, client),
                published(drivers(version), "node", trackers=[where]) as theirs,
            ):
                await client.subscribe("s")
                sent = messages("s", 5)
                for raw in sent:
                    client.publish(raw)
                    assert await received(client) == raw
                await asyncio.to_thread(theirs.subscribe, "s")
                await asyncio.to_thread(theirs.waits_for, sent[-1])
                found = await asyncio.to_thread(theirs.resend, "s", 3)
                assert found == [json.loads(raw) for raw in sent[2:]]

    run()
