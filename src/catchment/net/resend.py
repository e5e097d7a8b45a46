"""Sends history to one peer, page by page, no faster than it reads.

A page is read on a thread in one short read transaction; the next is read when the peer has taken the last. So a
resend of any length neither grows the node nor delays anyone else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

from catchment import metrics, model
from catchment.net.outbox import HIGH_WATER
from catchment.sessions.base import Resend, Resending, Source
from catchment.store.history import History

log = logging.getLogger(__name__)

PAGE_ROWS: Final = 512
PAGE_BYTES: Final = HIGH_WATER
"""A page ends with the row that reaches either."""


Shaped = TypeVar("Shaped")


class Taker(Protocol):
    """Who takes payloads."""

    def send_all(self, payloads: Sequence[bytes]) -> None:
        """Takes them."""

    async def room(self) -> bool:
        """Waits until the peer has read enough; False when it is gone."""


class Peer(Taker, Protocol):
    """The connection a resend goes to."""

    @property
    def session(self) -> Resending:
        """Words the messages."""


class Resender:
    """Runs resends for all connections over a few reader threads."""

    def __init__(self, history: History, *, threads: int = 2) -> None:
        self._history = history
        self.elsewhere: Callable[[Resend], AsyncGenerator[Sequence[model.Entry], None]] | None = None
        """Asks other nodes for history that is not here, page by page."""
        self._readers = ThreadPoolExecutor(threads, thread_name_prefix="reader")

    def close(self) -> None:
        """End the threads; pages under way are finished."""
        self._readers.shutdown(wait=True, cancel_futures=True)

    async def run(self, peer: Peer, request: Resend, *, elsewhere: bool = True) -> None:
        """Answer one request. A failure of ours is answered too and leaves the connection as it was.

        Args:
            peer: who asked.
            request: for what.
            elsewhere: whether other nodes may be asked when there is nothing here.
        """
        session = peer.session
        try:
            count = await self._send_all(peer, request)
            if not count and elsewhere and self.elsewhere is not None:
                count = await self._pass_on(peer, request, self.elsewhere(request))
        except Exception:
            # Our fault whatever it is; the peer must not wait for ever.
            log.exception("a resend of %r failed", request.question.topic)
            peer.send_all([session.resend_failed(request)])
            return
        peer.send_all([session.resend_ended(request, count)])

    async def serve(self, peer: Taker, source: Source) -> None:
        """Send what a source makes, a page when the peer has taken the last. A failure of ours is answered too."""
        loop = asyncio.get_running_loop()
        try:
            while not source.closed and await peer.room():
                payloads = await loop.run_in_executor(self._readers, source.page)
                if source.closed:
                    return
                if payloads:
                    peer.send_all(payloads)
                if source.done:
                    source.ended()
                    return
        except Exception:
            # Our fault whatever it is; the peer must not wait for ever.
            log.exception("an answer broke")
            if not source.closed:
                peer.send_all([source.failed()])

    async def _send_all(self, peer: Peer, request: Resend) -> int:
        sent = 0
        if not await peer.room():
            return sent
        async with contextlib.aclosing(self.pages(request.question, _entries, last=request.last)) as pages:
            async for page in pages:
                self._send_page(peer, request, page, first=sent == 0)
                sent += len(page)
                if not await peer.room():
                    break
        return sent

    async def pages(
        self, question: model.Range, shape: Callable[[Sequence[model.Row]], Shaped], *, last: int | None = None
    ) -> AsyncGenerator[Shaped, None]:
        """History page by page; the next is read when it is asked for.

        Args:
            question: which messages.
            shape: makes of a page what is wanted, on the thread that read it.
            last: only so many from the end of the topic.
        """
        loop = asyncio.get_running_loop()
        left = model.MAX_SAFE_INTEGER if last is None else last
        after: model.OrderKey | None = None
        if last is not None:
            after = await loop.run_in_executor(self._readers, self._history.before_last, question.topic, left)
        while left > 0:
            shaped, count, after = await loop.run_in_executor(self._readers, self._page, question, after, left, shape)
            left -= count
            yield shaped
            if after is None:
                return

    def _page(
        self,
        question: model.Range,
        after: model.OrderKey | None,
        left: int,
        shape: Callable[[Sequence[model.Row]], Shaped],
    ) -> tuple[Shaped, int, model.OrderKey | None]:
        page, after = self._history.range(question, after=after, limit=PAGE_ROWS, max_bytes=PAGE_BYTES)
        page = page[:left]
        return shape(page), len(page), after

    async def _pass_on(self, peer: Peer, request: Resend, pages: AsyncGenerator[Sequence[model.Entry], None]) -> int:
        """Send what another node answers."""
        sent = 0
        async with contextlib.aclosing(pages):
            async for page in pages:
                if not await peer.room():
                    break
                self._send_page(peer, request, page, first=sent == 0)
                sent += len(page)
        return sent

    def _send_page(self, peer: Peer, request: Resend, page: Sequence[model.Entry], *, first: bool) -> None:
        if not page:
            return
        session = peer.session
        started = session.resend_started(request) if first else None
        payloads = [] if started is None else [started]
        payloads.extend(session.resend_message(request, entry) for entry in page)
        peer.send_all(payloads)
        metrics.RESENT.inc(len(page))


def _entries(page: Sequence[model.Row]) -> list[model.Entry]:
    return [row.entry for row in page]
