"""A Streamr client: publish with confirmation, subscribe, resend.

Speaks control 2 and message 32. Against a Catchment node it asks for publish acknowledgements (`publishAck=1`): a
publish returns when the message is on disk, and what was not confirmed when a connection broke is sent again under
the same id, which the node's log keeps once. Message chains are made as the published clients make them
(facts/streamr.md, section 5).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import ssl
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final, NamedTuple, Self
from urllib.parse import urlencode

import msgspec
from picows import WSCloseCode, WSError, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from catchment import model
from catchment.client.tls import client_context
from catchment.crypto.ethereum import Signer
from catchment.errors import CatchmentError, PeerFault
from catchment.wire.streamr import control, message
from catchment.wire.streamr.control import Control, ControlType
from catchment.wire.streamr.fields import LooseMessageRef, MessageID, MessageRef

log = logging.getLogger(__name__)

MAX_FRAME: Final = 16 * 1024 * 1024
MAX_MESSAGE: Final = 1024 * 1024 - 1024
"""What a node takes in one frame (facts/streamr.md, section 1), less the request around it."""

CHAIN_ID_CHARACTERS: Final = 20


class Refused(CatchmentError):
    """The node answered with an ErrorResponse.

    Attributes:
        code: its error code.
    """

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


class ConnectionEnded(CatchmentError):
    """The connection is gone; what was not confirmed may or may not have arrived."""


class Received(msgspec.Struct, frozen=True):
    """A message from the node.

    Attributes:
        verdict: what our own check of the signature found.
        raw: the bytes as signed.
    """

    message: message.StreamMessage
    verdict: model.Verdict
    raw: bytes


class Chain:
    """A publisher's place in one stream-partition: makes messages that refer to each other."""

    def __init__(self, stream_id: str, partition: int, *, signer: Signer | None, chain_id: str | None = None) -> None:
        self.stream_id = stream_id
        self.partition = partition
        self.chain_id = (
            secrets.token_urlsafe(CHAIN_ID_CHARACTERS)[:CHAIN_ID_CHARACTERS] if chain_id is None else chain_id
        )
        self._signer = signer
        self._last: MessageRef | None = None

    def make(self, content: str, timestamp: int) -> bytes:
        """The next message, signed, as it goes on the wire.

        The sequence counts up within one millisecond; a clock that went back does not take the chain with it.
        """
        last = self._last
        sequence = 0
        if last is not None and timestamp <= last.timestamp:
            timestamp, sequence = last.timestamp, last.sequence_number + 1
        publisher = "" if self._signer is None else self._signer.address
        made = message.StreamMessage(
            version=32,
            msg_id=MessageID(self.stream_id, self.partition, timestamp, sequence, publisher, self.chain_id),
            prev_msg_ref=last,
            message_type=message.MessageType.STREAM_MESSAGE,
            content_type=message.ContentType.JSON,
            encryption_type=message.EncryptionType.NONE,
            group_key_id=None,
            content=content,
            new_group_key=None,
            signature_type=message.SignatureType.NONE,
            signature=None,
        )
        if self._signer is not None:
            made = sign(made, self._signer)
        self._last = MessageRef(timestamp, sequence)
        return message.encode(made)


def sign(made: message.StreamMessage, signer: Signer) -> message.StreamMessage:
    """The message with an ETH signature."""
    typed = msgspec.structs.replace(made, signature_type=message.SignatureType.ETH)
    return msgspec.structs.replace(typed, signature=signer.sign(message.signed_payload(typed)))


class _Listener(WSListener):
    """Passes frames of one connection to its client."""

    def __init__(self, client: StreamrClient) -> None:
        self._client = client

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.TEXT:
            self._client._on_frame(frame.get_payload_as_bytes())
        elif frame.msg_type == WSMsgType.CLOSE:
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._client._on_disconnected(transport)

    def pause_writing(self) -> None:
        self._client._writable.clear()

    def resume_writing(self) -> None:
        self._client._writable.set()


class Arrived(NamedTuple):
    """A message as it came, not yet judged."""

    message: message.StreamMessage
    raw: bytes


class _Stream:
    """Messages of one subscription or resend on their way to whoever iterates."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Arrived | CatchmentError | None] = asyncio.Queue()

    async def next(self) -> Arrived | None:
        item = await self.queue.get()
        if isinstance(item, CatchmentError):
            raise item
        return item


class StreamrClient:
    """A connection to a node, opened again when it breaks while there is something to confirm.

    Use as `async with StreamrClient(url) as client`.
    """

    def __init__(
        self,
        url: str,
        *,
        private_key: bytes | None = None,
        verify: bool = True,
        attempts: int = 8,
        cafile: str | None = None,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            url: a node's address, ws://host:port or wss://host:port, or with a path of its own.
            private_key: signs what is published; without one messages are unsigned.
            verify: check the signature of everything received and drop what is forged.
            attempts: how often in a row to try to connect.
            cafile: PEM file with the authorities whose word counts for a wss:// node; the system's without one.

        Raises:
            UserError: the cafile cannot be used.
        """
        self._url = _with_versions(url)
        self._signer = None if private_key is None else Signer(private_key)
        self._verify = verify
        self._attempts = attempts
        self._tls = client_context(cafile)
        self._transport: WSTransport | None = None
        self._connecting = asyncio.Lock()
        self._writable = asyncio.Event()
        self._request_ids = (f"c{number}" for number in itertools.count(1))
        self._chains: dict[tuple[str, int], Chain] = {}
        self._unconfirmed: dict[str, tuple[bytes, asyncio.Future[str]]] = {}
        self._requests: dict[str, asyncio.Future[Control]] = {}
        self._subscriptions: dict[model.Topic, _Stream] = {}
        self._resends: dict[str, _Stream] = {}
        self._closing = False
        self._fruitless = 0
        """Connections in a row that ended before anything was confirmed."""
        self.forged = 0
        """Messages dropped because their signature was not their publisher's."""

    @property
    def address(self) -> str | None:
        """Who we publish as."""
        return None if self._signer is None else self._signer.address

    async def __aenter__(self) -> Self:
        await self._connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Say goodbye and end."""
        self._closing = True
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()
            await transport.wait_disconnected()
        self._fail_all(ConnectionEnded("The client was closed."))

    # Publishing.

    async def publish(
        self, stream_id: str, content: object, *, partition: int = 0, timestamp: int | None = None
    ) -> str:
        """Publish a value as JSON and wait until the node has it on disk.

        Returns:
            "stored", or "duplicate" when the node had it already.

        Raises:
            Refused: the node refused it.
            ConnectionEnded: the node cannot be reached.
        """
        chain = self._chain(stream_id, partition)
        text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
        return await self.publish_raw(chain.make(text, now_ms() if timestamp is None else timestamp))

    async def publish_raw(self, raw: bytes) -> str:
        """Publish a message that is already made; see `publish`."""
        return await (await self.send_raw(raw))

    async def send_raw(self, raw: bytes) -> asyncio.Future[str]:
        """Send a message and return at once with the future of its confirmation, so that many can be on their way.

        Raises:
            Refused: it is too large to be sent.
            ConnectionEnded: the node cannot be reached.
        """
        if len(raw) > MAX_MESSAGE:
            raise Refused(f"A message of {len(raw)} bytes is over the limit of {MAX_MESSAGE}.", "INVALID_REQUEST")
        request_id = next(self._request_ids)
        confirmed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._unconfirmed[request_id] = (raw, confirmed)
        if self._transport is None:
            try:
                await self._connect()  # sends what is not confirmed
            except ConnectionEnded:
                self._unconfirmed.pop(request_id, None)
                raise
        else:
            self._send_publish(request_id, raw)
        await self._writable.wait()
        return confirmed

    def _chain(self, stream_id: str, partition: int) -> Chain:
        key = (stream_id, partition)
        if key not in self._chains:
            self._chains[key] = Chain(stream_id, partition, signer=self._signer)
        return self._chains[key]

    def _send_publish(self, request_id: str, raw: bytes) -> None:
        self._send(control.encode(Control(ControlType.PUBLISH_REQUEST, request_id, message=raw)))

    # Reading.

    async def subscribe(self, stream_id: str, *, partition: int = 0) -> AsyncIterator[Received]:
        """Everything published from now on, once the first item is awaited.

        Raises:
            Refused: the node refused the subscription.
            ConnectionEnded: the connection broke.
        """
        stream = await self.open_subscription(stream_id, partition=partition)
        try:
            async for received in self._judged(stream):
                yield received
        finally:
            await self._end_subscription(model.Topic(stream_id, partition))

    async def open_subscription(self, stream_id: str, *, partition: int = 0) -> _Stream:
        """Subscribe and wait for the node's yes."""
        topic = model.Topic(stream_id, partition)
        stream = self._subscriptions.setdefault(topic, _Stream())
        request = Control(
            ControlType.SUBSCRIBE_REQUEST, next(self._request_ids), stream_id=stream_id, stream_partition=partition
        )
        await self._ask(request)
        return stream

    async def _end_subscription(self, topic: model.Topic) -> None:
        if self._subscriptions.pop(topic, None) is None or self._transport is None:
            return
        await self._ask(
            Control(
                ControlType.UNSUBSCRIBE_REQUEST,
                next(self._request_ids),
                stream_id=topic.name,
                stream_partition=topic.partition,
            )
        )

    async def resend_last(self, stream_id: str, count: int, *, partition: int = 0) -> AsyncIterator[Received]:
        """The last `count` messages, oldest first."""
        request = Control(
            ControlType.RESEND_LAST_REQUEST,
            next(self._request_ids),
            stream_id=stream_id,
            stream_partition=partition,
            number_last=count,
        )
        async for received in self._resend(request):
            yield received

    async def resend_range(
        self,
        stream_id: str,
        start: model.Ref,
        end: model.Ref | None = None,
        *,
        partition: int = 0,
        publisher: str | None = None,
        chain: str | None = None,
    ) -> AsyncIterator[Received]:
        """The messages from `start` to `end` (to the newest without one), both included, oldest first."""
        request = Control(
            ControlType.RESEND_FROM_REQUEST if end is None else ControlType.RESEND_RANGE_REQUEST,
            next(self._request_ids),
            stream_id=stream_id,
            stream_partition=partition,
            from_msg_ref=LooseMessageRef(*start),
            to_msg_ref=None if end is None else LooseMessageRef(*end),
            publisher_id=publisher,
            msg_chain_id=chain,
        )
        async for received in self._resend(request):
            yield received

    async def _resend(self, request: Control) -> AsyncIterator[Received]:
        if self._transport is None:
            await self._connect()
        stream = self._resends[request.request_id] = _Stream()
        self._send(control.encode(request))
        try:
            async for received in self._judged(stream):
                yield received
        finally:
            self._resends.pop(request.request_id, None)

    async def _judged(self, stream: _Stream) -> AsyncIterator[Received]:
        """What arrives on a stream until its end, less what is forged."""
        while (arrived := await stream.next()) is not None:
            received = self._received(arrived)
            if received is not None:
                yield received

    def _received(self, arrived: Arrived) -> Received | None:
        if not self._verify:
            return Received(arrived.message, model.Verdict.UNSIGNED, arrived.raw)
        verdict = message.judge(arrived.message)
        if not verdict.accepted:
            self.forged += 1
            return None
        return Received(arrived.message, verdict, arrived.raw)

    # The connection.

    async def _connect(self) -> None:
        async with self._connecting:
            if self._transport is not None:
                return
            self._transport = await self._try_to_connect()
            self._writable.set()
            for request_id, (raw, _) in list(self._unconfirmed.items()):
                self._send_publish(request_id, raw)

    async def _try_to_connect(self) -> WSTransport:
        for attempt in range(1, self._attempts + 1):
            try:
                transport, _ = await ws_connect(
                    lambda: _Listener(self),
                    self._url,
                    ssl_context=self._tls,
                    max_frame_size=MAX_FRAME,
                    websocket_handshake_timeout=10,
                )
                # picows also returns when the peer closed during the handshake.
                if not transport.is_disconnected:
                    return transport
                problem = "the connection was closed at once"
            except ssl.SSLCertVerificationError as error:
                raise ConnectionEnded(
                    f"The certificate of {self._url.partition('?')[0]} is not trusted ({error.verify_message}): name "
                    "the file of the authority that signed it (cafile, --cafile)."
                ) from None
            except (OSError, WSError) as error:
                problem = str(error)
            if attempt == self._attempts:
                raise ConnectionEnded(f"No node answers at {self._url}: {problem}")
            await asyncio.sleep(_delay(attempt))
        raise AssertionError("unreachable")

    def _send(self, payload: bytes) -> None:
        if self._transport is None:
            raise ConnectionEnded("The connection to the node is gone.")
        self._transport.send(WSMsgType.TEXT, payload)

    async def _ask(self, request: Control) -> Control:
        if self._transport is None:
            await self._connect()
        answer: asyncio.Future[Control] = asyncio.get_running_loop().create_future()
        self._requests[request.request_id] = answer
        self._send(control.encode(request))
        try:
            return await answer
        finally:
            self._requests.pop(request.request_id, None)

    def _on_disconnected(self, transport: WSTransport) -> None:
        if transport is not self._transport:
            return
        self._transport = None
        self._writable.set()
        ended = ConnectionEnded("The connection to the node broke.")
        for stream in (*self._subscriptions.values(), *self._resends.values()):
            stream.queue.put_nowait(ended)
        self._subscriptions.clear()
        for answer in self._requests.values():
            if not answer.done():
                answer.set_exception(ended)
        if self._unconfirmed and not self._closing:
            self._reconnect = asyncio.get_running_loop().create_task(self._send_again())

    async def _send_again(self) -> None:
        self._fruitless += 1
        if self._fruitless > self._attempts:
            self._fail_all(ConnectionEnded(f"The node ended {self._attempts} connections and confirmed nothing."))
            return
        try:
            await asyncio.sleep(_delay(self._fruitless))
            await self._connect()
        except ConnectionEnded as ended:
            self._fail_all(ended)

    def _fail_all(self, ended: ConnectionEnded) -> None:
        for _, confirmed in self._unconfirmed.values():
            if not confirmed.done():
                confirmed.set_exception(ended)
        self._unconfirmed.clear()

    def _on_frame(self, data: bytes) -> None:
        try:
            answer = control.decode(data)
            arrived = None
            if answer.type in (ControlType.BROADCAST_MESSAGE, ControlType.UNICAST_MESSAGE):
                raw = bytes(answer.message)
                arrived = Arrived(message.decode(raw), raw)
        except PeerFault as fault:
            log.warning("passed over a frame that cannot be read: %s", fault.message)
            return
        self._on_answer(answer, arrived)

    def _on_answer(self, answer: Control, arrived: Arrived | None) -> None:
        if answer.type is ControlType.BROADCAST_MESSAGE and arrived is not None:
            msg_id = arrived.message.msg_id
            stream = self._subscriptions.get(model.Topic(msg_id.stream_id, msg_id.stream_partition))
            if stream is not None:
                stream.queue.put_nowait(arrived)
        elif answer.type is ControlType.UNICAST_MESSAGE:
            self._to_resend(answer.request_id, arrived)
        elif answer.type in (ControlType.RESEND_RESPONSE_RESENT, ControlType.RESEND_RESPONSE_NO_RESEND):
            self._to_resend(answer.request_id, None)
        elif answer.type is ControlType.PUBLISH_ACKNOWLEDGED:
            self._fruitless = 0
            waiting = self._unconfirmed.pop(answer.request_id, None)
            if waiting is not None and not waiting[1].done():
                waiting[1].set_result(answer.outcome)
        elif answer.type is ControlType.ERROR_RESPONSE:
            self._on_error(answer)
        elif (asked := self._requests.get(answer.request_id)) is not None and not asked.done():
            asked.set_result(answer)

    def _to_resend(self, request_id: str, item: Arrived | CatchmentError | None) -> None:
        stream = self._resends.get(request_id)
        if stream is not None:
            stream.queue.put_nowait(item)

    def _on_error(self, answer: Control) -> None:
        refused = Refused(answer.error_message, answer.error_code)
        waiting = self._unconfirmed.pop(answer.request_id, None)
        if waiting is not None and not waiting[1].done():
            waiting[1].set_exception(refused)
        asked = self._requests.get(answer.request_id)
        if asked is not None and not asked.done():
            asked.set_exception(refused)
        self._to_resend(answer.request_id, refused)


def _delay(attempt: int) -> float:
    """Seconds to wait after so many attempts in a row."""
    return min(2.0, 0.05 * float(1 << min(attempt - 1, 10)))


def now_ms() -> int:
    """UTC milliseconds: Streamr's clock."""
    return time.time_ns() // 1_000_000


def _with_versions(url: str) -> str:
    """A node's address with the path and the versions we speak."""
    base, _, query = url.partition("?")
    scheme, _, rest = base.partition("://")
    if "/" not in rest:
        base = f"{scheme}://{rest}/api/v1/ws"
    ours = urlencode({"controlLayerVersion": 2, "messageLayerVersion": 32, "publishAck": 1})
    return f"{base}?{query}&{ours}" if query else f"{base}?{ours}"
