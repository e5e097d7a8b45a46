"""Mosaic clients that send exactly what a test says, over every transport."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit

from aioquic.asyncio.client import connect as quic_connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from catchment.crypto.mosaic import Signer
from catchment.net.mosaic_identity import certificate, key_of, private_key
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


class StreamLine:
    """Messages out of a stream of bytes; subclasses bring the bytes."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._buffer = b""

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= frames.HEADER:
            size = frames.frame_size(self._buffer[:8], self.layout)
            if len(self._buffer) < size:
                return
            self.frames.put_nowait(self._buffer[:size])
            self._buffer = self._buffer[size:]

    async def receive(self) -> bytes | None:
        return await self.frames.get()


class TcpLine(StreamLine):
    """TLS with the standard library's client, a certificate if there is a key."""

    @classmethod
    async def open(cls, node: Node, layout: Layout, signer: Signer | None) -> TcpLine:
        line = cls(layout)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if signer is not None:
            load_certificate(context, signer)
        port = urlsplit(node.addresses["mosaictcp"]).port
        line.reader, line.writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        shown = line.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert key_of(x509.load_der_x509_certificate(shown)) == node.mosaic.signer.public
        line.task = asyncio.create_task(line._read())
        return line

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := await self.reader.read(65_536):
                self.feed(data)
        self.frames.put_nowait(None)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def close(self) -> None:
        self.task.cancel()
        self.writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await self.writer.wait_closed()


def load_certificate(context: ssl.SSLContext, signer: Signer) -> None:
    """The standard library reads certificates from files only."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(
            private_key(signer).private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        file.write(certificate(signer).public_bytes(serialization.Encoding.PEM))
        file.flush()
        context.load_cert_chain(file.name)


class QuicClient(QuicConnectionProtocol):
    """Hands what comes on a stream to its line."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.lines: dict[int, QuicLine] = {}
        self.terminated = asyncio.Event()

    def quic_event_received(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.StreamDataReceived):
            line = self.lines[event.stream_id]
            line.feed(event.data)
            if event.end_stream:
                line.frames.put_nowait(None)
        elif isinstance(event, events.ConnectionTerminated):
            self.terminated.set()
            for line in self.lines.values():
                line.frames.put_nowait(None)


class QuicLine(StreamLine):
    """One stream of a QUIC connection."""

    def __init__(self, layout: Layout, client: QuicClient, stack: contextlib.AsyncExitStack) -> None:
        super().__init__(layout)
        self.client = client
        self.stack = stack
        self.stream_id = client._quic.get_next_available_stream_id()
        client.lines[self.stream_id] = self

    @classmethod
    async def open(cls, node: Node, layout: Layout, signer: Signer | None) -> QuicLine:
        configuration = QuicConfiguration(
            is_client=True,
            alpn_protocols=["mosaic"],
            server_name="mosaic",
            verify_mode=ssl.CERT_NONE,
            certificate=None if signer is None else certificate(signer),
            private_key=None if signer is None else private_key(signer),
        )
        stack = contextlib.AsyncExitStack()
        port = urlsplit(node.addresses["mosaic"]).port
        assert port is not None
        client = await stack.enter_async_context(
            quic_connect("127.0.0.1", port, configuration=configuration, create_protocol=QuicClient)
        )
        assert isinstance(client, QuicClient)
        shown = client._quic.tls._peer_certificate
        assert shown is not None
        assert key_of(shown) == node.mosaic.signer.public
        return cls(layout, client, stack)

    def another(self) -> QuicLine:
        """A second stream of the same connection."""
        return QuicLine(self.layout, self.client, self.stack)

    def send(self, data: bytes, *, end: bool = False) -> None:
        self.client._quic.send_stream_data(self.stream_id, data, end)
        self.client.transmit()

    async def close(self) -> None:
        self.client.close()
        await self.stack.aclose()


async def _over_stream(kind: Any, node: Node, layout: Layout, signer: Signer | None) -> MosaicPeer:
    peer = MosaicPeer(await kind.open(node, layout, signer), layout)
    peer.say(MessageType.HELLO, version=0, applications=(0, 1))
    ack = await peer.next()
    assert (ack.type, ack.result, ack.applications) == (MessageType.HELLO_ACK, Result.SUCCESS, (0, 1))
    return peer


TRANSPORTS = {
    "websocket": _over_websocket,
    "tcp": partial(_over_stream, TcpLine),
    "quic": partial(_over_stream, QuicLine),
}


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
