"""Figures are compared by their ranges, and kept so that they can be read again."""

from __future__ import annotations

from pathlib import Path

import pytest
import results
from machine import BenchError
from results import Case, Measured, Run, Sample


def measured(**figures: list[float]) -> Measured:
    case = Case("fanout-100-64", "fanout", "fan-out to 100, 64 in flight", "CPU us/delivery", "deliveries/s")
    return Measured(case, {name: [Sample(figure, rate=1e6) for figure in each] for name, each in figures.items()})


def a_run(*cases: Measured) -> Run:
    servers = dict.fromkeys((name for each in cases for name in each.samples), "does something")
    return Run({"cpu": "abacus", "cores": 2}, "abc", "today", "make bench", servers=servers, cases=list(cases))


def test_ahead_and_behind_need_ranges_that_are_apart() -> None:
    assert results.verdict([1.0, 1.2], [1.3, 1.5]) == "ahead"
    assert results.verdict([1.3, 1.5], [1.0, 1.2]) == "behind"


def test_ranges_that_touch_are_even_however_far_the_medians_are() -> None:
    assert results.verdict([1.0, 1.0, 1.0, 9.0], [9.0, 9.5, 9.5, 9.5]) == "even"


def test_one_round_names_nobody() -> None:
    assert results.verdict([1.0], [9.0]) == ""
    assert results.winner({"a": [1.0], "b": [9.0]}) == ""


def test_a_winner_is_below_everybody_in_every_round() -> None:
    assert results.winner({"a": [2.0, 2.1], "b": [1.0, 1.9], "c": [5.0, 6.0]}) == "b"


def test_without_a_winner_all_are_named_whose_range_reaches_the_best() -> None:
    assert results.winner({"a": [1.5, 2.0], "b": [1.0, 1.6], "c": [5.0, 6.0]}) == "even: b, a"


def test_a_ratio_compares_neighbours_in_time() -> None:
    assert results.ratios([1.0, 20.0], [2.0, 40.0]) == [0.5, 0.5]


def test_a_figure_is_a_median_with_its_range() -> None:
    assert results.spread([3.0, 1.0, 2.0], ".1f") == "2.0 (1.0-3.0)"
    assert results.spread([3.0], ".1f") == "3.0"


def test_a_result_can_be_read_again(tmp_path: Path) -> None:
    run = a_run(measured(catchment=[1.0, 2.0], nats=[3.0, 4.0]))
    run.save(tmp_path / "new" / "result.json")
    assert Run.load(tmp_path / "new" / "result.json") == run


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 99}', '{"format": 1, "cases": [1]}'])
def test_what_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "result.json"
    file.write_text(text)
    with pytest.raises(BenchError, match=r"result\.json"):
        Run.load(file)


def test_the_generator_says_when_it_was_the_limit() -> None:
    case = measured(copy=[1.0, 1.0], nats=[1.0, 1.0])
    case.samples["copy"][1] = Sample(1.0, generator_busy=0.97, limited=True)
    (note,) = results.notes(a_run(case))
    assert "the generator was the limit with copy (1 of 2 rounds)" in note


def test_a_core_that_others_used_is_noted() -> None:
    case = measured(nats=[1.0, 1.0])
    case.samples["nats"][0] = Sample(1.0, server_busy=0.5, core_busy=0.9)
    (note,) = results.notes(a_run(case))
    assert "1 of 2 phases" in note
    assert "quiet machine" in note
