"""Which dialects the WebSocket port speaks, by path (DESIGN.md, "One port"). A new protocol is a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from catchment import model
from catchment.core.access import Access
from catchment.sessions.base import Session
from catchment.sessions.streamr import StreamrSession


class Dialect(msgspec.Struct, frozen=True):
    """A way to be spoken to over a WebSocket."""

    protocol: model.Protocol
    path: str
    open: Callable[[Mapping[str, str], Access], Session]
    """Given the query of the upgrade request and the node's access; raises PeerFault to refuse it with HTTP 400."""
    max_frame: int


DIALECTS: Final = (Dialect(model.Protocol.STREAMR, "/api/v1/ws", StreamrSession.open, StreamrSession.max_frame),)

BY_PATH: Final[Mapping[str, Dialect]] = {dialect.path: dialect for dialect in DIALECTS}
