"""One suite for every implementation of `store.base.Store`."""

from __future__ import annotations

import random
import threading

import pytest

from catchment import errors, model
from catchment.model import Kind, OrderKey, Protocol, Range, Ref, Topic, Verdict
from catchment.store import base
from catchment.store.base import DUPLICATE
from catchment.store.blocks import block_of

TOPIC = Topic("0xab/stream", 0)
LONG = "x" * 600


def walk_all(store, question, limit=1000):
    """All pages of a walk, checked to end and to go forward."""
    places, after, pages = [], None, 0
    while True:
        page, after = store.walk(question, after=after, limit=limit)
        places += page
        pages += 1
        assert pages < 10_000
        if after is None:
            return places


def offsets_of(places):
    return [place.offset for place in places]


def test_a_new_store_is_empty_and_has_a_name(store):
    assert len(store.node) == 16
    assert 0 <= store.epoch < 2**63
    assert (store.next_offset, store.first_hot_offset) == (0, 0)
    assert store.read(0, 10) == []
    assert store.walk(Range(TOPIC), limit=10) == ([], None)
    assert store.walk_last(TOPIC, 10) == []
    assert store.find(Protocol.MOSAIC, b"id") is None
    assert store.drop(10, limit=10) == 0
    assert store.append([]) == []
    store.sync()


def test_offsets_are_dense_and_rows_come_back_whole(store, make_entry):
    entries = [
        make_entry(timestamp=5, prev_timestamp=4, prev_sequence=0),
        make_entry(timestamp=6, prev_timestamp=0, raw=b""),
        make_entry(timestamp=7, verdict=Verdict.UNSIGNED, kind=Kind.KEYEXCHANGE, version=-1, event_time=-5),
        make_entry(kind=Kind.RECORD, protocol=Protocol.MOSAIC, id=b"\0" * 48, raw=bytes(range(256)) * 300),
        make_entry(kind=Kind.ADMIN, topic="", publisher="", chain="", timestamp=0),
        make_entry(timestamp=2**63 - 1, sequence=2**63 - 1, partition=2**63 - 1),
    ]
    assert store.append(entries[:2]) == [0, 1]
    assert store.append(entries[2:]) == [2, 3, 4, 5]
    assert store.next_offset == 6
    assert store.read(0, 100) == [model.Row(n, store.epoch, entry) for n, entry in enumerate(entries)]
    assert [row.offset for row in store.read(1, 2)] == [1, 2]
    assert store.read(6, 10) == []


def test_a_block_has_the_rows_of_one_epoch_column_by_column(store, make_entry):
    kinds = [Kind.MESSAGE, Kind.REFUSED, Kind.DUPLICATE, Kind.KEYEXCHANGE]
    store.append([make_entry(timestamp=at, topic=f"t{at % 3}", kind=kinds[at % 4]) for at in range(20)])
    store.new_epoch()
    store.append([make_entry(timestamp=at, id=bytes([at]), protocol=Protocol.MOSAIC) for at in range(5)])
    store.drop(3, limit=3)
    for start, limit, stop in ((0, 100, 20), (3, 4, 7), (19, 10, 20), (20, 3, 23), (22, 100, 25)):
        block = store.read_block(start, limit)
        assert (block.offset[0], block.offset[-1]) == (max(start, 3), stop - 1)
        wanted = block_of(store.read(start, stop - max(start, 3)))
        assert [list(column) for column in block] == [list(column) for column in wanted]
    assert store.read_block(25, 10) is None
    assert store.read_block(0, 0) is None


def test_a_long_block_comes_in_parts(store, make_entry):
    store.append([make_entry(timestamp=at) for at in range(2000)])
    start, found = 0, []
    while (block := store.read_block(start, 5000)) is not None:
        assert block.offset[0] == start
        start = block.offset[-1] + 1
        found += block.timestamp
    assert found == list(range(2000))


def test_kinds_come_back_as_members(store, make_entry):
    store.append([make_entry()])
    entry = store.read(0, 1)[0].entry
    assert isinstance(entry.kind, Kind)
    assert isinstance(entry.protocol, Protocol)
    assert isinstance(entry.verdict, Verdict)


def test_a_repeat_is_known_in_its_batch_and_later_and_takes_no_offset(store, make_entry):
    first, second = make_entry(timestamp=1), make_entry(timestamp=2)
    assert store.append([first, first, second]) == [0, DUPLICATE, 1]
    assert store.append([second, make_entry(timestamp=3), first]) == [DUPLICATE, 2, DUPLICATE]
    assert store.next_offset == 3


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "other"},
        {"topic": "0xab/stream/"},
        {"partition": 1},
        {"timestamp": 1},
        {"sequence": 1},
        {"publisher": "0xce"},
        {"publisher": "chain", "chain": "0xcd"},
        {"chain": ""},
        {"topic": LONG},
        {"publisher": LONG},
        {"chain": LONG},
        {"chain": "\ud800"},
    ],
)
def test_each_part_of_the_order_key_is_identity(store, make_entry, change):
    assert store.append([make_entry(), make_entry(**change)]) == [0, 1]
    assert store.append([make_entry(**change), make_entry()]) == [DUPLICATE, DUPLICATE]
    assert store.read(1, 1)[0].entry == make_entry(**change)


@pytest.mark.parametrize(
    "change",
    [
        {"raw": b"other"},
        {"version": 31},
        {"received_at": 1},
        {"event_time": 1},
        {"prev_timestamp": 3, "prev_sequence": 4},
        {"verdict": Verdict.UNSIGNED},
        {"kind": Kind.KEYEXCHANGE},
    ],
)
def test_nothing_else_is_identity(store, make_entry, change):
    assert store.append([make_entry(), make_entry(**change)]) == [0, DUPLICATE]


def test_long_names_differ_by_their_ends(store, make_entry):
    entries = [make_entry(topic=LONG + end, publisher=LONG + end, chain=LONG + end) for end in "abc"]
    assert store.append(entries) == [0, 1, 2]
    for offset, entry in enumerate(entries):
        (place,) = walk_all(store, Range(Topic(entry.topic, 0), publisher=entry.publisher, chain=entry.chain))
        assert (place.offset, place.key, place.row.entry) == (offset, entry.order_key, entry)


def test_an_id_is_the_identity_of_those_that_have_one(store, make_entry):
    entry = make_entry(kind=Kind.RECORD, protocol=Protocol.MOSAIC, id=b"one")
    again = make_entry(kind=Kind.RECORD, protocol=Protocol.MOSAIC, id=b"one", timestamp=9, topic="elsewhere")
    other_protocol = make_entry(protocol=Protocol.POPSTELLAR, id=b"one")
    long_ids = [make_entry(protocol=Protocol.POPSTELLAR, id=b"y" * 600 + end) for end in (b"a", b"b")]
    assert store.append([entry, again, other_protocol, *long_ids]) == [0, DUPLICATE, 1, 2, 3]
    assert store.append([again, *long_ids]) == [DUPLICATE] * 3
    assert store.find(Protocol.MOSAIC, b"one").entry == entry
    assert store.find(Protocol.POPSTELLAR, b"one").offset == 1
    assert store.find(Protocol.POPSTELLAR, long_ids[1].id).offset == 3
    assert store.find(Protocol.STREAMR, b"one") is None
    assert store.find(Protocol.MOSAIC, b"on") is None
    assert walk_all(store, Range(Topic("elsewhere", 0))) == []


def test_entries_with_ids_may_share_an_order_key_and_come_in_one_page(store, make_entry):
    topic = TOPIC._replace(protocol=Protocol.MOSAIC)
    with_ids = [make_entry(protocol=Protocol.MOSAIC, id=bytes([n])) for n in range(4)]
    without = make_entry(protocol=Protocol.MOSAIC)
    assert store.append([*with_ids[:2], without, without, *with_ids[2:]]) == [0, 1, 2, DUPLICATE, 3, 4]
    store.append([make_entry(protocol=Protocol.MOSAIC, timestamp=2_000_000_000_000)])
    page, after = store.walk(Range(topic), limit=1)
    assert sorted(offsets_of(page)) == [0, 1, 2, 3, 4]
    assert store.walk(Range(topic), after=after, limit=1) == (store.walk_last(topic, 1), None)
    assert offsets_of(walk_all(store, Range(topic))) == offsets_of(store.walk_last(topic, 10))


def test_the_same_name_in_two_protocols_is_two_topics(store, make_entry):
    entries = [make_entry(protocol=protocol, timestamp=n) for n in (1, 2) for protocol in Protocol]
    assert store.append(entries) == [0, 1, 2, 3, 4, 5]
    for number, protocol in enumerate(Protocol):
        topic = TOPIC._replace(protocol=protocol)
        assert offsets_of(walk_all(store, Range(topic))) == [number, number + 3]
        assert offsets_of(store.walk_last(topic, 1)) == [number + 3]
        assert store.before_last(topic, 1).timestamp == 1
    assert store.append(entries) == [DUPLICATE] * 6


def test_many_ids_are_found_at_once_in_their_order(store, make_entry):
    entries = [make_entry(protocol=Protocol.POPSTELLAR, id=bytes([n]), timestamp=9 - n) for n in range(5)]
    store.append(entries)
    wanted = [b"\x03", b"none", b"\x00", b"\x03"]
    found = store.find_all(Protocol.POPSTELLAR, wanted)
    assert [None if row is None else row.offset for row in found] == [3, None, 0, 3]
    assert found[0].entry == entries[3]
    assert store.find_all(Protocol.MOSAIC, wanted) == [None] * 4
    assert store.find_all(Protocol.POPSTELLAR, []) == []


def test_the_rows_of_a_protocol_come_in_the_order_of_the_log(store, make_entry):
    mine = [
        make_entry(protocol=Protocol.POPSTELLAR, id=n.to_bytes(2), topic=f"/root/{n % 7}{'x' * 600 * (n % 2)}")
        for n in range(1200)
    ]
    random.Random(5).shuffle(mine)
    note = make_entry(protocol=Protocol.POPSTELLAR, kind=Kind.REFUSED)
    store.append([make_entry(topic="/root/1"), *mine[:700], note])
    store.append([make_entry(topic="/root/2", protocol=Protocol.MOSAIC, id=b"m"), *mine[700:]])
    rows = list(store.rows_of(Protocol.POPSTELLAR))
    assert [row.entry for row in rows] == mine
    assert [row.offset for row in rows] == [*range(1, 701), *range(703, 1203)]
    assert [row.offset for row in store.rows_of(Protocol.MOSAIC)] == [702]
    store.drop(600, limit=600)
    assert [row.offset for row in store.rows_of(Protocol.POPSTELLAR)][:2] == [600, 601]


@pytest.mark.parametrize("kind", [Kind.REFUSED, Kind.DUPLICATE])
def test_what_was_refused_or_repeated_is_found_by_offset_only(store, make_entry, kind):
    note = make_entry(kind=kind, verdict=Verdict.BAD_SIGNATURE, id=b"id", topic="\ud800 n", publisher="ü", chain="")
    same_key = make_entry(kind=kind)
    assert store.append([note, note, same_key, make_entry(), same_key]) == [0, 1, 2, 3, 4]
    assert [row.entry for row in store.read(0, 2)] == [note, note]
    assert store.find(note.protocol, b"id") is None
    assert walk_all(store, Range(Topic(note.topic, 0))) == []
    assert offsets_of(store.walk_last(TOPIC, 10)) == [3]


@pytest.fixture
def crowd(store, make_entry):
    """Sixty messages of three publishers on two chains each, appended in a shuffled order, beside other topics."""
    entries = [
        make_entry(timestamp=timestamp, sequence=sequence, publisher=f"0x{n % 3}", chain=f"c{n % 2}")
        for n, (timestamp, sequence) in enumerate((t, s) for t in (1, 255, 256, 2**40, 2**53 - 1) for s in range(12))
    ]
    random.Random(7).shuffle(entries)
    others = [make_entry(timestamp=300, partition=1), make_entry(timestamp=300, topic="0xab/strean")]
    store.append([others[0], *entries, others[1]])
    return sorted(entries, key=lambda entry: (entry.timestamp, entry.sequence))


@pytest.mark.parametrize("limit", [1, 2, 7, 59, 60, 61])
def test_a_walk_is_in_order_whatever_the_page(store, crowd, limit):
    places = walk_all(store, Range(TOPIC), limit)
    assert [place.row.entry for place in places] == crowd
    assert [place.key for place in places] == [entry.order_key for entry in crowd]
    assert [place.offset for place in places] == [place.row.offset for place in places]


def test_a_page_that_ends_the_range_says_so(store, crowd):
    assert store.walk(Range(TOPIC), limit=60)[1] is None
    assert store.walk(Range(TOPIC), limit=59)[1] == crowd[58].order_key


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (Ref(255, 3), Ref(2**40, 2)),
        (Ref(255, 3), Ref(255, 3)),
        (Ref(2, 0), Ref(254, 9)),
        (Ref(256, 0), Ref(1, 0)),
        (Ref(0, 0), Ref(1, 2**53 - 1)),
    ],
)
def test_both_ends_of_a_range_are_included(store, crowd, start, end):
    places = walk_all(store, Range(TOPIC, start, end), 5)
    wanted = [entry for entry in crowd if start <= (entry.timestamp, entry.sequence) <= end]
    assert [place.row.entry for place in places] == wanted


@pytest.mark.parametrize(("publisher", "chain"), [("0x1", None), (None, "c1"), ("0x2", "c0"), ("0x1", "0x1")])
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_a_walk_can_be_of_one_publisher_or_chain(store, crowd, publisher, chain, limit):
    places = walk_all(store, Range(TOPIC, publisher=publisher, chain=chain), limit)
    wanted = [e for e in crowd if publisher in (None, e.publisher) and chain in (None, e.chain)]
    assert [place.row.entry for place in places] == wanted


def test_a_name_nobody_has_is_found_nowhere(store, crowd):
    assert walk_all(store, Range(TOPIC, publisher="0x"), 1) == []
    assert walk_all(store, Range(Topic("0xab", 0))) == []
    assert walk_all(store, Range(Topic(TOPIC.name, 2))) == []


def test_a_filtered_page_looks_at_a_bounded_number_of_keys(store, make_entry):
    store.append([make_entry(timestamp=n, publisher="0xfe") for n in range(500)])
    store.append([make_entry(timestamp=500)])
    page, after = store.walk(Range(TOPIC, publisher="0xcd"), limit=2)
    assert page == []
    assert after is not None
    assert after.timestamp < 100
    assert offsets_of(walk_all(store, Range(TOPIC, publisher="0xcd"), 2)) == [500]


def test_a_walk_goes_on_behind_its_key_when_more_has_come(store, make_entry):
    store.append([make_entry(timestamp=n, publisher="0xb") for n in (10, 20, 30)])
    _, after = store.walk(Range(TOPIC), limit=2)
    assert after == OrderKey(20, 0, "0xb", "chain")
    store.append([make_entry(timestamp=15), make_entry(timestamp=25, publisher="0xa")])
    page, _ = store.walk(Range(TOPIC), after=after, limit=10)
    assert [place.key.timestamp for place in page] == [25, 30]


def test_going_on_after_a_publisher_never_seen_loses_nothing(store, make_entry):
    store.append([make_entry(timestamp=n) for n in (10, 20)])
    page, _ = store.walk(Range(TOPIC), after=OrderKey(20, 0, "0xnobody", "none"), limit=10)
    assert offsets_of(page) == [1]


def test_a_page_of_nothing_cannot_be_asked_for(store):
    with pytest.raises(ValueError, match="at least one"):
        store.walk(Range(TOPIC), limit=0)


@pytest.mark.parametrize("question", [Range(TOPIC, Ref(2**63, 0)), Range(TOPIC, end=Ref(0, 2**64))])
def test_a_question_beyond_all_numbers_is_refused(store, crowd, question):
    with pytest.raises(ValueError, match="no entry can be in"):
        store.walk(question, limit=1)


@pytest.mark.parametrize("count", [-1, 0, 1, 13, 60, 100])
def test_the_last_of_a_topic(store, crowd, count):
    places = store.walk_last(TOPIC, count)
    assert [place.row.entry for place in places] == crowd[len(crowd) - max(0, min(count, 60)) :]


def test_the_last_of_the_last_topic_and_of_a_neighbour(store, make_entry):
    store.append([make_entry(topic="a"), make_entry(topic="b"), make_entry(topic="b", partition=7)])
    assert offsets_of(store.walk_last(Topic("a", 0), 5)) == [0]
    assert offsets_of(store.walk_last(Topic("b", 0), 5)) == [1]
    assert offsets_of(store.walk_last(Topic("b", 7), 5)) == [2]
    assert offsets_of(store.walk_last(Topic("b", 6), 5)) == []
    assert offsets_of(store.walk_last(Topic("c", 0), 5)) == []


def test_dropped_rows_leave_their_keys(store, make_entry):
    entries = [make_entry(timestamp=n) for n in range(6)] + [make_entry(id=b"id")]
    store.append(entries)
    assert store.drop(4, limit=3) == 3
    assert store.first_hot_offset == 3
    assert store.drop(4, limit=3) == 1
    assert store.drop(4, limit=3) == 0
    assert store.first_hot_offset == 4
    assert [row.offset for row in store.read(0, 10)] == [4, 5, 6]
    assert [(p.offset, p.key, p.row is None) for p in walk_all(store, Range(TOPIC), 2)] == [
        (n, entry.order_key, n < 4) for n, entry in enumerate(entries)
    ]
    assert store.append(entries) == [DUPLICATE] * 7
    assert store.find(Protocol.STREAMR, b"id").offset == 6


def test_offsets_go_on_when_everything_was_dropped(store, make_entry):
    store.append([make_entry(timestamp=1), make_entry(kind=Kind.REFUSED), make_entry(id=b"i", timestamp=3)])
    assert store.drop(100, limit=100) == 3
    assert (store.first_hot_offset, store.next_offset) == (3, 3)
    assert store.find(Protocol.STREAMR, b"i") is None
    assert store.read(0, 10) == []
    assert store.append([make_entry(timestamp=1), make_entry(timestamp=2)]) == [DUPLICATE, 3]
    assert [row.offset for row in store.read(0, 10)] == [3]
    assert [place.row is None for place in store.walk_last(TOPIC, 2)] == [False, True]


def test_rows_stay_in_the_epoch_they_were_kept_in(store, make_entry):
    before = store.epoch
    store.append([make_entry(timestamp=1)])
    after = store.new_epoch()
    assert after != before
    assert 0 <= after < 2**63
    assert store.epoch == after
    store.append([make_entry(timestamp=2)])
    assert [row.epoch for row in store.read(0, 2)] == [before, after]


def test_small_values_stand_beside_the_log(store):
    node, epoch = store.node, store.epoch
    for name in ("node", "epoch", "format", "floor", "sealed", "ü"):
        assert store.get_meta(name) is None
        store.put_meta(name, b"old" + name.encode())
        store.put_meta(name, b"new" + name.encode())
    for name in ("node", "epoch", "format", "floor", "sealed", "ü"):
        assert store.get_meta(name) == b"new" + name.encode()
    store.put_meta("sealed", b"")
    assert store.get_meta("sealed") == b""
    assert (store.node, store.epoch, store.first_hot_offset) == (node, epoch, 0)


def test_small_values_are_kept_and_forgotten_together_and_found_by_their_beginning(store):
    store.put_metas({"a/1": b"one", "a/ü": b"two", "b/1": b"three", "a": b"", "a0": b"x"})
    assert store.metas("a/") == [("a/1", b"one"), ("a/ü", b"two")]
    store.put_metas({"a/1": None, "a/2": b"four", "never": None})
    assert store.metas("a/") == [("a/2", b"four"), ("a/ü", b"two")]
    assert store.get_meta("a/1") is None
    assert [name for name, _ in store.metas("")] == ["a", "a/2", "a/ü", "a0", "b/1"]


@pytest.mark.parametrize(
    "change",
    [
        {"timestamp": -1},
        {"timestamp": 2**63},
        {"sequence": -1},
        {"sequence": 2**64},
        {"partition": -1},
        {"prev_timestamp": 2**63},
        {"event_time": 2**63},
        {"received_at": -(2**63) - 1},
        {"version": 2**31},
    ],
)
@pytest.mark.parametrize("kind", [Kind.MESSAGE, Kind.REFUSED])
def test_a_number_that_cannot_be_kept_fails_its_whole_batch(store, make_entry, change, kind):
    store.append([make_entry(timestamp=1)])
    batch = [make_entry(topic="new", protocol=Protocol.MOSAIC, id=b"id"), make_entry(timestamp=2)]
    with pytest.raises(ValueError, match="cannot be kept"):
        store.append([*batch, make_entry(kind=kind, topic="newer", **change)])
    assert store.next_offset == 1
    assert store.walk(Range(Topic("new", 0)), limit=1) == ([], None)
    assert store.find(Protocol.MOSAIC, b"id") is None
    assert store.append(batch) == [1, 2]


def test_a_full_store_keeps_nothing_of_the_batch_and_goes_on(small_store, make_entry):
    store = small_store
    kept = 0
    with pytest.raises(errors.StoreFull):
        for n in range(1000):
            store.append([make_entry(timestamp=n, sequence=s, raw=bytes(1000)) for s in range(10)])
            kept = n + 1
    assert 10 < kept < 40
    assert store.next_offset == kept * 10
    assert [row.offset for row in store.read(0, 1000)] == list(range(kept * 10))
    assert len(walk_all(store, Range(TOPIC))) == kept * 10
    assert store.drop(kept * 10, limit=100) == 100
    batch = [make_entry(timestamp=kept, sequence=s, raw=bytes(1000)) for s in range(10)]
    assert store.append(batch) == list(range(kept * 10, kept * 10 + 10))


def test_readers_see_whole_batches_while_one_thread_appends(store, make_entry):
    batches, size = 60, 7
    done = threading.Event()
    torn: list[object] = []

    def look():
        while not done.is_set():
            seen = store.next_offset
            rows = store.read(max(0, seen - 20), 100)
            places = store.walk_last(TOPIC, 15)
            numbers = [row.offset for row in rows]
            whole = seen % size == 0 and numbers == list(range(max(0, seen - 20), max(0, seen - 20) + len(numbers)))
            if not whole or any(place.row is None or place.row.entry.timestamp != place.offset for place in places):
                torn.append((seen, numbers, places))
                return

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for n in range(batches):
            store.append([make_entry(timestamp=n * size + i, publisher=f"p{n}") for i in range(size)])
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert torn == []
    assert store.next_offset == batches * size


class Naive:
    """The contract as a list and loops."""

    def __init__(self):
        self.rows: list[model.Row] = []
        self.floor = 0

    def identity(self, entry):
        if entry.kind in (Kind.REFUSED, Kind.DUPLICATE):
            return None
        return (entry.protocol, entry.id) if entry.id else (entry.topic, entry.partition, entry.order_key)

    def append(self, entries, epoch):
        answer = []
        for entry in entries:
            mine = self.identity(entry)
            if mine is not None and any(self.identity(row.entry) == mine for row in self.rows):
                answer.append(DUPLICATE)
            else:
                answer.append(len(self.rows))
                self.rows.append(model.Row(len(self.rows), epoch, entry))
        return answer

    def hot(self, row):
        return row if row.offset >= self.floor else None

    def places(self, question):
        return {
            (row.entry.order_key, row.offset)
            for row in self.rows
            if self.identity(row.entry) is not None
            and (row.entry.topic, row.entry.partition, row.entry.protocol) == question.topic
            and question.start <= (row.entry.timestamp, row.entry.sequence) <= question.end
            and question.publisher in (None, row.entry.publisher)
            and question.chain in (None, row.entry.chain)
        }


def random_entry(rng, make_entry):
    protocol = rng.choice([Protocol.STREAMR, Protocol.STREAMR, Protocol.MOSAIC])
    return make_entry(
        kind=rng.choice([Kind.MESSAGE] * 6 + [Kind.REFUSED, Kind.DUPLICATE]),
        protocol=protocol,
        id=b"" if protocol is Protocol.STREAMR else bytes([rng.randrange(40)]) * rng.choice([1, 600]),
        topic=rng.choice("ab"),
        partition=rng.randrange(2),
        publisher=f"p{rng.randrange(4)}",
        chain=f"c{rng.randrange(3)}",
        timestamp=rng.choice([0, 1, 255, 256, 2**32, 2**53 - 1]),
        sequence=rng.randrange(4),
        raw=rng.randbytes(rng.choice([0, 10, 5000])),
    )


def random_question(rng):
    ref = lambda: Ref(rng.choice([0, 1, 256, 2**32, 2**53 - 1]), rng.randrange(4))  # noqa: E731
    return Range(
        Topic(rng.choice("abc"), rng.randrange(2), rng.choice([Protocol.STREAMR, Protocol.STREAMR, Protocol.MOSAIC])),
        rng.choice([model.FIRST_REF, ref()]),
        rng.choice([model.LAST_REF, ref()]),
        rng.choice([None, None, "p1", "nobody"]),
        rng.choice([None, None, "c2"]),
    )


def check_walk(store: base.Store, naive: Naive, rng: random.Random) -> None:
    question = random_question(rng)
    places = walk_all(store, question, rng.choice([1, 2, 5, 100]))
    assert len(places) == len({place.offset for place in places})
    assert {(place.key, place.offset) for place in places} == naive.places(question)
    refs = [(place.key.timestamp, place.key.sequence) for place in places]
    assert refs == sorted(refs)
    assert [place.row for place in places] == [naive.hot(naive.rows[place.offset]) for place in places]
    assert places == walk_all(store, question, 1000)
    whole = walk_all(store, Range(question.topic))
    count = rng.randrange(1, 10)
    assert store.walk_last(question.topic, count) == whole[-count:]


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_agree_with_a_list(store, make_entry, seed):
    rng = random.Random(seed)
    naive = Naive()
    for _ in range(60):
        act = rng.randrange(10)
        if act < 5:
            batch = [random_entry(rng, make_entry) for _ in range(rng.randrange(1, 12))]
            assert store.append(batch) == naive.append(batch, store.epoch)
        elif act < 7:
            check_walk(store, naive, rng)
        elif act == 7:
            before, limit = rng.randrange(len(naive.rows) + 1), rng.randrange(1, 6)
            gone = max(0, min(before - naive.floor, limit))
            assert store.drop(before, limit=limit) == gone
            naive.floor += gone
        elif act == 8:
            start, limit = rng.randrange(len(naive.rows) + 1), rng.randrange(1, 20)
            assert store.read(start, limit) == naive.rows[max(start, naive.floor) :][:limit]
        else:
            wanted = bytes([rng.randrange(40)]) * rng.choice([1, 600])
            row = next((r for r in naive.rows if naive.identity(r.entry) == (Protocol.MOSAIC, wanted)), None)
            assert store.find(Protocol.MOSAIC, wanted) == (row and naive.hot(row))
            if rng.random() < 0.2:
                store.new_epoch()
        assert (store.next_offset, store.first_hot_offset) == (len(naive.rows), naive.floor)
