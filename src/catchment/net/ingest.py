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
from catchment.core.broker import Broker, Status, Submission

log = logging.getLogger(__name__)

MAX_BATCH_BYTES: Final = 1024 * 1024
"""A commit takes no more than this, so that one batch never fills a subscriber's outbox at once."""

MAX_BATCH: Final = 4096
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
        self._limit = limit
        self._waiting: deque[Submission] = deque()
        self._judged: deque[Submission] = deque()
        self._bytes = 0
        self._judging = False
        self._committing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._roomy: list[Callable[[], None]] = []

    @property
    def full(self) -> bool:
        """Whether publishers should be made to wait."""
        return self._bytes > self._limit

    def when_roomy(self, call: Callable[[], None]) -> None:
        """Call back once, when half of the limit is free again."""
        self._roomy.append(call)

    def submit(self, submission: Submission) -> None:
        """Take a message on its way."""
        self._waiting.append(submission)
        self._bytes += submission.publish.size
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
        batch = _take(self._waiting)
        signed = [submission for submission in batch if submission.publish.check is not None]
        if not signed:
            self.broker.judge(batch)
            self._on_judged(batch)
            return
        parts = [batch[start : start + CHUNK] for start in range(0, len(batch), CHUNK)]
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

    def _on_judged(self, batch: Sequence[Submission]) -> None:
        self._judged.extend(batch)
        if self._waiting:
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
        batch = _take(self._judged)
        future = self._writer.submit(self._timed_commit, batch)
        future.add_done_callback(partial(self._call_back, partial(self._on_committed, batch)))

    def _timed_commit(self, batch: Sequence[Submission]) -> None:
        started = time.perf_counter()
        self.broker.commit(batch, now_us())
        metrics.COMMIT_SECONDS.observe(time.perf_counter() - started)
        metrics.COMMIT_ENTRIES.observe(len(batch))

    def _on_committed(self, batch: Sequence[Submission], future: Future[None]) -> None:
        error = future.exception()
        if error is not None:
            log.error("a commit failed", exc_info=error)
            self.broker.failing = f"{type(error).__name__} while writing the log"
            for submission in batch:
                submission.status = Status.FAILED
        # The next commit runs while this one is delivered.
        self._commit()
        self.broker.deliver(batch)
        self._bytes -= sum(submission.publish.size for submission in batch)
        if self._roomy and self._bytes * 2 <= self._limit:
            waiting, self._roomy = self._roomy, []
            for call in waiting:
                call()
        self._rest()

    def _rest(self) -> None:
        if not (self._committing or self._judging or self._bytes):
            self._idle.set()


def _take(queue: deque[Submission]) -> list[Submission]:
    """The head of a queue, up to one batch."""
    batch: list[Submission] = []
    size = 0
    while queue and size < MAX_BATCH_BYTES and len(batch) < MAX_BATCH:
        submission = queue.popleft()
        size += submission.publish.size
        batch.append(submission)
    return batch
