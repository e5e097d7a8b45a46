"""Nodes among nodes: trackers, brokers and storage nodes on real sockets, and peers that do not behave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from picows import WSFrame, WSMsgType, WSTransport, ws_connect

from catchment import metrics
from catchment.client.streamr import now_ms
from catchment.errors import UserError
from catchment.net import peerlink, tracking
from catchment.net.roles import AllowList
from catchment.net.server import Node
from catchment.overlay import node as overlay
from catchment.wire.streamr import network
from catchment.wire.streamr.network import Era

from .nodehelp import STREAMR, Peer, chain_of, connected, forge, get, messages, on_loop, running_node

LOOPBACK = "127.0.0.0/8"
HEADERS = {"streamr-peer-id": "stranger", "streamr-peer-type": "node"}
ADDRESS = "ws://127.0.0.1:9/stranger"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for nodes that were there before, and changes are reported at once."""
    monkeypatch.setattr(tracking, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(overlay, "STATUS_DELAY", 0.01)
    monkeypatch.setattr(overlay, "FIRST_RETRY", 0.05)
    monkeypatch.setattr(overlay, "DIAL_DELAY", 0.02)


class Network:
    """A tracker, and nodes that join it."""

    def __init__(self, folder: Path, tracker: Node) -> None:
        self.folder = folder
        self.tracker = tracker

    def node(self, name: str, **settings: object) -> contextlib.AbstractAsyncContextManager[Node]:
        given = {"trackers": self.tracker.addresses["ws"], "network_allow": LOOPBACK, "network_id": name, **settings}
        return running_node(self.folder / name, **given)


@contextlib.asynccontextmanager
async def networked(folder: Path) -> AsyncIterator[Network]:
    async with running_node(folder / "tracker", roles="tracker", network_id="T") as tracker:
        yield Network(folder, tracker)


NOWHERE = "ws://127.0.0.1:9"


def alone(folder: Path) -> contextlib.AbstractAsyncContextManager[Node]:
    """A node whose tracker cannot be reached: nobody instructs it."""
    return running_node(folder, trackers=NOWHERE, network_id="A")


class Stranger(Peer):
    """A node we write by hand; it knows why it was closed."""

    reason = ""

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            self.reason = (frame.get_close_message() or b"").decode()  # type: ignore[union-attr]
        super().on_ws_frame(transport, frame)

    async def reads(self) -> network.Frame:
        frame = await asyncio.wait_for(self.frames.get(), 30)
        assert frame is not None, f"the connection was closed ({self.close_code} {self.reason})"
        return network.read(frame)


@contextlib.asynccontextmanager
async def stranger(
    node: Node, path: str = "/node/ws", *, address: str | None = ADDRESS, headers: dict[str, str] = HEADERS
) -> AsyncIterator[Stranger]:
    query = "" if address is None else f"?address={address}"
    transport, peer = await ws_connect(Stranger, f"{node.addresses['ws']}{path}{query}", extra_headers=headers)
    assert isinstance(peer, Stranger)
    peer.response = transport.response  # type: ignore[attr-defined]
    try:
        yield peer
    finally:
        transport.disconnect()
        await transport.wait_disconnected()


def raw_of(frame: list[Any]) -> bytes:
    return msgspec.json.encode(frame[3])


@on_loop
async def test_a_message_published_on_one_node_reaches_a_subscriber_on_another(tmp_path: Path) -> None:
    async with (
        networked(tmp_path) as net,
        net.node("A") as a,
        net.node("B") as b,
        connected(b) as subscriber,
        connected(a) as publisher,
    ):
        await subscriber.subscribe("s")
        sent = messages("s", 20)
        for raw in sent:
            publisher.publish(raw)
        assert [raw_of(await subscriber.next()) for _ in sent] == sent
        assert b.store.next_offset == 20, "kept here too, once each"


@on_loop
async def test_both_ways_and_nothing_twice(tmp_path: Path) -> None:
    async with networked(tmp_path) as net, net.node("A") as a, net.node("B") as b, net.node("C") as c:
        nodes = [a, b, c]
        async with contextlib.AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(connected(node)) for node in nodes]
            for peer in peers:
                await peer.subscribe("s")
            sent = [messages("s", 10, start=now_ms() - 1000 * number) for number in range(1, 4)]
            for peer, mine in zip(peers, sent, strict=True):
                for raw in mine:
                    peer.publish(raw)
            everything = sorted(raw for mine in sent for raw in mine)
            for peer in peers:
                assert sorted([raw_of(await peer.next()) for _ in everything]) == everything
            for peer in peers:
                assert await peer.ask([2, 10, "u", "s", 0]) == [2, 3, "u", "s", 0], "nothing came after that"


@on_loop
async def test_what_was_published_before_anybody_was_there_still_arrives(tmp_path: Path) -> None:
    async with networked(tmp_path) as net, net.node("A") as a, connected(a, STREAMR + "&publishAck=1") as publisher:
        (raw,) = messages("s", 1)
        publisher.publish(raw)
        assert await publisher.next() == [2, 100, "p", "stored"]
        async with net.node("B") as b, connected(b) as subscriber:
            await subscriber.subscribe("s")
            assert raw_of(await subscriber.next()) == raw


@on_loop
async def test_what_a_node_had_not_passed_on_when_it_ended_arrives_once_it_is_back(tmp_path: Path) -> None:
    sent = messages("s", 5)
    # Alone, with nobody to pass anything on to: as after a kill, the messages are on this disk and nowhere else.
    async with running_node(tmp_path / "A") as a, connected(a, STREAMR + "&publishAck=1") as publisher:
        for raw in sent:
            publisher.publish(raw)
            assert await publisher.next() == [2, 100, "p", "stored"]
    async with networked(tmp_path) as net, net.node("B") as b, connected(b) as subscriber:
        await subscriber.subscribe("s")
        async with net.node("A"):
            assert [raw_of(await subscriber.next()) for _ in sent] == sent


@on_loop
async def test_history_that_is_not_here_comes_from_the_storage_node(tmp_path: Path) -> None:
    async with networked(tmp_path) as net, net.node("S", roles="storage") as storage:
        sent = messages("s", 600)
        async with net.node("A") as a, connected(a) as publisher, connected(storage) as watcher:
            await watcher.subscribe("s")
            for raw in sent:
                publisher.publish(raw)
            for _ in sent:
                await watcher.next()
        async with net.node("B", network_address="ws://127.0.0.1:9/unreachable") as b, connected(b) as client:
            assert await client.ask([2, 11, "r", "s", 0, 500, None]) == [2, 4, "r", "s", 0]
            assert [raw_of(await client.next()) for _ in range(500)] == sent[100:]
            assert await client.next() == [2, 5, "r", "s", 0]
            first = msgspec.json.decode(sent[3])[1]
            assert await client.ask([2, 12, "f", "s", 0, [first[2], first[3]], None, None]) == [2, 4, "f", "s", 0]
            assert [raw_of(await client.next()) for _ in range(597)] == sent[3:]
            assert await client.next() == [2, 5, "f", "s", 0]
            start, end = first[2:4], msgspec.json.decode(sent[7])[1][2:4]
            await client.ask([2, 13, "g", "s", 0, start, end, first[4], first[5], None])
            assert [raw_of(await client.next()) for _ in range(5)] == sent[3:8]
            assert await client.next() == [2, 5, "g", "s", 0]
            assert await client.ask([2, 11, "n", "unknown", 0, 5, None]) == [2, 6, "n", "unknown", 0]
            assert b.store.next_offset == 0, "it was passed on, not kept"


@on_loop
async def test_a_node_whose_resend_is_refused_hears_that_there_is_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node(tmp_path, trackers=NOWHERE, network_id="A", access="closed") as a, stranger(a) as peer:
        peer.send([2, 11, "h", "s", 0, 5, None])
        assert (await peer.reads()).control == b'[2,6,"h","s",0]', "its client does not wait for an answer"
    async with alone(tmp_path / "B") as b, stranger(b) as peer:
        monkeypatch.setattr("catchment.net.network.MAX_RESENDS", 1)
        for number in range(3):
            peer.send([2, 11, f"r{number}", "s", 0, 5, None])
        answers = {(await peer.reads()).control for _ in range(3)}
        assert answers == {b'[2,6,"r%d","s",0]' % number for number in range(3)}, "each one is answered"
        assert metrics.REGISTRY.get_sample_value(
            "catchment_session_requests_invalid_total", {"protocol": "streamr-network", "reason": "resends"}
        )


@on_loop
async def test_a_forged_message_from_a_node_reaches_nobody(tmp_path: Path) -> None:
    async with alone(tmp_path) as a, connected(a) as subscriber:
        await subscriber.subscribe("s")
        async with stranger(a) as peer:
            good, other = messages("s", 2)
            peer.send([2, 9, "r", "s", 0, None])
            for raw in (forge(good), b'["nonsense"]', other):
                peer.send(b'[2,0,"",%b]' % raw)
            assert raw_of(await subscriber.next()) == other
            peer.send(b'[2,0,"",%b]' % other)
            peer.send(b'[2,0,"",%b]' % good)
            assert raw_of(await subscriber.next()) == good, "and a repeat is delivered once"


@on_loop
async def test_a_node_that_only_forges_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peerlink, "MAX_FAULTS", 5)
    async with alone(tmp_path) as a, stranger(a) as peer:
        for raw in messages("s", 10):
            peer.send(b'[2,0,"",%b]' % forge(raw))
        await asyncio.wait_for(peer.closed.wait(), 30)
        assert (peer.close_code, peer.reason) == (1008, "too many refused messages")
        async with stranger(a, address="ws://127.0.0.1:9/other", headers=HEADERS | {"streamr-peer-id": "x"}) as other:
            other.send([2, 9, "r", "s", 0, None])
            assert (await other.reads()).control is not None, "the node is not in s, and says so: nobody else is cut"


@on_loop
async def test_neighbours_get_what_is_committed_but_not_what_they_sent(tmp_path: Path) -> None:
    async with alone(tmp_path) as a, connected(a) as client:
        await client.subscribe("s")
        async with stranger(a) as peer:
            peer.send([2, 9, "r", "s", 0, None])
            mine, theirs = messages("s", 2)
            peer.send(b'[2,0,"",%b]' % mine)
            assert raw_of(await client.next()) == mine
            client.publish(theirs)
            assert (await peer.reads()).control == b'[2,0,"",%b]' % theirs
            peer.send([2, 10, "u", "s", 0])
            peer.send([2, 11, "h", "s", 0, 5, None])
            answers = [(await peer.reads()).control for _ in range(4)]
            assert answers == [
                b'[2,4,"h","s",0]', b'[2,1,"h",%b]' % mine, b'[2,1,"h",%b]' % theirs, b'[2,5,"h","s",0]',
            ]  # fmt: skip


@pytest.mark.parametrize("era", [Era.OBJECT, Era.ARRAY])
@on_loop
async def test_nodes_of_other_eras_are_answered_in_kind(tmp_path: Path, era: Era) -> None:
    async with alone(tmp_path) as a, connected(a) as client:
        await client.subscribe("s")
        async with stranger(a) as peer:
            peer.send(network.write_control(b'[2,9,"r","s",0,null]', era, "stranger"))
            mine, theirs = messages("s", 2)
            peer.send(network.write_control(b'[2,0,"",%b]' % mine, era, "stranger"))
            assert raw_of(await client.next()) == mine
            client.publish(theirs)
            assert await peer.reads() == network.Frame(era, control=b'[2,0,"",%b]' % theirs)


@pytest.mark.parametrize("path", ["/ws", "/node/ws"])
@pytest.mark.parametrize(
    ("headers", "address", "reason"),
    [
        ({}, ADDRESS, "peerId not given"),
        ({"streamr-peer-id": "x"}, ADDRESS, "peerType not given"),
        ({"streamr-peer-id": "x", "streamr-peer-type": "king"}, ADDRESS, "peerType not given"),
        (HEADERS, None, "address not given"),
        ({"streamr-peer-id": "x", "streamr-peer-type": "tracker"}, ADDRESS, "tracker"),
    ],
)
@on_loop
async def test_who_does_not_say_who_it_is_is_closed(
    tmp_path: Path, path: str, headers: dict[str, str], address: str | None, reason: str
) -> None:
    async with (
        running_node(tmp_path, roles="broker,tracker") as node,
        stranger(node, path, address=address, headers=headers) as peer,
    ):
        await asyncio.wait_for(peer.closed.wait(), 30)
        assert peer.close_code == 1002
        assert reason in peer.reason


@pytest.mark.parametrize("path", ["/ws", "/node/ws"])
@on_loop
async def test_a_second_connection_under_the_same_name_is_closed_and_the_first_lives_on(
    tmp_path: Path, path: str
) -> None:
    async with (
        running_node(tmp_path, roles="broker,tracker") as node,
        stranger(node, path) as first,
        stranger(node, path) as second,
    ):
        await asyncio.wait_for(second.closed.wait(), 30)
        assert (second.close_code, second.reason) == (1002, "streamr:endpoint:duplicate-connection")
        if path == "/ws":
            first.send([1, 3, "rid", "s", 0])
            assert (await first.reads()).tracker is not None
        else:
            first.send([2, 11, "h", "s", 0, 5, None])
            assert (await first.reads()).control == b'[2,6,"h","s",0]'


@on_loop
async def test_both_sides_name_themselves(tmp_path: Path) -> None:
    async with running_node(tmp_path, roles="storage,tracker", network_id="me") as node:
        async with stranger(node, "/ws") as peer:
            found = peer.response.headers  # type: ignore[attr-defined]
            assert (found["streamr-peer-id"], found["streamr-peer-type"]) == ("me-tracker", "tracker")
        async with stranger(node, "/node/ws") as peer:
            found = peer.response.headers  # type: ignore[attr-defined]
            assert (found["streamr-peer-id"], found["streamr-peer-type"]) == ("me", "storage")


@on_loop
async def test_a_tracker_instructs_and_shows_what_it_knows(tmp_path: Path) -> None:
    here = {"latitude": 60.2, "longitude": 24.9, "country": "FI", "city": "Helsinki"}
    async with running_node(tmp_path, roles="tracker") as node, contextlib.AsyncExitStack() as stack:
        for name in "ab":
            peer = await stack.enter_async_context(
                stranger(node, "/ws", address=f"ws://{name}", headers=HEADERS | {"streamr-peer-id": name})
            )
            peer.send([1, 1, "r", {"streams": {"x/y::0": {}}, "started": "", "rtts": {}, "location": here}])
            instruction = (await peer.reads()).tracker
            assert instruction is not None
        keeper = await stack.enter_async_context(
            stranger(node, "/ws", address="ws://k", headers={"streamr-peer-id": "k", "streamr-peer-type": "storage"})
        )
        told = (await keeper.reads()).tracker
        assert isinstance(told, network.tracker.InstructionMessage)
        assert sorted(told.node_addresses) == ["ws://a", "ws://b"]
        keeper.send([1, 3, "rid", "x/y", 0])
        assert (await keeper.reads()).tracker == network.tracker.StorageNodesResponse("rid", told.topic, ["ws://k"])
        topology = {"a": ["b", "k"], "b": ["a", "k"], "k": ["a", "b"]}
        for path in ("/topology/", "/topology/x%2Fy/", "/topology/x/y/0/", "/topology/x%2Fy/0"):
            status, body = await get(node, path)
            assert (status, msgspec.json.decode(body)) == (200, {"x/y::0": topology})
        assert msgspec.json.decode((await get(node, "/topology/other/"))[1]) == {}
        assert msgspec.json.decode((await get(node, "/location/"))[1]) == {"a": here, "b": here}
        assert msgspec.json.decode((await get(node, "/location/a/"))[1]) == here
        counts = msgspec.json.decode((await get(node, "/metrics/"))[1])
        assert counts == {"nodes": 3, "storageNodes": 1, "streamPartitions": 1, "links": 3}
        assert b"catchment_broker" in (await get(node, "/metrics"))[1], "without the slash it is Prometheus'"
        assert (await get(node, "/location/a/b/c"))[0] == 404


@on_loop
async def test_the_pages_are_not_there_where_there_is_no_tracker(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        assert (await get(node, "/topology/"))[0] == 404
        transport = None
        with pytest.raises(Exception, match="404"):
            transport, _ = await ws_connect(Stranger, node.addresses["ws"] + "/ws?address=x", extra_headers=HEADERS)
        assert transport is None


@pytest.mark.parametrize("frame", ["[", "{}", '[1,9,"x"]', '[1,1,"r",{"streams":7}]', "[2,9]", '[1,2,"r","s",0,[],1]'])
@on_loop
async def test_a_tracker_passes_over_what_is_no_status(tmp_path: Path, frame: str) -> None:
    async with running_node(tmp_path, roles="tracker") as node, stranger(node, "/ws") as peer:
        peer.send(frame)
        peer.send([1, 3, "rid", "s", 0])
        assert (await peer.reads()).tracker is not None


@on_loop
async def test_addresses_nobody_allowed_are_not_dialled(tmp_path: Path) -> None:
    async with networked(tmp_path) as net, net.node("A", network_allow="") as a:
        called = asyncio.Event()

        async def trap(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            called.set()
            writer.close()

        server = await asyncio.start_server(trap, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with (
            server,
            connected(a) as client,
            stranger(net.tracker, "/ws", address=f"ws://127.0.0.1:{port}") as liar,
        ):
            await client.subscribe("s")
            liar.send([1, 1, "r", {"streams": {"s::0": {}}}])
            while not (instruction := (await liar.reads()).tracker).node_addresses:  # type: ignore[union-attr]
                pass
            assert instruction is not None
            # A has had the same instruction: it was sent before this answer.
            assert (await get(a, "/healthz"))[0] == 200
            assert not called.is_set()


@on_loop
async def test_a_tracker_that_comes_back_finds_its_nodes(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with running_node(tmp_path / "T1", roles="tracker") as tracker:
            net = Network(tmp_path, tracker)
            port = tracker.port
            a = await stack.enter_async_context(net.node("A"))
            b = await stack.enter_async_context(net.node("B"))
            publisher = await stack.enter_async_context(connected(a))
            subscriber = await stack.enter_async_context(connected(b))
            await subscriber.subscribe("s")
            chain = chain_of("s")
            publisher.publish(chain.make('{"n":1}', now_ms()))
            await subscriber.next()
        publisher.publish(chain.make('{"n":2}', now_ms() + 1))
        assert (await subscriber.next())[3][7] == '{"n":2}', "neighbours stay when the tracker goes"  # type: ignore[index]
        async with running_node(tmp_path / "T2", roles="tracker", port=port):
            c = await stack.enter_async_context(net.node("C"))
            late = await stack.enter_async_context(connected(c))
            await late.subscribe("s")
            publisher.publish(chain.make('{"n":3}', now_ms() + 2))
            while (await late.next())[3][7] != '{"n":3}':  # type: ignore[index]
                pass
            await stack.aclose()


@pytest.mark.parametrize(
    ("allow", "address", "allowed"),
    [
        ("", "ws://127.0.0.1:1", False),
        ("127.0.0.0/8", "ws://127.0.0.1:1/node", True),
        ("127.0.0.0/8", "ws://10.0.0.1:1", False),
        ("10.0.0.0/8, ::1", "ws://[::1]:1", True),
        ("node.example", "wss://NODE.example/x", True),
        ("node.example", "wss://evil.example/node.example", False),
        ("*", "ws://anything:1", True),
        ("*", "http://anything:1", False),
        ("*", "ws://user@host:1", False),
        ("*", "ws://host:1?x=1", False),
        ("*", "ws://host:99999", False),
        ("*", "nonsense", False),
    ],
)
def test_the_allow_list(allow: str, address: str, allowed: bool) -> None:
    assert AllowList(allow).allows(address) is allowed


@pytest.mark.parametrize(
    "settings",
    [
        {"roles": "king"},
        {"roles": ""},
        {"trackers": "http://x"},
        {"trackers": "ws://x", "network_allow": "10.0.0.0/99"},
    ],
)
@on_loop
async def test_settings_that_make_no_network_are_refused(tmp_path: Path, settings: dict[str, object]) -> None:
    with pytest.raises(UserError):
        async with running_node(tmp_path, **settings):
            pass
