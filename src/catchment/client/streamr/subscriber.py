"""A subscription: history, then what is new, in the order of its chains, decrypted, each message once.

Whatever interrupts it (a broken connection, a reader that is too slow), it goes on from what was delivered last: the
node has everything, and the ordering drops what was seen. What is new waits meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from catchment import model
from catchment.client.streamr.decryption import Decryption, Opener
from catchment.client.streamr.reader import Reader
from catchment.client.streamr.replay import Question, replay
from catchment.client.streamr.values import (
    Arrived,
    ConnectionEnded,
    From,
    Happening,
    History,
    Last,
    Range,
    Received,
    Refused,
    ResendFailed,
    Undecryptable,
    now_ms,
)
from catchment.core.ordering import AskGap, ChainKey, Deliver, Event, GapOpen, Ordering, Patience, Placed
from catchment.errors import CatchmentError, OurFault

log = logging.getLogger(__name__)

HIGH: Final = 10_000
"""Messages that may wait for whoever iterates; what is new beyond that is read again later, from the history."""
LOW: Final = 1000
MARGIN_MS: Final = 5000
"""How far before an interruption to look for publishers that were not known before it: clocks differ."""
MAX_PUBLISHERS: Final = 64
"""Publishers whose history is read one by one after an interruption; with more it is read for all at once."""

Judge = Callable[[Arrived], Awaitable[Received | None]]


def question_of(topic: model.Topic, history: History) -> Question:
    """The resend that reads a history."""
    match history:
        case Last():
            return Question(topic, last=history.count)
        case From():
            start = model.Ref(history.timestamp, history.sequence)
            return Question(topic, start=start, publisher=history.publisher)
        case _:
            end = model.Ref(history.end, model.MAX_SAFE_INTEGER)
            return Question(topic, start=model.Ref(history.start, 0), end=end)


class Subscription:
    """One reader of a stream-partition. Iterate it, or take `next`; `close` ends it."""

    def __init__(
        self,
        reader: Reader,
        topic: model.Topic,
        *,
        judge: Judge,
        opener: Opener,
        resend: History | None,
        events: bool,
        patience: Patience,
        key_timeout: float,
        max_waiting: int,
        high: int = HIGH,
        on_closed: Callable[[Subscription], None] = lambda _: None,
    ) -> None:
        self.topic = topic
        self._on_closed = on_closed
        self.forced_resends = 0
        """How often it had to read from the history because it was interrupted or too slow."""
        self._reader = reader
        self._judge = judge
        self._opener = opener
        self._resend = resend
        self._events = events
        self._high = high
        self._low = min(LOW, high // 2)
        self._ordering: Ordering[Received] = Ordering(patience)
        self._decryption = Decryption(opener, emit=self._emit, max_waiting=max_waiting, timeout=key_timeout)
        self._inbox: deque[Arrived] = deque()
        self._out: deque[Happening | CatchmentError | None] = deque()
        self._ready = asyncio.Event()
        self._wake = asyncio.Event()
        self._space = asyncio.Event()
        self._behind: int | None = None
        """From which time on the history is to be read before anything new."""
        self._was_lost = False
        self._lost_at = 0
        self._started_at = 0
        self._newest = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._filling: set[ChainKey] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due = float("inf")
        self._closed = False

    async def start(self) -> None:
        """Subscribe; returns when the node has said yes.

        Raises:
            Refused: the node refused the subscription.
            ConnectionEnded: the node cannot be reached.
        """
        self._loop = asyncio.get_running_loop()
        await self._reader.attach(self.topic, self)
        self._started_at = now_ms()
        if self._opener.exchange is not None:
            self._opener.exchange.listen(self.topic.name, self._key_came)
        self._spawn(self._work())

    async def close(self) -> None:
        """Unsubscribe and end; whoever iterates comes to the end."""
        if self._closed:
            return
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        if self._opener.exchange is not None:
            self._opener.exchange.unlisten(self.topic.name, self._key_came)
        self._on_closed(self)
        self._put(None)
        self._reader.detach(self.topic, self)

    def __aiter__(self) -> AsyncIterator[Happening]:
        return self

    async def __anext__(self) -> Happening:
        found = await self.next()
        if found is None:
            raise StopAsyncIteration
        return found

    async def next(self) -> Happening | None:
        """The next message (or event, if they were asked for); None at the end.

        Raises:
            CatchmentError: the subscription cannot go on.
        """
        while not self._out:
            self._ready.clear()
            await self._ready.wait()
        item = self._out.popleft()
        if len(self._out) <= self._low:
            self._space.set()
            self._wake.set()
        if isinstance(item, CatchmentError):
            self._out.append(None)
            raise item
        return item

    # What the reader calls.

    def live(self, arrived: Arrived) -> None:
        """A broadcast: taken, or, when too much waits, left for the history."""
        # After an interruption nothing new is taken before the history was read: of a publisher not known before, the
        # first message taken is where its chain begins.
        if self._behind is None and not self._lost_at and len(self._inbox) + len(self._out) < self._high:
            self._inbox.append(arrived)
        else:
            self._fall_behind(arrived.message.msg_id.timestamp)
        self._wake.set()

    def lost(self) -> None:
        """The connection broke."""
        self._lost_at = self._lost_at or now_ms()

    def resumed(self) -> None:
        """The wire subscription is there again: what was missed is in the history."""
        lost_at, self._lost_at = self._lost_at, 0
        if self._started_at and lost_at:
            since = min(lost_at, self._newest or lost_at) - MARGIN_MS
            self._was_lost = True
            self._fall_behind(since if self._resend is not None else max(since, self._started_at))
            self._wake.set()

    def failed(self, error: CatchmentError) -> None:
        """There will be no more."""
        self._put(error)

    # The work.

    def _fall_behind(self, since: int) -> None:
        self._behind = max(0, since if self._behind is None else min(since, self._behind))

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        try:
            if self._resend is not None:
                await self._read(question_of(self.topic, self._resend))
                if isinstance(self._resend, Range):
                    self._ordering.restart()  # what lies between the range and now is no gap
            while True:
                self._wake.clear()
                while self._inbox:
                    await self._take(self._inbox.popleft())
                self._space.set()
                if self._behind is not None and not self._lost_at and len(self._out) <= self._low:
                    await self._catch_up()
                elif not self._inbox:
                    await self._wake.wait()
        except CatchmentError as error:
            self.failed(error)
        except Exception:
            log.exception("a subscription to %r broke", self.topic)
            self.failed(OurFault("The subscription broke because of a fault of the client; see the log."))

    async def _catch_up(self) -> None:
        """Read what was missed: of publishers that were quiet since before, each from its own last message."""
        since, self._behind = self._behind or 0, None
        questions: list[Question] = []
        if self._was_lost:
            self._was_lost = False
            quiet: dict[str, model.Ref] = {}
            for key, ref in self._ordering.positions().items():
                if ref.timestamp < since:
                    quiet[key.publisher] = min(ref, quiet.get(key.publisher, ref))
            if len(quiet) > MAX_PUBLISHERS:
                since = min(since, *(ref.timestamp for ref in quiet.values()))
            else:
                questions += [Question(self.topic, start=ref, publisher=name) for name, ref in quiet.items() if name]
                since = min([since, *(ref.timestamp for name, ref in quiet.items() if not name)])
        questions.append(Question(self.topic, start=model.Ref(since, 0)))
        self.forced_resends += 1
        for question in questions:
            await self._read(question)

    async def _read(self, question: Question) -> None:
        """Take a history; that the node cannot give it does not end a subscription."""
        try:
            async with contextlib.aclosing(replay(self._reader, question)) as messages:
                async for arrived in messages:
                    await self._take(arrived)
        except Refused as refused:
            self._emit(ResendFailed(str(refused), refused.code))

    async def _take(self, arrived: Arrived) -> None:
        await self._room(0)
        received = await self._judge(arrived)
        if received is None:
            return
        msg_id, prev = arrived.message.msg_id, arrived.message.prev_msg_ref
        placed = Placed(
            ChainKey(msg_id.publisher_id, msg_id.msg_chain_id),
            received.ref,
            None if prev is None else model.Ref(prev.timestamp, prev.sequence_number),
            received,
        )
        self._handle(self._ordering.add(placed, self._now_ms()))

    async def _room(self, waiting: int) -> None:
        """Wait until whoever iterates has taken enough."""
        while len(self._out) + waiting >= self._high:
            self._space.clear()
            await self._space.wait()

    def _handle(self, events: list[Event[Received]]) -> None:
        for event in events:
            match event:
                case Deliver():
                    received = event.placed.item
                    self._newest = max(self._newest, received.ref.timestamp)
                    self._decryption.add(received, self._loop.time())
                case AskGap():
                    self._ask(event)
                case GapOpen():
                    self._emit(event)
        self._set_timer()

    def _ask(self, gap: AskGap) -> None:
        if gap.key not in self._filling:
            self._filling.add(gap.key)
            self._spawn(self._fill(gap))

    async def _fill(self, gap: AskGap) -> None:
        """Ask for what is missing; what comes goes the way of everything new."""
        question = Question(self.topic, None, gap.start, gap.end, *gap.key)
        try:
            async with contextlib.aclosing(replay(self._reader, question)) as messages:
                async for arrived in messages:
                    await self._room(len(self._inbox))
                    self._inbox.append(arrived)
                    self._wake.set()
        except Refused as refused:
            self._emit(ResendFailed(str(refused), refused.code))
        except ConnectionEnded:
            log.info("a gap of %r was not asked for: the connection is gone", self.topic)
        finally:
            self._filling.discard(gap.key)

    def _key_came(self, publisher: str) -> None:
        self._decryption.retry(publisher)
        self._set_timer()

    # Time.

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _set_timer(self) -> None:
        wake = self._ordering.next_wake
        deadline = self._decryption.next_deadline
        due = min(
            float("inf") if wake is None else wake / 1000 + 0.001,
            float("inf") if deadline is None else deadline,
        )
        if due == self._due:
            return
        self._due = due
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due == float("inf") or self._closed else self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer, self._due = None, float("inf")
        self._decryption.expire(self._loop.time())
        self._handle(self._ordering.wake(self._now_ms()))

    # The way out.

    def _emit(self, happening: Happening) -> None:
        if isinstance(happening, Received) or self._events:
            self._put(happening)
            return
        match happening:
            case GapOpen():
                log.warning(
                    "messages of %r from %s are missing, %s to %s: %s",
                    *(self.topic, happening.key, happening.start, happening.end, happening.why.value),
                )
            case Undecryptable():
                log.warning("a message of %r cannot be read: %s", self.topic, happening.reason)
            case ResendFailed():
                log.warning("history of %r cannot be had: %s", self.topic, happening.reason)

    def _put(self, item: Happening | CatchmentError | None) -> None:
        self._out.append(item)
        self._ready.set()
