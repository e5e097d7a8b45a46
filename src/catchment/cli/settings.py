"""`catchment config`: settings as they are, whether they would do, and a file to start from.

The flags of every command that takes settings are made here from the declaration in `catchment.config`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from rich.table import Table
from rich.text import Text

from catchment import config
from catchment.cli import output


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    parser = commands.add_parser("config", help="show, check or begin a node's settings")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    show = verbs.add_parser("show", help="show every setting, its value and where it comes from; secrets are hidden")
    show.add_argument("--json", action="store_true", help="as one JSON object")
    show.set_defaults(run=_show)
    check = verbs.add_parser("check", help="say whether a node would accept these settings")
    check.set_defaults(run=_check)
    for verb in (show, check):
        add_flags(verb)
    sample = verbs.add_parser("sample", help="print a TOML file with every setting at its default")
    sample.set_defaults(run=_sample)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each setting that may have one, and one for the file."""
    parser.add_argument("--config", metavar="FILE", help=f"a TOML file with settings (or {config.CONFIG_VARIABLE})")
    for setting in config.SETTINGS.values():
        if setting.secret:
            continue
        default = f" (default: {setting.default})" if setting.default != "" else ""
        if setting.type is bool:
            parser.add_argument(
                setting.flag, metavar="true|false", nargs="?", const="true", help=setting.help + default
            )
            continue
        parser.add_argument(
            setting.flag,
            metavar=setting.type.__name__.upper() if not setting.choices else None,
            choices=setting.choices or None,
            help=setting.help + default,
        )


def reader(arguments: argparse.Namespace) -> Callable[[], config.Resolved]:
    """What reads the settings, now and again at a reload: the file may have changed, the flags have not."""
    flags = {name: getattr(arguments, name, None) for name in config.SETTINGS}

    def read() -> config.Resolved:
        return config.resolve(flags=flags, file=arguments.config)

    return read


def _show(arguments: argparse.Namespace) -> int:
    resolved = reader(arguments)()
    if arguments.json:
        output.json_line(as_json(resolved))
        return 0
    table = Table("setting", "value", "from")
    for name, setting in config.SETTINGS.items():
        value = config.toml(setting.shown(getattr(resolved.settings, name)))
        table.add_row(*(Text(cell) for cell in (name, value, resolved.origins[name])))
    output.table(table)
    return 0


def as_json(resolved: config.Resolved) -> dict[str, dict[str, object]]:
    """Every setting by name: value (a secret hidden), origin, and whether a reload reaches it."""
    return {
        name: {
            "value": setting.shown(getattr(resolved.settings, name)),
            "from": resolved.origins[name],
            "reloadable": setting.reloadable,
        }
        for name, setting in config.SETTINGS.items()
    }


def _check(arguments: argparse.Namespace) -> int:
    resolved = reader(arguments)()
    if resolved.settings.tls_cert or resolved.settings.tls_key:
        from catchment.net import tls  # noqa: PLC0415 - most settings have none

        tls.load(resolved.settings)
    given = sum(origin != "default" for origin in resolved.origins.values())
    output.line(f"The settings are valid: {given} given, {len(resolved.origins) - given} at their defaults.")
    return 0


def _sample(arguments: argparse.Namespace) -> int:
    output.line(config.sample().rstrip("\n"))
    return 0
