"""The way out of a connection: bounded in bytes, written as few times as possible.

A peer that stops reading fills its own outbox and is cut at the limit (facts/reliability.md, "Slow consumers"); since
there is history it can come back and ask for what it missed. Nobody else notices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

HIGH_WATER: Final = 256 * 1024
"""Above this a resend waits for the peer to read."""


class Outbox:
    """Takes bytes for one transport."""

    __slots__ = ("_closed", "_limit", "_on_overflow", "_paused", "_transport", "_waiters")

    def __init__(self, transport: asyncio.Transport, *, limit: int, on_overflow: Callable[[], None]) -> None:
        transport.set_write_buffer_limits(high=HIGH_WATER)
        self._transport = transport
        self._limit = limit
        self._on_overflow = on_overflow
        self._paused = False
        self._closed = False
        self._waiters: list[asyncio.Future[None]] = []

    def write(self, data: bytes) -> None:
        """Send bytes, or cut the connection when too much is waiting already."""
        if self.takes(len(data)):
            self._transport.write(data)

    def takes(self, size: int) -> bool:
        """Whether so many bytes may be sent; where too much is waiting already the connection is cut."""
        if self._closed:
            return False
        if self._paused and self._transport.get_write_buffer_size() + size > self._limit:
            self.close()
            self._on_overflow()
            return False
        return True

    def pause(self) -> None:
        """The transport holds more than `HIGH_WATER`."""
        self._paused = True

    def resume(self) -> None:
        """The transport was read empty enough."""
        self._paused = False
        self._wake()

    def close(self) -> None:
        """Take nothing more."""
        self._closed = True
        self._wake()

    async def room(self) -> bool:
        """Wait until the peer has read enough; False when the connection is gone."""
        while self._paused and not self._closed:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        return not self._closed

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
