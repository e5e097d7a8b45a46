"""`catchment tracker`: a node that is nothing but a tracker of the Streamr network."""

from __future__ import annotations

import argparse

from catchment.cli import serve, settings


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command; its flags are the settings."""
    parser = commands.add_parser(
        "tracker",
        help="run a tracker of the Streamr network",
        description="Run a tracker of the Streamr network: `catchment serve --roles tracker`.",
    )
    settings.add_flags(parser)
    parser.set_defaults(run=serve.run, roles="tracker")
