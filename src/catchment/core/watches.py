"""Who waits for which records: live subscriptions, found by the record and not tried one by one.

Each watch hangs at the terms of one element of its filter, the most telling it has. A record has few terms, so it meets
only watches that have something to do with it; those are held against the whole filter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from catchment.core.mosaic_search import author_term, kind_term, signer_term, tag_term
from catchment.wire.mosaic import timestamp
from catchment.wire.mosaic.filter import Filter
from catchment.wire.mosaic.record import Record


class Watch:
    """One filter somebody keeps open.

    Attributes:
        question: which records.
        asker: the key of who asks; None for nobody in particular.
        since: the offset from which on records are news.
        take: is given each record.
    """

    __slots__ = ("asker", "question", "since", "take")

    def __init__(self, question: Filter, *, asker: bytes | None, since: int, take: Callable[[bytes], None]) -> None:
        self.question = question
        self.asker = asker
        self.since = since
        self.take = take


class Watches:
    """All watches of a node. Belongs to the event loop."""

    def __init__(self) -> None:
        self._hooks: dict[bytes, dict[Watch, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, watch: Watch) -> None:
        """Give it what comes from now on."""
        for hook in _hooks_of(watch.question):
            self._hooks.setdefault(hook, {})[watch] = None
        self._count += 1

    def remove(self, watch: Watch) -> None:
        """Give it nothing more."""
        for hook in _hooks_of(watch.question):
            waiting = self._hooks.get(hook)
            if waiting is not None and watch in waiting:
                del waiting[watch]
                if not waiting:
                    del self._hooks[hook]
        self._count -= 1

    def deliver(self, record: Record, *, offset: int | None, received_at: int) -> int:
        """Give a record to everyone who waits for it and may read it.

        Args:
            record: the record.
            offset: where it stands in the log; None when it is in no log.
            received_at: when it came, in UTC microseconds.

        Returns:
            How many have got it.
        """
        met: dict[Watch, None] = {}
        for hook in _hooks_met(record):
            waiting = self._hooks.get(hook)
            if waiting:
                met.update(waiting)
        if not met:
            return 0
        received = timestamp.from_microseconds(received_at)
        count = 0
        for watch in met:
            if (
                (offset is None or offset >= watch.since)
                and watch.question.matches(record, received)
                and record.readable_by(watch.asker)
            ):
                watch.take(record.raw)
                count += 1
        return count


def _time_hook(time: int) -> bytes:
    return b"\7" + timestamp.encode(time)


def _hooks_of(question: Filter) -> Iterable[bytes]:
    """Where a watch hangs: every record it is about has one of these."""
    if question.timestamps is not None:
        return map(_time_hook, question.timestamps)
    if question.authors is not None:
        return map(author_term, question.authors)
    if question.signing_keys is not None:
        return map(signer_term, question.signing_keys)
    if question.included_tags:
        return map(tag_term, question.included_tags[0])
    return map(kind_term, question.kinds or ())


def _hooks_met(record: Record) -> Iterable[bytes]:
    yield author_term(record.author)
    yield signer_term(record.signer)
    yield kind_term(record.kind)
    yield _time_hook(record.timestamp)
    for tag in record.tags:
        yield tag_term(tag)
