"""The machine under a benchmark: its cores, the C programs, and what a process used of it. Standard library only."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
BUILD = BENCH / "build"


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
def on_core(*cores: int) -> Iterator[None]:
    """Pin this process for a moment: children started inside stay on those cores from their first instruction.

    Go reads its number of processors at start, so pinning a server after it started would measure something else.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def compile_c(name: str) -> Path:
    """Compile bench/NAME.c, or all of the folder bench/NAME, into bench/build/ unless what is there is newer.

    Only the benchmarks need a compiler; nothing else in this repository does.

    Raises:
        BenchError: There is no compiler, or the sources do not compile.
    """
    folder, program = BENCH / name, BUILD / name
    sources = sorted(folder.glob("*.c")) if folder.is_dir() else [BENCH / f"{name}.c"]
    newest = max(path.stat().st_mtime for path in (*sources, *folder.glob("*.h")))
    if program.exists() and program.stat().st_mtime >= newest:
        return program
    BUILD.mkdir(exist_ok=True)
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        raise BenchError(
            f"there is no C compiler called {compiler}: the load generator is a C program, and only benchmarks need "
            "one. Install it (Debian: apt install gcc libc6-dev), or set CC"
        )
    # Renamed when whole: two runs may compile at once.
    draft = program.with_suffix(f".{os.getpid()}")
    command = [compiler, "-O2", "-Wall", "-Wextra", "-o", str(draft), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"{name} does not compile:\n{done.stderr}")
    draft.replace(program)
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


def anonymous_bytes(pid: int) -> int:
    """Memory of a process and its children that is no file's: what it allocated, without pages of a mapped store."""
    total = 0
    for member in _family(pid):
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{member}/status").read_text().splitlines())
        total += int(fields["RssAnon"].split()[0]) * 1024
    return total


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


def first_line(*command: str) -> str:
    """The first line a command says."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip().partition("\n")[0]


def commit() -> str:
    """The checkout's commit, marked when files differ from it; empty outside of git."""
    return first_line("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12")
