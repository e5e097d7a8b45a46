"""Mosaic over QUIC (facts/mosaic.md, section 3.5, QUIC): many streams, one conversation.

A client opens streams; each is answered on itself, and query ids belong to the connection. A message that is not
recognized ends its stream, the others go on. Certificates are as over TCP. New addresses are asked to come again with a
token (Retry) before anything is kept for them.

aioquic asks for a client's certificate only through an attribute it keeps for tests, and shows what is waiting to be
sent through others; all of them are named in this module and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Final

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import QuicServer, serve
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from catchment import metrics
from catchment.core.mosaic import Mosaic
from catchment.net.ingest import Ingest, now_us
from catchment.net.mosaic_identity import certificate, key_of, private_key
from catchment.net.outbox import HIGH_WATER
from catchment.net.resend import Resender
from catchment.net.streams import Guest, MosaicStream
from catchment.sessions.base import Close
from catchment.sessions.mosaic import MosaicSession

log = logging.getLogger(__name__)

ALPN: Final = "mosaic"
IDLE_SECONDS: Final = 150
"""After so long without a packet a connection is gone; the server pings every minute."""

FINISH_SECONDS: Final = 5
"""How long a connection that ends may take to send the rest."""


class QuicPeer(QuicConnectionProtocol):
    """One client and its streams."""

    def __init__(
        self,
        quic: QuicConnection,
        house: Mosaic,
        *,
        ingest: Ingest,
        resender: Resender,
        outbox_limit: int,
        on_opened: Callable[[Guest], None],
        on_closed: Callable[[Guest], None],
    ) -> None:
        super().__init__(quic)
        self.sender = "?"
        self.outbox_limit = outbox_limit
        self._house = house
        self._ingest = ingest
        self._resender = resender
        self._on_opened = on_opened
        self._on_closed = on_closed
        self._session: MosaicSession | None = None
        self._streams: dict[int, tuple[MosaicStream, QuicOut]] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self._sending = False
        self._stopped = False
        self._pings = 0
        self._finishing: asyncio.Task[None] | None = None
        self.gone = False
        self._guest = QuicGuest(self)
        _ask_for_certificate(quic)

    # What aioquic calls.

    def datagram_received(self, data: bytes | str, addr: object) -> None:
        """Every packet may make room for more."""
        if isinstance(addr, tuple):
            self.sender = str(addr[0])
        super().datagram_received(data, addr)
        self._wake()

    def quic_event_received(self, event: events.QuicEvent) -> None:
        """Take what happened on the connection. What breaks here is our fault and ends this connection."""
        try:
            self._event(event)
        except Exception:
            log.exception("an event from %s broke its connection", self.sender)
            self.cut()

    def _event(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.StreamDataReceived):
            if not self._stopped and self._session is not None:
                stream = self._stream(event.stream_id)
                stream.feed(event.data)
                if event.end_stream:
                    stream.said_all()
        elif isinstance(event, events.HandshakeCompleted):
            self._begin()
        elif isinstance(event, (events.StreamReset, events.StopSendingReceived)):
            found = self._streams.pop(event.stream_id, None)
            if found is not None:
                found[0].end()
        elif isinstance(event, events.ConnectionTerminated):
            self._lost()

    def _begin(self) -> None:
        """The handshake is done: who is there?"""
        shown = self._quic.tls._peer_certificate
        key = None if shown is None else key_of(shown)
        if shown is not None and key is None:
            # A certificate of another kind of key proves nothing here.
            self.cut()
            return
        self._session = MosaicSession(self._house, key=key, hello=True)
        self._session.connected(self.sender, lambda _: None)
        metrics.CONNECTIONS.labels("mosaic").inc()
        self._on_opened(self._guest)

    def _lost(self) -> None:
        if self.gone:
            return
        self.gone = True
        if self._session is not None:
            self._session.disconnected()
            metrics.CONNECTIONS.labels("mosaic").dec()
        for stream, _ in self._streams.values():
            stream.end()
        self._streams.clear()
        self._wake()
        self._on_closed(self._guest)

    def _stream(self, stream_id: int) -> MosaicStream:
        found = self._streams.get(stream_id)
        if found is None:
            assert self._session is not None
            out = QuicOut(self, stream_id)
            stream = MosaicStream(
                self._session,
                out,
                ingest=self._ingest,
                resender=self._resender,
                sender=self.sender,
                on_unrecognized=out.answered,
            )
            found = self._streams[stream_id] = (stream, out)
        return found[0]

    # What streams call.

    def waiting(self, stream_id: int) -> int:
        """Bytes of a stream that the peer has not confirmed."""
        stream = self._quic._streams.get(stream_id)
        return 0 if stream is None else len(stream.sender._buffer)

    def send(self, stream_id: int, data: bytes, *, end: bool = False) -> None:
        """Send on a stream, with whatever else is sent in this turn of the loop."""
        if self.gone:
            return
        self._quic.send_stream_data(stream_id, data, end)
        if not self._sending:
            self._sending = True
            self._loop.call_soon(self._send_now)

    async def progress(self) -> None:
        """Wait for the next packet of the peer."""
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def forget(self, stream_id: int) -> None:
        """A stream has ended in both directions."""
        found = self._streams.pop(stream_id, None)
        if found is not None:
            found[0].end()

    def finish(self) -> None:
        """End the connection once everything is sent, or in a few seconds."""
        if self._finishing is None:
            self._stopped = True
            self._finishing = self._loop.create_task(self._finish())

    # What the server calls.

    def keep_alive(self) -> None:
        """Keep the connection alive, and look whether it has been silent for too long."""
        if self._session is None or self.gone:
            return
        for command in self._session.idle(now_us()):
            assert isinstance(command, Close)
            self._say_everywhere(command.payload)
            self.finish()
            return
        self._pings += 1
        self._quic.send_ping(self._pings)
        self.transmit()

    def stop_reading(self) -> None:
        """Take no more: the node is about to end."""
        self._stopped = True

    def goodbye(self) -> None:
        """Say why, and close."""
        if self._session is not None:
            self._say_everywhere(self._session.goodbye())
        self.finish()

    def cut(self) -> None:
        """End without a word."""
        self.close()
        self._lost()

    def cut_slow(self) -> None:
        """End a peer that does not read."""
        metrics.SLOW_CUT.labels("mosaic").inc()
        log.warning("cut a connection from %s: it stopped reading", self.sender)
        self.cut()

    # Inside.

    def _say_everywhere(self, payload: bytes) -> None:
        # A server opens no streams, so it speaks on those there are.
        for stream_id in list(self._streams):
            self.send(stream_id, payload)

    async def _finish(self) -> None:
        self._send_now()
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                while not self.gone and any(self.waiting(stream_id) for stream_id in self._quic._streams):
                    await self.progress()
        except TimeoutError:
            log.debug("a connection from %s did not take the rest", self.sender)
        self.cut()

    def _send_now(self) -> None:
        self._sending = False
        if not self.gone:
            self.transmit()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class QuicGuest:
    """A QUIC connection as the server sees all of its connections (aioquic has a `ping` of its own)."""

    def __init__(self, peer: QuicPeer) -> None:
        self._peer = peer

    def ping(self) -> None:
        """Keep it alive."""
        self._peer.keep_alive()

    def stop_reading(self) -> None:
        """Take no more."""
        self._peer.stop_reading()

    def goodbye(self) -> None:
        """Say why, and close."""
        self._peer.goodbye()

    def cut(self) -> None:
        """End without a word."""
        self._peer.cut()


class QuicOut:
    """The way back on one stream."""

    def __init__(self, peer: QuicPeer, stream_id: int) -> None:
        self._peer = peer
        self._stream_id = stream_id
        self._ended = False

    def write(self, data: bytes) -> None:
        """Send bytes, or cut the connection when too much is waiting already."""
        peer = self._peer
        if self._ended or peer.gone:
            return
        waiting = peer.waiting(self._stream_id)
        if waiting > HIGH_WATER and waiting + len(data) > peer.outbox_limit:
            peer.cut_slow()
            return
        peer.send(self._stream_id, data)

    async def room(self) -> bool:
        """Wait until the peer has taken enough; False when it is gone."""
        while not self._peer.gone and self._peer.waiting(self._stream_id) > HIGH_WATER:
            await self._peer.progress()
        return not self._peer.gone

    def finish(self) -> None:
        """End the connection."""
        self._peer.finish()

    def answered(self) -> None:
        """End this stream; the others go on."""
        if not self._ended:
            self._ended = True
            self._peer.send(self._stream_id, b"", end=True)
            self._peer.forget(self._stream_id)

    def hold(self) -> None:
        """There is no way to tell aioquic to stop; what comes meanwhile waits in the stream, up to its bound."""

    def release(self) -> None:
        """Nothing was stopped."""


def _ask_for_certificate(quic: QuicConnection) -> None:
    initialize = quic._initialize

    def initialize_and_ask(peer_cid: bytes) -> None:
        initialize(peer_cid)
        quic.tls._request_client_certificate = True

    quic._initialize = initialize_and_ask  # type: ignore[method-assign]


async def listen(
    host: str,
    port: int,
    house: Mosaic,
    *,
    ingest: Ingest,
    resender: Resender,
    outbox_limit: Callable[[], int],
    on_opened: Callable[[Guest], None],
    on_closed: Callable[[Guest], None],
) -> QuicServer:
    """Listen for QUIC.

    Raises:
        OSError: the port cannot be used.
    """
    configuration = QuicConfiguration(
        is_client=False,
        alpn_protocols=[ALPN],
        certificate=certificate(house.signer),
        private_key=private_key(house.signer),
        idle_timeout=IDLE_SECONDS,
        verify_mode=ssl.CERT_NONE,
    )

    def make(quic: QuicConnection, **_: object) -> QuicPeer:
        return QuicPeer(
            quic,
            house,
            ingest=ingest,
            resender=resender,
            outbox_limit=outbox_limit(),
            on_opened=on_opened,
            on_closed=on_closed,
        )

    return await serve(host, port, configuration=configuration, create_protocol=make, retry=True)
