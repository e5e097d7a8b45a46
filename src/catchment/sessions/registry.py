"""Which dialects the WebSocket port speaks, by path (DESIGN.md, "One port"). A new protocol is a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from catchment import model
from catchment.core.access import Access
from catchment.core.mosaic import Mosaic
from catchment.popstellar.hub import Hub
from catchment.sessions import mosaic
from catchment.sessions.base import Session
from catchment.sessions.popstellar import PopstellarSession
from catchment.sessions.popstellar_peer import PopstellarPeerSession
from catchment.sessions.streamr import StreamrSession
from catchment.sessions.streamr_forms import Pairs


class House(msgspec.Struct, frozen=True):
    """What the conversations of a node share."""

    access: Access
    mosaic: Mosaic
    hub: Hub
    pairs: Pairs


class Upgrade(msgspec.Struct, frozen=True):
    """What an upgrade request says, and what a conversation may need that it cannot make itself.

    Attributes:
        query: the parameters of its target.
        headers: their names in lower case.
        chance: 32 random bytes.
    """

    query: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    chance: bytes = bytes(32)


class Dialect(msgspec.Struct, frozen=True):
    """A way to be spoken to over a WebSocket."""

    protocol: model.Protocol
    path: str
    open: Callable[[Upgrade, House], Session]
    """Raises PeerFault to refuse the request with HTTP 400."""
    max_frame: int
    subprotocol: str = ""
    """What the client must ask for by Sec-WebSocket-Protocol; empty when it need not."""


def _open_streamr(upgrade: Upgrade, house: House) -> Session:
    return StreamrSession.open(upgrade.query, house.access, house.pairs)


def _open_mosaic(upgrade: Upgrade, house: House) -> Session:
    return mosaic.open_websocket(upgrade.headers, house.mosaic, upgrade.chance)


def _open_popstellar(upgrade: Upgrade, house: House) -> Session:
    return PopstellarSession(house.hub)


def _open_popstellar_peer(upgrade: Upgrade, house: House) -> Session:
    return PopstellarPeerSession(house.hub, dialled=False)


DIALECTS: Final = (
    Dialect(model.Protocol.STREAMR, "/api/v1/ws", _open_streamr, StreamrSession.max_frame),
    Dialect(model.Protocol.MOSAIC, "/", _open_mosaic, mosaic.MAX_FRAME, mosaic.SUBPROTOCOL),
    Dialect(model.Protocol.POPSTELLAR, "/client", _open_popstellar, PopstellarSession.max_frame),
    Dialect(model.Protocol.POPSTELLAR, "/server", _open_popstellar_peer, PopstellarPeerSession.max_frame),
)

BY_PATH: Final[Mapping[str, Dialect]] = {dialect.path: dialect for dialect in DIALECTS}
