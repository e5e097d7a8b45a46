"""What the Streamr network costs, as ratios and CPU time: python bench/network.py

forwarding    CPU of one hop: passing a committed batch on to a neighbour, beside delivering it to one local
              subscriber. Both through a node's own code into real sockets; verification and commit are not counted.
              Alone, and as in an overlay: a quarter of passing it on to four, half of them dialled by us.
joining       5,000 nodes of 10 streams each join a tracker: statuses read, instructions written.
status        one report of a node in an overlay of 10,000.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from random import Random

import uvloop
from picows import (
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_connect,
    ws_create_server,
)

from catchment import model
from catchment.client.streamr import Chain, now_ms
from catchment.config import Settings
from catchment.core.broker import Publish
from catchment.crypto.ethereum import Signer
from catchment.net.network import NetworkService
from catchment.net.peerlink import headers
from catchment.net.server import Node
from catchment.overlay.tracker import Instruct, Tracker
from catchment.sessions.streamr_peer import PeerSession
from catchment.wire.streamr import message, network
from catchment.wire.streamr import tracker as wire

BATCH = 64
ROUNDS = 200
TOPIC = model.Topic("bench", 0)
CLIENT = "/api/v1/ws?controlLayerVersion=2&messageLayerVersion=32"
NOBODY = "ws://127.0.0.1:9"


class Silent(WSListener):
    """Takes everything and looks at nothing."""

    def on_ws_connected(self, transport: WSTransport) -> None:
        """Remember where to write."""
        self.transport = transport


@contextlib.asynccontextmanager
async def connected(url: str, first: bytes, named: dict[str, str] | None = None) -> AsyncIterator[None]:
    transport, _ = await ws_connect(Silent, url, extra_headers=named or {})
    transport.send(WSMsgType.TEXT, first)
    try:
        yield
    finally:
        transport.disconnect()
        await transport.wait_disconnected()


@contextlib.asynccontextmanager
async def listening(name: str = "called") -> AsyncIterator[str]:
    """A node that can be dialled."""

    def accept(_request: WSUpgradeRequest) -> WSUpgradeResponseWithListener:
        response = WSUpgradeResponse.create_101_response(headers(name, "node"))
        return WSUpgradeResponseWithListener(response, Silent())

    server = await ws_create_server(accept, "127.0.0.1", 0)
    async with server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def batch() -> list[Publish]:
    chain = Chain("bench", 0, signer=Signer(b"\x01" * 32))
    made = []
    for number in range(BATCH):
        raw = chain.make(f'{{"n":{number},"x":"{"a" * 280}"}}', now_ms())
        entry = message.to_entry(message.decode(raw), raw, verdict=model.Verdict.OK, received_at=0)
        made.append(Publish("", entry, None, acknowledge=False))
    return made


async def cost(call: Callable[[], None]) -> float:
    """Microseconds of CPU a message takes; the loop runs in between, and is not counted."""
    taken = []
    for _ in range(ROUNDS):
        began = time.thread_time_ns()
        call()
        taken.append((time.thread_time_ns() - began) / BATCH / 1000)
        await asyncio.sleep(0.002)
    return statistics.median(taken)


async def until(there: Callable[[], object]) -> None:
    while not there():  # noqa: ASYNC110 - a script, and nobody tells
        await asyncio.sleep(0.01)


async def forwarding() -> None:
    made = batch()
    entries = [publish.entry for publish in made]
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data=folder, port=0, mosaic_port=0, seal_seconds=0.0, trackers=NOBODY)
        node = Node(settings)
        await node.start()
        assert node.network is not None
        service = node.network.node
        assert isinstance(service, NetworkService)
        broker = node.ingest.broker
        url = node.addresses["ws"]
        async with (
            listening() as address,
            connected(url + CLIENT, b'[2,9,"s","bench",0,null]'),
            listening("called too") as another,
            connected(f"{url}/node/ws?address={NOBODY}/n", b'[2,9,"s","bench",0,null]', headers("caller", "node")),
            connected(f"{url}/node/ws?address={NOBODY}/m", b'[2,9,"s","bench",0,null]', headers("caller too", "node")),
        ):
            await service._dialler.dial(address, PeerSession(node_id="me"))
            await service._dialler.dial(another, PeerSession(node_id="me"))
            await until(lambda: broker.subscriptions.of(TOPIC) and len(service.node.peers) == 4)
            service.node.join(TOPIC, service._loop.time())
            took: dict[tuple[str, ...], float] = {}
            for _warm in range(2):
                took[()] = await cost(lambda: broker._deliver_topic(TOPIC, entries))
                for peers in (("caller",), ("called",), ("caller", "caller too", "called", "called too")):
                    for peer in peers:
                        service.node.subscribe_requested(peer, TOPIC, service._loop.time())
                    took[peers] = await cost(lambda: service._forward(made)) / len(peers)
                    for peer in peers:
                        service.node.unsubscribe_requested(peer, TOPIC, service._loop.time())
            print(f"deliver to one local subscriber           {took[()]:5.2f} us a message")
            for peers, alone in took.items():
                if peers:
                    how = {("caller",): "one that dialled us", ("called",): "one we dialled"}.get(
                        peers, "four, two of each"
                    )
                    print(f"a hop to a neighbour, {how:20} {alone:5.2f} us, {alone / took[()]:.2f}x (asked: 1.5x)")
        await node.drain()


def write(instructions: list[Instruct]) -> None:
    for told in instructions:
        made = wire.InstructionMessage("", told.topic, told.addresses, told.counter)
        network.write_tracker(made, network.Era.V20, "")


def status_of(keys: list[str]) -> bytes:
    status = wire.Status({key: wire.Links() for key in keys})
    return network.write_tracker(wire.StatusMessage("", status), network.Era.V20, "")


def reported(tracker: Tracker, node: str, frame: bytes) -> None:
    told = network.read(frame).tracker
    assert isinstance(told, wire.StatusMessage)
    write(tracker.status(node, told.status))


def joining() -> None:
    chance = Random(1)
    tracker = Tracker(Random(2))
    tracker.settle()
    frames = [status_of([f"stream-{number}::0" for number in chance.sample(range(500), 10)]) for _ in range(5000)]
    began = time.process_time()
    for number, frame in enumerate(frames):
        write(tracker.joined(f"node-{number}", f"ws://node-{number}"))
        reported(tracker, f"node-{number}", frame)
    print(f"5,000 nodes join 10 streams each: {time.process_time() - began:.1f} s of CPU (asked: 60)")


def status() -> None:
    tracker = Tracker(Random(3))
    tracker.settle()
    for number in range(10_000):
        tracker.joined(f"node-{number}", f"ws://node-{number}")
        tracker.status(f"node-{number}", wire.Status({"s::0": wire.Links()}))
    taken = []
    for number in range(0, 10_000, 10):
        name = f"node-{number}"
        linked = list(tracker.overlays["s::0"].links[name])
        links = wire.Links(linked, linked, tracker.nodes[name].memberships["s::0"].counter)
        rtts = dict.fromkeys(linked, 40.0)
        made = wire.StatusMessage("", wire.Status({"s::0": links}, "", rtts))
        frame = network.write_tracker(made, network.Era.V20, "")
        began = time.process_time_ns()
        reported(tracker, name, frame)
        taken.append((time.process_time_ns() - began) / 1e6)
    taken.sort()
    print(f"a status in an overlay of 10,000: {statistics.median(taken):.3f} ms, most {taken[-1]:.3f} ms (asked: 2)")


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(forwarding())
    joining()
    status()
