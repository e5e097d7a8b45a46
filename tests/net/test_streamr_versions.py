"""Clients of every era on one node, over real sockets: what one publishes the others read, each in its own version."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from picows import WSError

from catchment import model
from catchment.client.streamr import now_ms
from catchment.crypto.ethereum import Signer
from catchment.net.server import Node
from catchment.sessions import streamr_forms
from catchment.wire.streamr import admin, control, message
from catchment.wire.streamr.fields import LooseMessageRef, MessageID
from catchment.wire.streamr.kinds import Control, ControlType
from catchment.wire.streamr.message import EncryptionType, MessageType, SignatureType, StreamMessage

from .nodehelp import ALICE, BOB, STREAMR, Peer, chain_of, connected, on_loop, running_node

PAIRS = [(0, 28), (0, 29), (1, 30), (1, 31), (2, 31), (2, 32)]
"""The pairs that published clients negotiate (facts/streamr.md, section 1), and the newest with either neighbour."""

every_pair = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0]}-{pair[1]}")
STREAM = "river"


def target(pair: tuple[int, int]) -> str:
    if pair == (0, 28):
        return "/api/v1/ws"  # clients before 1.0 name no versions
    return f"/api/v1/ws?controlLayerVersion={pair[0]}&messageLayerVersion={pair[1]}"


def array(version: int, content: str, timestamp: int, signer: Signer = ALICE, **changes: Any) -> bytes:
    """A signed message as clients of a version make it."""
    unsigned = StreamMessage(
        version,
        MessageID(changes.get("stream", STREAM), changes.get("partition", 0), timestamp, 0, signer.address, "chain"),
        None,
        changes.get("kind", MessageType.STREAM_MESSAGE),
        message.ContentType.JSON,
        changes.get("encryption", EncryptionType.NONE),
        None,
        content,
        None,
        SignatureType.ETH,
        None,
    )
    return message.encode(msgspec.structs.replace(unsigned, signature=signer.sign(message.signed_payload(unsigned))))


def publish(pair: tuple[int, int], content: str, timestamp: int, signer: Signer = ALICE, stream: str = STREAM) -> bytes:
    """A publish request as clients of a pair make it."""
    if pair == (0, 28):
        return msgspec.json.encode(
            {"type": "publish", "stream": stream, "authKey": "key", "msg": content, "ts": timestamp}
        )
    if pair == (0, 29):
        signature = signer.sign(f"{stream}{timestamp}{signer.address}{content}".encode())
        signed = {"addr": signer.address, "sigtype": 1, "sig": signature}
        request = {"type": "publish", "stream": stream, "sessionToken": "t", "msg": content, "ts": timestamp}
        return msgspec.json.encode(request | signed)
    raw = array(pair[1], content, timestamp, signer, stream=stream)
    return b'[2,8,"p",%b,"t"]' % raw if pair[0] == 2 else b'[1,8,%b,"t"]' % raw


def subscribe(pair: tuple[int, int], stream: str = STREAM, partition: int = 0) -> bytes:
    if pair[0] == 0:
        return msgspec.json.encode({"type": "subscribe", "stream": stream, "partition": partition})
    request = Control(ControlType.SUBSCRIBE_REQUEST, "s", stream_id=stream, stream_partition=partition)
    return control.encode(request, pair[0])


async def said(peer: Peer) -> Control:
    """The next thing a peer is told, in whatever version."""
    frame = await asyncio.wait_for(peer.frames.get(), 30)
    assert frame is not None, "the connection was closed"
    return control.decode(frame)


@contextlib.asynccontextmanager
async def subscribers(node: Node, stream: str = STREAM) -> AsyncIterator[dict[tuple[int, int], Peer]]:
    """A subscriber of each pair."""
    async with contextlib.AsyncExitStack() as stack:
        peers = {pair: await stack.enter_async_context(connected(node, target(pair))) for pair in PAIRS}
        for pair, peer in peers.items():
            peer.send(subscribe(pair, stream))
            assert (await said(peer)).type is ControlType.SUBSCRIBE_RESPONSE
        yield peers


@every_pair
def test_what_one_publishes_all_read_each_in_its_own_version(tmp_path: Path, pair: tuple[int, int]) -> None:
    async def main() -> None:
        async with (
            running_node(tmp_path) as node,
            connected(node, target(pair)) as publisher,
            subscribers(node) as readers,
        ):
            start = now_ms() - 10
            for number in range(3):
                publisher.send(publish(pair, f'{{"n":{number}}}', start + number))
            for wanted, peer in readers.items():
                for number in range(3):
                    frame = await peer.frames.get()
                    assert frame is not None
                    assert frame.startswith(b"[%d,0," % wanted[0])
                    found = message.decode(bytes(control.decode(frame).message))
                    assert (found.version, found.content) == (wanted[1], f'{{"n":{number}}}')
                    assert found.msg_id.timestamp == start + number
                    if wanted[1] > 28 and pair != (0, 28):
                        assert found.msg_id.publisher_id == ALICE.address
                    if pair != (0, 28) and wanted[1] > (28 if pair == (0, 29) else 29):
                        assert message.judge(found) is model.Verdict.OK  # shown so that it still proves itself
            kept = [row.entry for row in node.store.read(0, 10)]
            assert [entry.version for entry in kept] == [30 if pair[0] == 0 else pair[1]] * 3
            assert all(entry.kind is model.Kind.MESSAGE for entry in kept)

    asyncio.run(main())


@every_pair
def test_a_forged_message_reaches_no_subscriber_of_any_version(tmp_path: Path, pair: tuple[int, int]) -> None:
    if pair == (0, 28):
        return  # nothing is signed

    async def main() -> None:
        async with (
            running_node(tmp_path) as node,
            connected(node, target(pair)) as publisher,
            subscribers(node) as readers,
        ):
            good = publish(pair, '{"n":1}', now_ms())
            forged = good.replace(b'{\\"n\\":1}', b'{\\"n\\":2}')
            assert forged != good
            publisher.send(forged)
            answer = await said(publisher)
            assert answer.type is ControlType.ERROR_RESPONSE
            assert "signature" in answer.error_message
            assert answer.error_code == ("REQUEST_FAILED" if pair[0] == 2 else "")
            publisher.send(good)
            for peer in readers.values():
                found = message.decode(bytes((await said(peer)).message))
                assert found.content == '{"n":1}'
                assert peer.frames.empty()
            assert [row.entry.verdict for row in node.store.read(0, 10)] == [
                model.Verdict.BAD_SIGNATURE,
                model.Verdict.OK,
            ]

    asyncio.run(main())


@every_pair
def test_a_replayed_message_is_delivered_once(tmp_path: Path, pair: tuple[int, int]) -> None:
    if pair == (0, 28):
        return  # without a signature it cannot be known to be the same

    async def main() -> None:
        async with (
            running_node(tmp_path) as node,
            connected(node, target(pair)) as publisher,
            connected(node) as attacker,
            subscribers(node) as readers,
        ):
            first = publish(pair, '{"n":1}', now_ms())
            for _ in range(3):
                publisher.send(first)
            await peer_reads_one(readers)
            attacker.send(first)
            publisher.send(publish(pair, '{"n":2}', now_ms() + 1))
            await peer_reads_one(readers, '{"n":2}')
            await node.ingest.drained()
            for peer in readers.values():
                assert peer.frames.empty()
            kinds = [row.entry.kind for row in node.store.read(0, 10)]
            assert kinds.count(model.Kind.MESSAGE) == 2
            # The last note may still wait for the next commit.
            assert kinds.count(model.Kind.DUPLICATE) in (2, 3)

    asyncio.run(main())


async def peer_reads_one(peers: Mapping[object, Peer], content: str = '{"n":1}') -> None:
    for peer in peers.values():
        assert message.decode(bytes((await said(peer)).message)).content == content


def test_a_message_under_a_legacy_signature_cannot_be_sent_again_as_another_version(tmp_path: Path) -> None:
    """The signature covers neither sequence nor chain, so whoever has it could make up others."""

    async def main() -> None:
        async with (
            running_node(tmp_path) as node,
            connected(node, target((0, 29))) as publisher,
            connected(node, STREAMR + "&publishAck=1") as attacker,
            subscribers(node) as readers,
        ):
            request = json.loads(publish((0, 29), '{"n":1}', now_ms()))
            publisher.send(msgspec.json.encode(request))
            await peer_reads_one(readers)
            for sequence, chain in ((0, ""), (1, ""), (0, "other"), (9, "another")):
                msg_id = [STREAM, 0, request["ts"], sequence, ALICE.address, chain]
                for raw in (
                    [30, msg_id, None, 27, request["msg"], 1, request["sig"]],
                    [31, msg_id, None, 27, 0, request["msg"], 1, request["sig"]],
                    [32, msg_id, None, 27, 0, 0, None, request["msg"], None, 1, request["sig"]],
                ):
                    attacker.publish(msgspec.json.encode(raw))
                    assert await attacker.next() == [2, 100, "p", "duplicate"]
            assert all(peer.frames.empty() for peer in readers.values())

    asyncio.run(main())


def test_unsigned_publishes_of_control_0_at_one_time_are_all_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running_node(tmp_path) as node,
            connected(node, "/api/v1/ws") as one,
            connected(node, "/api/v1/ws") as other,
            subscribers(node, "brook") as readers,
        ):
            time = now_ms()
            for number in range(20):
                (one if number % 2 else other).send(publish((0, 28), f'{{"n":{number}}}', time, stream="brook"))
            one.send(publish((0, 28), '{"n":0}', time, stream="brook"))  # the same once more: nobody can know
            for pair, peer in readers.items():
                found = [message.decode(bytes((await said(peer)).message)) for _ in range(21)]
                assert sorted(json.loads(each.content)["n"] for each in found) == [0, *range(20)]
                if pair[1] >= 30:
                    assert sorted(each.msg_id.sequence_number for each in found) == list(range(21))
                else:
                    offsets = [each.offset for each in found if isinstance(each, message.OffsetMessage)]
                    assert offsets == [time + number for number in range(21)]
            rows = [row.entry for row in node.store.read(0, 50)]
            assert [row.kind for row in rows] == [model.Kind.MESSAGE] * 21

    asyncio.run(main())


def test_a_message_is_encoded_once_for_each_pair_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[tuple[str, bytes]] = []
    shown = streamr_forms.PairForm._shown

    def counting(pair: streamr_forms.PairForm, entry: model.Entry) -> StreamMessage | str:
        encoded.append((pair.form.name, entry.raw))
        return shown(pair, entry)

    monkeypatch.setattr(streamr_forms.PairForm, "_shown", counting)

    async def main() -> None:
        async with (
            running_node(tmp_path) as node,
            connected(node) as publisher,
            subscribers(node) as first,
            subscribers(node) as second,
            subscribers(node) as third,
        ):
            start = now_ms() - 10
            for number in range(5):
                publisher.send(publish((2, 32), f'{{"n":{number}}}', start + number))
            for peers in (first, second, third):
                for peer in peers.values():
                    for number in range(5):
                        content = message.decode(bytes((await said(peer)).message)).content
                        assert content == f'{{"n":{number}}}'
        # Eighteen subscribers: five pairs are converted to, each message once for each; 2/32 reads the bytes as signed.
        assert len(encoded) == len(set(encoded)) == 25
        assert {name for name, _ in encoded} == {
            f"streamr-{control_version}-{version}" for control_version, version in PAIRS if version != 32
        }

    asyncio.run(main())


def test_an_encrypted_message_is_answered_as_brokers_did_to_clients_that_cannot_read_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, connected(node) as sender, subscribers(node) as readers:
            time = now_ms()
            sender.publish(array(32, "00ff", time, encryption=EncryptionType.AES))
            sender.publish(array(32, "{}", time + 1))
            for pair, peer in readers.items():
                first, second = await said(peer), await said(peer)
                assert second.type is ControlType.BROADCAST_MESSAGE
                if pair[1] >= 31:
                    assert message.decode(bytes(first.message)).encryption_type is EncryptionType.AES
                else:
                    assert first.type is ControlType.ERROR_RESPONSE
                    assert first.error_message.startswith("Encrypted message received.")

    asyncio.run(main())


def resend_requests(pair: tuple[int, int], times: list[int]) -> list[tuple[bytes, list[int]]]:
    """Every way to ask a version for history, and which of the messages are meant."""
    everything = list(range(len(times)))
    if pair[0] == 0:
        options: list[tuple[dict[str, Any], list[int]]] = [
            ({"resend_all": True}, everything),
            ({"resend_last": 2}, everything[-2:]),
            ({"resend_last": 0}, []),
            ({"resend_from": times[1]}, everything[1:]),
            ({"resend_from": times[1], "resend_to": times[2]}, everything[1:3]),
            ({"resend_from": times[1], "resend_to": times[1]}, everything[1:2]),
            ({"resend_from_time": times[2]}, everything[2:]),
            ({"resend_from": times[-1] + 1}, []),
        ]
        request = {"type": "resend", "stream": STREAM, "partition": 0, "sub": "7"}
        return [(msgspec.json.encode(request | option), meant) for option, meant in options]

    def ask(kind: ControlType, **fields: Any) -> bytes:
        return control.encode(Control(kind, "7", stream_id=STREAM, **fields), pair[0])

    def ref(at: int) -> LooseMessageRef:
        return LooseMessageRef(times[at], 0)

    upper = "0x" + ALICE.address[2:].upper()
    last, since, between = (
        ControlType.RESEND_LAST_REQUEST,
        ControlType.RESEND_FROM_REQUEST,
        ControlType.RESEND_RANGE_REQUEST,
    )
    return [
        (ask(last, number_last=2), everything[-2:]),
        (ask(last, number_last=0), []),
        (ask(since, from_msg_ref=ref(1)), everything[1:]),
        (ask(since, from_msg_ref=ref(1), publisher_id=upper), everything[1:]),
        (ask(since, from_msg_ref=ref(1), publisher_id=BOB.address), []),
        (ask(between, from_msg_ref=ref(1), to_msg_ref=ref(2)), everything[1:3]),
        (ask(between, from_msg_ref=ref(1), to_msg_ref=ref(1)), everything[1:2]),
        (
            ask(between, from_msg_ref=ref(0), to_msg_ref=ref(3), publisher_id=upper, msg_chain_id="chain"),
            everything,
        ),
        (ask(between, from_msg_ref=ref(0), to_msg_ref=ref(3), publisher_id=upper, msg_chain_id="other"), []),
    ]


@every_pair
def test_resends_in_every_version(tmp_path: Path, pair: tuple[int, int]) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, connected(node, target(pair)) as peer, connected(node) as publisher:
            await publisher.subscribe(STREAM)
            times = [now_ms() - 1000 + 10 * number for number in range(4)]
            for number in (2, 0, 3, 1):  # history is in the order of time, whatever the order they came in
                publisher.publish(array(32, f'{{"n":{number}}}', times[number]))
                await publisher.next()
            for request, meant in resend_requests(pair, times):
                peer.send(request)
                answers = []
                if meant:
                    assert (await said(peer)).type is ControlType.RESEND_RESPONSE_RESENDING
                for number in meant:
                    answer = await said(peer)
                    assert (answer.type, answer.request_id) == (ControlType.UNICAST_MESSAGE, "7")
                    found = message.decode(bytes(answer.message))
                    assert (found.version, json.loads(found.content)["n"]) == (pair[1], number)
                    answers.append(found)
                end = await said(peer)
                assert end.type is (
                    ControlType.RESEND_RESPONSE_RESENT if meant else ControlType.RESEND_RESPONSE_NO_RESEND
                )
                assert (end.request_id, end.stream_id, end.stream_partition) == ("7", STREAM, 0)
                if pair[1] < 30:
                    offsets = [each.offset for each in answers if isinstance(each, message.OffsetMessage)]
                    assert offsets == [times[number] for number in meant]
            assert peer.frames.empty()

    asyncio.run(main())


@pytest.mark.parametrize("pair", [(0, 28), (1, 31), (2, 32)], ids=lambda pair: f"{pair[0]}-{pair[1]}")
def test_a_long_resend_waits_for_its_reader_and_for_nobody_else(tmp_path: Path, pair: tuple[int, int]) -> None:
    """Thirty megabytes of history against an outbox of one: a resend that did not wait would be cut."""

    async def main() -> None:
        async with (
            running_node(tmp_path, outbox_bytes=1_000_000) as node,
            connected(node, target(pair)) as slow,
            connected(node) as lively,
        ):
            content = json.dumps({"x": "y" * 3000})
            entries = []
            for number in range(10_000):
                raw = b'[31,["%b",0,%d,0,"p","c"],null,27,0,%b,0,null]' % (
                    STREAM.encode(),
                    1000 + number,
                    json.dumps(content).encode(),
                )
                parsed = message.decode(raw)
                entries.append(message.to_entry(parsed, raw, verdict=model.Verdict.UNSIGNED, received_at=number))
            await node.ingest.on_writer(lambda: node.store.append(entries))
            slow.transport.underlying_transport.pause_reading()
            slow.send(
                b'{"type":"resend","stream":"river","sub":"7","resend_all":true}'
                if pair[0] == 0
                else control.encode(
                    Control(
                        ControlType.RESEND_FROM_REQUEST,
                        "7",
                        stream_id=STREAM,
                        from_msg_ref=LooseMessageRef(0, 0),
                    ),
                    pair[0],
                )
            )
            await lively.subscribe("elsewhere")
            for number in range(300):
                lively.publish(array(32, "{}", now_ms() + number, stream="elsewhere"))
                await lively.next()
            slow.transport.underlying_transport.resume_reading()
            assert (await said(slow)).type is ControlType.RESEND_RESPONSE_RESENDING
            for number in range(10_000):
                found = message.decode(bytes((await said(slow)).message))
                assert (found.msg_id.timestamp, found.version) == (1000 + number, pair[1])
            assert (await said(slow)).type is ControlType.RESEND_RESPONSE_RESENT

    asyncio.run(main())


def in_version(control_version: int, raw: bytes) -> bytes:
    return b'[2,8,"r",%b,null]' % raw if control_version == 2 else b"[1,8,%b,null]" % raw


def refusals(control_version: int) -> list[tuple[bytes, str, str]]:
    """(frame, code in control 2, words) of everything a node refuses at once, as a client of a version sends it."""
    ahead = now_ms() + 400_000
    cases: list[tuple[bytes, str, str]] = [
        (b"hello", "INVALID_REQUEST", "not valid JSON"),
        (b"[7,9]", "INVALID_REQUEST", "version 7 is not supported"),
        (b'[2,14,"r"]', "INVALID_REQUEST", "not known"),
        (b'[2,2,"r","s",0]', "INVALID_REQUEST", "is not a request"),
        (b'{"type":"dance","stream":"s"}', "INVALID_REQUEST", "Unknown request type"),
        (b" " * 1_048_577, "INVALID_REQUEST", "over the limit"),
    ]
    if control_version == 0:
        base = {"type": "publish", "stream": STREAM, "msg": "{}"}
        return [
            *cases,
            (msgspec.json.encode(base | {"ts": ahead}), "FUTURE_TIMESTAMP", "future timestamps are not allowed"),
            (msgspec.json.encode(base | {"stream": "signed"}), "REQUEST_FAILED", "signed messages only"),
            (msgspec.json.encode(base | {"ts": "soon"}), "INVALID_REQUEST", "is not a time"),
            (msgspec.json.encode(base | {"addr": ALICE.address}), "REQUEST_FAILED", "signature"),
            (b'{"type":"subscribe","stream":"river","partition":1}', "REQUEST_FAILED", "partition 0 only"),
            (b'{"type":"unsubscribe","stream":"river"}', "INVALID_REQUEST", "Not subscribed to stream river"),
            (b'{"type":"resend","stream":"river","sub":"1"}', "INVALID_REQUEST", "Unknown resend options"),
            (
                b'{"type":"resend","stream":"river","sub":"1","resend_from":5,"resend_to":4}',
                "INVALID_REQUEST",
                "is after",
            ),
        ]
    unsigned = b'[31,["%b",0,%d,0,"visitor",""],%b,27,0,"{}",0,null]'
    exchange = "SYSTEM/keyexchange/" + BOB.address
    return [
        *cases,
        (in_version(control_version, array(31, "{}", ahead)), "FUTURE_TIMESTAMP", "future timestamps"),
        (in_version(control_version, array(31, "{}", now_ms(), partition=1)), "REQUEST_FAILED", "partition 0 only"),
        (in_version(control_version, unsigned % (b"signed", 5, b"null")), "REQUEST_FAILED", "signed messages only"),
        (in_version(control_version, unsigned % (b"river", 5, b"[5,0]")), "INVALID_REQUEST", "must come before"),
        (in_version(control_version, unsigned % (b"secret", 5, b"null")), "REQUEST_FAILED", "encrypted messages only"),
        (
            in_version(control_version, array(31, "{}", now_ms(), kind=MessageType.GROUP_KEY_REQUEST)),
            "INVALID_REQUEST",
            "key-exchange stream",
        ),
        (
            in_version(control_version, array(31, "{}", 5, kind=MessageType.GROUP_KEY_REQUEST, stream=exchange)),
            "INVALID_REQUEST",
            "content of a GroupKeyRequest",
        ),
        (in_version(control_version, b"[33]"), "INVALID_REQUEST", "Message version 33"),
        (in_version(control_version, b'[31,["s"]]'), "INVALID_REQUEST", "Message 31"),
        (subscribe((control_version, 31), STREAM, 1), "REQUEST_FAILED", "partition 0 only"),
        (
            control.encode(Control(ControlType.UNSUBSCRIBE_REQUEST, "r", stream_id=STREAM), control_version),
            "INVALID_REQUEST",
            "Not subscribed to stream river partition 0!",
        ),
        (
            control.encode(
                Control(
                    ControlType.RESEND_RANGE_REQUEST,
                    "r",
                    stream_id=STREAM,
                    from_msg_ref=LooseMessageRef(5, 0),
                    to_msg_ref=LooseMessageRef(4, 0),
                ),
                control_version,
            ),
            "INVALID_REQUEST",
            "is after toMsgRef",
        ),
    ]


@pytest.mark.parametrize("control_version", [0, 1, 2])
def test_refusals_have_their_code_and_nobody_else_notices(tmp_path: Path, control_version: int) -> None:
    async def main() -> None:
        pair = (control_version, {0: 28, 1: 31, 2: 31}[control_version])
        async with running_node(tmp_path) as node, connected(node, target(pair)) as peer, subscribers(node) as readers:
            for stream, properties in (
                ("signed", admin.Properties(require_signed=True)),
                ("secret", admin.Properties(require_encrypted=True)),
            ):
                node.access.apply(admin.StreamCreated(stream=stream, at=0, properties=properties))
            for frame, code, words in refusals(control_version):
                peer.send(frame)
                answer = await said(peer)
                assert answer.type is ControlType.ERROR_RESPONSE, frame[:80]
                assert words in answer.error_message
                assert answer.error_code == (code if control_version == 2 else "")
                # The connection lives on.
                peer.send(subscribe(pair, "elsewhere"))
                assert (await said(peer)).type is ControlType.SUBSCRIBE_RESPONSE
            await node.ingest.drained()
            assert all(other.frames.empty() for other in readers.values())
            assert not [row for row in node.store.read(0, 100) if row.entry.kind is model.Kind.MESSAGE]

    asyncio.run(main())


def test_who_may_not_publish_is_refused_noted_and_never_delivered(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path, access="closed") as node, connected(node) as alice, connected(node) as bob:
            node.access.apply(
                admin.StreamCreated(
                    stream=STREAM, at=0, owner=ALICE.address, first_permission=1, properties=admin.Properties()
                )
            )
            node.access.accounts.open_session(ALICE.address, "alice-token", now_ms() * 1000)
            answer = await bob.ask([2, 9, "r", STREAM, 0, None])
            assert answer == [2, 7, "r", "You are not allowed to subscribe to stream river", "PERMISSION_DENIED"]
            assert (await alice.ask([2, 9, "r", STREAM, 0, "alice-token"]))[:2] == [2, 2]
            refused = array(32, "{}", now_ms(), BOB)
            bob.publish(refused, "b")
            answer = await bob.next()
            assert (answer[:3], answer[4]) == ([2, 7, "b"], "PERMISSION_DENIED")
            assert (await bob.ask(b'[2,8,"n",%b,null]' % array(32, "{}", now_ms(), stream="nowhere")))[4] == "NOT_FOUND"
            allowed = array(32, "{}", now_ms())
            bob.publish(allowed)  # whoever sends it: it is Alice's
            assert await alice.frames.get() == b'[2,0,"",%b]' % allowed
            rows = [row.entry for row in node.store.read(0, 10)]
            assert [(row.kind, row.verdict, row.raw) for row in rows if row.kind is not model.Kind.ADMIN] == [
                (model.Kind.REFUSED, model.Verdict.NOT_PERMITTED, refused),
                (model.Kind.MESSAGE, model.Verdict.OK, allowed),
            ]

    asyncio.run(main())


@pytest.mark.parametrize(
    "query",
    ["controlLayerVersion=3&messageLayerVersion=32", "controlLayerVersion=2&messageLayerVersion=27"],
)
def test_unsupported_versions_are_refused_in_http(tmp_path: Path, query: str) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            with pytest.raises(WSError, match="400"):
                async with connected(node, "/api/v1/ws?" + query):
                    pass

    asyncio.run(main())


def test_key_exchange_is_routed_and_kept_as_its_own_kind(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, connected(node) as bob, connected(node, target((1, 31))) as alice:
            stream = "SYSTEM/keyexchange/" + ALICE.address
            alice.send(subscribe((1, 31), stream))
            await said(alice)
            request = array(
                32, '["r","river","PEM",["k"]]', now_ms(), BOB, stream=stream, kind=MessageType.GROUP_KEY_REQUEST
            )
            bob.publish(request)
            found = message.decode(bytes((await said(alice)).message))
            assert (found.version, found.message_type) == (31, MessageType.GROUP_KEY_REQUEST)
            assert message.judge(found) is model.Verdict.OK
            assert [row.entry.kind for row in node.store.read(0, 10)] == [model.Kind.KEYEXCHANGE]

    asyncio.run(main())


def test_what_was_sealed_and_dropped_is_known_and_resent_in_every_version(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running_node(tmp_path, hot_hours=0.0) as node,
            connected(node, target((0, 29)) + "&publishAck=1") as publisher,
            contextlib.AsyncExitStack() as stack,
        ):
            start = now_ms() - 1000
            signed = [publish((0, 29), f'{{"n":{number}}}', start + number) for number in range(3)]
            unsigned = publish((0, 28), '{"n":3}', start + 3)
            outcomes = []
            for frame in (*signed, unsigned):
                publisher.send(frame)
                outcomes.append((await said(publisher)).outcome)
            await node.seal()
            assert node.store.first_hot_offset == 4
            for frame in (*signed, unsigned):
                publisher.send(frame)
                outcomes.append((await said(publisher)).outcome)
            # A signed replay stays one though nothing is left to compare it with; the unsigned one cannot be known.
            assert outcomes == ["stored"] * 4 + ["duplicate"] * 3 + ["stored"]
            for pair in PAIRS:
                peer = await stack.enter_async_context(connected(node, target(pair)))
                peer.send(resend_requests(pair, [start, start + 1, start + 2, start + 3])[0][0])
                found = []
                while (answer := await said(peer)).type is not ControlType.RESEND_RESPONSE_RESENT:
                    if answer.type is ControlType.UNICAST_MESSAGE:
                        found.append(message.decode(bytes(answer.message)))
                assert {each.version for each in found} == {pair[1]}
                expected = [0, 1, 2, 3, 3] if pair[0] == 0 else [3, 3]
                assert [json.loads(each.content)["n"] for each in found] == expected

    asyncio.run(main())


@pytest.mark.parametrize("version", [28, 29])
def test_arrays_of_28_and_29_inside_a_newer_request_are_read_by_all(tmp_path: Path, version: int) -> None:
    """Brokers accepted any pair of supported versions (facts/streamr.md, section 1)."""

    async def main() -> None:
        async with (
            running_node(tmp_path) as node,
            connected(node, target((1, 31))) as sender,
            subscribers(node) as readers,
        ):
            time = now_ms()
            signature = ALICE.sign(f"{STREAM}{time}{ALICE.address}{{}}".encode())
            elements: list[Any] = [version, STREAM, 0, time, 60, 12, 11, 27, "{}"]
            elements += [1, ALICE.address, signature] if version == 29 else []
            raw = msgspec.json.encode(elements)
            sender.send(b"[1,8,%b,null]" % raw)
            for pair, peer in readers.items():
                found = message.decode(bytes((await said(peer)).message))
                assert (found.version, found.content, found.msg_id.timestamp) == (pair[1], "{}", time)
                if isinstance(found, message.OffsetMessage):
                    assert (found.ttl, found.offset, found.previous_offset) == (60, time, None)
                if version == 29 and pair[1] > 28:
                    assert message.judge(found) is model.Verdict.OK
            assert [(row.entry.version, row.entry.raw) for row in node.store.read(0, 5)] == [(version, raw)]

    asyncio.run(main())


def test_old_clients_are_told_of_gaps_they_can_fill_and_of_no_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, connected(node, "/api/v1/ws") as old, connected(node) as publisher:
            start = now_ms() - 1000
            chain = chain_of(STREAM)
            sent = [chain.make(f'{{"n":{number}}}', start + number) for number in range(5)]
            await publisher.subscribe(STREAM)
            publisher.publish(sent[1])  # before the old client listens
            await publisher.next()
            old.send(subscribe((0, 28)))
            await said(old)
            for raw in (sent[0], sent[2], sent[4]):  # the fourth is lost
                publisher.publish(raw)
            shown = [message.decode(bytes((await said(old)).message)) for _ in range(3)]
            told = [each.previous_offset for each in shown if isinstance(each, message.OffsetMessage)]
            assert told == [None, start + 1, start + 2]

    asyncio.run(main())


@on_loop
async def test_the_greatest_sequence_breaks_no_history_and_no_other_stream(tmp_path: Path) -> None:
    """A message without a sequence comes behind the last of its time; there may be nothing behind it."""
    array_32 = '[2,8,"p",[32,["%s",0,5,%d,"",""],null,27,0,0,null,"{}",null,0,null],null]'
    async with running_node(tmp_path) as node, connected(node) as reader, connected(node, "/api/v1/ws") as old:
        await reader.subscribe("s")
        await reader.subscribe("other")
        for sequence in (0, 2**53 - 1):
            reader.send(array_32 % ("s", sequence))
            assert (await reader.next())[1] == 0
        old.send('{"type":"publish","stream":"s","msg":"{}","ts":5}')
        reader.send(array_32 % ("other", 0))
        assert "another timestamp" in str(await old.next())
        assert (await reader.next())[3][1][0] == "other"  # type: ignore[index]
        reader.send([2, 11, "r", "s", 0, 10, None])
        assert [(await reader.next())[1] for _ in range(4)] == [4, 1, 1, 5]
