"""`make bench`: this node beside its floors and its neighbours, one table.

    python bench/run.py                       everything: about ten minutes on two quiet cores
    python bench/run.py --quick               a look, about a minute
    python bench/run.py --workload fanout --peers catchment,nats --rounds 3

The server has one core, the load generator the other. Within a round every server is measured once, in an order that
turns round from one round to the next; all figures of a row come from the same rounds. bench/README.md says how to
read the table. Slow figures are figures: the exit code is 1 only when something failed, 2 for a wrong argument.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import report
from machine import BENCH, BenchError, Cores, commit, compile_c, machine, raise_file_limit
from peers import PEERS, Peer, installed
from results import Measured, Run
from workloads import DEFAULT, QUICK, WORKLOADS, Plan, Workload, participants

RESULTS = BENCH / "results"


def progress(text: str) -> None:
    """One line that overwrites itself, for people; nothing where nobody watches."""
    if sys.stderr.isatty():
        print(f"\r{text:<70}\r", end="", file=sys.stderr, flush=True)


def measure(
    workload: Workload, peers: Sequence[Peer], plan: Plan, cores: Cores, failed: Callable[[str], None]
) -> list[Measured]:
    """All rounds of one workload. A server that fails is left out of it from then on, and so are its samples."""
    taking_part = participants(workload, peers)
    if not taking_part:
        return []
    rounds = plan.rounds or workload.rounds
    cases = [Measured(case, {peer.name: [] for peer in taking_part}) for case in workload.cases(plan)]
    progress(f"{workload.name}: preparing")
    with workload.session(taking_part, plan, cores) as one:
        for number in range(rounds):
            for peer in list(taking_part) if number % 2 == 0 else taking_part[::-1]:
                progress(f"{workload.name}: round {number + 1} of {rounds}, {peer.name}")
                try:
                    samples = one(peer)
                except BenchError as error:
                    failed(f"{workload.name}, {peer.name}: {error}")
                    taking_part.remove(peer)
                    for measured in cases:
                        del measured.samples[peer.name]
                    continue
                for measured in cases:
                    measured.samples[peer.name].append(samples[measured.case.name])
    return cases


def run(parsed: argparse.Namespace, command: str) -> Run:
    """Everything that was asked for."""
    raise_file_limit()
    compile_c("loadgen")
    cores = Cores.of_this_machine()
    if not cores.apart:
        print("only one core: server and generator share it, so rates and busy shares say little")
    missing: list[str] = []
    peers = installed(parsed.peers, missing.append)
    for text in missing:
        print(text)
    result = Run(
        machine=machine(),
        commit=commit(),
        started=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        command=command,
        versions={peer.name: peer.version(program) for peer in peers if (program := peer.find())},
        servers={peer.name: peer.what for peer in peers},
        floors=[peer.name for peer in peers if peer.floor],
        keepers=[peer.name for peer in peers if peer.keeps],
        missing=missing,
    )
    began = time.monotonic()
    # What looks at /proc meanwhile must not take the server's time.
    os.sched_setaffinity(0, {cores.generator})
    try:
        for name in parsed.workload:
            started = time.monotonic()
            try:
                result.cases += measure(WORKLOADS[name], peers, parsed.plan, cores, result.failed.append)
            except BenchError as error:
                result.failed.append(f"{name}: {error}")
            result.spent[name] = round(time.monotonic() - started, 1)
    finally:
        os.sched_setaffinity(0, {cores.server, cores.generator})
        progress("")
    result.seconds = time.monotonic() - began
    return result


def _names(text: str, known: Sequence[str], what: str) -> list[str]:
    names = list(dict.fromkeys(text.split(",")))
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"knows the {what} {', '.join(known)}, not {', '.join(unknown)}")
    return names


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"takes a number from 1, not {text}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 3600:
        raise argparse.ArgumentTypeError(f"takes seconds above 0, not {text}")
    return value


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/run.py", description="This node beside its floors and its neighbours, one table."
    )
    parser.add_argument(
        "--workload",
        type=lambda text: _names(text, list(WORKLOADS), "workloads"),
        default=list(WORKLOADS),
        metavar="NAMES",
        help=f"of {', '.join(WORKLOADS)} (all)",
    )
    parser.add_argument(
        "--peers",
        type=lambda text: _names(text, list(PEERS), "servers"),
        default=list(PEERS),
        metavar="NAMES",
        help=f"of {', '.join(PEERS)} (all)",
    )
    parser.add_argument("--rounds", type=_positive, metavar="N", help="how often each server is measured (3 to 5)")
    parser.add_argument("--seconds", type=_seconds, metavar="S", help=f"one measured phase ({DEFAULT.seconds:g})")
    parser.add_argument("--stored", type=_positive, metavar="N", help=f"messages to resend ({DEFAULT.stored})")
    parser.add_argument("--quick", action="store_true", help="one round of few and short phases: a look, no result")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there (bench/results/DATE.json)")
    parser.add_argument("--docs", action="store_true", help="write table and plot into docs/performance.md, too")
    parsed = parser.parse_args(arguments)
    plan = QUICK if parsed.quick else DEFAULT
    if parsed.rounds is not None:
        plan = replace(plan, rounds=parsed.rounds)
    if parsed.seconds is not None:
        plan = replace(plan, seconds=parsed.seconds)
    if parsed.stored is not None:
        plan = replace(plan, stored=parsed.stored, last=min(plan.last, parsed.stored))
    parsed.plan = plan
    return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    parsed = parse_arguments(words)
    command = shlex.join(["python", "bench/run.py", *words]) if words else "make bench"
    try:
        result = run(parsed, command)
        path = parsed.json or RESULTS / f"{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
        result.save(path)
        plotted = report.plot(result, path.with_suffix(".png"))
        print(report.as_text(result))
        spent = ", ".join(f"{name} {seconds:.0f}" for name, seconds in result.spent.items())
        print(f"\n{result.seconds:.0f} s ({spent}). Everything behind it: {path}{', with a plot' if plotted else ''}")
        if parsed.docs:
            report.write_docs(result)
        else:
            print(f"Into the documents: python bench/report.py {path}")
    except BenchError as error:
        progress("")
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    for text in result.failed:
        print(f"bench: failed: {text}", file=sys.stderr)
    return 1 if result.failed else 0


if __name__ == "__main__":
    sys.exit(main())
