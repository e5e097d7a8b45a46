"""`catchment bench`: load on a running node, and what it made of it.

The user's version of the benchmarks. `make bench` compares servers with a load generator in C; this one is Python and
says so when it was the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets

import msgspec

from catchment.cli import output
from catchment.client import load
from catchment.errors import CatchmentError, UserError

MAX_CLIENTS = 10_000
MAX_SIZE = 500_000
MAX_SECONDS = 3600.0


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("bench", help="publish to and subscribe from a running node, and show how it did")
    parser.add_argument(
        "url", nargs="?", default="ws://127.0.0.1:7170", help="address of the node (default: ws://127.0.0.1:7170)"
    )
    parser.add_argument("--publishers", type=int, default=1, metavar="N", help="publishing clients (default: 1)")
    parser.add_argument("--subscribers", type=int, default=10, metavar="N", help="subscribed clients (default: 10)")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="how long to publish (default: 5)")
    parser.add_argument(
        "--window", type=int, default=64, metavar="N", help="unacknowledged messages of each publisher (default: 64)"
    )
    parser.add_argument("--size", type=int, default=300, metavar="BYTES", help="size of a content (default: 300)")
    parser.add_argument("--signed", action="store_true", help="sign what is published, with a key made for it")
    parser.add_argument(
        "--stream", help="stream to use (default: a new one); what is published stays in the node's log"
    )
    parser.add_argument("--cafile", metavar="FILE", help="PEM file of whom to trust for wss:// (default: the system's)")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(run=run)


def _checked(arguments: argparse.Namespace) -> load.Load:
    for name, least, most in (
        ("publishers", 1, MAX_CLIENTS),
        ("subscribers", 0, MAX_CLIENTS),
        ("window", 1, 1_000_000),
        ("size", load.MIN_SIZE, MAX_SIZE),
    ):
        value = getattr(arguments, name)
        if not least <= value <= most:
            raise UserError(f"--{name} takes a number from {least} to {most}, not {value}.")
    if not 0 < arguments.seconds <= MAX_SECONDS:
        raise UserError(f"--seconds takes a time above 0 and up to {MAX_SECONDS:g}, not {arguments.seconds:g}.")
    if not arguments.url.startswith(("ws://", "wss://")):
        raise UserError(f"The address of a node begins with ws:// or wss://, not {arguments.url!r}.")
    return load.Load(
        url=arguments.url,
        stream=arguments.stream or f"bench-{secrets.token_hex(6)}",
        publishers=arguments.publishers,
        subscribers=arguments.subscribers,
        seconds=arguments.seconds,
        window=arguments.window,
        size=arguments.size,
        private_key=secrets.token_bytes(32) if arguments.signed else None,
        cafile=arguments.cafile,
    )


def run(arguments: argparse.Namespace) -> int:
    """`catchment bench`: exit code 1 when something was refused, missing or out of order."""
    wanted = _checked(arguments)
    try:
        measured = asyncio.run(load.run(wanted))
    except BaseExceptionGroup as several:
        raise _first(several) from None
    if arguments.json:
        output.json_line(
            {
                "url": wanted.url,
                "stream": wanted.stream,
                "publishers": wanted.publishers,
                "subscribers": wanted.subscribers,
                "window": wanted.window,
                "size": wanted.size,
                "signed": arguments.signed,
                **msgspec.structs.asdict(measured),
                "generator_was_the_limit": measured.generator_was_the_limit,
            }
        )
    else:
        _show(wanted, measured)
    if measured.generator_was_the_limit:
        output.note(
            f"This generator was the limit: it used {measured.generator_busy:.0%} of a core. The node can do more; "
            "`make bench` measures it with a generator in C."
        )
    return 0 if measured.flawless else 1


def _first(several: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong first: connections fail together, and one sentence is enough."""
    ours, _ = several.split(CatchmentError)
    error: BaseException = several if ours is None else ours
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _show(wanted: load.Load, measured: load.Measured) -> None:
    output.line(
        f"{_count(wanted.publishers, 'publisher')} with {_count(wanted.window, 'message')} of {wanted.size} bytes in "
        f"flight, {_count(wanted.subscribers, 'subscriber')}, {measured.seconds:.1f} s"
    )
    rows = [("acknowledged", measured.acknowledged, measured.acknowledgements_per_second, measured.acknowledgement_ms)]
    if wanted.subscribers:
        rows.append(("delivered", measured.delivered, measured.deliveries_per_second, measured.latency_ms))
    for name, number, rate, times in rows:
        output.line(f"{name:<12}  {number:>10,}  {rate:>10,.0f}/s  p50 {times.p50:.1f} ms  p99 {times.p99:.1f} ms")
    for code, number in measured.refused.items():
        output.line(f"{'refused':<12}  {number:>10,}  {code}")
    if measured.missing or measured.out_of_order:
        output.line(f"{'missing':<12}  {measured.missing:>10,}  out of order {measured.out_of_order:,}")
    output.note(f"The messages stay in the node's log, in the stream {wanted.stream!r}.")
