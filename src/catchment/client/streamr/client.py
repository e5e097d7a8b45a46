"""The client: `async with StreamrClient(url, private_key=...) as client`.

It has two connections, opened when they are needed: one publishes and exchanges keys, one reads (see `reader.py` for
why). Speaks control 2 and message 32; key exchange is answered in the form it is asked in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

import msgspec

from catchment import model
from catchment.client.streamr.connection import Connection
from catchment.client.streamr.decryption import HistoryOpener, Opener
from catchment.client.streamr.keys import KeyExchange, KeyTiming
from catchment.client.streamr.keystore import KeyStore
from catchment.client.streamr.publisher import Publisher
from catchment.client.streamr.reader import Reader
from catchment.client.streamr.replay import Question, replay
from catchment.client.streamr.rest import Rest, base_of
from catchment.client.streamr.streams import EncryptedStream
from catchment.client.streamr.subscriber import Subscription
from catchment.client.streamr.values import (
    Arrived,
    Chain,
    ConnectionEnded,
    Happening,
    History,
    Received,
    Refused,
    now_ms,
)
from catchment.client.tls import client_context
from catchment.core.ordering import Patience
from catchment.crypto.ethereum import Signer, parse_address
from catchment.errors import UserError
from catchment.wire.streamr import message
from catchment.wire.streamr.partition import partition_of

log = logging.getLogger(__name__)

MAX_WAITING: Final = 10_000
"""Messages of one subscription that may wait for their keys."""
RSA_BITS: Final = 4096
"""What the published clients make (facts/streamr.md, section 4)."""

NOT_ENCRYPTED: Final = message.EncryptionType.NONE

Allow = Callable[[str, str], bool | Awaitable[bool]]
T = TypeVar("T")


class StreamrClient:
    """A client of one node. It connects again when a connection breaks, and goes on where it was."""

    def __init__(
        self,
        url: str,
        *,
        private_key: bytes | None = None,
        verify: bool = True,
        attempts: int | None = 8,
        keystore: KeyStore | Path | str | None = None,
        allow: Allow | None = None,
        rest_url: str | None = None,
        cafile: str | None = None,
        patience: Patience | None = None,
        key_timing: KeyTiming | None = None,
        max_waiting: int = MAX_WAITING,
        rsa_bits: int = RSA_BITS,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            url: a node's address, ws://host:port or with a path of its own.
            private_key: 32 bytes that sign what is published; without them messages are unsigned, and encrypted
                ones cannot be read.
            verify: check the signature of everything received, and that its publisher may publish where the node
                says so; drop the rest.
            attempts: how often in a row to try to connect, None for no end.
            keystore: where group keys are kept, or a path to keep them in a file; in memory without one.
            allow: decides who gets our keys, as `allow(stream, address)`; without it the node is asked who may
                subscribe.
            rest_url: the node's REST address; by default the one beside `url`.
            cafile: PEM file with the authorities whose word counts for a wss:// node; the system's without one.
            patience: how long to wait for missing messages.
            key_timing: how long to wait for missing keys.
            max_waiting: messages of one subscription that may wait for keys.
            rsa_bits: size of the RSA key under which publishers send us keys.

        Raises:
            UserError: the cafile or the key store cannot be used.
        """
        ssl_context = client_context(cafile)
        self._signer = None if private_key is None else Signer(private_key)
        self._verify = verify
        self._allow = allow
        self._patience = Patience() if patience is None else patience
        self._timing = KeyTiming() if key_timing is None else key_timing
        self._max_waiting = max_waiting
        self._rest = Rest(base_of(url) if rest_url is None else rest_url, signer=self._signer, ssl_context=ssl_context)
        self.keystore = keystore if isinstance(keystore, KeyStore) else KeyStore(keystore)
        self._control = Connection(url, attempts=attempts, ssl_context=ssl_context)
        self._publisher = Publisher(self._control, self._token)
        self._control.handlers.append(self._publisher)
        self._exchange: KeyExchange | None = None
        if self._signer is not None:
            self._exchange = KeyExchange(
                self._control,
                self._publisher,
                self._signer,
                self.keystore,
                allowed=self._may_read,
                token=self._token,
                timing=self._timing,
                rsa_bits=rsa_bits,
            )
            self._control.handlers.append(self._exchange)
        self._reading = Connection(url, attempts=attempts, ssl_context=ssl_context)
        self._reader = Reader(self._reading, token=self._token, login=self._rest.try_to_login)
        self._reading.handlers.append(self._reader)
        self._chains: dict[tuple[str, int], Chain] = {}
        self._encrypted: dict[str, EncryptedStream] = {}
        self._opened: dict[model.Topic, Subscription] = {}
        self._subscriptions: set[Subscription] = set()
        self.forged = 0
        """Messages dropped because their signature was not their publisher's, or their publisher may not publish."""

    @property
    def address(self) -> str | None:
        """Who we publish as."""
        return None if self._signer is None else self._signer.address

    async def __aenter__(self) -> Self:
        await self._control.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Say goodbye and end: whoever iterates comes to the end, what is not confirmed fails."""
        self._reading.closed = True  # nothing is unsubscribed one by one
        for subscription in list(self._subscriptions):
            await subscription.close()
        if self._exchange is not None:
            self._exchange.close()
        await self._reading.close()
        await self._control.close()
        self._publisher.on_failed(ConnectionEnded("The client was closed."))

    # Publishing.

    async def publish(
        self,
        stream_id: str,
        content: object,
        *,
        partition: int | None = None,
        partition_key: str | int | None = None,
        timestamp: int | None = None,
        encrypt: bool = False,
    ) -> str:
        """Publish a value as JSON and wait until the node has it on disk.

        Args:
            stream_id: where to.
            content: any value JSON can hold; text is taken as JSON already.
            partition: the partition; 0 without one and without a key.
            partition_key: chooses the partition: the same key always goes to the same one.
            timestamp: milliseconds; now when there is none.
            encrypt: encrypt the content with the stream's group key, which is made on first use.

        Returns:
            "stored", or "duplicate" when the node had it already; "sent" when it is not a node of ours, which does
            not say.

        Raises:
            Refused: the node refused it.
            ConnectionEnded: the node cannot be reached.
            UserError: it cannot be encrypted: there is no private key, or the text is not JSON.
        """
        chain, raw = await self._make(stream_id, content, partition, partition_key, timestamp, encrypt=encrypt)
        try:
            return await self.publish_raw(raw)
        except Refused:
            chain.take_back(raw)  # else the next message would name one that nobody has
            raise

    async def send(
        self,
        stream_id: str,
        content: object,
        *,
        partition: int | None = None,
        partition_key: str | int | None = None,
        timestamp: int | None = None,
        encrypt: bool = False,
    ) -> asyncio.Future[str]:
        """Publish without waiting: the future is done when the node has it on disk, so many can be on their way.

        Messages of one stream-partition are sent in the order of the calls. See `publish` for the rest.
        """
        _, raw = await self._make(stream_id, content, partition, partition_key, timestamp, encrypt=encrypt)
        return await self.send_raw(raw)

    async def _make(
        self,
        stream_id: str,
        content: object,
        partition: int | None,
        key: str | int | None,
        timestamp: int | None,
        *,
        encrypt: bool,
    ) -> tuple[Chain, bytes]:
        if partition is None:
            partition = 0 if key is None else partition_of(key, await self._rest.partitions(stream_id))
        text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
        stream = await self._encrypted_stream(stream_id, text) if encrypt else None
        chain = self._chain(stream_id, partition)
        when = now_ms() if timestamp is None else timestamp
        if stream is None:
            return chain, chain.make(text, when)
        with_key, next_key, when = stream.keys_for(when, self._latest(stream_id))
        return chain, chain.make(text, when, key=with_key, next_key=next_key)

    async def publish_raw(self, raw: bytes) -> str:
        """Publish a message that is already made; see `publish`."""
        return await (await self.send_raw(raw))

    async def send_raw(self, raw: bytes) -> asyncio.Future[str]:
        """Send a message and return at once with the future of its confirmation, so that many can be on their way.

        Raises:
            Refused: it is too large to be sent.
            ConnectionEnded: the node cannot be reached.
        """
        return await self._publisher.send(raw)

    def _chain(self, stream_id: str, partition: int) -> Chain:
        found = self._chains.get((stream_id, partition))
        if found is None:
            found = self._chains[stream_id, partition] = Chain(stream_id, partition, signer=self._signer)
        return found

    # Group keys of our own.

    async def _encrypted_stream(self, stream_id: str, text: str = "{}") -> EncryptedStream:
        if self._exchange is None:
            raise UserError("Encrypting needs a private key: whoever asks for the group key is answered signed.")
        try:
            msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            # A reader knows by this that it has the right key.
            raise UserError("Content to be encrypted must be JSON: publish a value, or text that is JSON.") from None
        await self._exchange.start()
        found = self._encrypted.get(stream_id)
        if found is None:
            found = self._encrypted[stream_id] = EncryptedStream(stream_id, self.keystore)
        return found

    async def rotate_key(self, stream_id: str) -> str:
        """Take a new key from the next message on; that message brings it along for those who can read it.

        Returns:
            The new key's id.

        Raises:
            UserError: there is no private key.
        """
        return (await self._encrypted_stream(stream_id)).rotate()

    async def rekey(self, stream_id: str) -> int:
        """Take a new key at once, and hand it to everyone who asked for one before and still may read.

        Whoever may not read any more does not get it, whatever keys it has. This is GroupKeyAnnounce, or GroupKeyReset
        for readers that ask in the older form.

        Returns:
            How many readers were told.

        Raises:
            UserError: there is no private key.
            Refused: the node refused a message to a reader.
            ConnectionEnded: the node cannot be reached.
        """
        stream = await self._encrypted_stream(stream_id)
        assert self._exchange is not None
        start = max(now_ms(), self._latest(stream_id) + 1)
        return await self._exchange.server.announce(stream_id, stream.rekey(start))

    def _latest(self, stream_id: str) -> int:
        """The time of the newest message we made for a stream, in any partition."""
        chains = (chain for (name, _), chain in self._chains.items() if name == stream_id)
        return max((chain.last.timestamp for chain in chains if chain.last is not None), default=-1)

    async def serve_keys(self) -> None:
        """Answer requests for the keys in our key store from now on, without publishing anything.

        Raises:
            UserError: there is no private key.
        """
        if self._exchange is None:
            raise UserError("Handing out keys needs a private key to sign with.")
        await self._exchange.start()

    async def _may_read(self, stream_id: str, address: str) -> bool | None:
        if self._allow is None:
            return await self._rest.is_subscriber(stream_id, address)
        answer = self._allow(stream_id, address)
        return answer if isinstance(answer, bool) else await answer

    # Reading.

    async def subscribe(
        self,
        stream_id: str,
        *,
        partition: int = 0,
        resend: History | None = None,
        patience: Patience | None = None,
    ) -> AsyncGenerator[Received, None]:
        """Everything published from now on, once the first item is awaited; with `resend` what was before, first.

        Messages of one publisher's chain come in order, each once, also when the connection breaks. What is missing
        for good, cannot be decrypted or cannot be resent is logged; `happenings` hands it out too.

        Raises:
            Refused: the node refused the subscription.
            ConnectionEnded: the node cannot be reached any more.
        """
        topic = model.Topic(stream_id, partition)
        opened = self._opened.pop(topic, None) if resend is None and patience is None else None
        subscription = opened or await self._subscription(topic, resend, patience, events=False)
        async with contextlib.aclosing(self._all_of(subscription)) as messages:
            async for each in messages:
                assert isinstance(each, Received)
                yield each

    async def happenings(
        self,
        stream_id: str,
        *,
        partition: int = 0,
        resend: History | None = None,
        patience: Patience | None = None,
    ) -> AsyncGenerator[Happening, None]:
        """Like `subscribe`, with what went wrong in its place: `GapOpen`, `Undecryptable`, `ResendFailed`."""
        topic = model.Topic(stream_id, partition)
        subscription = await self._subscription(topic, resend, patience, events=True)
        async with contextlib.aclosing(self._all_of(subscription)) as happenings:
            async for each in happenings:
                yield each

    async def _all_of(self, subscription: Subscription) -> AsyncGenerator[Happening, None]:
        try:
            while (each := await subscription.next()) is not None:
                yield each
        finally:
            await subscription.close()

    async def open_subscription(
        self,
        stream_id: str,
        *,
        partition: int = 0,
        resend: History | None = None,
        patience: Patience | None = None,
        events: bool = False,
    ) -> Subscription:
        """Subscribe now, and iterate later: returns when the node has said yes.

        The plain form, without history and events, is what the next `subscribe` to the same stream-partition goes on
        from; any other is iterated itself, and closed.

        Raises:
            Refused: the node refused the subscription.
            ConnectionEnded: the node cannot be reached.
        """
        topic = model.Topic(stream_id, partition)
        if resend is not None or patience is not None or events:
            return await self._subscription(topic, resend, patience, events=events)
        if topic not in self._opened:
            self._opened[topic] = await self._subscription(topic, None, None, events=False)
        return self._opened[topic]

    async def _subscription(
        self, topic: model.Topic, resend: History | None, patience: Patience | None, *, events: bool
    ) -> Subscription:
        made = Subscription(
            self._reader,
            topic,
            judge=self._judged,
            opener=self._opener(),
            resend=resend,
            events=events,
            patience=patience or self._patience,
            key_timeout=self._timing.timeout,
            max_waiting=self._max_waiting,
            on_closed=self._forget,
        )
        await made.start()
        self._subscriptions.add(made)
        return made

    def _forget(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)
        if self._opened.get(subscription.topic) is subscription:
            del self._opened[subscription.topic]

    def resend_last(self, stream_id: str, count: int, *, partition: int = 0) -> AsyncGenerator[Received, None]:
        """The last `count` messages, oldest first; one whose key does not come is handed out `encrypted`."""
        return self._history(Question(model.Topic(stream_id, partition), last=count))

    def resend_range(
        self,
        stream_id: str,
        start: model.Ref,
        end: model.Ref | None = None,
        *,
        partition: int = 0,
        publisher: str | None = None,
        chain: str | None = None,
    ) -> AsyncGenerator[Received, None]:
        """The messages from `start` to `end` (to the newest without one), both included, oldest first.

        One whose key does not come is handed out `encrypted`.
        """
        return self._history(Question(model.Topic(stream_id, partition), None, start, end, publisher, chain))

    async def _history(self, question: Question) -> AsyncGenerator[Received, None]:
        history = HistoryOpener(self._opener(), timeout=self._timing.timeout)
        async with contextlib.aclosing(replay(self._reader, question)) as messages:
            async for arrived in messages:
                received = await self._judged(arrived)
                if received is not None:
                    yield (
                        received if received.message.encryption_type is NOT_ENCRYPTED else await history.open(received)
                    )

    def _opener(self) -> Opener:
        return Opener(self.keystore, own_address=self.address, exchange=self._exchange)

    async def _judged(self, arrived: Arrived) -> Received | None:
        """What our own check finds; None when it is to be dropped."""
        if not self._verify:
            return Received(arrived.message, model.Verdict.UNSIGNED, arrived.raw)
        verdict = message.judge(arrived.message)
        if not verdict.accepted:
            self.forged += 1
            return None
        msg_id = arrived.message.msg_id
        if verdict is model.Verdict.OK and parse_address(msg_id.publisher_id) is not None:
            permitted = await self._rest.is_publisher(msg_id.stream_id, msg_id.publisher_id)
            if permitted is False:
                self.forged += 1
                return None
        return Received(arrived.message, verdict, arrived.raw)

    # Who we are.

    def _token(self) -> str | None:
        return self._rest.token
