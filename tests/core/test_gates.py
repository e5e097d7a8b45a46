"""Gates: a protocol's last word just before a commit, and what follows from a message is committed with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from catchment import model
from catchment.core.broker import Broker, Publish, Status
from catchment.core.limits import NoteQuota
from catchment.core.subscriptions import Form, Subscriptions
from catchment.errors import PeerFault, StoreFull
from catchment.store.memory import MemoryStore

NOW = 1_700_000_000_000_000
TOPIC = model.Topic("/root", 0, model.Protocol.POPSTELLAR)


class FailingStore(MemoryStore):
    full = False

    def append(self, entries: Sequence[model.Entry]) -> list[int]:
        if self.full:
            raise StoreFull("no room")
        return super().append(entries)


def entry(name: str, **changes: object) -> model.Entry:
    fields: dict[str, object] = {
        "kind": model.Kind.MESSAGE,
        "protocol": model.Protocol.POPSTELLAR,
        "version": 1,
        "topic": "/root",
        "partition": 0,
        "publisher": "p",
        "chain": "",
        "timestamp": 1,
        "sequence": 0,
        "prev_timestamp": None,
        "prev_sequence": None,
        "event_time": 1,
        "id": name.encode(),
        "verdict": model.Verdict.OK,
        "received_at": NOW,
        "raw": name.encode(),
    }
    return model.Entry(**(fields | changes))


class Names:
    """A gate that takes each name once, refuses what begins with "no", and lets "parent" bring a child."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.settled: list[bool] = []
        self._pending = 0

    def admit(self, publish: Publish, now: int) -> Sequence[Publish] | None:
        name = publish.entry.raw.decode()
        if name.startswith("no"):
            raise PeerFault(f"{name} is not taken", code="-1")
        if name == "broken":
            raise KeyError(name)
        if name in self.names:
            return None
        self.names.append(name)
        self._pending += 1
        return [Publish("", entry("child"), None, False)] if name == "parent" else []

    def settle(self, *, stored: bool) -> None:
        if not stored:
            del self.names[-self._pending :]
        self._pending = 0
        self.settled.append(stored)


class Recorder:
    sender = "192.0.2.1"

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []
        self.written: list[bytes] = []

    def published(self, request_id: str, status: Status, verdict: model.Verdict) -> None:
        self.told.append((request_id, status))

    def refused(self, request_id: str, fault: PeerFault) -> None:
        self.told.append((request_id, fault.code))

    def write(self, data: bytes) -> None:
        self.written.append(data)


@pytest.fixture
def store() -> FailingStore:
    return FailingStore()


@pytest.fixture
def broker(store: FailingStore) -> Broker:
    quota = NoteQuota(notes_per_second=0, notes_burst=100, bytes_per_second=0, bytes_burst=1e6)
    return Broker(store, Subscriptions(), quota)


def run(broker: Broker, *batch: Publish) -> list[Publish]:
    broker.judge(batch)
    whole = broker.admit(batch, NOW)
    broker.commit(whole, NOW)
    broker.settle()
    broker.deliver(whole)
    return whole


Make = Callable[..., Publish]


@pytest.fixture
def gate() -> Names:
    return Names()


@pytest.fixture
def origin() -> Recorder:
    return Recorder()


@pytest.fixture
def make(gate: Names, origin: Recorder) -> Make:
    def publish(name: str, check: Callable[[], model.Verdict] | None = None) -> Publish:
        return Publish(name, entry(name), check, True, origin=origin, gate=gate)

    return publish


def raws(store: FailingStore) -> list[tuple[model.Kind, bytes]]:
    return [(row.entry.kind, row.entry.raw) for row in store.read(0, 100)]


def test_what_a_gate_admits_is_stored_answered_and_settled(
    broker: Broker, store: FailingStore, gate: Names, origin: Recorder, make: Make
) -> None:
    run(broker, make("a"), make("b"))
    assert [raw for _, raw in raws(store)] == [b"a", b"b"]
    assert origin.told == [("a", Status.STORED), ("b", Status.STORED)]
    assert gate.settled == [True]


def test_what_follows_is_committed_behind_what_it_follows_from_and_delivered(
    broker: Broker, store: FailingStore, origin: Recorder, make: Make
) -> None:
    broker.subscriptions.add(TOPIC, Form("plain", lambda each: each.raw + b" "), origin)
    run(broker, make("parent"), make("z"))
    assert [raw for _, raw in raws(store)] == [b"parent", b"child", b"z"]
    assert origin.written == [b"parent child z "]
    assert origin.told == [("parent", Status.STORED), ("z", Status.STORED)]


def test_a_refusal_is_answered_in_the_gates_own_words_and_noted(
    broker: Broker, store: FailingStore, gate: Names, origin: Recorder, make: Make
) -> None:
    run(broker, make("nothing"), make("a"))
    assert origin.told == [("nothing", "-1"), ("a", Status.STORED)]
    assert sorted(raws(store)) == [(model.Kind.MESSAGE, b"a"), (model.Kind.REFUSED, b"nothing")]
    assert gate.names == ["a"]


def test_a_repeat_is_noted_and_not_stored(broker: Broker, store: FailingStore, origin: Recorder, make: Make) -> None:
    run(broker, make("a"))
    run(broker, make("a"), make("b"), make("b"))
    assert origin.told[1:] == [("a", Status.DUPLICATE), ("b", Status.STORED), ("b", Status.DUPLICATE)]
    assert [raw for kind, raw in raws(store) if kind is model.Kind.MESSAGE] == [b"a", b"b"]


def test_what_was_not_judged_well_never_comes_to_the_gate(
    broker: Broker, gate: Names, origin: Recorder, make: Make
) -> None:
    def refuse() -> model.Verdict:
        raise PeerFault("the field is wrong", code="-4")

    run(broker, make("a", lambda: model.Verdict.BAD_SIGNATURE), make("b", refuse))
    assert gate.names == []
    assert origin.told == [("a", Status.REFUSED), ("b", "-4")]
    assert gate.settled == []


def test_when_the_commit_fails_the_state_goes_back(
    broker: Broker, store: FailingStore, gate: Names, origin: Recorder, make: Make
) -> None:
    run(broker, make("a"))
    store.full = True
    run(broker, make("b"), make("parent"), make("no"))
    assert gate.names == ["a"]
    assert gate.settled == [True, False]
    assert origin.told[1:] == [("b", Status.FAILED), ("parent", Status.FAILED), ("no", "-1")]
    store.full = False
    run(broker, make("b"))
    assert gate.names == ["a", "b"]
    assert origin.told[-1] == ("b", Status.STORED)


def test_a_gate_that_breaks_fails_one_message_only(broker: Broker, origin: Recorder, make: Make) -> None:
    run(broker, make("broken"), make("a"))
    assert origin.told == [("broken", Status.FAILED), ("a", Status.STORED)]


def test_subscribers_of_another_protocols_topic_of_the_same_name_get_nothing(broker: Broker, make: Make) -> None:
    other = Recorder()
    broker.subscriptions.add(model.Topic("/root", 0), Form("plain", lambda each: each.raw), other)
    run(broker, make("a"))
    assert other.written == []
