"""The whole way once: a node, signed messages with a known dose of trouble, the lake, Spark, and one table at the end.

`make demo` runs it. A node is started on a free port of loopback; twelve publishers of all eras of Streamr send
messages to four streams, and some of what they send is forged, repeated, out of order or missing. Then the log is
sealed and checked, the Spark pipeline runs, and what it found is compared with what was put in: exit code 1 when they
differ.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import polars as pl
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from catchment.client.streamr import Chain, Refused, StreamrClient, now_ms
from catchment.crypto.ethereum import Signer
from catchment.lake import table_address
from catchment.pipeline.jobs import STEPS, run_pipeline
from catchment.store.proof import verify_lake
from catchment.wire.streamr import control, convert, message

STREAMS = ("demo/weather", "demo/trades", "demo/traffic", "demo/energy")


class Era(NamedTuple):
    """What a publisher speaks, and which trouble can be seen in it afterwards."""

    control: int
    message: int
    trouble: tuple[str, ...] = ("forged", "repeated", "out of order", "lost")


NEWEST = Era(2, 32)
ERAS = {
    "demo/weather": (NEWEST, Era(1, 31), Era(0, 29, ("forged", "repeated", "out of order"))),
    "demo/trades": (NEWEST, NEWEST, Era(1, 30)),
    "demo/traffic": (NEWEST, Era(1, 31), Era(0, 29, ("forged", "repeated", "out of order"))),
    # Before messages were signed nothing could be forged, and no repeat be told from a new message.
    "demo/energy": (NEWEST, Era(1, 30), Era(0, 28, ("out of order",))),
}
"""The publishers of each stream. Control 0 has no references to previous messages, so nothing can be missed."""

PUBLISHERS = 3
IN_FLIGHT = 256
MARKER = "made-by-the-demo"
"""Only a folder that has this file is emptied."""

TROUBLE = ("messages", "forged", "repeated", "out of order", "lost")
"""What is counted, in the order of the table."""


class Script:
    """What one publisher will send on one stream, and how much of it is trouble."""

    def __init__(self, stream: str, number: int, count: int, chance: random.Random) -> None:
        self.stream = stream
        self.era = ERAS[stream][number]
        self.injected: Counter[str] = Counter()
        signer = Signer(chance.randbytes(32))
        chain = Chain(stream, 0, signer=signer, chain_id=f"demo-{number}")
        start = now_ms() - count
        contents = [_content(stream, chance, at) for at in range(count)]
        if self.era.control == 0:
            made = [_legacy_request(stream, self.era, signer, contents[at], start + at) for at in range(count)]
        else:
            made = [_in_era(chain.make(contents[at], start + at), self.era) for at in range(count)]
        self.frames: list[bytes] = []
        # Trouble is kept apart, so that one lost message is one gap and one swap is one latecomer.
        spots = iter(chance.sample(range(10, count - 10, 5), k=count // 20))
        roles = {next(spots): role for role in self.era.trouble for _ in range(count // 100)}
        at = 0
        while at < count:
            at += self._send(made, at, roles.get(at))

    def _send(self, made: list[bytes], at: int, role: str | None) -> int:
        """Put one message (or two, when swapped) into the script and return how many were used."""
        raw = made[at]
        if role is not None:
            self.injected[role] += 1
        if role == "lost":
            return 1
        if role == "out of order":
            self.frames += [made[at + 1], raw]
            self.injected["messages"] += 2
            return 2
        self.injected["messages"] += 1
        self.frames.append(raw)
        if role == "forged":
            self.frames.append(raw.replace(b'\\"value\\":', b'\\"velue\\":'))
        elif role == "repeated":
            self.frames.append(raw)
        return 1


def _content(stream: str, chance: random.Random, at: int) -> str:
    reading = {"sensor": stream.rsplit("/", 1)[1], "reading": at, "value": round(chance.uniform(-40, 120), 3)}
    return msgspec.json.encode(reading).decode()


def _in_era(raw: bytes, era: Era) -> bytes:
    """The message of a chain as its publisher's version writes it; what is signed is the same."""
    return raw if era is NEWEST else message.encode(convert.to_version(message.decode(raw), era.message))


def _legacy_request(stream: str, era: Era, signer: Signer, content: str, timestamp: int) -> bytes:
    """A publish request of control 0: the node makes the message."""
    request = {"type": "publish", "stream": stream, "authKey": "", "msg": content, "ts": timestamp}
    if era.message == 29:
        payload = f"{stream}{timestamp}{signer.address}{content}"
        request |= {"addr": signer.address, "sigtype": 1, "sig": signer.sign(payload.encode())}
    return msgspec.json.encode(request)


class OldClient(WSListener):
    """A publisher of control 0 or 1: its answers have no request id, so they are only counted."""

    def __init__(self, answered: Callable[[str], None]) -> None:
        self._answered = answered

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """Take an answer."""
        if frame.msg_type == WSMsgType.TEXT:
            answer = control.decode(frame.get_payload_as_bytes())
            self._answered("refused" if answer.error_message else answer.outcome)


async def publish_as_of_old(url: str, script: Script, advance: Callable[[], None]) -> Counter[str]:
    """Send a script in an older version and count the node's answers."""
    answers: Counter[str] = Counter()
    room = asyncio.Semaphore(IN_FLIGHT)

    def answered(outcome: str) -> None:
        answers[outcome] += 1
        room.release()
        advance()

    era = script.era
    query = f"controlLayerVersion={era.control}&messageLayerVersion={era.message}&publishAck=1"
    transport, _ = await ws_connect(lambda: OldClient(answered), f"{url}/api/v1/ws?{query}")
    for raw in script.frames:
        await room.acquire()
        transport.send(WSMsgType.TEXT, raw if era.control == 0 else b"[1,8,%b,null]" % raw)
    await _all_released(room)
    transport.disconnect()
    await transport.wait_disconnected()
    return answers


async def publish(url: str, script: Script, advance: Callable[[], None]) -> Counter[str]:
    """Send a script and count the node's answers."""
    if script.era is not NEWEST:
        return await publish_as_of_old(url, script, advance)
    answers: Counter[str] = Counter()
    room = asyncio.Semaphore(IN_FLIGHT)

    async def answered(confirmed: asyncio.Future[str]) -> None:
        try:
            answers[await confirmed] += 1
        except Refused:
            answers["refused"] += 1
        room.release()
        advance()

    async with StreamrClient(url) as client, asyncio.TaskGroup() as waiting:
        for raw in script.frames:
            await room.acquire()
            waiting.create_task(answered(await client.send_raw(raw)))
        # The client stays open until every answer is in: the group ends first.
        await _all_released(room)
    return answers


async def _all_released(room: asyncio.Semaphore) -> None:
    for _ in range(IN_FLIGHT):
        await room.acquire()


def start_node(data: Path) -> tuple[subprocess.Popen[bytes], str]:
    """`catchment serve` on a free port; returns when it listens."""
    ready = data / "ready.json"
    command = [
        sys.executable,
        "-m",
        "catchment.cli.main",
        "serve",
        "--port",
        "0",
        "--mosaic-port",
        "0",
        "--data",
        str(data),
    ]
    command += ["--ready-file", str(ready), "--log-level", "warning"]
    log = data / "node.log"
    with log.open("wb") as file:
        node = subprocess.Popen(command, stderr=file)
    while not ready.exists():
        if node.poll() is not None:
            raise SystemExit(f"The node did not start: {log.read_text()}")
        time.sleep(0.05)
    return node, msgspec.json.decode(ready.read_bytes())["ws"]


def stop_node(node: subprocess.Popen[bytes]) -> None:
    """Let it commit, seal and say goodbye."""
    node.send_signal(signal.SIGTERM)
    if node.wait(60) != 0:
        raise SystemExit(f"The node ended with code {node.returncode}.")


def found_in(lake: str) -> dict[str, Counter[str]]:
    """What the tables say, per stream."""
    found: dict[str, Counter[str]] = {stream: Counter() for stream in STREAMS}

    def add(kind: str, rows: pl.DataFrame) -> None:
        for stream, count in rows.iter_rows():
            found[stream][kind] += count

    messages = pl.scan_delta(table_address(lake, "messages"))
    add("messages", messages.group_by("topic").len().collect())
    chain = ["topic", "partition", "publisher", "chain"]
    before = pl.col("offset").cum_max().shift(1).over(chain, order_by=["timestamp", "sequence"])
    late = messages.with_columns(before=before).filter(pl.col("offset") < pl.col("before"))
    add("out of order", late.group_by("topic").len().collect())
    quarantine = pl.scan_delta(table_address(lake, "quarantine"))
    add("forged", quarantine.filter(pl.col("verdict") == "bad_signature").group_by("topic").len().collect())
    duplicates = pl.scan_delta(table_address(lake, "duplicates"))
    add("repeated", duplicates.group_by("topic").agg(pl.col("copies").sum()).collect())
    gaps = pl.scan_delta(table_address(lake, "gaps")).filter(pl.col("status") != "filled")
    add("lost", gaps.group_by("topic").len().collect())
    return found


def compare(
    injected: dict[str, Counter[str]], answers: dict[str, Counter[str]], found: dict[str, Counter[str]]
) -> tuple[Table, bool]:
    """The table of the demo, and whether all agrees."""
    table = Table(title="What was put in, what the node said, what the pipeline found")
    table.add_column("stream")
    table.add_column("what")
    for side in ("injected", "node", "pipeline"):
        table.add_column(side, justify="right")
    table.add_column("agree")
    said = {"messages": "stored", "forged": "refused", "repeated": "duplicate"}
    all_agree = True
    for stream in STREAMS:
        for kind in TROUBLE:
            put = injected[stream][kind]
            node = answers[stream][said[kind]] if kind in said else None
            pipeline = found[stream][kind]
            agree = put == pipeline and node in (None, put)
            all_agree &= agree
            table.add_row(
                stream if kind == TROUBLE[0] else "",
                kind,
                f"{put:,}",
                "" if node is None else f"{node:,} {said[kind]}",
                f"{pipeline:,}",
                "[green]yes[/]" if agree else "[red]NO[/]",
                end_section=kind == TROUBLE[-1],
            )
    return table, all_agree


async def publish_all(url: str, scripts: list[Script], progress: Progress) -> dict[str, Counter[str]]:
    """All publishers at once."""
    task = progress.add_task("publishing", total=sum(len(script.frames) for script in scripts))
    answers: dict[str, Counter[str]] = {stream: Counter() for stream in STREAMS}
    sent = await asyncio.gather(*(publish(url, script, lambda: progress.advance(task)) for script in scripts))
    for script, counted in zip(scripts, sent, strict=True):
        answers[script.stream] += counted
    return answers


def main() -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="demo-data", type=Path, help="folder to work in; emptied first")
    parser.add_argument("--messages", default=36_000, type=int, help="messages in all, trouble not counted")
    parser.add_argument("--seed", default=32, type=int, help="of the trouble")
    arguments = parser.parse_args()
    console = Console(width=min(100, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 100)
    data: Path = arguments.data
    if data.exists() and not (data / MARKER).exists():
        console.print(f"{data} exists and is no folder of an earlier demo; name another with --data.")
        return 2
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    (data / MARKER).touch()
    lake = str(data / "lake")
    started = time.monotonic()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:22}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        scripts = _write_scripts(arguments, progress)
        node, url = start_node(data)
        try:
            answers = asyncio.run(publish_all(url, scripts, progress))
        finally:
            stop_node(node)
        task = progress.add_task("checking the seals", total=1)
        report = verify_lake(lake)
        progress.update(task, completed=1)
        task = progress.add_task("Spark pipeline", total=None)
        run_pipeline(
            lake,
            progress=lambda step, done, total: progress.update(task, description=step, completed=done, total=total),
        )
        progress.update(task, description="Spark pipeline", completed=len(STEPS), total=len(STEPS))
    injected: dict[str, Counter[str]] = {stream: Counter() for stream in STREAMS}
    for script in scripts:
        injected[script.stream] += script.injected
    table, agree = compare(injected, answers, found_in(lake))
    console.print(table)
    agree &= not report.problems
    console.print(
        f"Digest chain of the raw log: {'intact' if not report.problems else report.problems}. "
        f"{sum(len(script.frames) for script in scripts):,} messages of every version "
        f"in {time.monotonic() - started:.0f} s."
    )
    console.print("[bold green]Everything agrees.[/]" if agree else "[bold red]They do NOT agree.[/]")
    _tell_how_to_query(console, lake)
    return 0 if agree else 1


def _write_scripts(arguments: argparse.Namespace, progress: Progress) -> list[Script]:
    chance = random.Random(arguments.seed)
    each = arguments.messages // (len(STREAMS) * PUBLISHERS)
    task = progress.add_task("signing", total=len(STREAMS) * PUBLISHERS)
    scripts = []
    for stream in STREAMS:
        for number in range(PUBLISHERS):
            scripts.append(Script(stream, number, each, chance))
            progress.advance(task)
    return scripts


def _tell_how_to_query(console: Console, lake: str) -> None:
    python = os.path.relpath(sys.executable)
    console.print(f"\nThe lake is in [bold]{lake}[/]. Ask it yourself:\n")
    for line in (
        f"{python} -c \"import polars as pl; print(pl.read_delta('{lake}/tables/gaps'))\"",
        f'{python} -c "from catchment.pipeline import read_table, spark_session; '
        f"read_table(spark_session(), '{lake}', 'messages').groupBy('topic').count().show()\"",
        f"{Path(python).parent}/catchment lake table quarantine --data {Path(lake).parent} --limit 5",
    ):
        console.print(f"  {line}", soft_wrap=True, markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
