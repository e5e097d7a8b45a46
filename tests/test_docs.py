"""The documents do not lie: links, commands, targets, settings, dependencies, and code that is shown."""

from __future__ import annotations

import argparse
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest

from catchment import config, lake, model
from catchment.cli.main import build_parser
from catchment.store.memory import MemoryStore
from catchment.store.sealing import Sealer

from .reference import reference

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "catchment"
README = ROOT / "README.md"
PLANNED = {"store/blobs.py"}
"""Modules the pages name as missing."""
NOT_OURS = {".venv", ".pytest_cache", ".ruff_cache", "node_modules", "build", "dist", "site"}
PAGES = sorted(path for path in ROOT.rglob("*.md") if not NOT_OURS & set(path.relative_to(ROOT).parts))

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MAKE = re.compile(r"(?:^|`|\$ )make ([a-z]+)\b", re.MULTILINE)
INLINE = re.compile(r"`(catchment [^`\n]+)`")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


@cache
def the_parser() -> argparse.ArgumentParser:
    return build_parser()


@cache
def the_declared() -> reference.Declared:
    return reference.declared()


@cache
def known_flags() -> set[str]:
    """Flags of our commands, scripts and benchmarks."""
    known = {flag for _, _, parser in reference.commands(the_parser()) for flag in parser._option_string_actions}
    for folder in ("bench", "examples", "scripts", "conformance"):
        for script in (ROOT / folder).rglob("*.py"):
            known |= set(re.findall(r'"(--[a-z-]+)"', script.read_text(encoding="utf-8")))
    return known


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as repository hosts make them."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def python_blocks(page: Path) -> list[str]:
    return [code for language, code in BLOCK.findall(text_of(page)) if language == "python"]


def without_subparsers(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command of a parser that has no further commands, by its words."""
    deeper = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not deeper:
        yield parser.prog, parser
    for action in deeper:
        for each in action.choices.values():
            yield from without_subparsers(each)


def shown_commands(page: Path) -> list[list[str]]:
    """The `catchment` command lines in a page's blocks: after a prompt or a pipe, up to a pipe or a comment."""
    found = []
    for language, code in BLOCK.findall(text_of(page)):
        if language == "python":
            continue
        for line in code.splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True) if line.startswith("$ ") else []
            for part in _pipeline(words):
                if part[:1] and Path(part[0]).name == "catchment":
                    found.append(part[1:])
    return found


def _pipeline(words: list[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for word in [*words, "|"]:
        if word in ("|", ">", "&&", "&"):
            yield part
            part = []
        else:
            part.append(word)


def test_there_is_something_to_look_at() -> None:
    names = {page.relative_to(ROOT).as_posix() for page in PAGES}
    assert {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/decisions/0002-dependencies.md"} <= names
    assert len(shown_commands(README)) >= 8
    assert python_blocks(README)


@every_page
def test_nothing_of_a_merge_is_left_over(page: Path) -> None:
    assert not re.search(r"^(<<<<<<<|=======|>>>>>>>)( |$)", text_of(page), re.MULTILINE)


@every_page
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(text_of(page)):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        assert there.is_relative_to(ROOT), target
        if anchor:
            assert anchor in anchors(there), target


@every_page
def test_python_blocks_compile(page: Path) -> None:
    for code in python_blocks(page):
        compile(code, str(page), "exec")


@every_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(MAKE.findall(text_of(page))) <= targets


@every_page
def test_shown_commands_parse(page: Path) -> None:
    for words in shown_commands(page):
        parsed = the_parser().parse_args(words)
        assert callable(parsed.run)


@every_page
def test_commands_named_in_sentences_exist(page: Path) -> None:
    known = {prog for prog, _ in without_subparsers(the_parser())}
    for command in INLINE.findall(text_of(page)):
        words = [word for word in command.split() if not word.startswith("-")]
        assert any(" ".join(words[:length]) in known for length in (2, 3)), command
        name = next(" ".join(words[:length]) for length in (3, 2) if " ".join(words[:length]) in known)
        flags = set(dict(without_subparsers(the_parser()))[name]._option_string_actions)
        assert {word for word in command.split() if word.startswith("--")} <= flags, command


MADE = {"bench/build/", "bench/results/"}
"""Folders that running something makes; a clone has none."""


@every_page
def test_paths_named_in_pages_exist(page: Path) -> None:
    """Files of ours that a page names as code, from the root or from a room."""
    named = re.findall(r"`((?:src|tests|bench|examples|docs|scripts|requirements)/[\w./-]+)`", text_of(page))
    planned = {name for name in named if "example" in Path(name).name or "/example/" in f"{name}/"} - {"examples/"}
    for name in set(named) - planned - MADE:
        assert (ROOT / name).exists(), name


@every_page
def test_modules_named_in_pages_exist(page: Path) -> None:
    """Modules that a page names from their room; those it says are not there yet are not."""
    rooms = "|".join(path.name for path in SOURCE.iterdir() if path.is_dir() and not path.name.startswith("_"))
    for name in set(re.findall(rf"`((?:{rooms})/[\w/]+\.py)`", text_of(page))):
        if Path(name).name != "example.py":
            assert (SOURCE / name).exists() == (name not in PLANNED), name


def test_every_setting_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        the_parser().parse_args(["serve", "--help"])
    shown = capsys.readouterr().out
    for setting in config.SETTINGS.values():
        if setting.secret:
            continue
        assert re.search(rf"^\s+{setting.flag}\b", shown, re.MULTILINE), setting.flag
        assert setting.help.split()[0] in shown


def test_every_setting_command_metric_and_table_is_documented() -> None:
    """docs/settings.md, commands.md, metrics.md and tables.md say what the code declares: make reference."""
    assert reference.problems(reference.declared()) == []


@every_page
def test_metrics_named_in_pages_exist(page: Path) -> None:
    declared = the_declared().metrics
    series = {name + end for name, kind, *_ in declared if kind == "histogram" for end in ("_bucket", "_sum", "_count")}
    assert set(re.findall(r"`(catchment_[a-z_]+)`", text_of(page))) <= series | {name for name, *_ in declared}


@every_page
def test_variables_named_in_pages_exist(page: Path) -> None:
    variables = {setting.variable for setting in config.SETTINGS.values()} | {config.CONFIG_VARIABLE}
    assert set(re.findall(r"`(CATCHMENT_[A-Z_]+)", text_of(page))) <= variables


PLANNED_FLAGS = {"--keep-days"}
"""Flags that pages name as missing."""
FLAGS_OF_OTHERS = {"--no-build-isolation", "--require-hashes"}
"""Flags of pip."""


@every_page
def test_flags_named_in_pages_exist(page: Path) -> None:
    assert set(re.findall(r"`(--[a-z-]+)[ `=]", text_of(page))) <= known_flags() | PLANNED_FLAGS | FLAGS_OF_OTHERS


def test_metrics_are_declared_in_one_module_only() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name != "metrics.py" and "prometheus_client" in text:
            assert not re.search(r"\b(Counter|Gauge|Histogram|Summary|Info|Enum)\(", text), path


def test_the_readme_begins_with_the_two_commands() -> None:
    lines = text_of(README).splitlines()
    first_screen = "\n".join(lines[:16])
    assert re.search(r"^make demo\b", first_screen, re.MULTILINE)
    assert re.search(r"^make test\b", first_screen, re.MULTILINE)
    assert "docs/flow.svg" in first_screen


def test_the_readme_names_every_table() -> None:
    from catchment.pipeline.columns import TABLES  # noqa: PLC0415 - needs no Spark, but belongs to its room

    for name in (*TABLES, "raw"):
        assert f"| `{name}` |" in text_of(README)


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = list(project["project"]["dependencies"])
    for group in (project["project"]["optional-dependencies"], project["dependency-groups"]):
        wanted += [requirement for requirements in group.values() for requirement in requirements]
    names = {re.split(r"[<>=!~;\[ ]", requirement)[0] for requirement in wanted}
    page = text_of(ROOT / "docs/decisions/0002-dependencies.md")
    listed = set(re.findall(r"^\| `([\w.-]+)` \|", page, re.MULTILINE))
    assert names == listed


def test_every_decision_is_listed() -> None:
    index = text_of(ROOT / "docs/decisions/0001-record-decisions.md")
    pages = sorted(path.name for path in (ROOT / "docs/decisions").glob("*.md"))
    numbers = [name[:4] for name in pages]
    assert all(number.isdigit() for number in numbers)
    assert len(set(numbers)) == len(numbers), "two decisions have the same number"
    for name in pages[1:]:
        assert f"]({name})" in index
    for name in pages:
        text = text_of(ROOT / "docs/decisions" / name)
        assert [line for line in text.splitlines() if line in ("## Context", "## Decision", "## Consequences")] == [
            "## Context",
            "## Decision",
            "## Consequences",
        ]


def _entry(number: int, raw: bytes) -> model.Entry:
    return model.Entry(
        kind=model.Kind.MESSAGE,
        protocol=model.Protocol.STREAMR,
        version=32,
        topic="river",
        partition=0,
        publisher="0x" + "ab" * 20,
        chain="c",
        timestamp=1_700_000_000_000 + number,
        sequence=0,
        prev_timestamp=None if number == 0 else 1_700_000_000_000 + number - 1,
        prev_sequence=None if number == 0 else 0,
        event_time=(1_700_000_000_000 + number) * 1_000_000,
        id=b"",
        verdict=model.Verdict.OK,
        received_at=1_700_000_000_000_000 + number,
        raw=raw,
    )


def test_the_digests_can_be_computed_as_the_architecture_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = MemoryStore()
    sealer = Sealer(store, str(tmp_path / "catchment-data" / "lake"))
    for first in (0, 3):
        store.append([_entry(number, b"[%d]" % number) for number in range(first, first + 3)])
        assert sealer.seal() is not None
    (code,) = (code for code in python_blocks(ROOT / "ARCHITECTURE.md") if "blake3" in code)
    shown = re.search(r'columns = \(\n\s+"(.*?)"\n\s+"(.*?)"\n\)', code)
    assert shown is not None
    assert tuple((shown[1] + shown[2]).split()) == lake.DIGEST_COLUMNS
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "ARCHITECTURE.md", "exec"), {})
    assert capsys.readouterr().out == "0 2 True\n3 5 True\n"
    exec(compile(code.replace("verdict raw", "verdict crc"), "ARCHITECTURE.md", "exec"), {})
    assert capsys.readouterr().out == "0 2 False\n3 5 False\n"


@pytest.mark.parametrize("example", ["publish_and_subscribe.py", "encrypted.py"])
def test_the_example_runs_as_its_page_shows(tmp_path: Path, example: str) -> None:
    ready = tmp_path / "ready.json"
    serve = ["-m", "catchment.cli.main", "serve", "--port", "0", "--mosaic-port", "0", "--data", str(tmp_path / "data")]
    with subprocess.Popen(
        [sys.executable, *serve, "--ready-file", str(ready), "--log-level", "warning"],
        stderr=subprocess.PIPE,
        text=True,
    ) as node:
        try:
            assert node.stderr is not None
            first = node.stderr.readline()
            assert first.startswith("Catchment is ready"), first
            url = msgspec.json.decode(ready.read_bytes())["ws"]
            ran = subprocess.run(
                [sys.executable, str(ROOT / "examples" / example), url],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            node.send_signal(signal.SIGTERM)
            assert node.wait(60) == 0
        finally:
            node.kill()
    assert (ran.returncode, ran.stderr) == (0, "")
    (block,) = (code for _, code in BLOCK.findall(text_of(ROOT / "examples" / "README.md")) if f"/{example}\n" in code)
    assert block.split(f"{example}\n")[1] == ran.stdout
