"""History over hot and sealed rows: one order, nothing left out."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from catchment import lake, model
from catchment.errors import OurFault, StoreCorrupt
from catchment.store.base import Place, Store
from catchment.store.history import History
from catchment.store.memory import MemoryStore
from catchment.store.rawtable import RawTable
from catchment.store.sealing import Sealer

from .lakehelp import NOW, batches, entry, log_rows, mixed, open_store, optimize

EVERYTHING = 10**6


@pytest.fixture(params=["memory", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = open_store(request.param, tmp_path / "store")
    yield opened
    opened.close()


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


def topic_of(one: model.Entry) -> model.Topic:
    return model.Topic(one.topic, one.partition, one.protocol)


def pages(history: History, question: model.Range, limit: int) -> list[model.Row]:
    rows: list[model.Row] = []
    after = None
    while True:
        page, after = history.range(question, after=after, limit=limit)
        rows += page
        if after is None:
            return rows


def naive(rows: list[model.Row], question: model.Range) -> list[model.Row]:
    """The answer by looking at every row; equal references keep the store's order among themselves."""
    return [
        row
        for row in rows
        if row.entry.kind.indexed
        and topic_of(row.entry) == question.topic
        and question.start <= (row.entry.timestamp, row.entry.sequence) <= question.end
        and question.publisher in (None, row.entry.publisher)
        and question.chain in (None, row.entry.chain)
    ]


def by_ref(rows: list[model.Row]) -> list[tuple[tuple[int, int], list[int], list[model.Row]]]:
    """Rows grouped by reference in the order given, each group sorted: between publishers there is no order."""
    groups = []
    for ref, group in itertools.groupby(rows, key=lambda row: (row.entry.timestamp, row.entry.sequence)):
        members = sorted(group, key=lambda row: row.offset)
        groups.append((ref, [row.offset for row in members], members))
    return groups


def same(found: list[model.Row], expected: list[model.Row]) -> None:
    ordered = sorted(expected, key=lambda row: (row.entry.timestamp, row.entry.sequence))
    assert by_ref(found) == by_ref(ordered)


def any_question(chance: random.Random, rows: list[model.Row]) -> model.Range:
    first, second, third = (chance.choice(rows).entry for _ in range(3))
    start, end = sorted(model.Ref(one.timestamp, one.sequence) for one in (first, second))
    changes: dict[str, object] = {}
    if chance.random() < 0.5:
        changes |= {"start": start, "end": end}
    if chance.random() < 0.3:
        changes["publisher"] = third.publisher
    if chance.random() < 0.3:
        changes["chain"] = third.chain
    return model.Range(topic_of(first), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(4))
def test_history_is_the_naive_answer_whatever_was_dropped(store: Store, address: str, seed: int) -> None:
    chance = random.Random(seed)
    sealer, history = Sealer(store, address), History(store, address)
    entries = mixed(400, seed=seed)
    entries += [
        entry(number, publisher="0xother", raw=b"same reference, other publisher") for number in range(0, 400, 3)
    ]
    chance.shuffle(entries)
    known: list[model.Row] = []
    for batch in batches(entries, 60):
        store.append(batch)
        known += store.read(len(known), len(batch))
        assert len(known) == store.next_offset
        dice = chance.random()
        if dice < 0.7:
            sealer.seal(max_rows=chance.randrange(20, 200))
        if dice < 0.5:
            store.drop(chance.randrange(sealer.last_sealed() + 2), limit=EVERYTHING)
        if dice < 0.2:
            optimize(address, chance.choice(["compact", "z_order"]))
        for _ in range(6):
            question = any_question(chance, known)
            same(pages(history, question, chance.randrange(1, 40)), naive(known, question))
            count = chance.randrange(30)
            last = history.last(question.topic, count)
            everything = naive(known, model.Range(question.topic))
            assert len(last) == min(count, len(everything))
            if last:
                tail = sorted(everything, key=lambda row: (row.entry.timestamp, row.entry.sequence))[-len(last) :]
                assert [row.entry.timestamp for row in last] == [row.entry.timestamp for row in tail]
                assert all(row in everything for row in last)
    assert store.first_hot_offset > 0


def test_rows_come_back_exactly(store: Store, address: str) -> None:
    store.append(mixed(200, seed=9))
    before = log_rows(store)
    Sealer(store, address).seal_all(max_rows=70)
    store.drop(200, limit=EVERYTHING)
    assert log_rows(store) == []
    history = History(store, address)
    back = [
        row for topic in {topic_of(row.entry) for row in before} for row in pages(history, model.Range(topic), 1000)
    ]
    assert sorted(back, key=lambda row: row.offset) == [row for row in before if row.entry.kind.indexed]


def test_long_and_odd_topics(store: Store, address: str) -> None:
    names = ["a" * 300 + tail for tail in ("", "b", "\uffff", "\U0010ffff")] + [
        "",
        "\u00e9",
        "'; --",
        "%2e/../x",
        "a=b",
    ]
    store.append([entry(number, topic=name, partition=0) for number, name in enumerate(names)])
    Sealer(store, address).seal()
    store.drop(len(names), limit=EVERYTHING)
    history = History(store, address)
    for number, name in enumerate(names):
        rows = history.last(model.Topic(name, 0), 5)
        assert [(row.offset, row.entry.topic) for row in rows] == [(number, name)]


def sealed_and_dropped(store: Store, address: str, count: int = 40) -> model.Range:
    store.append([entry(number, topic="t", partition=0) for number in range(count)])
    Sealer(store, address).seal_all(max_rows=10)
    store.drop(count, limit=EVERYTHING)
    return model.Range(model.Topic("t", 0))


@pytest.mark.parametrize("hot_from", [0, 13, 40])
def test_pages_are_bounded_in_bytes(store: Store, address: str, hot_from: int) -> None:
    store.append([entry(number, topic="t", partition=0, raw=b"x" * 100) for number in range(40)])
    Sealer(store, address).seal()
    store.drop(hot_from, limit=EVERYTHING)
    history = History(store, address)
    after, found = None, []
    while True:
        page, after = history.range(model.Range(model.Topic("t", 0)), after=after, limit=30, max_bytes=250)
        assert len(page) <= 3
        found += [row.offset for row in page]
        if after is None:
            break
    assert found == list(range(40))


def test_a_page_is_not_cut_within_a_key(store: Store, address: str) -> None:
    records = [
        entry(7, topic="t", partition=0, protocol=model.Protocol.MOSAIC, kind=model.Kind.RECORD, id=b"id %d" % number)
        for number in range(5)
    ]
    last = entry(8, topic="t", partition=0, protocol=model.Protocol.MOSAIC, kind=model.Kind.RECORD, id=b"last")
    store.append([*records, last])
    Sealer(store, address).seal()
    store.drop(6, limit=EVERYTHING)
    topic = model.Topic("t", 0, model.Protocol.MOSAIC)
    page, after = History(store, address).range(model.Range(topic), limit=30, max_bytes=1)
    assert [row.entry for row in page] == records
    assert after == records[0].order_key


class TestNeverShorter:
    def test_no_lake(self, store: Store, address: str) -> None:
        question = sealed_and_dropped(store, address)
        with pytest.raises(OurFault, match="offset 0 of 't'"):
            History(store, None).range(question, limit=100)

    def test_no_table(self, store: Store, address: str, tmp_path: Path) -> None:
        question = sealed_and_dropped(store, address)
        with pytest.raises(OurFault, match=r"offset 0 of 't' .* not in the lake"):
            History(store, str(tmp_path / "elsewhere")).range(question, limit=100)

    def test_a_row_the_lake_lost(self, store: Store, address: str) -> None:
        question = sealed_and_dropped(store, address)
        DeltaTable(lake.raw_address(address)).delete("offset = 17")
        history = History(store, address)
        with pytest.raises(OurFault, match="offset 17 of 't'"):
            history.range(question, limit=100)
        with pytest.raises(OurFault, match="offset 17 of 't'"):
            history.last(question.topic, 30)
        assert len(history.last(question.topic, 22)) == 22

    def test_another_nodes_row_is_not_ours(self, store: Store, address: str) -> None:
        question = sealed_and_dropped(store, address)
        other = MemoryStore()
        other.append([entry(number, topic="t", partition=0, raw=b"other") for number in range(40)])
        Sealer(other, address).seal()
        rows, _ = History(store, address).range(question, limit=100)
        assert b"other" not in {row.entry.raw for row in rows}
        DeltaTable(lake.raw_address(address)).delete(f"offset = 5 AND epoch = {store.epoch}")
        with pytest.raises(OurFault, match="offset 5 of 't'"):
            History(store, address).range(question, limit=100)

    def test_a_damaged_file_is_named(self, store: Store, address: str) -> None:
        question = sealed_and_dropped(store, address)
        path = next(Path(lake.raw_address(address)).rglob("*.parquet"))
        path.write_bytes(path.read_bytes()[:200])
        with pytest.raises(OurFault, match=path.name):
            History(store, address).range(question, limit=100)

    def test_a_file_that_is_gone_is_named(self, store: Store, address: str) -> None:
        question = sealed_and_dropped(store, address)
        path = next(Path(lake.raw_address(address)).rglob("*.parquet"))
        path.unlink()
        with pytest.raises(OurFault, match=path.name):
            History(store, address).range(question, limit=100)

    def test_changed_bytes_are_not_served(self, store: Store, address: str) -> None:
        question = sealed_and_dropped(store, address)
        path = next(Path(lake.raw_address(address)).rglob("*.parquet"))
        rows = pq.ParquetFile(path).read()
        raws = rows["raw"].to_pylist()
        raws[4] = raws[4][:-1] + b"!"
        pq.write_table(rows.set_column(rows.column_names.index("raw"), "raw", pa.array(raws, pa.binary())), path)
        with pytest.raises(StoreCorrupt, match=f"offset {rows['offset'][4].as_py()} "):
            History(store, address).range(question, limit=100)


class TestChangingUnderneath:
    def test_rows_sealed_and_dropped_after_the_list_was_read(self, store: Store, address: str) -> None:
        question = sealed_and_dropped(store, address)
        history = History(store, address)
        assert len(history.range(question, limit=100)[0]) == 40
        store.append([entry(number, topic="t", partition=0) for number in range(40, 60)])
        assert [row.offset for row in history.range(question, limit=100)[0]] == list(range(60))
        Sealer(store, address).seal()
        store.drop(60, limit=EVERYTHING)
        assert [row.offset for row in history.range(question, limit=100)[0]] == list(range(60))

    @pytest.mark.parametrize("how", ["compact", "z_order"])
    def test_files_compacted_and_vacuumed_away(self, store: Store, address: str, how: str) -> None:
        question = sealed_and_dropped(store, address)
        history = History(store, address)
        before = history.range(question, limit=100)
        optimize(address, how)
        assert len(RawTable(DeltaTable(lake.raw_address(address))).live_files()) == 1
        assert history.range(question, limit=100) == before

    def test_rows_dropped_between_walk_and_answer(self, address: str) -> None:
        class Hasty(MemoryStore):
            def walk(
                self,
                question: model.Range,
                *,
                after: model.OrderKey | None = None,
                limit: int,
                max_bytes: int | None = None,
            ) -> tuple[list[Place], model.OrderKey | None]:
                page = super().walk(question, after=after, limit=limit, max_bytes=max_bytes)
                self.drop(self.first_hot_offset + 7, limit=EVERYTHING)
                return page

        store = Hasty()
        store.append([entry(number, topic="t", partition=0) for number in range(40)])
        Sealer(store, address).seal()
        rows = pages(History(store, address), model.Range(model.Topic("t", 0)), 5)
        assert [row.offset for row in rows] == list(range(40))
        assert store.first_hot_offset == 40

    def test_many_threads_while_rows_go(self, store: Store, address: str) -> None:
        entries = [entry(number, topic="t", partition=0) for number in range(200)]
        store.append(entries)
        sealer, history = Sealer(store, address), History(store, address)
        question = model.Range(model.Topic("t", 0))

        def read(_number: int) -> bool:
            return [row.entry for row in pages(history, question, 23)] == entries

        with ThreadPoolExecutor(4) as pool:
            answers = []
            for _ in range(10):
                answers += [pool.submit(read, number) for number in range(2)]
                sealed = sealer.seal(max_rows=20)
                assert sealed is not None
                store.drop(sealed.last + 1, limit=EVERYTHING)
            assert all(answer.result() for answer in answers)


class TestPruning:
    def test_files_that_cannot_hold_the_page_are_not_opened(self, store: Store, address: str) -> None:
        question = sealed_and_dropped(store, address)
        wanted = model.Range(question.topic, model.Ref(NOW // 1000 + 12, 0), model.Ref(NOW // 1000 + 15, 99))
        for file in RawTable(DeltaTable(lake.raw_address(address))).live_files():
            if not file.offset.meets(12, 15):
                (Path(lake.raw_address(address)) / file.path).unlink()
        rows, _ = History(store, address).range(wanted, limit=100)
        assert [row.offset for row in rows] == [12, 13, 14, 15]

    def test_files_of_other_topics_are_not_opened(self, store: Store, address: str) -> None:
        for topic in ("a", "m", "z"):
            store.append([entry(number, topic=topic, partition=0) for number in range(10)])
            Sealer(store, address).seal()
        store.drop(30, limit=EVERYTHING)
        for file in RawTable(DeltaTable(lake.raw_address(address))).live_files():
            if file.topic.low != "m":
                (Path(lake.raw_address(address)) / file.path).unlink()
        assert [row.offset for row in History(store, address).last(model.Topic("m", 0), 5)] == list(range(15, 20))


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_after_a_rollback_the_newer_epoch_counts(kind: str, tmp_path: Path, address: str) -> None:
    before = open_store(kind, tmp_path / "before", seed=5)
    old = [entry(number, topic="t", partition=0, raw=b"old %d" % number) for number in range(20)]
    before.append(old)
    Sealer(before, address).seal()
    before.close()
    store = open_store(kind, tmp_path / "after", seed=5)
    store.append(old[:10])
    sealer = Sealer(store, address)
    assert sealer.check_rollback() is not None
    # The same messages come again under the same offsets but one: what was acknowledged since is what counts.
    new = [entry(number, topic="t", partition=0, raw=b"new %d" % number) for number in range(10, 19)]
    new.append(entry(30, topic="t", partition=0, raw=b"new 30"))
    store.append(new)
    expected = log_rows(store)
    sealer.seal_all()
    store.drop(20, limit=EVERYTHING)
    rows, _ = History(store, address).range(model.Range(model.Topic("t", 0)), limit=100)
    assert rows == expected
    store.close()
