"""`catchment serve`: a node in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import os
import signal
from collections.abc import Callable

from catchment import config, logs
from catchment.cli import output
from catchment.net.server import Node


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command; its flags are the settings."""
    parser = commands.add_parser(
        "serve",
        help="run a node",
        description="Run a node. Every flag can also stand in a TOML file or in the environment "
        "(CATCHMENT_PORT for --port); flags win over the environment, which wins over the file.",
    )
    parser.add_argument("--config", metavar="FILE", help="a TOML file with settings")
    for setting in config.SETTINGS.values():
        default = f" (default: {setting.default})" if setting.default != "" else ""
        parser.add_argument(
            setting.flag,
            metavar=setting.type.__name__.upper() if not setting.choices else None,
            choices=setting.choices or None,
            help=setting.help + default,
        )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to end."""
    flags = {name: getattr(arguments, name) for name in config.SETTINGS}
    settings = config.load(flags=flags, file=arguments.config)
    logs.set_up(settings.log_format, settings.log_level)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(settings))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop of uvloop where there is one for the platform, asyncio's own elsewhere."""
    try:
        return importlib.import_module("uvloop").new_event_loop  # type: ignore[no-any-return]
    except ImportError:
        return None


def _settle_memory() -> None:
    """Take what was made at start out of the garbage collector's sight, and let it look less often.

    Messages on their way hold no reference cycles; walking a hundred thousand objects of libraries again and again
    costs more than it finds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


async def _serve(settings: config.Settings) -> int:
    node = Node(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(1)  # the second one ends at once
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await node.start()
    _settle_memory()
    node.write_ready_file()
    output.note(f"Catchment is ready: {node.addresses['ws']}/api/v1/ws (Streamr), {node.addresses['http']}/api/info")
    await stop.wait()
    await node.drain()
    return 0
