"""Mosaic over real sockets: one suite of scenarios for every transport and both layouts."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import stat
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import picows
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from catchment import keyfiles
from catchment.core.bans import Bans
from catchment.core.watches import Watch
from catchment.crypto import ed25519, mosaic
from catchment.errors import MissingExtra, UserError
from catchment.model import Kind
from catchment.net import mosaic_ports
from catchment.net.identity import load_bootstraps, load_identity
from catchment.net.mosaic_ports import MosaicPorts
from catchment.net.server import Node
from catchment.wire.mosaic import bootstrap, frames, keys, tags
from catchment.wire.mosaic.frames import LAYOUT_A, LAYOUTS, Layout, Message, MessageType
from catchment.wire.mosaic.results import Result

from ..sessions.mosaichelp import ALICE, BOB, CAROL, EPHEMERAL, REPLACEABLE, UNIQUE, by, make
from .mosaichelp import TRANSPORTS, MosaicPeer, QuicLine, TcpLine, speaking, websocket_line
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
            if not isinstance(peer.line, QuicLine):  # there it ends the stream, see below
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


def test_a_node_that_cannot_keep_up_makes_publishers_wait_and_loses_nothing(tmp_path: Path, client: Speaking) -> None:
    raws = [make(number) for number in range(60)]

    async def scenario() -> None:
        async with running_node(tmp_path, ingest_bytes=1) as node, client(node) as writer, client(node) as other:
            for raw in raws:
                writer.say(MessageType.SUBMISSION, body=raw)
            writer.say(MessageType.QUERY, query_id=b"q1", body=by(CAROL))
            assert await other.submit(make(1, signer=BOB)) is Result.ACCEPTED
            answers = [await writer.next() for _ in range(61)]
            results = [answer for answer in answers if answer.type is MessageType.SUBMISSION_RESULT]
            assert [answer.subject for answer in results] == [raw[:32] for raw in raws], "in the order they were sent"
            assert {answer.result for answer in results} == {Result.ACCEPTED}
            assert (await other.query(by(ALICE)))[0] == raws[::-1]

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
        async with running_node(tmp_path) as node, client(node) as peer:
            node.mosaic.bans = Bans("127.0.0.0/8")
            peer.say(MessageType.QUERY, query_id=b"q1", body=by(ALICE))
            message = await peer.next()
            assert (message.type, message.result) == (MessageType.CLOSING, Result.IP_PERM_BANNED)
            await peer.end()

    run(scenario)


def test_a_server_tells_of_itself_and_of_whom_it_was_told(tmp_path: Path, client: Speaking) -> None:
    item = bootstrap.make_item(ed25519.Signer(BOB.secret), bootstrap.Salt.USER, 1, "U")
    line = {"public_key": keys.encode(keys.Printable.USER_KEY, BOB.public), "salt": "mub25", "seq": 1, "value": "U"}
    given = tmp_path / "bootstraps.jsonl"
    given.write_text(json.dumps({**line, "signature": item.signature.hex()}) + "\n")

    async def scenario() -> None:
        async with running_node(tmp_path / "data", mosaic_bootstraps=str(given)) as node, client(node) as peer:
            peer.say(MessageType.DHT_LOOKUP, subject=node.mosaic.signer.public, server=1)
            answer = await peer.next()
            assert (answer.type, answer.result) == (MessageType.DHT_RESPONSE, Result.SUCCESS)
            assert set(bootstrap.read_server(answer.body.decode())) == set(node.mosaic_ports.addresses.values())
            peer.say(MessageType.DHT_LOOKUP, subject=BOB.public)
            assert (await peer.next()).body == b"U"
            peer.say(MessageType.DHT_LOOKUP, subject=CAROL.public)
            assert (await peer.next()).result is Result.NOT_FOUND

    run(scenario)
    with pytest.raises(UserError, match="cannot be read"):
        load_bootstraps(str(tmp_path / "missing"))


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
    path = tmp_path / keyfiles.MOSAIC
    made = load_identity(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_identity(path).public == made.public
    path.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        load_identity(path)
    path.chmod(0o600)
    path.write_text("nothing\n")
    with pytest.raises(UserError, match="no private key"):
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


# What streams of bytes have.


@pytest.fixture(params=["tcp", "quic"])
def stream(request: pytest.FixtureRequest) -> str:
    return request.param


def hello(layout: Layout) -> bytes:
    return frames.encode(Message(MessageType.HELLO, applications=(0, 7)), layout)


def test_messages_byte_by_byte(tmp_path: Path, layout: Layout) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as node:
            line = await TcpLine.open(node, layout, None)
            peer = MosaicPeer(line, layout)
            data = hello(layout) + frames.encode(Message(MessageType.SUBMISSION, body=make(1)), layout)
            for number in range(len(data)):
                line.send(data[number : number + 1])
                await line.writer.drain()
            ack = await peer.next()
            assert (ack.type, ack.applications) == (MessageType.HELLO_ACK, (0,))
            assert (await peer.next()).result is Result.ACCEPTED
            await line.close()

    run(scenario)


def test_many_messages_at_once(tmp_path: Path, stream: str, layout: Layout) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as node, speaking(node, stream, layout) as peer:
            peer.line.send(
                b"".join(frames.encode(Message(MessageType.SUBMISSION, body=make(n)), layout) for n in range(50))
            )
            assert [(await peer.next()).result for _ in range(50)] == [Result.ACCEPTED] * 50

    run(scenario)


def test_hello_twice_is_a_duplicate(tmp_path: Path, stream: str, layout: Layout) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as node, speaking(node, stream, layout) as peer:
            peer.line.send(hello(layout))
            ack = await peer.next()
            assert (ack.type, ack.result, ack.applications) == (MessageType.HELLO_ACK, Result.DUPLICATE, (0,))
            assert await peer.submit(make(1)) is Result.ACCEPTED

    run(scenario)


@pytest.mark.parametrize("first", [bytes(8), b"\2" + b"\x20" * 30, b"GET / HTTP/1.1\r\n\r\n", b"\x10\1\0\0" + bytes(4)])
def test_a_stream_that_does_not_begin_with_hello_is_closed(tmp_path: Path, stream: str, first: bytes) -> None:
    kinds = {"tcp": TcpLine, "quic": QuicLine}

    async def scenario() -> None:
        async with running_node(tmp_path) as node:
            peer = MosaicPeer(await kinds[stream].open(node, LAYOUT_A, None), LAYOUT_A)
            peer.line.send(first)
            closing = await peer.next()
            assert (closing.type, closing.result) == (MessageType.CLOSING, Result.INVALID)
            await peer.end()
            await peer.line.close()

    run(scenario)


def test_sixteen_megabytes_announced_are_not_waited_for(tmp_path: Path, stream: str, layout: Layout) -> None:
    size = 16_000_000

    async def scenario() -> None:
        async with running_node(tmp_path) as node, speaking(node, stream, layout) as peer:
            head = frames.encode(Message(MessageType.SUBMISSION, body=make(1)), layout)
            start, end, _ = layout.rows[MessageType.SUBMISSION].length
            head = head[:start] + size.to_bytes(end - start, "little") + head[end:]
            peer.line.send(head)
            answer = await peer.next()
            assert (answer.type, answer.result) == (MessageType.SUBMISSION_RESULT, Result.TOO_LARGE)
            assert answer.subject == make(1)[:32]
            # What was announced is passed over, wherever it is cut; then the next message is read.
            left = size - len(head)
            for _ in range(15):
                peer.line.send(bytes(1_000_000))
                left -= 1_000_000
            peer.line.send(bytes(left) + frames.encode(Message(MessageType.SUBMISSION, body=make(2)), layout))
            answer = await peer.next()
            assert (answer.subject, answer.result) == (make(2)[:32], Result.ACCEPTED)

    run(scenario)


def test_a_length_below_its_header_ends_the_conversation(tmp_path: Path, stream: str, layout: Layout) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as node, speaking(node, stream, layout) as peer:
            peer.line.send(b"\x05" + bytes(7))
            closing = await peer.next()
            assert (closing.type, closing.result) == (MessageType.CLOSING, Result.INVALID)
            await peer.end()

    run(scenario)


def test_who_leaves_leaves_no_watches(tmp_path: Path, transport: str, layout: Layout) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as node:
            gone = asyncio.Event()
            remove = node.mosaic.watches.remove

            def removed(watch: Watch) -> None:
                remove(watch)
                gone.set()

            node.mosaic.watches.remove = removed  # type: ignore[method-assign]
            async with speaking(node, transport, layout) as peer:
                await peer.subscribe(by(ALICE))
                assert len(node.mosaic.watches) == 1
            await asyncio.wait_for(gone.wait(), 30)
            assert len(node.mosaic.watches) == 0

    run(scenario)


def test_a_client_that_does_not_read_is_cut_and_others_go_on(tmp_path: Path, transport: str) -> None:
    async def scenario() -> None:
        async with (
            running_node(tmp_path, outbox_bytes=600_000) as node,
            speaking(node, transport, LAYOUT_A) as lazy,
            speaking(node, transport, LAYOUT_A) as writer,
        ):
            await lazy.subscribe(by(ALICE))
            stop_reading(lazy)
            for number in range(200):
                assert await writer.submit(make(number, payload=bytes(100_000))) is Result.ACCEPTED
                if not len(node.mosaic.watches):
                    break
            assert len(node.mosaic.watches) == 0

    run(scenario)


def stop_reading(peer: MosaicPeer) -> None:
    line = peer.line
    if isinstance(line, TcpLine):
        line.task.cancel()
        line.writer.transport.pause_reading()
    elif isinstance(line, QuicLine):
        line.client.datagram_received = lambda *_: None  # type: ignore[method-assign]
    else:
        line.transport.underlying_transport.pause_reading()  # type: ignore[attr-defined]


def test_plain_bytes_where_tls_is_spoken(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as node:
            reader, writer = await asyncio.open_connection("127.0.0.1", node.mosaic_ports.port)
            writer.write(b"hello, is anybody there?\r\n")
            await reader.read()
            writer.close()
            async with speaking(node, "tcp", LAYOUT_A) as peer:
                assert await peer.submit(make(1)) is Result.ACCEPTED

    run(scenario)


def test_a_certificate_of_another_kind_is_turned_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as node:
            key = ec.generate_private_key(ec.SECP256R1())
            name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mosaic")])
            made = (
                x509.CertificateBuilder()
                .subject_name(name)
                .issuer_name(name)
                .public_key(key.public_key())
                .serial_number(5)
                .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
                .not_valid_after(datetime(2100, 1, 1, tzinfo=UTC))
                .sign(key, hashes.SHA256())
            )
            pem = tmp_path / "other.pem"
            pem.write_bytes(
                key.private_bytes(
                    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
                )
                + made.public_bytes(serialization.Encoding.PEM)
            )
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            context.load_cert_chain(pem)
            reader, writer = await asyncio.open_connection("127.0.0.1", node.mosaic_ports.port, ssl=context)
            closing = frames.decode(await reader.readexactly(8), LAYOUT_A)
            assert (closing.type, closing.result) == (MessageType.CLOSING, Result.INVALID)
            assert await reader.read() == b""
            writer.close()

    run(scenario)


# QUIC's own.


def test_streams_of_a_connection_share_its_queries(tmp_path: Path, layout: Layout) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as node, speaking(node, "quic", layout) as first:
            assert isinstance(first.line, QuicLine)
            second = MosaicPeer(first.line.another(), layout)
            assert await first.subscribe(by(ALICE), query_id=b"s1") == []
            assert await second.submit(make(1)) is Result.ACCEPTED, "one Hello for the connection"
            assert await first.live() == make(1), "live records come where they were asked for"
            second.say(MessageType.UNSUBSCRIBE, query_id=b"s1")
            closed = await second.next()
            assert (closed.type, closed.query_id, closed.result) == (MessageType.QUERY_CLOSED, b"s1", Result.SUCCESS)

    run(scenario)


def test_one_message_for_each_stream(tmp_path: Path, layout: Layout) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as node, speaking(node, "quic", layout) as peer:
            line = peer.line
            for number in range(5):
                assert isinstance(line, QuicLine)
                line = line.another()
                line.send(frames.encode(Message(MessageType.SUBMISSION, body=make(number)), layout), end=True)
                other = MosaicPeer(line, layout)
                assert (await other.next()).result is Result.ACCEPTED
                await other.end()
            line = line.another()
            line.send(frames.encode(Message(MessageType.QUERY, query_id=b"q1", body=by(ALICE)), layout), end=True)
            other = MosaicPeer(line, layout)
            assert len((await other.answer(b"q1"))[0]) == 5
            await other.end()

    run(scenario)


def test_what_is_not_recognized_ends_its_stream_only(tmp_path: Path, layout: Layout) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as node, speaking(node, "quic", layout) as peer:
            assert isinstance(peer.line, QuicLine)
            other = MosaicPeer(peer.line.another(), layout)
            other.say(MessageType.CLOSING)
            assert (await other.next()).type is MessageType.UNRECOGNIZED
            await other.end()
            assert await peer.submit(make(1)) is Result.ACCEPTED

    run(scenario)


def ports_of(node: Node) -> MosaicPorts:
    """Ports as a second node would open them."""
    return MosaicPorts(
        node.mosaic,
        ingest=node.ingest,
        resender=node.resender,
        outbox_limit=lambda: 1,
        on_opened=lambda _: None,
        on_closed=lambda _: None,
    )


def test_without_the_extra_quic_is_an_error_only_if_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mosaic_ports, "_has_quic", lambda: False)

    async def scenario() -> None:
        async with running_node(tmp_path) as node:
            assert "mosaic" not in node.addresses
            assert "mosaictcp" in node.addresses
            with pytest.raises(MissingExtra, match=r"catchment\[quic\]"):
                await ports_of(node).open("127.0.0.1", 0, quic="on")

    run(scenario)


def test_a_port_that_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path / "first") as first:
            taken = first.mosaic_ports.port
            assert taken is not None
            with pytest.raises(UserError, match="--mosaic-port"):
                await ports_of(first).open("127.0.0.1", taken, quic="auto")
            monkeypatch.setattr(mosaic_ports, "DEFAULT_PORT", taken)
            async with running_node(tmp_path / "second", mosaic_port=taken) as second:
                assert set(second.addresses) == {"http", "ws"}
                async with speaking(second, "websocket", LAYOUT_A) as peer:
                    assert await peer.submit(make(1)) is Result.ACCEPTED
            assert "WebSockets only" in caplog.text

    run(scenario)
