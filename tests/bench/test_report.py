"""The table, the page and the plot show what was measured, rows where this node is behind included."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import report
from machine import BenchError
from results import Case, Measured, Run, Sample

ROOT = Path(__file__).parents[2]


def case(name: str, workload: str, figures: dict[str, list[float]], **extra: float) -> Measured:
    shape = Case(name, workload, f"the case {name}", "CPU us/message", "messages/s")
    samples = {
        server: [Sample(figure, rate=1e6, server_busy=0.5, generator_busy=0.25, extra=dict(extra)) for figure in each]
        for server, each in figures.items()
    }
    return Measured(shape, samples)


@pytest.fixture
def run() -> Run:
    return Run(
        machine={"cpu": "abacus", "cores": 2},
        commit="abc123",
        started="2026-01-01 00:00 UTC",
        command="make bench",
        seconds=12.0,
        versions={"nats": "nats-server: v9"},
        servers={"catchment": "keeps all", "copy": "copies", "nats": "keeps nothing", "streams": "keeps, too"},
        floors=["copy"],
        keepers=["catchment", "streams"],
        missing=["mosquitto is not installed (Debian: apt install mosquitto): no figures for it"],
        cases=[
            case(
                *("fanout-100-64", "fanout"),
                {"catchment": [0.2, 0.3], "copy": [0.1, 0.1], "nats": [0.8, 1.0], "streams": [0.25, 0.5]},
            ),
            case("ingest-1", "ingest", {"catchment": [8.0, 9.0], "streams": [4.0, 5.0]}),
            case(
                "signed",
                "signed",
                {"catchment": [50.0, 50.0], "coincurve": [40.0, 40.0], "coincurve recover": [45, 45]},
            ),
            case("versions", "versions", {"catchment": [0.4, 0.5], "3 versions": [0.5, 0.7]}),
            case("resend-all", "resend", {"catchment": [5.0, 5.0], "streams": [1.0, 1.0]}, grown_mb=1.5),
        ],
    )


def test_the_overview_has_a_row_for_each_case_and_a_ratio_for_each_server(run: Run) -> None:
    head, fanout, ingest, *_ = report.overview(run)
    assert head == ["", "unit", "catchment", "copy", "nats", "streams", "least", "least of those that keep"]
    assert fanout[2:] == [
        "0.250 (0.200-0.300)",
        "2.50 -",
        "0.28 +",
        "0.70 =",
        "even: catchment, streams",
        "even: catchment, streams",
    ]
    assert ingest[2:] == ["8.50 (8.00-9.00)", "", "", "1.90 -", "streams", "streams"]


def test_a_floor_never_wins(run: Run) -> None:
    assert "copy" not in report.least(run, run.cases[0])


def test_details_show_everybody_and_leave_out_empty_columns(run: Run) -> None:
    rows = report.details(run.cases[1])
    assert rows[0] == ["", "CPU us/message", "catchment / it", "", "messages/s", "server core", "generator core"]
    assert rows[2][:4] == ["streams", "4.50 (4.00-5.00)", "1.90 (1.80-2.00)", "behind"]


def test_work_put_off_is_shown_as_a_share(run: Run) -> None:
    run.cases[1].samples["catchment"] = [Sample(8.0, put_off=2.0), Sample(8.0, put_off=2.0)]
    assert report.details(run.cases[1])[1][2] == "25%"


def test_goals_are_differences_and_ratios_of_the_same_rounds(run: Run) -> None:
    assert [row[1] for row in report.goals(run)] == [
        "0.28 (0.25-0.30)",
        "0.150 (0.100-0.200)",
        "0.80 (0.80-0.80)",
        "1.00 (1.00-1.00)",
        "0.90 (0.90-0.90)",
        "1.00 (1.00-1.00)",
        "1.5 (1.5-1.5)",
    ]


def test_goals_that_were_not_measured_are_not_shown(run: Run) -> None:
    run.cases = run.cases[1:2]
    assert list(report.goals(run)) == []


@pytest.mark.parametrize("shown", [report.as_text, report.as_markdown])
def test_the_table_says_where_it_comes_from_and_what_is_missing(run: Run, shown: object) -> None:
    text = shown(run)  # type: ignore[operator]
    for part in ("make bench", "abc123", "abacus", "mosquitto is not installed", "behind", "the case ingest-1"):
        assert part in text


def test_the_page_changes_between_its_markers_only(run: Run, tmp_path: Path) -> None:
    page, picture = tmp_path / "performance.md", tmp_path / "plot.png"
    page.write_text(f"# Before\n{report.BEGIN}\nold figures\n{report.END}\nafter\n")
    report.write_docs(run, page, picture)
    first = page.read_text()
    assert first.startswith(f"# Before\n{report.BEGIN}\n")
    assert first.endswith(f"{report.END}\nafter\n")
    assert "old figures" not in first
    assert "| 0.250 (0.200-0.300) |" in first
    assert picture.read_bytes().startswith(b"\x89PNG")
    report.write_docs(run, page, picture)
    assert page.read_text() == first


def test_a_page_without_markers_is_left_alone(run: Run, tmp_path: Path) -> None:
    page, picture = tmp_path / "performance.md", tmp_path / "plot.png"
    page.write_text(f"# Before\n{report.BEGIN}\n")
    with pytest.raises(BenchError, match="both markers"):
        report.write_docs(run, page, picture)
    assert page.read_text() == f"# Before\n{report.BEGIN}\n"
    assert not picture.exists()


def test_the_real_page_has_a_place_for_the_table() -> None:
    text = report.PAGE.read_text(encoding="utf-8")
    assert re.search(f"^{report.BEGIN}$.*^{report.END}$", text, re.MULTILINE | re.DOTALL)


def test_a_file_that_is_no_result_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text("no")
    assert report.main([str(tmp_path / "x.json")]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "is no result" in told.err


def test_a_result_can_be_shown_without_touching_the_page(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.save(tmp_path / "result.json")
    before = report.PAGE.read_bytes()
    assert report.main([str(tmp_path / "result.json"), "--print"]) == 0
    assert "the case fanout-100-64" in capsys.readouterr().out
    assert report.PAGE.read_bytes() == before


def test_two_runs_are_compared_by_their_winners(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    run.save(first)
    run.cases[0].samples["streams"] = [Sample(0.9), Sample(0.9)]  # even before, now this node wins: they agree
    run.save(second)
    assert report.main([str(first), "--same", str(second)]) == 0
    assert "DIFFERENT" not in capsys.readouterr().out
    run.cases[1].samples["streams"] = [Sample(20.0), Sample(20.0)]
    run.save(second)
    assert report.main([str(first), "--same", str(second)]) == 1
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "DIFFERENT" in line)
    assert line.split() == ["the", "case", "ingest-1", "streams", "catchment", "DIFFERENT"]


def test_runs_without_winners_cannot_be_compared(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for measured in run.cases:
        measured.samples = {name: samples[:1] for name, samples in measured.samples.items()}
    run.save(tmp_path / "one.json")
    assert report.main([str(tmp_path / "one.json"), "--same", str(tmp_path / "one.json")]) == 1
    assert "one round names none" in capsys.readouterr().err
