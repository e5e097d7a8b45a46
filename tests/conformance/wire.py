"""Frames of our own making, where a case needs exactly these messages in exactly this order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec
from picows import ws_connect

from catchment.wire.streamr import control, message

from ..net.nodehelp import STREAMR, Peer
from ..net.processes import NodeProcess


@contextlib.asynccontextmanager
async def _connected(node: NodeProcess) -> AsyncIterator[Peer]:
    transport, peer = await ws_connect(Peer, node.url + STREAMR + "&publishAck=1")
    try:
        yield peer  # type: ignore[misc]
    finally:
        transport.disconnect()
        await transport.wait_disconnected()


def publish(node: NodeProcess, *messages: bytes) -> list[object]:
    """Publish messages one after the other; what became of each ("stored", "duplicate", or the error's code)."""

    async def run() -> list[object]:
        async with _connected(node) as peer:
            for number, raw in enumerate(messages):
                peer.publish(raw, str(number))
            answers = {answer[2]: answer[-1] for answer in [await peer.next() for _ in messages]}
            return [answers[str(number)] for number in range(len(messages))]

    return asyncio.run(run())


def places(node: NodeProcess, stream: str, partitions: int, count: int, act: Callable[[], None]) -> dict[str, int]:
    """In which partition each of the next messages turns up, by the value of its member `key`."""

    async def run() -> dict[str, int]:
        async with _connected(node) as peer:
            for partition in range(partitions):
                await peer.subscribe(stream, partition)
            await asyncio.to_thread(act)
            made = [message.decode(msgspec.json.encode((await peer.next())[3])) for _ in range(count)]
            return {msgspec.json.decode(each.content)["key"]: each.msg_id.stream_partition for each in made}

    return asyncio.run(run())


def heard(node: NodeProcess, stream: str, count: int, act: Callable[[], None]) -> list[message.StreamMessage]:
    """The next messages of a stream, as a subscriber of control 2 and message 32 sees them while something is done."""

    async def run() -> list[message.StreamMessage]:
        async with _connected(node) as peer:
            await peer.subscribe(stream)
            await asyncio.to_thread(act)
            frames = [await peer.next() for _ in range(count)]
            assert {frame[1] for frame in frames} == {control.ControlType.BROADCAST_MESSAGE}, frames
            return [message.decode(msgspec.json.encode(frame[3])) for frame in frames]

    return asyncio.run(run())
