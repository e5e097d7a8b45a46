"""Fan-out: what one delivered message costs the server, this node and nats-server side by side.

    python bench/fanout.py                   CPU per delivery, 100 subscribers, 64 messages in flight
    python bench/fanout.py --memory          resident memory added by 1000 subscribed clients

The server has one core and the load generator (loadgen.c) another; the servers take turns within one run, because
absolute times move with the machine and only ratios inside a run can be trusted. bench/README.md says how to read the
table. Slow figures are figures: the exit code is 1 only when something failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from peers import (
    PEERS,
    BenchError,
    Cores,
    Peer,
    Server,
    commit,
    compile_c,
    core_seconds,
    cpu_seconds,
    machine,
    on_core,
    raise_file_limit,
    rss_bytes,
)

MIN_SIZE, MAX_SIZE = 40, 60_000
"""As in loadgen.c."""
OURS, THEIRS = "catchment", "nats"
BUSY = 0.95
"""A core with so much of its time used has nothing left to give."""
DISTURBED = 0.1
"""A share of the server's core that others may not take before the table says so."""
IDLE_SECONDS = 1.0
"""How long idle clients are held: buffers that a server frees or grows after the handshake show by then."""


@dataclass(frozen=True, slots=True)
class Options:
    """The workload, the same for every server."""

    rounds: int
    subscribers: int
    window: int
    messages: int
    warmup: int
    size: int


@dataclass(frozen=True, slots=True)
class FanoutRound:
    """One measured phase of one server."""

    deliveries: int
    seconds: float
    server_cpu: float
    generator_cpu: float
    core_cpu: float
    """Busy time of the server's core, whoever used it."""
    bytes_in: int

    @property
    def us_per_delivery(self) -> float:
        return self.server_cpu / self.deliveries * 1e6

    @property
    def rate(self) -> float:
        return self.deliveries / self.seconds

    @property
    def server_busy(self) -> float:
        return self.server_cpu / self.seconds

    @property
    def generator_busy(self) -> float:
        return self.generator_cpu / self.seconds

    @property
    def generator_was_the_limit(self) -> bool:
        return self.generator_busy >= BUSY > self.server_busy

    @property
    def disturbed(self) -> bool:
        return self.core_cpu - self.server_cpu > DISTURBED * self.seconds


@dataclass(frozen=True, slots=True)
class MemoryRound:
    """Resident memory of one server before and with its clients."""

    before: int
    after: int
    clients: int

    @property
    def megabytes_added(self) -> float:
        return (self.after - self.before) / 1e6

    @property
    def kilobytes_per_client(self) -> float:
        return (self.after - self.before) / self.clients / 1e3


Round = TypeVar("Round", FanoutRound, MemoryRound)


# --- the load generator --------------------------------------------------------------------------------------------


class LoadGenerator:
    """loadgen.c on its core, spoken to in lines."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    @contextlib.contextmanager
    def running(cls, peer: Peer, server: Server, cores: Cores, *arguments: str) -> Iterator[LoadGenerator]:
        """Start it; at the end it must leave with code 0: nothing was lost, repeated, reordered or altered."""
        command = [str(compile_c("loadgen")), "--protocol", peer.protocol, "--port", str(server.port), *arguments]
        with on_core(cores.generator):
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        with process:
            try:
                generator = cls(process)
                yield generator
                generator._finish()
            finally:
                process.kill()

    def answer(self) -> str:
        """Its next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(self._last_words())
        return line.strip()

    def go(self) -> None:
        """Tell it to take the next step."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise BenchError(self._last_words()) from None

    def _finish(self) -> None:
        if self._process.wait(30) != 0:
            raise BenchError(self._last_words())

    def _last_words(self) -> str:
        assert self._process.stderr is not None
        code = self._process.wait(30)
        return self._process.stderr.read().strip() or f"loadgen ended with code {code}"


# --- workloads -----------------------------------------------------------------------------------------------------


def measure_fanout(peer: Peer, options: Options, cores: Cores) -> FanoutRound:
    """A fresh server, a warm-up, and the measured phase with the server's CPU read on both sides of it."""
    arguments = [
        f"--{name}={getattr(options, name)}" for name in ("subscribers", "window", "messages", "warmup", "size")
    ]
    with (
        peer.running(cores) as server,
        LoadGenerator.running(peer, server, cores, *arguments) as generator,
    ):
        generator.answer()
        before, core_before = cpu_seconds(server.pid), core_seconds(cores.server)
        generator.go()
        result = json.loads(generator.answer())
        used, core_used = cpu_seconds(server.pid) - before, core_seconds(cores.server) - core_before
        generator.go()
    return FanoutRound(
        deliveries=result["deliveries"],
        seconds=result["seconds"],
        server_cpu=used,
        generator_cpu=result["cpu_seconds"],
        core_cpu=core_used,
        bytes_in=result["bytes_in"],
    )


def measure_memory(peer: Peer, options: Options, cores: Cores) -> MemoryRound:
    """A fresh server, and the same with all clients connected, subscribed and silent."""
    with peer.running(cores) as server:
        before = rss_bytes(server.pid)
        arguments = [f"--subscribers={options.subscribers}", "--idle"]
        with LoadGenerator.running(peer, server, cores, *arguments) as generator:
            generator.answer()
            time.sleep(IDLE_SECONDS)
            after = rss_bytes(server.pid)
            generator.go()
            clients = json.loads(generator.answer())["connections"]
    return MemoryRound(before=before, after=after, clients=clients)


def progress(text: str) -> None:
    """One line that overwrites itself, for people; nothing where nobody watches."""
    if sys.stderr.isatty():
        print(f"\r{text:<50}\r", end="", file=sys.stderr, flush=True)


def interleaved(
    peers: Sequence[Peer], options: Options, measure: Callable[[Peer, Options, Cores], Round]
) -> dict[str, list[Round]]:
    """Every round measures every server once."""
    cores = Cores.of_this_machine()
    rounds: dict[str, list[Round]] = {peer.name: [] for peer in peers}
    for number in range(1, options.rounds + 1):
        for peer in peers:
            progress(f"round {number} of {options.rounds}: {peer.name}")
            try:
                rounds[peer.name].append(measure(peer, options, cores))
            finally:
                progress("")
    return rounds


# --- tables --------------------------------------------------------------------------------------------------------


def spread(values: Sequence[float], form: str) -> str:
    """The median, and the range in brackets."""
    if len(values) == 1:
        return format(values[0], form)
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they need; the first to the left, figures to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Round by round, so that each ratio compares neighbours in time."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def report_fanout(rounds: Mapping[str, Sequence[FanoutRound]], options: Options) -> None:
    print(
        f"fan-out to {options.subscribers} subscribers, {options.window} messages of {options.size} bytes in flight, "
        f"{options.messages} messages a round; median of {options.rounds} (range)"
    )
    rows = [["server", "CPU us/delivery", "deliveries/s", "server core", "generator core", "generator us", "bytes"]]
    for name, measured in rounds.items():
        rows.append(
            [
                name,
                spread([r.us_per_delivery for r in measured], ".3f"),
                spread([r.rate for r in measured], ",.0f"),
                f"{statistics.median(r.server_busy for r in measured):.0%}",
                f"{statistics.median(r.generator_busy for r in measured):.0%}",
                f"{statistics.median(r.generator_cpu / r.deliveries for r in measured) * 1e6:.3f}",
                f"{measured[0].bytes_in / measured[0].deliveries:.0f}",
            ]
        )
    print_table(rows)
    for name, measured in rounds.items():
        limited = sum(r.generator_was_the_limit for r in measured)
        if limited:
            print(
                f"{name}: the generator was the limit in {limited} of {len(measured)} rounds: deliveries/s is its own"
            )
        disturbed = sum(r.disturbed for r in measured)
        if disturbed:
            print(f"{name}: others took over {DISTURBED:.0%} of its core in {disturbed} of {len(measured)} rounds")
    if OURS in rounds and THEIRS in rounds:
        per_round = ratios([r.us_per_delivery for r in rounds[OURS]], [r.us_per_delivery for r in rounds[THEIRS]])
        print(f"CPU per delivery, {OURS} / {THEIRS}: {spread(per_round, '.3f')}")


def report_memory(rounds: Mapping[str, Sequence[MemoryRound]], options: Options) -> None:
    print(f"memory added by {options.subscribers} subscribed clients; median of {options.rounds} (range)")
    rows = [["server", "before MB", "added MB", "kB/client"]]
    for name, measured in rounds.items():
        rows.append(
            [
                name,
                spread([r.before / 1e6 for r in measured], ".1f"),
                spread([r.megabytes_added for r in measured], ".1f"),
                spread([r.kilobytes_per_client for r in measured], ".1f"),
            ]
        )
    print_table(rows)


def save(
    path: Path, workload: str, options: Options, peers: Sequence[Peer], rounds: Mapping[str, Sequence[Round]]
) -> None:
    """Everything behind the table: machine, commit, versions, options, and each round."""
    versions = {peer.name: peer.version(program) for peer in peers if (program := peer.find())}
    document = {
        "workload": workload,
        "machine": machine(),
        "commit": commit(),
        "versions": versions,
        "options": asdict(options),
        "rounds": {name: [asdict(r) for r in measured] for name, measured in rounds.items()},
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


# --- the command ---------------------------------------------------------------------------------------------------


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each server is measured (5)")
    parser.add_argument("--subscribers", type=int, help="subscribed clients (100; with --memory 1000)")
    parser.add_argument("--window", type=int, default=64, help="messages not yet delivered to all (64)")
    parser.add_argument("--messages", type=int, help="messages a round (about four million deliveries)")
    parser.add_argument("--size", type=int, default=300, help="bytes of a message's content (300)")
    parser.add_argument("--peers", default=f"{OURS},{THEIRS}", help=f"servers, of {', '.join(PEERS)} ({OURS},{THEIRS})")
    parser.add_argument("--memory", action="store_true", help="measure memory of idle clients instead of fan-out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine, commit and every round to FILE")
    parsed = parser.parse_args(arguments)
    parsed.peers = parsed.peers.split(",")
    if unknown := [name for name in parsed.peers if name not in PEERS]:
        parser.error(f"--peers knows {', '.join(PEERS)}, not {', '.join(unknown)}")
    if parsed.subscribers is None:
        parsed.subscribers = 1000 if parsed.memory else 100
    for name in ("rounds", "subscribers", "window", "messages"):
        if getattr(parsed, name) is not None and getattr(parsed, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if not MIN_SIZE <= parsed.size <= MAX_SIZE:
        parser.error(f"--size must be from {MIN_SIZE} to {MAX_SIZE}")
    if parsed.messages is None:
        parsed.messages = min(200_000, max(2_000, 4_000_000 // parsed.subscribers))
    return parsed


def installed(names: Sequence[str]) -> list[Peer]:
    """The servers that can run here; says which cannot.

    Raises:
        BenchError: This node is among the missing.
    """
    present = []
    for peer in (PEERS[name] for name in names):
        if peer.find() is not None:
            present.append(peer)
        elif peer.required:
            raise BenchError(peer.missing)
        else:
            print(peer.missing)
    return present


def run(parsed: argparse.Namespace) -> None:
    raise_file_limit()
    compile_c("loadgen")
    options = Options(
        rounds=parsed.rounds,
        subscribers=parsed.subscribers,
        window=parsed.window,
        messages=parsed.messages,
        warmup=parsed.messages // 10,
        size=parsed.size,
    )
    peers = installed(parsed.peers)
    if not Cores.of_this_machine().apart:
        print("only one core: server and generator share it, so deliveries/s and the busy shares say little")
    if parsed.memory:
        memory = interleaved(peers, options, measure_memory)
        report_memory(memory, options)
        if parsed.json:
            save(parsed.json, "memory", options, peers, memory)
    else:
        fanout = interleaved(peers, options, measure_fanout)
        report_fanout(fanout, options)
        if parsed.json:
            save(parsed.json, "fanout", options, peers, fanout)


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = parse_arguments(arguments)
    try:
        run(parsed)
    except BenchError as error:
        print(f"fanout: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
