"""A running node over real sockets: the conversation, its refusals, and what subscribers see."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from picows import WSFrame, WSMsgType, WSTransport, ws_connect

from catchment import model
from catchment.client.streamr import now_ms

from .nodehelp import ALICE, BOB, STREAMR, Peer, chain_of, connected, forge, get, messages, running_node

UNSIGNED = '[32,["s",0,%d,0,"",""],null,27,0,0,null,"{}",null,0,null]'


def test_a_message_reaches_its_subscribers_exactly_as_signed(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, connected(node) as alice, connected(node) as bob:
            await bob.subscribe("s")
            # Odd spacing is part of the signed bytes' form and must survive.
            raw = messages("s", 1)[0].replace(b",27,", b" , 27, ")
            alice.publish(raw)
            frame = await bob.frames.get()
            assert frame == b'[2,0,"",' + raw + b"]"
            assert [row.entry.raw for row in node.store.read(0, 10)] == [raw]
            assert node.store.read(0, 1)[0].entry.verdict is model.Verdict.OK

    asyncio.run(main())


def test_one_thousand_messages_arrive_in_order_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, connected(node) as alice, connected(node) as bob:
            await bob.subscribe("s")
            await bob.subscribe("s")  # twice is once
            sent = messages("s", 1000)
            for raw in sent:
                alice.publish(raw)
                alice.publish(raw)  # a repeat is delivered once
            assert [(await bob.frames.get()) for _ in sent] == [b'[2,0,"",' + raw + b"]" for raw in sent]
            await node.ingest.drained()
            assert bob.frames.empty()
            kinds = [row.entry.kind for row in node.store.read(0, 5000)]
            assert kinds.count(model.Kind.MESSAGE) == 1000
            assert kinds.count(model.Kind.DUPLICATE) == 1000

    asyncio.run(main())


def test_a_forged_message_is_answered_noted_and_never_served(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, connected(node) as alice, connected(node) as bob:
            await bob.subscribe("s")
            good = messages("s", 2)
            alice.publish(forge(good[0]), "forged")
            answer = await alice.next()
            assert answer[:3] == [2, 7, "forged"]
            assert answer[4] == "REQUEST_FAILED"
            assert "signature" in str(answer[3])
            alice.publish(good[0])  # the real one is not shadowed by the forgery
            assert await bob.frames.get() == b'[2,0,"",' + good[0] + b"]"
            assert bob.frames.empty()
            rows = [row.entry for row in node.store.read(0, 10)]
            assert [(row.kind, row.verdict) for row in rows] == [
                (model.Kind.REFUSED, model.Verdict.BAD_SIGNATURE),
                (model.Kind.MESSAGE, model.Verdict.OK),
            ]
            assert rows[0].raw == forge(good[0])
            assert (await alice.ask([2, 11, "r", "s", 0, 10, None]))[:2] == [2, 4]
            assert (await alice.next())[:2] == [2, 1]
            assert (await alice.next())[:2] == [2, 5]

    asyncio.run(main())


BAD_FRAMES = {
    "not JSON": ("hello", ""),
    "an object": ("{}", ""),
    "control version 7": ('[7,9,"r","s",0,null]', "r"),
    "unknown type": ('[2,55,"r","s",0,null]', "r"),
    "a response": ('[2,2,"r","s",0]', "r"),
    "surplus element": ('[2,9,"r","s",0,null,1]', "r"),
    "partition as float": ('[2,9,"r","s",0.0,null]', "r"),
    "beyond 2**53": ('[2,11,"r","s",0,9007199254740992,null]', "r"),
    "request id a number": ('[2,9,5,"s",0,null]', ""),
    "nesting bomb": ("[" * 100_000, ""),
    "message version 99": ('[2,8,"r",[99,["s",0,1,0,"",""]],null]', "r"),
    "message surplus": ('[2,8,"r",[32,["s",0,1,0,"",""],null,27,0,0,null,"{}",null,0,null,1],null]', "r"),
    "timestamp as float": ('[2,8,"r",[32,["s",0,1.5,0,"",""],null,27,0,0,null,"{}",null,0,null],null]', "r"),
    "previous not before": ('[2,8,"r",[32,["s",0,5,0,"",""],[5,0],27,0,0,null,"{}",null,0,null],null]', "r"),
    "not subscribed": ('[2,10,"r","s",0]', "r"),
    "range backwards": ('[2,13,"r","s",0,[5,0],[4,0],null,null,null]', "r"),
    "a million bytes too many": ("[" + " " * (1024 * 1024 + 10) + "]", ""),
    "too large, with an id": ('[2,8,"r","' + "x" * (1024 * 1024 + 10) + '"]', "r"),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_bad_input_is_answered_and_the_connection_goes_on(tmp_path: Path, name: str) -> None:
    frame, request_id = BAD_FRAMES[name]

    async def main() -> None:
        async with running_node(tmp_path) as node, connected(node) as peer:
            answer = await peer.ask(frame)
            assert answer[:3] == [2, 7, request_id]
            assert answer[4] == "INVALID_REQUEST"
            await peer.subscribe("s")
            assert node.store.next_offset == 0

    asyncio.run(main())


def test_a_timestamp_too_far_ahead_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, connected(node) as peer:
            answer = await peer.ask(f'[2,8,"r",{UNSIGNED % (now_ms() + 360_000)},null]')
            assert answer[:3] == [2, 7, "r"]
            assert answer[4] == "FUTURE_TIMESTAMP"
            assert node.store.next_offset == 0
            peer.send(f'[2,8,"r",{UNSIGNED % (now_ms() + 240_000)},null]')
            await peer.subscribe("s")
            await node.ingest.drained()
            assert node.store.next_offset == 1

    asyncio.run(main())


def test_fragments_are_put_together(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, connected(node) as peer:
            peer.transport.send(WSMsgType.TEXT, b'[2,9,"r",', fin=False)
            peer.transport.send(WSMsgType.CONTINUATION, b'"s",0', fin=False)
            peer.transport.send(WSMsgType.PING, b"in between")
            peer.transport.send(WSMsgType.CONTINUATION, b",null]")
            assert await peer.next() == [2, 2, "r", "s", 0]
            for _ in range(3):
                peer.transport.send(WSMsgType.TEXT, b"[", fin=False)
                for _ in range(20):
                    peer.transport.send(WSMsgType.CONTINUATION, b" " * 100_000, fin=False)
                peer.transport.send(WSMsgType.CONTINUATION, b"]")
                assert "over the limit" in str((await peer.next())[3])
            await peer.subscribe("t")
            peer.transport.send(WSMsgType.CONTINUATION, b"of what?")
            await asyncio.wait_for(peer.closed.wait(), 30)
            assert peer.close_code == 1002

    asyncio.run(main())


def test_binary_frames_are_refused_in_words(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, connected(node) as peer:
            peer.transport.send(WSMsgType.BINARY, b'[2,9,"r","s",0,null]')
            assert (await peer.next())[:2] == [2, 7]
            await peer.subscribe("s")

    asyncio.run(main())


def test_resends_last_from_and_range(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, connected(node, STREAMR + "&publishAck=1") as peer:
            sent = messages("s", 1500, start=1_700_000_000_000)
            for number, raw in enumerate(sent):
                peer.publish(raw, str(number))
            acknowledged = [await peer.next() for _ in sent]
            assert acknowledged == [[2, 100, str(number), "stored"] for number in range(len(sent))]

            async def resend(request: list[object]) -> list[bytes]:
                peer.send(request)
                found: list[bytes] = []
                first = await peer.next()
                if first[1] == 6:
                    return found
                assert first == [2, 4, request[2], "s", 0]
                while (frame := await peer.frames.get()) and frame.startswith(b'[2,1,"r",'):
                    found.append(frame[len(b'[2,1,"r",') : -1])
                assert frame == b'[2,5,"r","s",0]'
                return found

            assert await resend([2, 11, "r", "s", 0, 1200, None]) == sent[-1200:]
            assert await resend([2, 11, "r", "s", 0, 5000, None]) == sent
            assert await resend([2, 11, "r", "s", 0, 0, None]) == []
            assert await resend([2, 11, "r", "other", 0, 5, None]) == []
            assert await resend([2, 12, "r", "s", 0, [1_700_000_000_700, 0], None, None]) == sent[700:]
            upper = "0x" + ALICE.address[2:].upper()
            span = [[1_700_000_000_010, 0], [1_700_000_000_020, 0]]
            assert await resend([2, 13, "r", "s", 0, *span, None, None, None]) == sent[10:21]
            assert await resend([2, 13, "r", "s", 0, *span, upper, "chain", None]) == sent[10:21]
            assert await resend([2, 13, "r", "s", 0, *span, BOB.address, "chain", None]) == []

    asyncio.run(main())


def test_history_is_one_whole_when_hot_rows_are_gone(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path, hot_hours=0.0) as node, connected(node, STREAMR + "&publishAck=1") as peer:
            sent = messages("s", 900, start=1_700_000_000_000)
            for raw in sent[:600]:
                peer.publish(raw)
            for _ in sent[:600]:
                await peer.next()
            await node.seal()
            assert node.store.first_hot_offset == 600
            for raw in sent[600:]:
                peer.publish(raw)
            for _ in sent[600:]:
                await peer.next()
            peer.publish(sent[3])
            assert (await peer.next())[3] == "duplicate"  # known although its row is gone
            peer.send([2, 12, "r", "s", 0, [0, 0], None, None])
            assert (await peer.next())[1] == 4
            assert [await peer.frames.get() for _ in sent] == [b'[2,1,"r",' + raw + b"]" for raw in sent]
            assert (await peer.next())[1] == 5

    asyncio.run(main())


def test_a_subscriber_that_stops_reading_is_cut_and_nobody_else_notices(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running_node(tmp_path, outbox_bytes=2_000_000) as node,
            connected(node) as alice,
            connected(node) as stuck,
            connected(node) as bob,
        ):
            await stuck.subscribe("s")
            await bob.subscribe("s")
            stuck.transport.underlying_transport.pause_reading()
            chain = chain_of("s", None)
            content = msgspec.json.encode("x" * 10_000).decode()
            sent = [chain.make(content, now_ms()) for _ in range(1500)]
            for raw in sent:
                alice.publish(raw)
            for raw in sent:
                assert await bob.frames.get() == b'[2,0,"",' + raw + b"]"
            stuck.transport.underlying_transport.resume_reading()
            await asyncio.wait_for(stuck.closed.wait(), 30)
            # What it missed is in the history.
            async with connected(node) as again:
                again.send([2, 11, "r", "s", 0, 1500, None])
                assert (await again.next())[1] == 4
                assert [await again.frames.get() for _ in sent] == [b'[2,1,"r",' + raw + b"]" for raw in sent]

    asyncio.run(main())


def test_a_full_store_refuses_and_recovers_without_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running_node(tmp_path, store_bytes=2_000_000, hot_hours=0.0) as node,
            connected(node, STREAMR + "&publishAck=1") as peer,
        ):
            chain = chain_of("s", None)
            content = msgspec.json.encode("x" * 50_000).decode()
            stored = 0
            while True:
                peer.publish(chain.make(content, now_ms()))
                answer = await peer.next()
                if answer[1] == 7:
                    break
                stored += 1
                assert stored < 100
            assert answer[4] == "REQUEST_FAILED"
            assert (await get(node, "/readyz"))[0] == 503
            await peer.subscribe("t")  # reads go on
            await node.seal()
            peer.publish(chain.make("{}", now_ms()))
            assert (await peer.next())[1] == 100
            assert (await get(node, "/readyz"))[0] == 200
            peer.send([2, 11, "r", "s", 0, 1000, None])
            assert (await peer.next())[1] == 4
            assert len([await peer.next() for _ in range(stored + 1)]) == stored + 1

    asyncio.run(main())


def test_a_peer_that_gives_no_sign_of_life_is_cut(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running_node(tmp_path) as node,
            connected(node, enable_auto_pong=False) as silent,
            connected(node) as alive,
        ):
            for connection in list(node.connections):
                connection.ping()
            await alive.subscribe("s")
            for connection in list(node.connections):
                connection.ping()
            await asyncio.wait_for(silent.closed.wait(), 30)
            await alive.subscribe("t")

    asyncio.run(main())


def test_going_away_is_said_and_everything_accepted_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        sent = messages("s", 300)
        async with running_node(tmp_path / "data") as node:
            async with connected(node, STREAMR + "&publishAck=1") as peer:
                for raw in sent:
                    peer.publish(raw)
                await peer.next()  # the node has begun
                ending = asyncio.create_task(node.drain())
                acknowledged = 1
                while (frame := await peer.frames.get()) is not None:
                    acknowledged += frame.startswith(b"[2,100,")
                assert peer.close_code == 1001
                await ending
            node.drain = _nothing  # type: ignore[method-assign]
        async with running_node(tmp_path / "data") as again:
            kept = [row.entry.raw for row in again.store.read(0, 1000)]
            assert kept == sent[: len(kept)]
            assert len(kept) >= acknowledged

    asyncio.run(main())


async def _nothing() -> None:
    return


class _Slow(Peer):
    """Does not answer a close frame by itself."""

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            self.close_code = frame.get_close_code()
            self.frames.put_nowait(b"close")


def test_a_connection_ends_when_the_goodbye_was_answered(tmp_path: Path) -> None:
    # Closed sooner, the answer would meet a reset. Published clients of 2017 do not survive that.
    async def main() -> None:
        async with running_node(tmp_path) as node:
            transport, peer = await ws_connect(_Slow, node.addresses["ws"] + STREAMR)
            ending = asyncio.create_task(node.drain())
            assert await peer.frames.get() == b"close"
            peer.publish(messages("s", 1)[0])
            assert len(node.connections) == 1
            assert not ending.done()
            transport.send_close(peer.close_code)
            await asyncio.wait_for(peer.closed.wait(), 30)
            await ending
            assert not node.connections
            node.drain = _nothing  # type: ignore[method-assign]
        async with running_node(tmp_path) as again:
            assert again.store.read(0, 10) == []

    asyncio.run(main())


UPGRADE_WITHOUT_KEY = f"GET {STREAMR} HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"


def test_an_upgrade_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, connected(node) as peer:
            reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
            writer.write(UPGRADE_WITHOUT_KEY.encode())
            assert b" 400 " in await reader.read()
            writer.close()
            assert len(node.connections) == 1
            for connection in list(node.connections):
                connection.ping()
            await peer.subscribe("s")

    asyncio.run(main())


def test_a_close_frame_without_a_code_is_answered_with_1000(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
            key = "sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            writer.write(UPGRADE_WITHOUT_KEY.removesuffix("\r\n").encode() + key.encode())
            assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
            writer.write(b"\x88\x80\0\0\0\0")
            assert await reader.read() == b"\x88\x02" + (1000).to_bytes(2)
            writer.close()

    asyncio.run(main())


def test_a_request_id_that_looks_like_a_message(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, connected(node) as alice, connected(node) as bob:
            await bob.subscribe("s")
            raw = messages("s", 1)[0]
            alice.publish(raw, ",[32,x")
            assert await bob.frames.get() == b'[2,0,"",' + raw + b"]"

    asyncio.run(main())


def test_nobody_publishes_in_the_name_of_an_address_without_its_signature(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, connected(node, STREAMR + "&publishAck=1") as peer:
            raw = messages("s", 1)[0]
            fields = msgspec.json.decode(raw)
            peer.publish(msgspec.json.encode([*fields[:7], '"mine now"', None, 0, None]))
            assert (await peer.next())[1] == 7
            peer.publish(raw)
            assert (await peer.next())[3] == "stored"

    asyncio.run(main())


def test_a_frame_far_over_the_limit_closes_with_1009(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, connected(node) as whole, connected(node) as parts:
            whole.transport.send(WSMsgType.TEXT, b" " * (5 * 1024 * 1024))
            parts.transport.send(WSMsgType.TEXT, b"[", fin=False)
            for _ in range(50):
                parts.transport.send(WSMsgType.CONTINUATION, b" " * 100_000, fin=False)
            await asyncio.wait_for(asyncio.gather(whole.closed.wait(), parts.closed.wait()), 30)
            assert (whole.close_code, parts.close_code) == (1009, 1009)
            assert node.store.next_offset == 0

    asyncio.run(main())
