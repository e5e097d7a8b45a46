"""One WebSocket with a node or a tracker of the Streamr network, whoever dialled (facts/streamr.md, section 8).

The path is `/ws?address=<own address>` behind the other's address; both sides name themselves in the headers
`streamr-peer-id` and `streamr-peer-type`. A link pings every five seconds, measures the round trip, and ends when a
ping stays unanswered. What it receives goes to its owner, a tracker or a node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, Protocol
from urllib.parse import quote

from picows import (
    WSCloseCode,
    WSError,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    ws_connect,
)

from catchment import metrics, model
from catchment.core.broker import Status
from catchment.errors import PeerFault
from catchment.net.outbox import Outbox
from catchment.net.websocket import PING, frame, masked_frames
from catchment.overlay.node import DEAD_CONNECTION, PROTOCOL_ERROR
from catchment.sessions.streamr_peer import PeerSession

log = logging.getLogger(__name__)

PROTOCOL: Final = "streamr-network"
"""The name of these connections in metrics."""

ID_HEADER: Final = "streamr-peer-id"
TYPE_HEADER: Final = "streamr-peer-type"
TRACKER, NODE, STORAGE = "tracker", "node", "storage"
TYPES: Final = (TRACKER, NODE, STORAGE)

MAX_FRAME: Final = 1024 * 1024
MAX_ID: Final = 256
MAX_ADDRESS: Final = 1024
MAX_RESENDS: Final = 32
"""Resends of one link that may run at once."""

MAX_FAULTS: Final = 1000
"""Frames and messages of one link that may be refused before it is cut: whoever sends more is no help."""

DIAL_SECONDS: Final = 10


class Owner(Protocol):
    """Whose links they are."""

    def opened(self, link: PeerLink) -> None:
        """A link is ready to be used."""

    def received(self, link: PeerLink, data: bytes) -> None:
        """A frame has come.

        Raises:
            PeerFault: it is not one of the protocol's.
        """

    def measured(self, link: PeerLink, rtt: float) -> None:
        """A ping was answered after so many milliseconds."""

    def closed(self, link: PeerLink) -> None:
        """A link has ended."""


def headers(node_id: str, kind: str) -> dict[str, str]:
    """How we name ourselves."""
    return {ID_HEADER: node_id, TYPE_HEADER: kind}


def missing(found: Mapping[str, str], address: str | None) -> str:
    """What a peer did not say about itself; empty when it said everything."""
    if not address or len(address) > MAX_ADDRESS:
        return "address not given"
    if not found.get(ID_HEADER) or len(found[ID_HEADER]) > MAX_ID:
        return "peerId not given"
    if found.get(TYPE_HEADER) not in TYPES:
        return "peerType not given"
    return ""


class Rejected(WSListener):
    """A connection that is closed as soon as it is open: the protocol gives its reasons in the close frame."""

    def __init__(self, code: int, reason: str) -> None:
        self._code, self._reason = code, reason

    def on_ws_connected(self, transport: WSTransport) -> None:
        """Say why, and end."""
        transport.send_close(WSCloseCode(self._code), self._reason.encode())
        transport.disconnect()


class PeerLink(WSListener):
    """One connection. It is the origin of the messages that come over it."""

    def __init__(
        self,
        owner: Owner,
        session: PeerSession,
        *,
        peer_id: str,
        peer_type: str,
        address: str,
        dialled: bool,
        outbox_limit: int,
    ) -> None:
        self.session = session
        self.peer_id = peer_id
        self.peer_type = peer_type
        self.address = address
        self.dialled = dialled
        self.sender = ""
        self.is_open = False
        self.resends = 0
        """How many of its resends are being answered."""
        self.since = 0.0
        """When it was opened, in the loop's time."""
        self._owner = owner
        self._outbox_limit = outbox_limit
        self._fragments: bytearray | None = None
        self._pinged: float | None = None
        self._faults = 0
        self._pauses = 0

    # What picows calls.

    def on_ws_connected(self, transport: WSTransport) -> None:
        """Begin."""
        self._transport = transport
        peer = transport.underlying_transport.get_extra_info("peername")
        self.sender = str(peer[0]) if peer else "?"
        self.outbox = Outbox(transport.underlying_transport, limit=self._outbox_limit, on_overflow=self._cut)
        self.is_open = True
        self.since = asyncio.get_running_loop().time()
        metrics.CONNECTIONS.labels(PROTOCOL).inc()
        self._owner.opened(self)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """End."""
        if self.is_open:
            self.is_open = False
            self.outbox.close()
            metrics.CONNECTIONS.labels(PROTOCOL).dec()
            self._owner.closed(self)

    def on_ws_frame(self, transport: WSTransport, received: WSFrame) -> None:
        """Take one frame. What breaks here is our fault; it ends this link and no other."""
        try:
            self._frame(received)
        except Exception:
            log.exception("a frame from node %r broke its connection", self.peer_id)
            self.close(WSCloseCode.INTERNAL_ERROR, "internal error")

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        self.outbox.pause()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self.outbox.resume()

    # What the broker calls.

    def published(self, request_id: str, status: Status, verdict: model.Verdict) -> None:
        """A message was not new (that is normal), or not what it claims to be. Nothing is answered."""
        if status is Status.REFUSED:
            self.fault()

    def refused(self, request_id: str, fault: PeerFault) -> None:
        """A message was refused."""
        self.fault()

    # What a resend calls.

    def send_all(self, payloads: Sequence[bytes]) -> None:
        """Send payloads, each in a frame of its own."""
        self.send_framed(self.framed(payloads))

    def framed(self, payloads: Sequence[bytes]) -> bytes:
        """Payloads in frames, as every link dialled from the same side takes them.

        Whoever dialled is the client, and a client's frames are masked (RFC 6455, section 5.3): with keys drawn after
        the payload is known, which is what the rule is for. So the same masked bytes may go to several neighbours.
        """
        return masked_frames(payloads) if self.dialled else b"".join(map(frame, payloads))

    def send_framed(self, data: bytes) -> None:
        """Send frames."""
        if self.is_open:
            self.outbox.write(data)

    async def room(self) -> bool:
        """Wait until the peer has read enough; False when it is gone."""
        return await self.outbox.room()

    # What the owner calls.

    def close(self, code: int | WSCloseCode, reason: str) -> None:
        """End with a reason."""
        self._transport.send_close(WSCloseCode(code), reason.encode())
        self._transport.disconnect()

    def ping(self, now: float) -> None:
        """Ask for a sign of life; end the link that gave none since the last time."""
        if self._pinged is not None and not self._pauses:
            self.close(PROTOCOL_ERROR, DEAD_CONNECTION)
            return
        self._pinged = now
        if self.dialled:
            self._transport.send_ping()
        else:
            self.outbox.write(PING)

    def pause_reading(self) -> None:
        """Take no more frames until as many calls of `resume_reading`."""
        self._pauses += 1
        if self._pauses == 1 and self.is_open:
            self._transport.underlying_transport.pause_reading()

    def resume_reading(self) -> None:
        """Take frames again."""
        self._pauses -= 1
        if not self._pauses and self.is_open:
            self._transport.underlying_transport.resume_reading()

    def fault(self) -> None:
        """Count something that was refused; too many end the link."""
        self._faults += 1
        if self._faults == MAX_FAULTS and self.is_open:
            log.warning("cut node %r (%s): %d of its messages were refused", self.peer_id, self.sender, MAX_FAULTS)
            self.close(WSCloseCode.POLICY_VIOLATION, "too many refused messages")

    # Inside.

    def _frame(self, received: WSFrame) -> None:
        kind = received.msg_type
        if kind is WSMsgType.PONG:
            if self._pinged is not None:
                rtt = (asyncio.get_running_loop().time() - self._pinged) * 1000
                self._pinged = None
                self._owner.measured(self, rtt)
        elif kind is WSMsgType.CLOSE:
            code = received.get_close_code() if received.payload_size >= 2 else WSCloseCode.OK
            self._transport.send_close(code, b"")
            self._transport.disconnect()
        elif kind is not WSMsgType.PING:
            self._data(received)

    def _data(self, received: WSFrame) -> None:
        if self._fragments is None and received.fin:
            self._take(received.get_payload_as_bytes())
            return
        if self._fragments is None:
            self._fragments = bytearray()
        self._fragments += received.get_payload_as_bytes()
        if len(self._fragments) > MAX_FRAME:
            self.close(WSCloseCode.MESSAGE_TOO_BIG, "too many fragments")
        elif received.fin:
            data, self._fragments = bytes(self._fragments), None
            self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            if len(data) > MAX_FRAME:
                raise PeerFault(
                    f"A frame of {len(data)} bytes is over the limit of {MAX_FRAME}.", code="INVALID_REQUEST"
                )
            self._owner.received(self, data)
        except PeerFault as fault:
            metrics.REQUESTS_INVALID.labels(PROTOCOL, fault.reason).inc()
            log.debug("node %r sent what it should not: %s", self.peer_id, fault.message)
            self.fault()

    def _cut(self) -> None:
        metrics.SLOW_CUT.labels(PROTOCOL).inc()
        log.warning("cut node %r (%s): it stopped reading", self.peer_id, self.sender)
        self._transport.disconnect(graceful=False)


class Dialler:
    """Opens links of one owner."""

    def __init__(self, owner: Owner, *, node_id: str, kind: str, address: str, outbox_limit: int) -> None:
        """Know who dials.

        Args:
            owner: whose links they become.
            node_id: our name.
            kind: what we are: node or storage.
            address: where others dial us.
            outbox_limit: bytes that may wait for one peer.
        """
        self._owner = owner
        self._headers = headers(node_id, kind)
        self._address = address
        self._outbox_limit = outbox_limit

    async def dial(self, address: str, session: PeerSession) -> bool:
        """Connect to an address; False when that is not possible. The owner hears of the link before this returns."""

        def listener(request: WSUpgradeRequest, response: WSUpgradeResponse) -> WSListener:
            found = {name.lower(): value for name, value in response.headers.items()}
            reason = missing(found, address)
            if reason:
                return Rejected(PROTOCOL_ERROR, reason)
            return PeerLink(
                self._owner,
                session,
                peer_id=found[ID_HEADER],
                peer_type=found[TYPE_HEADER],
                address=address,
                dialled=True,
                outbox_limit=self._outbox_limit,
            )

        url = f"{address}/ws?address={quote(self._address, safe=':/')}"
        try:
            _, link = await ws_connect(
                listener,
                url,
                websocket_handshake_timeout=DIAL_SECONDS,
                extra_headers=self._headers,
                max_frame_size=4 * MAX_FRAME,
                max_redirects=0,
                logger_name="client",
            )
        except (OSError, WSError, TimeoutError, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError):
                raise
            log.debug("cannot connect to %s: %s", address, error)
            return False
        return isinstance(link, PeerLink)
