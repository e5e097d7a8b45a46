"""The way of a message: judged, committed, delivered.

The broker does each step when it is told to and keeps no thread or clock of its own: `net/ingest.py` runs `judge` on
a pool, `commit` on the writer's thread and `deliver` on the event loop, batch by batch and in order. What a publisher
is told, or a subscriber sees, is on disk: nothing leaves before `commit` has returned.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, Protocol, TypeAlias

import msgspec
from prometheus_client import Counter

from catchment import lake, metrics, model
from catchment.core.limits import NoteQuota
from catchment.core.subscriptions import Subscriptions
from catchment.errors import OurFault, PeerFault, StoreFull
from catchment.store.base import DUPLICATE, Place, Store

log = logging.getLogger(__name__)


SAME_TIME: Final = 1024
"""Places read at once when a message without a sequence looks for a free one."""

MAX_ENDS: Final = 4096
"""Moments whose last place is remembered, so that it is not walked to again from the first."""

FEW: Final = 16

_Counted: TypeAlias = "tuple[Status, model.Protocol, int, model.Verdict]"
_Moment: TypeAlias = "tuple[str, int, model.OrderKey]"
"""Topic, partition and key of what would stand first at a time, of a publisher and chain."""


class Status(IntEnum):
    """How far an attempt to publish came. Only what `judge` has accepted can be stored."""

    PENDING = 0
    STORED = 1
    DUPLICATE = 2
    REFUSED = 3
    FAILED = 4
    ACCEPTED = 5
    PASSED = 6
    """Judged good, and to be delivered without being kept."""
    UNHEARD = 7
    """Passed, and nobody was there to hear it."""


class Origin(Protocol):
    """Whoever published, as far as the broker cares."""

    @property
    def sender(self) -> str:
        """Under whose quota trouble is noted (an address)."""

    def published(self, request_id: str, status: Status, verdict: model.Verdict) -> None:
        """Be told how a publish ended."""

    def refused(self, request_id: str, fault: PeerFault) -> None:
        """Be told why a publish was refused, where a check or a gate said it in words of the protocol."""


class Nobody:
    """The origin of a message whose fate interests no one."""

    sender = ""

    def published(self, request_id: str, status: Status, verdict: model.Verdict) -> None:
        """Not be told."""

    def refused(self, request_id: str, fault: PeerFault) -> None:
        """Not be told."""


class Gate(Protocol):
    """Has the last word about messages whose protocol lets what came before decide.

    A batch is shown to its gates on the event loop, just before it is written and when the one before has been
    settled. So a gate decides upon exactly what the log holds, in the order of the log.
    """

    def admit(self, publish: Publish, now: int) -> Sequence[Publish] | None:
        """Take a judged message into the state, for as long as the commit succeeds.

        Returns:
            Messages that follow from it and are committed with it; None when the log has this one already.

        Raises:
            PeerFault: the state does not take it; nothing has changed.
        """

    def settle(self, *, stored: bool) -> None:
        """What was admitted since the last time is in the log, or nothing of it is and the state goes back."""


class Publish(msgspec.Struct, gc=False, eq=False):
    """A message a peer wants kept and delivered, on its way through the broker.

    Attributes:
        entry: what to keep if the check finds nothing wrong.
        check: does the costly part of judging, on any thread; None when nothing is signed.
        acknowledge: whether the peer wants to hear of success, too.
        origin: who is told; set by whoever submits it.
        status: how far it has come.
        renumber: for messages whose protocol gives them no sequence: given everything at the same time of the same
            publisher and chain in order (of an unsigned message only the last of it), the entry under a free identity,
            or None when the message is a repeat. Raises PeerFault when it can be given none.
        gate: asked just before the commit.
        subject: what the gate wants to know of it.
        fault: why it was refused, if a check or a gate said so.
        passes: what it becomes when its check finds nothing wrong.
        route: takes it to its receivers in place of the subscriptions of its topic, and says how many there were.
        offset: the place the log gave it.
        note_repeat: whether a repeat is trouble worth a note; where neighbours pass messages on it is how things are.
    """

    request_id: str
    entry: model.Entry
    check: Callable[[], model.Verdict] | None
    acknowledge: bool
    origin: Origin = Nobody()
    status: Status = Status.PENDING
    renumber: Callable[[Sequence[Place]], model.Entry | None] | None = None
    gate: Gate | None = None
    subject: object = None
    fault: PeerFault | None = None
    passes: Status = Status.ACCEPTED
    route: Callable[[Publish], int] | None = None
    offset: int = -1
    note_repeat: bool = True


class Broker:
    """Judges, keeps and delivers."""

    def __init__(self, store: Store, subscriptions: Subscriptions, quota: NoteQuota) -> None:
        self.store = store
        self.subscriptions = subscriptions
        self.failing: str | None = None
        """Why the last commit failed; None when it did not."""
        self.observe: Callable[[model.Topic, Sequence[model.Entry]], None] | None = None
        """Told what was committed, topic by topic."""
        self.forward: Callable[[Sequence[Publish]], None] | None = None
        """Told what was committed and from whom, to pass it on to other nodes."""
        self.quota = quota
        self._notes: list[model.Entry] = []
        self._admitted: list[Publish] = []
        self._ends: dict[_Moment, int] = {}
        """The last sequence of a moment that was walked through. Belongs to the writer's thread."""

    def judge(self, batch: Sequence[Publish]) -> None:
        """Check what is signed. May run on several threads, each with its own part of a batch.

        A check that breaks (our fault) fails its own publish and no other.
        """
        for publish in batch:
            check = publish.check
            if check is None:
                publish.status = publish.passes
                continue
            try:
                verdict = check()
            except PeerFault as fault:
                _refuse(publish, fault, model.Verdict.MALFORMED)
                continue
            except Exception:
                log.exception("a check broke; the message is not accepted")
                publish.status = Status.FAILED
                continue
            if verdict.accepted:
                publish.status = publish.passes
            else:
                publish.status = Status.REFUSED
                publish.entry = msgspec.structs.replace(publish.entry, kind=model.Kind.REFUSED, verdict=verdict)

    @property
    def has_notes(self) -> bool:
        """Whether notes wait for a commit."""
        return bool(self._notes)

    def admit(self, batch: Sequence[Publish], now: int) -> list[Publish]:
        """Show a judged batch to its gates. Runs on the event loop, after the last commit was settled.

        Returns:
            The batch with the messages that follow from it, each behind the one it follows from.
        """
        whole: list[Publish] = []
        for publish in batch:
            whole.append(publish)
            gate = publish.gate
            if gate is None or publish.status is not Status.ACCEPTED:
                continue
            try:
                following = gate.admit(publish, now)
            except PeerFault as fault:
                _refuse(publish, fault, model.Verdict.NOT_PERMITTED)
                continue
            except Exception:
                log.exception("a gate broke; the message is not accepted")
                publish.status = Status.FAILED
                continue
            if following is None:
                publish.status = Status.DUPLICATE
                continue
            self._admitted.append(publish)
            for each in following:
                each.status = Status.ACCEPTED
                whole.append(each)
        return whole

    def settle(self) -> None:
        """Tell the gates how the commit of what they admitted ended. Runs on the event loop."""
        admitted, self._admitted = self._admitted, []
        # A batch is kept whole or not at all.
        stored = not any(publish.status is Status.FAILED for publish in admitted)
        for gate in {id(publish.gate): publish.gate for publish in admitted}.values():
            assert gate is not None
            gate.settle(stored=stored)

    def commit(self, batch: Sequence[Publish], now: int) -> None:
        """Keep a judged batch, and the notes of trouble, in one durable transaction. Runs on the writer's thread.

        Afterwards each publish has its status. A full store fails the batch and nothing else.
        """
        entries, self._notes = self._notes, []
        notes = len(entries)
        accepted, stored = Status.ACCEPTED, Status.STORED
        kept = [publish for publish in batch if publish.status is accepted]
        entries.extend([publish.entry for publish in kept])
        if len(kept) < len(batch):
            for publish in batch:
                if publish.status is Status.REFUSED or publish.status is Status.DUPLICATE:
                    self._note(entries, publish, now)
                elif publish.status is Status.PENDING:
                    publish.status = Status.FAILED  # never judged
        if not entries:
            return  # nothing was written, so nothing new is known about the store
        try:
            offsets = self.store.append(entries)
        except OurFault as fault:
            # Notes of this commit are lost with it: they are a courtesy, the messages' publishers are told.
            self._failed(fault, kept)
            return
        self.failing = None
        taken: list[Publish] = []
        for publish, offset in zip(kept, offsets[notes : notes + len(kept)], strict=True):
            if offset != DUPLICATE:
                publish.status = stored
                publish.offset = offset
            elif publish.renumber is None:
                publish.status = Status.DUPLICATE
                self._note(self._notes, publish, now)
            else:
                taken.append(publish)
        if taken:
            self._renumber(taken, now)

    def _renumber(self, taken: Sequence[Publish], now: int) -> None:
        """Keep what found its identity taken under another one, unless it is a repeat after all."""
        found: dict[tuple[_Moment, bool], list[Place]] = {}
        moved: list[Publish] = []
        for publish in taken:
            entry = publish.entry
            # Only what is signed is compared with all that is there; else the end is enough.
            whole = entry.verdict is not model.Verdict.UNSIGNED
            moment = (entry.topic, entry.partition, entry.order_key._replace(sequence=0))
            places = found.get((moment, whole))
            if places is None:
                places = self._at_the_same_time(entry) if whole else self._last_of(moment, entry)
                found[moment, whole] = places
            assert publish.renumber is not None
            try:
                renumbered = publish.renumber(places if whole else places[-1:])
            except PeerFault as fault:
                _refuse(publish, fault, model.Verdict.MALFORMED)
                self._note(self._notes, publish, now)
                continue
            if renumbered is None:
                publish.status = Status.DUPLICATE
                self._note(self._notes, publish, now)
                continue
            publish.entry = renumbered
            moved.append(publish)
            # The next of this batch must not take the same place, nor be stored beside its own copy.
            places.append(Place(renumbered.order_key, DUPLICATE, model.Row(DUPLICATE, 0, renumbered)))
            self._remember_end(moment, renumbered.sequence)
        try:
            offsets = self.store.append([publish.entry for publish in moved]) if moved else []
        except OurFault as fault:
            self._failed(fault, moved)
            return
        for publish, offset in zip(moved, offsets, strict=True):
            publish.status = Status.FAILED if offset == DUPLICATE else Status.STORED
            publish.offset = offset

    def _remember_end(self, moment: _Moment, sequence: int) -> None:
        # One that turns out not to be stored does no harm: a place is only looked for behind it.
        self._ends[moment] = sequence
        if len(self._ends) > MAX_ENDS:
            del self._ends[next(iter(self._ends))]

    def _at_the_same_time(self, entry: model.Entry) -> list[Place]:
        """All that stands at an entry's time; of very much only a part, which is too much for whoever compares."""
        question = _moment_of(entry)
        places, after = self.store.walk(question, limit=SAME_TIME)
        while after is not None and len(places) < SAME_TIME:
            more, after = self.store.walk(question, after=after, limit=SAME_TIME)
            places += more
        return places

    def _last_of(self, moment: _Moment, entry: model.Entry) -> list[Place]:
        """The last place at an entry's time, looked for behind the one that was the last before."""
        question = _moment_of(entry, self._ends.pop(moment, 0))
        last: list[Place] = []
        after: model.OrderKey | None = None
        while True:
            places, after = self.store.walk(question, after=after, limit=SAME_TIME)
            last = places[-1:] or last
            if after is None:
                return last or self._at_the_same_time(entry)

    def at(self, topic: model.Topic, timestamp: int) -> Sequence[Place]:
        """What the log holds in a topic at a time; a page of it where that is much. May run on any thread."""
        return self.store.walk(_moment(topic, timestamp), limit=FEW)[0]

    def _failed(self, fault: OurFault, kept: Sequence[Publish]) -> None:
        self.failing = str(fault)
        metrics.STORE_FAILURES.labels("full" if isinstance(fault, StoreFull) else "other").inc()
        for publish in kept:
            publish.status = Status.FAILED

    def _note(self, notes: list[model.Entry], publish: Publish, now: int) -> None:
        """Note a refusal (with its bytes) or a repeat (its id only), within the sender's quota."""
        entry = publish.entry
        if publish.status is Status.DUPLICATE:
            if not publish.note_repeat:
                return
            entry = msgspec.structs.replace(entry, kind=model.Kind.DUPLICATE, raw=b"")
        elif entry.kind is not model.Kind.REFUSED:
            # Of another kind it would be indexed and served, whatever its verdict.
            entry = msgspec.structs.replace(entry, kind=model.Kind.REFUSED)
        if self.quota.allows(publish.origin.sender, entry.size, now):
            notes.append(entry)
        else:
            metrics.UNNOTED.inc()

    def deliver(self, batch: Sequence[Publish]) -> None:
        """Hand a committed batch to its subscribers and answer its publishers. Runs on the event loop.

        Each form is encoded and joined once per topic, and the same bytes go to everyone who takes that form.
        """
        topics: dict[tuple[str, int, model.Protocol], list[model.Entry]] = {}
        # Messages that ended alike, found run by run: most batches are one.
        runs: dict[_Counted, list[Publish]] = {}
        run: list[Publish] = []
        last: _Counted | None = None
        told: list[Publish] = []
        routed: list[Publish] = []
        stored, passed = Status.STORED, Status.PASSED
        for publish in batch:
            entry, status = publish.entry, publish.status
            ending = (status, entry.protocol, entry.version, entry.verdict)
            if ending != last:
                last = ending
                run = runs.setdefault(last, [])
            run.append(publish)
            if status is stored or status is passed:
                if publish.route is not None:
                    routed.append(publish)
                else:
                    topic = (entry.topic, entry.partition, entry.protocol)
                    waiting = topics.get(topic)
                    if waiting is None:
                        topics[topic] = [entry]
                    else:
                        waiting.append(entry)
                if not publish.acknowledge:
                    continue
            told.append(publish)
        for topic, entries in topics.items():
            self._deliver_topic(model.Topic(*topic), entries)
            if self.observe is not None:
                self.observe(model.Topic(*topic), entries)
        _take_routes(routed)
        if self.forward is not None:
            self.forward([publish for publish in batch if publish.status is stored])
        _answer(told)
        for counted, ended in runs.items():
            _counter(*counted).inc(len(ended))

    def _deliver_topic(self, topic: model.Topic, entries: Sequence[model.Entry]) -> None:
        # A sink that cannot keep up ends itself while it is written to, which takes it out of the subscriptions.
        for form, sinks in list(self.subscriptions.of(topic).items()):
            encode = form.encode
            try:
                data = b"".join([encode(entry) for entry in entries])
            except Exception:
                # Our fault; nobody else's messages and no answers depend on it.
                log.exception("messages could not be shown as %s; they are committed", form.name)
                continue
            receivers = list(sinks)
            for sink in receivers:
                sink.write(data)
            metrics.DELIVERIES.inc(len(receivers) * len(entries))


def _moment(topic: model.Topic, time: int, *, start: int = 0) -> model.Range:
    return model.Range(topic, model.Ref(time, start), model.Ref(time, model.MAX_SAFE_INTEGER))


def _moment_of(entry: model.Entry, start: int = 0) -> model.Range:
    topic = model.Topic(entry.topic, entry.partition, entry.protocol)
    question = _moment(topic, entry.timestamp, start=start)
    return msgspec.structs.replace(question, publisher=entry.publisher, chain=entry.chain)


def _refuse(publish: Publish, fault: PeerFault, verdict: model.Verdict) -> None:
    publish.status = Status.REFUSED
    publish.fault = fault
    publish.entry = msgspec.structs.replace(publish.entry, kind=model.Kind.REFUSED, verdict=verdict)


def _take_routes(routed: Sequence[Publish]) -> None:
    """Deliver what finds its receivers by itself."""
    for publish in routed:
        assert publish.route is not None
        heard = publish.route(publish)
        metrics.DELIVERIES.inc(heard)
        if not heard and publish.status is Status.PASSED:
            publish.status = Status.UNHEARD


def _answer(told: Sequence[Publish]) -> None:
    """Tell publishers how their messages ended."""
    for publish in told:
        if publish.fault is None:
            publish.origin.published(publish.request_id, publish.status, publish.entry.verdict)
        else:
            publish.origin.refused(publish.request_id, publish.fault)


@functools.cache
def _counter(status: Status, protocol: model.Protocol, version: int, verdict: model.Verdict) -> Counter:
    """What counts messages that ended like this; as many as there are versions and outcomes."""
    name = lake.protocol_name(protocol)
    if status is Status.STORED or status is Status.PASSED:
        return metrics.ACCEPTED.labels(name, str(version))
    if status is Status.DUPLICATE:
        return metrics.DUPLICATES.labels(name, str(version))
    reason = lake.verdict_name(verdict) if status is Status.REFUSED else "store"
    return metrics.REFUSED.labels(name, str(version), reason)
