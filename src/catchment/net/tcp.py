"""Mosaic over TCP with TLS (facts/mosaic.md, section 3.5, TCP).

The server's certificate is its identity, the client's is optional, and both are self-signed: what is checked is that
the peer has the key, never who says so. The standard library's server cannot take such a client certificate, so TLS is
pyOpenSSL's, over memory, and the transport below it is asyncio's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from OpenSSL import SSL

from catchment import metrics
from catchment.core.mosaic import Mosaic
from catchment.crypto import mosaic
from catchment.net.http import HANDSHAKE_SECONDS
from catchment.net.ingest import Ingest, now_us
from catchment.net.mosaic_identity import certificate, key_of, private_key
from catchment.net.outbox import Outbox
from catchment.net.resend import Resender
from catchment.net.streams import Guest, MosaicStream
from catchment.sessions.base import Close
from catchment.sessions.mosaic import MosaicSession

log = logging.getLogger(__name__)

CHUNK: Final = 65_536


def server_context(signer: mosaic.Signer) -> SSL.Context:
    """TLS as a server with this identity, that asks for the client's and takes any or none."""
    context = SSL.Context(SSL.TLS_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.use_privatekey(private_key(signer))
    context.use_certificate(certificate(signer))
    # The handshake proves that the client has the key; whose key it is needs no one's word.
    context.set_verify(SSL.VERIFY_PEER, lambda *_: True)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    return context


class TcpConnection(asyncio.Protocol):
    """One client: TLS, then a stream of messages."""

    def __init__(
        self,
        house: Mosaic,
        context: SSL.Context,
        *,
        ingest: Ingest,
        resender: Resender,
        outbox_limit: int,
        on_opened: Callable[[Guest], None],
        on_closed: Callable[[Guest], None],
    ) -> None:
        self._house = house
        self._tls = SSL.Connection(context)
        self._tls.set_accept_state()
        self._ingest = ingest
        self._resender = resender
        self._outbox_limit = outbox_limit
        self._on_opened = on_opened
        self._on_closed = on_closed
        self._session: MosaicSession | None = None
        self._stream: MosaicStream | None = None
        self._stopped = False
        self._finished = False
        self.sender = "?"

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the handshake, not for ever."""
        # uvloop's transports do not descend from asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.sender = str(peer[0]) if peer else "?"
        self._outbox = Outbox(_Sealed(self), limit=self._outbox_limit, on_overflow=self._cut_slow)  # type: ignore[arg-type]
        self._timeout = asyncio.get_running_loop().call_later(HANDSHAKE_SECONDS, self._transport.abort)
        self._on_opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._timeout.cancel()
        self._outbox.close()
        if self._session is not None:
            metrics.CONNECTIONS.labels("mosaic").dec()
            self._session.disconnected()
        if self._stream is not None:
            self._stream.end()
        self._on_closed(self)

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        self._outbox.pause()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self._outbox.resume()

    def data_received(self, data: bytes) -> None:
        """Take sealed bytes."""
        try:
            self._tls.bio_write(data)
            if self._stream is None:
                self._tls.do_handshake()
                self._begin()
            while True:
                plain = self._tls.recv(CHUNK)
                assert self._stream is not None
                self._stream.feed(plain)
        except SSL.WantReadError:
            self.flush()
        except SSL.ZeroReturnError:
            assert self._stream is not None
            self._stream.said_all(leaves=True)
        except SSL.SysCallError:
            self.finish()
        except SSL.Error as error:
            log.debug("a TLS connection from %s failed: %s", self.sender, error)
            self.flush()  # the alert that says why
            self._transport.close()

    def eof_received(self) -> None:
        """The peer sends no more."""

    def _begin(self) -> None:
        """The handshake is done: who is there?"""
        self._timeout.cancel()
        shown = self._tls.get_peer_certificate(as_cryptography=True)
        key = None if shown is None else key_of(shown)
        self._session = MosaicSession(self._house, key=key, hello=True)
        self._stream = MosaicStream(
            self._session, self, ingest=self._ingest, resender=self._resender, sender=self.sender
        )
        self._session.connected(self.sender, self._stream.send)
        metrics.CONNECTIONS.labels("mosaic").inc()
        self.flush()
        if shown is not None and key is None:
            self._carry_out_close(self._session)

    def _carry_out_close(self, session: MosaicSession) -> None:
        """A certificate of another kind of key proves nothing here."""
        for command in session.unreadable("The client's certificate holds no Ed25519 key."):
            assert isinstance(command, Close)
            self.write(command.payload)
        self.finish()

    # What the stream calls.

    def write(self, data: bytes) -> None:
        """Send plain bytes."""
        self._outbox.write(data)

    async def room(self) -> bool:
        """Wait until the peer has read enough; False when it is gone."""
        return await self._outbox.room()

    def finish(self) -> None:
        """End in order: what was written is sent, then TLS's own goodbye."""
        if self._finished:
            return
        self._finished = True
        self._outbox.close()
        try:
            self._tls.shutdown()
        except SSL.Error:
            log.debug("a TLS connection from %s ended without its goodbye", self.sender)
        self.flush()
        self._transport.close()

    def answered(self) -> None:
        """Nothing more goes either way."""
        self.finish()

    def hold(self) -> None:
        """Read no more for now."""
        self._transport.pause_reading()

    def release(self) -> None:
        """Read again."""
        if not self._stopped and not self._transport.is_closing():
            self._transport.resume_reading()

    # What the server calls.

    def ping(self) -> None:
        """Look whether it has been silent for too long."""
        if self._session is not None:
            for command in self._session.idle(now_us()):
                assert isinstance(command, Close)
                self.write(command.payload)
                self.finish()

    def stop_reading(self) -> None:
        """Take no more: the node is about to end."""
        self._stopped = True
        self._transport.pause_reading()

    def goodbye(self) -> None:
        """Say why, and close."""
        if self._session is not None:
            self.write(self._session.goodbye())
        self.finish()

    def cut(self) -> None:
        """End without a word."""
        self._transport.abort()

    # Inside.

    def seal(self, data: bytes) -> None:
        """Put bytes under TLS and send them."""
        view = memoryview(data)
        while view:
            view = view[self._tls.send(view[: 1 << 20]) :]
            self.flush()

    def flush(self) -> None:
        """Send what TLS has made."""
        while True:
            try:
                sealed = self._tls.bio_read(CHUNK)
            except SSL.WantReadError:
                return
            self._transport.write(sealed)

    @property
    def transport(self) -> asyncio.Transport:
        """What is below TLS."""
        return self._transport

    def _cut_slow(self) -> None:
        metrics.SLOW_CUT.labels("mosaic").inc()
        log.warning("cut a connection from %s: it stopped reading", self.sender)
        self._transport.abort()


class _Sealed:
    """The part of a transport an outbox needs, with TLS in between."""

    def __init__(self, connection: TcpConnection) -> None:
        self._connection = connection

    def set_write_buffer_limits(self, *, high: int) -> None:
        self._connection.transport.set_write_buffer_limits(high=high)

    def get_write_buffer_size(self) -> int:
        return self._connection.transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        self._connection.seal(data)
