"""Makes the reference pages from what the code declares: settings, commands, metrics, tables.

    python scripts/reference.py          write the made part of docs/settings.md, commands.md, metrics.md, tables.md
    python scripts/reference.py --check  say what is missing or out of date, exit code 1 if anything is

The text around the made part is written by hand. `make docs` and tests/test_docs.py check; a setting, flag, metric or
column without a sentence about it is a problem here, so nothing can be added undocumented.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from prometheus_client.metrics import MetricWrapperBase

from catchment import config, lake, metrics
from catchment.cli.main import build_parser
from catchment.pipeline.columns import TABLES, Column, Table

ROOT = Path(__file__).parents[1]
BEGIN = "<!-- made by scripts/reference.py from the declarations; do not edit -->"
END = "<!-- end of the made part -->"
COMMAND = "run: python scripts/reference.py"


class Metric(NamedTuple):
    """What is documented of a metric."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


class Declared(NamedTuple):
    """Everything that must be documented."""

    settings: Mapping[str, config.Setting]
    parser: argparse.ArgumentParser
    metrics: tuple[Metric, ...]
    tables: Mapping[str, Table]


def declared() -> Declared:
    """What the code declares now."""
    return Declared(config.SETTINGS, _parser(), tuple(_metrics()), {"raw": _raw_table(), **TABLES})


def _parser() -> argparse.ArgumentParser:
    """The command line; its help names the user's own folder, the page everyone's."""
    before = os.environ.get("XDG_CONFIG_HOME")
    os.environ["XDG_CONFIG_HOME"] = "~/.config"
    try:
        return build_parser()
    finally:
        del os.environ["XDG_CONFIG_HOME"]
        if before is not None:
            os.environ["XDG_CONFIG_HOME"] = before


def _metrics() -> Iterator[Metric]:
    for each in vars(metrics).values():
        if isinstance(each, MetricWrapperBase):
            (described,) = each.describe()
            suffix = "_total" if described.type == "counter" else ""
            yield Metric(described.name + suffix, described.type, tuple(each._labelnames), described.documentation)


def _raw_table() -> Table:
    columns = tuple(Column(field.name, str(field.type), lake.RAW_DOCS.get(field.name, "")) for field in lake.RAW_SCHEMA)
    return Table("raw", lake.RAW_DOC, columns, lake.PARTITION_COLUMNS, ("node", "epoch", "offset"))


# The made parts.


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _table(*head: str, rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [_row(*head), "|" + "---|" * len(head), *(_row(*row) for row in rows)]


def settings_part(settings: Mapping[str, config.Setting]) -> str:
    """One row for each setting."""
    rows = (
        (
            f"`{setting.name}`",
            "none: a secret" if setting.secret else f"`{setting.flag}`",
            f"`{setting.variable}`",
            f"`{config.toml(setting.default)}`",
            "SIGHUP" if setting.reloadable else "restart",
            " ".join([setting.help, *config.limits(setting)]),
        )
        for setting in settings.values()
    )
    return "\n".join(_table("setting", "flag", "variable", "default", "changes with", "what it does", rows=rows))


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Every command without further commands: its words, its sentence, its parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, each in action.choices.items():
                deeper = list(commands(each))
                yield from deeper or [(each.prog, helps.get(name, ""), each)]


def arguments(parser: argparse.ArgumentParser, settings: Mapping[str, config.Setting]) -> Iterator[tuple[str, str]]:
    """What a command takes, settings apart: its form, and a sentence."""
    for action in parser._actions:
        if action.dest == "help" or _is_setting(action, settings):
            continue
        form = action.option_strings[-1] if action.option_strings else (action.metavar or action.dest)
        if action.choices is not None and not action.option_strings:
            form = str(action.dest)
        value = "" if action.nargs == 0 or not action.option_strings else f" {_value(action)}"
        about = [parser._get_formatter()._expand_help(action) if action.help else ""]
        if action.choices is not None:
            about.append(f"one of {', '.join(map(str, action.choices))}")
        yield f"`{form}{value}`", "; ".join(part for part in about if part)


def _is_setting(action: argparse.Action, settings: Mapping[str, config.Setting]) -> bool:
    return action.dest in settings and settings[action.dest].flag in action.option_strings


def _value(action: argparse.Action) -> str:
    return str(action.metavar or action.dest.upper())


def commands_part(parser: argparse.ArgumentParser, settings: Mapping[str, config.Setting]) -> str:
    """A section for each command."""
    sections = []
    for words, sentence, each in commands(parser):
        lines = [f"## {words}", "", (sentence[:1].upper() + sentence[1:]).rstrip(".") + "."]
        rows = list(arguments(each, settings))
        if rows:
            lines += ["", *_table("argument", "what it is", rows=rows)]
        if any(_is_setting(action, settings) for action in each._actions):
            lines += ["", "Every [setting](settings.md) is a flag of this command."]
        sections.append("\n".join(lines))
    return "\n\n".join(sections)


def metrics_part(found: Iterable[Metric]) -> str:
    """One row for each metric."""
    rows = (
        (f"`{each.name}`", each.kind, ", ".join(f"`{label}`" for label in each.labels), each.help) for each in found
    )
    return "\n".join(_table("metric", "type", "labels", "what it counts", rows=rows))


def tables_part(tables: Mapping[str, Table]) -> str:
    """A section for each table."""
    sections = []
    for table in tables.values():
        rows = ((f"`{column.name}`", f"`{column.type}`", column.doc) for column in table.columns)
        told = [f"Unique: {', '.join(f'`{name}`' for name in table.key)}."] if table.key else []
        told += [f"Partitioned by {', '.join(f'`{name}`' for name in table.partition_by)}."] * bool(table.partition_by)
        lines = [f"## {table.name}", "", table.doc, "", " ".join(told), ""]
        sections.append("\n".join([*lines, *_table("column", "type", "what it holds", rows=rows)]))
    return "\n\n".join(sections)


def parts(found: Declared) -> dict[str, str]:
    """The made part of each page."""
    return {
        "docs/settings.md": settings_part(found.settings),
        "docs/commands.md": commands_part(found.parser, found.settings),
        "docs/metrics.md": metrics_part(found.metrics),
        "docs/tables.md": tables_part(found.tables),
    }


# What is wrong.


def undocumented(found: Declared) -> Iterator[str]:
    """What the code declares without a sentence about it."""
    for setting in found.settings.values():
        if not setting.help.strip().endswith("."):
            yield f"the setting {setting.name} has no sentence in its help (config.py)"
    for words, sentence, each in commands(found.parser):
        if not sentence.strip():
            yield f"the command '{words}' has no help"
        for form, about in arguments(each, found.settings):
            if not about.strip():
                yield f"the argument {form} of '{words}' has no help"
    for metric in found.metrics:
        if not metric.help.strip().endswith("."):
            yield f"the metric {metric.name} has no sentence (metrics.py)"
    for table in found.tables.values():
        if not table.doc.strip():
            yield f"the table {table.name} has no sentence (pipeline/columns.py, lake.py)"
        for column in table.columns:
            if not column.doc.strip():
                yield f"the column {table.name}.{column.name} has no sentence (pipeline/columns.py, lake.RAW_DOCS)"


def out_of_date(found: Declared, root: Path = ROOT) -> Iterator[str]:
    """Pages whose made part is not what the code declares, with the first lines that differ."""
    for name, wanted in parts(found).items():
        have = _made_part((root / name).read_text(encoding="utf-8"), name)
        for line in list(difflib.unified_diff(have.splitlines(), wanted.splitlines(), n=0, lineterm=""))[3:9]:
            told = {"+": "lacks", "-": "has what the code does not declare"}.get(line[0])
            if told is not None:
                yield f"{name} {told}: {line[1:]} ({COMMAND})"


def problems(found: Declared, root: Path = ROOT) -> list[str]:
    """Everything that keeps the reference from being true."""
    return [*undocumented(found), *out_of_date(found, root)]


def _made_part(text: str, name: str) -> str:
    _, begin, rest = text.partition(BEGIN)
    made, end, _ = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{name} lacks the marks of its made part: {BEGIN} ... {END}")
    return made.strip("\n")


def write(found: Declared, root: Path = ROOT) -> list[str]:
    """Put the made parts into their pages; the names of those that changed."""
    changed = []
    for name, wanted in parts(found).items():
        path = root / name
        text = path.read_text(encoding="utf-8")
        _made_part(text, name)
        head, rest = text.split(BEGIN)
        made = f"{head}{BEGIN}\n\n{wanted}\n\n{END}{rest.split(END)[1]}"
        if made != text:
            path.write_text(made, encoding="utf-8")
            changed.append(name)
    return changed


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description="Make the reference pages from the declarations.")
    parser.add_argument("--check", action="store_true", help="change nothing, say what is wrong")
    found = declared()
    if parser.parse_args().check:
        wrong = problems(found)
    else:
        for name in write(found):
            print(f"wrote {name}")
        wrong = list(undocumented(found))
    for problem in wrong:
        print(problem, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
