"""Key exchange of one client: asks for the keys it lacks, takes what publishers hand out, answers as a publisher.

facts/streamr.md, section 4. Requests are gathered for a moment per stream and publisher, and repeated while someone
waits. Several answers to one request are normal: a publisher may run more than once. A key is taken only from the
publisher it is for, signed, and as the answer to a question of ours or for a stream we read.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from typing import Final, NamedTuple

import msgspec
from cryptography.hazmat.primitives.asymmetric import rsa

from catchment import model
from catchment.client.streamr.connection import MAX_TEXT, Connection, Handler
from catchment.client.streamr.keyserver import Allowed, KeyServer
from catchment.client.streamr.keystore import KeyStore
from catchment.client.streamr.publisher import Publisher
from catchment.client.streamr.values import Arrived, Chain, ConnectionEnded, Refused, now_ms
from catchment.crypto import groupkeys
from catchment.crypto.ethereum import Signer
from catchment.errors import CatchmentError, PeerFault
from catchment.wire.streamr import keyexchange, message
from catchment.wire.streamr.control import Control, ControlType
from catchment.wire.streamr.keyexchange import (
    ErrorCode,
    Exchange,
    Form,
    GroupKeyAnnounce,
    GroupKeyErrorResponse,
    GroupKeyRequest,
    GroupKeyResponse,
    KeyRange,
    SealedKey,
)

log = logging.getLogger(__name__)

MAX_INBOX: Final = 1000
"""Key-exchange messages that may wait; more are passed over, and asked for again."""
MAX_ASKED: Final = 10_000
"""Requests whose answers are still recognised."""
MAX_CHAINS: Final = 1000


class KeyTiming(msgspec.Struct, frozen=True):
    """How patient key exchange is, in seconds.

    Attributes:
        batch: how long requests are gathered.
        retry: how long to wait before a request is repeated.
        timeout: how long a message waits for its key.
    """

    batch: float = 0.1
    retry: float = 5.0
    timeout: float = 30.0


class Group(NamedTuple):
    """Whose keys, of what."""

    stream_id: str
    publisher: str


class _Need:
    """What is missing of one publisher: ids, or times of messages that name no key; each with its deadline."""

    def __init__(self) -> None:
        self.ids: dict[str, float] = {}
        self.times: dict[int, float] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.problem = ""

    def expire(self, now: float) -> None:
        self.ids = {key_id: until for key_id, until in self.ids.items() if until > now}
        self.times = {time: until for time, until in self.times.items() if until > now}


class KeyExchange(Handler):
    """Both sides of key exchange, over the connection that also publishes."""

    def __init__(
        self,
        connection: Connection,
        publisher: Publisher,
        signer: Signer,
        keystore: KeyStore,
        *,
        allowed: Allowed,
        token: Callable[[], str | None],
        timing: KeyTiming,
        rsa_bits: int,
    ) -> None:
        self.timing = timing
        self.keystore = keystore
        self.server = KeyServer(keystore, allowed=allowed, tell=self._tell)
        self.ignored = 0
        """Key-exchange messages that were not for us to take: forged, unasked for, or malformed."""
        self._connection = connection
        self._publisher = publisher
        self._signer = signer
        self._token = token
        self._rsa_bits = rsa_bits
        self._rsa: asyncio.Task[rsa.RSAPrivateKey] | None = None
        self._streams = (keyexchange.stream_of(signer.address), keyexchange.legacy_stream_of(signer.address))
        self._listeners: dict[str, set[Callable[[str], None]]] = {}
        self._needs: dict[Group, _Need] = {}
        self._asked: dict[str, Group] = {}
        self._chains: dict[str, Chain] = {}
        self._inbox: asyncio.Queue[Arrived] = asyncio.Queue(MAX_INBOX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = False
        self._subscribing = asyncio.Lock()
        self._subscribed = False

    async def start(self) -> None:
        """Listen on our key-exchange streams.

        Raises:
            Refused: the node does not let us.
            ConnectionEnded: the node cannot be reached.
        """
        if not self._started:
            self._started = True
            self._spawn(self._work())
        await self._connection.open()
        await self._subscribe()

    async def _subscribe(self) -> None:
        async with self._subscribing:
            if self._subscribed:
                return
            for stream_id in self._streams:
                try:
                    await self._connection.ask(self._subscribe_request(stream_id))
                except Refused:
                    if stream_id == self._streams[0]:
                        raise
                    log.info("the node has no key-exchange streams of clients 3.x")  # nor has it such clients
            self._subscribed = self._connection.connected

    def _subscribe_request(self, stream_id: str) -> Control:
        return Control(
            ControlType.SUBSCRIBE_REQUEST,
            self._connection.next_id(),
            stream_id=stream_id,
            stream_partition=keyexchange.PARTITION,
            session_token=self._token(),
        )

    def close(self) -> None:
        """Stop."""
        for need in self._needs.values():
            if need.timer is not None:
                need.timer.cancel()
        for task in self._tasks:
            task.cancel()
        if self._rsa is not None:
            self._rsa.cancel()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The subscriber's side.

    def listen(self, stream_id: str, listener: Callable[[str], None]) -> None:
        """Call `listener` with the publisher whenever a key of a stream comes."""
        self._listeners.setdefault(stream_id, set()).add(listener)

    def unlisten(self, stream_id: str, listener: Callable[[str], None]) -> None:
        """Stop calling."""
        listeners = self._listeners.get(stream_id)
        if listeners is not None:
            listeners.discard(listener)
            if not listeners:
                del self._listeners[stream_id]

    def want(self, group: Group, key_id: str | None, timestamp: int, until: float) -> None:
        """Ask for a key, and go on asking until a time of the event loop's clock."""
        need = self._needs.setdefault(group, _Need())
        if key_id is not None:
            need.ids[key_id] = max(until, need.ids.get(key_id, until))
        else:
            need.times[timestamp] = max(until, need.times.get(timestamp, until))
        if need.timer is None:
            need.timer = asyncio.get_running_loop().call_later(self.timing.batch, self._due, group)

    def problem_of(self, group: Group) -> str:
        """What a publisher said last about why it gives no key; empty when nothing."""
        need = self._needs.get(group)
        return "" if need is None else need.problem

    def _due(self, group: Group) -> None:
        need = self._needs[group]
        loop = asyncio.get_running_loop()
        need.expire(loop.time())
        if not need.ids and not need.times:
            del self._needs[group]
            return
        need.timer = loop.call_later(self.timing.retry, self._due, group)
        self._spawn(self._ask(group, tuple(need.ids), tuple(need.times)))

    async def _ask(self, group: Group, ids: tuple[str, ...], times: tuple[int, ...]) -> None:
        try:
            await self.start()
            public_key = groupkeys.public_pem(await self._key_pair())
            if ids:
                some = ids[: keyexchange.MAX_KEYS]
                await self._request(group, GroupKeyRequest(self._new_id(), group.stream_id, public_key, some))
            if times:
                # Clients 3.x date a key a moment after the message they make it for: up to now, or it is left out.
                span = KeyRange(min(times), max(*times, now_ms()))
                await self._request(
                    group,
                    GroupKeyRequest(self._new_id(), group.stream_id, public_key, range=span, form=Form.OBJECT),
                )
        except (Refused, ConnectionEnded) as error:
            self._note_problem(group, str(error))

    async def _request(self, group: Group, request: GroupKeyRequest) -> None:
        self._asked[request.request_id] = group
        if len(self._asked) > MAX_ASKED:
            del self._asked[next(iter(self._asked))]
        await self._tell(keyexchange.stream_of(group.publisher), request)
        if request.form is Form.OBJECT:  # clients 3.x listen on the bare address
            await self._tell(keyexchange.legacy_stream_of(group.publisher), request)

    @staticmethod
    def _new_id() -> str:
        return secrets.token_urlsafe(16)

    async def _key_pair(self) -> rsa.RSAPrivateKey:
        if self._rsa is None:
            make = asyncio.to_thread(rsa.generate_private_key, 65537, self._rsa_bits)
            self._rsa = asyncio.get_running_loop().create_task(make)
        return await asyncio.shield(self._rsa)

    def _note_problem(self, group: Group, text: str) -> None:
        log.info("no key of %r from %s: %s", group.stream_id[:100], group.publisher, text[:MAX_TEXT])
        need = self._needs.get(group)
        if need is not None:
            need.problem = text[:MAX_TEXT]

    # Both sides.

    async def _tell(self, stream_id: str, exchange: Exchange) -> None:
        chain = self._chains.pop(stream_id, None) or Chain(stream_id, keyexchange.PARTITION, signer=self._signer)
        self._chains[stream_id] = chain
        if len(self._chains) > MAX_CHAINS:
            del self._chains[next(iter(self._chains))]
        raw = chain.make_exchange(exchange, now_ms())
        try:
            await (await self._publisher.send(raw))
        except Refused:
            chain.take_back(raw)
            raise

    async def _work(self) -> None:
        while True:
            arrived = await self._inbox.get()
            try:
                await self._take(arrived.message)
            except PeerFault as fault:
                self._ignore(arrived.message, fault.message)
                await self._answer_malformed(arrived.message, fault)
            except CatchmentError as error:
                self._ignore(arrived.message, str(error))

    def _ignore(self, got: message.StreamMessage, why: str) -> None:
        self.ignored += 1
        kind = keyexchange.name_of(got.message_type)
        log.warning("passed over a %s of %s: %s", kind, got.msg_id.publisher_id[:100], why[:MAX_TEXT])

    async def _take(self, got: message.StreamMessage) -> None:
        if message.judge(got) is not model.Verdict.OK:
            self._ignore(got, "its signature is not its sender's")
            return
        sender = model.canonical_publisher(got.msg_id.publisher_id)
        exchange = keyexchange.read(got)
        match exchange:
            case GroupKeyRequest():
                await self.server.answer(exchange, sender, self._reply_to(got, sender))
            case GroupKeyResponse():
                if not self._was_asked(exchange.request_id, Group(exchange.stream_id, sender)):
                    self._ignore(got, "nobody asked this publisher for it")
                    return
                await self._keep(Group(exchange.stream_id, sender), exchange.keys)
            case GroupKeyAnnounce():
                if exchange.stream_id not in self._listeners:
                    self._ignore(got, "nobody reads the stream")
                    return
                await self._keep(Group(exchange.stream_id, sender), exchange.keys)
            case GroupKeyErrorResponse():
                group = self._asked.get(exchange.request_id)
                if group is not None and group.publisher == sender:
                    self._note_problem(group, f"{exchange.code}: {exchange.message}")

    def _was_asked(self, request_id: str, group: Group) -> bool:
        """Whether an answer is to a request of ours. Clients 3.x do not repeat its id."""
        return self._asked.get(request_id) == group if request_id else group in self._asked.values()

    def _reply_to(self, got: message.StreamMessage, sender: str) -> str:
        """The sender's stream of the same era as the one it wrote to."""
        legacy = got.msg_id.stream_id == self._streams[1]
        return keyexchange.legacy_stream_of(sender) if legacy else keyexchange.stream_of(sender)

    async def _answer_malformed(self, got: message.StreamMessage, fault: PeerFault) -> None:
        """Tell a subscriber that its request cannot be read; its signature was found good before it was read."""
        if got.message_type is not message.MessageType.GROUP_KEY_REQUEST:
            return
        sender = model.canonical_publisher(got.msg_id.publisher_id)
        form = Form.ARRAY if got.content.lstrip()[:1] == "[" else Form.OBJECT
        refusal = GroupKeyErrorResponse("", "", ErrorCode.INVALID_GROUP_KEY_REQUEST, fault.message, form=form)
        try:
            await self._tell(self._reply_to(got, sender), refusal)
        except (Refused, ConnectionEnded) as error:
            log.info("could not answer %s: %s", sender, error)

    async def _keep(self, group: Group, keys: tuple[SealedKey, ...]) -> None:
        pair = await self._key_pair()
        for sealed in keys:
            key = await asyncio.to_thread(groupkeys.unseal, pair, sealed.sealed)
            self.learn(group, key, key_id=sealed.key_id, start=sealed.start)

    def learn(self, group: Group, key: bytes, *, key_id: str | None = None, start: int | None = None) -> None:
        """Keep a key a publisher gave us, and tell those who wait for it."""
        self.keystore.remember(group.stream_id, group.publisher, key, key_id=key_id, start=start)
        need = self._needs.get(group)
        if need is not None:
            if key_id is not None:
                need.ids.pop(key_id, None)
            if start is not None:
                need.times = {time: until for time, until in need.times.items() if time < start}
        for listener in list(self._listeners.get(group.stream_id, ())):
            listener(group.publisher)

    # What the connection calls.

    def wants_connection(self) -> bool:
        """As long as keys may be asked of us, or we wait for some."""
        return self._started

    async def on_connected(self) -> None:
        """Listen again."""
        if self._started:
            try:
                await self._subscribe()
            except (Refused, ConnectionEnded) as error:
                log.warning("key exchange is interrupted: %s", error)

    def on_lost(self) -> None:
        """Nothing is subscribed any more."""
        self._subscribed = False

    def on_message(self, arrived: Arrived) -> None:
        """Take what is sent to our key-exchange streams."""
        if arrived.message.msg_id.stream_id not in self._streams:
            return
        try:
            self._inbox.put_nowait(arrived)
        except asyncio.QueueFull:
            self._ignore(arrived.message, "too many wait")
