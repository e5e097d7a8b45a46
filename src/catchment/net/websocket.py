"""WebSocket connections: frames to a session, its commands carried out, its answers framed.

picows reads and unmasks. What goes out is framed here, because a server's frame is not masked and the same bytes can
then be written to every subscriber (facts/performance.md, "Why it works").
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from catchment import lake, metrics, model
from catchment.core.broker import Publish, Status
from catchment.core.subscriptions import Form, Subscriptions
from catchment.errors import PeerFault
from catchment.net.ingest import Ingest, now_us
from catchment.net.outbox import Outbox
from catchment.net.resend import Resender
from catchment.sessions.base import Close, Command, Resend, Send, Serve, Session, Subscribe, Unsubscribe

log = logging.getLogger(__name__)

PING: Final = b"\x89\x00"
HARD_LIMIT_FACTOR: Final = 4
"""A frame over the session's limit is answered; one this many times over it ends the connection with code 1009."""

HEAD: Final = 4096
"""How much of a frame that is too large is looked at for its request id."""

RESENDS_AT_ONCE: Final = 4
MAX_RESENDS: Final = 1000
"""Resends one connection may have asked for and not got; more are refused."""

_TEXT_FRAME: Final = WSMsgType.TEXT
_TEXT: Final = 0x81
_BINARY: Final = 0x82


def frame(payload: bytes, *, text: bool = True) -> bytes:
    """A server's data frame (RFC 6455, section 5.2): final, unmasked."""
    opcode = _TEXT if text else _BINARY
    size = len(payload)
    if size < 126:
        return b"%c%c%b" % (opcode, size, payload)
    if size < 65536:
        return b"%c\x7e%b%b" % (opcode, size.to_bytes(2), payload)
    return b"%c\x7f%b%b" % (opcode, size.to_bytes(8), payload)


def binary_frame(payload: bytes) -> bytes:
    """A server's data frame for bytes that are no text."""
    return frame(payload, text=False)


def masked_frames(payloads: Sequence[bytes]) -> bytes:
    """Several of a client's data frames, each with a key of its own."""
    keys = secrets.token_bytes(4 * len(payloads))  # asking for chance once is most of what there is to save
    return b"".join([masked_frame(payload, keys[4 * at : 4 * at + 4]) for at, payload in enumerate(payloads)])


def masked_frame(payload: bytes, key: bytes | None = None) -> bytes:
    """A client's data frame of text: masked with a key of its own (RFC 6455, section 5.3)."""
    key = secrets.token_bytes(4) if key is None else key
    size = len(payload)
    mask = (key * (size // 4 + 1))[:size]
    body = (int.from_bytes(payload, "little") ^ int.from_bytes(mask, "little")).to_bytes(size, "little")
    if size < 126:
        return b"%c%c%b%b" % (_TEXT, 0x80 | size, key, body)
    if size < 65536:
        return b"%c\xfe%b%b%b" % (_TEXT, size.to_bytes(2), key, body)
    return b"%c\xff%b%b%b" % (_TEXT, size.to_bytes(8), key, body)


_framed_forms: dict[tuple[Form, bool], Form] = {}


def framed(form: Form, *, masked: bool = False) -> Form:
    """A session's form with WebSocket frames around it; one and the same for all connections that share it."""
    found = _framed_forms.get((form, masked))
    if found is None:
        payload, wrap = form.encode, masked_frame if masked else frame

        def encode(entry: model.Entry) -> bytes:
            return wrap(payload(entry))

        found = _framed_forms[form, masked] = Form(f"ws-{form.name}", encode)
    return found


class Connection(WSListener):
    """One peer on a WebSocket."""

    def __init__(
        self,
        session: Session,
        *,
        ingest: Ingest,
        resender: Resender,
        outbox_limit: int,
        on_opened: Callable[[Connection], None],
        on_closed: Callable[[Connection], None],
        dialled: bool = False,
    ) -> None:
        """Make ready for a peer.

        Args:
            session: the conversation.
            ingest: takes what it publishes.
            resender: answers its questions about history.
            outbox_limit: bytes that may wait for it.
            on_opened: told when the peer is there.
            on_closed: told when it is gone.
            dialled: whether we are the client of this connection; a client's frames are masked.
        """
        self.session = session
        self._dialled = dialled
        self.sender = ""
        self.protocol_name = lake.protocol_name(session.protocol)
        self._ingest = ingest
        self._resender = resender
        self._outbox_limit = outbox_limit
        self._on_opened = on_opened
        self._on_closed = on_closed
        self._subscriptions: Subscriptions = ingest.broker.subscriptions
        self._form = framed(session.form, masked=dialled)
        self._wrap: Callable[[bytes], bytes] = frame if session.text else binary_frame
        if dialled:
            self._wrap = masked_frame
        self._topics: set[model.Topic] = set()
        self._fragments: bytearray | None = None
        self._fragments_size = 0
        self._fragments_text = True
        self._awaiting_pong = False
        self._paused = False
        self._stopped = False
        self._said_goodbye = False
        self._resend_slots = asyncio.Semaphore(RESENDS_AT_ONCE)
        self._resends: set[asyncio.Task[None]] = set()

    # What picows calls.

    def on_ws_connected(self, transport: WSTransport) -> None:
        """Begin."""
        self._transport = transport
        peer = transport.underlying_transport.get_extra_info("peername")
        self.sender = str(peer[0]) if peer else "?"
        self.outbox = Outbox(transport.underlying_transport, limit=self._outbox_limit, on_overflow=self._cut)
        metrics.CONNECTIONS.labels(self.protocol_name).inc()
        self.session.connected(self.sender, self._send)
        self._on_opened(self)

    def on_ws_frame(self, transport: WSTransport, received: WSFrame) -> None:
        """Take one frame. What breaks here is our fault; it ends this connection and no other."""
        try:
            self._frame(transport, received)
        except Exception:
            log.exception("a frame from %s broke its connection", self.sender)
            self._close(WSCloseCode.INTERNAL_ERROR, b"internal error")

    def _frame(self, transport: WSTransport, received: WSFrame) -> None:
        self._awaiting_pong = False
        kind = received.msg_type
        if self._said_goodbye:
            if kind is WSMsgType.CLOSE:
                self._transport.disconnect()
        elif kind is _TEXT_FRAME and received.fin and self._fragments is None:
            data = received.get_payload_as_bytes()
            self._message(data, True, len(data))
        elif kind is WSMsgType.CLOSE:
            # An empty close frame has no code, and none may be sent that stands for "none" (RFC 6455, section 7.4.1).
            self._close(received.get_close_code() if received.payload_size >= 2 else WSCloseCode.OK, b"")
        elif kind in (WSMsgType.PING, WSMsgType.PONG):
            return  # picows has answered the ping
        else:
            self._fragment(received)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """End."""
        self.outbox.close()
        self.session.disconnected()
        for task in self._resends:
            task.cancel()
        for topic in self._topics:
            self._subscriptions.remove(topic, self._form, self.outbox)
        self._topics.clear()
        metrics.CONNECTIONS.labels(self.protocol_name).dec()
        self._on_closed(self)

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        self.outbox.pause()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self.outbox.resume()

    # What the broker calls.

    def published(self, request_id: str, status: Status, verdict: model.Verdict) -> None:
        """Tell the peer how a publish ended."""
        answer = self.session.published(request_id, status, verdict)
        if answer is not None:
            self._send(answer)

    def refused(self, request_id: str, fault: PeerFault) -> None:
        """Tell the peer why a publish was refused."""
        answer = self.session.refused(request_id, fault)
        if answer is not None:
            self._send(answer)

    # What a resend calls.

    def send_all(self, payloads: Sequence[bytes]) -> None:
        """Send payloads, each in a frame of its own."""
        wrap = self._wrap
        self.outbox.write(b"".join([wrap(payload) for payload in payloads]))

    async def room(self) -> bool:
        """Wait until the peer has read enough; False when it is gone."""
        return await self.outbox.room()

    # What the server calls.

    def ping(self) -> None:
        """Ask for a sign of life; cut the connection that gave none since the last time."""
        if self._paused:
            return  # we are not reading: a pong would not be seen
        if self._awaiting_pong:
            self.cut()
            return
        self._awaiting_pong = True
        if self._dialled:
            self._transport.send_ping()
        else:
            self.outbox.write(PING)
        for command in self.session.idle(now_us()):
            self._carry_out(command)

    def stop_reading(self) -> None:
        """Take no more frames: the node is about to end."""
        self._stopped = self._paused = True
        self._transport.underlying_transport.pause_reading()

    def goodbye(self) -> None:
        """Close as a node that goes away (RFC 6455, section 7.4.1: 1001), after the protocol's own words.

        TCP is closed when the peer has answered (section 7.1.1). Closed before, its answer would meet a reset, which
        old clients do not survive. Whatever else it still sends is not taken.
        """
        self._said_goodbye = True
        words = self.session.goodbye()
        if words is not None:
            self._send(words)
        self._transport.send_close(WSCloseCode.GOING_AWAY, b"the node is shutting down")
        self._transport.underlying_transport.resume_reading()

    def carry_out(self, commands: Sequence[Command]) -> None:
        """Do what the session wants done though no frame came."""
        for command in commands:
            self._carry_out(command)

    def cut(self) -> None:
        """End without a word."""
        self._transport.disconnect(graceful=False)

    # Inside.

    def _fragment(self, received: WSFrame) -> None:
        """Put a fragmented message together, or refuse what is no part of one (RFC 6455, section 5.4)."""
        kind = received.msg_type
        begins = kind in (WSMsgType.TEXT, WSMsgType.BINARY)
        if begins == (self._fragments is not None):
            self._close(WSCloseCode.PROTOCOL_ERROR, b"fragments out of order")
            return
        if begins:
            self._fragments = bytearray()
            self._fragments_text = kind is _TEXT_FRAME
            self._fragments_size = 0
        assert self._fragments is not None
        self._fragments_size += received.payload_size
        limit = self.session.max_frame
        if self._fragments_size <= limit:
            self._fragments += received.get_payload_as_bytes()
        elif self._fragments_size > limit * HARD_LIMIT_FACTOR:
            self._close(WSCloseCode.MESSAGE_TOO_BIG, b"too many fragments")
            return
        elif not self._fragments:
            self._fragments += received.get_payload_as_bytes()[:HEAD]
        # Between the two limits the beginning is kept, to answer under its request id.
        if received.fin:
            data, self._fragments = bytes(self._fragments), None
            self._message(data, self._fragments_text, self._fragments_size)

    def _send(self, payload: bytes) -> None:
        self.outbox.write(self._wrap(payload))

    def _close(self, code: WSCloseCode, reason: bytes) -> None:
        self._transport.send_close(code, reason)
        self._transport.disconnect()

    def _message(self, data: bytes, text: bool, size: int) -> None:
        session = self.session
        if size > session.max_frame * HARD_LIMIT_FACTOR:
            self._close(WSCloseCode.MESSAGE_TOO_BIG, b"far over the limit")
            return
        if size > session.max_frame:
            commands = session.frame_too_large(size, data[:HEAD])
        else:
            commands = session.receive(data, text=text, now=now_us())
        for command in commands:
            if type(command) is Publish:
                self._publish(command)
            else:
                self._carry_out(command)

    def _publish(self, command: Publish) -> None:
        ingest = self._ingest
        command.origin = self
        ingest.submit(command)
        if ingest.full and not self._paused:
            self._paused = True
            self._transport.underlying_transport.pause_reading()
            ingest.when_roomy(self._read_on)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Send():
                self._send(command.payload)
            case Subscribe():
                self._topics.add(command.topic)
                self._send(command.answer)
                self._subscriptions.add(command.topic, self._form, self.outbox)
            case Unsubscribe():
                self._topics.discard(command.topic)
                self._subscriptions.remove(command.topic, self._form, self.outbox)
                self._send(command.answer)
            case Resend() if len(self._resends) >= MAX_RESENDS:
                self._send(self.session.resend_failed(command))
            case Resend() | Serve():
                task = asyncio.get_running_loop().create_task(self._resend(command))
                self._resends.add(task)
                task.add_done_callback(self._resends.discard)
            case Close():
                if command.payload:
                    self._send(command.payload)
                self._close(WSCloseCode(command.code), command.reason)

    async def _resend(self, command: Resend | Serve) -> None:
        # Each holds a page while it writes: a few at a time, the others wait their turn.
        async with self._resend_slots:
            if isinstance(command, Serve):
                await self._resender.serve(self, command.source)
            else:
                await self._resender.run(self, command)

    def _read_on(self) -> None:
        self._paused = self._stopped
        if not self._stopped and not self._transport.is_disconnected:
            self._transport.underlying_transport.resume_reading()

    def _cut(self) -> None:
        metrics.SLOW_CUT.labels(self.protocol_name).inc()
        log.warning(
            "cut a connection from %s: it stopped reading and %d bytes were waiting", self.sender, self._outbox_limit
        )
        self._transport.disconnect(graceful=False)
