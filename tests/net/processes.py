"""Real nodes in processes of their own, for what only a process can show: signals, kills, restarts."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

CATCHMENT = [sys.executable, "-m", "catchment.cli.main"]


class NodeProcess:
    """`catchment serve` and its ready file."""

    def __init__(self, folder: Path, *flags: str, level: str | None = "warning") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._ready = folder / "ready.json"
        self._ready.unlink(missing_ok=True)
        command = [*CATCHMENT, "serve", "--port", "0", "--mosaic-port", "0", "--data", str(folder / "data")]
        command += ["--ready-file", str(self._ready), *(["--log-level", level] if level else []), *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        # The first line on standard error comes once the ready file is there; an early end closes the pipe.
        assert self.process.stderr is not None
        first = self.process.stderr.readline()
        assert "Catchment is ready" in first, first + self.process.stderr.read()
        self.addresses = msgspec.json.decode(self._ready.read_bytes())
        self.url: str = self.addresses["ws"]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        self.process.communicate(timeout=60)
        return self.process.returncode


@contextlib.contextmanager
def node_process(folder: Path, *flags: str, level: str | None = "warning") -> Iterator[NodeProcess]:
    node = NodeProcess(folder, *flags, level=level)
    with node.process:  # closes the pipes and waits
        try:
            yield node
        finally:
            node.process.kill()


def run(*arguments: str, stdin: str = "", timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CATCHMENT, *arguments], input=stdin, capture_output=True, text=True, timeout=timeout, check=False
    )
