"""`catchment pop`: what PoPStellar's signed messages add up to."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from catchment import logs
from catchment.cli import output
from catchment.config import Settings
from catchment.errors import UserError

if TYPE_CHECKING:
    from catchment.pipeline import popstellar


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("pop", help="PoPStellar: count elections again")
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    count = verbs.add_parser(
        "recount", help="count every election of the lake again and compare it with what servers announced"
    )
    count.add_argument("--data", default=Settings().data, metavar="DIR", help="the node's folder")
    count.add_argument("--json", action="store_true", help="one JSON object a line")
    count.set_defaults(run=_recount)


def _recount(arguments: argparse.Namespace) -> int:
    """Ends with 1 when a server announced something else than the messages add up to."""
    from catchment.pipeline import popstellar  # noqa: PLC0415 - Arrow takes its time to import
    from catchment.pipeline.raw import open_raw  # noqa: PLC0415

    address = str(Path(arguments.data) / "lake")
    raw = open_raw(address)
    if raw is None:
        raise UserError(f"{address} has no table raw yet: run `catchment lake seal` first, or name the folder")
    found = [each for node, rows in popstellar.signed_rows(raw).items() for each in popstellar.recount(node, rows)]
    if arguments.json:
        for each in found:
            output.json_line(msgspec.to_builtins(each))
    else:
        _show(found)
    return 1 if any(each.verdict == popstellar.DIFFERS for each in found) else 0


def _show(found: list[popstellar.Recounted]) -> None:
    from rich.table import Table  # noqa: PLC0415 - only here
    from rich.text import Text  # noqa: PLC0415

    made = Table(title="elections, counted again", title_justify="left")
    for name in ("election", "state", "question", "option", "counted", "announced", "by", "verdict"):
        made.add_column(name)
    for each in found:
        cells = (each.name, each.state, each.question, each.option, each.counted, each.announced, each.server)
        # Organizers choose these words; control characters would reach the terminal.
        made.add_row(*(Text("" if cell is None else logs.escaped(str(cell))) for cell in (*cells, each.verdict)))
    output.table(made)
