"""One question, answered quickly: what does one delivered message cost, this node beside nats-server?

    python bench/fanout.py                   CPU per delivery, 100 subscribers, 64 messages in flight
    python bench/fanout.py --memory          memory of 1000 subscribed clients
    python bench/fanout.py --peers catchment,nats,copy,copylog --subscribers 10 --window 128

`bench/run.py` (`make bench`) measures everything; this is one row of it, with numbers of one's own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import report
import run as bench
from machine import BenchError
from results import ratios, spread
from workloads import DEFAULT

MIN_SIZE, MAX_SIZE = 40, 60_000
"""As in loadgen.h."""
OURS, THEIRS = "catchment", "nats"


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/fanout.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each server is measured (5)")
    parser.add_argument("--subscribers", type=int, help="subscribed clients (100; with --memory 1000)")
    parser.add_argument("--window", type=int, default=64, help="messages not yet delivered to all (64)")
    parser.add_argument("--seconds", type=float, default=1.5, help="one measured phase (1.5)")
    parser.add_argument("--size", type=int, default=300, help="bytes of a message's content (300)")
    parser.add_argument("--peers", default=f"{OURS},{THEIRS}", help=f"servers ({OURS},{THEIRS})")
    parser.add_argument("--memory", action="store_true", help="measure memory of idle clients instead of fan-out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine, commit and every round to FILE")
    parsed = parser.parse_args(arguments)
    for name in ("rounds", "subscribers", "window"):
        if getattr(parsed, name) is not None and getattr(parsed, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if not 0 < parsed.seconds < 3600:
        parser.error("--seconds must be above 0")
    if not MIN_SIZE <= parsed.size <= MAX_SIZE:
        parser.error(f"--size must be from {MIN_SIZE} to {MAX_SIZE}")
    wanted = ["--workload", "memory" if parsed.memory else "fanout", "--peers", parsed.peers]
    asked = bench.parse_arguments(wanted)
    subscribers = parsed.subscribers or (1000 if parsed.memory else 100)
    asked.plan = replace(
        DEFAULT,
        rounds=parsed.rounds,
        seconds=parsed.seconds,
        size=parsed.size,
        clients=subscribers,
        wide=((subscribers, parsed.window),),
        narrow=(),
    )
    asked.json = parsed.json
    return asked


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = parse_arguments(arguments)
    try:
        result = bench.run(parsed, "python bench/fanout.py")
    except BenchError as error:
        print(f"fanout: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(report.as_text(result, with_overview=False))
    if result.failed:
        return 1
    (measured,) = result.cases
    if {OURS, THEIRS} <= measured.samples.keys():
        per_round = ratios(measured.figures(OURS), measured.figures(THEIRS))
        print(f"{measured.case.unit}, {OURS} / {THEIRS}: {spread(per_round, '.3f')}")
    if parsed.json:
        result.save(parsed.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
