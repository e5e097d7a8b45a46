"""The tables say exactly what happened, however the history was cut into runs."""

from __future__ import annotations

import fcntl
import random
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import polars
import pytest
from deltalake import DeltaTable

from catchment import lake, model
from catchment.errors import UserError
from catchment.pipeline.columns import TABLES, WRITTEN
from catchment.pipeline.jobs import STEPS, Checkpoint, last_plan, run_pipeline
from catchment.pipeline.tables import LakeTable
from catchment.wire.streamr import convert
from catchment.wire.streamr import message as streamr

from .lakes import START, Node, contents, entry, everything, expected, found, history, repeat, signed, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def fill(nodes: list[Node], arrivals: list[list[model.Entry]], ends: list[int], starts: list[int]) -> None:
    for node, received, start, end in zip(nodes, arrivals, starts, ends, strict=True):
        node.keep(received[start:end])


@pytest.mark.parametrize("seed", [1, 2])
def test_any_cutting_into_runs_gives_what_a_naive_reader_finds(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    arrivals = history(seed)
    chance = random.Random(seed)
    nodes = [Node(tmp_path), Node(tmp_path)]
    at = [0, 0]
    for part in range(3):
        # Nodes seal at their own pace, so a run may meet a copy that was received before one it already has.
        ends = [
            len(received) if part == 2 else chance.randint(at[i], len(received)) for i, received in enumerate(arrivals)
        ]
        fill(nodes, arrivals, ends, at)
        at = ends
        if DeltaTable.is_deltatable(lake.raw_address(str(tmp_path))):
            run_pipeline(str(tmp_path), spark=spark)
            assert found(tmp_path) == expected(nodes), f"after part {part}"
    statuses = {row["status"] for row in contents(tmp_path, "gaps")}
    assert statuses == {"open", "filled", "provisional"}, "the history should have holes of every kind"
    assert any(len(row["nodes"]) == 2 for row in contents(tmp_path, "duplicates"))
    cut = everything(tmp_path)
    _forget_tables(tmp_path)
    run_pipeline(str(tmp_path), spark=spark)
    assert everything(tmp_path) == cut, "one run over everything must give the same rows"


def _forget_tables(address: Path) -> None:
    (address / "tables").rename(address / "tables-before")


def test_an_earlier_copy_takes_the_place_of_the_kept_one(spark: SparkSession, tmp_path: Path) -> None:
    address = tmp_path / "a lake with [brackets] & 50%"
    first, second = Node(address), Node(address)
    message = signed((START, 0))
    first.keep([entry(message, START * 1000 + 500), entry(signed((START + 1, 0), (START, 0)), START * 1000 + 900)])
    run_pipeline(str(address), spark=spark)
    second.keep([entry(message, START * 1000 + 100)])
    report = run_pipeline(str(address), spark=spark)
    assert [row["node"] for row in contents(address, "messages")].count(second.store.node) == 1
    assert report.added == {"quarantine": 0, "messages": 0, "duplicates": 1, "gaps": 0}
    assert found(address) == expected([first, second])


def test_a_repeat_of_a_message_the_lake_never_got_is_a_copy(spark: SparkSession, tmp_path: Path) -> None:
    node = Node(tmp_path)
    kept = entry(signed((START, 0)), START * 1000)
    node.keep([repeat(kept, START * 1000 + 1), repeat(kept, START * 1000 + 2)])
    run_pipeline(str(tmp_path), spark=spark)
    assert [row["copies"] for row in contents(tmp_path, "duplicates")] == [2]
    node.keep([kept])
    run_pipeline(str(tmp_path), spark=spark)
    assert [row["copies"] for row in contents(tmp_path, "duplicates")] == [2]
    assert found(tmp_path) == expected([node])


def test_a_hole_opens_with_time_shrinks_and_is_filled(spark: SparkSession, tmp_path: Path) -> None:
    refs = [(START + step, 0) for step in range(4)]
    messages = [signed(ref, refs[step - 1] if step else None) for step, ref in enumerate(refs)]
    other = lambda step, at: entry(signed((START + step, 0), chain="other"), at)  # noqa: E731
    zero = START * 1000
    node = Node(tmp_path)

    def after(*entries: model.Entry) -> list[tuple[object, ...]]:
        node.keep(entries)
        run_pipeline(str(tmp_path), spark=spark)
        assert found(tmp_path) == expected([node])
        rows = contents(tmp_path, "gaps")
        return [(row["from_timestamp"] - START, row["to_timestamp"] - START, row["status"]) for row in rows]

    assert after(entry(messages[0], zero), entry(messages[3], zero + 1_000_000)) == [(0, 2, "provisional")]
    # Nothing of this chain came, yet time went on: another chain's message says so.
    assert after(other(1, zero + 61_000_000)) == [(0, 2, "open")]
    assert after(entry(messages[1], zero + 70_000_000)) == [(1, 2, "open")]
    assert after(entry(messages[2], zero + 80_000_000)) == [(1, 2, "filled")]
    filled = contents(tmp_path, "gaps")[0]
    assert (filled["filled_at"] - filled["since"]).total_seconds() == 79


def test_older_versions_are_messages_and_key_exchanges_are_not(spark: SparkSession, tmp_path: Path) -> None:
    node = Node(tmp_path)
    zero = START * 1000
    rows = []
    for version in (28, 29, 30, 31, 32):
        made = signed((START + version, 0), stream=f"0xab/{version}", chain="" if version < 30 else "c")
        rows.append(entry(convert.to_version(made, version), zero + version))
    exchange = "SYSTEM/keyexchange/" + signed((START, 0)).msg_id.publisher_id
    requests = []
    for step in range(4):
        made = signed((START + step, 0), (START + step - 1, 0) if step else None, stream=exchange)
        request = msgspec.structs.replace(made, message_type=streamr.MessageType.GROUP_KEY_REQUEST)
        requests.append(entry(request, zero + 100 + step))
    assert {row.kind for row in requests} == {model.Kind.KEYEXCHANGE}
    # One of them is lost, one comes twice: neither is a hole or a copy among messages.
    rows += [requests[0], requests[3], repeat(requests[3], zero + 200), repeat(rows[4], zero + 300)]
    node.keep(rows)
    run_pipeline(str(tmp_path), spark=spark)
    assert {(row["topic"], row["version"], row["verdict"]) for row in contents(tmp_path, "messages")} == {
        ("0xab/28", 28, "unsigned"),
        *((f"0xab/{version}", version, "ok") for version in (29, 30, 31, 32)),
    }
    assert [(row["topic"], row["copies"]) for row in contents(tmp_path, "duplicates")] == [("0xab/32", 1)]
    assert contents(tmp_path, "gaps") == []
    assert contents(tmp_path, "quarantine") == []


def test_rows_that_lie_about_their_bytes_go_to_quarantine(spark: SparkSession, tmp_path: Path) -> None:
    zero = START * 1000
    good = entry(signed((START, 0)), zero)
    lying = entry(signed((START + 1, 0)), zero + 1, topic="0xab/another")
    garbage = msgspec.structs.replace(good, raw=b"[32,", timestamp=START + 2, event_time=(START + 2) * 1_000_000)
    forged = msgspec.structs.replace(signed((START + 3, 0)), content="[]")
    refused = entry(forged, zero + 3)
    believed = entry(forged, zero + 4, kind=model.Kind.MESSAGE, verdict=model.Verdict.OK)
    banned = entry(signed((START + 5, 0)), zero + 5, kind=model.Kind.REFUSED, verdict=model.Verdict.NOT_PERMITTED)
    exchange = msgspec.structs.replace(signed((START + 6, 0)), message_type=streamr.MessageType.GROUP_KEY_REQUEST)
    node = Node(tmp_path)
    node.keep([good, lying, garbage, refused, believed, banned, entry(exchange, zero + 6)])
    report = run_pipeline(str(tmp_path), spark=spark)
    assert report.rows_read == 7
    assert [(row["offset"], row["verdict"]) for row in contents(tmp_path, "messages")] == [(0, "ok")]
    assert [
        (row["offset"], row["kind"], row["node_verdict"], row["verdict"], row["agrees"])
        for row in contents(tmp_path, "quarantine")
    ] == [
        (1, "message", "ok", "bad_id", False),
        (2, "message", "ok", "malformed", False),
        (3, "refused", "bad_signature", "bad_signature", True),
        (4, "message", "ok", "bad_signature", False),
        (5, "refused", "not_permitted", "ok", None),
    ]
    rows = {row["offset"]: row for row in contents(tmp_path, "quarantine")}
    assert rows[2]["raw"] == b"[32,"
    assert "topic" in rows[1]["reason"]


def test_what_a_stranger_sees(spark: SparkSession, tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.keep(history(3, nodes=1)[0])
    steps: list[str] = []
    report = run_pipeline(str(tmp_path), spark=spark, progress=lambda name, _done, _all: steps.append(name))
    assert list(dict.fromkeys(steps)) == list(STEPS)
    assert found(tmp_path) == expected([node])
    for spec in TABLES.values():
        delta = DeltaTable(lake.table_address(str(tmp_path), spec.name))
        assert delta.metadata().configuration[lake.FORMAT_PROPERTY] == "1"
        assert delta.metadata().partition_columns == list(spec.partition_by)
        assert [field.name for field in delta.schema().fields] == list(spec.names)
    where = lake.table_address(str(tmp_path), "messages")
    rows = polars.scan_delta(where).filter(polars.col("event_date") == polars.date(2026, 9, 20)).collect()
    assert 0 < rows.height < report.totals["messages"]
    assert rows.height == sum(row["event_date"].isoformat() == "2026-09-20" for row in contents(tmp_path, "messages"))
    one = contents(tmp_path, "messages")[0]
    assert one["event_time"].timestamp() * 1000 == one["timestamp"]
    assert streamr.decode(one["raw"]).content == one["content"]
    assert {row["phase"] for row in table(tmp_path, "runs").to_pylist()} == {"planned", "finished"}
    for name, spec in TABLES.items():
        opened = LakeTable.open(str(tmp_path), spec)
        assert opened is not None
        read = opened.read(spark)
        assert (read.columns, read.count()) == (list(spec.names), table(tmp_path, name).num_rows)


def test_nothing_new_is_no_run(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lake seal"):
        run_pipeline(str(tmp_path), spark=spark)
    node = Node(tmp_path)
    node.keep([entry(signed((START, 0)), START * 1000)])
    assert run_pipeline(str(tmp_path), spark=spark).run == 1
    versions = {spec.name: DeltaTable(lake.table_address(str(tmp_path), spec.name)).version() for spec in WRITTEN}
    again = run_pipeline(str(tmp_path), spark=spark)
    assert (again.run, again.rows_read, again.totals["messages"]) == (0, 0, 1)
    assert versions == {
        spec.name: DeltaTable(lake.table_address(str(tmp_path), spec.name)).version() for spec in WRITTEN
    }
    plan = last_plan(str(tmp_path))
    assert plan is not None and plan[1] and plan[0].watermark == START * 1000


class Crash(BaseException):
    """Ends a run as abruptly as a process can be ended from within."""


def test_a_run_cut_off_at_every_step_gives_the_same_tables(spark: SparkSession, tmp_path: Path) -> None:
    arrivals = history(5, chains=3)
    middle = [len(received) // 2 for received in arrivals]
    nodes = [Node(tmp_path), Node(tmp_path)]
    fill(nodes, arrivals, middle, [0, 0])
    run_pipeline(str(tmp_path), spark=spark)
    fill(nodes, arrivals, [len(received) for received in arrivals], middle)
    reached: list[str] = []
    report = None
    while report is None:
        try:
            report = run_pipeline(str(tmp_path), spark=spark, checkpoint=_crash_beyond(reached))
        except Crash:
            assert len(reached) < 50
    assert len(reached) == 2 + 3 * len(WRITTEN) + 2
    assert (report.run, report.rows_read) == (0, 0), "the last crash came after the run was whole"
    assert found(tmp_path) == expected(nodes)
    assert {row["run"] for row in table(tmp_path, "runs").to_pylist()} == {1, 2}
    cut_off = everything(tmp_path)
    _forget_tables(tmp_path)
    run_pipeline(str(tmp_path), spark=spark)
    assert everything(tmp_path) == cut_off


def _crash_beyond(reached: list[str]) -> Checkpoint:
    def checkpoint(name: str) -> None:
        if name not in reached:
            reached.append(name)
            raise Crash(name)

    return checkpoint


def test_two_runs_at_once(spark: SparkSession, tmp_path: Path) -> None:
    Node(tmp_path).keep([entry(signed((START, 0)), START * 1000)])
    with (tmp_path / "pipeline.lock").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another run"):
            run_pipeline(str(tmp_path), spark=spark)
    assert run_pipeline(str(tmp_path), spark=spark).run == 1


def test_a_table_of_a_newer_version_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    Node(tmp_path).keep([entry(signed((START, 0)), START * 1000)])
    DeltaTable.create(
        lake.table_address(str(tmp_path), "gaps"),
        schema=TABLES["gaps"].arrow,
        configuration={lake.FORMAT_PROPERTY: "2"},
        raise_if_key_not_exists=False,
    )
    with pytest.raises(UserError, match="upgrade"):
        run_pipeline(str(tmp_path), spark=spark)
