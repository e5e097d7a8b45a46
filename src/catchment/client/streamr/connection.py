"""One WebSocket to a node: opened, opened again with back-off when it breaks, requests paired with their answers.

Whoever uses a connection is told when it is there anew (`on_connected`: send again, subscribe again), when it broke,
and when it will not come back.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import ssl
from typing import Final
from urllib.parse import urlencode

from picows import WSCloseCode, WSError, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from catchment.client.streamr.values import Arrived, ConnectionEnded, Refused
from catchment.errors import PeerFault
from catchment.wire.streamr import control, message
from catchment.wire.streamr.control import Control, ControlType

log = logging.getLogger(__name__)

MAX_FRAME: Final = 16 * 1024 * 1024
MAX_DELAY: Final = 5.0
"""Seconds between two attempts at most."""
NODE_HEADER: Final = "Catchment-Version"
"""Our node says so in its answer to the upgrade: then it knows `publishAck`."""
HANDSHAKE_SECONDS: Final = 10
MAX_TEXT: Final = 500


class _Listener(WSListener):
    """Passes frames of one transport to its connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._fragments = b""

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind in (WSMsgType.TEXT, WSMsgType.CONTINUATION):
            self._fragments += frame.get_payload_as_bytes()
            if frame.fin:
                data, self._fragments = self._fragments, b""
                self._connection.received(data)
            elif len(self._fragments) > MAX_FRAME:
                transport.disconnect(graceful=False)
        elif kind == WSMsgType.CLOSE:
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._connection.lost(transport)

    def pause_writing(self) -> None:
        self._connection.writable.clear()

    def resume_writing(self) -> None:
        self._connection.writable.set()


class Handler:
    """What a connection tells whoever uses it; every method may be left as it is."""

    def on_message(self, arrived: Arrived) -> None:
        """A broadcast."""

    def on_answer(self, answer: Control, arrived: Arrived | None) -> None:
        """Any other frame; `arrived` is the message of a unicast."""

    async def on_connected(self) -> None:
        """The connection is there, for the first time or again."""

    def on_lost(self) -> None:
        """The connection broke."""

    def on_failed(self, ended: ConnectionEnded) -> None:
        """The connection will not be tried again for now."""

    def wants_connection(self) -> bool:
        """Whether a broken connection is to be opened again at once, and not when it is next used."""
        return False


class Connection:
    """A WebSocket that is opened when it is needed."""

    def __init__(self, url: str, *, attempts: int | None = 8, ssl_context: ssl.SSLContext | None = None) -> None:
        """Prepare; nothing is opened yet.

        Args:
            url: a node's address, ws://host:port or with a path of its own.
            attempts: how often in a row to try to connect, None for no end.
            ssl_context: for wss addresses, when the usual one does not do.
        """
        self.handlers: list[Handler] = []
        self.url = with_versions(url)
        self.writable = asyncio.Event()
        self.knows_us = False
        """Whether the node is one of ours, which acknowledges publishes."""
        self._attempts = attempts
        self._ssl = ssl_context
        self._transport: WSTransport | None = None
        self._connecting = asyncio.Lock()
        self._ids = (f"c{number}" for number in itertools.count(1))
        self._requests: dict[str, asyncio.Future[Control]] = {}
        self._fruitless = 0
        """Connections in a row that ended before a word was heard."""
        self._again: asyncio.Task[None] | None = None
        self._paused = False
        self.closed = False

    @property
    def connected(self) -> bool:
        """Whether there is a connection at the moment."""
        return self._transport is not None

    def next_id(self) -> str:
        """A request id that was not used before."""
        return next(self._ids)

    async def open(self) -> None:
        """Make sure there is a connection.

        Raises:
            ConnectionEnded: the node cannot be reached, or the client was closed.
        """
        if self._transport is not None:
            return
        async with self._connecting:
            if self._transport is not None:
                return
            transport = await self._try_to_connect()
            self._transport = transport
            self._paused = False
            self.writable.set()
            self.knows_us = NODE_HEADER in transport.response.headers
        for handler in self.handlers:
            await handler.on_connected()

    async def _try_to_connect(self) -> WSTransport:
        for attempt in itertools.count(1):
            if self.closed:
                raise ConnectionEnded("The client was closed.")
            try:
                transport, _ = await ws_connect(
                    lambda: _Listener(self),
                    self.url,
                    ssl_context=self._ssl,
                    max_frame_size=MAX_FRAME,
                    websocket_handshake_timeout=HANDSHAKE_SECONDS,
                )
                # picows also returns when the peer closed during the handshake.
                if not transport.is_disconnected:
                    return transport
                problem = "the connection was closed at once"
            except ssl.SSLCertVerificationError as error:
                raise ConnectionEnded(
                    f"The certificate of {self.url.partition('?')[0]} is not trusted ({error.verify_message}): name "
                    "the file of the authority that signed it (cafile, --cafile)."
                ) from None
            except (OSError, WSError) as error:
                problem = str(error) or type(error).__name__
            if self._attempts is not None and attempt >= self._attempts:
                raise ConnectionEnded(f"No node answers at {self.url}: {problem[:MAX_TEXT]}")
            await asyncio.sleep(delay_after(attempt))
        raise AssertionError("unreachable")

    async def close(self) -> None:
        """Say goodbye and end."""
        self.closed = True
        if self._again is not None:
            self._again.cancel()
        transport, self._transport = self._transport, None
        ended = ConnectionEnded("The client was closed.")
        self._fail_requests(ended)
        if transport is not None:
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()
            await transport.wait_disconnected()

    def send(self, request: Control) -> None:
        """Send without waiting for anything.

        Raises:
            ConnectionEnded: there is no connection.
        """
        if self._transport is None:
            raise ConnectionEnded("The connection to the node is gone.")
        self._transport.send(WSMsgType.TEXT, control.encode(request))

    async def ask(self, request: Control) -> Control:
        """Send a request and wait for its answer.

        Raises:
            Refused: the node refused it.
            ConnectionEnded: the node cannot be reached, or the connection broke.
        """
        await self.open()
        answer: asyncio.Future[Control] = asyncio.get_running_loop().create_future()
        self._requests[request.request_id] = answer
        try:
            self.send(request)
            return await answer
        finally:
            self._requests.pop(request.request_id, None)

    def pause_reading(self) -> None:
        """Take no more frames for now; the node notices and waits, or cuts us off."""
        if self._transport is not None and not self._paused:
            self._paused = True
            self._transport.underlying_transport.pause_reading()

    def resume_reading(self) -> None:
        """Take frames again."""
        if self._transport is not None and self._paused:
            self._paused = False
            self._transport.underlying_transport.resume_reading()

    # What the listener calls.

    def received(self, data: bytes) -> None:
        """Take one frame. One that cannot be read is passed over: the others are still good."""
        try:
            answer = control.decode(data)
            arrived = None
            if answer.type in (ControlType.BROADCAST_MESSAGE, ControlType.UNICAST_MESSAGE):
                raw = bytes(answer.message)
                arrived = Arrived(message.decode(raw), raw)
        except PeerFault as fault:
            log.warning("passed over a frame that cannot be read: %s", fault.message[:MAX_TEXT])
            return
        self._fruitless = 0
        if answer.type is ControlType.BROADCAST_MESSAGE and arrived is not None:
            for handler in self.handlers:
                handler.on_message(arrived)
            return
        asked = self._requests.get(answer.request_id)
        if asked is not None and not asked.done():
            if answer.type is ControlType.ERROR_RESPONSE:
                asked.set_exception(Refused(answer.error_message, answer.error_code))
            else:
                asked.set_result(answer)
        for handler in self.handlers:
            handler.on_answer(answer, arrived)

    def lost(self, transport: WSTransport) -> None:
        """The transport ended, by whomever."""
        if transport is not self._transport:
            return
        self._transport = None
        self.writable.set()
        self._fail_requests(ConnectionEnded("The connection to the node broke."))
        for handler in self.handlers:
            handler.on_lost()
        if not self.closed and self._wanted():
            self.open_again()

    def open_again(self) -> None:
        """Open in the background, after a while."""
        if self._again is None or self._again.done():
            self._again = asyncio.get_running_loop().create_task(self._open_again())

    async def _open_again(self) -> None:
        try:
            while not self.closed and self._transport is None and self._wanted():
                self._fruitless += 1
                if self._attempts is not None and self._fruitless > self._attempts:
                    raise ConnectionEnded(f"The node ended {self._attempts} connections without a word.")
                await asyncio.sleep(delay_after(self._fruitless))
                await self.open()
        except ConnectionEnded as ended:
            self._fruitless = 0
            if not self.closed:
                for handler in self.handlers:
                    handler.on_failed(ended)

    def _wanted(self) -> bool:
        return any(handler.wants_connection() for handler in self.handlers)

    def _fail_requests(self, ended: ConnectionEnded) -> None:
        for answer in self._requests.values():
            if not answer.done():
                answer.set_exception(ended)


def delay_after(attempt: int) -> float:
    """Seconds to wait after so many attempts in a row: doubled each time, and not the same for every client."""
    whole = min(MAX_DELAY, 0.05 * float(1 << min(attempt - 1, 10)))
    return whole * random.uniform(0.5, 1.0)  # noqa: S311 - spreads clients out, hides nothing


def with_versions(url: str) -> str:
    """A node's address with the path and the versions we speak."""
    base, _, query = url.partition("?")
    scheme, _, rest = base.partition("://")
    host, slash, path = rest.partition("/")
    if not slash or not path:
        base = f"{scheme}://{host}/api/v1/ws"
    ours = urlencode({"controlLayerVersion": 2, "messageLayerVersion": 32, "publishAck": 1})
    return f"{base}?{query}&{ours}" if query else f"{base}?{ours}"
