"""The load generator (bench/loadgen, C, one thread) on its core, spoken to in lines."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from typing import TypedDict

from machine import BenchError, Cores, compile_c, on_core
from peers import Peer, Server

STOP_SECONDS = 30.0


class Result(TypedDict, total=False):
    """What it measured; phases.c says which workload fills what."""

    messages: int
    deliveries: int
    seconds: float
    cpu_seconds: float
    bytes_in: int
    bytes_out: int
    published: int
    capacity: float
    rate: float
    p50_us: float
    p99_us: float
    max_us: float
    late_p99_us: float
    connections: int


class LoadGenerator:
    """A running generator. It says when it is ready, waits for `go`, and tells what it measured."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    @contextlib.contextmanager
    def running(
        cls, peer: Peer, server: Server, cores: Cores, mode: str, options: Mapping[str, object]
    ) -> Iterator[LoadGenerator]:
        """Start it; at the end it must leave with code 0: nothing was lost, repeated, reordered or altered."""
        command = [str(compile_c("loadgen")), "--protocol", peer.protocol, "--port", str(server.port), "--mode", mode]
        command += [f"--{name}={value}" for name, value in options.items()]
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

    def wait_until_ready(self) -> None:
        """Everybody is connected and the warm-up is done."""
        self._line()

    def go(self) -> None:
        """Begin the measured phase."""
        self._enter()

    def result(self) -> Result:
        """The end of the measured phase."""
        measured: Result = json.loads(self._line())
        return measured

    def measure(self) -> Result:
        """The measured phase from its beginning to its end."""
        self.go()
        return self.result()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(self._last_words())
        return line

    def _enter(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise BenchError(self._last_words()) from None

    def _finish(self) -> None:
        self._enter()
        if self._process.wait(STOP_SECONDS) != 0:
            raise BenchError(self._last_words())

    def _last_words(self) -> str:
        assert self._process.stderr is not None
        code = self._process.wait(STOP_SECONDS)
        return self._process.stderr.read().strip() or f"loadgen ended with code {code}"
