"""What commands print: results on standard output, everything else on standard error."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from rich.table import Table

WIDTH: Final = 240
"""Columns of characters of a table that goes into a file or a pipe."""


def line(text: str) -> None:
    """One line of a result."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def json_line(value: object) -> None:
    """One result as JSON."""
    line(msgspec.json.encode(value).decode())


def table(made: Table) -> None:
    """A result as a table; without a terminal there is no width to keep to."""
    from rich.console import Console  # noqa: PLC0415 - most commands print none, and it takes its time to import

    Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDTH).print(made)


def note(text: str) -> None:
    """Something for the person at the terminal that is no result."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def error(text: str) -> None:
    """Why a command ends."""
    note(f"catchment: {text}")
