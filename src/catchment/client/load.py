"""Load on a running node from one Python process: publishers that wait for acknowledgements, subscribers that count.

Built on the client everyone uses, so its figures are what a Python program gets. The clock of sender and receiver is
the same, so a latency is the time from handing a message to the client until a subscriber has it, commit included.
Messages of one publisher form a chain; each subscriber must see each chain whole and in order.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import msgspec

from catchment.client.streamr import Chain, Received, Refused, StreamrClient, now_ms
from catchment.crypto.ethereum import Signer

LIMIT: Final = 0.9
"""A process that used so much of one core's time was what held things up."""

MIN_SIZE: Final = 64
"""Room for a content's number and time."""

PATIENCE_SECONDS: Final = 5.0
"""How long deliveries may stay away, after the last acknowledgement, before they count as missing."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What to do."""

    url: str
    stream: str
    publishers: int = 1
    subscribers: int = 10
    seconds: float = 5.0
    window: int = 64
    size: int = 300
    private_key: bytes | None = None
    cafile: str | None = None


class Quantiles(msgspec.Struct, frozen=True):
    """Of a time in milliseconds."""

    p50: float
    p99: float


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it.

    Attributes:
        seconds: from the first message to the last acknowledgement.
        delivered: messages that subscribers got, all of them together.
        missing: of those acknowledged, times subscribers, how many did not come.
        out_of_order: deliveries that were not the next of their publisher.
        generator_busy: share of one core this process used; at most about 1.
    """

    seconds: float
    published: int
    acknowledged: int
    refused: dict[str, int]
    acknowledgements_per_second: float
    acknowledgement_ms: Quantiles
    delivered: int
    deliveries_per_second: float
    latency_ms: Quantiles
    missing: int
    out_of_order: int
    generator_busy: float

    @property
    def generator_was_the_limit(self) -> bool:
        """Whether a faster generator would have shown more."""
        return self.generator_busy > LIMIT

    @property
    def flawless(self) -> bool:
        """Whether everything was taken and came, once and in order."""
        return not (self.refused or self.missing or self.out_of_order)


def quantiles(seconds: Sequence[float]) -> Quantiles:
    """Of times in seconds; zeros where there are none."""
    ordered = sorted(seconds)
    if not ordered:
        return Quantiles(0.0, 0.0)
    return Quantiles(*(round(ordered[int(share * (len(ordered) - 1))] * 1000, 3) for share in (0.5, 0.99)))


class _Content(msgspec.Struct, frozen=True):
    """What a message holds: who made it, its number, when it was handed to the client, and filling."""

    p: int
    n: int
    t: int
    x: str = ""


class _Publisher:
    """One client that keeps a window of messages unacknowledged."""

    def __init__(self, number: int, load: Load, client: StreamrClient) -> None:
        self._number = number
        self._load = load
        self._client = client
        signer = None if load.private_key is None else Signer(load.private_key)
        self._chain = Chain(load.stream, 0, signer=signer)
        self._room = asyncio.Semaphore(load.window)
        self.published = 0
        self.stored = 0
        self.times: list[float] = []
        self.refused: Counter[str] = Counter()

    async def run(self, until: float) -> None:
        """Publish until the time is over, and wait for the last answer."""
        while time.perf_counter() < until:
            await self._room.acquire()
            sent = time.perf_counter_ns()
            answer = await self._client.send_raw(self._chain.make(self._content(sent), now_ms()))
            answer.add_done_callback(partial(self._on_answer, sent))
            self.published += 1
        for _ in range(self._load.window):
            await self._room.acquire()

    def _content(self, sent: int) -> str:
        short = msgspec.json.encode(_Content(self._number, self.published, sent))
        filling = "a" * max(0, self._load.size - len(short))
        return short[:-2].decode() + filling + '"}'

    def _on_answer(self, sent: int, answer: asyncio.Future[str]) -> None:
        self._room.release()
        error = answer.exception()
        if isinstance(error, Refused):
            self.refused[error.code] += 1
        elif error is None:
            self.stored += 1
            self.times.append((time.perf_counter_ns() - sent) / 1e9)


class _Subscriber:
    """One client that counts what comes, publisher by publisher."""

    def __init__(self, load: Load, client: StreamrClient) -> None:
        self._load = load
        self._client = client
        self._next: Counter[int] = Counter()
        self._came = asyncio.Event()
        self.delivered = 0
        self.out_of_order = 0
        self.times: list[float] = []
        self._read = msgspec.json.Decoder(_Content).decode

    async def subscribe(self) -> None:
        """Wait for the node's yes."""
        await self._client.open_subscription(self._load.stream)

    async def run(self) -> None:
        """Count until cancelled."""
        async for received in self._client.subscribe(self._load.stream):
            self._on_message(received)

    def _on_message(self, received: Received) -> None:
        content = self._read(received.message.content)
        self.times.append((time.perf_counter_ns() - content.t) / 1e9)
        self.delivered += 1
        if content.n != self._next[content.p]:
            self.out_of_order += 1
        self._next[content.p] = content.n + 1
        self._came.set()

    async def has(self, count: int) -> None:
        """Wait until so many came, or nothing came for a while."""
        while self.delivered < count:
            self._came.clear()
            try:
                await asyncio.wait_for(self._came.wait(), PATIENCE_SECONDS)
            except TimeoutError:
                return


async def run(load: Load) -> Measured:
    """Put the load on the node.

    Raises:
        Refused: the node refused a subscription.
        ConnectionEnded: the node cannot be reached, or ended a connection for good.
    """
    async with AsyncExitStack() as stack:

        async def connect(private_key: bytes | None = None) -> StreamrClient:
            client = StreamrClient(load.url, private_key=private_key, verify=False, attempts=2, cafile=load.cafile)
            return await stack.enter_async_context(client)

        subscribers = [_Subscriber(load, await connect()) for _ in range(load.subscribers)]
        publishers = [_Publisher(number, load, await connect(load.private_key)) for number in range(load.publishers)]
        for subscriber in subscribers:
            await subscriber.subscribe()
        return await _measure(load, publishers, subscribers)


async def _measure(load: Load, publishers: Sequence[_Publisher], subscribers: Sequence[_Subscriber]) -> Measured:
    async with asyncio.TaskGroup() as counting:
        tasks = [counting.create_task(subscriber.run()) for subscriber in subscribers]
        started, cpu = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as publishing:
            for publisher in publishers:
                publishing.create_task(publisher.run(started + load.seconds))
        seconds, busy = time.perf_counter() - started, time.process_time() - cpu
        stored = sum(publisher.stored for publisher in publishers)
        for subscriber in subscribers:
            await subscriber.has(stored)
        until_delivered = time.perf_counter() - started
        for task in tasks:
            task.cancel()
    delivered = sum(subscriber.delivered for subscriber in subscribers)
    refused: Counter[str] = sum((publisher.refused for publisher in publishers), Counter())
    return Measured(
        seconds=round(seconds, 3),
        published=sum(publisher.published for publisher in publishers),
        acknowledged=stored,
        refused=dict(refused),
        acknowledgements_per_second=round(stored / seconds, 1),
        acknowledgement_ms=quantiles([each for publisher in publishers for each in publisher.times]),
        delivered=delivered,
        deliveries_per_second=round(delivered / until_delivered, 1),
        latency_ms=quantiles([each for subscriber in subscribers for each in subscriber.times]),
        missing=max(0, stored * len(subscribers) - delivered),
        out_of_order=sum(subscriber.out_of_order for subscriber in subscribers),
        generator_busy=round(busy / seconds, 3),
    )
