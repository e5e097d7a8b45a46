"""Our own client against real nodes: confirmation, refusal, and what it does when the node goes away."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from catchment import model
from catchment.client.streamr import Chain, ConnectionEnded, Refused, StreamrClient, now_ms
from catchment.config import Settings
from catchment.crypto.ethereum import Signer
from catchment.net.server import Node
from catchment.store.lmdb import LmdbStore
from catchment.wire.streamr import admin

KEY = b"\x07" * 32


@contextlib.asynccontextmanager
async def node_in(folder: Path, port: int = 0) -> AsyncIterator[Node]:
    node = Node(Settings(data=str(folder), port=port, mosaic_port=0, seal_seconds=0.0))
    await node.start()
    try:
        yield node
    finally:
        await node.drain()


def test_publish_subscribe_and_resend(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            node_in(tmp_path) as node,
            StreamrClient(node.addresses["ws"], private_key=KEY) as alice,
            StreamrClient(node.addresses["ws"]) as bob,
        ):
            node.access.apply(admin.StreamCreated(stream="s", at=0, properties=admin.Properties(partitions=3)))
            await bob.open_subscription("s", partition=2)
            for number in range(5):
                assert await alice.publish("s", {"n": number}, partition=2) == "stored"
            got = []
            async for received in bob.subscribe("s", partition=2):
                got.append(received)
                if len(got) == 5:
                    break
            assert [one.message.content for one in got] == [f'{{"n":{number}}}' for number in range(5)]
            assert {one.message.msg_id.publisher_id for one in got} == {alice.address}
            assert {one.verdict for one in got} == {model.Verdict.OK}
            # Each message names the one before it.
            refs = [(one.message.msg_id.timestamp, one.message.msg_id.sequence_number) for one in got]
            prevs = [one.message.prev_msg_ref for one in got]
            assert prevs[0] is None
            assert [(prev.timestamp, prev.sequence_number) for prev in prevs[1:] if prev] == refs[:-1]
            assert [one.raw async for one in bob.resend_last("s", 2, partition=2)] == [one.raw for one in got[3:]]
            start = model.Ref(*refs[1])
            found = [one.raw async for one in bob.resend_range("s", start, model.Ref(*refs[2]), partition=2)]
            assert found == [one.raw for one in got[1:3]]
            assert [one.raw async for one in bob.resend_range("s", start, partition=2)] == [one.raw for one in got[1:]]
            assert [one async for one in bob.resend_last("elsewhere", 3)] == []

    asyncio.run(main())


def test_a_refusal_is_raised_with_its_code(tmp_path: Path) -> None:
    async def main() -> None:
        async with node_in(tmp_path) as node, StreamrClient(node.addresses["ws"], private_key=KEY) as client:
            with pytest.raises(Refused, match="future") as refused:
                await client.publish("s", 1, timestamp=now_ms() + 10_000_000)
            assert refused.value.code == "FUTURE_TIMESTAMP"
            assert await client.publish("t", 1) == "stored"
            raw = Chain("s", 0, signer=Signer(KEY), chain_id="c").make('"x"', now_ms())
            assert await client.publish_raw(raw) == "stored"
            assert await client.publish_raw(raw) == "duplicate"
            with pytest.raises(Refused, match="signature"):
                await client.publish_raw(raw.replace(b'\\"x\\"', b'\\"y\\"'))

    asyncio.run(main())


def test_a_message_too_large_to_send_is_refused_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with node_in(tmp_path) as node, StreamrClient(node.addresses["ws"], private_key=KEY) as client:
            with pytest.raises(Refused, match="over the limit"):
                await client.publish("s", "x" * 2_000_000)
            assert await client.publish("s", "x") == "stored"

    asyncio.run(main())


def test_nobody_there_is_said_with_the_address() -> None:
    async def main() -> None:
        with pytest.raises(ConnectionEnded, match="No node answers at"):
            async with StreamrClient("ws://127.0.0.1:9", attempts=1):
                pass

    asyncio.run(main())


def test_a_node_that_is_gone_ends_a_subscription_loudly(tmp_path: Path) -> None:
    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            async with node_in(tmp_path) as node:
                client = await stack.enter_async_context(StreamrClient(node.addresses["ws"], attempts=1))
                stream = await client.open_subscription("s")
            with pytest.raises(ConnectionEnded, match="No node answers"):
                await stream.next()
            assert await stream.next() is None

    asyncio.run(main())


def _serve(folder: Path, port: str) -> subprocess.Popen[str]:
    ready = folder / "ready"
    ready.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "catchment.cli.main",
        "serve",
        "--port",
        port,
        "--mosaic-port",
        "0",
        "--data",
        str(folder / "data"),
    ]
    node = subprocess.Popen([*command, "--ready-file", str(ready)], stderr=subprocess.PIPE, text=True)
    assert node.stderr is not None
    while not ready.exists():
        assert node.stderr.readline(), "the node did not start"
    return node


@pytest.mark.crash
def test_what_was_not_confirmed_is_sent_again_under_the_same_id(tmp_path: Path) -> None:
    with _serve(tmp_path, "0") as first:
        port = msgspec.json.decode((tmp_path / "ready").read_bytes())["ws"].rsplit(":", 1)[1]

        async def main() -> list[str]:
            async with StreamrClient(f"ws://127.0.0.1:{port}", private_key=KEY, attempts=20) as client:
                chain = Chain("s", 0, signer=Signer(KEY), chain_id="c")
                waiting = [await client.send_raw(chain.make(f'"{number}"', now_ms())) for number in range(2000)]
                await waiting[0]
                first.kill()
                await asyncio.to_thread(first.wait, 30)
                with await asyncio.to_thread(_serve, tmp_path, port) as second:
                    outcomes = await asyncio.wait_for(asyncio.gather(*waiting), 60)
                    second.terminate()
                    assert await asyncio.to_thread(second.wait, 60) == 0
                return outcomes

        outcomes = asyncio.run(main())
    assert len(outcomes) == 2000
    assert set(outcomes) <= {"stored", "duplicate"}
    store = LmdbStore.open(tmp_path / "data" / "store")
    kept = [row.entry for row in store.read(0, 5000)]
    store.close()
    contents = [entry.raw for entry in kept if entry.kind is model.Kind.MESSAGE]
    assert len(contents) == len(set(contents)) == 2000
