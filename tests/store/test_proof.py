"""`lake verify`: each way of changing a sealed table is found and named, and no way makes the proof itself fail."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from catchment import lake
from catchment.store.memory import MemoryStore
from catchment.store.proof import Problem, Report, verify_lake
from catchment.store.rawtable import File, RawTable
from catchment.store.sealing import Sealer, read_heads

from .lakehelp import mixed, optimize, sealed_rows

ROWS = 60


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture
def store(address: str) -> MemoryStore:
    """A store whose rows are sealed in three ranges of twenty."""
    store = MemoryStore()
    store.append(mixed(ROWS, seed=1))
    assert len(Sealer(store, address).seal_all(max_rows=20)) == 3
    return store


def raw_folder(address: str) -> Path:
    return Path(lake.raw_address(address))


def live_files(address: str) -> list[File]:
    return RawTable(DeltaTable(lake.raw_address(address))).live_files()


def largest_file(address: str) -> File:
    return max(live_files(address), key=lambda file: file.rows or 0)


def whats(report: Report) -> set[str]:
    return {problem.what for problem in report.problems}


def only(report: Report, what: str) -> Problem:
    found = [problem for problem in report.problems if problem.what == what]
    assert len(found) == 1, report.problems
    return found[0]


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change a data file in place, as someone with access to the disk would."""
    pq.write_table(change(pq.ParquetFile(path).read()), path)


def test_a_sealed_lake_is_proved(store: MemoryStore, address: str) -> None:
    steps: list[tuple[int, int]] = []
    report = verify_lake(address, heads=read_heads(store), progress=lambda done, total: steps.append((done, total)))
    assert report.ok
    assert (report.ranges, report.rows, report.version) == (3, ROWS, 3)
    assert report.files == len(live_files(address))
    assert report.heads == read_heads(store)
    assert steps[0] == (0, ROWS)
    assert steps[-1] == (ROWS, ROWS)


def test_nothing_was_ever_sealed(address: str) -> None:
    report = verify_lake(address)
    assert report.ok
    assert (report.version, report.ranges) == (None, 0)


@pytest.mark.parametrize("how", ["compact", "z_order"])
def test_compaction_changes_no_proof(store: MemoryStore, address: str, how: str) -> None:
    before, rows = len(live_files(address)), sealed_rows(address)
    optimize(address, how)
    assert len(live_files(address)) < before
    assert verify_lake(address, heads=read_heads(store)).problems == []
    store.append(mixed(20, seed=2, start=1000))
    assert Sealer(store, address).seal() is not None
    report = verify_lake(address, heads=read_heads(store))
    assert report.problems == []
    assert report.rows == ROWS + 20
    assert sealed_rows(address)[:ROWS] == rows


@pytest.mark.parametrize("memory", [1, 50_000])
def test_little_memory_gives_the_same_answer(store: MemoryStore, address: str, memory: int) -> None:
    optimize(address, "compact")
    assert verify_lake(address, memory=memory).ok
    DeltaTable(lake.raw_address(address)).delete("offset = 33")
    report = verify_lake(address, memory=memory)
    assert (only(report, "missing").first, report.rows) == (33, ROWS - 1)


def test_one_node_of_two(store: MemoryStore, address: str) -> None:
    other = MemoryStore()
    other.append(mixed(30, seed=3))
    Sealer(other, address).seal()
    assert verify_lake(address, heads=read_heads(store) | read_heads(other)).ok
    DeltaTable(lake.raw_address(address)).delete(f"offset = 4 AND epoch = {other.epoch}")
    assert verify_lake(address, node=store.node, heads=read_heads(store)).problems == []
    problem = only(verify_lake(address, node=other.node), "missing")
    assert (problem.node, problem.epoch, problem.first, problem.last) == (other.node.hex(), other.epoch, 4, 4)


@pytest.mark.usefixtures("store")
class TestFiles:
    def test_truncated(self, address: str) -> None:
        file = largest_file(address)
        path = raw_folder(address) / file.path
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        report = verify_lake(address)
        assert only(report, "file").files == (file.path,)
        missing = only(report, "missing")
        assert missing.files == (file.path,)
        assert (missing.first, missing.last) == (file.offset.low, file.offset.high)
        assert whats(report) == {"file", "missing"}

    def test_missing(self, address: str) -> None:
        file = largest_file(address)
        (raw_folder(address) / file.path).unlink()
        report = verify_lake(address)
        assert only(report, "file").files == (file.path,)
        assert only(report, "missing").files == (file.path,)

    @pytest.mark.parametrize("column", [name for name in lake.RAW_SCHEMA.names if name not in ("protocol", "date")])
    def test_one_value_altered(self, address: str, column: str) -> None:
        file = largest_file(address)

        def change(table: pa.Table) -> pa.Table:
            values = table[column].to_pylist()
            old = values[3]
            field = table.schema.field(column)
            if pa.types.is_timestamp(field.type):
                values[3] = old.replace(microsecond=(old.microsecond + 1) % 1_000_000)
            else:
                values[3] = {int: lambda: old + 1, str: lambda: old + "x", bytes: lambda: old[:-1] + b"\x01"}.get(
                    type(old), lambda: 7
                )()
            assert values[3] != old
            return table.set_column(table.column_names.index(column), field, pa.array(values, field.type))

        rewrite(raw_folder(address) / file.path, change)
        report = verify_lake(address)
        assert not report.ok
        assert all(problem.files for problem in report.problems)
        assert file.path in {path for problem in report.problems for path in problem.files}
        expected = {"node": {"stray", "missing"}, "epoch": {"stray", "missing"}, "crc": {"checksum"}}
        if column == "offset":
            assert whats(report) <= {"missing", "twice", "stray"}
        elif column == "raw":
            assert whats(report) == {"checksum", "digest"}
        else:
            assert whats(report) == expected.get(column, {"digest"})

    def test_filed_under_another_date(self, address: str) -> None:
        file = largest_file(address)
        log = raw_folder(address) / "_delta_log"
        moved = file.path.replace(f"date={file.date}", "date=2031-01-01")
        for commit in log.glob("*.json"):
            text = commit.read_text().replace(file.path, moved)
            lines = [
                line.replace(f'"date":"{file.date}"', '"date":"2031-01-01"') if moved in line else line
                for line in text.splitlines()
            ]
            commit.write_text("\n".join(lines) + "\n")
        (raw_folder(address) / moved).parent.mkdir(parents=True)
        shutil.move(raw_folder(address) / file.path, raw_folder(address) / moved)
        report = verify_lake(address)
        assert whats(report) == {"partition"}
        assert len(report.problems) == file.rows

    def test_row_removed_by_a_transaction(self, address: str) -> None:
        DeltaTable(lake.raw_address(address)).delete("offset = 25")
        problem = only(verify_lake(address), "missing")
        assert (problem.first, problem.last) == (25, 25)

    def test_row_removed_from_a_file(self, address: str) -> None:
        file = largest_file(address)
        rewrite(raw_folder(address) / file.path, lambda table: table.slice(1))
        report = verify_lake(address)
        assert file.path in only(report, "missing").files
        assert only(report, "file").files == (file.path,)

    def test_rows_there_twice(self, address: str) -> None:
        rows = DeltaTable(lake.raw_address(address)).to_pyarrow_table(
            filters=[("offset", ">=", 18), ("offset", "<", 21)]
        )
        write_deltalake(lake.raw_address(address), rows, mode="append")
        report = verify_lake(address)
        assert [(problem.what, problem.first, problem.last) for problem in report.problems] == [
            ("twice", 18, 19),
            ("twice", 20, 20),
        ]
        added = DeltaTable(lake.raw_address(address)).history(1)[0]["version"]
        assert added == 4
        assert all(len(problem.files) > 1 for problem in report.problems)

    @pytest.mark.parametrize(("change", "value"), [("offset", ROWS + 5), ("epoch", 77), ("node", b"n" * 16)])
    def test_rows_added(self, address: str, change: str, value: object) -> None:
        before = {file.path for file in live_files(address)}
        rows = DeltaTable(lake.raw_address(address)).to_pyarrow_table(filters=[("offset", "=", 7)])
        field = lake.RAW_SCHEMA.field(change)
        rows = rows.set_column(rows.column_names.index(change), field, pa.array([value], field.type))
        write_deltalake(lake.raw_address(address), rows, mode="append")
        (added,) = {file.path for file in live_files(address)} - before
        problem = only(verify_lake(address), "stray")
        assert problem.files == (added,)
        assert problem.first == (value if change == "offset" else 7)

    def test_foreign_column(self, address: str) -> None:
        file = largest_file(address)
        rewrite(
            raw_folder(address) / file.path,
            lambda table: table.append_column("surprise", pa.array([1] * table.num_rows)),
        )
        report = verify_lake(address)
        assert "surprise" in only(report, "file").text
        assert whats(report) == {"file"}

    def test_column_taken_away(self, address: str) -> None:
        file = largest_file(address)
        rewrite(raw_folder(address) / file.path, lambda table: table.drop_columns(["raw"]))
        report = verify_lake(address)
        assert "lacks the column raw" in only(report, "file").text
        assert whats(report) == {"file", "missing"}

    def test_column_of_another_type(self, address: str) -> None:
        file = largest_file(address)

        def change(table: pa.Table) -> pa.Table:
            at = table.column_names.index("topic")
            return table.set_column(at, "topic", pa.array([1.5] * table.num_rows))

        rewrite(raw_folder(address) / file.path, change)
        report = verify_lake(address)
        assert file.path in only(report, "file").files
        assert not report.ok

    def test_file_of_something_else(self, address: str) -> None:
        file = largest_file(address)
        (raw_folder(address) / file.path).write_bytes(b"not parquet at all" * 100)
        assert only(verify_lake(address), "file").files == (file.path,)

    @pytest.mark.slow
    def test_bit_flips_are_found_or_harmless(self, address: str) -> None:
        chance = random.Random(20)
        rows = sealed_rows(address)
        found = 0
        for _ in range(150):
            path = raw_folder(address) / chance.choice(live_files(address)).path
            good = path.read_bytes()
            bad = bytearray(good)
            bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
            path.write_bytes(bad)
            report = verify_lake(address)
            if report.ok:
                assert sealed_rows(address) == rows
            else:
                found += 1
            path.write_bytes(good)
        assert found > 50
        assert verify_lake(address).ok


class TestLog:
    def commit_path(self, address: str, version: int) -> Path:
        return raw_folder(address) / f"_delta_log/{version:020d}.json"

    def edit_note(self, address: str, version: int, **changes: object) -> None:
        path = self.commit_path(address, version)
        lines = []
        for line in path.read_text().splitlines():
            action = json.loads(line)
            if "commitInfo" in action:
                action["commitInfo"] |= changes
            lines.append(json.dumps(action))
        path.write_text("\n".join(lines) + "\n")

    def test_end_cut_off(self, store: MemoryStore, address: str) -> None:
        self.commit_path(address, 3).unlink()
        assert verify_lake(address).ok
        problem = only(verify_lake(address, heads=read_heads(store)), "head")
        assert (problem.node, problem.epoch, problem.first, problem.last) == (store.node.hex(), store.epoch, 40, 59)

    def test_all_gone(self, store: MemoryStore, address: str) -> None:
        shutil.rmtree(address)
        problem = only(verify_lake(address, heads=read_heads(store)), "head")
        assert (problem.first, problem.last) == (0, 59)

    def test_a_head_from_before_is_still_in_the_chain(self, store: MemoryStore, address: str) -> None:
        heads = read_heads(store)
        store.append(mixed(10, seed=4, start=500))
        Sealer(store, address).seal()
        assert verify_lake(address, heads=heads).ok

    def test_another_chain_of_the_same_length(self, store: MemoryStore, address: str) -> None:
        app = lake.seal_app(store.node, store.epoch)
        assert only(verify_lake(address, heads={app: f"59:{'0' * 64}"}), "head").last == 59

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"digest": "ab" * 32}, {"digest", "chain"}),
            ({"previous": "ab" * 32}, {"digest", "chain"}),
            ({"digest": "not a digest"}, {"log", "chain", "stray"}),
            ({"first": 19}, {"chain", "digest"}),
            ({"first": 21}, {"chain", "stray", "digest"}),
            ({"last": 10**15}, {"chain", "log", "missing"}),
            ({"rows": 4}, {"chain"}),
            ({"rows": "many"}, {"log", "chain", "stray"}),
        ],
    )
    @pytest.mark.usefixtures("store")
    def test_note_altered(self, address: str, changes: dict[str, object], expected: set[str]) -> None:
        self.edit_note(address, 2, **changes)
        report = verify_lake(address)
        assert not report.ok
        assert whats(report) == expected, report.problems

    @pytest.mark.usefixtures("store")
    @pytest.mark.parametrize("data", [b"", b'{"commitInfo":{"ti', b"\xff\xfe\x00", b"[1,2]\n"])
    def test_commit_damaged(self, address: str, data: bytes) -> None:
        self.commit_path(address, 2).write_bytes(data)
        report = verify_lake(address)
        path = f"_delta_log/{2:020d}.json"
        assert path in {file for problem in report.problems if problem.what == "log" for file in problem.files}

    @pytest.mark.usefixtures("store")
    def test_commit_before_a_checkpoint_removed(self, address: str) -> None:
        DeltaTable(lake.raw_address(address)).create_checkpoint()
        self.commit_path(address, 1).unlink()
        report = verify_lake(address)
        assert "commits 1 to 1 are gone" in only(report, "log").text
        assert {"log", "chain", "stray"} == whats(report)


def test_the_report_goes_into_json_and_back() -> None:
    report = Report("lake", heads={"app": "1:ab"}, problems=[Problem("digest", "changed", "00", 1, 2, 3, ("a",))])
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
    assert not report.ok
