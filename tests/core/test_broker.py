"""The way of a message through the broker, step by step, on a real store in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment import metrics, model
from catchment.core.broker import Broker, Publish, Status
from catchment.core.limits import NoteQuota
from catchment.core.subscriptions import Form, Subscriptions
from catchment.errors import OurFault, PeerFault, StoreCorrupt, StoreFull
from catchment.store.base import Place
from catchment.store.memory import MemoryStore

NOW = 1_700_000_000_000_000
RIVER = model.Topic("river", 0)
PLAIN = Form("plain", lambda entry: entry.raw + b"\n")
LOUD = Form("loud", lambda entry: entry.raw.upper() + b"\n")


class Recorder:
    """A peer: publishes, subscribes, and remembers what it was told and sent, in one order."""

    def __init__(self, sender: str = "192.0.2.1", log: list[object] | None = None) -> None:
        self.sender = sender
        self.log: list[object] = [] if log is None else log
        self.written: list[bytes] = []
        self.answers: list[tuple[str, Status, model.Verdict]] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)
        self.log.append(data)

    def published(self, request_id: str, status: Status, verdict: model.Verdict) -> None:
        self.answers.append((request_id, status, verdict))
        self.log.append((request_id, status))

    def refused(self, request_id: str, fault: PeerFault) -> None:
        self.log.append((request_id, fault.message))


class FailingStore(MemoryStore):
    """Fails appends while told to; like a full disk, it has room for nothing."""

    fault: OurFault | None = None

    def append(self, entries: Sequence[model.Entry]) -> list[int]:
        if self.fault is not None and entries:
            raise self.fault
        return super().append(entries)


def quota(notes: float = 1000, size: float = 1e6) -> NoteQuota:
    return NoteQuota(notes_per_second=0, notes_burst=notes, bytes_per_second=0, bytes_burst=size)


@pytest.fixture
def store() -> FailingStore:
    return FailingStore()


@pytest.fixture
def broker(store: FailingStore) -> Broker:
    return Broker(store, Subscriptions(), quota())


@pytest.fixture
def origin() -> Recorder:
    return Recorder()


def entry(timestamp: int = 1, *, raw: bytes | None = None, topic: str = "river", **changes: object) -> model.Entry:
    fields: dict[str, object] = {
        "kind": model.Kind.MESSAGE,
        "protocol": model.Protocol.STREAMR,
        "version": 32,
        "topic": topic,
        "partition": 0,
        "publisher": "0xab",
        "chain": "c",
        "timestamp": timestamp,
        "sequence": 0,
        "prev_timestamp": None,
        "prev_sequence": None,
        "event_time": timestamp * 1_000_000,
        "id": b"",
        "verdict": model.Verdict.OK,
        "received_at": NOW,
        "raw": b"message %d" % timestamp if raw is None else raw,
    }
    return model.Entry(**(fields | changes))  # type: ignore[arg-type]


def submission(
    origin: Recorder,
    made: model.Entry,
    verdict: model.Verdict | Callable[[], model.Verdict] | None = model.Verdict.OK,
    *,
    acknowledge: bool = True,
) -> Publish:
    """A publish of `made` whose check finds `verdict`; None: nothing to check."""
    check = (lambda: verdict) if isinstance(verdict, model.Verdict) else verdict
    return Publish(f"r{made.timestamp}", made, check, acknowledge, origin)


def run(broker: Broker, *batch: Publish, now: int = NOW) -> list[Status]:
    """One batch all the way."""
    broker.judge(batch)
    broker.commit(batch, now)
    broker.deliver(batch)
    return [each.status for each in batch]


def kinds(store: MemoryStore) -> list[tuple[model.Kind, int, bytes]]:
    return [(row.entry.kind, row.entry.timestamp, row.entry.raw) for row in store.read(0, 1000)]


def served(store: MemoryStore) -> list[int]:
    places, _ = store.walk(model.Range(RIVER), limit=1000)
    return [place.key.timestamp for place in places]


class TestTheWay:
    def test_stored_answered_delivered(self, broker: Broker, store: FailingStore, origin: Recorder) -> None:
        sink = Recorder()
        broker.subscriptions.add(RIVER, PLAIN, sink)
        assert run(broker, submission(origin, entry(1))) == [Status.STORED]
        assert origin.answers == [("r1", Status.STORED, model.Verdict.OK)]
        assert sink.written == [b"message 1\n"]
        assert kinds(store) == [(model.Kind.MESSAGE, 1, b"message 1")]

    def test_nothing_leaves_before_the_commit(self, broker: Broker, origin: Recorder) -> None:
        sink = Recorder()
        broker.subscriptions.add(RIVER, PLAIN, sink)
        batch = [submission(origin, entry(1)), submission(origin, entry(2), model.Verdict.BAD_SIGNATURE)]
        broker.judge(batch)
        assert (sink.log, origin.log) == ([], [])
        broker.commit(batch, NOW)
        assert (sink.log, origin.log) == ([], [])
        broker.deliver(batch)
        assert sink.log == [b"message 1\n"]
        assert len(origin.log) == 2

    def test_subscribers_hear_before_the_publisher_is_answered(self, broker: Broker) -> None:
        log: list[object] = []
        broker.subscriptions.add(RIVER, PLAIN, Recorder(log=log))
        run(broker, submission(Recorder(log=log), entry(1)))
        assert log == [b"message 1\n", ("r1", Status.STORED)]

    def test_unsigned_is_kept_as_unsigned(self, broker: Broker, store: FailingStore, origin: Recorder) -> None:
        made = entry(1, verdict=model.Verdict.UNSIGNED)
        assert run(broker, submission(origin, made, None)) == [Status.STORED]
        assert store.read(0, 9)[0].entry.verdict is model.Verdict.UNSIGNED

    def test_success_is_not_told_to_who_does_not_ask(self, broker: Broker, origin: Recorder) -> None:
        run(broker, submission(origin, entry(1), acknowledge=False))
        assert origin.answers == []
        run(broker, submission(origin, entry(2), model.Verdict.BAD_SIGNATURE, acknowledge=False))
        assert origin.answers == [("r2", Status.REFUSED, model.Verdict.BAD_SIGNATURE)]

    def test_parts_of_a_batch_on_many_threads(self, broker: Broker, origin: Recorder) -> None:
        verdicts = [model.Verdict.OK if number % 3 else model.Verdict.BAD_SIGNATURE for number in range(300)]
        batch = [submission(origin, entry(number), verdict) for number, verdict in enumerate(verdicts)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(broker.judge, [batch[start : start + 10] for start in range(0, 300, 10)]))
        broker.commit(batch, NOW)
        assert [each.status is Status.STORED for each in batch] == [verdict.accepted for verdict in verdicts]

    def test_what_was_never_judged_is_never_stored(self, broker: Broker, store: FailingStore, origin: Recorder) -> None:
        batch = [submission(origin, entry(1)), submission(origin, entry(2))]
        broker.judge(batch[:1])
        broker.commit(batch, NOW)
        assert [each.status for each in batch] == [Status.STORED, Status.FAILED]
        assert served(store) == [1]

    def test_a_check_that_breaks_fails_its_own_message(
        self, broker: Broker, store: FailingStore, origin: Recorder, caplog: pytest.LogCaptureFixture
    ) -> None:
        def breaks() -> model.Verdict:
            raise ZeroDivisionError("our fault")

        batch = [submission(origin, entry(1)), submission(origin, entry(2), breaks), submission(origin, entry(3))]
        assert run(broker, *batch) == [Status.STORED, Status.FAILED, Status.STORED]
        assert served(store) == [1, 3]
        assert [answer[1] for answer in origin.answers] == [Status.STORED, Status.FAILED, Status.STORED]
        assert "ZeroDivisionError" in caplog.text

    def test_an_empty_batch(self, broker: Broker, store: FailingStore) -> None:
        assert run(broker) == []
        assert store.next_offset == 0


class TestTrouble:
    def test_refused_is_noted_with_its_bytes_and_never_served(
        self, broker: Broker, store: FailingStore, origin: Recorder
    ) -> None:
        sink = Recorder()
        broker.subscriptions.add(RIVER, PLAIN, sink)
        assert run(broker, submission(origin, entry(1), model.Verdict.BAD_SIGNATURE)) == [Status.REFUSED]
        assert origin.answers == [("r1", Status.REFUSED, model.Verdict.BAD_SIGNATURE)]
        assert kinds(store) == [(model.Kind.REFUSED, 1, b"message 1")]
        assert store.read(0, 1)[0].entry.verdict is model.Verdict.BAD_SIGNATURE
        assert served(store) == []
        assert sink.written == []

    @pytest.mark.parametrize("verdict", [verdict for verdict in model.Verdict if not verdict.accepted])
    def test_every_refusal_is_of_the_kind_refused(
        self, broker: Broker, store: FailingStore, origin: Recorder, verdict: model.Verdict
    ) -> None:
        run(broker, submission(origin, entry(1), verdict))
        assert [(row.entry.kind, row.entry.verdict) for row in store.read(0, 9)] == [(model.Kind.REFUSED, verdict)]

    def test_a_refused_message_does_not_take_the_place_of_the_true_one(
        self, broker: Broker, store: FailingStore, origin: Recorder
    ) -> None:
        forged = submission(origin, entry(1, raw=b"forged"), model.Verdict.BAD_SIGNATURE)
        assert run(broker, forged, submission(origin, entry(1, raw=b"true"))) == [Status.REFUSED, Status.STORED]
        assert served(store) == [1]
        assert (model.Kind.MESSAGE, 1, b"true") in kinds(store)

    def test_a_repeat_is_noted_by_its_id_with_the_next_commit(
        self, broker: Broker, store: FailingStore, origin: Recorder
    ) -> None:
        sink = Recorder()
        broker.subscriptions.add(RIVER, PLAIN, sink)
        run(broker, submission(origin, entry(1)))
        assert not broker.has_notes
        assert run(broker, submission(origin, entry(1))) == [Status.DUPLICATE]
        assert broker.has_notes
        assert store.next_offset == 1
        assert run(broker) == []
        assert not broker.has_notes
        assert kinds(store) == [(model.Kind.MESSAGE, 1, b"message 1"), (model.Kind.DUPLICATE, 1, b"")]
        assert sink.written == [b"message 1\n"]
        assert [answer[1] for answer in origin.answers] == [Status.STORED, Status.DUPLICATE]

    def test_repeats_within_a_batch(self, broker: Broker, store: FailingStore, origin: Recorder) -> None:
        sink = Recorder()
        broker.subscriptions.add(RIVER, PLAIN, sink)
        batch = [submission(origin, entry(number)) for number in (1, 2, 1, 1)]
        assert run(broker, *batch) == [Status.STORED, Status.STORED, Status.DUPLICATE, Status.DUPLICATE]
        assert sink.written == [b"message 1\nmessage 2\n"]
        # The notes come first in the next commit, and the answers still belong to the right messages.
        batch = [submission(origin, entry(number)) for number in (2, 3)]
        assert run(broker, *batch) == [Status.DUPLICATE, Status.STORED]
        assert served(store) == [1, 2, 3]
        assert [kind for kind, _, _ in kinds(store)].count(model.Kind.DUPLICATE) == 2

    def test_over_the_quota_is_answered_but_not_noted(self, store: FailingStore, origin: Recorder) -> None:
        broker = Broker(store, Subscriptions(), quota(notes=2))
        before = metrics.UNNOTED._value.get()
        bad = [submission(origin, entry(number), model.Verdict.BAD_SIGNATURE) for number in range(5)]
        assert run(broker, *bad) == [Status.REFUSED] * 5
        assert len(origin.answers) == 5
        assert store.next_offset == 2
        assert metrics.UNNOTED._value.get() == before + 3
        # Another sender has a quota of its own, and what is accepted needs none.
        other = Recorder("192.0.2.2")
        run(broker, submission(other, entry(7), model.Verdict.BAD_SIGNATURE), submission(origin, entry(8)))
        assert [timestamp for _, timestamp, _ in kinds(store)] == [0, 1, 8, 7]

    def test_the_quota_counts_bytes(self, store: FailingStore, origin: Recorder) -> None:
        names = entry(0, raw=b"").size  # they are kept in a note, too
        broker = Broker(store, Subscriptions(), quota(size=100 + 2 * names))
        sizes = (60, 60, 40)
        bad = [
            submission(origin, entry(number, raw=b"x" * size), model.Verdict.BAD_SIGNATURE)
            for number, size in enumerate(sizes)
        ]
        run(broker, *bad)
        assert [len(raw) for _, _, raw in kinds(store)] == [60, 40]

    def test_repeats_are_under_the_quota_too(self, store: FailingStore, origin: Recorder) -> None:
        broker = Broker(store, Subscriptions(), quota(notes=1))
        run(broker, *[submission(origin, entry(1)) for _ in range(4)])
        run(broker)
        assert [kind for kind, _, _ in kinds(store)] == [model.Kind.MESSAGE, model.Kind.DUPLICATE]


class TestStoreFailures:
    @pytest.mark.parametrize(("fault", "reason"), [(StoreFull("full"), "full"), (StoreCorrupt("bad"), "other")])
    def test_fails_what_was_accepted_and_nothing_else(
        self, broker: Broker, store: FailingStore, origin: Recorder, fault: OurFault, reason: str
    ) -> None:
        sink = Recorder()
        broker.subscriptions.add(RIVER, PLAIN, sink)
        counter = metrics.STORE_FAILURES.labels(reason)
        before = counter._value.get()
        store.fault = fault
        batch = [
            submission(origin, entry(1)),
            submission(origin, entry(2), model.Verdict.BAD_SIGNATURE),
            submission(origin, entry(3)),
        ]
        assert run(broker, *batch) == [Status.FAILED, Status.REFUSED, Status.FAILED]
        assert [answer[1] for answer in origin.answers] == [Status.FAILED, Status.REFUSED, Status.FAILED]
        assert broker.failing == str(fault)
        assert counter._value.get() == before + 1
        assert sink.written == []
        assert store.next_offset == 0

        store.fault = None
        again = [submission(origin, entry(number)) for number in (1, 3)]
        assert run(broker, *again) == [Status.STORED, Status.STORED]
        assert broker.failing is None
        assert sink.written == [b"message 1\nmessage 3\n"]

    def test_a_batch_that_writes_nothing_does_not_say_the_store_is_well(
        self, store: FailingStore, origin: Recorder
    ) -> None:
        broker = Broker(store, Subscriptions(), quota(notes=0))
        store.fault = StoreFull("full")
        run(broker, submission(origin, entry(1)))
        run(broker)
        run(broker, submission(origin, entry(2), model.Verdict.BAD_SIGNATURE))
        assert broker.failing == "full"

    def test_a_store_that_is_really_full(self, origin: Recorder) -> None:
        store = MemoryStore(max_bytes=2000)
        broker = Broker(store, Subscriptions(), quota())
        assert run(broker, submission(origin, entry(1))) == [Status.STORED]
        assert run(broker, submission(origin, entry(2, raw=b"x" * 5000))) == [Status.FAILED]
        assert run(broker, submission(origin, entry(3))) == [Status.STORED]
        assert served(store) == [1, 3]


class TestDelivery:
    def test_the_same_bytes_go_to_everyone_of_a_form(self, broker: Broker, origin: Recorder) -> None:
        plain, loud = [Recorder() for _ in range(3)], [Recorder() for _ in range(2)]
        for sink in plain:
            broker.subscriptions.add(RIVER, PLAIN, sink)
        for sink in loud:
            broker.subscriptions.add(RIVER, LOUD, sink)
        before = metrics.DELIVERIES._value.get()
        run(broker, *[submission(origin, entry(number)) for number in (1, 2)])
        assert {id(sink.written[0]) for sink in plain} == {id(plain[0].written[0])}
        assert {id(sink.written[0]) for sink in loud} == {id(loud[0].written[0])}
        assert plain[0].written == [b"message 1\nmessage 2\n"]
        assert loud[0].written == [b"MESSAGE 1\nMESSAGE 2\n"]
        assert metrics.DELIVERIES._value.get() == before + 10

    def test_each_message_is_encoded_once_per_form(self, broker: Broker, origin: Recorder) -> None:
        encoded: list[int] = []

        def encode(made: model.Entry) -> bytes:
            encoded.append(made.timestamp)
            return made.raw

        form = Form("counted", encode)
        for _ in range(5):
            broker.subscriptions.add(RIVER, form, Recorder())
        run(broker, *[submission(origin, entry(number)) for number in (1, 2, 3)])
        assert encoded == [1, 2, 3]

    def test_nobody_listens(self, broker: Broker, origin: Recorder) -> None:
        assert run(broker, submission(origin, entry(1))) == [Status.STORED]

    def test_only_the_topic_asked_for(self, broker: Broker, origin: Recorder) -> None:
        sink = Recorder()
        broker.subscriptions.add(model.Topic("river", 1), PLAIN, sink)
        broker.subscriptions.add(model.Topic("lake", 0), PLAIN, sink)
        run(
            broker,
            submission(origin, entry(1)),
            submission(origin, entry(2, topic="lake")),
            submission(origin, entry(3, partition=1)),
        )
        assert sorted(sink.written) == [b"message 2\n", b"message 3\n"]

    def test_order_within_a_topic_is_the_order_of_the_batch(self, broker: Broker, origin: Recorder) -> None:
        """Order of commit, not of timestamps (DESIGN.md, "Order, said once")."""
        sink = Recorder()
        broker.subscriptions.add(RIVER, PLAIN, sink)
        order = [5, 3, 9, 1]
        mixed = [each for number in order for each in (entry(number), entry(number, topic="lake"))]
        run(broker, *[submission(origin, each) for each in mixed])
        assert b"".join(sink.written) == b"".join(b"message %d\n" % number for number in order)
        assert [answer[0] for answer in origin.answers] == [f"r{each.timestamp}" for each in mixed]

    def test_a_sink_that_ends_while_it_is_written_to(self, broker: Broker, origin: Recorder) -> None:
        """The last of its form, so that the form goes, too; the others must not notice."""

        class Ending(Recorder):
            def write(self, data: bytes) -> None:
                super().write(data)
                broker.subscriptions.remove(RIVER, PLAIN, self)

        ending, staying = Ending(), Recorder()
        broker.subscriptions.add(RIVER, PLAIN, ending)
        broker.subscriptions.add(RIVER, LOUD, staying)
        assert run(broker, submission(origin, entry(1))) == [Status.STORED]
        run(broker, submission(origin, entry(2)))
        assert ending.written == [b"message 1\n"]
        assert staying.written == [b"MESSAGE 1\n", b"MESSAGE 2\n"]
        assert len(origin.answers) == 2

    def test_is_counted_by_outcome(self, broker: Broker, store: FailingStore, origin: Recorder) -> None:
        def counts() -> list[float]:
            return [
                metrics.ACCEPTED.labels("streamr", "32")._value.get(),
                metrics.DUPLICATES.labels("streamr", "32")._value.get(),
                metrics.REFUSED.labels("streamr", "32", "bad_signature")._value.get(),
                metrics.REFUSED.labels("streamr", "32", "store")._value.get(),
            ]

        before = counts()
        run(
            broker,
            submission(origin, entry(1)),
            submission(origin, entry(1)),
            submission(origin, entry(2), model.Verdict.BAD_SIGNATURE),
        )
        store.fault = StoreFull("full")
        run(broker, submission(origin, entry(3)))
        assert [now - then for now, then in zip(counts(), before, strict=True)] == [1, 1, 1, 1]


steps = st.lists(
    st.lists(
        st.tuples(st.integers(0, 6), st.sampled_from([model.Verdict.OK, model.Verdict.BAD_SIGNATURE])), max_size=8
    ),
    max_size=6,
)


@given(steps, st.sets(st.integers(0, 5)))
def test_whatever_comes(batches: list[list[tuple[int, model.Verdict]]], failing: set[int]) -> None:
    """Told STORED exactly once per identity; delivered is what was stored, in that order; the log holds just that."""
    store, origin, sink = FailingStore(), Recorder(), Recorder()
    broker = Broker(store, Subscriptions(), quota())
    broker.subscriptions.add(RIVER, PLAIN, sink)
    stored: list[int] = []
    for number, batch in enumerate(batches):
        store.fault = StoreFull("full") if number in failing else None
        made = [submission(origin, entry(timestamp), verdict) for timestamp, verdict in batch]
        for (timestamp, verdict), status in zip(batch, run(broker, *made), strict=True):
            if not verdict.accepted:
                assert status is Status.REFUSED
            elif number in failing:
                assert status is Status.FAILED
            else:
                assert status is (Status.DUPLICATE if timestamp in stored else Status.STORED)
            if status is Status.STORED:
                stored.append(timestamp)
    assert len(origin.answers) == sum(len(batch) for batch in batches)
    assert b"".join(sink.written) == b"".join(b"message %d\n" % timestamp for timestamp in stored)
    assert served(store) == sorted(stored)
    assert [timestamp for kind, timestamp, _ in kinds(store) if kind is model.Kind.MESSAGE] == stored


def test_a_message_that_cannot_be_shown_delays_nobody_else(broker: Broker, origin: Recorder) -> None:
    def breaks(entry: model.Entry) -> bytes:
        raise ValueError("unreadable")

    reader, other = Recorder(), Recorder()
    broker.subscriptions.add(RIVER, Form("broken", breaks), reader)
    broker.subscriptions.add(model.Topic("lake", 0), Form("whole", lambda entry: entry.raw), other)
    run(broker, submission(origin, entry(1)), submission(origin, entry(2, topic="lake")))
    assert other.written == [b"message 2"]
    assert [status for _, status, _ in origin.answers] == [Status.STORED] * 2


class TestFreeIdentity:
    """A message whose protocol gives it no sequence is kept under the next free one."""

    def unnumbered(self, origin: Recorder, content: bytes, *, signed: bool = False) -> Publish:
        made = entry(1, raw=content, verdict=model.Verdict.OK if signed else model.Verdict.UNSIGNED)

        def renumber(places: Sequence[Place]) -> model.Entry | None:
            if signed and any(place.row is not None and place.row.entry.raw == content for place in places):
                return None
            return msgspec.structs.replace(made, sequence=max(place.key.sequence for place in places) + 1)

        publish = submission(origin, made)
        publish.renumber = renumber
        return publish

    def test_in_one_batch_and_in_several(self, broker: Broker, store: FailingStore, origin: Recorder) -> None:
        other = submission(origin, entry(1, publisher="0xcd"))
        batch = [self.unnumbered(origin, b"%d" % number) for number in range(5)]
        assert run(broker, batch[0], other, *batch[1:]) == [Status.STORED] * 6
        assert [publish.offset for publish in (batch[0], other, *batch[1:])] == list(range(6))
        assert run(broker, self.unnumbered(origin, b"5")) == [Status.STORED]
        kept = [row.entry for row in store.read(0, 10) if row.entry.publisher == "0xab"]
        assert [(each.sequence, each.raw) for each in kept] == [(number, b"%d" % number) for number in range(6)]

    def test_what_is_delivered_is_what_was_kept(self, broker: Broker, origin: Recorder) -> None:
        reader = Recorder()
        form = Form("sequence", lambda entry: b"%d " % entry.sequence)
        broker.subscriptions.add(RIVER, form, reader)
        run(broker, *(self.unnumbered(origin, b"%d" % number) for number in range(3)))
        assert b"".join(reader.written) == b"0 1 2 "

    def test_a_repeat_is_a_repeat(self, broker: Broker, store: FailingStore, origin: Recorder) -> None:
        def signed(content: bytes) -> Publish:
            return self.unnumbered(origin, content, signed=True)

        contents = [b"a", b"b", b"a", b"b", b"c"]
        stored, repeated = Status.STORED, Status.DUPLICATE
        assert run(broker, *map(signed, contents)) == [stored, stored, repeated, repeated, stored]
        assert run(broker, *map(signed, contents)) == [repeated] * 5
        kept = [row.entry for row in store.read(0, 50) if row.entry.kind is model.Kind.MESSAGE]
        assert [(each.sequence, each.raw) for each in kept] == [(0, b"a"), (1, b"b"), (2, b"c")]

    def test_what_was_walked_through_is_not_walked_through_again(
        self, broker: Broker, store: FailingStore, origin: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else a peer that sends one time over and over makes each commit longer than the last."""
        looked_at = 0
        walk = store.walk

        def counted(question: model.Range, **options: Any) -> tuple[list[Place], model.OrderKey | None]:
            nonlocal looked_at
            places, after = walk(question, **options)
            looked_at += len(places)
            return places, after

        monkeypatch.setattr(store, "walk", counted)
        for number in range(50):
            assert run(broker, self.unnumbered(origin, b"%d" % number)) == [Status.STORED]
        assert [row.entry.sequence for row in store.read(0, 100)] == list(range(50))
        assert looked_at < 2 * 50

    def test_what_can_be_given_no_place_is_refused_alone(
        self, broker: Broker, store: FailingStore, origin: Recorder
    ) -> None:
        run(broker, self.unnumbered(origin, b"a"))
        refused, other = self.unnumbered(origin, b"b"), submission(origin, entry(2))

        def renumber(places: Sequence[Place]) -> model.Entry | None:
            raise PeerFault("There is no room.", code="REQUEST_FAILED")

        refused.renumber = renumber
        assert run(broker, refused, other) == [Status.REFUSED, Status.STORED]
        assert refused.entry.kind is model.Kind.REFUSED
        assert served(store) == [1, 2]
        assert (refused.request_id, "There is no room.") in origin.log

    def test_a_full_store_fails_what_was_moved(self, broker: Broker, store: FailingStore, origin: Recorder) -> None:
        run(broker, self.unnumbered(origin, b"a"))
        append = store.append

        def fails_the_second_time(entries: Sequence[model.Entry]) -> list[int]:
            store.fault = StoreFull("full") if len(entries) == 1 and entries[0].sequence else None
            return append(entries)

        store.append = fails_the_second_time  # type: ignore[method-assign]
        assert run(broker, self.unnumbered(origin, b"b"), submission(origin, entry(2))) == [
            Status.FAILED,
            Status.STORED,
        ]
        assert broker.failing == "full"

    def test_more_than_a_page_of_one_time(
        self, broker: Broker, origin: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("catchment.core.broker.SAME_TIME", 2)
        for number in range(7):
            assert run(broker, self.unnumbered(origin, b"%d" % number)) == [Status.STORED]
