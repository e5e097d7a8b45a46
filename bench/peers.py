"""The servers a benchmark compares, and how each is started on its core.

A server is a row of `PEERS`: the load generator's protocol for it, where its program is, how it starts in an empty
folder, and whether it keeps what it is given. Standard library only: any Python 3.11+ runs it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from machine import BUILD, ROOT, BenchError, Cores, compile_c, first_line, on_core

START_SECONDS = 30.0
STOP_SECONDS = 30.0
AT_THE_END = {"CATCHMENT_SEAL_SECONDS": "86400"}
"""The node seals when it is told to stop: all of it, and outside of every measured phase."""
NEVER = {"CATCHMENT_SEAL_SECONDS": "0"}


@dataclass(slots=True)
class Server:
    """A running server."""

    pid: int
    port: int
    folder: Path = Path()
    """Where it keeps what it keeps."""
    cpu_at_end: float = 0.0
    """User and system time of its whole life, children included, once it has ended."""


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
    what: str = ""
    """What it does with a message, for the reader of a table."""
    keeps: bool = False
    """Whether it acknowledges and resends: it has a log."""
    floor: bool = False
    """Whether it is no server but a measure of what any server must spend."""
    required: bool = False
    """Whether its absence is a failure rather than a missing row."""

    @contextlib.contextmanager
    def running(self, cores: Cores, **environment: str) -> Iterator[Server]:
        """A fresh server on its core; it is told to stop at the end, and must.

        Variables of `environment` are set for it unless the caller's own environment has them.

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
                    self.command(program, folder),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=folder,
                    env=environment | os.environ,
                )
            server = Server(process.pid, 0, folder)
            try:
                server.port = self._wait_for_port(process, folder)
                yield server
            except BenchError as error:
                tail = log_path.read_text(errors="replace")[-2000:].strip()
                raise BenchError(f"{self.name}: {error}" + (f"\n{self.name} wrote:\n{tail}" if tail else "")) from None
            finally:
                server.cpu_at_end = self._stop(process)

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

    def _stop(self, process: subprocess.Popen[bytes]) -> float:
        """End it and return the CPU time of its life, which only the kernel's last word (wait4) tells."""
        if process.returncode is not None:
            return 0.0
        process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        late = False
        while True:
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            if ended:
                break
            if not late and time.monotonic() > deadline:
                late = True
                process.kill()
            time.sleep(0.005)
        process.returncode = os.waitstatus_to_exitcode(status)
        if late:
            raise BenchError(f"{self.name} did not stop within {STOP_SECONDS:.0f} s of SIGTERM")
        return usage.ru_utime + usage.ru_stime


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


def _finder(name: str) -> Callable[[], Path | None]:
    """Servers are often where only root looks."""

    def find() -> Path | None:
        found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
        return Path(found) if found else None

    return find


def _missing(name: str, package: str) -> str:
    return f"{name} is not installed (Debian: apt install {package}): no figures for it"


def _take_port(folder: Path) -> str:
    """A free port for a server that cannot say which one it took."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    (folder / "port").write_text(port)
    return port


def _taken_port(folder: Path) -> int | None:
    """That port, once somebody listens there."""
    port = int((folder / "port").read_text())
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return port
    return None


def _nats(program: Path, folder: Path, *more: str) -> list[str]:
    return [str(program), "--addr", "127.0.0.1", "--port", "-1", "--ports_file_dir", str(folder), *more]


def _redis(program: Path, folder: Path, *more: str) -> list[str]:
    listen = ("--bind", "127.0.0.1", "--port", _take_port(folder), "--dir", str(folder), "--save", "")
    # Nobody is cut off for reading slowly here: every message must arrive.
    return [str(program), *listen, "--client-output-buffer-limit", "pubsub 0 0 0", "--maxclients", "20000", *more]


def _mosquitto(program: Path, folder: Path) -> list[str]:
    lines = (
        f"listener {_take_port(folder)} 127.0.0.1",
        "allow_anonymous true",
        "persistence false",
        "set_tcp_nodelay true",
        # Without a limit: every message must arrive.
        "max_queued_messages 0",
    )
    (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")
    return [str(program), "-c", str(folder / "mosquitto.conf")]


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            name="catchment",
            protocol="streamr",
            find=_find_catchment,
            command=lambda program, folder: [
                *(str(program), "serve", "--port", "0", "--mosaic-port", "0", "--data", str(folder / "data")),
                *("--ready-file", str(folder / "ready.json"), "--log-level", "warning"),
            ],
            read_port=_ready_file_port,
            version=lambda program: first_line(str(program), "version"),
            missing="catchment is not installed: run `make install` first",
            what="parses, checks, commits with indexes and a sync, seals into the lake; delivers after the commit",
            keeps=True,
            required=True,
        ),
        Peer(
            name="copy",
            protocol="streamr",
            find=lambda: compile_c("copybroker"),
            command=lambda program, folder: [str(program), str(folder / "ready.json")],
            read_port=_ready_file_port,
            version=lambda _: "bench/copybroker.c",
            missing="copybroker.c did not compile",
            what="floor: a C program of ours that only copies WebSocket frames",
            floor=True,
        ),
        Peer(
            name="copylog",
            protocol="streamr",
            find=lambda: compile_c("copybroker"),
            command=lambda program, folder: [str(program), str(folder / "ready.json"), str(folder / "log")],
            read_port=_ready_file_port,
            version=lambda _: "bench/copybroker.c with a log",
            missing="copybroker.c did not compile",
            what="floor of what is durable: the same, but appends to a file and syncs it first",
            keeps=True,
            floor=True,
        ),
        Peer(
            name="nats",
            protocol="nats",
            find=_finder("nats-server"),
            command=_nats,
            read_port=_nats_port,
            version=lambda program: first_line(str(program), "--version"),
            missing=_missing("nats-server", "nats-server"),
            what="keeps nothing",
        ),
        Peer(
            name="jetstream",
            protocol="jetstream",
            find=_finder("nats-server"),
            command=lambda program, folder: _nats(program, folder, "--jetstream", "--store_dir", str(folder / "js")),
            read_port=_nats_port,
            version=lambda program: first_line(str(program), "--version"),
            missing=_missing("nats-server (JetStream)", "nats-server"),
            what="nats-server with a stream on files, a consumer for each subscriber; acknowledges before a sync",
            keeps=True,
        ),
        Peer(
            name="redis",
            protocol="redis",
            find=_finder("redis-server"),
            command=lambda program, folder: _redis(program, folder, "--appendonly", "no"),
            read_port=_taken_port,
            version=lambda program: first_line(str(program), "--version"),
            missing=_missing("redis-server", "redis-server"),
            what="pub/sub; keeps nothing",
        ),
        Peer(
            name="streams",
            protocol="redis-streams",
            find=_finder("redis-server"),
            command=lambda program, folder: _redis(
                *(program, folder, "--appendonly", "yes", "--appendfsync", "always"),
                *("--auto-aof-rewrite-percentage", "0"),
            ),
            read_port=_taken_port,
            version=lambda program: first_line(str(program), "--version"),
            missing=_missing("redis-server (Streams)", "redis-server"),
            what="redis Streams, appendfsync always: in memory and in a synced file",
            keeps=True,
        ),
        Peer(
            name="mosquitto",
            protocol="mqtt",
            find=_finder("mosquitto"),
            command=_mosquitto,
            read_port=_taken_port,
            version=lambda program: first_line(str(program), "-h"),
            missing=_missing("mosquitto", "mosquitto"),
            what="MQTT, QoS 0; keeps nothing",
        ),
    )
}
OURS = "catchment"


def installed(names: Sequence[str], say: Callable[[str], None]) -> list[Peer]:
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
            say(peer.missing)
    return present
