"""`catchment serve`: a node in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import logging
import os
import signal
from collections.abc import Callable

from catchment import config, logs
from catchment.cli import output, settings
from catchment.errors import UserError
from catchment.net.server import Node

log = logging.getLogger(__name__)


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command; its flags are the settings."""
    parser = commands.add_parser(
        "serve",
        help="run a node",
        description="Run a node. Every flag can also stand in a TOML file or in the environment "
        "(CATCHMENT_PORT for --port); flags win over the environment, which wins over the file.",
    )
    settings.add_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to end."""
    read = settings.reader(arguments)
    wanted = read().settings
    logs.set_up(wanted.log_format, wanted.log_level)
    logs.hide(wanted.secrets())
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(wanted, read))


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


async def _serve(wanted: config.Settings, read: Callable[[], config.Resolved]) -> int:
    node = Node(wanted)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(1)  # the second one ends at once
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await node.start()
    loop.add_signal_handler(signal.SIGHUP, lambda: reload(node, read))
    _settle_memory()
    node.write_ready_file()
    output.note(f"Catchment is ready: {node.addresses['ws']}/api/v1/ws (Streamr), {node.addresses['http']}/api/info")
    await stop.wait()
    loop.remove_signal_handler(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a node that ends has nothing to reload
    await node.drain()
    return 0


def reload(node: Node, read: Callable[[], config.Resolved]) -> None:
    """Read the settings again and bring into force what can be; the log says what, and what needs a restart.

    Whatever is wrong with them, the node goes on as it was.
    """
    before = node.settings
    try:
        wanted = read().settings
        logs.hide(wanted.secrets())
        applied, restart = node.reload(wanted)
    except UserError as problem:
        log.error("SIGHUP: nothing was reloaded, everything stays as it was: %s", problem)
        return
    if {"log_format", "log_level"} & set(applied):
        logs.set_up(wanted.log_format, wanted.log_level)
    for name in applied:
        setting = config.SETTINGS[name]
        old, new = (setting.shown(getattr(each, name)) for each in (before, wanted))
        log.info("SIGHUP: %s was %r, is now %r", name, old, new)
    for name in restart:
        log.warning("SIGHUP: %s differs from what the node runs with; it needs a restart", name)
    if not applied and not restart:
        log.info("SIGHUP: no setting changed")
