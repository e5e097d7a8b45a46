"""The front door: one port for HTTP and every WebSocket dialect (DESIGN.md, "One port").

A small protocol reads the head of the first request, then hands the transport with the bytes read so far to picows
for an upgrade or to uvicorn's protocol for plain HTTP; from then on it is out of the way.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Final, cast

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

MAX_HEAD: Final = 16 * 1024
HANDSHAKE_SECONDS: Final = 10
"""facts/reliability.md, "Slow-loris": ten seconds for a request's head."""

STALL_SECONDS: Final = 60
"""How long an answer may wait for a peer that reads nothing of it."""

_UPGRADE: Final = re.compile(rb"\r\nupgrade[ \t]*:[ \t]*websocket[ \t]*\r\n", re.IGNORECASE)
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class PatientProtocol(HttpToolsProtocol):
    """Uvicorn's protocol, patient with a peer that does not read its answer, but not for ever."""

    _stalled: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """The peer reads too slowly; from now on it has `STALL_SECONDS` to take some of it."""
        super().pause_writing()
        self._stalled = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """It has."""
        self._forget()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """It went."""
        self._forget()
        super().connection_lost(exc)

    def _forget(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()


class HttpApp:
    """Serves an ASGI application over transports handed to it."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._config = Config(app, log_config=None, access_log=False, lifespan="off", http="httptools", ws="none")
        self._config.load()
        self._state = ServerState()

    def protocol(self) -> HttpToolsProtocol:
        """A protocol for one connection."""
        return PatientProtocol(config=self._config, server_state=self._state, app_state={})

    async def close(self, seconds: float) -> None:
        """End the connections that are open; each may finish its answer within so many seconds."""
        for connection in list(self._state.connections):
            connection.shutdown()
        tasks = set(self._state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        for connection in list(self._state.connections):
            connection.transport.abort()
        tasks = set(self._state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)


class FrontDoor(asyncio.Protocol):
    """Reads one request head and decides who goes on."""

    def __init__(
        self, *, http: HttpApp, websocket: Callable[[], asyncio.BufferedProtocol], open_doors: set[FrontDoor]
    ) -> None:
        self._http = http
        self._websocket = websocket
        self._open_doors = open_doors
        self._head = bytearray()
        self._timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the head, not for ever."""
        # uvloop's transports do not descend from asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        self._open_doors.add(self)
        self._timeout = asyncio.get_running_loop().call_later(HANDSHAKE_SECONDS, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """It went before it asked for anything."""
        self._leave()

    def data_received(self, data: bytes) -> None:
        """Collect until the head is whole."""
        self._head += data
        if b"\r\n\r\n" in self._head:
            self._hand_over()
        elif len(self._head) > MAX_HEAD:
            self._transport.write(_TOO_LARGE)
            self._transport.close()

    def close(self) -> None:
        """End a connection that has not asked for anything yet."""
        self._transport.abort()

    def _leave(self) -> None:
        self._open_doors.discard(self)
        if self._timeout is not None:
            self._timeout.cancel()

    def _hand_over(self) -> None:
        self._leave()
        head = bytes(self._head)
        end = head.index(b"\r\n\r\n") + 2
        if _UPGRADE.search(head, 0, end) is None:
            protocol = self._http.protocol()
            self._transport.set_protocol(protocol)
            protocol.connection_made(self._transport)
            protocol.data_received(head)
            return
        upgrade = self._websocket()
        self._transport.set_protocol(upgrade)
        upgrade.connection_made(self._transport)
        _feed(upgrade, head)


def _feed(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    """Give a buffered protocol bytes that were already read."""
    view = memoryview(data)
    while view:
        buffer = memoryview(protocol.get_buffer(len(view)))
        size = min(len(buffer), len(view))
        buffer[:size] = view[:size]
        protocol.buffer_updated(size)
        view = view[size:]
