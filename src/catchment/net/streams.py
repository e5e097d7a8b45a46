"""Mosaic over streams of bytes: messages told apart, given to the session, answered where they came from.

What TCP and QUIC have in common. A message is known by its first eight bytes (`frames.frame_size`); one that is longer
than the session takes is answered at once and passed over without being kept, so nobody makes the node hold more than
one message for each stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from catchment import model
from catchment.core.broker import Publish, Status
from catchment.errors import PeerFault
from catchment.net.ingest import Ingest, now_us
from catchment.net.resend import Resender
from catchment.sessions.base import Close, Command, Send, Serve, Source
from catchment.sessions.mosaic import MosaicSession
from catchment.wire.mosaic import frames
from catchment.wire.mosaic.frames import MessageType

log = logging.getLogger(__name__)

HEAD: Final = 64
"""How much of a message that is too large is kept to answer it."""

SERVED_AT_ONCE: Final = 4
MAX_WAITING: Final = 8 * 1024 * 1024
"""Bytes that may wait on one stream while the node cannot take more, where a transport cannot be told to stop."""


class Guest(Protocol):
    """A connection, as the server sees all of them."""

    def ping(self) -> None:
        """Ask for a sign of life, or look for how long there was none."""

    def stop_reading(self) -> None:
        """Take no more: the node is about to end."""

    def goodbye(self) -> None:
        """Close in the protocol's own way."""

    def cut(self) -> None:
        """End without a word."""


class Out(Protocol):
    """The way back to the peer."""

    def write(self, data: bytes) -> None:
        """Send bytes, in order."""

    async def room(self) -> bool:
        """Wait until the peer has read enough; False when it is gone."""

    def finish(self) -> None:
        """End the connection once everything is sent."""

    def hold(self) -> None:
        """Read no more for now, where that is possible."""

    def release(self) -> None:
        """Read again."""

    def answered(self) -> None:
        """The peer has said everything and been answered: nothing more goes this way."""


class MosaicStream:
    """One stream of messages. A broker's `Origin` and a resender's `Taker`."""

    def __init__(
        self,
        session: MosaicSession,
        out: Out,
        *,
        ingest: Ingest,
        resender: Resender,
        sender: str,
        on_unrecognized: Callable[[], None] | None = None,
    ) -> None:
        """Begin.

        Args:
            session: the conversation; several streams of a connection may share one.
            out: where answers go.
            ingest: where submissions go.
            resender: who reads history.
            sender: the peer's address.
            on_unrecognized: what follows when a message was not recognized.
        """
        self.sender = sender
        self._session = session
        self._out = out
        self._ingest = ingest
        self._resender = resender
        self._on_unrecognized = on_unrecognized
        self._buffer = bytearray()
        self._skip = 0
        self._waits = False
        self._ended = False
        self._gone = False
        self._said_all = False
        self._leaves = False
        self._submitted = 0
        self._sources: list[Source] = []
        self._slots = asyncio.Semaphore(SERVED_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    # What the transport calls.

    def feed(self, data: bytes) -> None:
        """Take bytes as they come. What breaks here is our fault and ends this connection."""
        if self._ended:
            return
        if self._skip:
            passed = min(self._skip, len(data))
            self._skip -= passed
            data = data[passed:]
        self._buffer += data
        try:
            if self._waits:
                if len(self._buffer) > MAX_WAITING:
                    self._carry_out(self._session.too_fast())
            else:
                self._read()
        except Exception:
            log.exception("a message from %s broke its connection", self.sender)
            self._ended = True
            self._out.finish()

    def end(self) -> None:
        """The peer is gone, or wants nothing more here."""
        self._ended = self._gone = True
        self._buffer.clear()
        for task in self._tasks:
            task.cancel()

    def said_all(self, *, leaves: bool = False) -> None:
        """The peer will send nothing more; it may still wait for answers.

        Args:
            leaves: whether it waits for what is under way only, and no longer for live records.
        """
        self._said_all = True
        self._leaves = leaves
        self._perhaps_answered()

    # What the broker calls.

    def published(self, request_id: str, status: Status, verdict: model.Verdict) -> None:
        """Tell the peer how a submission ended."""
        self._settle(self._session.published(request_id, status, verdict))

    def refused(self, request_id: str, fault: PeerFault) -> None:
        """Tell the peer why a submission was refused."""
        self._settle(self._session.refused(request_id, fault))

    def _settle(self, answer: bytes) -> None:
        self._submitted -= 1
        self.send(answer)
        self._perhaps_answered()

    # What an answer calls.

    def send(self, payload: bytes) -> None:
        """Send one message."""
        if not self._gone:
            self._out.write(payload)

    def send_all(self, payloads: Sequence[bytes]) -> None:
        """Send messages."""
        if not self._gone:
            self._out.write(b"".join(payloads))

    async def room(self) -> bool:
        """Wait until the peer has read enough; False when it is gone."""
        return await self._out.room()

    # Inside.

    def _read(self) -> None:
        """Handle every message that is whole."""
        buffer, session = self._buffer, self._session
        while not (self._ended or self._waits) and len(buffer) >= frames.HEADER:
            head = bytes(buffer[: frames.HEADER])
            if session.layout is None:
                if head[0] != MessageType.HELLO:
                    self._carry_out(session.unreadable("Hello comes first."))
                    return
                session.speak(frames.recognise_hello(head))
            assert session.layout is not None
            try:
                size = frames.frame_size(head, session.layout)
            except PeerFault as fault:
                self._carry_out(session.unreadable(fault.message))
                return
            if size > session.max_frame:
                if len(buffer) < HEAD:
                    return
                commands = session.frame_too_large(size, bytes(buffer[:HEAD]))
                self._skip = max(0, size - len(buffer))
            elif len(buffer) < size:
                return
            else:
                session.reply_to(self.send)
                commands = session.receive(bytes(buffer[:size]), text=False, now=now_us())
            del buffer[:size]
            self._carry_out(commands)

    def _carry_out(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Publish():
                    self._publish(command)
                case Send():
                    self.send(command.payload)
                    if command.payload[0] == MessageType.UNRECOGNIZED and self._on_unrecognized is not None:
                        self._on_unrecognized()
                case Serve():
                    self._sources.append(command.source)
                    task = asyncio.get_running_loop().create_task(self._serve(command))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                case Close():
                    self.send(command.payload)
                    self._ended = True
                    self._out.finish()
                case _:
                    raise AssertionError("Mosaic has no topics")

    async def _serve(self, command: Serve) -> None:
        # Each holds a page while it writes: a few at a time, the others wait their turn.
        async with self._slots:
            await self._resender.serve(self, command.source)
        self._sources = [source for source in self._sources if not source.closed]
        self._perhaps_answered()

    def _perhaps_answered(self) -> None:
        """Tell the way out when nothing can follow any more."""
        if self._said_all and not self._ended and not self._waits and not self._submitted:
            self._sources = [source for source in self._sources if not source.closed]
            if all(self._leaves and source.done for source in self._sources):
                self._ended = True
                self._out.answered()

    def _publish(self, command: Publish) -> None:
        command.origin = self
        self._submitted += 1
        self._ingest.submit(command)
        if self._ingest.full and not self._waits:
            self._waits = True
            self._out.hold()
            self._ingest.when_roomy(self._read_on)

    def _read_on(self) -> None:
        self._waits = False
        if self._ended:
            return
        self._read()
        if not self._waits and not self._ended:
            self._out.release()
        self._perhaps_answered()
