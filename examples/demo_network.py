"""A network on one machine: a tracker, two brokers and a storage node, one of them killed midway, and nothing lost.

`make demo-network` runs it. Two publishers send signed messages, each to its own broker; two subscribers listen, each
at its own. Midway the second broker is killed (kill -9), and started again while messages flow. In the end everything
that was acknowledged must have come to both subscribers, once and in order, and a broker that was never there must get
all of it from the storage node: exit code 1 when it is not so. The topology the tracker keeps is drawn into a picture.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import msgspec
from rich.console import Console
from rich.table import Table

from catchment import model
from catchment.client.streamr import Chain, Received, StreamrClient, now_ms
from catchment.client.streamr.subscriber import Subscription
from catchment.core.ordering import Patience
from catchment.crypto.ethereum import Signer

mpl.use("Agg")
from matplotlib import pyplot as plt

STREAM = "demo/river"
KEY = f"{STREAM}::0"
MARKER = "made-by-the-demo"
"""Only a folder that has this file is emptied."""

IN_FLIGHT = 64
PATIENCE = Patience(gap_delay=500, retry_delay=1000, max_requests=30)
WAIT_SECONDS = 45.0
"""How long anything may take before the demo calls it lost."""

Topology = Mapping[str, Sequence[str]]


class Process:
    """`catchment serve` in a process of its own."""

    def __init__(self, data: Path, name: str, roles: str, tracker: str | None) -> None:
        self.name, self.roles, self.tracker = name, roles, tracker
        self._folder = data / name
        self._folder.mkdir(parents=True)
        self.url = ""
        self._node: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Return when it listens; a second time under the same address."""
        port = self.url.rpartition(":")[2] or "0"
        ready = self._folder / "ready.json"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "catchment.cli.main", "serve", "--port", port, "--mosaic-port", "0"]
        command += ["--data", str(self._folder / "data"), "--ready-file", str(ready), "--log-level", "warning"]
        command += ["--roles", self.roles, "--network-id", self.name]
        if self.tracker is not None:
            command += ["--trackers", self.tracker, "--network-allow", "127.0.0.0/8"]
        await asyncio.to_thread(self._run, command, ready)

    def _run(self, command: Sequence[str], ready: Path) -> None:
        log = self._folder / "node.log"
        with log.open("ab") as file:
            self._node = subprocess.Popen(command, stderr=file)
        while not ready.exists():
            if self._node.poll() is not None:
                raise SystemExit(f"The node {self.name} did not start: {log.read_text()}")
            time.sleep(0.05)
        self.url = msgspec.json.decode(ready.read_bytes())["ws"]

    def kill(self) -> None:
        """End it without a word."""
        if self._node is not None:
            self._node.kill()
            self._node.wait()

    def stop(self) -> None:
        """Let it say goodbye."""
        if self._node is not None and self._node.poll() is None:
            self._node.send_signal(signal.SIGTERM)
            self._node.wait(60)


class Publisher:
    """Sends signed messages to one broker, and knows which were acknowledged."""

    def __init__(self, node: Process, secret: bytes, count: int) -> None:
        self.name = f"publisher at {node.name}"
        self.acknowledged: list[bytes] = []
        self._url = node.url
        self._chain = Chain(STREAM, 0, signer=Signer(secret), chain_id=node.name)
        self._count = count
        self._reached = asyncio.Condition()

    async def run(self, pause: float) -> None:
        """Send everything, again what a killed node did not acknowledge."""
        room = asyncio.Semaphore(IN_FLIGHT)

        async def confirm(raw: bytes, confirmed: asyncio.Future[str]) -> None:
            await confirmed
            self.acknowledged.append(raw)
            room.release()
            async with self._reached:
                self._reached.notify_all()

        async with StreamrClient(self._url, attempts=None) as client, asyncio.TaskGroup() as waiting:
            for number in range(self._count):
                await room.acquire()
                raw = self._chain.make(f'{{"level":{number}}}', now_ms())
                waiting.create_task(confirm(raw, await client.send_raw(raw)))
                await asyncio.sleep(pause)
            for _ in range(IN_FLIGHT):
                await room.acquire()

    async def has_sent(self, share: float) -> None:
        """Wait until so much is acknowledged."""
        async with self._reached:
            await self._reached.wait_for(lambda: len(self.acknowledged) >= share * self._count)


class Subscriber:
    """Listens at one broker."""

    def __init__(self, node: Process) -> None:
        self.name = f"subscriber at {node.name}"
        self.received: list[bytes] = []
        self._url = node.url
        self._more = asyncio.Event()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Listen as long as this lasts."""
        async with StreamrClient(self._url, attempts=None) as client:
            subscription = await client.open_subscription(STREAM, patience=PATIENCE, events=True)
            task = asyncio.create_task(self._read(subscription))
            try:
                yield
            finally:
                await subscription.close()
                await task

    async def _read(self, subscription: Subscription) -> None:
        async for each in subscription:
            if isinstance(each, Received):
                self.received.append(each.raw)
                self._more.set()

    async def has(self, wanted: set[bytes]) -> None:
        """Wait until everything is here, or nothing has come for long."""
        with contextlib.suppress(TimeoutError):
            while not wanted <= set(self.received):
                self._more.clear()
                await asyncio.wait_for(self._more.wait(), WAIT_SECONDS)


async def topology(tracker: Process) -> Topology:
    """Who is whose neighbour, as the tracker has it."""

    def ask() -> Topology:
        address = tracker.url.replace("ws://", "http://", 1) + "/topology/"
        with urllib.request.urlopen(address) as response:
            found: dict[str, dict[str, list[str]]] = msgspec.json.decode(response.read())
        return found.get(KEY, {})

    return await asyncio.to_thread(ask)


async def linked(tracker: Process, names: set[str]) -> Topology:
    """The topology once exactly these nodes are in it and each has a neighbour."""
    end = time.monotonic() + WAIT_SECONDS
    while True:
        found = await topology(tracker)
        if (set(found) == names and all(found.values())) or time.monotonic() > end:
            return found
        await asyncio.sleep(0.1)


def draw(moments: Sequence[tuple[str, Topology]], path: Path) -> None:
    """The topology at several moments, side by side."""
    names = sorted({name for _, found in moments for name in found})
    places = {}
    for number, name in enumerate(names):
        turn = math.tau * number / len(names) + math.pi / 2
        places[name] = (math.cos(turn), math.sin(turn))
    figure, panels = plt.subplots(1, len(moments), figsize=(4 * len(moments), 4), layout="constrained")
    for panel, (title, found) in zip(panels, moments, strict=True):
        for name, neighbours in found.items():
            for other in neighbours:
                panel.plot(*zip(places[name], places[other], strict=True), color="#6c8ebf", linewidth=2, zorder=1)
        for name, (x, y) in places.items():
            colour = "#d0d0d0" if name not in found else "#ffb570" if "storage" in name else "#97d077"
            panel.scatter([x], [y], s=2600, color=colour, edgecolor="#444444", zorder=2)
            panel.text(x, y, name.replace("-", "\n"), ha="center", va="center", fontsize=9, zorder=3)
        panel.set(title=title, xlim=(-1.6, 1.6), ylim=(-1.4, 1.6), aspect="equal")
        panel.axis("off")
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def verdict(name: str, wanted: Sequence[bytes], got: Sequence[bytes], table: Table) -> bool:
    """One line of the table: what had to come and what came."""
    lost = len(set(wanted) - set(got))
    twice = len(got) - len(set(got))
    order: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for raw in got:
        _, _, timestamp, sequence, publisher, chain = msgspec.json.decode(raw)[1]
        order.setdefault((publisher, chain), []).append((timestamp, sequence))
    swapped = sum(places != sorted(places) for places in order.values())
    good = not lost and not twice and not swapped
    verdict = "[green]yes[/]" if good else "[red]NO[/]"
    table.add_row(name, f"{len(wanted):,}", f"{len(got):,}", f"{lost:,}", f"{twice:,}", f"{swapped:,}", verdict)
    return good


async def play(data: Path, count: int, console: Console) -> bool:
    """The whole story, and the end of everyone in it; whether nothing was lost."""
    async with contextlib.AsyncExitStack() as stack:
        return await _play(data, count, console, stack)


async def _play(data: Path, count: int, console: Console, stack: contextlib.AsyncExitStack) -> bool:

    async def run(name: str, roles: str, tracker: Process | None = None) -> Process:
        node = Process(data, name, roles, tracker.url if tracker else None)
        stack.callback(node.stop)
        await node.start()
        console.print(f"{name:10} {roles:8} {node.url}")
        return node

    tracker = await run("tracker", "tracker")
    one = await run("broker-1", "broker", tracker)
    two = await run("broker-2", "broker", tracker)
    store = await run("storage", "storage", tracker)
    everyone = {one.name, two.name, store.name}
    subscribers = [Subscriber(one), Subscriber(two)]
    for subscriber in subscribers:
        await stack.enter_async_context(subscriber.listening())
    moments = [("before", await linked(tracker, everyone))]
    publishers = [Publisher(one, b"\x01" * 32, count), Publisher(two, b"\x02" * 32, count)]
    async with asyncio.TaskGroup() as group:
        for publisher in publishers:
            group.create_task(publisher.run(pause=4.0 / count))
        await publishers[1].has_sent(0.4)
        two.kill()
        console.print(f"{two.name} was killed after {len(publishers[1].acknowledged):,} acknowledgements.")
        moments.append((f"{two.name} killed", await linked(tracker, everyone - {two.name})))
        await two.start()
        console.print(f"{two.name} is back.")
    wanted = [raw for publisher in publishers for raw in publisher.acknowledged]
    for subscriber in subscribers:
        await subscriber.has(set(wanted))
    moments.append((f"{two.name} back", await linked(tracker, everyone)))
    newcomer = await run("broker-3", "broker", tracker)
    async with StreamrClient(newcomer.url) as client:
        history = [each.raw async for each in client.resend_range(STREAM, model.Ref(0, 0))]
    table = Table(title="What was acknowledged, and where it came to")
    for column in ("who", "acknowledged", "received", "lost", "twice", "out of order", "good"):
        table.add_column(column, justify="left" if column == "who" else "right")
    good = [verdict(subscriber.name, wanted, subscriber.received, table) for subscriber in subscribers]
    good.append(verdict("history at broker-3", wanted, history, table))
    console.print(table)
    picture = data / "topology.png"
    draw(moments, picture)
    console.print(f"The topology at three moments is in [bold]{picture}[/].")
    return all(good) and len(wanted) == len(publishers) * count


def main() -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="demo-data", type=Path, help="folder to work in; emptied first")
    parser.add_argument("--messages", default=4000, type=int, help="messages in all")
    arguments = parser.parse_args()
    console = Console(width=min(100, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 100)
    data: Path = arguments.data
    if data.exists() and not (data / MARKER).exists():
        console.print(f"{data} exists and is no folder of an earlier demo; name another with --data.")
        return 2
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    (data / MARKER).touch()
    good = asyncio.run(play(data, max(10, arguments.messages // 2), console))
    console.print("[bold green]Nothing was lost.[/]" if good else "[bold red]Something WAS lost.[/]")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
