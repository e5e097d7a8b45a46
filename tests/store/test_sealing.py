"""Sealing: every row of the log once in the raw table, whatever happens in between."""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3
from deltalake import DeltaTable, write_deltalake

from catchment import lake, model
from catchment.errors import OurFault, UserError
from catchment.store import rawtable, sealing
from catchment.store.base import Store
from catchment.store.lmdb import LmdbStore
from catchment.store.memory import MemoryStore
from catchment.store.proof import verify_lake
from catchment.store.rawtable import RawTable
from catchment.store.sealing import Sealer, read_heads, retire

from . import lakehelp
from .lakehelp import NOW, batches, entry, log_rows, mixed, open_store, sealed_rows


@pytest.fixture(params=["memory", "lmdb"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(kind: str, tmp_path: Path) -> Iterator[Store]:
    opened = open_store(kind, tmp_path / "store")
    yield opened
    opened.close()


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "a lake")


def expected_row(node: bytes, row: model.Row) -> dict[str, object]:
    """What the raw table should say of a row, written down from lake.py and DESIGN.md, not from the code."""
    one = row.entry
    received_at = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=one.received_at)
    key = [one.topic, one.partition, one.timestamp, one.sequence, one.publisher, one.chain]
    key_json = json.dumps(key, separators=(",", ":"), ensure_ascii=False).encode()
    return {
        "node": node,
        "epoch": row.epoch,
        "offset": row.offset,
        "received_at": received_at,
        "kind": one.kind.name.lower(),
        "version": one.version,
        "topic": one.topic,
        "partition": one.partition,
        "publisher": one.publisher,
        "chain": one.chain,
        "timestamp": one.timestamp,
        "sequence": one.sequence,
        "prev_timestamp": one.prev_timestamp,
        "prev_sequence": one.prev_sequence,
        "event_time": one.event_time,
        "id": key_json if one.protocol is model.Protocol.STREAMR else one.id,
        "verdict": one.verdict.name.lower(),
        "raw": one.raw,
        "crc": crc32(one.raw),
        "protocol": one.protocol.name.lower(),
        "date": received_at.date(),
    }


def expected_rows(*stores: Store) -> list[dict[str, object]]:
    rows = [expected_row(store.node, row) for store in stores for row in log_rows(store)]
    return sorted(rows, key=lambda row: (row["node"], row["epoch"], row["offset"]))  # type: ignore[arg-type,return-value]


def test_the_table_says_what_the_log_says(store: Store, address: str) -> None:
    store.append(mixed(300, seed=1))
    sealed = Sealer(store, address).seal()
    assert sealed is not None
    assert (sealed.first, sealed.last, sealed.rows, sealed.epoch) == (0, 299, 300, store.epoch)
    assert sealed_rows(address) == expected_rows(store)
    assert verify_lake(address, heads=read_heads(store)).ok


def test_nothing_new_seals_nothing(store: Store, address: str) -> None:
    sealer = Sealer(store, address)
    assert sealer.seal() is None
    assert sealer.last_sealed() == -1
    store.append(mixed(20, seed=2))
    assert sealer.seal() is not None
    version = DeltaTable(lake.raw_address(address)).version()
    assert sealer.seal() is None
    assert Sealer(store, address).seal_all() == []
    assert DeltaTable(lake.raw_address(address)).version() == version
    assert sealer.last_sealed() == 19
    assert sealed_rows(address) == expected_rows(store)


def test_slices_are_chained_by_the_documented_digest(store: Store, address: str) -> None:
    store.append(mixed(50, seed=3))
    done = Sealer(store, address).seal_all(max_rows=20)
    assert [(one.first, one.last) for one in done] == [(0, 19), (20, 39), (40, 49)]
    rows = {row["offset"]: row for row in sealed_rows(address)}
    previous = bytes(32)
    for one in done:
        assert one.previous == previous.hex()
        digest = blake3(previous)
        for offset in range(one.first, one.last + 1):
            values = [rows[offset][name] for name in lake.DIGEST_COLUMNS]
            since = rows[offset]["received_at"] - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)  # type: ignore[operator]
            values[lake.DIGEST_COLUMNS.index("received_at")] = since // dt.timedelta(microseconds=1)
            digest.update(msgspec.msgpack.encode(values))
        previous = digest.digest()
        assert one.digest == previous.hex()


def test_commits_carry_transaction_and_note(store: Store, address: str) -> None:
    store.append(mixed(30, seed=4))
    first, second = Sealer(store, address).seal_all(max_rows=15)
    table = DeltaTable(lake.raw_address(address))
    app = lake.seal_app(store.node, store.epoch)
    assert table.transaction_version(app) == 29
    newest = table.history(1)[0]
    note = {"node": store.node.hex(), "epoch": store.epoch, "first": 15, "last": 29, "rows": 15}
    assert note.items() <= newest.items()
    assert (newest["digest"], newest["previous"]) == (second.digest, first.digest)
    assert newest["version"] == second.version
    assert read_heads(store) == {app: f"29:{second.digest}"}


def test_layout_of_the_table(store: Store, address: str) -> None:
    store.append(mixed(300, seed=5))
    Sealer(store, address).seal()
    table = DeltaTable(lake.raw_address(address))
    properties = table.metadata().configuration
    assert properties[lake.FORMAT_PROPERTY] == lake.RAW_FORMAT
    assert properties["delta.enableExpiredLogCleanup"] == "false"
    assert table.metadata().partition_columns == ["protocol", "date"]
    table.cleanup_metadata()
    assert len(list(RawTable(table).commits())) == 2
    found = RawTable(table).live_files()
    assert {(file.protocol, file.date) for file in found} == {
        (protocol, date) for protocol in ("streamr", "mosaic") for date in ("2026-09-21", "2026-09-22")
    }
    for file in found:
        parquet = pq.ParquetFile(Path(lake.raw_address(address)) / file.path)
        rows = parquet.read(columns=[*lake.SORT_COLUMNS, "offset"])
        order = list(zip(*(rows[name].to_pylist() for name in lake.SORT_COLUMNS), strict=True))
        assert order == sorted(order)
        assert parquet.metadata.row_group(0).column(0).compression == "ZSTD"
        assert (file.rows, file.offset) == (
            len(order),
            (min(rows["offset"].to_pylist()), max(rows["offset"].to_pylist())),
        )
        assert file.topic == (order[0][0], order[-1][0])


def test_a_transaction_covers_one_epoch(store: Store, address: str) -> None:
    store.append(mixed(10, seed=6))
    old = store.epoch
    new = store.new_epoch()
    sealer = Sealer(store, address)
    store.append(mixed(10, seed=7, start=10))
    done = sealer.seal_all()
    assert [(one.epoch, one.first, one.last) for one in done] == [(old, 0, 9), (new, 10, 19)]
    assert done[1].previous == lake.FIRST_DIGEST.hex()
    assert sealed_rows(address) == expected_rows(store)
    assert verify_lake(address, heads=read_heads(store)).ok


def test_the_end_of_an_old_epoch_is_sealed_by_a_new_process(store: Store, address: str) -> None:
    store.append(mixed(30, seed=8))
    Sealer(store, address).seal(max_rows=11)
    store.new_epoch()
    store.append(mixed(5, seed=9, start=30))
    done = Sealer(store, address).seal_all()
    assert [(one.first, one.last) for one in done] == [(11, 29), (30, 34)]
    assert sealed_rows(address) == expected_rows(store)


def test_large_messages_make_small_transactions(store: Store, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "MAX_BYTES", 1000)
    monkeypatch.setattr(sealing, "_READ_ROWS", 2)
    store.append([entry(number, raw=b"x" * 300) for number in range(10)])
    assert [one.rows for one in Sealer(store, address).seal_all()] == [4, 4, 2]
    assert sealed_rows(address) == expected_rows(store)


def test_rows_are_on_disk_before_the_transaction_that_names_them(
    store: Store, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append(mixed(50, seed=22))
    log = Path(lake.raw_address(address)) / "_delta_log"
    synced: list[tuple[str, int]] = []
    real = rawtable.sync_path

    def note(path: Path) -> None:
        synced.append((path.name, len(list(log.glob("*.json")))))
        real(path)

    monkeypatch.setattr(rawtable, "sync_path", note)
    sealed = Sealer(store, address).seal()
    assert sealed is not None
    when = dict(synced)
    for file in RawTable(DeltaTable(lake.raw_address(address))).live_files():
        assert when[Path(file.path).name] == 1
    assert when[f"{sealed.version:020d}.json"] == 2


class TestSeveralSealers:
    def test_two_nodes_in_one_table(self, kind: str, tmp_path: Path, address: str) -> None:
        left, right = open_store(kind, tmp_path / "left"), open_store(kind, tmp_path / "right")
        stores = [left, right]

        def work(store: Store, seed: int) -> None:
            for batch in batches(mixed(120, seed=seed), 10):
                store.append(batch)
                Sealer(store, address).seal()

        with ThreadPoolExecutor() as pool:
            list(pool.map(work, stores, range(2)))
        assert sealed_rows(address) == expected_rows(*stores)
        report = verify_lake(address, heads=read_heads(left) | read_heads(right))
        assert report.ok
        assert report.ranges == 24
        for store in stores:
            store.close()

    def test_two_sealers_of_one_node(self, store: Store, address: str, tmp_path: Path) -> None:
        store.append(mixed(200, seed=10))

        def work(_number: int) -> None:
            Sealer(store, address, lock_path=tmp_path / "seal.lock").seal_all(max_rows=10)

        with ThreadPoolExecutor() as pool:
            list(pool.map(work, range(3)))
        assert sealed_rows(address) == expected_rows(store)
        assert verify_lake(address, heads=read_heads(store)).ok

    def test_the_table_itself_refuses_a_second_sealer(
        self, store: Store, address: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without the lock: another seals the same rows between reading the table and committing."""
        store.append(mixed(30, seed=10))
        real = sealing._commit
        overtaken = []

        def overtake(*args: object) -> object:
            monkeypatch.setattr(sealing, "_commit", real)
            overtaken.append(Sealer(store, address).seal(max_rows=20))
            return real(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(sealing, "_commit", overtake)
        sealed = Sealer(store, address).seal(max_rows=10)
        assert overtaken[0] is not None
        assert sealed is not None
        assert (overtaken[0].last, sealed.first, sealed.last) == (19, 20, 29)
        assert sealed_rows(address) == expected_rows(store)
        assert verify_lake(address, heads=read_heads(store)).ok

    def test_the_lock_is_held_while_sealing(self, address: str, tmp_path: Path) -> None:
        lock = tmp_path / "seal.lock"
        tried = []

        class Watched(MemoryStore):
            def sync(self) -> None:
                with lock.open("ab") as file, pytest.raises(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                tried.append(True)

        store = Watched()
        store.append(mixed(5, seed=11))
        assert Sealer(store, address, lock_path=lock).seal() is not None
        assert tried
        with lock.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_a_stale_sealer_sees_what_another_sealed(self, store: Store, address: str) -> None:
        one, other = Sealer(store, address), Sealer(store, address)
        for start in range(0, 40, 10):
            store.append(mixed(10, seed=12, start=start))
            sealed = (one if start % 20 else other).seal()
            assert sealed is not None
            assert sealed.first == start
        assert verify_lake(address, heads=read_heads(store)).ok


class TestStoreAndLakeApart:
    def rolled_back(self, kind: str, tmp_path: Path, address: str) -> Store:
        """A store with 10 rows, a copy of one that had sealed 20."""
        before = open_store(kind, tmp_path / "before", seed=5)
        before.append(mixed(20, seed=13))
        Sealer(before, address).seal()
        before.close()
        store = open_store(kind, tmp_path / "after", seed=5)
        assert store.node == before.node
        store.append(mixed(10, seed=13))
        return store

    def test_rollback_begins_a_new_epoch(self, kind: str, tmp_path: Path, address: str) -> None:
        store = self.rolled_back(kind, tmp_path, address)
        old = store.epoch
        sealer = Sealer(store, address)
        with pytest.raises(OurFault, match="restored from a copy"):
            sealer.seal()
        done = sealer.check_rollback()
        assert done is not None
        assert (done.epoch, done.sealed_to, done.next_offset, done.new_epoch) == (old, 19, 10, store.epoch)
        assert sealer.check_rollback() is None
        assert sealer.seal() is None
        assert sealer.last_sealed() == 9
        store.append(mixed(30, seed=14, start=100))
        assert [(one.epoch, one.first, one.last) for one in sealer.seal_all()] == [(store.epoch, 10, 39)]
        assert sealer.last_sealed() == 39
        rows = [(row["epoch"], row["offset"]) for row in sealed_rows(address)]
        assert sorted(rows) == sorted([(old, at) for at in range(20)] + [(store.epoch, at) for at in range(10, 40)])
        assert verify_lake(address, heads=read_heads(store)).ok
        store.close()

    def test_no_rollback_when_lake_and_store_are_level(self, store: Store, address: str) -> None:
        sealer = Sealer(store, address)
        assert sealer.check_rollback() is None
        store.append(mixed(10, seed=15))
        sealer.seal()
        epoch = store.epoch
        assert sealer.check_rollback() is None
        assert store.epoch == epoch

    def test_a_rolled_back_store_that_was_written_to_is_refused(self, kind: str, tmp_path: Path, address: str) -> None:
        store = self.rolled_back(kind, tmp_path, address)
        store.append(mixed(30, seed=16, start=200))
        with pytest.raises(OurFault, match="not the same in store and lake"):
            Sealer(store, address).seal()
        assert len(sealed_rows(address)) == 20
        store.close()

    def test_a_lost_lake_is_sealed_again_while_all_is_hot(
        self, store: Store, address: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        store.append(mixed(20, seed=17))
        Sealer(store, address).seal()
        shutil.rmtree(address)
        with caplog.at_level(logging.WARNING):
            Sealer(store, address).seal_all()
        assert "lost offsets 0 to 19" in caplog.text
        assert sealed_rows(address) == expected_rows(store)

    def test_a_lost_lake_is_a_fault_once_rows_were_dropped(self, store: Store, address: str) -> None:
        store.append(mixed(20, seed=18))
        Sealer(store, address).seal()
        store.drop(5, limit=5)
        shutil.rmtree(address)
        with pytest.raises(OurFault, match="lacks offsets 0 to 4"):
            Sealer(store, address).seal()

    def test_a_lake_cut_short_is_a_fault_once_rows_were_dropped(self, store: Store, address: str) -> None:
        store.append(mixed(20, seed=19))
        done = Sealer(store, address).seal_all(max_rows=10)
        store.drop(15, limit=15)
        (Path(lake.raw_address(address)) / f"_delta_log/{done[1].version:020d}.json").unlink()
        with pytest.raises(OurFault, match="lacks offsets 10 to 14"):
            Sealer(store, address).seal()

    def test_a_newer_format_is_refused(self, store: Store, address: str) -> None:
        store.append(mixed(5, seed=20))
        Sealer(store, address).seal()
        DeltaTable(lake.raw_address(address)).alter.set_table_properties(
            {lake.FORMAT_PROPERTY: str(int(lake.RAW_FORMAT) + 1)}, raise_if_not_exists=False
        )
        with pytest.raises(UserError, match="upgrade"):
            Sealer(store, address).seal()
        with pytest.raises(UserError, match="upgrade"):
            verify_lake(address)

    def test_a_table_of_somebody_else_is_refused(self, store: Store, address: str) -> None:
        write_deltalake(lake.raw_address(address), pa.table({"a": [1]}))
        with pytest.raises(UserError, match="not a raw table"):
            Sealer(store, address).seal()

    def test_a_lake_that_cannot_be_written_is_our_fault(self, store: Store, tmp_path: Path) -> None:
        store.append(mixed(5, seed=21))
        blocked = tmp_path / "file"
        blocked.write_text("not a folder")
        with pytest.raises(OurFault):
            Sealer(store, str(blocked)).seal()


class TestRetire:
    LATER = NOW + 10**12

    def test_only_sealed_rows_go(self, store: Store, address: str) -> None:
        store.append([entry(number) for number in range(50)])
        sealer = Sealer(store, address)
        sealer.seal(max_rows=30)
        assert retire(store, sealed_to=sealer.last_sealed(), older_than_us=self.LATER, limit=1000, slice_rows=7) == 30
        assert store.first_hot_offset == 30
        assert retire(store, sealed_to=sealer.last_sealed(), older_than_us=self.LATER, limit=1000) == 0

    def test_only_old_rows_go(self, store: Store, address: str) -> None:
        store.append([entry(number) for number in range(50)])
        sealer = Sealer(store, address)
        sealer.seal()
        limit = entry(20).received_at
        assert retire(store, sealed_to=sealer.last_sealed(), older_than_us=limit, limit=1000, slice_rows=8) == 20

    def test_the_limit_is_kept(self, store: Store, address: str) -> None:
        store.append([entry(number) for number in range(50)])
        sealer = Sealer(store, address)
        sealer.seal()
        assert retire(store, sealed_to=49, older_than_us=self.LATER, limit=9, slice_rows=4) == 9
        assert store.first_hot_offset == 9
        assert retire(store, sealed_to=49, older_than_us=self.LATER, limit=1000) == 41
        assert retire(store, sealed_to=49, older_than_us=self.LATER, limit=1000) == 0

    def test_it_stops_at_another_protocol(self, store: Store, address: str) -> None:
        rows = [entry(number) for number in range(20)]
        rows[12] = entry(12, protocol=model.Protocol.MOSAIC, kind=model.Kind.RECORD, id=b"record")
        store.append(rows)
        Sealer(store, address).seal()
        assert retire(store, sealed_to=19, older_than_us=self.LATER, limit=1000, slice_rows=5) == 12
        assert store.first_hot_offset == 12


CHILD = """
import os, signal, sys
from catchment.store import rawtable, sealing
from catchment.store.lmdb import LmdbStore
sys.path.insert(0, sys.argv[4])
import lakehelp

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

point, countdown = sys.argv[3].split(":")
countdown = int(countdown)
if point != "any":
    owner, name = (sealing.Sealer, point) if hasattr(sealing.Sealer, point) else (sealing, point)
    real = getattr(owner, name)
    def maybe(*args, **kwargs):
        global countdown
        countdown -= 1
        return (die if countdown < 0 else real)(*args, **kwargs)
    setattr(owner, name, maybe)
store = LmdbStore.open(sys.argv[1], map_size=1 << 28)
sealer = sealing.Sealer(store, sys.argv[2])
while True:
    store.append(lakehelp.mixed(25, seed=store.next_offset, start=store.next_offset))
    print("appended", flush=True)
    sealer.seal(max_rows=40)
    print("sealed", flush=True)
"""


def run_child(folder: Path, address: str, point: str, *, lines: int) -> None:
    """Append and seal in another process until it dies at `point`, or is killed after so many lines."""
    command = [sys.executable, "-c", CHILD, str(folder), address, point, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        for number, _ in enumerate(child.stdout, start=1):
            if number >= lines:
                child.kill()
                break
    assert child.returncode == -signal.SIGKILL


def check_after_crash(folder: Path, address: str) -> None:
    store = LmdbStore.open(folder, map_size=1 << 28)
    try:
        Sealer(store, address).seal_all()
        assert sealed_rows(address) == expected_rows(store)
        report = verify_lake(address, heads=read_heads(store))
        assert report.problems == []
        assert report.rows == store.next_offset
    finally:
        store.close()


class TestCrash:
    @pytest.mark.parametrize("point", ["_write_parts", "_commit", "_remember"])
    def test_killed_at_a_point(self, tmp_path: Path, address: str, point: str) -> None:
        folder = tmp_path / "store"
        for countdown in (0, 2):
            run_child(folder, address, f"{point}:{countdown}", lines=10**9)
            check_after_crash(folder, address)

    def test_a_file_no_transaction_names_is_harmless(self, tmp_path: Path, address: str) -> None:
        folder = tmp_path / "store"
        run_child(folder, address, "_commit:0", lines=10**9)
        on_disk = list(Path(lake.raw_address(address)).rglob("*.parquet"))
        assert on_disk
        assert RawTable(DeltaTable(lake.raw_address(address))).live_files() == []
        check_after_crash(folder, address)

    @pytest.mark.crash
    def test_killed_at_any_time(self, tmp_path: Path, address: str) -> None:
        seed = int.from_bytes(os.urandom(4), "big")
        print("seed", seed)
        chance = random.Random(seed)
        folder = tmp_path / "store"
        for _ in range(12):
            run_child(folder, address, "any:0", lines=chance.randrange(1, 16))
            check_after_crash(folder, address)


def test_help_makes_what_it_says() -> None:
    entries = mixed(200, seed=1)
    assert {one.protocol for one in entries} == {model.Protocol.STREAMR, model.Protocol.MOSAIC}
    assert len({one.received_at // 86_400_000_000 for one in entries}) == 2
    assert lakehelp.fixed_bytes(1)(4) == lakehelp.fixed_bytes(1)(4)
