"""Messages over HTTP: published like any other, and history in every format."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from catchment import model
from catchment.net import http, resend, server
from catchment.net.ingest import now_us
from catchment.net.server import Node
from catchment.store.sealing import retire
from catchment.web import rest as rest_module
from catchment.wire.streamr import message
from catchment.wire.streamr.partition import partition_of

from ..net.nodehelp import STREAMR, chain_of, connected, forge, messages
from .resthelp import ALICE, BOB, Rest, add_user, of, rest_node

Conversation = Callable[[Node, Rest], Awaitable[None]]
DATA = of("s") + "/data"
LAST = DATA + "/partitions/0/last"
FROM = DATA + "/partitions/0/from"
RANGE = DATA + "/partitions/0/range"


def on_node(folder: Path, mode: str, conversation: Conversation, **settings: object) -> None:
    async def main() -> None:
        async with rest_node(folder, access=mode, **settings) as (node, rest):
            add_user(node, ALICE.address)
            await conversation(node, rest)

    asyncio.run(main())


async def publish_all(node: Node, raws: list[bytes]) -> None:
    async with connected(node, STREAMR + "&publishAck=1") as peer:
        for raw in raws:
            peer.publish(raw)
        for _ in raws:
            assert (await peer.next())[3] == "stored"


def test_a_publish_is_on_disk_when_it_is_answered_and_reaches_subscribers(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        async with connected(node) as peer:
            await peer.subscribe("s")
            answer = await rest.ask("POST", DATA, raw=b'{"n": 1}')
            assert (answer.status, answer.body) == (200, b"")
            assert node.store.next_offset == 1
            kind, _, _, got = await peer.next()  # type: ignore[misc]
            assert kind == 2
            assert got[7] == '{"n": 1}'  # type: ignore[index]
        (found,) = (await rest.get(LAST)).json
        assert (found["content"], found["streamId"], found["signatureType"]) == ({"n": 1}, "s", 0)

    on_node(tmp_path, "open", conversation)


def test_messages_of_one_millisecond_are_all_kept_in_their_order(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        for number in range(5):
            assert (await rest.ask("POST", DATA + "?ts=1000", raw=b"%d" % number)).status == 200
        found = (await rest.get(LAST + "?count=10")).json
        assert [each["content"] for each in found] == [0, 1, 2, 3, 4]
        assert [each["sequenceNumber"] for each in found] == [0, 1, 2, 3, 4]

    on_node(tmp_path, "open", conversation)


def signed_query(content: str, *, timestamp: int, sequence: int = 0, stream: str = "s") -> str:
    payload = f"{stream}0{timestamp}{sequence}{ALICE.address}chain{content}"
    return (
        f"?ts={timestamp}&seq={sequence}&address={ALICE.address}&msgChainId=chain"
        f"&signatureType=2&signature={ALICE.sign(payload.encode())}"
    )


def test_a_signed_publish_is_checked_and_kept_once(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        query = signed_query('{"a":1}', timestamp=1000)
        for _ in range(2):
            assert (await rest.ask("POST", DATA + query, raw=b'{"a":1}')).status == 200
        refused = await rest.ask("POST", DATA + query, raw=b'{"a":2}')
        assert (refused.status, refused.code) == (400, "VALIDATION_ERROR")
        (found,) = (await rest.get(LAST + "?count=10")).json
        assert (found["publisherId"], found["signatureType"]) == (ALICE.address, 2)
        kinds = [row.entry.kind for row in node.store.read(0, 10)]
        assert sorted(kinds) == [model.Kind.MESSAGE, model.Kind.REFUSED, model.Kind.DUPLICATE]

    on_node(tmp_path, "open", conversation)


def test_numbers_and_previous_references_are_kept(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        query = "?ts=1000&seq=7&prev_ts=999&prev_seq=3&address=me&msgChainId=c"
        assert (await rest.ask("POST", DATA + query, raw=b"{}")).status == 200
        (line,) = (await rest.get(LAST + "?format=raw")).body.splitlines()
        assert json.loads(line)[:3] == [32, ["s", 0, 1000, 7, "me", "c"], [999, 3]]

    on_node(tmp_path, "open", conversation)


def test_a_key_chooses_the_partition(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        await rest.ok("PUT", of("s"), {"partitions": 10})
        for number in range(10):
            assert (await rest.ask("POST", DATA + f"?pkey=key-{number}", raw=b"%d" % number)).status == 200
        for number in range(10):
            partition = partition_of(f"key-{number}", 10)
            found = (await rest.get(DATA + f"/partitions/{partition}/last?count=10")).json
            assert number in [each["content"] for each in found]
        assert (await rest.get(DATA + "/partitions/10/last")).status == 400

    on_node(tmp_path, "open", conversation)


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("", b""),
        ("", b"no json"),
        ("", b"\xff"),
        ("?ts=x", b"{}"),
        ("?ts=-1", b"{}"),
        ("?ts=1e3", b"{}"),
        ("?ts=99999999999999999999", b"{}"),
        ("?seq=x", b"{}"),
        ("?ts=5&prev_ts=5", b"{}"),
        ("?signatureType=2", b"{}"),
        ("?signatureType=9&signature=0x00", b"{}"),
        ("?signature=0x00", b"{}"),
        ("?signatureType=2&signature=0x00", b"{}"),
        ("?signatureType=2&signature=0x00&ts=5&address=x", b"{}"),
        ("?address=0x" + "ab" * 20, b"{}"),
        ("?msgChainId=" + "x" * 1025, b"{}"),
        ("?ts=9007199254740991", b"{}"),
    ],
)
def test_publishes_that_cannot_be_kept(tmp_path: Path, query: str, body: bytes) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        refused = await rest.ask("POST", DATA + query, raw=body)
        assert refused.status == 400
        assert refused.json["error"]
        assert (await rest.get(LAST)).json == []

    on_node(tmp_path, "open", conversation)


def test_a_content_may_have_a_mebibyte_and_no_more(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        limit = 1024 * 1024
        assert (await rest.ask("POST", DATA, raw=b'"' + b"x" * (limit - 2) + b'"')).status == 200
        refused = await rest.ask("POST", DATA, raw=b'"' + b"x" * (limit - 1) + b'"')
        assert (refused.status, refused.code) == (413, "BODY_TOO_LARGE")
        (found,) = (await rest.get(LAST + "?count=5")).json
        assert len(found["content"]) == limit - 2

    on_node(tmp_path, "open", conversation)


def test_a_closed_node_takes_what_permissions_allow(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        alice, bob = await rest.login(ALICE), await rest.login(BOB)
        assert (await alice.ask("POST", DATA, raw=b"{}")).status == 404
        await alice.ok("POST", "/streams", {"id": "s"})
        assert (await alice.ask("POST", DATA, raw=b'{"by":"alice"}')).status == 200
        for stranger in (bob, rest):
            refused = await stranger.ask("POST", DATA, raw=b"{}")
            assert (refused.status, refused.code) == (403, "PERMISSION_DENIED")
            assert (await stranger.get(LAST)).status == 403
        assert (await Rest(node, "Bearer nonsense").ask("POST", DATA, raw=b"{}")).status == 401
        # Signed by the owner, whoever sends it.
        query = signed_query('{"signed":1}', timestamp=now_us() // 1000)
        assert (await bob.ask("POST", DATA + query, raw=b'{"signed":1}')).status == 200
        key = (await alice.ok("POST", of("s") + "/keys", {"permission": "write"}))["id"]
        assert (await Rest(node, f"token {key}").ask("POST", DATA, raw=b'{"by":"key"}')).status == 200
        assert (await Rest(node, f"token {key}").get(LAST)).status == 403
        assert len((await alice.get(LAST + "?count=9")).json) == 3

    on_node(tmp_path, "closed", conversation)


def test_a_stream_takes_what_it_says_it_takes(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        await rest.ok("PUT", of("s"), {"requireSignedData": True})
        refused = await rest.ask("POST", DATA, raw=b"{}")
        assert refused.status == 400
        assert "signed" in refused.json["error"]
        query = signed_query("{}", timestamp=now_us() // 1000)
        assert (await rest.ask("POST", DATA + query, raw=b"{}")).status == 200
        await rest.ok("PUT", of("s"), {"requireEncryptedData": True})
        query = signed_query("[]", timestamp=now_us() // 1000, sequence=1)
        assert "encrypted" in (await rest.ask("POST", DATA + query, raw=b"[]")).json["error"]

    on_node(tmp_path, "open", conversation)


def test_history_by_last_from_and_range(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        await publish_all(node, messages("s", 10, start=1000))
        await publish_all(node, messages("s", 5, start=1003, signer=BOB))

        async def times(path: str) -> list[tuple[int, str]]:
            names = {ALICE.address: "a", BOB.address: "b"}
            found = (await rest.ok("GET", path)) or []
            return [(each["timestamp"], names[each["publisherId"]]) for each in found]

        assert await times(LAST) == [(1009, "a")]
        assert await times(LAST + "?count=0") == []
        assert len(await times(LAST + "?count=99999")) == 15
        assert await times(FROM + "?fromTimestamp=1007") in (
            [(1007, "a"), (1007, "b"), (1008, "a"), (1009, "a")],
            [(1007, "b"), (1007, "a"), (1008, "a"), (1009, "a")],
        )
        assert await times(FROM + f"?fromTimestamp=1006&publisherId={BOB.address.upper().replace('0X', '0x')}") == [
            (1006, "b"),
            (1007, "b"),
        ]
        assert await times(FROM + "?fromTimestamp=1009&fromSequenceNumber=1") == []
        one = f"&publisherId={ALICE.address}&msgChainId=chain"
        assert await times(RANGE + f"?fromTimestamp=1002&toTimestamp=1004{one}") == [
            (1002, "a"),
            (1003, "a"),
            (1004, "a"),
        ]
        assert await times(RANGE + "?fromTimestamp=1000&toTimestamp=1000") == [(1000, "a")]
        assert await times(RANGE + "?fromTimestamp=1000&toTimestamp=1000&toSequenceNumber=0") == [(1000, "a")]
        assert await rest.ok("GET", of("s") + "/metadata/partitions/0") == {
            "totalMessages": 15,
            "totalBytes": sum(len(row.entry.raw) for row in node.store.read(0, 20)),
            "firstMessage": 1000,
            "lastMessage": 1009,
        }
        empty = {"totalMessages": 0, "totalBytes": 0, "firstMessage": 0, "lastMessage": 0}
        assert await rest.ok("GET", of("never") + "/metadata/partitions/0") == empty

    on_node(tmp_path, "open", conversation)


@pytest.mark.parametrize(
    "path",
    [
        LAST + "?count=x",
        LAST + "?count=-1",
        LAST + "?format=xml",
        LAST + "?version=27",
        LAST + "?version=x",
        FROM,
        FROM + "?fromTimestamp=yesterday",
        FROM + "?fromTimestamp=1&fromSequenceNumber=x",
        FROM + "?fromTimestamp=1&publisherId=" + "x" * 1025,
        RANGE + "?fromTimestamp=1",
        RANGE + "?fromTimestamp=2&toTimestamp=1",
        RANGE + "?fromTimestamp=1&toTimestamp=1&fromSequenceNumber=2&toSequenceNumber=1",
        RANGE + "?fromTimestamp=1&toTimestamp=2&publisherId=x",
        RANGE + "?fromTimestamp=1&toTimestamp=2&msgChainId=x",
        DATA + "/partitions/x/last",
        DATA + "/partitions/-1/last",
        DATA + "/partitions/1/last",
        DATA + "/partitions/99999999999/last",
        of("s") + "/storage/partitions/x",
        of("s") + "/metadata/partitions/7",
    ],
)
def test_questions_that_cannot_be_answered(tmp_path: Path, path: str) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        refused = await rest.get(path)
        assert refused.status == 400, refused.body
        assert refused.json["error"] == refused.json["message"]

    on_node(tmp_path, "open", conversation)


def test_the_same_messages_in_every_format_and_version(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        raws = messages("s", 3, start=1000)
        await publish_all(node, raws)
        plain = await rest.get(LAST + "?count=3&format=raw")
        assert plain.headers["content-type"] == "text/plain; charset=utf-8"
        assert plain.body.splitlines() == raws
        protocol = await rest.get(LAST + "?count=3&format=protocol")
        assert protocol.json == [raw.decode() for raw in raws]
        objects = (await rest.get(LAST + "?count=3&format=object")).json
        first: dict[str, Any] = json.loads(raws[0])
        assert objects[0] == {
            "streamId": "s",
            "streamPartition": 0,
            "timestamp": 1000,
            "sequenceNumber": 0,
            "publisherId": ALICE.address,
            "msgChainId": "chain",
            "messageType": 27,
            "contentType": 0,
            "encryptionType": 0,
            "groupKeyId": None,
            "content": {"n": 0},
            "signatureType": 2,
            "signature": first[10],
        }
        for version in message.ROWS:
            lines = (await rest.get(LAST + f"?count=3&format=raw&version={version}")).body.splitlines()
            assert [json.loads(line)[0] for line in lines] == [version] * 3
            assert [message.decode(line).content for line in lines] == ['{"n":0}', '{"n":1}', '{"n":2}']
        assert (await rest.get(of("never") + "/data/partitions/0/last?format=raw")).body == b""
        assert (await rest.get(of("never") + "/data/partitions/0/last")).json == []

    on_node(tmp_path, "open", conversation)


def test_a_forged_message_is_in_no_answer(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        raw = messages("s", 1)[0]
        async with connected(node) as peer:
            assert (await peer.ask(b'[2,8,"p",%b,null]' % forge(raw)))[1] == 7
        assert (await rest.get(LAST + "?count=9")).json == []

    on_node(tmp_path, "open", conversation)


def test_history_goes_on_from_the_hot_store_into_the_lake(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        raws = messages("s", 30, start=1000)
        await publish_all(node, raws[:20])
        await node.seal()
        assert retire(node.store, sealed_to=19, older_than_us=2**62, limit=100) == 20
        await publish_all(node, raws[20:])
        found = await rest.get(RANGE + "?fromTimestamp=1005&toTimestamp=1024&format=raw")
        assert found.body.splitlines() == raws[5:25]

    on_node(tmp_path, "open", conversation)


def event_when_full(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when an answer has to wait for its reader."""
    full = asyncio.Event()
    pause = http.PatientProtocol.pause_writing

    def paused(self: Any) -> None:
        pause(self)
        full.set()

    monkeypatch.setattr(http.PatientProtocol, "pause_writing", paused)
    return full


@pytest.mark.slow
def test_a_long_answer_is_read_no_faster_than_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hundred pages only some are read while nobody takes them; then all come, once and in order."""
    monkeypatch.setattr(resend, "PAGE_ROWS", 16)
    reads: list[int] = []
    read_page = resend.Resender._page
    full = event_when_full(monkeypatch)

    def counted(self: Any, *arguments: Any) -> Any:
        reads.append(1)
        return read_page(self, *arguments)

    monkeypatch.setattr(resend.Resender, "_page", counted)

    async def conversation(node: Node, rest: Rest) -> None:
        chain = chain_of("s")
        raws = [chain.make(f'"{"x" * 20_000}"', 1000 + number) for number in range(1600)]
        await publish_all(node, raws)
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port, limit=2**16)
        writer.write(f"GET /api/v1{FROM}?fromTimestamp=0&format=raw HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await asyncio.wait_for(full.wait(), 30)
        # The way is full: the reading stands still, and others are served.
        for _ in range(5):
            assert (await rest.get(LAST)).status == 200
        assert len(reads) < 60
        body = await reader.read()
        writer.close()
        await writer.wait_closed()
        found = [number for number in range(1600) if f",{1000 + number},0,".encode() in body]
        assert len(found) == 1600
        assert body.count(b'"chain"') == 1600
        assert len(reads) > 100

    on_node(tmp_path, "open", conversation)


def test_a_reader_that_stands_still_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "STALL_SECONDS", 0)
    full = event_when_full(monkeypatch)

    async def conversation(node: Node, rest: Rest) -> None:
        chain = chain_of("s")
        await publish_all(node, [chain.make(f'"{"x" * 20_000}"', 1000 + number) for number in range(1600)])
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port, limit=2**16)
        writer.write(f"GET /api/v1{FROM}?fromTimestamp=0&format=raw HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        await asyncio.wait_for(full.wait(), 30)
        try:
            assert (await reader.read()).count(b'"chain"') < 1600
        except ConnectionResetError:
            pass  # the cut was seen before the end of what had come
        finally:
            writer.transport.abort()
        assert (await rest.get(LAST)).status == 200

    on_node(tmp_path, "open", conversation)


def test_a_reader_that_goes_away_is_no_trouble(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        await publish_all(node, messages("s", 2000, start=1000))
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
            writer.write(f"GET /api/v1{FROM}?fromTimestamp=0 HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            await reader.readline()
            writer.transport.abort()
        assert len((await rest.get(LAST + "?count=2000")).json) == 2000

    on_node(tmp_path, "open", conversation)


def test_where_a_stream_is_kept_and_how_much_the_node_did(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        assert (await rest.get(of("s") + "/storage/partitions/0")).status == 200
        assert (await rest.get(of("s") + "/storage/partitions/1")).status == 404
        await publish_all(node, messages("s", 2))
        assert (await rest.ok("GET", "/volume"))["next_offset"] == 2

    on_node(tmp_path, "open", conversation)


def test_fields_are_found_in_the_newest_message_and_kept_on_request(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        content = b'{"n":1,"t":"x","b":true,"l":[],"m":{},"z":null,"f":1.5}'
        await rest.ask("POST", DATA, raw=content)
        names = {"n": "number", "t": "string", "b": "boolean", "l": "list", "m": "map", "z": "map", "f": "number"}
        expected = [{"name": name, "type": kind} for name, kind in names.items()]
        assert (await rest.ok("GET", of("s") + "/detectFields"))["config"]["fields"] == expected
        assert (await rest.ok("GET", of("s")))["config"]["fields"] == []
        assert (await rest.ok("POST", of("s") + "/detectFields"))["config"]["fields"] == expected
        assert (await rest.ok("GET", of("s")))["config"]["fields"] == expected
        assert (await rest.ok("POST", of("s") + "/fields", [{"name": "n"}]))["config"]["fields"] == [{"name": "n"}]
        assert (await rest.post(of("s") + "/fields", {"name": "n"})).status == 400
        assert (await rest.ok("GET", of("empty") + "/detectFields"))["config"]["fields"] == []

    on_node(tmp_path, "open", conversation)


def test_an_answer_under_way_ends_when_the_node_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that takes nothing holds a node that is told to end for no longer than its goodbye."""
    monkeypatch.setattr(server, "GOODBYE_SECONDS", 0.1)
    full = event_when_full(monkeypatch)

    async def main() -> None:
        async with rest_node(tmp_path) as (node, _):
            chain = chain_of("s")
            await publish_all(node, [chain.make(f'"{"x" * 20_000}"', 1000 + number) for number in range(1600)])
            _, writer = await asyncio.open_connection("127.0.0.1", node.port, limit=2**16)
            writer.write(f"GET /api/v1{FROM}?fromTimestamp=0&format=raw HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            await asyncio.wait_for(full.wait(), 30)
        assert not node.http._state.connections
        assert not node.http._state.tasks
        writer.transport.abort()

    asyncio.run(main())


def test_what_eth_legacy_does_not_cover_is_not_believed(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        signature = ALICE.sign(f"s1000{ALICE.address}{{}}".encode())
        query = f"?ts=1000&address={ALICE.address}&signatureType=1&signature={signature}"
        for more in ("", "&seq=5&msgChainId=x", "&seq=6"):
            assert (await rest.ask("POST", DATA + query + more, raw=b"{}")).status == 200
        (found,) = (await rest.get(LAST + "?count=9")).json
        assert (found["sequenceNumber"], found["msgChainId"], found["signatureType"]) == (0, "", 1)

    on_node(tmp_path, "open", conversation)


def test_a_body_that_does_not_come_is_waited_for_no_longer_than_it_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest_module, "BODY_SECONDS", 0)

    async def conversation(node: Node, rest: Rest) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
        writer.write(f"POST /api/v1{DATA} HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n[1".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
        writer.close()
        await writer.wait_closed()

    on_node(tmp_path, "open", conversation)
