"""One open query of a Mosaic conversation: stored records first, then, for a subscription, live ones.

Nothing is lost and nothing comes twice where the two meet: stored records are those below the offset at which the log
stood when the query was opened, live ones are those from there on. Live records that come while stored ones are still
being sent are held back until Locally Complete has been said (spec/mosaic-messages.md, Subscribe).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from catchment.core.watches import Watch
from catchment.wire.mosaic import frames
from catchment.wire.mosaic.frames import Layout, Message, MessageType, RecordWriter
from catchment.wire.mosaic.results import Result

MAX_HELD: Final = 4 * 1024 * 1024
"""Bytes of live records that may wait for the end of the stored ones; beyond it the query is closed."""


class Answering(Protocol):
    """Where stored records come from, page by page."""

    result: Result | None

    def page(self) -> list[bytes]:
        """The next records."""


class Query:
    """A `sessions.base.Source`.

    Attributes:
        query_id: the client's name for it.
        done: the last page of stored records has been made.
        closed: nothing more is sent.
        watch: brings live records; None for a query that ends with the stored ones.
    """

    __slots__ = (
        *("_answer", "_held", "_held_bytes", "_layout", "_on_closed", "_send", "_writer"),
        *("closed", "done", "query_id", "watch"),
    )

    def __init__(
        self,
        query_id: bytes,
        layout: Layout,
        answer: Answering,
        *,
        send: Callable[[bytes], None],
        on_closed: Callable[[Query], None],
    ) -> None:
        self.query_id = query_id
        self.done = False
        self.closed = False
        self.watch: Watch | None = None
        self._layout = layout
        self._answer: Answering | None = answer
        self._writer = RecordWriter(query_id, layout)
        self._send = send
        self._on_closed = on_closed
        self._held: list[bytes] | None = []
        """Live records that wait; None once they go out directly."""
        self._held_bytes = 0

    # Stored records, on a reader's thread.

    def page(self) -> Sequence[bytes]:
        """The next Record messages, and what ends them."""
        answer = self._answer
        assert answer is not None
        payloads = [self._writer.write(raw) for raw in answer.page()]
        if answer.result is not None:
            self.done = True
            if answer.result is Result.SUCCESS and self.watch is not None:
                payloads.append(self._word(Message(MessageType.LOCALLY_COMPLETE, query_id=self.query_id)))
            else:
                payloads.append(self.closing(answer.result))
        return payloads

    # On the event loop.

    def ended(self) -> None:
        """Go live, or end."""
        answer, self._answer = self._answer, None
        if self.watch is None or answer is None or answer.result is not Result.SUCCESS:
            self._on_closed(self)
            return
        held, self._held = self._held or [], None
        for raw in held:
            self._send(self._writer.write(raw))

    def failed(self) -> bytes:
        """Close it with our fault."""
        self._on_closed(self)
        return self.closing(Result.TEMPORARY_ERROR)

    def take(self, raw: bytes) -> None:
        """Send a live record, now or when it is time."""
        if self.closed:
            return
        if self._held is None:
            self._send(self._writer.write(raw))
            return
        self._held.append(raw)
        self._held_bytes += len(raw)
        if self._held_bytes > MAX_HELD:
            self._on_closed(self)
            self._send(self.closing(Result.TEMPORARY_ERROR))

    def closing(self, result: Result) -> bytes:
        """Word the end."""
        return self._word(Message(MessageType.QUERY_CLOSED, query_id=self.query_id, result=result))

    def _word(self, message: Message) -> bytes:
        return frames.encode(message, self._layout)
