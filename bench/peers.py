"""The servers a benchmark compares, how each is started on its core, and what it used.

A server is a row of `PEERS`: the load generator's protocol for it, where its program is, and a function that starts it
in an empty folder. Every server starts fresh for each round, so a round never pays for the rows or the garbage of the
one before, and nobody else is awake on its core. Standard library only: any Python 3.11+ runs it.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
BUILD = BENCH / "build"
START_SECONDS = 30.0
STOP_SECONDS = 20.0


class BenchError(Exception):
    """Something a figure depends on did not happen; the text says what."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Where the server and the load generator run; the same core when there is only one."""

    server: int
    generator: int

    @classmethod
    def of_this_machine(cls) -> Cores:
        """The first two cores this process may use."""
        usable = sorted(os.sched_getaffinity(0))
        return cls(server=usable[0], generator=usable[1] if len(usable) > 1 else usable[0])

    @property
    def apart(self) -> bool:
        """Whether server and generator have a core each."""
        return self.server != self.generator


@contextlib.contextmanager
def on_core(core: int) -> Iterator[None]:
    """Pin this process for a moment: children started inside stay on that core from their first instruction.

    Go reads its number of processors at start, so pinning a server after it started would measure something else.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def compile_c(name: str) -> Path:
    """Compile bench/NAME.c into bench/build/ unless the program there is newer than its source."""
    source, program = BENCH / f"{name}.c", BUILD / name
    if program.exists() and program.stat().st_mtime >= source.stat().st_mtime:
        return program
    BUILD.mkdir(exist_ok=True)
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        raise BenchError(f"there is no C compiler called {compiler}: install one (Debian: gcc libc6-dev) or set CC")
    command = [compiler, "-O2", "-Wall", "-Wextra", "-o", str(program), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"{source.name} does not compile:\n{done.stderr}")
    return program


# --- what a process used -------------------------------------------------------------------------------------------


def _family(pid: int) -> list[int]:
    """The process and its descendants: a server that hands work to children is charged for them."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # Field 4 of /proc/PID/stat; the name in field 2 may hold spaces and ends with the last ")".
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    family = [pid]
    for member in family:
        family.extend(child for child, parent in parents.items() if parent == member)
    return family


def cpu_seconds(pid: int) -> float:
    """User and system time of a process with all its threads, and of its children.

    The same sum as utime + stime in /proc/PID/stat, read from the kernel's CPU clock of that process (the clock
    clock_getcpuclockid(3) names), which counts nanoseconds where the file counts hundredths of a second.
    """
    return sum(time.clock_gettime_ns((~member << 3) | 2) for member in _family(pid)) / 1e9


def core_seconds(core: int) -> float:
    """Time a core was busy with anything at all, in the steps of /proc/stat (hundredths of a second)."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name == f"cpu{core}":
            user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[:8])
            return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    raise BenchError(f"/proc/stat has no cpu{core}")


def rss_bytes(pid: int) -> int:
    """Resident memory of a process and its children."""
    pages = (int(Path(f"/proc/{member}/statm").read_text().split()[1]) for member in _family(pid))
    return sum(pages) * os.sysconf("SC_PAGE_SIZE")


# --- servers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    pid: int
    port: int


@dataclass(frozen=True, slots=True)
class Peer:
    """One row of the comparison."""

    name: str
    protocol: str
    find: Callable[[], Path | None]
    command: Callable[[Path, Path], list[str]]
    """(program, empty folder) -> what to run."""
    read_port: Callable[[Path], int | None]
    """(folder) -> the port, once the server listens."""
    version: Callable[[Path], str]
    missing: str
    """What to say where it is not installed."""
    required: bool = False
    """Whether its absence is a failure rather than a missing row."""

    @contextlib.contextmanager
    def running(self, cores: Cores) -> Iterator[Server]:
        """A fresh server on its core; it is told to stop at the end, and must.

        Its folder is under bench/build, on the disk of the checkout: a temporary folder in memory would make the
        commits of a durable server free.

        Raises:
            BenchError: It did not start, or did not stop; with the end of what it wrote.
        """
        program = self.find()
        if program is None:
            raise BenchError(self.missing)
        BUILD.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILD, prefix=f"{self.name}-") as name, contextlib.ExitStack() as stack:
            folder = Path(name)
            log_path = folder / "server.log"
            log = stack.enter_context(log_path.open("wb"))
            with on_core(cores.server):
                process = subprocess.Popen(
                    self.command(program, folder), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder
                )
            try:
                yield Server(process.pid, self._wait_for_port(process, folder))
            except BenchError as error:
                tail = log_path.read_text(errors="replace")[-2000:].strip()
                raise BenchError(f"{self.name}: {error}" + (f"\n{self.name} wrote:\n{tail}" if tail else "")) from None
            finally:
                self._stop(process)

    def _wait_for_port(self, process: subprocess.Popen[bytes], folder: Path) -> int:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            port = self.read_port(folder)
            if port is not None:
                return port
            if process.poll() is not None:
                raise BenchError(f"ended with code {process.returncode} before it listened")
            time.sleep(0.02)
        raise BenchError(f"did not listen within {START_SECONDS:.0f} s")

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BenchError(f"{self.name} did not stop within {STOP_SECONDS:.0f} s of SIGTERM") from None


def _port_of(url: str) -> int:
    return int(url.rpartition(":")[2].rstrip("/"))


def _ready_file_port(folder: Path) -> int | None:
    """`{"ws": "ws://127.0.0.1:P", "pid": N}`: the node's ready file, and copybroker's."""
    try:
        ready = json.loads((folder / "ready.json").read_bytes())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return _port_of(ready["ws"])


def _nats_port(folder: Path) -> int | None:
    try:
        ports = [json.loads(file.read_bytes()) for file in folder.glob("*.ports")]
    except json.JSONDecodeError:
        return None
    return _port_of(ports[0]["nats"][0]) if ports else None


def _find_catchment() -> Path | None:
    """The node of this checkout, or of the environment that runs this script."""
    for program in (ROOT / ".venv" / "bin" / "catchment", Path(sys.executable).parent / "catchment"):
        if program.exists():
            return program
    return None


def _find_nats() -> Path | None:
    found = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin:/usr/local/sbin")
    return Path(found) if found else None


def _first_line(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip().partition("\n")[0]


def commit() -> str:
    """The checkout's commit, marked when files differ from it; empty outside of git."""
    return _first_line("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12")


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            name="catchment",
            protocol="streamr",
            find=_find_catchment,
            command=lambda program, folder: [
                *(str(program), "serve", "--port", "0", "--data", str(folder / "data")),
                *("--ready-file", str(folder / "ready.json"), "--log-level", "warning"),
            ],
            read_port=_ready_file_port,
            version=lambda program: _first_line(str(program), "version"),
            missing="catchment is not installed: run `make install` first",
            required=True,
        ),
        Peer(
            name="nats",
            protocol="nats",
            find=_find_nats,
            command=lambda program, folder: [
                *(str(program), "--addr", "127.0.0.1", "--port", "-1", "--ports_file_dir", str(folder)),
            ],
            read_port=_nats_port,
            version=lambda program: _first_line(str(program), "--version"),
            missing="nats-server is not installed (Debian: apt install nats-server): no row and no ratio for it",
        ),
        Peer(
            name="copy",
            protocol="streamr",
            find=lambda: compile_c("copybroker"),
            command=lambda program, folder: [str(program), str(folder / "ready.json")],
            read_port=_ready_file_port,
            version=lambda _: "copybroker.c",
            missing="copybroker.c did not compile",
        ),
        Peer(
            name="copylog",
            protocol="streamr",
            find=lambda: compile_c("copybroker"),
            command=lambda program, folder: [
                *(str(program), str(folder / "ready.json"), str(folder / "log")),
            ],
            read_port=_ready_file_port,
            version=lambda _: "copybroker.c with a log",
            missing="copybroker.c did not compile",
        ),
    )
}


def raise_file_limit() -> None:
    """Let servers and generator open as many files as the machine allows: each client is one on both sides."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def machine() -> dict[str, str | int]:
    """What a figure was measured on."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    models = [line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
