"""Publishes that are confirmed: sent, sent again when the connection broke, done when the node has them on disk.

Against a node of ours each publish is acknowledged (docs/decisions/0005-publish-acknowledgement.md), and what was not
is sent again under the same message id, which the node's log keeps once. Other servers take silence for success
(facts/streamr.md, section 7): there a publish is "sent", no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from catchment.client.streamr.connection import MAX_TEXT, Connection, Handler
from catchment.client.streamr.values import Arrived, ConnectionEnded, Refused
from catchment.wire.streamr.control import Control, ControlType

log = logging.getLogger(__name__)

MAX_MESSAGE: Final = 1024 * 1024 - 1024
"""What a node takes in one frame (facts/streamr.md, section 1), less the request around it."""


class Publisher(Handler):
    """The publishes of one client that are on their way."""

    def __init__(self, connection: Connection, token: Callable[[], str | None]) -> None:
        """Publish over a connection.

        Args:
            connection: to the node.
            token: the session token to show, if there is one.
        """
        self._connection = connection
        self._token = token
        self._unconfirmed: dict[str, tuple[bytes, asyncio.Future[str]]] = {}

    @property
    def unconfirmed(self) -> int:
        """How many are on their way."""
        return len(self._unconfirmed)

    async def send(self, raw: bytes) -> asyncio.Future[str]:
        """Send a message; the future is done when it is confirmed.

        Raises:
            Refused: it is too large to be sent.
            ConnectionEnded: the node cannot be reached.
        """
        if len(raw) > MAX_MESSAGE:
            raise Refused(f"A message of {len(raw)} bytes is over the limit of {MAX_MESSAGE}.", "INVALID_REQUEST")
        request_id = self._connection.next_id()
        confirmed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._unconfirmed[request_id] = (raw, confirmed)
        if self._connection.connected:
            self._send(request_id, raw)
        else:
            try:
                await self._connection.open()  # sends what is not confirmed
            except ConnectionEnded:
                self._unconfirmed.pop(request_id, None)
                raise
        await self._connection.writable.wait()
        return confirmed

    def _send(self, request_id: str, raw: bytes) -> None:
        self._connection.send(
            Control(ControlType.PUBLISH_REQUEST, request_id, message=raw, session_token=self._token())
        )
        if not self._connection.knows_us:
            self._settle(request_id, "sent")

    def _settle(self, request_id: str, outcome: str | Exception) -> bool:
        waiting = self._unconfirmed.pop(request_id, None)
        if waiting is None:
            return False
        if not waiting[1].done():
            if isinstance(outcome, str):
                waiting[1].set_result(outcome)
            else:
                waiting[1].set_exception(outcome)
        return True

    # What the connection calls.

    def wants_connection(self) -> bool:
        """As long as something is not confirmed."""
        return bool(self._unconfirmed)

    async def on_connected(self) -> None:
        """Send again what was not confirmed, in its order."""
        for request_id, (raw, _) in list(self._unconfirmed.items()):
            self._send(request_id, raw)

    def on_answer(self, answer: Control, arrived: Arrived | None) -> None:
        """Take confirmations and refusals."""
        if answer.type is ControlType.PUBLISH_ACKNOWLEDGED:
            self._settle(answer.request_id, answer.outcome)
        elif answer.type is ControlType.ERROR_RESPONSE:
            refused = Refused(answer.error_message, answer.error_code)
            if not self._settle(answer.request_id, refused) and not self._connection.knows_us:
                log.warning("the node refused something: %s", answer.error_message[:MAX_TEXT])

    def on_failed(self, ended: ConnectionEnded) -> None:
        """Tell everyone who waits."""
        for request_id in list(self._unconfirmed):
            self._settle(request_id, ended)
