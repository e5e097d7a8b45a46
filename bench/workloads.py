"""The workloads: what is asked of a server, and what it cost.

A workload is a row of `WORKLOADS`. Its session gives a function that measures one server once, for all cases of the
workload; `run.py` calls it for each server in turn, round after round. Where it matters that a server is fresh, it is
started and stopped within that call; where filling it takes long (resend), it lives as long as the session.

Work put off is paid for: what a server's process uses between the end of the last phase and its own end (this node
seals everything into the lake then) is shared out over all messages it was given, and added to each figure.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from generator import LoadGenerator, Result
from machine import BENCH, BUILD, BenchError, Cores, anonymous_bytes, core_seconds, cpu_seconds, on_core, rss_bytes
from peers import AT_THE_END, NEVER, OURS, PEERS, Peer, Server
from results import LIMIT, Case, Sample

IDLE_SECONDS = 0.7
"""How long idle clients are held: buffers that a server frees or grows after the handshake show by then."""
WARMUP = 2000
"""Messages before a measured phase; at most a quarter of its time."""
THREE = "3 versions"
VERIFY, RECOVER = "coincurve", "coincurve recover"
BARE = (VERIFY, RECOVER)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything."""

    seconds: float = 0.5
    """One measured phase."""
    wide: tuple[tuple[int, int], ...] = ((1, 256), (10, 128), (100, 64), (1000, 64))
    """Subscribers and messages in flight."""
    narrow: tuple[tuple[int, int], ...] = ((1, 1), (10, 1), (100, 1), (1000, 1))
    ingest: tuple[int, ...] = (4096, 256, 1)
    signed: int = 30_000
    clients: int = 1000
    stored: int = 1_000_000
    last: int = 1000
    resends: int = 50
    """Resends of the last messages in one measured phase."""
    size: int = 300
    rounds: int | None = None
    """In place of each workload's own number."""


DEFAULT = Plan()
QUICK = Plan(
    seconds=0.2,
    wide=((1, 256), (100, 64)),
    narrow=((100, 1),),
    ingest=(256,),
    signed=3000,
    clients=200,
    stored=50_000,
    resends=10,
    rounds=1,
)

Measure = Callable[[Peer], dict[str, Sample]]


@dataclass(frozen=True, slots=True)
class Workload:
    """One row: which cases it has, who takes part, and how they are measured."""

    name: str
    rounds: int
    cases: Callable[[Plan], Sequence[Case]]
    takes_part: Callable[[Peer], bool]
    session: Callable[[Sequence[Peer], Plan, Cores], AbstractContextManager[Measure]]
    variants: tuple[str, ...] = ()
    """Rows besides the servers chosen: programs or settings that only this workload compares."""


# --- one server, several phases ------------------------------------------------------------------------------------


def phase(peer: Peer, server: Server, cores: Cores, mode: str, options: Mapping[str, object]) -> tuple[Result, Sample]:
    """One run of the generator, and what the server and both cores did meanwhile."""
    with LoadGenerator.running(peer, server, cores, mode, options) as generator:
        generator.wait_until_ready()
        before, core_before = cpu_seconds(server.pid), core_seconds(cores.server)
        result = generator.measure()
        used, core_used = cpu_seconds(server.pid) - before, core_seconds(cores.server) - core_before
    seconds = result["seconds"]
    server_busy, generator_busy = used / seconds, result["cpu_seconds"] / seconds
    return result, Sample(
        figure=used / result["deliveries"] * 1e6,
        rate=result["deliveries"] / seconds,
        server_busy=server_busy,
        generator_busy=generator_busy,
        core_busy=core_used / seconds,
        limited=generator_busy > LIMIT and generator_busy > server_busy,
    )


class Visit:
    """A server from its start to its end, and the phases it was measured in."""

    def __init__(self, peer: Peer, server: Server, cores: Cores) -> None:
        self.server = server
        self.samples: dict[str, Sample] = {}
        self.published = 0
        self._peer = peer
        self._cores = cores
        self._cpu = 0.0
        self._receivers: dict[str, int] = {}

    @classmethod
    @contextlib.contextmanager
    def to(cls, peer: Peer, cores: Cores, environment: Mapping[str, str] = AT_THE_END) -> Iterator[Visit]:
        """A fresh server; after its end the samples are complete."""
        with peer.running(cores, **environment) as server:
            visit = cls(peer, server, cores)
            yield visit
        visit._charge_what_was_put_off()

    def measure(self, name: str, mode: str, **options: object) -> Result:
        """One phase, kept under a case's name; numbering goes on where the last phase ended."""
        more = {"first": self.published} if mode == "ingest" else {}
        result, self.samples[name] = phase(self._peer, self.server, self._cores, mode, {**options, **more})
        self._receivers[name] = max(1, result["deliveries"] // max(1, result["messages"]))
        self.published += result["published"]
        self._cpu = cpu_seconds(self.server.pid)
        return result

    def check(self) -> None:
        """Ask for everything that was acknowledged: it must be there, each message once, in order."""
        options = {"count": self.published, "total": self.published, "warmup": 0}
        phase(self._peer, self.server, self._cores, "resend", options)
        self._cpu = cpu_seconds(self.server.pid)

    def _charge_what_was_put_off(self) -> None:
        if not self.published:
            return
        each = max(0.0, self.server.cpu_at_end - self._cpu) / self.published * 1e6
        for name, sample in self.samples.items():
            put_off = each / self._receivers[name]
            self.samples[name] = replace(sample, figure=sample.figure + put_off, put_off=put_off)


# --- fan-out -------------------------------------------------------------------------------------------------------


def fanout_name(subscribers: int, window: int) -> str:
    return f"fanout-{subscribers}-{window}"


def _fanout_cases(plan: Plan) -> list[Case]:
    return [
        Case(
            fanout_name(subscribers, window),
            "fanout",
            f"fan-out to {subscribers}, {window} in flight",
            "CPU us/delivery",
            "deliveries/s",
        )
        for subscribers, window in (*plan.wide, *plan.narrow)
    ]


@contextlib.contextmanager
def _fanout(_: Sequence[Peer], plan: Plan, cores: Cores) -> Iterator[Measure]:
    def measure(peer: Peer) -> dict[str, Sample]:
        with Visit.to(peer, cores) as visit:
            for subscribers, window in (*plan.wide, *plan.narrow):
                visit.measure(
                    fanout_name(subscribers, window),
                    "fanout",
                    subscribers=subscribers,
                    window=window,
                    seconds=plan.seconds,
                    warmup=WARMUP,
                    size=plan.size,
                )
        return visit.samples

    yield measure


# --- ingest --------------------------------------------------------------------------------------------------------


def _ingest_cases(plan: Plan) -> list[Case]:
    return [
        Case(
            f"ingest-{window}",
            "ingest",
            f"ingest, acknowledged after the commit, {window} in flight",
            "CPU us/message",
            "messages/s",
        )
        for window in plan.ingest
    ]


@contextlib.contextmanager
def _ingest(_: Sequence[Peer], plan: Plan, cores: Cores) -> Iterator[Measure]:
    checked: set[str] = set()

    def measure(peer: Peer) -> dict[str, Sample]:
        with Visit.to(peer, cores) as visit:
            for window in plan.ingest:
                visit.measure(
                    *(f"ingest-{window}", "ingest"),
                    window=window,
                    seconds=plan.seconds,
                    warmup=WARMUP,
                    size=plan.size,
                )
            if peer.name not in checked:
                visit.check()
                checked.add(peer.name)
        return visit.samples

    yield measure


# --- signed ingest -------------------------------------------------------------------------------------------------


def _signed_cases(_: Plan) -> list[Case]:
    return [Case("signed", "signed", "signed ingest beside bare coincurve", "CPU us/message", "messages/s")]


def _python(cores: tuple[int, ...], *arguments: str) -> str:
    with on_core(*cores):
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"{Path(arguments[0]).name} failed:\n{done.stderr.strip()}")
    return done.stdout


@contextlib.contextmanager
def _signed(_: Sequence[Peer], plan: Plan, cores: Cores) -> Iterator[Measure]:
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="signed-") as folder:
        file = Path(folder) / "messages"
        _python((cores.server, cores.generator), str(BENCH / "signed.py"), "make", str(file), str(plan.signed))

        def measure(peer: Peer) -> dict[str, Sample]:
            if peer.name in BARE:
                return {"signed": _bare(file, peer.name, cores)}
            warmup = plan.signed // 10
            with Visit.to(peer, cores) as visit:
                visit.measure(
                    *("signed", "ingest"),
                    window=4096,
                    messages=plan.signed - warmup,
                    warmup=warmup,
                    size=plan.size + 500,
                    file=file,
                )
                visit.check()
            return visit.samples

        yield measure


def _bare(file: Path, name: str, cores: Cores) -> Sample:
    """The same signatures checked by coincurve alone, with as many threads as the node has cores: one."""
    told = json.loads(_python((cores.server,), str(BENCH / "signed.py"), "check", str(file), name))
    return Sample(
        figure=told["cpu_seconds"] / told["count"] * 1e6,
        rate=told["count"] / told["seconds"],
        server_busy=told["cpu_seconds"] / told["seconds"],
        core_busy=told["cpu_seconds"] / told["seconds"],
    )


# --- resend --------------------------------------------------------------------------------------------------------


def _resend_cases(plan: Plan) -> list[Case]:
    return [
        Case("resend-last", "resend", f"resend of the last {plan.last:,}", "CPU us/message", "messages/s"),
        Case("resend-all", "resend", f"resend of {plan.stored:,}", "CPU us/message", "messages/s"),
    ]


class _Highest:
    """Watches how much memory a server allocates."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.before = self.highest = anonymous_bytes(pid)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._end.wait(0.1):
            self.highest = max(self.highest, anonymous_bytes(self._pid))

    def __enter__(self) -> _Highest:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


@contextlib.contextmanager
def _resend(peers: Sequence[Peer], plan: Plan, cores: Cores) -> Iterator[Measure]:
    with contextlib.ExitStack() as stack:
        servers: dict[str, Server] = {}
        fill = {"window": 1024, "messages": plan.stored, "warmup": 0, "size": plan.size}
        for peer in peers:
            server = servers[peer.name] = stack.enter_context(peer.running(cores, **NEVER))
            phase(peer, server, cores, "ingest", fill)

        def measure(peer: Peer) -> dict[str, Sample]:
            server = servers[peer.name]
            last_options = {"total": plan.stored, "count": plan.last, "times": plan.resends, "warmup": 2}
            _, last = phase(peer, server, cores, "resend", last_options)
            with _Highest(server.pid) as memory:
                _, everything = phase(
                    peer, server, cores, "resend", {"total": plan.stored, "count": plan.stored, "warmup": 0}
                )
            grown = (memory.highest - memory.before) / 1e6
            everything = replace(everything, extra={"grown_mb": grown, "before_mb": memory.before / 1e6})
            return {"resend-last": last, "resend-all": everything}

        yield measure


# --- memory --------------------------------------------------------------------------------------------------------


def _memory_cases(plan: Plan) -> list[Case]:
    return [Case("memory", "memory", f"memory of {plan.clients} idle subscribers", "kB/connection")]


@contextlib.contextmanager
def _memory(_: Sequence[Peer], plan: Plan, cores: Cores) -> Iterator[Measure]:
    def measure(peer: Peer) -> dict[str, Sample]:
        with peer.running(cores) as server:
            before = rss_bytes(server.pid)
            with LoadGenerator.running(peer, server, cores, "idle", {"subscribers": plan.clients}) as generator:
                generator.wait_until_ready()
                time.sleep(IDLE_SECONDS)
                after = rss_bytes(server.pid)
                clients = generator.measure()["connections"]
        figure = (after - before) / clients / 1e3
        return {"memory": Sample(figure=figure, extra={"before_mb": before / 1e6, "after_mb": after / 1e6})}

    yield measure


# --- latency -------------------------------------------------------------------------------------------------------


SUBSCRIBERS_IN_A_HURRY = 10
"""Few enough that the generator keeps up with a server that sends each message by itself."""


def _latency_cases(_: Plan) -> list[Case]:
    where = f"to {SUBSCRIBERS_IN_A_HURRY} at half of capacity"
    return [
        Case("latency-p50", "latency", f"latency {where}, p50", "us", "deliveries/s"),
        Case("latency-p99", "latency", f"latency {where}, p99", "us", "deliveries/s"),
    ]


@contextlib.contextmanager
def _latency(_: Sequence[Peer], plan: Plan, cores: Cores) -> Iterator[Measure]:
    options = {
        "subscribers": SUBSCRIBERS_IN_A_HURRY,
        "window": 64,
        "seconds": 3 * plan.seconds,
        "warmup": WARMUP,
        "size": plan.size,
    }

    def measure(peer: Peer) -> dict[str, Sample]:
        # Here the node seals as it goes: whoever waits for a message waits for that, too.
        with peer.running(cores, CATCHMENT_SEAL_SECONDS="1") as server:
            result, _ = phase(peer, server, cores, "latency", options)
        # The generator never sleeps here; it is the limit when it sent later than a message takes.
        sample = Sample(
            figure=result["p50_us"],
            rate=result["rate"] * SUBSCRIBERS_IN_A_HURRY,
            limited=result["late_p99_us"] > result["p50_us"],
            extra={name: result[name] for name in ("late_p99_us", "max_us", "capacity")},
        )
        return {"latency-p50": sample, "latency-p99": replace(sample, figure=result["p99_us"])}

    yield measure


# --- versions ------------------------------------------------------------------------------------------------------


def _versions_cases(_: Plan) -> list[Case]:
    title = "fan-out to 100, 64 in flight: all 2/32, or 2/32, 1/31 and 0/29"
    return [Case("versions", "versions", title, "CPU us/delivery", "deliveries/s")]


@contextlib.contextmanager
def _versions(_: Sequence[Peer], plan: Plan, cores: Cores) -> Iterator[Measure]:
    def measure(peer: Peer) -> dict[str, Sample]:
        with Visit.to(peer, cores) as visit:
            visit.measure(
                *("versions", "fanout"),
                subscribers=100,
                window=64,
                seconds=2 * plan.seconds,
                warmup=WARMUP,
                size=plan.size,
                versions=3 if peer.name == THREE else 1,
            )
        return visit.samples

    yield measure


# --- all of them ---------------------------------------------------------------------------------------------------


def _ours(peer: Peer) -> bool:
    return peer.name == OURS


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("fanout", 5, _fanout_cases, lambda _: True, _fanout),
        Workload("ingest", 5, _ingest_cases, lambda peer: peer.keeps, _ingest),
        Workload("signed", 5, _signed_cases, _ours, _signed, variants=BARE),
        Workload("versions", 5, _versions_cases, _ours, _versions, variants=(THREE,)),
        Workload("resend", 3, _resend_cases, lambda peer: peer.keeps, _resend),
        Workload("latency", 3, _latency_cases, lambda _: True, _latency),
        Workload("memory", 3, _memory_cases, lambda _: True, _memory),
    )
}


def participants(workload: Workload, peers: Sequence[Peer]) -> list[Peer]:
    """Who is measured: the servers chosen that can do it, and this workload's own rows."""
    chosen = [peer for peer in peers if workload.takes_part(peer)]
    if not chosen:
        return []
    return chosen + [replace(PEERS[OURS], name=name) for name in workload.variants]
