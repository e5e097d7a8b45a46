"""Questions about records, over both stores: what is indexed, what replaces what, and a naive model of it all."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from catchment import model
from catchment.core import mosaic_search
from catchment.core.mosaic_search import Answer, Fetch, posting_of
from catchment.crypto import mosaic
from catchment.store import base
from catchment.store.lmdb import LmdbStore
from catchment.store.memory import MemoryStore
from catchment.wire.mosaic import record, tags, timestamp
from catchment.wire.mosaic.filter import Filter
from catchment.wire.mosaic.results import Result

SIGNERS = [mosaic.Signer(bytes((number,)) * 32) for number in range(1, 6)]
ALICE, BOB, CAROL, _, MALLORY = SIGNERS
START = 1_790_000_000_000_000_000
UNIQUE, EPHEMERAL, REPLACEABLE, VERSIONED = (record.EXAMPLE | bits for bits in range(4))
EXTRACTS = {model.Protocol.MOSAIC: posting_of}


def opened(kind: str, folder: Path) -> base.Store:
    if kind == "lmdb":
        return LmdbStore.open(folder / "hot", map_size=1 << 28, extracts=EXTRACTS)
    return MemoryStore(extracts=EXTRACTS)


@pytest.fixture(params=["lmdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[base.Store]:
    made = opened(request.param, tmp_path)
    yield made
    made.close()


def make(time: int = 0, **changes: Any) -> bytes:
    values: dict[str, Any] = {
        "kind": UNIQUE,
        "nonce": b"\x81" + bytes(7),
        "timestamp": START + time,
        "payload": b"%d" % time,
    }
    return record.make(changes.pop("signer", ALICE), **(values | changes))


def entry(raw: bytes, received_at: int = 1_790_000_000_000_000) -> model.Entry:
    return record.to_entry(record.decode(raw), verdict=model.Verdict.OK, received_at=received_at)


def put(store: base.Store, *raws: bytes) -> list[int]:
    return store.append([entry(raw) for raw in raws])


def pages(answer: Answer | Fetch) -> list[bytes]:
    found: list[bytes] = []
    for _ in range(100_000):
        found += answer.page()
        if answer.result is not None:
            return found
    raise AssertionError("an answer that does not end")


def ask(store: base.Store, question: Filter, *, asker: bytes | None = None, **options: Any) -> list[bytes]:
    answer = Answer(store.postings, question, asker=asker, **options)
    found = pages(answer)
    assert answer.result is Result.SUCCESS
    return found


def get(store: base.Store, *references: bytes, asker: bytes | None = None) -> list[bytes]:
    return pages(Fetch(store.postings, references, asker=asker))


def by(*keys: bytes, **more: Any) -> Filter:
    return Filter(authors=frozenset(keys), **more)


def test_an_empty_store_answers_with_nothing(store: base.Store) -> None:
    assert ask(store, by(ALICE.public)) == []
    assert get(store, bytes(48), b"\x80" + bytes(47)) == []


def test_the_newest_come_first_whatever_order_they_came_in(store: base.Store) -> None:
    raws = [make(time) for time in (5, 1, 9, 3)]
    put(store, *raws)
    assert ask(store, by(ALICE.public)) == sorted(raws, reverse=True)
    assert ask(store, by(ALICE.public), limit=2) == sorted(raws, reverse=True)[:2]


def test_a_repeat_is_a_duplicate_and_answers_once(store: base.Store) -> None:
    raw = make()
    assert put(store, raw) == [0]
    assert put(store, raw, make(1)) == [base.DUPLICATE, 1]
    assert ask(store, by(ALICE.public)) == [make(1), raw]


def test_records_are_in_no_topics_order(store: base.Store) -> None:
    # Otherwise a stream of that name would show records to everyone.
    put(store, make())
    topic = model.Topic(f"{UNIQUE:016x}", 0, model.Protocol.MOSAIC)
    assert store.walk(model.Range(topic), limit=10) == ([], None)
    assert store.walk_last(topic, 10) == []
    assert store.read(0, 10)[0].entry == entry(make())


def test_records_stay_when_the_logs_rows_are_dropped(store: base.Store) -> None:
    put(store, make(1), make(2))
    assert store.drop(2, limit=10) == 2
    assert store.read(0, 10) == []
    assert ask(store, by(ALICE.public)) == [make(2), make(1)]
    assert get(store, make(1)[:48]) == [make(1)]
    assert put(store, make(1)) == [base.DUPLICATE]


def test_only_what_was_accepted_is_found(store: base.Store) -> None:
    refused = record.to_entry(record.decode(make()), verdict=model.Verdict.BAD_ID, received_at=0)
    store.append([refused])
    assert ask(store, by(ALICE.public)) == []


def test_get_by_id_and_by_address(store: base.Store) -> None:
    raws = [make(time, kind=VERSIONED) for time in (1, 2, 3)]
    other = make(4, nonce=b"\x90" + bytes(7))
    put(store, *raws, other)
    address = record.decode(raws[0]).address
    assert get(store, raws[1][:48]) == [raws[1]]
    assert get(store, address) == raws[::-1]
    assert get(store, raws[2][:48], address, other[:48]) == [raws[2], raws[1], raws[0], other]
    missing = Fetch(store.postings, [b"\1" * 48], asker=None)
    assert pages(missing) == []
    assert missing.result is Result.NOT_FOUND


def test_a_prefix_of_an_id_finds_nothing_else(store: base.Store) -> None:
    raw = make()
    put(store, raw)
    assert get(store, raw[:47] + bytes((raw[47] ^ 1,))) == []


# What replaces what.


def test_unique_and_versioned_records_stand_beside_each_other(store: base.Store) -> None:
    for kind in (UNIQUE, VERSIONED):
        raws = [make(time, kind=kind) for time in (1, 2)]
        put(store, *raws)
        assert ask(store, Filter(kinds=frozenset({kind}))) == raws[::-1]


def test_of_replaceable_records_the_newest_is_served(store: base.Store) -> None:
    put(store, make(1, kind=REPLACEABLE))
    put(store, make(3, kind=REPLACEABLE), make(2, kind=REPLACEABLE))
    newest = make(3, kind=REPLACEABLE)
    assert ask(store, by(ALICE.public)) == [newest]
    assert get(store, record.decode(newest).address) == [newest]
    for old in (1, 2):
        assert get(store, make(old, kind=REPLACEABLE)[:48]) == []
        assert put(store, make(old, kind=REPLACEABLE)) == [base.DUPLICATE]
    assert store.next_offset == 3, "older ones are kept in the log"


def test_at_equal_times_the_greater_id_is_served(store: base.Store) -> None:
    raws = sorted(make(1, kind=REPLACEABLE, payload=b"%d" % number) for number in range(6))
    mixed = list(raws)
    random.Random(7).shuffle(mixed)
    for raw in mixed:
        put(store, raw)
    assert ask(store, by(ALICE.public)) == [raws[-1]]


def test_another_address_is_another_record(store: base.Store) -> None:
    first = make(1, kind=REPLACEABLE, nonce=b"\x81" * 8)
    second = make(2, kind=REPLACEABLE, nonce=b"\x82" * 8)
    put(store, first, second)
    assert ask(store, by(ALICE.public)) == [second, first]


def test_nobody_replaces_what_is_not_theirs(store: base.Store) -> None:
    own = make(1, kind=REPLACEABLE)
    forged = make(9, kind=REPLACEABLE, signer=MALLORY, author=ALICE.public)
    put(store, own, forged)
    assert ask(store, by(ALICE.public)) == [forged, own], "whose key it is, clients decide"
    newer = make(2, kind=REPLACEABLE)
    put(store, newer)
    assert ask(store, by(ALICE.public)) == [forged, newer]
    again = make(10, kind=REPLACEABLE, signer=MALLORY, author=ALICE.public)
    put(store, again)
    assert ask(store, by(ALICE.public)) == [again, newer]


def test_the_master_key_replaces_everything_older_at_its_address(store: base.Store) -> None:
    device = make(1, kind=REPLACEABLE, signer=BOB, author=ALICE.public)
    other = make(2, kind=REPLACEABLE, signer=CAROL, author=ALICE.public)
    put(store, device, other)
    assert ask(store, by(ALICE.public)) == [other, device]
    master = make(3, kind=REPLACEABLE)
    put(store, master)
    assert ask(store, by(ALICE.public)) == [master]
    put(store, make(2, kind=REPLACEABLE, signer=BOB, author=ALICE.public))
    assert ask(store, by(ALICE.public)) == [master], "older than what the master key has put there"


def test_counts_follow_what_is_replaced(store: base.Store) -> None:
    for time in range(20):
        put(store, make(time, kind=REPLACEABLE))
    groups = mosaic_search.plan(by(ALICE.public))
    assert store.postings.weigh(model.Protocol.MOSAIC, groups) == 1


# Who may read.


def test_a_record_that_may_not_be_read_neither_appears_nor_uses_up_a_limit(store: base.Store) -> None:
    secret = [make(time, kind=UNIQUE & ~0xC) for time in (8, 9)]
    tagged = make(7, kind=UNIQUE & ~0xC | 4, tag_list=[tags.notify(BOB.public)])
    public = [make(time) for time in (1, 2)]
    put(store, *secret, tagged, *public)
    assert ask(store, by(ALICE.public), limit=2) == public[::-1]
    assert ask(store, by(ALICE.public), asker=BOB.public, limit=2) == [tagged, public[1]]
    assert ask(store, by(ALICE.public), asker=ALICE.public) == [*secret[::-1], tagged, *public[::-1]]
    assert get(store, secret[0][:48], record.decode(tagged).address) == []
    assert get(store, secret[0][:48], asker=ALICE.public) == [secret[0]]


# Ways and limits.


def test_every_way_gives_the_same_answer(store: base.Store) -> None:
    url = tags.make(tags.TagType.URL, b"x")
    raws = [
        make(time, signer=SIGNERS[time % 3], kind=UNIQUE if time % 2 else VERSIONED, tag_list=[url] if time % 5 else [])
        for time in range(60)
    ]
    put(store, *raws)
    question = Filter(
        authors=frozenset({ALICE.public, BOB.public}),
        signing_keys=frozenset({ALICE.public, BOB.public, CAROL.public}),
        kinds=frozenset({UNIQUE}),
        timestamps=frozenset(START + time for time in range(0, 60, 1)),
        included_tags=(frozenset({url, b"\4\0\1\0"}),),
        since=START + 10,
        until=START + 50,
    )
    expected = [raw for raw in sorted(raws, reverse=True) if question.matches(record.decode(raw), 0)]
    assert len(expected) > 5
    groups = mosaic_search.plan(question)
    assert len(groups) == 6
    for group in groups:
        answer = Answer(store.postings, question, asker=None)
        answer._groups = [group]
        assert pages(answer) == expected


def test_the_lightest_way_is_taken(store: base.Store) -> None:
    put(store, *(make(time) for time in range(50)))
    put(store, make(99, signer=BOB))
    question = Filter(kinds=frozenset({UNIQUE}), authors=frozenset({BOB.public}))
    groups = mosaic_search.plan(question)
    assert store.postings.weigh(model.Protocol.MOSAIC, groups) == 1
    hits, _ = store.postings.search(model.Protocol.MOSAIC, groups, limit=100, max_bytes=10**9)
    assert [hit.raw for hit in hits] == [make(99, signer=BOB)]


def test_an_answer_that_passes_over_too_much_is_too_open(store: base.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mosaic_search, "MAX_PASSED", 20)
    monkeypatch.setattr(mosaic_search, "PAGE_RECORDS", 8)
    put(store, *(make(time) for time in range(60)))
    wanted = frozenset({make(59)[:32]})
    answer = Answer(store.postings, by(ALICE.public, excluded_tags=frozenset({b"x"})), asker=None)
    assert len(pages(answer)) == 60
    hidden = Answer(store.postings, by(ALICE.public, received_until=1), asker=None)
    hidden._begun = True  # as if too much had come in that time
    assert pages(hidden) == []
    assert hidden.result is Result.TOO_OPEN
    assert ask(store, by(ALICE.public, excluded_ids=wanted))[0] == make(58)


def test_pages_of_any_size_give_the_same_answer(store: base.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    raws = [make(time, signer=SIGNERS[time % 2]) for time in range(40)]
    put(store, *raws)
    question = by(ALICE.public, BOB.public)
    for size, length in ((1, 10**9), (7, 10**9), (100, 1), (100, 700)):
        monkeypatch.setattr(mosaic_search, "PAGE_RECORDS", size)
        monkeypatch.setattr(mosaic_search, "PAGE_BYTES", length)
        assert ask(store, question) == sorted(raws, reverse=True)
        assert ask(store, question, limit=13) == sorted(raws, reverse=True)[:13]
        assert ask(store, question, below=10) == sorted(raws[:10], reverse=True)


def test_by_time_of_receipt(store: base.Store) -> None:
    came = 1_790_000_000_000_000
    raws = [make(100 - number) for number in range(30)]
    for number, raw in enumerate(raws):
        store.append([entry(raw, came + number)])
    mosaic_time = timestamp.from_microseconds(came)
    since = by(ALICE.public, received_since=mosaic_time + 20_000)
    assert ask(store, since) == sorted(raws[20:], reverse=True)
    until = by(ALICE.public, received_until=mosaic_time + 4_000)
    assert ask(store, until) == sorted(raws[:5], reverse=True)
    assert ask(store, since, limit=3) == sorted(raws[20:], reverse=True)[:3]
    assert ask(store, since, below=25) == sorted(raws[20:25], reverse=True)


def test_what_came_lately_is_found_without_looking_at_the_rest(store: base.Store) -> None:
    came = 1_790_000_000_000_000
    for number in range(50):
        store.append([entry(make(number), came + number)])
    answer = Answer(store.postings, by(ALICE.public, received_since=timestamp.from_microseconds(came + 48)), asker=None)
    assert pages(answer) == [make(49), make(48)]
    assert answer._spots is not None
    # The second more that a leap second could take does not matter at the open end.
    assert answer._passed == 0


# A naive model.


def naive(raws: Sequence[tuple[bytes, int]], question: Filter, asker: bytes | None, limit: int) -> list[bytes]:
    """Every rule once more, without an index: `raws` in the order they came, with the time of receipt."""
    served: list[tuple[record.Record, int]] = []
    for raw, received_at in raws:
        found = record.decode(raw)
        if any(other.id == found.id for other, _ in served):
            continue
        served.append((found, received_at))
    gone: set[bytes] = set()
    for one, _ in served:
        for other, _ in served:
            if (
                one.duplicates is record.Duplicates.REPLACEABLE
                and one.address == other.address
                and other.id < one.id
                and one.signer in (other.signer, one.author)
            ):
                gone.add(other.id)
    answer = [
        found.raw
        for found, received_at in sorted(served, key=lambda pair: pair[0].id, reverse=True)
        if found.id not in gone
        and question.matches(found, timestamp.from_microseconds(received_at))
        and found.readable_by(asker)
    ]
    return answer[:limit] if limit else answer


TAGS = [tags.make(kind, value) for kind in (1, 0x24) for value in (b"a", b"b" * 70)] + [tags.notify(BOB.public)]
KINDS = [
    *(UNIQUE, REPLACEABLE, VERSIONED, UNIQUE & ~0xC, REPLACEABLE & ~0xC | 4),
    *(record.MICROBLOG, record.PROFILE),
]


def random_record(chance: random.Random) -> bytes:
    author = chance.choice(SIGNERS[:3])
    return record.make(
        chance.choice(SIGNERS) if chance.random() < 0.3 else author,
        kind=chance.choice(KINDS),
        nonce=bytes((0x80 + chance.randrange(3),)) * 8,
        timestamp=START + chance.randrange(12),
        payload=b"%d" % chance.randrange(4),
        tag_list=chance.sample(TAGS, chance.randrange(4)),
        author=author.public,
    )


def random_filter(chance: random.Random, raws: Sequence[tuple[bytes, int]]) -> Filter:
    keys = [signer.public for signer in SIGNERS]
    some: dict[str, Any] = {}
    while not some:
        if chance.random() < 0.4:
            some["authors"] = frozenset(chance.sample(keys, chance.randrange(0, 4)))
        if chance.random() < 0.2:
            some["signing_keys"] = frozenset(chance.sample(keys, chance.randrange(1, 4)))
        if chance.random() < 0.4:
            some["kinds"] = frozenset(chance.sample(KINDS, chance.randrange(0, 4)))
        if chance.random() < 0.15:
            some["timestamps"] = frozenset(START + time for time in chance.sample(range(14), chance.randrange(0, 9)))
        if chance.random() < 0.3:
            some["included_tags"] = tuple(
                frozenset(chance.sample(TAGS, chance.randrange(1, 4))) for _ in range(chance.randrange(1, 3))
            )
    for name in ("since", "until"):
        if chance.random() < 0.25:
            some[name] = START + chance.randrange(12)
    for name in ("received_since", "received_until"):
        if chance.random() < 0.2:
            some[name] = timestamp.from_microseconds(chance.choice(raws)[1]) + chance.choice((-1, 0, 1))
    if chance.random() < 0.2:
        some["excluded_ids"] = frozenset(raw[:32] for raw, _ in chance.sample(raws, 3))
    if chance.random() < 0.2:
        some["excluded_tags"] = frozenset(chance.sample(TAGS, 1))
    return Filter(**some)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["lmdb", "memory"])
def test_random_records_and_questions_as_a_naive_model_answers_them(
    kind: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(mosaic_search, "PAGE_RECORDS", chance.choice((1, 3, 512)))
    monkeypatch.setattr(mosaic_search, "MAX_RECEIVED", chance.choice((0, 5, 10_000)))
    store = opened(kind, tmp_path)
    raws: list[tuple[bytes, int]] = []
    asked = 0
    for round_number in range(6):
        batch = [(random_record(chance), 1_790_000_000_000_000 + round_number * 10 + n) for n in range(15)]
        store.append([entry(raw, received_at) for raw, received_at in batch])
        raws += batch
        if chance.random() < 0.3:
            store.drop(store.next_offset, limit=1000)
        for _ in range(25):
            question = random_filter(chance, raws)
            asker = chance.choice([None, *(signer.public for signer in SIGNERS[:3])])
            limit = chance.choice((0, 0, 1, 5))
            assert ask(store, question, asker=asker, limit=limit) == naive(raws, question, asker, limit), question
            asked += 1
    assert asked == 150
    store.close()
