"""kill -9 within a network of processes under load: what was acknowledged reaches every subscriber, once, in order."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from catchment import model
from catchment.client.streamr import ConnectionEnded, Received, StreamrClient, now_ms
from catchment.client.streamr.subscriber import Subscription
from catchment.core.ordering import Patience
from catchment.crypto.ethereum import Signer

from .nodehelp import ALICE, BOB, chain_of, on_loop
from .processes import NodeProcess

STREAM = "s"
QUICK = Patience(gap_delay=300, retry_delay=500, max_requests=60)
SECONDS = 60
IN_FLIGHT = 100
PACE = 0.002
"""Seconds between two messages of a publisher: load, but none that drowns what is looked at on a busy machine."""
pytestmark = pytest.mark.crash


class Fleet:
    """Nodes by name. One that was killed comes back under its old address, with what is on its disk."""

    def __init__(self, folder: Path, stack: contextlib.AsyncExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._roles: dict[str, str] = {}
        self.nodes: dict[str, NodeProcess] = {}

    async def start(self, name: str, roles: str = "broker", port: str = "0") -> NodeProcess:
        self._roles[name] = roles
        flags = ["--roles", roles, "--port", port]
        if roles != "tracker":
            flags += ["--trackers", self.nodes["T"].url, "--network-allow", "127.0.0.0/8"]
        # Waiting for a process to be ready blocks, and clients are at work meanwhile.
        made = self.nodes[name] = await asyncio.to_thread(NodeProcess, self._folder / name, *flags)
        self._stack.callback(_end, made)
        return made

    async def kill(self, name: str) -> None:
        process = self.nodes[name].process
        process.kill()
        assert await asyncio.to_thread(process.wait, 60) != 0

    async def restart(self, name: str) -> NodeProcess:
        return await self.start(name, self._roles[name], self.nodes[name].url.rpartition(":")[2])


def _end(node: NodeProcess) -> None:
    node.process.kill()
    node.process.communicate(timeout=60)


@contextlib.asynccontextmanager
async def fleet(folder: Path) -> AsyncIterator[Fleet]:
    async with contextlib.AsyncExitStack() as stack:
        made = Fleet(folder, stack)
        await made.start("T", "tracker")
        for name in ("A", "B", "C"):
            await made.start(name)
        await made.start("S", "storage")
        yield made


class Reading:
    """A subscriber, and what it got."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.wrong: list[object] = []
        self._more = asyncio.Event()

    async def _read(self, subscription: Subscription) -> None:
        async for each in subscription:
            if isinstance(each, Received):
                self.got.append(each.raw)
                self._more.set()
            else:
                self.wrong.append(each)

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, node: NodeProcess) -> AsyncIterator[Reading]:
        made = cls()
        async with StreamrClient(node.url, attempts=None) as client:
            subscription = await client.open_subscription(STREAM, patience=QUICK, events=True)
            task = asyncio.create_task(made._read(subscription))
            yield made
            await subscription.close()
            await task

    async def has(self, wanted: set[bytes]) -> None:
        """Wait until everything wanted is here."""
        await self._until(lambda: wanted <= set(self.got), lambda: wanted - set(self.got))

    async def has_of(self, signer: Signer, count: int) -> None:
        """Wait until so many of a publisher are here."""
        await self._until(lambda: sum(place(raw)[0] == signer.address for raw in self.got) >= count, set)

    async def _until(self, there: Callable[[], bool], missing: Callable[[], set[bytes]]) -> None:
        while not there():
            self._more.clear()
            try:
                await asyncio.wait_for(self._more.wait(), SECONDS)
            except TimeoutError:
                places = sorted(place(raw) for raw in missing())
                raise AssertionError(f"{len(places)} never came: {places[:5]}; wrong: {self.wrong[:5]}") from None

    def assert_once_and_in_order(self) -> None:
        assert len(self.got) == len(set(self.got)), "nothing twice"
        chains: dict[str, list[tuple[str, int, int]]] = {}
        for raw in self.got:
            chains.setdefault(place(raw)[0], []).append(place(raw))
        for chain in chains.values():
            assert chain == sorted(chain)
        assert not self.wrong, "no gap stays open"


def place(raw: bytes) -> tuple[str, int, int]:
    """Whose message it is, and which."""
    _, _, timestamp, sequence, publisher, *_ = msgspec.json.decode(raw)[1]
    return publisher, timestamp, sequence


class Load:
    """A publisher that sends until it is told to stop, and what was acknowledged of it."""

    def __init__(self, node: NodeProcess, signer: Signer, group: asyncio.TaskGroup, *, attempts: int | None = None):
        self._client = StreamrClient(node.url, attempts=attempts)
        self._chain = chain_of(STREAM, signer)
        self.acknowledged: list[bytes] = []
        self._progress = asyncio.Event()
        self._stopping = False
        self._task = group.create_task(self._run())

    async def _run(self) -> None:
        room = asyncio.Semaphore(IN_FLIGHT)

        async def confirm(raw: bytes, confirmed: asyncio.Future[str]) -> None:
            with contextlib.suppress(ConnectionEnded):
                assert await confirmed in ("stored", "duplicate")
                self.acknowledged.append(raw)
                self._progress.set()
            room.release()

        async with self._client, asyncio.TaskGroup() as group:
            with contextlib.suppress(ConnectionEnded):
                for number in itertools.count():
                    await room.acquire()
                    if self._stopping:
                        break
                    raw = self._chain.make(f'{{"n":{number}}}', now_ms())
                    group.create_task(confirm(raw, await self._client.send_raw(raw)))
                    await asyncio.sleep(PACE)
            room.release()
            for _ in range(IN_FLIGHT):
                await room.acquire()

    async def more(self, count: int) -> None:
        """Wait for so many more acknowledgements."""
        wanted = len(self.acknowledged) + count
        while len(self.acknowledged) < wanted:
            self._progress.clear()
            await asyncio.wait_for(self._progress.wait(), SECONDS)

    async def ended(self) -> None:
        """Send no more, and wait until all that was sent is acknowledged."""
        self._stopping = True
        await asyncio.wait_for(self._task, SECONDS)


async def history(node: NodeProcess) -> list[bytes]:
    async with StreamrClient(node.url) as client:
        return [each.raw async for each in client.resend_range(STREAM, model.Ref(0, 0))]


@on_loop
async def test_a_killed_broker_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    async with (
        fleet(tmp_path) as net,
        Reading.on(net.nodes["B"]) as at_b,
        Reading.on(net.nodes["C"]) as at_c,
        asyncio.TaskGroup() as group,
    ):
        # Alice gives up when her node is killed: no later message of hers shows that something is missing.
        alice, bob = Load(net.nodes["A"], ALICE, group, attempts=1), Load(net.nodes["B"], BOB, group)
        await alice.more(500)
        await net.kill("A")
        await alice.ended()
        await bob.more(200)
        await net.restart("A")
        await bob.more(200)
        await bob.ended()
        everything = {*alice.acknowledged, *bob.acknowledged}
        for reading in (at_b, at_c):
            await reading.has(everything)
            reading.assert_once_and_in_order()
        kept = await history(await net.start("D"))
        assert everything <= set(kept), "storage has it all, for a node that was never there"
        assert len(kept) == len(set(kept))


@on_loop
async def test_subscribers_of_a_killed_broker_miss_nothing_once_it_is_back(tmp_path: Path) -> None:
    async with (
        fleet(tmp_path) as net,
        Reading.on(net.nodes["A"]) as at_a,
        Reading.on(net.nodes["C"]) as at_c,
        asyncio.TaskGroup() as group,
    ):
        # Alice comes back as her node does, and goes on where she was.
        alice, bob = Load(net.nodes["A"], ALICE, group), Load(net.nodes["B"], BOB, group)
        await alice.more(300)
        await bob.more(300)
        await net.kill("A")
        await bob.more(500)
        await net.restart("A")
        await alice.more(300)
        await bob.more(200)
        await alice.ended()
        await bob.ended()
        for reading in (at_a, at_c):
            await reading.has({*alice.acknowledged, *bob.acknowledged})
            reading.assert_once_and_in_order()


@on_loop
async def test_messages_flow_while_the_tracker_is_dead_and_newcomers_after(tmp_path: Path) -> None:
    async with fleet(tmp_path) as net, Reading.on(net.nodes["B"]) as at_b, asyncio.TaskGroup() as group:
        alice, bob = Load(net.nodes["A"], ALICE, group), Load(net.nodes["B"], BOB, group)
        await at_b.has_of(ALICE, 200)
        await net.kill("T")
        before = len(alice.acknowledged)
        await alice.more(300)
        await at_b.has(set(alice.acknowledged[: before + 300]))
        await net.restart("T")
        async with Reading.on(net.nodes["C"]) as at_c:
            await at_c.has_of(ALICE, 200)
            await at_c.has_of(BOB, 200)
            await alice.ended()
            await bob.ended()
            await at_b.has({*alice.acknowledged, *bob.acknowledged})
            await at_c.has({alice.acknowledged[-1], bob.acknowledged[-1]})
            for reading in (at_b, at_c):
                reading.assert_once_and_in_order()
