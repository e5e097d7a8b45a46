"""The reading side of a client: one wire subscription per stream-partition, shared by all who iterate it; resends.

It has a connection of its own. Reading can then stop without holding up publishes and key exchange: whoever waits
for a confirmation or a key inside a loop over messages does not wait for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from catchment import model
from catchment.client.streamr.connection import Connection, Handler
from catchment.client.streamr.replay import Pipe
from catchment.client.streamr.values import Arrived, ConnectionEnded, Refused
from catchment.errors import CatchmentError
from catchment.wire.streamr.control import Control, ControlType

log = logging.getLogger(__name__)

_ENDS = (ControlType.RESEND_RESPONSE_RESENT, ControlType.RESEND_RESPONSE_NO_RESEND)
_NEEDS_LOGIN = ("AUTHENTICATION_FAILED", "PERMISSION_DENIED", "NOT_FOUND")


class Listener(Protocol):
    """Someone who reads a stream-partition."""

    def live(self, arrived: Arrived) -> None:
        """A message was broadcast."""

    def lost(self) -> None:
        """The subscription is interrupted."""

    def resumed(self) -> None:
        """The subscription is there, for the first time or again."""

    def failed(self, error: CatchmentError) -> None:
        """There will be no more."""


class _Topic:
    """One wire subscription."""

    def __init__(self) -> None:
        self.listeners: set[Listener] = set()
        self.subscribed = False
        self.lock = asyncio.Lock()


class Reader(Handler):
    """Subscriptions and resends over one connection."""

    def __init__(
        self,
        connection: Connection,
        *,
        token: Callable[[], str | None],
        login: Callable[[], Awaitable[bool]],
    ) -> None:
        """Read over a connection.

        Args:
            connection: to the node.
            token: the session token to show, if there is one.
            login: gets a new one; says whether there is one.
        """
        self.connection = connection
        self._token = token
        self._login = login
        self._topics: dict[model.Topic, _Topic] = {}
        self._pipes: dict[str, Pipe] = {}

    # Subscriptions.

    async def attach(self, topic: model.Topic, listener: Listener) -> None:
        """Subscribe, unless someone has already, and pass messages to `listener` from then on.

        Raises:
            Refused: the node does not let us.
            ConnectionEnded: the node cannot be reached.
        """
        shared = self._topics.setdefault(topic, _Topic())
        shared.listeners.add(listener)
        try:
            while not shared.subscribed:
                await self.connection.open()
                await self._subscribe(topic, shared)
        except BaseException:
            self._leave(topic, listener)
            raise

    async def _subscribe(self, topic: model.Topic, shared: _Topic) -> None:
        async with shared.lock:
            if not shared.subscribed:
                await self._ask(ControlType.SUBSCRIBE_REQUEST, topic)
                shared.subscribed = self.connection.connected

    def detach(self, topic: model.Topic, listener: Listener) -> None:
        """Stop passing messages; the last one to go unsubscribes, and does not wait for the answer."""
        shared = self._leave(topic, listener)
        if shared is not None and shared.subscribed and self.connection.connected and not self.connection.closed:
            self.connection.send(self._request(ControlType.UNSUBSCRIBE_REQUEST, topic))

    def _leave(self, topic: model.Topic, listener: Listener) -> _Topic | None:
        """Take a listener out; the wire subscription, if it was the last."""
        shared = self._topics.get(topic)
        if shared is None:
            return None
        shared.listeners.discard(listener)
        if shared.listeners:
            return None
        return self._topics.pop(topic)

    async def _ask(self, kind: ControlType, topic: model.Topic) -> Control:
        try:
            return await self.connection.ask(self._request(kind, topic))
        except Refused as refused:
            if not await self.login_helps(refused):
                raise
        return await self.connection.ask(self._request(kind, topic))

    def _request(self, kind: ControlType, topic: model.Topic) -> Control:
        return Control(
            kind,
            self.connection.next_id(),
            stream_id=topic.name,
            stream_partition=topic.partition,
            session_token=self._token(),
        )

    async def login_helps(self, refused: Refused) -> bool:
        """Whether we have logged in because of a refusal, and it is worth to ask again."""
        return refused.code in _NEEDS_LOGIN and await self._login()

    # Resends: what `replay` needs.

    def next_id(self) -> str:
        """A request id that was not used before."""
        return self.connection.next_id()

    async def begin(self, request: Control) -> Pipe:
        """Send a resend request; its messages come through the pipe."""
        await self.connection.open()
        pipe = self._pipes[request.request_id] = Pipe(self.connection, self._pipes)
        self.connection.send(msgspec.structs.replace(request, session_token=self._token()))
        return pipe

    def end(self, request_id: str) -> None:
        """Forget a resend; what still comes of it is passed over."""
        pipe = self._pipes.pop(request_id, None)
        if pipe is not None:
            pipe.read_on()

    # What the connection calls.

    def wants_connection(self) -> bool:
        """As long as someone listens."""
        return bool(self._topics or self._pipes)

    async def on_connected(self) -> None:
        """Subscribe again, then let everyone catch up."""
        for topic, shared in list(self._topics.items()):
            try:
                await self._subscribe(topic, shared)
            except Refused as refused:
                for listener in list(shared.listeners):
                    listener.failed(refused)
            except ConnectionEnded:
                return  # broke again; whoever opens it next begins anew
            else:
                for listener in list(shared.listeners):
                    listener.resumed()

    def on_message(self, arrived: Arrived) -> None:
        """Pass a broadcast to everyone who reads its stream-partition."""
        msg_id = arrived.message.msg_id
        shared = self._topics.get(model.Topic(msg_id.stream_id, msg_id.stream_partition))
        if shared is not None:
            for listener in shared.listeners:
                listener.live(arrived)

    def on_answer(self, answer: Control, arrived: Arrived | None) -> None:
        """Pass on what belongs to a resend."""
        pipe = self._pipes.get(answer.request_id)
        if pipe is None:
            return
        if arrived is not None:
            pipe.put(arrived)
        elif answer.type in _ENDS:
            pipe.put(None)
        elif answer.type is ControlType.ERROR_RESPONSE:
            pipe.put(Refused(answer.error_message, answer.error_code))

    def on_lost(self) -> None:
        """Nothing is subscribed any more; resends stop where they are."""
        for shared in self._topics.values():
            shared.subscribed = False
            for listener in shared.listeners:
                listener.lost()
        self._end_pipes(ConnectionEnded("The connection to the node broke."))

    def on_failed(self, ended: ConnectionEnded) -> None:
        """Tell everyone who reads."""
        for shared in list(self._topics.values()):
            for listener in list(shared.listeners):
                listener.failed(ended)

    def _end_pipes(self, ended: ConnectionEnded) -> None:
        for pipe in self._pipes.values():
            pipe.put(ended)
