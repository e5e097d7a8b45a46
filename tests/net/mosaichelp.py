"""Mosaic clients that send exactly what a test says, over every transport."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Protocol

from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from catchment.crypto.mosaic import Signer
from catchment.net.server import Node
from catchment.wire.mosaic import frames, keys
from catchment.wire.mosaic.frames import Layout, Message, MessageType
from catchment.wire.mosaic.results import Result


class Line(Protocol):
    """One connection: whole messages out and in."""

    def send(self, data: bytes) -> None: ...

    async def receive(self) -> bytes | None: ...

    async def close(self) -> None: ...


class MosaicPeer:
    """A client over any line."""

    def __init__(self, line: Line, layout: Layout) -> None:
        self.line = line
        self.layout = layout

    def say(self, kind: MessageType, **fields: Any) -> None:
        self.line.send(frames.encode(Message(kind, **fields), self.layout))

    async def next(self) -> Message:
        data = await asyncio.wait_for(self.line.receive(), 30)
        assert data is not None, "the connection was closed"
        return frames.decode(data, self.layout)

    async def end(self) -> None:
        """Wait for the connection to be closed."""
        assert await asyncio.wait_for(self.line.receive(), 30) is None

    async def submit(self, raw: bytes) -> Result:
        self.say(MessageType.SUBMISSION, body=raw)
        answer = await self.next()
        assert (answer.type, answer.subject) == (MessageType.SUBMISSION_RESULT, raw[:32].ljust(32, b"\0"))
        return answer.result

    async def query(self, question: bytes, *, limit: int = 0, query_id: bytes = b"q1") -> tuple[list[bytes], Result]:
        self.say(MessageType.QUERY, query_id=query_id, limit=limit, body=question)
        return await self.answer(query_id)

    async def get(self, *references: bytes) -> tuple[list[bytes], Result]:
        self.say(MessageType.GET, query_id=b"g1", references=references)
        return await self.answer(b"g1")

    async def answer(self, query_id: bytes) -> tuple[list[bytes], Result]:
        """Records up to Query Closed."""
        records: list[bytes] = []
        while True:
            message = await self.next()
            assert message.query_id == query_id
            if message.type is MessageType.QUERY_CLOSED:
                return records, message.result
            assert message.type is MessageType.RECORD
            records.append(message.body)

    async def subscribe(self, question: bytes, *, query_id: bytes = b"s1", limit: int = 0) -> list[bytes]:
        """Stored records up to Locally Complete."""
        self.say(MessageType.SUBSCRIBE, query_id=query_id, limit=limit, body=question)
        records: list[bytes] = []
        while True:
            message = await self.next()
            assert message.query_id == query_id
            if message.type is MessageType.LOCALLY_COMPLETE:
                return records
            assert message.type is MessageType.RECORD
            records.append(message.body)

    async def live(self, query_id: bytes = b"s1") -> bytes:
        message = await self.next()
        assert (message.type, message.query_id) == (MessageType.RECORD, query_id)
        return message.body


class WebSocketLine(WSListener):
    """One WebSocket connection."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.close_code: int | None = None

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            self.close_code = frame.get_close_code()
            transport.send_close(frame.get_close_code())
            transport.disconnect()
        elif frame.msg_type == WSMsgType.BINARY:
            self.frames.put_nowait(frame.get_payload_as_bytes())
        else:
            assert frame.msg_type in (WSMsgType.PING, WSMsgType.PONG), "only binary frames are sent"

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.frames.put_nowait(None)

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def send(self, data: bytes) -> None:
        self.transport.send(WSMsgType.BINARY, data)

    async def receive(self) -> bytes | None:
        return await self.frames.get()

    async def close(self) -> None:
        self.transport.disconnect()
        await self.transport.wait_disconnected()


async def websocket_line(node: Node, headers: dict[str, str] | None = None) -> WebSocketLine:
    extra = {"Sec-WebSocket-Protocol": "mosaic2025", **(headers or {})}
    _, line = await ws_connect(WebSocketLine, node.addresses["ws"] + "/", extra_headers=extra)
    return line  # type: ignore[return-value]


async def _over_websocket(node: Node, layout: Layout, signer: Signer | None) -> MosaicPeer:
    if signer is None:
        return MosaicPeer(await websocket_line(node), layout)
    claim = {"X-Mosaic-Authenticate-As": keys.encode(keys.Printable.USER_KEY, signer.public)}
    line = await websocket_line(node, claim)
    nonce = line.transport.response.headers["X-Mosaic-Client-Authenticate-Nonce"]
    peer = MosaicPeer(line, layout)
    peer.say(MessageType.HELLO_AUTH, body=signer.sign(nonce.encode()))
    return peer


TRANSPORTS = {"websocket": _over_websocket}


@contextlib.asynccontextmanager
async def speaking(
    node: Node, transport: str, layout: Layout, signer: Signer | None = None
) -> AsyncIterator[MosaicPeer]:
    """A client that has introduced itself, by a signature if it has a key."""
    peer = await TRANSPORTS[transport](node, layout, signer)
    try:
        yield peer
    finally:
        await peer.line.close()
