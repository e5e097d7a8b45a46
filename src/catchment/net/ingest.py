"""Group commit: judge what waits, commit what is judged, deliver what is committed, and begin again.

Each step takes everything that is there and the next begins when it ends; there is no timer (facts/performance.md: a
fixed one costs the narrow windows). Batches stay in order through all steps, so the order of one connection's
publishes is the order of the log. Signatures are checked on a pool, the log is written on one thread of its own, and
the event loop only hands batches on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from catchment import metrics
from catchment.core.broker import Broker, Publish, Status

log = logging.getLogger(__name__)

MAX_BATCH_BYTES: Final = 1024 * 1024
"""A commit takes no more than this, so that one batch never fills a subscriber's outbox at once."""

MAX_BATCH: Final = 4096
ENTRY_BYTES: Final = 500
"""What a waiting message costs beside its raw bytes."""

CHUNK: Final = 32
"""Signatures one task of the pool checks."""

Result = TypeVar("Result")


def now_us() -> int:
    """UTC microseconds."""
    return time.time_ns() // 1000


class Ingest:
    """Drives a broker: the only one who calls its steps."""

    def __init__(self, broker: Broker, *, threads: int, limit: int) -> None:
        """Make the threads.

        Args:
            broker: whose steps are driven.
            threads: how many check signatures.
            limit: bytes that may wait before `full` is true.
        """
        self.broker = broker
        self._loop = asyncio.get_running_loop()
        self._judges = ThreadPoolExecutor(threads, thread_name_prefix="judge")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="writer")
        self._threads = threads
        self.limit = limit
        self._waiting = Batch()
        self._judged: deque[Batch] = deque()
        self._bytes = 0
        self._judging = False
        self._committing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._roomy: list[Callable[[], None]] = []

    @property
    def full(self) -> bool:
        """Whether publishers should be made to wait."""
        return self._bytes > self.limit

    def when_roomy(self, call: Callable[[], None]) -> None:
        """Call back once, when half of the limit is free again."""
        self._roomy.append(call)

    def submit(self, publish: Publish) -> None:
        """Take a message on its way."""
        self._bytes += self._waiting.add(publish)
        if not self._judging:
            self._judging = True
            self._idle.clear()
            # Not at once: whatever else this turn of the loop reads joins the batch.
            self._loop.call_soon(self._judge)

    async def drained(self) -> None:
        """Wait until everything submitted is committed, delivered and answered."""
        await self._idle.wait()

    async def on_writer(self, call: Callable[[], Result]) -> Result:
        """Run something on the writer's thread, between two commits."""
        return await self._loop.run_in_executor(self._writer, call)

    def close(self) -> None:
        """End the threads; call after `drained`."""
        self._judges.shutdown(wait=True)
        self._writer.shutdown(wait=True)

    def _judge(self) -> None:
        batch, self._waiting = self._waiting.split()
        if not batch.signed:
            self.broker.judge(batch.publishes)
            self._on_judged(batch)
            return
        parts = [batch.publishes[start : start + CHUNK] for start in range(0, len(batch.publishes), CHUNK)]
        left = len(parts)

        def done(future: Future[None]) -> None:
            nonlocal left
            left -= 1
            if future.exception() is not None:
                log.error("checking signatures failed", exc_info=future.exception())
            if left == 0:
                self._on_judged(batch)

        for part in parts:
            future = self._judges.submit(self.broker.judge, part)
            future.add_done_callback(partial(self._call_back, done))

    def _call_back(self, call: Callable[[Future[None]], None], future: Future[None]) -> None:
        self._loop.call_soon_threadsafe(call, future)

    def _on_judged(self, batch: Batch) -> None:
        self._judged.append(batch)
        if self._waiting.publishes:
            self._loop.call_soon(self._judge)
        else:
            self._judging = False
        if not self._committing:
            self._commit()

    def _commit(self) -> None:
        if not self._judged and not self.broker.has_notes:
            self._committing = False
            self._rest()
            return
        self._committing = True
        batch = self._judged.popleft() if self._judged else Batch()
        while self._judged and batch.takes(self._judged[0]):
            batch.join(self._judged.popleft())
        if batch.gated:
            batch.publishes = self.broker.admit(batch.publishes, now_us())
        future = self._writer.submit(self._timed_commit, batch.publishes)
        future.add_done_callback(partial(self._call_back, partial(self._on_committed, batch)))

    def _timed_commit(self, publishes: Sequence[Publish]) -> None:
        started = time.perf_counter()
        self.broker.commit(publishes, now_us())
        metrics.COMMIT_SECONDS.observe(time.perf_counter() - started)
        metrics.COMMIT_ENTRIES.observe(len(publishes))

    def _on_committed(self, batch: Batch, future: Future[None]) -> None:
        error = future.exception()
        if error is not None:
            log.error("a commit failed", exc_info=error)
            self.broker.failing = f"{type(error).__name__} while writing the log"
            for publish in batch.publishes:
                publish.status = Status.FAILED
        if batch.gated:
            self.broker.settle()
        # The next commit runs while this one is delivered.
        self._commit()
        try:
            self.broker.deliver(batch.publishes)
        except Exception:
            log.exception("delivering a batch failed; it is committed, and resends have it")
        self._bytes -= batch.size
        if self._roomy and self._bytes * 2 <= self.limit:
            waiting, self._roomy = self._roomy, []
            for call in waiting:
                self._loop.call_soon(call)
        self._rest()

    def _rest(self) -> None:
        if not (self._committing or self._judging or self._bytes):
            self._idle.set()


class Batch:
    """Messages that go through the steps together."""

    __slots__ = ("gated", "publishes", "signed", "size")

    def __init__(self) -> None:
        self.publishes: list[Publish] = []
        self.size = 0
        self.signed = False
        """Whether any of them has a signature to check."""
        self.gated = False
        """Whether any of them has to pass a gate."""

    def add(self, publish: Publish) -> int:
        """Take one in and return its size."""
        size = len(publish.entry.raw) + ENTRY_BYTES
        self.publishes.append(publish)
        self.size += size
        if publish.check is not None:
            self.signed = True
        if publish.gate is not None:
            self.gated = True
        return size

    def takes(self, other: Batch) -> bool:
        """Whether another may join without making one commit too large."""
        fits = self.size + other.size <= MAX_BATCH_BYTES
        return fits and len(self.publishes) + len(other.publishes) <= MAX_BATCH

    def join(self, other: Batch) -> None:
        """Take another in, behind what is here."""
        self.publishes += other.publishes
        self.size += other.size
        self.gated |= other.gated

    def split(self) -> tuple[Batch, Batch]:
        """The head that may be committed at once, and the rest."""
        if self.size <= MAX_BATCH_BYTES and len(self.publishes) <= MAX_BATCH:
            return self, Batch()
        head, rest = Batch(), Batch()
        for publish in self.publishes:
            full = head.size >= MAX_BATCH_BYTES or len(head.publishes) >= MAX_BATCH
            (rest if full else head).add(publish)
        return head, rest
