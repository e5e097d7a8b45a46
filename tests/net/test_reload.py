"""SIGHUP: what can change while a node runs does, what cannot is named, and a mistake changes nothing."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from catchment.client.streamr import Refused, StreamrClient
from catchment.config import SETTINGS, Settings
from catchment.net.server import Node
from catchment.store.proof import verify_lake
from catchment.wire.mosaic import keys
from catchment.wire.mosaic.frames import LAYOUT_A, MessageType
from catchment.wire.mosaic.results import Result

from ..sessions.mosaichelp import ALICE as MOSAIC_ALICE
from ..sessions.mosaichelp import by, make
from .mosaichelp import speaking
from .nodehelp import STREAMR, connected, forge, get, messages, running_node
from .processes import NodeProcess, node_process

URL = STREAMR + "&publishAck=1"


def reload(node: Node, **changes: object) -> None:
    applied, restart = node.reload(msgspec.structs.replace(node.settings, **changes))
    assert (sorted(applied), restart) == (sorted(changes), [])


async def store(node: Node, count: int, stream: str = "s") -> None:
    async with connected(node, URL) as peer:
        for raw in messages(stream, count):
            peer.publish(raw)
            assert (await peer.next())[3] == "stored"


async def ingest_bytes(node: Node) -> None:
    reload(node, ingest_bytes=1)
    await store(node, 3)  # one at a time still goes
    node.ingest._bytes = 2
    assert node.ingest.full
    node.ingest._bytes = 0


async def outbox_bytes(node: Node) -> None:
    reload(node, outbox_bytes=12345)
    async with connected(node, URL) as peer:
        await peer.ask([2, 9, "r", "s", 0, None])
        (connection,) = node.connections
        assert connection.outbox._limit == 12345


async def store_bytes(node: Node) -> None:
    reload(node, store_bytes=1)
    async with connected(node, URL) as peer:
        peer.publish(messages("s", 1)[0])
        assert (await peer.next())[4] == "REQUEST_FAILED"
        reload(node, store_bytes=0)
        peer.publish(messages("s", 1)[0])
        assert (await peer.next())[3] == "stored"


async def seal_seconds(node: Node) -> None:
    await store(node, 1)
    assert node.info()["sealed_offset"] == -1
    reload(node, seal_seconds=0.001)
    while msgspec.json.decode((await get(node, "/api/info"))[1])["sealed_offset"] < 0:
        pass
    reload(node, seal_seconds=0.0)


async def seal_rows(node: Node) -> None:
    reload(node, seal_rows=1)
    await store(node, 3)
    await node.seal()
    assert verify_lake(node.lake_address).ranges == 3


async def hot_hours(node: Node) -> None:
    await store(node, 3)
    await node.seal()
    assert len(node.store.read(0, 10)) == 3
    reload(node, hot_hours=0.0)
    await node.seal()
    assert node.store.read(0, 10) == []


async def notes(node: Node, **changes: object) -> None:
    reload(node, **changes)
    async with connected(node, URL) as peer:
        for raw in messages("s", 4):
            peer.publish(forge(raw))
            assert (await peer.next())[4] == "REQUEST_FAILED"


async def notes_burst(node: Node) -> None:
    await notes(node, notes_burst=2.0, notes_per_second=0.0)
    assert node.store.next_offset == 2


async def notes_per_second(node: Node) -> None:
    await notes(node, notes_burst=0.0, notes_per_second=0.0)
    assert node.store.next_offset == 0


async def mosaic_bans(node: Node) -> None:
    async with speaking(node, "websocket", LAYOUT_A) as peer:
        assert await peer.submit(make(1)) is Result.ACCEPTED
        reload(node, mosaic_bans=keys.encode(keys.Printable.USER_KEY, MOSAIC_ALICE.public))
        assert await peer.submit(make(2)) is Result.PUBKEY_PERM_BANNED


async def mosaic_requests_per_second(node: Node) -> None:
    reload(node, mosaic_requests_per_second=0.001)
    async with speaking(node, "websocket", LAYOUT_A) as peer:
        assert await peer.query(by(MOSAIC_ALICE)) == ([], Result.SUCCESS)
        assert await peer.query(by(MOSAIC_ALICE)) == ([], Result.TOO_FAST)


async def mosaic_idle_seconds(node: Node) -> None:
    reload(node, mosaic_idle_seconds=1e-6)
    async with speaking(node, "websocket", LAYOUT_A) as peer:
        assert await peer.query(by(MOSAIC_ALICE)) == ([], Result.SUCCESS)
        for connection in node.connections:
            connection.ping()
        assert (await peer.next()).type is MessageType.CLOSING
        await peer.end()


SHOWN: dict[str, Callable[[Node], Awaitable[None]]] = {
    each.__name__: each
    for each in (
        ingest_bytes,
        outbox_bytes,
        store_bytes,
        seal_seconds,
        seal_rows,
        hot_hours,
        notes_burst,
        notes_per_second,
        mosaic_bans,
        mosaic_requests_per_second,
        mosaic_idle_seconds,
    )
}
ELSEWHERE = {"log_level", "log_format", "tls_cert", "tls_key", "tls_key_password"}
"""Shown below with a process of its own, and in test_tls.py."""


def test_every_reloadable_setting_is_shown_to_reload() -> None:
    reloadable = {name for name, setting in SETTINGS.items() if setting.reloadable}
    assert set(SHOWN) | ELSEWHERE == reloadable, (
        "A setting declared reloadable must be brought into force by Node.reload, and shown to be here."
    )


@pytest.mark.parametrize("name", SHOWN)
def test_comes_into_force(name: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            await SHOWN[name](node)

    asyncio.run(main())


def test_what_needs_a_restart_is_named_and_stays(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            before = node.settings
            wanted = msgspec.structs.replace(before, port=1, data="elsewhere", hot_hours=3.0)
            assert node.reload(wanted) == (["hot_hours"], ["port", "data"])
            assert node.settings == msgspec.structs.replace(before, hot_hours=3.0)

    asyncio.run(main())


def hang_up(node: NodeProcess, until: str) -> list[dict[str, str]]:
    """Send SIGHUP and read the log up to a record with this text."""
    node.process.send_signal(signal.SIGHUP)
    seen: list[dict[str, str]] = []
    assert node.process.stderr is not None
    while not seen or until not in seen[-1]["message"]:
        line = node.process.stderr.readline()
        assert line.startswith("{"), line
        seen.append(msgspec.json.decode(line))
    return seen


def test_sighup_reads_the_file_again(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('log_level = "info"\nhot_hours = 5\n')
    with node_process(tmp_path / "node", "--config", str(file), "--seal-rows", "7", level=None) as node:
        hang_up(node, "no setting changed")
        file.write_text('log_level = "info"\nhot_hours = 6\nhost = "::1"\nseal_rows = 9\n')
        seen = hang_up(node, "restart")
        assert [record["message"] for record in seen] == [
            "SIGHUP: hot_hours was 5.0, is now 6.0",
            "SIGHUP: host differs from what the node runs with; it needs a restart",
        ]  # seal_rows is given by a flag, which wins

        async def goes_on() -> None:
            async with StreamrClient(node.url) as client:
                assert await client.publish("s", {"n": 1}) == "stored"

        asyncio.run(goes_on())
        assert node.stop() == 0


@pytest.mark.parametrize("broken", ["hot_hours = ", "hot_hours = -1", "hot_hour = 3", None])
def test_a_broken_file_leaves_everything_as_it_was(tmp_path: Path, broken: str | None) -> None:
    file = tmp_path / "node.toml"
    file.write_text("hot_hours = 5\nstore_bytes = 1\n")
    with node_process(tmp_path / "node", "--config", str(file)) as node:
        if broken is None:
            file.unlink()
        else:
            file.write_text(f"store_bytes = 0\n{broken}\n")
        (record,) = hang_up(node, "nothing was reloaded")
        assert record["level"] == "error"
        assert str(file) in record["message"]

        async def still_full() -> None:
            async with StreamrClient(node.url) as client:
                with pytest.raises(Refused):
                    await client.publish("s", {"n": 1})

        asyncio.run(still_full())
        assert node.stop() == 0


def test_log_level_and_format_come_into_force(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('log_level = "warning"\n')
    with node_process(tmp_path / "node", "--config", str(file), level=None) as node:
        file.write_text('log_level = "info"\n')
        hang_up(node, "log_level was 'warning', is now 'info'")
        file.write_text('log_level = "info"\nlog_format = "text"\n')
        node.process.send_signal(signal.SIGHUP)
        assert node.process.stderr is not None
        assert node.process.stderr.readline().endswith("SIGHUP: log_format was 'auto', is now 'text'\n")
        assert node.stop() == 0


def test_a_hangup_does_not_end_a_node_that_drains_nor_one_without_a_file(tmp_path: Path) -> None:
    with node_process(tmp_path, "--log-level", "info", level=None) as node:
        hang_up(node, "no setting changed")
        node.process.send_signal(signal.SIGTERM)
        node.process.send_signal(signal.SIGHUP)
        assert node.wait() == 0


def test_defaults_can_be_reloaded_to_themselves(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            assert node.reload(node.settings) == ([], [])
            assert isinstance(node.settings, Settings)

    asyncio.run(main())
