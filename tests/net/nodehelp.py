"""A node on a free port, and a client that sends exactly what a test says."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

import msgspec
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from catchment.client.streamr import Chain, now_ms
from catchment.config import Settings
from catchment.crypto.ethereum import Signer
from catchment.net.server import Node

STREAMR = "/api/v1/ws?controlLayerVersion=2&messageLayerVersion=32"
ALICE = Signer(b"\x01" * 32)
BOB = Signer(b"\x02" * 32)


def on_loop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Run a test that is a coroutine on a loop of its own."""

    @functools.wraps(test)
    def run(*arguments: object, **fixtures: object) -> None:
        asyncio.run(test(*arguments, **fixtures))

    return run


@contextlib.asynccontextmanager
async def running_node(folder: Path, **settings: object) -> AsyncIterator[Node]:
    node = Node(Settings(**{"data": str(folder), "port": 0, "mosaic_port": 0, "seal_seconds": 0.0, **settings}))  # type: ignore[arg-type]
    await node.start()
    try:
        yield node
    finally:
        await node.drain()


class Peer(WSListener):
    """One WebSocket connection; what comes in waits in `frames`."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.close_code: int | None = None
        self.closed = asyncio.Event()

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.TEXT:
            self.frames.put_nowait(frame.get_payload_as_bytes())
        elif frame.msg_type == WSMsgType.CLOSE:
            self.close_code = frame.get_close_code()
            transport.send_close(frame.get_close_code())
            transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.frames.put_nowait(None)
        self.closed.set()

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def send(self, payload: bytes | str | list[object]) -> None:
        data = msgspec.json.encode(payload) if isinstance(payload, list) else payload
        self.transport.send(WSMsgType.TEXT, data.encode() if isinstance(data, str) else data)

    def publish(self, raw: bytes, request_id: str = "p") -> None:
        self.send(b'[2,8,"%b",%b,null]' % (request_id.encode(), raw))

    async def next(self) -> list[object]:
        frame = await asyncio.wait_for(self.frames.get(), 30)
        assert frame is not None, f"the connection was closed ({self.close_code})"
        return msgspec.json.decode(frame, type=list)

    async def ask(self, payload: bytes | str | list[object]) -> list[object]:
        self.send(payload)
        return await self.next()

    async def subscribe(self, stream: str, partition: int = 0) -> None:
        assert await self.ask([2, 9, "s", stream, partition, None]) == [2, 2, "s", stream, partition]


@contextlib.asynccontextmanager
async def connected(node: Node, target: str = STREAMR, **options: object) -> AsyncIterator[Peer]:
    transport, peer = await ws_connect(Peer, node.addresses["ws"] + target, **options)  # type: ignore[arg-type]
    try:
        yield peer  # type: ignore[misc]
    finally:
        transport.disconnect()
        await transport.wait_disconnected()


def chain_of(stream: str, signer: Signer | None = ALICE, chain_id: str = "chain") -> Chain:
    return Chain(stream, 0, signer=signer, chain_id=chain_id)


def messages(stream: str, count: int, *, signer: Signer | None = ALICE, start: int | None = None) -> list[bytes]:
    chain = chain_of(stream, signer)
    first = now_ms() - count if start is None else start
    return [chain.make(f'{{"n":{number}}}', first + number) for number in range(count)]


def forge(raw: bytes) -> bytes:
    """The same message with other content under the old signature."""
    altered = raw.replace(b'{\\"n\\":', b'{\\"m\\":')
    assert altered != raw
    return altered


async def get(node: Node, path: str, *, method: str = "GET") -> tuple[int, bytes]:
    def ask() -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=30)
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, body

    return await asyncio.to_thread(ask)
