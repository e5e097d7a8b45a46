"""Streams, permissions, keys and storage nodes over REST, on open and closed nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from catchment.net.server import Node

from .resthelp import ALICE, BOB, Rest, add_user, of, rest_node

Conversation = Callable[[Node, Rest], Awaitable[None]]
ODD_IDS = ["a/b/c", "streams/x/publishers", "ä ö", "a%2Fb", "?x=1&y", "../../etc/passwd", "a\\b'\"; DROP", "x" * 1024]


def on_node(folder: Path, mode: str, conversation: Conversation) -> None:
    async def main() -> None:
        async with rest_node(folder, access=mode) as (node, rest):
            add_user(node, ALICE.address)
            await conversation(node, rest)

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["open", "closed"])
def test_a_stream_is_created_read_changed_listed_and_deleted(tmp_path: Path, mode: str) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        alice = await rest.login(ALICE)
        body = {"name": "River", "description": "wet", "partitions": 3, "requireSignedData": True, "unknown": {}}
        made = await alice.ok("POST", "/streams", body)
        assert len(made["id"]) == 22
        assert (made["name"], made["partitions"], made["requireSignedData"]) == ("River", 3, True)
        assert made["config"] == {"fields": []}
        assert await alice.ok("GET", of(made["id"])) == made
        changed = await alice.ok("PUT", of(made["id"]), {**made, "name": "Brook", "config": {"a": [1]}})
        assert (changed["name"], changed["config"], changed["partitions"]) == ("Brook", {"a": [1]}, 3)
        assert await alice.ok("GET", "/streams?name=Brook&public=false") == [changed]
        assert await alice.ok("GET", "/streams?name=River") == []
        assert await alice.ok("GET", "/streams?search=WET") == [changed]
        assert await alice.ok("GET", "/streams?max=0") == []
        assert await alice.ok("GET", "/streams?offset=1") == []
        assert (await alice.delete(of(made["id"]))).status == 204
        assert await alice.ok("GET", "/streams") == []
        assert (await alice.delete(of(made["id"]))).status == 404

    on_node(tmp_path, mode, conversation)


@pytest.mark.parametrize("mode", ["open", "closed"])
@pytest.mark.parametrize("stream_id", ODD_IDS)
def test_ids_of_any_kind_come_back_as_they_were(tmp_path: Path, mode: str, stream_id: str) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        alice = await rest.login(ALICE)
        made = await alice.ok("POST", "/streams", {"id": stream_id})
        assert made["id"] == stream_id
        for page in ("", "/validation", "/publishers", "/permissions/me"):
            assert (await alice.get(of(stream_id) + page)).status == 200
        assert (await alice.ok("GET", of(stream_id)))["id"] == stream_id
        assert node.access.created(stream_id) is not None

    on_node(tmp_path, mode, conversation)


def test_older_clients_do_not_encode_ids(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        alice = await rest.login(ALICE)
        await alice.ok("POST", "/streams", {"id": "a/b", "partitions": 2})
        assert (await alice.ok("GET", "/streams/a/b"))["partitions"] == 2
        assert (await alice.ok("GET", "/streams/a/b/publishers"))["addresses"] == [ALICE.address]
        assert (await alice.get(f"/streams/a/b/publisher/{ALICE.address}")).status == 200

    on_node(tmp_path, "closed", conversation)


@pytest.mark.parametrize(
    ("stream_id", "status"),
    [
        ("SYSTEM/keyexchange/0x", 400),
        ("0x" + "ab" * 20, 400),
        ("a\x00b", 400),
        ("a\nb", 400),
        (" ", 400),
        ("x" * 1025, 400),
        ("0x" + "ab" * 20 + "/mine", 403),
    ],
)
@pytest.mark.parametrize("mode", ["open", "closed"])
def test_ids_nobody_may_take(tmp_path: Path, mode: str, stream_id: str, status: int) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        alice = await rest.login(ALICE)
        assert (await alice.post("/streams", {"id": stream_id})).status == status
        assert list(node.access.streams()) == []

    on_node(tmp_path, mode, conversation)


def test_an_id_below_ones_own_address_may_be_given_as_a_path(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        alice = await rest.login(ALICE)
        assert (await alice.ok("POST", "/streams", {"id": "/river"}))["id"] == f"{ALICE.address}/river"
        again = await alice.post("/streams", {"id": f"{ALICE.address}/river"})
        assert (again.status, again.code) == (409, "DUPLICATE_NOT_ALLOWED")

    on_node(tmp_path, "closed", conversation)


def test_concurrent_creates_of_one_id_make_one_stream(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        alice = await rest.login(ALICE)
        answers = await asyncio.gather(*(alice.post("/streams", {"id": "s"}) for _ in range(20)))
        assert sorted(answer.status for answer in answers) == [200] + [409] * 19
        assert node.store.next_offset == 1

    on_node(tmp_path, "closed", conversation)


@pytest.mark.parametrize(
    "body",
    [
        {"partitions": 0},
        {"partitions": 101},
        {"partitions": "3"},
        {"partitions": 1.5},
        {"requireSignedData": 1},
        {"config": [1]},
        {"config": {"a": "x" * 70_000}},
        {"name": "x" * 1025},
        {"storageDays": -1},
        [],
        "text",
        None,
    ],
)
def test_bodies_that_describe_no_stream(tmp_path: Path, body: Any) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        alice = await rest.login(ALICE)
        raw = b"null" if body is None else None
        refused = await alice.ask("POST", "/streams", body, raw=raw)
        assert (refused.status, refused.code) == (400, "VALIDATION_ERROR")

    on_node(tmp_path, "closed", conversation)


@pytest.mark.parametrize("raw", [b"{", b"\xff\xfe", b'{"name":', b"[" * 50_000])
def test_bodies_that_are_no_json(tmp_path: Path, raw: bytes) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        alice = await rest.login(ALICE)
        refused = await alice.ask("POST", "/streams", raw=raw)
        assert refused.status == 400
        assert refused.json["error"] == refused.json["message"]

    on_node(tmp_path, "closed", conversation)


def test_bodies_that_are_too_large(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        alice = await rest.login(ALICE)
        refused = await alice.ask("POST", "/streams", raw=b'{"name":"%b"}' % (b"x" * 300_000))
        assert (refused.status, refused.code) == (413, "BODY_TOO_LARGE")
        # The same without saying so beforehand.
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
        writer.write(b"POST /api/v1/login/apikey HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(5):
            writer.write(b"%x\r\n%b\r\n" % (65536, b"x" * 65536))
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
        writer.close()

    on_node(tmp_path, "closed", conversation)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/users/me", 405),
        ("PUT", "/streams", 405),
        ("POST", "/streams/x/publishers", 405),
        ("PUT", "/streams/x/validation", 405),
        ("DELETE", "/streams/x/permissions", 405),
        ("PATCH", "/streams/x", 405),
        ("GET", "/nothing", 404),
        ("GET", "/", 404),
        ("GET", "/streams/", 404),
        ("GET", "/streams/%ff", 400),
        ("GET", "/streams/" + "x" * 1025, 400),
        ("GET", "/streams?max=-1", 400),
        ("GET", "/streams?operation=fly", 400),
    ],
)
def test_pages_and_methods_that_are_not_there(tmp_path: Path, method: str, path: str, status: int) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        answer = await rest.ask(method, path)
        assert answer.status == status
        assert sorted(answer.json)[:2] == ["code", "error"]

    on_node(tmp_path, "open", conversation)


def test_an_open_node_has_every_stream(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        found = await rest.ok("GET", of("never used"))
        assert (found["id"], found["partitions"]) == ("never used", 1)
        assert await rest.ok("GET", of("never used") + "/validation") == {
            "partitions": 1,
            "requireSignedData": False,
            "requireEncryptedData": False,
        }
        assert await rest.ok("GET", of("never used") + "/publishers") == {"addresses": []}
        assert (await rest.get(of("never used") + f"/publisher/{BOB.address}")).status == 200
        assert (await rest.get(of("never used") + f"/subscriber/{BOB.address}")).status == 200
        assert await rest.ok("GET", "/streams?public=true") == []
        await rest.login(BOB)
        assert (await rest.ok("GET", of("never used") + "/publishers"))["addresses"] == [BOB.address]
        assert (await rest.ok("GET", of("never used") + "/subscribers"))["addresses"] == [BOB.address]

    on_node(tmp_path, "open", conversation)


def test_an_open_node_lets_anyone_change_what_is_nobodys(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        assert (await rest.ok("PUT", of("free"), {"partitions": 4}))["partitions"] == 4
        assert (await rest.ok("POST", "/streams", {"id": "other"}))["id"] == "other"
        granted = await rest.ok("POST", of("free") + "/permissions", {"operation": "stream_get", "anonymous": True})
        assert await rest.ok("GET", of("free") + "/permissions") == [granted]
        assert (await rest.delete(of("free"))).status == 204
        alice = await rest.login(ALICE)
        await alice.ok("POST", "/streams", {"id": "hers"})
        assert (await rest.put(of("hers"), {"partitions": 4})).status == 403
        assert (await rest.delete(of("hers"))).status == 403
        assert (await rest.get(of("hers") + "/permissions")).status == 403
        assert (await rest.get(of("hers"))).status == 200

    on_node(tmp_path, "open", conversation)


def test_a_closed_node_shows_a_stream_only_to_those_it_is_shared_with(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        alice, bob = await rest.login(ALICE), await rest.login(BOB)
        await alice.ok("POST", "/streams", {"id": "s"})
        for page in ("", "/validation", "/publishers", "/subscribers", f"/publisher/{ALICE.address}", "/permissions"):
            for stranger in (bob, rest):
                refused = await stranger.get(of("s") + page)
                assert (refused.status, refused.code) == (403, "NOT_PERMITTED"), page
        for change in (
            bob.put(of("s"), {}),
            bob.delete(of("s")),
            rest.post(of("s") + "/permissions", {"operation": "read", "anonymous": True}),
        ):
            assert (await change).status == 403
        assert (await bob.get(of("nothing"))).code == "NOT_FOUND"
        assert (await bob.get(of("nothing"))).status == 404
        granted = await alice.ok(
            "POST", of("s") + "/permissions", {"operation": "stream_subscribe", "user": BOB.address}
        )
        assert granted == {"id": granted["id"], "user": BOB.address, "operation": "stream_subscribe"}
        assert (await bob.get(of("s"))).status == 200
        assert (await bob.get(of("s") + f"/publisher/{ALICE.address}")).status == 200
        assert (await bob.get(of("s") + f"/publisher/{BOB.address}")).status == 404
        assert (await bob.get(of("s") + f"/subscriber/{BOB.address.upper().replace('0X', '0x')}")).status == 200
        assert await bob.ok("GET", of("s") + "/permissions/me") == [granted]
        assert await alice.ok("GET", of("s") + f"/permissions/{granted['id']}") == granted
        assert (await rest.get(of("s"))).status == 403
        assert (await alice.delete(of("s") + f"/permissions/{granted['id']}")).status == 204
        assert (await alice.delete(of("s") + f"/permissions/{granted['id']}")).status == 404
        assert (await bob.get(of("s"))).status == 403

    on_node(tmp_path, "closed", conversation)


def test_a_closed_node_makes_streams_for_its_users_only(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        bob = await rest.login(BOB)
        assert (await rest.post("/streams", {"name": "x"})).status == 401
        refused = await bob.post("/streams", {"name": "x"})
        assert (refused.status, refused.code) == (403, "NOT_PERMITTED")
        add_user(node, BOB.address)
        await bob.ok("POST", "/streams", {"name": "x"})

    on_node(tmp_path, "closed", conversation)


def test_old_names_of_permissions_count_and_come_back(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        alice, bob = await rest.login(ALICE), await rest.login(BOB)
        await alice.ok("POST", "/streams", {"id": "s"})
        read = await alice.ok("POST", of("s") + "/permissions", {"operation": "read", "user": BOB.address})
        assert read["operation"] == "read"
        assert read in await alice.ok("GET", of("s") + "/permissions")
        assert await alice.ok("POST", of("s") + "/permissions", {"operation": "read", "user": BOB.address}) == read
        assert node.access.is_subscriber("s", BOB.address)
        assert not node.access.is_publisher("s", BOB.address)
        assert (await bob.put(of("s"), {"name": "n"})).status == 403
        # Nobody takes back what is another's or everyone's without the permission to share.
        public = await alice.ok("POST", of("s") + "/permissions", {"operation": "stream_get", "anonymous": True})
        hers = (await alice.ok("GET", of("s") + "/permissions"))[0]
        for stranger in (bob, rest):
            for number in (hers["id"], public["id"]):
                refused = await stranger.delete(of("s") + f"/permissions/{number}")
                assert (refused.status, refused.code) == (403, "NOT_PERMITTED")
        await alice.ok("POST", of("s") + "/permissions", {"operation": "write", "user": BOB.address})
        assert (await bob.put(of("s"), {"name": "n"})).status == 200
        # What one has one may give up.
        assert (await bob.delete(of("s") + f"/permissions/{read['id']}")).status == 204
        assert not node.access.is_subscriber("s", BOB.address)

    on_node(tmp_path, "closed", conversation)


@pytest.mark.parametrize(
    "body",
    [
        {"operation": "fly", "user": "bob"},
        {"operation": "read"},
        {"operation": "read", "user": "bob", "anonymous": True},
        {"operation": "read", "anonymous": False},
        {"operation": "read", "user": ""},
        {"user": "bob"},
        {"operation": 7, "user": "bob"},
    ],
)
def test_grants_that_say_too_little_or_too_much(tmp_path: Path, body: object) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        alice = await rest.login(ALICE)
        await alice.ok("POST", "/streams", {"id": "s"})
        before = node.store.next_offset
        assert (await alice.post(of("s") + "/permissions", body)).status == 400
        assert node.store.next_offset == before

    on_node(tmp_path, "closed", conversation)


def test_a_stream_key_opens_one_stream_for_whoever_holds_it(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        alice, bob = await rest.login(ALICE), await rest.login(BOB)
        for stream_id in ("s", "t"):
            await alice.ok("POST", "/streams", {"id": stream_id})
        made = await alice.ok("POST", of("s") + "/keys", {"name": "reader", "permission": "read"})
        holder = Rest(node, f"token {made['id']}")
        assert (await holder.get(of("s"))).status == 200
        assert (await holder.get(of("t"))).status == 403
        assert (await holder.put(of("s"), {})).status == 403
        assert (await holder.get("/users/me")).status == 401
        assert (await bob.get(of("s") + "/keys")).status == 403
        assert (await bob.post(of("s") + "/keys", {})).status == 403
        (listed,) = await alice.ok("GET", of("s") + "/keys")
        assert made["id"] not in str(listed)
        assert (await alice.post(of("s") + "/keys", {"permission": "fly"})).status == 400
        assert (await alice.delete(of("s") + f"/keys/{listed['id']}")).status == 204
        assert (await holder.get(of("s"))).status == 401
        # A stream key logs nobody in.
        other = await alice.ok("POST", of("s") + "/keys", {})
        assert (await rest.post("/login/apikey", {"apiKey": other["id"]})).status == 401

    on_node(tmp_path, "closed", conversation)


@pytest.mark.parametrize("mode", ["open", "closed"])
def test_storage_nodes_are_assigned_and_found(tmp_path: Path, mode: str) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        alice, bob = await rest.login(ALICE), await rest.login(BOB)
        await alice.ok("POST", "/streams", {"id": "s"})
        address = "0xDE11165537ef6C01260ee89A850a281525A5b63F"
        await alice.ok("POST", of("s") + "/storageNodes", {"address": address})
        await alice.ok("POST", of("s") + "/storageNodes", {"address": address})
        assert await alice.ok("GET", of("s") + "/storageNodes") == [{"storageNodeAddress": address}]
        assert [each["id"] for each in await alice.ok("GET", f"/storageNodes/{address.lower()}/streams")] == ["s"]
        assert (await bob.post(of("s") + "/storageNodes", {"address": address})).status == 403
        assert (await alice.post(of("s") + "/storageNodes", {"address": "somewhere"})).status == 400
        assert (await alice.delete(of("s") + f"/storageNodes/{address}")).status == 204
        assert (await alice.delete(of("s") + f"/storageNodes/{address}")).status == 404
        assert await alice.ok("GET", of("s") + "/storageNodes") == []

    on_node(tmp_path, mode, conversation)


def test_browsers_of_other_origins_may_ask(tmp_path: Path) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        preflight = await rest.ask(
            "OPTIONS",
            of("s"),
            **{
                "Origin": "http://example.org",
                "Access-Control-Request-Method": "PUT",
                "Access-Control-Request-Headers": "authorization,streamr-client",
            },
        )
        assert preflight.status == 200
        assert preflight.headers["access-control-allow-origin"] == "*"
        assert "PUT" in preflight.headers["access-control-allow-methods"]
        assert "streamr-client" in preflight.headers["access-control-allow-headers"].lower()
        for path in (of("s"), "/nothing"):
            asked = await rest.ask("GET", path, Origin="http://example.org")
            assert asked.headers["access-control-allow-origin"] == "*"
            assert "access-control-allow-credentials" not in asked.headers

    on_node(tmp_path, "open", conversation)
