"""Columns, statistics and formats of the tables, without Spark."""

from __future__ import annotations

import datetime as dt
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from catchment import lake
from catchment.errors import UserError
from catchment.pipeline.columns import GAPS, RUNS, TABLES, Table
from catchment.pipeline.tables import LakeTable, file_statistics


@pytest.mark.parametrize("spec", TABLES.values(), ids=TABLES)
def test_every_column_is_documented_and_named_once(spec: Table) -> None:
    assert len(set(spec.names)) == len(spec.names)
    assert {*spec.key, *spec.partition_by} <= set(spec.names)
    assert all(column.doc.endswith(".") for column in spec.columns)
    assert not any(f"`{name}`" in spec.file_ddl for name in spec.partition_by)


@pytest.mark.parametrize("spec", TABLES.values(), ids=TABLES)
def test_a_new_table_says_what_it_is(tmp_path: Path, spec: Table) -> None:
    assert LakeTable.open(str(tmp_path), spec) is None
    made = LakeTable.open_or_create(str(tmp_path), spec)
    assert LakeTable.open_or_create(str(tmp_path), spec).version == made.version == 0
    assert (made.last_run, made.rows(), made.files()) == (0, 0, [])
    comments = {field.name: field.metadata.get("comment") for field in made.delta.schema().fields}
    assert comments == {column.name: column.doc for column in spec.columns}


@pytest.mark.parametrize(("written", "text"), [("2", "upgrade"), ("x", "none of Catchment's"), (None, "none of Catch")])
def test_foreign_and_newer_tables_are_refused(tmp_path: Path, written: str | None, text: str) -> None:
    DeltaTable.create(
        lake.table_address(str(tmp_path), GAPS.name),
        schema=GAPS.arrow,
        configuration={} if written is None else {lake.FORMAT_PROPERTY: written},
        raise_if_key_not_exists=False,
    )
    with pytest.raises(UserError, match=text):
        LakeTable.open(str(tmp_path), GAPS)


def test_the_newest_rows_are_found_by_statistics(tmp_path: Path) -> None:
    table = LakeTable.open_or_create(str(tmp_path), RUNS)
    assert table.newest("run").num_rows == 0
    for run, phase in ((1, "planned"), (1, "finished"), (2, "planned")):
        row = {name: [None] for name in RUNS.names} | {"run": [run], "phase": [phase]}
        table.append(pa.table(row, schema=RUNS.arrow), run, app=phase)
    assert [(row["run"], row["phase"]) for row in table.newest("run").to_pylist()] == [(2, "planned")]
    assert table.rows() == 3


def test_statistics_of_a_file() -> None:
    when = dt.datetime(2026, 9, 21, 1, 2, 3, 456_789, tzinfo=dt.UTC)
    rows = pa.table(
        {
            "number": pa.array([3, None, -1], pa.int64()),
            "short": ["b", "a", None],
            "long": ["x" * 33, "a", "b"],
            "time": pa.array([when, when, None], pa.timestamp("us", tz="UTC")),
            "nothing": pa.array([None, None, None], pa.int64()),
            "bytes": [b"1", b"2", None],
            "many": [[1], [2, 3], None],
        }
    )
    file = io.BytesIO()
    pq.write_table(rows, file, row_group_size=2)
    found = file_statistics(pq.read_metadata(file))
    assert found == {
        "numRecords": 3,
        "minValues": {"number": -1, "short": "a", "time": "2026-09-21T01:02:03.456Z"},
        # Rounded up: no row may lie beyond.
        "maxValues": {"number": 3, "short": "b", "time": "2026-09-21T01:02:03.457Z"},
        "nullCount": {"number": 1, "short": 1, "long": 0, "time": 1, "nothing": 3, "bytes": 1},
    }
