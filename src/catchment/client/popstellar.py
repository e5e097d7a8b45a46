"""A PoPStellar client: publish, subscribe, catch up. The steps of LAOs and elections are in `popstellar_lao.py`.

Every message is proven before it is handed out: signature, id, witnesses and data. A subscription begins with what is
on the channel already and goes on with what comes; when the connection breaks it is made again, and what was missed
is caught up with, each message once. A publish that was not answered is sent again; the server knows repeats.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import ssl
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final, NamedTuple

from msgspec import Raw, UnsetType
from picows import WSCloseCode, WSError, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from catchment import model
from catchment.crypto.ed25519 import Signer
from catchment.errors import CatchmentError, PeerFault
from catchment.wire.popstellar import data, message, rpc
from catchment.wire.popstellar.data import Data
from catchment.wire.popstellar.fields import ErrorCode, encode_base64
from catchment.wire.popstellar.message import Message
from catchment.wire.popstellar.submission import Submission, read

log = logging.getLogger(__name__)

MAX_FRAME: Final = 256 * 1024 * 1024
"""A catchup is one frame, however long the channel."""

HANDSHAKE_SECONDS: Final = 10
MAX_DELAY: Final = 5.0
MAX_QUEUED: Final = 10_000
"""Messages that wait for their reader before the server is made to wait."""


class Refused(CatchmentError):
    """The server refused a query, for a reason of its own."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code


class ConnectionEnded(CatchmentError):
    """The server cannot be reached, or the client was closed."""


class Received(NamedTuple):
    """A message that has proven itself."""

    channel: str
    message: Message
    data: Data

    @property
    def id(self) -> str:
        """The message id."""
        return self.message.message_id


class Subscription:
    """The messages of a channel, as they come: `async for received in subscription`."""

    def __init__(self, client: PopstellarClient, channel: str) -> None:
        self.channel = channel
        self._client = client
        self._seen: set[str] = set()
        self._queue: asyncio.Queue[Received | None] = asyncio.Queue()
        self.closed = False

    def __aiter__(self) -> AsyncIterator[Received]:
        return self

    async def __anext__(self) -> Received:
        """The next message.

        Raises:
            StopAsyncIteration: the subscription or the client was closed.
        """
        received = None if self.closed and self._queue.empty() else await self._queue.get()
        self._client.flow()
        if received is None:
            raise StopAsyncIteration
        return received

    async def close(self) -> None:
        """Want no more."""
        await self._client.unsubscribe(self)

    @property
    def waiting(self) -> int:
        """Messages that wait to be read."""
        return self._queue.qsize()

    def take(self, received: Received) -> None:
        """A message has come; once is enough."""
        if received.id not in self._seen and not self.closed:
            self._seen.add(received.id)
            self._queue.put_nowait(received)

    def end(self) -> None:
        """Nothing more will come."""
        if not self.closed:
            self.closed = True
            self._queue.put_nowait(None)


class _Listener(WSListener):
    """Passes frames of one transport to its client."""

    def __init__(self, client: PopstellarClient) -> None:
        self._client = client
        self._fragments = b""

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind in (WSMsgType.TEXT, WSMsgType.CONTINUATION):
            self._fragments += frame.get_payload_as_bytes()
            if frame.fin:
                payload, self._fragments = self._fragments, b""
                self._client.received(payload)
        elif kind == WSMsgType.CLOSE:
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._client.lost(transport)


class PopstellarClient:
    """One connection to a server, kept up for as long as the client is open."""

    def __init__(
        self, url: str, private_key: bytes | None = None, *, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        """Know where to go and who speaks.

        Args:
            url: of the server, as in `ws://127.0.0.1:7170/client`.
            private_key: 32 bytes; who only reads needs none.
            ssl_context: whom to trust for `wss://`; the system's authorities by default.
        """
        self.url = url
        self.signer = None if private_key is None else Signer(private_key)
        self.invalid = 0
        """Messages the server sent that did not prove themselves, and were not handed out."""
        self._ssl = ssl_context
        self._transport: WSTransport | None = None
        self._opening = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[rpc.Answer]] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._again: asyncio.Task[None] | None = None
        self._closed = False
        self._reading = True

    async def __aenter__(self) -> PopstellarClient:
        """Connect.

        Raises:
            ConnectionEnded: the server cannot be reached.
        """
        await self._open(attempts=1)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def public_key(self) -> str:
        """Ours, in base64url.

        Raises:
            ValueError: the client has no key.
        """
        return encode_base64(self._own_key().public)

    # What one asks of a server.

    async def publish(self, channel: str, value: Data) -> str:
        """Sign data and publish it; returns the message id once the server has it on disk.

        Raises:
            Refused: the server does not take it.
            ConnectionEnded: the client was closed.
            ValueError: the client has no key.
        """
        return await self.publish_message(channel, message.sign(data.encode(value), self._own_key()))

    async def publish_message(self, channel: str, sent: Message) -> str:
        """Publish a message that is signed already; see `publish`."""
        params = rpc.MessageParams(channel=channel, message=Raw(message.encode(sent)))
        tries = 0
        while True:
            try:
                await self._open()
                await self._ask(rpc.Publish(jsonrpc="2.0", id=next(self._numbers), params=params))
            except ConnectionEnded:
                if self._closed:
                    raise
                tries += 1
                continue
            except Refused as refused:
                # Sent again after an answer that never came: it is there, and that is what was wanted.
                if not tries or refused.code != ErrorCode.ALREADY_EXISTS:
                    raise
            return sent.message_id

    async def catchup(self, channel: str) -> list[Received]:
        """Every message of a channel, oldest first.

        Raises:
            Refused: the channel does not exist.
            ConnectionEnded: the server cannot be reached.
        """
        await self._open()
        params = rpc.ChannelParams(channel=channel)
        answer = await self._ask(rpc.Catchup(jsonrpc="2.0", id=next(self._numbers), params=params))
        found = [self._proven(channel, raw) for raw in rpc.messages(answer)]
        return [each for each in found if each is not None]

    async def subscribe(self, channel: str) -> Subscription:
        """Everything on a channel: first what is there, then what comes.

        Raises:
            Refused: the channel does not exist, or may not be subscribed to.
            ConnectionEnded: the server cannot be reached.
        """
        found = self._subscriptions.get(channel)
        if found is not None:
            return found
        await self._open()
        subscription = Subscription(self, channel)
        self._subscriptions[channel] = subscription
        try:
            await self._follow(subscription)
        except Refused:
            self._subscriptions.pop(channel, None)
            raise
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription."""
        if self._subscriptions.pop(subscription.channel, None) is not None and self._transport is not None:
            params = rpc.ChannelParams(channel=subscription.channel)
            await self._ask(rpc.Unsubscribe(jsonrpc="2.0", id=next(self._numbers), params=params))
        subscription.end()

    async def close(self) -> None:
        """Say goodbye and end."""
        self._closed = True
        if self._again is not None:
            self._again.cancel()
        for subscription in self._subscriptions.values():
            subscription.end()
        transport, self._transport = self._transport, None
        self._fail(ConnectionEnded("The client was closed."))
        if transport is not None:
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()
            await transport.wait_disconnected()

    # The connection.

    async def _open(self, attempts: int | None = None) -> None:
        async with self._opening:
            for attempt in itertools.count(1):
                if self._closed:
                    raise ConnectionEnded("The client was closed.")
                if self._transport is not None:
                    return
                try:
                    transport, _ = await ws_connect(
                        lambda: _Listener(self),
                        self.url,
                        ssl_context=self._ssl,
                        max_frame_size=MAX_FRAME,
                        websocket_handshake_timeout=HANDSHAKE_SECONDS,
                    )
                except (OSError, WSError, TimeoutError) as error:
                    if attempts is not None and attempt >= attempts:
                        raise ConnectionEnded(f"No server answers at {self.url}: {error}") from None
                    # Clients that lost one server together do not come back together.
                    await asyncio.sleep(min(0.1 * 2**attempt, MAX_DELAY) * random.uniform(0.5, 1.5))  # noqa: S311
                    continue
                if not transport.is_disconnected:
                    self._transport, self._reading = transport, True

    def lost(self, transport: WSTransport) -> None:
        """A connection has ended."""
        if transport is not self._transport:
            return
        self._transport = None
        self._fail(ConnectionEnded("The connection with the server broke."))
        if self._subscriptions and not self._closed:
            self._again = asyncio.get_running_loop().create_task(self._follow_again())

    async def _follow_again(self) -> None:
        """Subscribe to everything again, and catch up with what was missed."""
        try:
            await self._open()
            for subscription in list(self._subscriptions.values()):
                await self._follow(subscription)
        except ConnectionEnded:
            return  # it broke again, and this begins again
        except Refused as refused:
            log.warning("a channel is gone after the connection was made again: %s", refused)

    async def _follow(self, subscription: Subscription) -> None:
        params = rpc.ChannelParams(channel=subscription.channel)
        await self._ask(rpc.Subscribe(jsonrpc="2.0", id=next(self._numbers), params=params))
        for received in await self.catchup(subscription.channel):
            subscription.take(received)

    def _fail(self, ended: ConnectionEnded) -> None:
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(ended)

    async def _ask(self, query: rpc.Publish | rpc.Catchup | rpc.Subscribe | rpc.Unsubscribe) -> rpc.Answer:
        if self._transport is None:
            raise ConnectionEnded("The connection with the server is gone.")
        waiting: asyncio.Future[rpc.Answer] = asyncio.get_running_loop().create_future()
        self._answers[query.id] = waiting
        self._transport.send(WSMsgType.TEXT, rpc.encode(query))
        answer = await waiting
        if not isinstance(answer.error, UnsetType):
            raise Refused(answer.error.code, answer.error.description)
        return answer

    # What comes.

    def received(self, payload: bytes) -> None:
        """A frame has come."""
        try:
            frame = rpc.decode(payload)
        except PeerFault as wrong:
            log.warning("the server sent what it should not: %s", wrong.message)
            return
        if isinstance(frame, rpc.Answer):
            waiting = self._answers.pop(frame.id, None) if frame.id is not None else None
            if waiting is not None and not waiting.done():
                waiting.set_result(frame)
        elif isinstance(frame, rpc.Broadcast):
            subscription = self._subscriptions.get(frame.params.channel)
            found = None if subscription is None else self._proven(frame.params.channel, frame.params.message)
            if subscription is not None and found is not None:
                subscription.take(found)
                self.flow()

    def flow(self) -> None:
        """Read no faster than what is read is used."""
        waiting = sum(each.waiting for each in self._subscriptions.values())
        if self._transport is None or self._reading == (waiting < MAX_QUEUED):
            return
        self._reading = waiting < MAX_QUEUED
        socket = self._transport.underlying_transport
        if self._reading:
            socket.resume_reading()
        else:
            socket.pause_reading()

    def _proven(self, channel: str, raw: Raw) -> Received | None:
        try:
            found: Submission = read(channel, raw)
            proven = found.judge() is model.Verdict.OK and found.data is not None
        except PeerFault as wrong:
            log.warning("the server sent a message that is none: %s", wrong.message)
            proven = False
        if not proven:
            self.invalid += 1
            return None
        assert found.data is not None
        return Received(channel, found.message, found.data)

    def _own_key(self) -> Signer:
        if self.signer is None:
            raise ValueError("a client without a private key cannot sign")
        return self.signer
