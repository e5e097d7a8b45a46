"""What only the durable store must do: survive, notice damage, run out of room and go on, share its folder."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
from contextlib import contextmanager

import lmdb
import pytest

from catchment import errors, model
from catchment.model import Kind, Protocol, Range, Topic
from catchment.store.base import DUPLICATE
from catchment.store.environment import STORE_FORMAT
from catchment.store.lmdb import LmdbStore

TOPIC = Topic("0xab/stream", 0)
MOSAIC = TOPIC._replace(protocol=Protocol.MOSAIC)

CHILD = """
import resource, sys
from catchment import errors, model
from catchment.store.lmdb import LmdbStore

def entry(timestamp, **changes):
    fields = dict(
        kind=model.Kind.MESSAGE, protocol=model.Protocol.STREAMR, version=32, topic="0xab/stream", partition=0,
        publisher="0xcd", chain="chain", timestamp=timestamp, sequence=0, prev_timestamp=None, prev_sequence=None,
        event_time=0, id=b"", verdict=model.Verdict.OK, received_at=0, raw=b"%d" % timestamp,
    )
    return model.Entry(**(fields | changes))
"""


def child(script, *arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-c", CHILD + script, *map(str, arguments)], stdout=subprocess.PIPE, text=True, **options
    )


def run_child(script, *arguments):
    """Run a script in a process of its own and return what it printed."""
    with child(script, *arguments) as process:
        printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0, printed
    return printed.split("\n")[:-1]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "some" / "hot"


@contextmanager
def opened(folder, **options):
    store = LmdbStore.open(folder, **options)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def raw_databases(folder):
    """The store's own databases, to damage them."""
    with lmdb.open(str(folder), map_size=1 << 30, max_dbs=5) as env, env.begin(write=True) as txn:
        yield txn, lambda name: env.open_db(name, txn=txn, create=False)


def key(offset):
    return offset.to_bytes(8, "big")


def test_everything_is_there_after_opening_again(folder, make_entry):
    with opened(folder) as store:
        node, epoch = store.node, store.epoch
        store.append([make_entry(timestamp=n, topic="x" * 600, publisher=f"p{n}") for n in range(5)])
        store.append([make_entry(protocol=Protocol.MOSAIC, id=b"id"), make_entry(kind=Kind.REFUSED)])
        store.put_meta("sealed", b"4")
        store.drop(2, limit=10)
        rows, places = store.read(0, 100), store.walk(Range(Topic("x" * 600, 0)), limit=100)
    with opened(folder) as store:
        assert (store.node, store.epoch, store.get_meta("sealed")) == (node, epoch, b"4")
        assert (store.first_hot_offset, store.next_offset) == (2, 7)
        assert store.read(0, 100) == rows
        assert store.walk(Range(Topic("x" * 600, 0)), limit=100) == places
        assert store.append([make_entry(timestamp=0, topic="x" * 600, publisher="p0")]) == [DUPLICATE]
        assert store.append([make_entry(timestamp=9, topic="x" * 600, publisher="p0")]) == [7]
        assert store.drop(100, limit=100) == 6
    with opened(folder) as store:
        assert (store.first_hot_offset, store.next_offset) == (8, 8)
        assert store.append([make_entry(timestamp=10)]) == [8]


def test_a_new_epoch_is_kept(folder):
    with opened(folder) as store:
        epoch = store.new_epoch()
    with opened(folder) as store:
        assert store.epoch == epoch


def test_randomness_can_be_given(folder):
    seeded = random.Random(1)
    node, epoch = seeded.randbytes(16), int.from_bytes(seeded.randbytes(8), "big") >> 1
    with opened(folder, random_bytes=random.Random(1).randbytes) as store:
        assert (store.node, store.epoch) == (node, epoch)
    with opened(folder.with_name("other")) as store:
        assert (store.node, store.epoch) != (node, epoch)


def test_commits_are_synced_by_lmdb_itself(folder):
    with opened(folder) as store:
        flags = store._env.flags()
        assert (flags["sync"], flags["metasync"], flags["writemap"], flags["map_async"]) == (True, True, False, False)
        assert flags["lock"]


def test_the_folder_is_for_its_owner_only(folder):
    with opened(folder):
        assert folder.stat().st_mode & 0o077 == 0
        assert (folder / "data.mdb").stat().st_mode & 0o077 == 0


def test_asking_a_closed_store_is_our_fault(folder, make_entry):
    store = LmdbStore.open(folder)
    store.close()
    store.close()
    for ask in (
        lambda: store.read(0, 1),
        lambda: store.append([make_entry()]),
        lambda: store.drop(1, limit=1),
        lambda: store.next_offset,
        store.sync,
    ):
        with pytest.raises(errors.OurFault):
            ask()


# Sharing


def test_another_process_may_write_between_two_batches(folder, make_entry):
    theirs = """
with_new = LmdbStore.open(sys.argv[1])
print(with_new.append([entry(1), entry(2, publisher="0xsecond"), entry(3, topic="theirs", chain="theirs")]))
print(with_new.new_epoch())
with_new.put_meta("their", b"value")
with_new.close()
"""
    with opened(folder) as store:
        first_epoch = store.epoch
        assert store.append([make_entry(timestamp=1)]) == [0]
        printed = run_child(theirs, folder)
        assert printed[0] == "[-1, 1, 2]"
        assert (store.next_offset, store.epoch, store.get_meta("their")) == (3, int(printed[1]), b"value")
        mine = [
            make_entry(timestamp=2, publisher="0xsecond"),
            make_entry(timestamp=4, topic="mine", publisher="0xthird"),
            make_entry(timestamp=5, topic="theirs", chain="mine"),
        ]
        assert store.append(mine) == [DUPLICATE, 3, 4]
        rows = store.read(0, 10)
        assert [(row.entry.topic, row.entry.publisher, row.entry.chain) for row in rows] == [
            ("0xab/stream", "0xcd", "chain"),
            ("0xab/stream", "0xsecond", "chain"),
            ("theirs", "0xcd", "theirs"),
            ("mine", "0xthird", "chain"),
            ("theirs", "0xcd", "mine"),
        ]
        assert [row.epoch == first_epoch for row in rows] == [True, True, True, False, False]
        assert [place.offset for place in store.walk_last(Topic("theirs", 0), 5)] == [2, 4]


def test_two_processes_appending_at_once_share_one_dense_log(folder, make_entry):
    script = """
store = LmdbStore.open(sys.argv[1])
print("ready", flush=True)
for n in range(100):
    store.append([entry(n * 5 + i, publisher="theirs%d" % (n % 7)) for i in range(5)])
store.close()
"""
    with opened(folder) as store, child(script, folder) as process:
        assert process.stdout.readline() == "ready\n"
        for n in range(100):
            store.append([make_entry(timestamp=n * 5 + i, publisher=f"mine{n % 7}") for i in range(5)])
        process.communicate(timeout=120)
        assert process.returncode == 0
        rows = store.read(0, 2000)
        assert [row.offset for row in rows] == list(range(1000))
        for side in ("mine", "theirs"):
            own = [row.entry for row in rows if row.entry.publisher.startswith(side)]
            assert [entry.timestamp for entry in own] == list(range(500))
            assert [entry.publisher for entry in own] == [f"{side}{n // 5 % 7}" for n in range(500)]


def test_opening_twice_in_one_process_is_refused(folder):
    with opened(folder), pytest.raises(errors.UserError, match="already open"):
        LmdbStore.open(folder)


# No room


def fill(store, make_entry, start=0, size=10):
    """Append batches until there is no more room; returns the number of the batch that was refused."""
    with pytest.raises(errors.StoreFull):
        for n in range(start, start + 100_000):
            store.append([make_entry(timestamp=n, sequence=s, publisher=f"p{n}", raw=bytes(900)) for s in range(size)])
    return n


def test_a_full_map_refuses_and_recovers_by_dropping(folder, make_entry):
    with opened(folder, map_size=1 << 20) as store:
        full = fill(store, make_entry)
        assert full > 20
        assert store.next_offset == full * 10
        assert len(store.read(0, 10_000)) == full * 10
        for n in range(full, full + 60):
            batch = [make_entry(timestamp=n, sequence=s, publisher=f"p{n}", raw=bytes(900)) for s in range(10)]
            try:
                offsets = store.append(batch)
            except errors.StoreFull:
                assert store.drop(store.next_offset - 50, limit=100) == 100
                offsets = store.append(batch)
            assert offsets == list(range(n * 10, n * 10 + 10))
        for place in store.walk_last(TOPIC, 50):
            assert place.row.entry.publisher == f"p{place.key.timestamp}"


@pytest.mark.parametrize("limit", [1, 10, 1000])
def test_a_map_filled_to_the_brim_can_still_be_dropped_from(folder, make_entry, limit):
    with opened(folder, map_size=1 << 18) as store:
        full = fill(store, make_entry)
        refused = 0
        for n in range(10**6, 10**6 + 100_000):
            try:
                store.append([make_entry(timestamp=n, raw=bytes(200))])
            except errors.StoreFull:
                refused += 1
                if refused == 5:
                    break
        for _ in range(20):
            before = store.first_hot_offset
            assert store.drop(full * 10, limit=limit) == min(limit, full * 10 - before)


def test_a_batch_greater_than_the_map_is_refused_whole(folder, make_entry):
    with opened(folder, map_size=1 << 20) as store:
        store.append([make_entry(timestamp=1)])
        with pytest.raises(errors.StoreFull):
            store.append([make_entry(timestamp=n, topic=f"new{n}", raw=bytes(10_000)) for n in range(2, 300)])
        assert store.next_offset == 1
        assert store.walk(Range(Topic("new2", 0)), limit=1) == ([], None)
        assert store.append([make_entry(timestamp=n, topic=f"other{n}") for n in range(3)]) == [1, 2, 3]
        assert store.append([make_entry(timestamp=2, topic="new2")]) == [4]
        assert [row.entry.topic for row in store.read(1, 10)] == ["other0", "other1", "other2", "new2"]


def test_the_bytes_in_use_can_be_bounded(folder, make_entry):
    with opened(folder, max_bytes=400_000) as store:
        full = fill(store, make_entry)
        assert 250_000 < store.used_bytes <= 400_000
        assert store.drop(store.next_offset, limit=100) == 100
        assert store.used_bytes < 350_000
        assert fill(store, make_entry, start=full) > full
    with opened(folder) as store:
        fine = [make_entry(timestamp=n, topic="more", raw=bytes(900)) for n in range(500)]
        assert len(store.append(fine)) == 500


@pytest.mark.parametrize(("size", "count"), [(900, 7), (3000, 1), (100_000, 3)])
def test_a_full_disk_refuses_and_recovers_without_a_restart(folder, make_entry, size, count):
    script = """
folder, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = LmdbStore.open(folder)
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
kept = 0
for limit in (1_000_000, 1_500_001, 2_097_152):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, unlimited))
    refused = 0
    while refused < 3:
        try:
            store.append([entry(kept + i, raw=bytes(size), publisher="p%d" % kept) for i in range(count)])
            assert not refused, "room came from nowhere"
            kept += count
        except errors.StoreFull:
            refused += 1
            assert store.next_offset == kept
            assert len(store.read(0, 10_000)) == kept
    print(kept)
resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))
print(store.append([entry(kept)]))
store.close()
"""
    *kept, last = run_child(script, folder, size, count)
    kept = list(map(int, kept))
    assert 0 < kept[0] < kept[1] < kept[2]
    assert last == f"[{kept[2]}]"
    with opened(folder) as store:
        rows = store.read(0, 10_000)
        assert [row.offset for row in rows] == list(range(kept[2] + 1))
        assert [row.entry.timestamp for row in rows] == list(range(kept[2] + 1))


@pytest.mark.parametrize(
    ("number", "full"),
    [(errno.EIO, False), (errno.EACCES, False), (0, False), (errno.ENOSPC, True), (errno.EDQUOT, True)],
)
def test_a_disk_with_room_that_fails_is_not_called_full(folder, make_entry, number, full):
    error = lmdb.Error("mdb_txn_commit")
    error.code = number
    with opened(folder) as store:
        assert store._is_full(error, [make_entry()]) is full
        assert store.append([make_entry()]) == [0]


def test_a_smaller_map_is_taken_where_the_system_refuses_a_large_one(folder):
    script = """
resource.setrlimit(resource.RLIMIT_AS, (1 << 34, 1 << 34))
try:
    LmdbStore.open(sys.argv[1], map_size=1 << 40)
except errors.UserError as error:
    print(error)
store = LmdbStore.open(sys.argv[1])
print(store.append([entry(1)]))
"""
    refused, kept = run_child(script, folder)
    assert f"refuses a memory map of {1 << 40} bytes" in refused
    assert "smaller map size" in refused
    assert kept == "[0]"


# What senders choose does not grow the tables


def count_names(folder):
    with raw_databases(folder) as (txn, db):
        return txn.stat(db(b"names"))["entries"]


def test_refused_repeated_and_failed_entries_intern_nothing(folder, make_entry):
    with opened(folder) as store:
        store.append([make_entry(protocol=Protocol.MOSAIC, id=b"id")])
    before = count_names(folder)
    with opened(folder) as store:
        for n, kind in enumerate([Kind.REFUSED, Kind.DUPLICATE] * 20):
            store.append([make_entry(kind=kind, topic=f"t{n}", publisher=f"p{n}", chain=f"c{n}")])
        repeats = [make_entry(protocol=Protocol.MOSAIC, id=b"id", topic=f"t{n}", publisher=f"p{n}") for n in range(20)]
        assert store.append(repeats) == [DUPLICATE] * 20
        with pytest.raises(ValueError, match="cannot be kept"):
            store.append([make_entry(topic="new"), make_entry(topic="newer", timestamp=-1)])
    assert count_names(folder) == before


# Damage


@pytest.fixture
def filled(folder, make_entry):
    with opened(folder) as store:
        store.append(
            [make_entry(timestamp=n, raw=bytes(50), protocol=Protocol.MOSAIC, id=bytes([n])) for n in range(8)]
        )
    return folder


def asks(store, offset):
    """Every way to come to a row."""
    return [
        lambda: store.read(0, 100),
        lambda: store.read(offset, 1),
        lambda: store.read_block(0, 100),
        lambda: store.read_block(offset, 1),
        lambda: store.walk(Range(MOSAIC), limit=100),
        lambda: store.walk_last(MOSAIC, 8),
        lambda: store.find(Protocol.MOSAIC, bytes([offset])),
    ]


@pytest.mark.parametrize("seed", range(25))
def test_a_flipped_bit_is_noticed_named_and_left_alone(filled, seed):
    rng = random.Random(seed)
    offset = rng.randrange(8)
    with raw_databases(filled) as (txn, db):
        rows = db(b"rows")
        good = txn.get(key(offset), db=rows)
        bad = bytearray(good)
        bit = rng.randrange(len(bad) * 8)
        bad[bit // 8] ^= 1 << bit % 8
        txn.put(key(offset), bytes(bad), db=rows)
    with opened(filled) as store:
        for ask in asks(store, offset):
            with pytest.raises(errors.StoreCorrupt, match=f"offset {offset} "):
                ask()
        assert [row.offset for row in store.read(0, offset)] == list(range(offset))
        assert store.next_offset == 8
    with raw_databases(filled) as (txn, db):
        assert txn.get(key(offset), db=db(b"rows")) == bytes(bad)


def test_a_missing_row_is_noticed(filled):
    with raw_databases(filled) as (txn, db):
        txn.delete(key(3), db=db(b"rows"))
    with opened(filled) as store:
        for ask in asks(store, 3):
            with pytest.raises(errors.StoreCorrupt, match="offset 3 is missing"):
                ask()


def test_an_index_that_leads_to_another_row_is_noticed(filled):
    with raw_databases(filled) as (txn, db):
        for name in (b"order", b"ids"):
            index = db(name)
            (first, second), *_ = zip(*list(txn.cursor(db=index))[:2], strict=True)
            values = txn.get(first, db=index), txn.get(second, db=index)
            for at, value in ((first, values[1]), (second, values[0])):
                txn.delete(at, db=index)
                txn.put(at, value, db=index)
    with opened(filled) as store:
        assert len(store.read(0, 10)) == 8
        for ask in asks(store, 0)[4:]:
            with pytest.raises(errors.StoreCorrupt, match="does not belong"):
                ask()


def test_a_row_moved_to_another_offset_is_noticed(filled):
    with raw_databases(filled) as (txn, db):
        rows = db(b"rows")
        txn.put(key(3), txn.get(key(4), db=rows), db=rows)
    with opened(filled) as store, pytest.raises(errors.StoreCorrupt, match="offset 3 belongs to offset 4"):
        store.read(3, 1)


@pytest.mark.parametrize("name", [b"names", b"meta"])
def test_damaged_names_and_values_are_noticed(filled, make_entry, name):
    with raw_databases(filled) as (txn, db):
        damaged = db(name)
        for at, value in list(txn.cursor(db=damaged)):
            if at not in (b"format", b"node"):
                txn.put(at, value[:-1] + bytes([value[-1] ^ 1]), db=damaged)
    with opened(filled) as store:
        with pytest.raises(errors.StoreCorrupt, match="checksum"):
            store.append([make_entry(timestamp=100)])
        with pytest.raises(errors.StoreCorrupt, match="checksum"):
            (store.epoch, store.walk(Range(MOSAIC), limit=1))


def test_a_name_that_is_gone_is_noticed(filled):
    with raw_databases(filled) as (txn, db):
        names = db(b"names")
        for at, _ in list(txn.cursor(db=names)):
            if at.startswith(b"\xff"):
                txn.delete(at, db=names)
    with opened(filled) as store, pytest.raises(errors.StoreCorrupt, match="no name number"):
        store.read(0, 1)


# Folders that are not ours


def test_a_store_of_a_newer_format_is_refused_and_left_alone(filled):
    with raw_databases(filled) as (txn, db):
        txn.put(b"format", b"catchment-store %d" % (STORE_FORMAT + 1), db=db(b"meta"))
    for _ in range(2):
        with pytest.raises(errors.UserError, match=r"newer Catchment \(store format 2, .* up to 1\): upgrade"):
            LmdbStore.open(filled)
    with raw_databases(filled) as (txn, db):
        txn.put(b"format", b"catchment-store %d" % STORE_FORMAT, db=db(b"meta"))
    with opened(filled) as store:
        assert store.next_offset == 8


def test_another_program_s_database_is_refused_and_left_alone(tmp_path):
    with lmdb.open(str(tmp_path / "a"), max_dbs=1) as env:
        theirs = env.open_db(b"theirs")
        with env.begin(write=True) as txn:
            txn.put(b"k", b"v", db=theirs)
    with lmdb.open(str(tmp_path / "b"), max_dbs=1) as env:
        env.open_db(b"meta")
    for name in ("a", "b"):
        with pytest.raises(errors.UserError, match="not a store"):
            LmdbStore.open(tmp_path / name)
        with lmdb.open(str(tmp_path / name), max_dbs=1) as env, env.begin() as txn:
            assert txn.stat()["entries"] == 1


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "hot").mkdir()
    (tmp_path / "hot" / "data.mdb").write_bytes(b"not a database" * 1000)
    with pytest.raises(errors.UserError, match="not a store"):
        LmdbStore.open(tmp_path / "hot")
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.UserError, match="cannot be opened"):
        LmdbStore.open(tmp_path / "file")


# Sudden death


@pytest.mark.crash
def test_what_was_acknowledged_survives_kill_9(folder):
    script = """
import random
rng = random.Random(int(sys.argv[2]))
store = LmdbStore.open(sys.argv[1])
while True:
    start = store.next_offset
    batch = [entry(start + i, publisher="p%d" % rng.randrange(1000)) for i in range(rng.randrange(1, 40))]
    offsets = store.append(batch)
    print(offsets[0], offsets[-1], flush=True)
    if rng.random() < 0.1:
        store.drop(offsets[0] - 500, limit=20)
"""
    acknowledged = 0
    for seed in range(12):
        rng = random.Random(seed)
        with child(script, folder, seed) as process:
            lines = [process.stdout.readline() for _ in range(rng.randrange(1, 60))]
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.readlines()
        assert process.returncode == -signal.SIGKILL
        for line in lines:
            if line.endswith("\n"):
                first, last = map(int, line.split())
                assert first == acknowledged or line is lines[0]
                acknowledged = last + 1
        with opened(folder) as store:
            assert store.next_offset >= acknowledged
            rows = store.read(0, 1_000_000)
            assert [row.offset for row in rows] == list(range(store.first_hot_offset, store.next_offset))
            assert [row.entry.raw for row in rows] == [b"%d" % row.offset for row in rows]
            places = store.walk_last(TOPIC, 1_000_000)
            assert [(p.key.timestamp, p.offset) for p in places] == [(n, n) for n in range(store.next_offset)]
            acknowledged = store.next_offset
    assert acknowledged > 100


@pytest.mark.crash
def test_a_killed_reader_does_not_keep_pages_for_ever(folder, make_entry):
    reader = """
import lmdb
env = lmdb.open(sys.argv[1], map_size=1 << 20, max_dbs=5)
txn = env.begin()
print("reading", flush=True)
sys.stdin.read()
"""
    with opened(folder, map_size=1 << 20) as store:
        fill(store, make_entry)
        with child(reader, folder, stdin=subprocess.PIPE) as process:
            assert process.stdout.readline() == "reading\n"
            os.kill(process.pid, signal.SIGKILL)
        for n in range(40):
            while True:
                try:
                    store.append([make_entry(timestamp=10**6 + n, sequence=s, raw=bytes(900)) for s in range(10)])
                    break
                except errors.StoreFull:
                    assert store.drop(store.next_offset, limit=20) == 20
        assert isinstance(store.walk_last(TOPIC, 1)[0].row, model.Row)
