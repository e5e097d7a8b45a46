"""Runs the blocks of a page as a reader would: in order, in one folder, with a real node.

Shown output is compared with what comes, after times, addresses and ids are made equal; a line `...` stands for any
lines. Commands that show none must end with exit code 0. A comment before a block says more:

    <!-- file: NAME -->     the block is the content of a file in the folder
    <!-- not run: WHY -->   the block is left alone

`catchment serve` and `catchment sub` go on in the background. `catchment` is called through a script that takes a free
port instead of the default and gives clients the address.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

BLOCK = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*?) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
DEFAULT = "127.0.0.1:7170"
RUN = {"console", "python", "output", "toml"}

WRAPPER = """\
#!/bin/sh
command="$1"
shift
case "$command" in
  serve) exec "{python}" -m catchment.cli.main serve "$@" --port 0 --mosaic-port 0 --ready-file "{state}/ready.json" ;;
  pub|sub|resend) exec "{python}" -m catchment.cli.main "$command" "$@" --url "$(cat "{state}/url")" ;;
  doctor) exec "{python}" -m catchment.cli.main doctor "$@" --port 0 ;;
  *) exec "{python}" -m catchment.cli.main "$command" "$@" ;;
esac
"""

EQUAL = (
    (re.compile(r"0x[0-9a-f]{40}"), "ADDRESS"),
    (re.compile(r"0x[0-9a-f]{8}\b"), "WHO"),
    (re.compile(r"\b\d\d:\d\d:\d\d\.\d{3}\b"), "TIME"),
    (re.compile(r'"timestamp":\d+,"sequence":\d+'), '"timestamp":TS,"sequence":N'),
    (re.compile(r'"timestamp":\d+'), '"timestamp":TS'),
    (re.compile(r'"chain":"[\w-]+"'), '"chain":"ID"'),
    (re.compile(r"127\.0\.0\.1:\d+"), DEFAULT),
    (re.compile(r"in \d+ sealed ranges"), "in N sealed ranges"),
    (re.compile(r"\b\d+ at their defaults"), "N at their defaults"),
    (re.compile(r"\b\d+ of \d+ given"), "N of N given"),
    (re.compile(r"CPython [\d.]+"), "CPython X"),
    (re.compile(r"\b(no|\d+) warnings?\b"), "N warnings"),
    (re.compile(r"/\S*/\.config/"), "/home/you/.config/"),
)


class Block(NamedTuple):
    """A block of a page."""

    language: str
    code: str
    note: str

    @property
    def needs_spark(self) -> bool:
        return "lake run" in self.code or "spark_session" in self.code


class Step(NamedTuple):
    """One command and what is shown of its output."""

    command: str
    shown: list[str]


def blocks(page: Path) -> Iterator[Block]:
    for found in BLOCK.finditer(page.read_text(encoding="utf-8")):
        yield Block(found["language"], found["code"], found["note"] or "")


def steps(block: Block) -> Iterator[Step]:
    """The commands of a console block."""
    step: Step | None = None
    for line in block.code.splitlines():
        if line.startswith("$ "):
            if step is not None:
                yield step
            step = Step(line.removeprefix("$ "), [])
        else:
            assert step is not None, f"output before a command: {line}"
            step.shown.append(line)
    if step is not None:
        yield step


def equal(line: str) -> str:
    for pattern, put in EQUAL:
        line = pattern.sub(put, line)
    return line.rstrip()


def matches(shown: list[str], came: list[str]) -> bool:
    """Whether what is shown is what came, `...` standing for any lines."""
    parts = ["".join(".*\n" if line == "..." else re.escape(equal(line)) + "\n" for line in shown)]
    pattern = parts[0].replace(".*\n", "(?:.*\n)*?")
    return re.fullmatch(pattern, "".join(equal(line) + "\n" for line in came)) is not None


class Reader:
    """Somebody who follows a page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self._state = folder / "state"
        commands = folder / "bin"
        for each in (self.folder, self._state, commands):
            each.mkdir()
        self._script(commands / "catchment", WRAPPER.format(python=sys.executable, state=self._state))
        self._script(commands / "python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        shutil.copytree(Path(__file__).parents[2] / "examples", self.folder / "examples")
        home = folder / "home"
        home.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CATCHMENT_", "XDG_"))}
        self._environment = kept | {"PATH": f"{commands}:{os.environ['PATH']}", "HOME": str(home)}
        self._node: subprocess.Popen[str] | None = None
        self._watching: list[tuple[Step, subprocess.Popen[str]]] = []
        self._said: list[str] | None = None
        """What the last Python block printed, until it is compared."""

    @staticmethod
    def _script(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in [watching for _, watching in self._watching] + ([self._node] if self._node else []):
            process.kill()
            process.communicate()

    def follow(self, block: Block) -> None:
        """Do what a block shows, and compare."""
        if block.note.startswith("not run:"):
            return
        if block.note.startswith("file: "):
            (self.folder / block.note.removeprefix("file: ")).write_text(block.code)
        elif block.language == "console":
            for step in steps(block):
                self._console(step)
        elif block.language == "python":
            self._python(block.code)
        elif block.language == "output":
            assert self._said is not None, "output without a Python block before it"
            assert self._said == block.code.splitlines()
            self._said = None

    def finish(self) -> None:
        """What goes on in the background has shown what it should by now, and the node ends well."""
        for step, process in self._watching:
            assert process.stdout is not None
            came = [process.stdout.readline().rstrip("\n") for _ in step.shown]
            assert matches(step.shown, came), (step.command, came)
            process.send_signal(signal.SIGINT)
            process.wait(60)
        if self._node is not None:
            self._node.send_signal(signal.SIGTERM)
            assert self._node.wait(60) == 0

    def _console(self, step: Step) -> None:
        words = step.command.split()
        if words[:2] == ["catchment", "serve"]:
            self._serve(step)
        elif words[:2] == ["catchment", "sub"]:
            process = self._start(step.command)
            assert process.stdout is not None
            first = process.stdout.readline()
            assert matches(step.shown[:1], [first.rstrip("\n")]), first
            self._watching.append((Step(step.command, step.shown[1:]), process))
        else:
            if words[:2] == ["catchment", "lake"]:
                self._wait_until_sealed()
            ended = subprocess.run(
                ["bash", "-c", f"set -o pipefail; {self._here(step.command)}"],
                cwd=self.folder,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=300,
                check=False,
            )
            assert ended.returncode == 0, (step.command, ended.stdout)
            if step.shown:
                assert matches(step.shown, ended.stdout.splitlines()), (step.command, ended.stdout)

    def _start(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _serve(self, step: Step) -> None:
        if self._node is not None:
            return  # pages that show it twice mean the same one
        self._node = self._start(step.command)
        assert self._node.stdout is not None
        first = self._node.stdout.readline().rstrip("\n")
        assert "Catchment is ready" in first, first + self._node.stdout.read()
        assert not step.shown or matches(step.shown, [first]), first
        ready = msgspec.json.decode((self._state / "ready.json").read_bytes())
        (self._state / "url").write_text(ready["ws"])
        self._address = ready["http"].removeprefix("http://")

    def _here(self, text: str) -> str:
        """The node's own address for the default one."""
        return text.replace(DEFAULT, self._address) if self._node is not None else text

    def _python(self, code: str) -> None:
        ended = subprocess.run(
            [sys.executable, "-c", self._here(code)],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        self._said = ended.stdout.splitlines()

    def _wait_until_sealed(self) -> None:
        while self._node is not None:
            with urllib.request.urlopen(f"http://{self._address}/api/info", timeout=30) as page:
                info = json.load(page)
            if info["sealed_offset"] == info["next_offset"] - 1:
                return
