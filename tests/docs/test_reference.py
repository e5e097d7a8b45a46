"""The reference check can fail: whatever is taken away, added or left without a sentence is named."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from catchment.config import Setting

from ..reference import reference

PAGES = ("settings", "commands", "metrics", "tables")


def problems(**changes: object) -> list[str]:
    return reference.problems(reference.declared()._replace(**changes))


def test_nothing_is_wrong_now() -> None:
    assert problems() == []


def only(found: list[str], *words: str) -> None:
    """One problem that says all of this, or several that all concern it."""
    assert found
    assert any(all(word in problem for word in words) for problem in found), found


class TestSettings:
    def test_a_documented_one_taken_away(self) -> None:
        settings = dict(reference.declared().settings)
        del settings["hot_hours"]
        only(problems(settings=settings), "docs/settings.md has what the code does not declare", "hot_hours")

    def test_an_undocumented_one_added(self) -> None:
        extra = Setting("A new one.", name="tide", type=int, default=3)
        only(problems(settings={**reference.declared().settings, "tide": extra}), "docs/settings.md lacks", "tide")

    def test_one_without_a_sentence(self) -> None:
        extra = Setting("", name="tide", type=int, default=3)
        only(problems(settings={**reference.declared().settings, "tide": extra}), "the setting tide has no sentence")

    @pytest.mark.parametrize(
        "change",
        [{"default": 5}, {"help": "Something else."}, {"reloadable": True}, {"secret": True}, {"maximum": 7.0}],
        ids=lambda change: next(iter(change)),
    )
    def test_one_that_changed(self, change: dict[str, object]) -> None:
        settings = dict(reference.declared().settings)
        settings["port"] = msgspec.structs.replace(settings["port"], **change)
        only(problems(settings=settings), "docs/settings.md lacks", "`port`")


class TestCommands:
    @pytest.fixture
    def parser(self) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = reference.declared().parser
        return parser

    def commands(self, parser: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser]:
        return next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))

    def test_one_taken_away(self, parser: argparse.ArgumentParser) -> None:
        del self.commands(parser).choices["resend"]
        only(problems(parser=parser), "docs/commands.md has what the code does not declare", "catchment resend")

    def test_one_added(self, parser: argparse.ArgumentParser) -> None:
        self.commands(parser).add_parser("wade", help="step in")
        only(problems(parser=parser), "docs/commands.md lacks", "catchment wade")

    def test_one_without_help(self, parser: argparse.ArgumentParser) -> None:
        self.commands(parser).add_parser("wade")
        only(problems(parser=parser), "the command 'catchment wade' has no help")

    def test_a_flag_added(self, parser: argparse.ArgumentParser) -> None:
        self.commands(parser).choices["sub"].add_argument("--deep", help="how deep")
        only(problems(parser=parser), "docs/commands.md lacks", "--deep")

    def test_a_flag_without_help(self, parser: argparse.ArgumentParser) -> None:
        self.commands(parser).choices["sub"].add_argument("--deep")
        only(problems(parser=parser), "--deep", "'catchment sub' has no help")

    def test_a_flag_taken_away(self, parser: argparse.ArgumentParser) -> None:
        sub = self.commands(parser).choices["sub"]
        sub._actions = [action for action in sub._actions if action.dest != "count"]
        only(problems(parser=parser), "docs/commands.md has what the code does not declare", "--count")


class TestMetrics:
    def test_one_taken_away(self) -> None:
        gone, *left = reference.declared().metrics
        only(problems(metrics=tuple(left)), "docs/metrics.md has what the code does not declare", gone.name)

    def test_one_added(self) -> None:
        extra = reference.Metric("catchment_net_fish_total", "counter", (), "Fish.")
        only(problems(metrics=(*reference.declared().metrics, extra)), "docs/metrics.md lacks", extra.name)

    def test_one_without_a_sentence(self) -> None:
        extra = reference.Metric("catchment_net_fish_total", "counter", (), "")
        only(problems(metrics=(*reference.declared().metrics, extra)), f"the metric {extra.name} has no sentence")

    def test_a_label_added(self) -> None:
        first, *left = reference.declared().metrics
        changed = first._replace(labels=(*first.labels, "reason"))
        only(problems(metrics=(changed, *left)), "docs/metrics.md lacks", first.name)


class TestTables:
    def changed(self, name: str, change: Callable[..., object]) -> list[str]:
        tables = dict(reference.declared().tables)
        tables[name] = tables[name]._replace(columns=change(tables[name].columns))
        return problems(tables=tables)

    @pytest.mark.parametrize("name", ["raw", "messages"])
    def test_a_column_taken_away(self, name: str) -> None:
        found = self.changed(name, lambda columns: tuple(each for each in columns if each.name != "verdict"))
        if name == "raw":
            only(found, "docs/tables.md", "What the node found.")
        else:
            only(found, "docs/tables.md has what the code does not declare", "verdict")

    @pytest.mark.parametrize("name", ["raw", "messages"])
    def test_a_column_added(self, name: str) -> None:
        column = reference.Column("depth", "int", "How deep.")
        only(self.changed(name, lambda columns: (*columns, column)), "docs/tables.md lacks", "depth")

    def test_a_column_without_a_sentence(self) -> None:
        column = reference.Column("depth", "int", "")
        only(self.changed("gaps", lambda columns: (*columns, column)), "the column gaps.depth has no sentence")

    def test_a_table_taken_away(self) -> None:
        tables = dict(reference.declared().tables)
        del tables["gaps"]
        only(problems(tables=tables), "docs/tables.md has what the code does not declare", "## gaps")

    def test_a_table_added(self) -> None:
        tables = dict(reference.declared().tables)
        tables["lagoons"] = tables["gaps"]._replace(name="lagoons")
        only(problems(tables=tables), "docs/tables.md lacks", "## lagoons")


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "docs").mkdir()
    for name in PAGES:
        shutil.copy(reference.ROOT / "docs" / f"{name}.md", tmp_path / "docs")
    return tmp_path


@pytest.mark.parametrize("name", PAGES)
def test_a_line_taken_out_of_a_page_is_missed_and_written_again(name: str, copy: Path) -> None:
    page = copy / "docs" / f"{name}.md"
    whole = page.read_text()
    lines = whole.splitlines(keepends=True)
    rows = [number for number, line in enumerate(lines) if line.startswith("| `")]
    for number in (rows[0], rows[-1]):
        page.write_text("".join(lines[:number] + lines[number + 1 :]))
        assert reference.problems(reference.declared(), copy)
        assert reference.write(reference.declared(), copy) == [f"docs/{name}.md"]
        assert page.read_text() == whole
    assert reference.write(reference.declared(), copy) == []


def test_a_page_without_its_marks_is_refused(copy: Path) -> None:
    (copy / "docs" / "metrics.md").write_text("# Metrics\n")
    with pytest.raises(SystemExit, match=r"docs/metrics.md lacks the marks"):
        reference.problems(reference.declared(), copy)
