"""Servers among servers: nodes that federate over real sockets, are killed, vanish, forge, or do not read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from picows import ws_connect

from catchment.config import Settings
from catchment.errors import UserError
from catchment.net import popstellar_peers
from catchment.net.server import Node
from catchment.net.websocket import frame, masked_frame
from catchment.wire.popstellar.channels import ROOT

from ..popstellar.world import (
    BALLOT,
    KEYS,
    OWN,
    TOKEN,
    chirp,
    election_end,
    election_open,
    lao_create,
    setup,
    signed,
    vote,
)
from .nodehelp import Peer, connected, running_node
from .processes import node_process
from .test_popstellar import Client, client, plain, with_attendees

GREETING = {
    "jsonrpc": "2.0",
    "method": "greet_server",
    "params": {
        "public_key": KEYS["stranger"],
        "client_address": "ws://stranger.example/client",
        "server_address": "ws://stranger.example/server",
    },
}


async def ids(one: Client, channel: str) -> list[str]:
    found = await one.ask("catchup", channel=channel)
    return [each["message_id"] for each in found] if isinstance(found, list) else []


async def same(one: Client, two: Client, channel: str, count: int) -> None:
    """Ask both servers until they hold the same messages of a channel, and so many."""
    async with asyncio.timeout(60):
        while True:
            here, there = await ids(one, channel), await ids(two, channel)
            if sorted(here) == sorted(there) and len(here) == count:
                return


@contextlib.asynccontextmanager
async def client_at(url: str) -> AsyncIterator[Client]:
    transport, peer = await ws_connect(Peer, f"{url}/client")
    try:
        yield Client(peer)  # type: ignore[arg-type]
    finally:
        transport.disconnect()
        await transport.wait_disconnected()


def server_of(node: Node) -> str:
    return node.addresses["ws"] + "/server"


def test_two_nodes_come_to_hold_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path / "a") as a, client(a) as one:
            await with_attendees(one)
            async with running_node(tmp_path / "b", popstellar_peers=server_of(a)) as b, client(b) as two:
                # lao#create, two greetings, three steps of the roll call
                await same(one, two, OWN, 6)
                # Published at one, subscribed at the other.
                assert await one.ask("subscribe", channel=TOKEN) == 0
                sent = await two.say("attendee", TOKEN, chirp())
                assert await one.broadcast() == (TOKEN, plain(sent))
                await two.say("organizer", OWN, setup())
                await same(one, two, OWN, 7)
                assert await one.ask("subscribe", channel=BALLOT) == 0
                await two.say("organizer", BALLOT, election_open())
                await two.say("attendee", BALLOT, vote(1))
                await two.say("organizer", BALLOT, election_end(vote(1)))
                await same(one, two, BALLOT, 5)
                results = [
                    each for each in await one.ask("catchup", channel=BALLOT) if each["sender"] == b.hub.public_key
                ]
                assert len(results) == 1

    asyncio.run(main())


def test_a_node_that_is_killed_comes_back_to_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path / "a") as a, client(a) as one:
            await with_attendees(one)
            arguments = ("--popstellar-peers", server_of(a))
            sent = 0

            async def chirp_on(count: int) -> None:
                nonlocal sent
                for _ in range(count):
                    await one.say("attendee", TOKEN, chirp(str(sent)))
                    sent += 1

            for round_ in range(3):
                with node_process(tmp_path / "b", *arguments) as b:
                    async with client_at(b.url) as two:
                        await same(one, two, TOKEN, sent)
                        await chirp_on(20)
                        if round_ == 2:
                            theirs = signed("other attendee", chirp("theirs"))
                            channel = f"{OWN}/social/{KEYS['other attendee']}"
                            assert await two.publish(channel, theirs) == 0
                            await same(one, two, channel, 1)
                            await same(one, two, TOKEN, sent)
                    b.process.kill()
                    b.process.wait()
                await chirp_on(20)

    asyncio.run(main())


def test_servers_that_vanish_and_subscribers_that_do_not_read_slow_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        count = 10_000
        async with running_node(tmp_path, outbox_bytes=300_000) as node, client(node) as one, client(node) as two:
            await with_attendees(one)
            async with connected(node, "/server") as gone:
                gone.send(msgspec.json.encode(GREETING))
                assert msgspec.json.decode(await gone.frames.get() or b"")["method"] == "greet_server"
            async with client(node) as lazy, connected(node, "/server") as deaf:
                deaf.send(msgspec.json.encode(GREETING))
                assert msgspec.json.decode(await deaf.frames.get() or b"")["method"] == "greet_server"
                deaf.transport.underlying_transport.pause_reading()
                for each in (two, lazy):
                    assert await each.ask("subscribe", channel=TOKEN) == 0
                lazy.peer.transport.underlying_transport.pause_reading()
                sent = [signed("attendee", chirp(f"{'x' * 100} {number}")) for number in range(count)]
                numbers = []
                for at, each in enumerate(sent):
                    numbers.append(one.start("publish", channel=TOKEN, message=plain(each)))
                    if at % 100 == 99:
                        assert [await one.answer(number) for number in numbers] == [0] * 100
                        numbers.clear()
                assert [(await two.broadcast())[1]["message_id"] for _ in sent] == [each.message_id for each in sent]
                assert await ids(two, TOKEN) == [each.message_id for each in sent]

    asyncio.run(main())


def test_a_server_that_forges_is_answered_by_nothing_and_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, client(node) as one, connected(node, "/server") as liar:
            await with_attendees(one)
            assert await one.ask("subscribe", channel=TOKEN) == 0
            liar.send(msgspec.json.encode(GREETING))
            forged = msgspec.structs.replace(signed("stranger", chirp("forged")), sender=KEYS["attendee"])
            params: dict[str, Any] = {"channel": TOKEN, "message": plain(forged)}
            liar.send(msgspec.json.encode({"jsonrpc": "2.0", "method": "broadcast", "params": params}))
            good = await one.say("attendee", TOKEN, chirp())
            assert await one.broadcast() == (TOKEN, plain(good))
            assert await ids(one, TOKEN) == [good.message_id]
            # The connection lives on.
            liar.send(b'{"jsonrpc":"2.0","id":5,"method":"subscribe","params":{"channel":"/root"}}')
            while (got := msgspec.json.decode(await liar.frames.get() or b"")).get("id") != 5:
                pass
            assert got["result"] == 0
            await one.say("organizer", ROOT, lao_create("another"))
            while (got := msgspec.json.decode(await liar.frames.get() or b"")).get("method") != "broadcast":
                pass
            assert got["params"]["channel"] == ROOT

    asyncio.run(main())


def test_frames_above_the_clients_limit_are_taken_between_servers(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, connected(node, "/server") as peer:
            peer.send(msgspec.json.encode(GREETING))
            names = {f"/root/{number}": ["x" * 43 + "="] for number in range(6000)}
            beat = msgspec.json.encode({"jsonrpc": "2.0", "method": "heartbeat", "params": names})
            assert len(beat) > 256 * 1024
            peer.send(beat)
            while True:
                got = msgspec.json.decode(await asyncio.wait_for(peer.frames.get(), 30) or b"")
                if got.get("method") == "get_messages_by_id":
                    break

    asyncio.run(main())


def test_a_node_does_not_federate_with_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, connected(node, "/server") as peer:
            greeting = GREETING | {"params": GREETING["params"] | {"public_key": node.hub.public_key}}  # type: ignore[operator]
            peer.send(msgspec.json.encode(greeting))
            peer.send(b'{"jsonrpc":"2.0","id":1,"method":"catchup","params":{"channel":"/root"}}')
            assert msgspec.json.decode(await peer.frames.get() or b"")["id"] == 1
            assert list(node.hub.federation.links) == []

    asyncio.run(main())


def test_a_masked_frame_is_a_clients() -> None:
    for size in (0, 1, 5, 125, 126, 1000, 65535, 65536, 70001):
        payload = bytes(range(256)) * (size // 256 + 1)
        payload = payload[:size]
        made, plain_frame = masked_frame(payload), frame(payload)
        head = len(plain_frame) - size
        assert made[0] == plain_frame[0]
        assert made[1] == plain_frame[1] | 0x80
        assert made[2:head] == plain_frame[2:head]
        key, body = made[head : head + 4], made[head + 4 :]
        assert bytes(each ^ key[at % 4] for at, each in enumerate(body)) == payload


def test_a_peer_that_is_no_address_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        node = Node(Settings(data=str(tmp_path), port=0, mosaic_port=0, popstellar_peers="somewhere"))
        with pytest.raises(UserError, match="'somewhere' is no address"):
            await node.start()

    asyncio.run(main())


def test_a_server_that_is_not_there_is_dialled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(popstellar_peers, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(popstellar_peers, "LAST_WAIT", 0.05)

    async def main() -> None:
        dialled = asyncio.Semaphore(0)

        def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()
            dialled.release()

        nobody = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port: int = nobody.sockets[0].getsockname()[1]
        peers = f"ws://127.0.0.1:{port}/server"
        async with running_node(tmp_path / "b", popstellar_peers=peers) as b, client(b) as two:
            await with_attendees(two)
            for _ in range(3):
                await asyncio.wait_for(dialled.acquire(), 30)
            assert list(b.hub.federation.links) == []
            nobody.close()
            await nobody.wait_closed()
            async with running_node(tmp_path / "a", port=port) as a, client(a) as one:
                await same(one, two, OWN, 6)

    asyncio.run(main())
