"""`catchment lake ...` from a log to rows on the terminal."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from catchment.cli.main import main
from catchment.store.lmdb import LmdbStore

from .lakes import START, entry, repeat, signed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A node's folder: three messages of a chain of four, the third missing, the first twice."""
    refs = [(START + step, 0) for step in range(4)]
    kept = [
        entry(signed(refs[step], refs[step - 1] if step else None, content=f'"[b]{step}\\u001b"'), START * 1000 + step)
        for step in (0, 1, 3)
    ]
    store = LmdbStore.open(tmp_path / "store")
    store.append([*kept, repeat(kept[0], START * 1000 + 9)])
    store.close()
    return tmp_path


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


@pytest.mark.spark
def test_seal_verify_run_and_look(data: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--data", str(data)]
    assert main(["lake", "seal", *where]) == 0
    assert lines(capsys) == [f"sealed 4 rows into {data}/lake"]
    assert main(["lake", "seal", *where, "--json"]) == 0
    assert lines(capsys) == []
    assert main(["lake", "verify", *where]) == 0
    assert lines(capsys) == ["4 rows in 1 sealed ranges are as they were sealed"]
    assert main(["lake", "verify", *where, "--json"]) == 0
    assert json.loads(lines(capsys)[0])["problems"] == []

    assert main(["lake", "run", *where, "--json"]) == 0
    report = json.loads(lines(capsys)[0])
    assert report["totals"] == {"quarantine": 0, "messages": 3, "duplicates": 1, "gaps": 1}
    assert report["gaps"] == {"provisional": 1}
    assert main(["lake", "run", *where]) == 0
    assert lines(capsys) == ["nothing new: the tables have every sealed row"]

    assert main(["lake", "table", "messages", *where, "--json", "--where", f"timestamp > {START}"]) == 0
    rows = [json.loads(line) for line in lines(capsys)]
    assert sorted(row["timestamp"] for row in rows) == [START + 1, START + 3]
    assert bytes.fromhex(rows[0]["raw"]).startswith(b"[32,")
    assert rows[0]["received_at"].endswith("Z")
    assert main(["lake", "table", "duplicates", *where, "--csv"]) == 0
    header, row = csv.reader(io.StringIO(capsys.readouterr().out))
    assert dict(zip(header, row, strict=True))["copies"] == "1"
    assert main(["lake", "table", "messages", *where, "--limit", "2"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("[b]") == 2
    assert "\x1b" not in shown, "what a publisher wrote must not command the terminal"

    assert main(["lake", "files", "messages", *where]) == 0
    assert all(Path(path).is_file() for path in lines(capsys))
    assert main(["lake", "files", "raw", *where, "--json"]) == 0
    assert sum(json.loads(line)["rows"] for line in lines(capsys)) == 4

    assert main(["lake", "table", "messages", *where, "--where", "no such sql"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_verify_finds_what_is_gone(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lake", "seal", "--data", str(data)]) == 0
    assert main(["lake", "files", "raw", "--data", str(data)]) == 0
    Path(lines(capsys)[-1]).unlink()
    assert main(["lake", "verify", "--data", str(data)]) == 1
    assert "problem" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["seal"], "no store"),
        (["run"], "lake seal"),
        (["table", "messages"], "lake run"),
        (["table", "raw"], "lake seal"),
        (["files", "nonsense"], "messages, quarantine, duplicates, gaps, runs, raw"),
    ],
)
def test_errors_are_one_sentence_with_the_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], says: str
) -> None:
    assert main(["lake", *command, "--data", str(tmp_path / "none")]) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1
    assert says in error[0]


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (
        ["lake"],
        ["lake", "table"],
        ["lake", "table", "gaps", "--json", "--csv"],
        ["lake", "table", "gaps", "--limit", "-1"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(wrong)
        assert ended.value.code == 2
    capsys.readouterr()
