"""History as it is read from a node: asked for once, gone on with where it stopped when the connection broke.

A node sends history no faster than we read (facts/streamr.md, section 6); when too much waits to be taken, the
connection is not read any further.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final, NamedTuple, Protocol

from catchment import model
from catchment.client.streamr.connection import Connection
from catchment.client.streamr.values import Arrived, ConnectionEnded, Refused
from catchment.errors import CatchmentError
from catchment.wire.streamr.control import Control, ControlType
from catchment.wire.streamr.fields import LooseMessageRef

HIGH: Final = 2000
"""Messages that may wait for whoever iterates before the connection is not read any further."""
LOW: Final = 500


class Question(NamedTuple):
    """Which history: the last so many, or between two places; of one publisher and chain, or of all."""

    topic: model.Topic
    last: int | None = None
    start: model.Ref = model.FIRST_REF
    end: model.Ref | None = None
    publisher: str | None = None
    chain: str | None = None


class Pipe:
    """Messages of one resend on their way to whoever iterates."""

    def __init__(self, connection: Connection, pipes: dict[str, Pipe]) -> None:
        self._connection = connection
        self._pipes = pipes
        self._items: deque[Arrived | CatchmentError | None] = deque()
        self._filled = asyncio.Event()

    @property
    def low(self) -> bool:
        """Whether there is room."""
        return len(self._items) <= LOW

    def put(self, item: Arrived | CatchmentError | None) -> None:
        """A message, a fault, or None at the end."""
        self._items.append(item)
        self._filled.set()
        if len(self._items) >= HIGH:
            self._connection.pause_reading()

    async def get(self) -> Arrived | None:
        """The next message, None at the end.

        Raises:
            CatchmentError: what was put in.
        """
        while not self._items:
            self._filled.clear()
            await self._filled.wait()
        item = self._items.popleft()
        self.read_on()
        if isinstance(item, CatchmentError):
            raise item
        return item

    def read_on(self) -> None:
        """Read the connection again when no resend has too much waiting."""
        if all(pipe.low for pipe in self._pipes.values()):
            self._connection.resume_reading()


class Source(Protocol):
    """What a replay reads from."""

    async def begin(self, request: Control) -> Pipe:
        """Send a resend request; its messages come through the pipe."""

    def end(self, request_id: str) -> None:
        """Forget a resend."""

    def next_id(self) -> str:
        """A request id that was not used before."""

    async def login_helps(self, refused: Refused) -> bool:
        """Whether we have logged in because of a refusal, and it is worth to ask again."""


class _Progress:
    """How far a resend got: its last time, and what of that time was seen."""

    def __init__(self) -> None:
        self.count = 0
        self.timestamp = -1
        self._seen: set[tuple[int, str, str]] = set()

    def is_new(self, arrived: Arrived) -> bool:
        msg_id = arrived.message.msg_id
        key = (msg_id.sequence_number, model.canonical_publisher(msg_id.publisher_id), msg_id.msg_chain_id)
        if msg_id.timestamp < self.timestamp or (msg_id.timestamp == self.timestamp and key in self._seen):
            return False
        if msg_id.timestamp != self.timestamp:
            self.timestamp = msg_id.timestamp
            self._seen.clear()
        self._seen.add(key)
        self.count += 1
        return True


async def replay(source: Source, question: Question) -> AsyncGenerator[Arrived, None]:
    """The messages of a resend, oldest first, each once, whatever the connection does meanwhile.

    Raises:
        Refused: the node does not resend.
        ConnectionEnded: the node cannot be reached any more.
    """
    progress = _Progress()
    logged_in = False
    while question.last is None or progress.count < question.last:
        request = _request(question, progress, source.next_id())
        pipe = await source.begin(request)
        try:
            while (arrived := await pipe.get()) is not None:
                if progress.is_new(arrived):
                    yield arrived
                    if question.last is not None and progress.count >= question.last:
                        return
            return
        except ConnectionEnded:
            continue  # `begin` connects again, or raises
        except Refused as refused:
            if logged_in or not await source.login_helps(refused):
                raise
            logged_in = True
        finally:
            source.end(request.request_id)


def _request(question: Question, progress: _Progress, request_id: str) -> Control:
    topic = question.topic
    if question.last is not None and not progress.count:
        return Control(
            ControlType.RESEND_LAST_REQUEST,
            request_id,
            stream_id=topic.name,
            stream_partition=topic.partition,
            number_last=question.last,
        )
    start = question.start
    if progress.timestamp >= 0:
        start = max(start, model.Ref(progress.timestamp, 0))
    whole_chain = question.publisher is not None and question.chain is not None
    end = question.end
    if end is None and whole_chain:
        end = model.LAST_REF  # only a range names a chain
    return Control(
        ControlType.RESEND_FROM_REQUEST if end is None else ControlType.RESEND_RANGE_REQUEST,
        request_id,
        stream_id=topic.name,
        stream_partition=topic.partition,
        from_msg_ref=LooseMessageRef(*start),
        to_msg_ref=None if end is None else LooseMessageRef(*end),
        publisher_id=question.publisher,
        msg_chain_id=question.chain,
    )
