"""Connections with the PoPStellar servers this node is told to know; dialled again and again, and at no one's cost."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Callable, Sequence
from typing import Final

from picows import WSError, ws_connect

from catchment.config import items
from catchment.errors import UserError
from catchment.net.ingest import now_us
from catchment.net.websocket import HARD_LIMIT_FACTOR, Connection
from catchment.popstellar.hub import Hub
from catchment.sessions.base import Session
from catchment.sessions.popstellar_peer import MAX_FRAME, PopstellarPeerSession
from catchment.wire.popstellar.fields import ADDRESS_PATTERN

log = logging.getLogger(__name__)

FIRST_WAIT: Final = 2.0
LAST_WAIT: Final = 32.0
"""Seconds between two attempts (facts/popstellar.md, section 2: doubling from 2 to 32)."""

DIAL_SECONDS: Final = 10
LOOK_SECONDS: Final = 1.0
"""How often it is looked at what is to be asked for again."""


def addresses_of(text: str) -> list[str]:
    """The addresses of the setting `popstellar_peers`.

    Raises:
        UserError: one of them is no address of a WebSocket.
    """
    addresses = items(text)
    for address in addresses:
        if re.match(ADDRESS_PATTERN, address) is None:
            raise UserError(f"popstellar_peers: {address!r} is no address like wss://host:port/server.")
    return addresses


class Peers:
    """Keeps the connections of one node."""

    def __init__(self, hub: Hub, addresses: Sequence[str], connect: Callable[[Session], Connection]) -> None:
        """Know whom to dial.

        Args:
            hub: the server.
            addresses: of the other servers.
            connect: makes a connection of ours out of a conversation.
        """
        self._hub = hub
        self._addresses = addresses
        self._connect = connect

    async def run(self) -> None:
        """Dial everyone, for ever."""
        async with asyncio.TaskGroup() as tasks:
            for address in self._addresses:
                tasks.create_task(self._keep(address))
            tasks.create_task(self._look())

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for link in self._hub.federation.links:
                link.look(now_us())

    async def _keep(self, address: str) -> None:
        wait = FIRST_WAIT
        while True:
            if await self._dial(address):
                wait = FIRST_WAIT
            # Servers that went away together do not come back together.
            await asyncio.sleep(wait * random.uniform(0.75, 1.25))  # noqa: S311 - no secret
            wait = min(2 * wait, LAST_WAIT)

    async def _dial(self, address: str) -> bool:
        """Connect and stay until the connection ends; False when there was none."""
        session = PopstellarPeerSession(self._hub, dialled=True)
        try:
            transport, _ = await ws_connect(
                lambda: self._connect(session),
                address,
                websocket_handshake_timeout=DIAL_SECONDS,
                max_frame_size=HARD_LIMIT_FACTOR * MAX_FRAME,
                logger_name="client",
            )
        except (OSError, WSError, TimeoutError) as error:
            log.info("the PoPStellar server %s cannot be reached: %s", address, error)
            return False
        except Exception:
            # Whatever it was, the next attempt must come, and the other servers must not suffer.
            log.exception("dialling the PoPStellar server %s failed", address)
            return False
        await transport.wait_disconnected()
        log.info("the connection with the PoPStellar server %s has ended", address)
        return True
