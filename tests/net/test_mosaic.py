"""Mosaic over real sockets: one suite of scenarios for every transport and both layouts."""

from __future__ import annotations

import asyncio
import base64
import stat
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import picows
import pytest

from catchment.crypto import mosaic
from catchment.errors import UserError
from catchment.model import Kind
from catchment.net.identity import IDENTITY_FILE, load_identity
from catchment.net.server import Node
from catchment.wire.mosaic import frames, tags
from catchment.wire.mosaic.frames import LAYOUT_A, LAYOUTS, Layout, Message, MessageType
from catchment.wire.mosaic.results import Result

from ..sessions.mosaichelp import ALICE, BOB, CAROL, EPHEMERAL, REPLACEABLE, UNIQUE, by, make
from .mosaichelp import TRANSPORTS, MosaicPeer, speaking, websocket_line
from .nodehelp import STREAMR, connected, get, messages, running_node

Speaking = Callable[..., AbstractAsyncContextManager[MosaicPeer]]


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=LAYOUTS, ids=repr)
def layout(request: pytest.FixtureRequest) -> Layout:
    return request.param


@pytest.fixture
def client(transport: str, layout: Layout) -> Speaking:
    """Opens a client of this transport and layout: `client(node)` or `client(node, signer)`."""

    def opened(node: Node, signer: mosaic.Signer | None = None) -> AbstractAsyncContextManager[MosaicPeer]:
        return speaking(node, transport, layout, signer)

    return opened


def run(scenario: Any, *args: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario(*args), 60))


def test_a_record_is_submitted_found_and_delivered(tmp_path: Path, client: Speaking) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as node, client(node) as reader, client(node) as writer:
            assert await reader.subscribe(by(ALICE)) == []
            assert await writer.submit(make(1)) is Result.ACCEPTED
            assert await writer.submit(make(1)) is Result.DUPLICATE
            assert await reader.live() == make(1)
            assert await writer.query(by(ALICE)) == ([make(1)], Result.SUCCESS)
            assert await writer.get(make(1)[:48], make(1)[48:96]) == ([make(1)], Result.SUCCESS)
            reader.say(MessageType.UNSUBSCRIBE, query_id=b"s1")
            assert (await reader.next()).result is Result.SUCCESS

    run(scenario)


def test_many_records_come_newest_first_then_live_ones(tmp_path: Path, client: Speaking) -> None:
    raws = [make(time) for time in range(700)]

    async def scenario() -> None:
        async with running_node(tmp_path) as node, client(node) as writer, client(node) as reader:
            for raw in raws:
                writer.say(MessageType.SUBMISSION, body=raw)
            for _ in raws:
                assert (await writer.next()).result is Result.ACCEPTED
            assert await reader.query(by(ALICE), limit=5) == (raws[:-6:-1], Result.SUCCESS)
            assert await reader.subscribe(by(ALICE)) == raws[::-1]
            await writer.submit(make(1000))
            assert await reader.live() == make(1000)

    run(scenario)


def test_records_outlive_the_node(tmp_path: Path, client: Speaking) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as node, client(node) as writer:
            await writer.submit(make(1))
            await writer.submit(make(2, kind=REPLACEABLE))
            await writer.submit(make(3, kind=REPLACEABLE))
        async with running_node(tmp_path) as node, client(node) as reader:
            assert await reader.query(by(ALICE)) == ([make(3, kind=REPLACEABLE), make(1)], Result.SUCCESS)
            assert await reader.submit(make(1)) is Result.DUPLICATE

    run(scenario)


def test_ephemeral_records_are_delivered_and_not_kept(tmp_path: Path, client: Speaking) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as node, client(node) as writer, client(node) as reader:
            assert await writer.submit(make(1, kind=EPHEMERAL)) is Result.NO_CONSUMERS
            await reader.subscribe(by(ALICE))
            assert await writer.submit(make(2, kind=EPHEMERAL)) is Result.ACCEPTED
            assert await reader.live() == make(2, kind=EPHEMERAL)
            assert node.store.next_offset == 0

    run(scenario)


def test_who_has_proven_a_key_may_read_and_submit_what_is_theirs(tmp_path: Path, client: Speaking) -> None:
    secret = make(1, kind=UNIQUE & ~0xC)
    shared = make(2, kind=UNIQUE & ~0xC | 4, tag_list=[tags.notify(BOB.public)])
    own = make(3, flags=4)

    async def scenario() -> None:
        async with running_node(tmp_path) as node, client(node) as nobody:
            assert await nobody.submit(secret) is Result.ACCEPTED
            assert await nobody.submit(shared) is Result.ACCEPTED
            assert await nobody.submit(own) is Result.REQUIRES_AUTHENTICATION
            assert await nobody.query(by(ALICE)) == ([], Result.SUCCESS)
            async with client(node, ALICE) as alice:
                assert await alice.submit(own) is Result.ACCEPTED
                assert (await alice.query(by(ALICE)))[0] == [own, shared, secret]
            async with client(node, BOB) as bob:
                assert (await bob.query(by(ALICE)))[0] == [own, shared]
            async with client(node, CAROL) as carol:
                assert (await carol.query(by(ALICE)))[0] == [own]
                assert await carol.submit(make(4, flags=4)) is Result.UNAUTHORIZED

    run(scenario)


def test_bad_records_are_refused_noted_and_hurt_nobody(tmp_path: Path, client: Speaking) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as node, client(node) as bad, client(node) as good:
            await good.subscribe(by(ALICE))
            raw = make(1)
            for at in (10, 60, 153, 200):
                altered = raw[:at] + bytes((raw[at] ^ 1,)) + raw[at + 1 :]
                assert await bad.submit(altered) is Result.INVALID
            assert await bad.submit(raw) is Result.ACCEPTED
            assert await good.live() == raw
            await node.ingest.drained()
            kinds = [row.entry.kind for row in node.store.read(0, 10)]
            assert kinds.count(Kind.REFUSED) == 4
            assert kinds.count(Kind.RECORD) == 1

    run(scenario)


def test_what_is_no_request_is_not_recognized_and_the_connection_lives(tmp_path: Path, client: Speaking) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as node, client(node) as peer:
            peer.say(MessageType.RECORD, body=make(1))
            assert (await peer.next()).type is MessageType.UNRECOGNIZED
            peer.say(MessageType.QUERY, query_id=b"q1", body=b"")
            assert (await peer.next()).result is Result.INVALID
            peer.say(MessageType.BLOB_GET, subject=b"h" * 32)
            answer = await peer.next()
            assert (answer.type, answer.result, answer.subject) == (
                MessageType.BLOB_RESULT,
                Result.NOT_FOUND,
                b"h" * 32,
            )
            assert await peer.submit(make(1)) is Result.ACCEPTED

    run(scenario)


def test_the_largest_record(tmp_path: Path, client: Speaking) -> None:
    raw = make(1, payload=b"z" * (1_048_576 - 216))

    async def scenario() -> None:
        async with running_node(tmp_path) as node, client(node) as writer, client(node) as reader:
            await reader.subscribe(by(ALICE))
            assert await writer.submit(raw) is Result.ACCEPTED
            assert await reader.live() == raw
            assert await reader.query(by(ALICE)) == ([raw], Result.SUCCESS)

    run(scenario)


def test_a_full_store_is_a_temporary_error(tmp_path: Path, client: Speaking) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path, store_bytes=200_000) as node, client(node) as peer:
            assert await peer.submit(make(1)) is Result.ACCEPTED
            assert await peer.submit(make(2, payload=bytes(400_000))) is Result.TEMPORARY_ERROR
            assert await peer.submit(make(3)) is Result.ACCEPTED
            assert (await peer.query(by(ALICE)))[0] == [make(3), make(1)]

    run(scenario)


def test_a_node_that_ends_says_why(tmp_path: Path, client: Speaking) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as node, client(node) as peer:
            await peer.subscribe(by(ALICE))
            await asyncio.gather(node.drain(), closing(peer))
            node.drain = _nothing  # type: ignore[method-assign]

    async def closing(peer: MosaicPeer) -> None:
        message = await peer.next()
        assert (message.type, message.result) == (MessageType.CLOSING, Result.SHUTTING_DOWN)
        await peer.end()

    async def _nothing() -> None: ...

    run(scenario)


def test_banned_addresses_are_turned_away(tmp_path: Path, client: Speaking) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path, mosaic_bans="127.0.0.0/8") as node, client(node) as peer:
            peer.say(MessageType.QUERY, query_id=b"q1", body=by(ALICE))
            message = await peer.next()
            assert (message.type, message.result) == (MessageType.CLOSING, Result.IP_PERM_BANNED)
            await peer.end()

    run(scenario)


# The WebSocket's own.


def test_an_upgrade_without_the_subprotocol_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as node:
            with pytest.raises(picows.WSError, match="400"):
                async with connected(node, "/"):
                    pass
            for headers in ({"X-Mosaic-Versions": "5"}, {"X-Mosaic-Authenticate-As": "mopub0x"}):
                with pytest.raises(picows.WSError, match="400"):
                    await websocket_line(node, headers)

    run(scenario)


def test_the_server_proves_its_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as node:
            line = await websocket_line(node, {"X-Mosaic-Server-Authenticate-Nonce": "prove it"})
            headers = line.transport.response.headers
            await line.close()
            assert headers["Sec-WebSocket-Protocol"] == "mosaic2025"
            assert headers["X-Mosaic-Version"] == "0"
            signature = base64.b64decode(headers["X-Mosaic-Server-Authentication"])
            assert mosaic.verify(node.mosaic.signer.public, b"prove it", signature)

    run(scenario)


def test_the_servers_key_is_made_once_and_kept_from_others(tmp_path: Path) -> None:
    path = tmp_path / IDENTITY_FILE
    made = load_identity(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_identity(path).public == made.public
    path.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        load_identity(path)
    path.chmod(0o600)
    path.write_text("mosec0nothing\n")
    with pytest.raises(UserError, match="no secret key"):
        load_identity(path)


def test_a_frame_too_large_is_answered_and_passed_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as node:
            for layout in LAYOUTS:
                peer = MosaicPeer(await websocket_line(node), layout)
                peer.say(MessageType.SUBMISSION, body=make(1) + bytes(2_000_000))
                answer = await peer.next()
                assert (answer.type, answer.result) == (MessageType.SUBMISSION_RESULT, Result.TOO_LARGE)
                assert answer.subject == make(1)[:32]
                assert await peer.query(by(BOB)) == ([], Result.SUCCESS)
                await peer.line.close()

    run(scenario)


def test_frames_in_fragments(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as node:
            line = await websocket_line(node)
            frame = frames.encode(Message(MessageType.SUBMISSION, body=make(1)), LAYOUT_A)
            kinds = [picows.WSMsgType.BINARY] + [picows.WSMsgType.CONTINUATION] * (len(frame) - 1)
            for number, kind in enumerate(kinds):
                line.transport.send(kind, frame[number : number + 1], fin=number == len(frame) - 1)
            assert (await MosaicPeer(line, LAYOUT_A).next()).result is Result.ACCEPTED
            await line.close()

    run(scenario)


def test_streamr_and_mosaic_do_not_hear_each_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        name = f"{UNIQUE:016x}"
        async with running_node(tmp_path) as node, connected(node, STREAMR) as streamr:
            peer = MosaicPeer(await websocket_line(node), LAYOUT_A)
            await streamr.subscribe(name)
            assert await peer.submit(make(1)) is Result.ACCEPTED
            assert await streamr.ask([2, 11, "r", name, 0, 10, None]) == [2, 6, "r", name, 0]
            [raw] = messages(name, 1)
            streamr.publish(raw)
            assert (await streamr.next())[1] == 0
            assert (await peer.query(by(ALICE)))[0] == [make(1)]
            await peer.line.close()

    run(scenario)


def test_rows_are_sealed_and_dropped_and_records_stay(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path, hot_hours=0.0) as node, connected(node, STREAMR) as streamr:
            peer = MosaicPeer(await websocket_line(node), LAYOUT_A)
            await peer.submit(make(1))
            await streamr.subscribe("river")
            streamr.publish(messages("river", 1)[0])
            await streamr.next()
            await peer.submit(make(2))
            await node.seal()
            assert node.checks()["sealing"] == "ok"
            assert node.store.first_hot_offset == node.store.next_offset == 3
            assert (await peer.query(by(ALICE)))[0] == [make(2), make(1)]
            assert await peer.submit(make(1)) is Result.DUPLICATE
            await peer.line.close()

    run(scenario)


def test_the_pages_know_of_mosaic(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as node:
            peer = MosaicPeer(await websocket_line(node), LAYOUT_A)
            await peer.subscribe(by(BOB))
            assert node.info()["subscriptions"] == 1
            await peer.submit(make(1))
            status, body = await get(node, "/metrics")
            assert status == 200
            assert b'{protocol="mosaic",version="0"}' in body
            await peer.line.close()

    run(scenario)
