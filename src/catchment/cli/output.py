"""What commands print: results on standard output, everything else on standard error."""

from __future__ import annotations

import sys

import msgspec


def line(text: str) -> None:
    """One line of a result."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def json_line(value: object) -> None:
    """One result as JSON."""
    line(msgspec.json.encode(value).decode())


def note(text: str) -> None:
    """Something for the person at the terminal that is no result."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def error(text: str) -> None:
    """Why a command ends."""
    note(f"catchment: {text}")
