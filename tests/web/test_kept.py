"""What outlives a restart, and what never leaves the node: streams, permissions, keys, sessions, secrets."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from deltalake import DeltaTable

from catchment.net.server import Node
from catchment.store.sealing import retire
from catchment.wire.streamr import admin

from ..net.nodehelp import STREAMR, connected, messages
from ..net.processes import node_process, run
from .resthelp import ALICE, BOB, Rest, add_user, of, rest_node


async def set_up(node: Node, rest: Rest) -> tuple[Rest, str, str]:
    """A stream of Alice's that Bob may read, a key to it, and an API key of hers."""
    add_user(node, ALICE.address)
    alice = await rest.login(ALICE)
    await alice.ok("POST", "/streams", {"id": "a/river", "partitions": 3, "config": {"x": 1}})
    await alice.ok("POST", of("a/river") + "/permissions", {"operation": "stream_subscribe", "user": BOB.address})
    gone = await alice.ok("POST", of("a/river") + "/permissions", {"operation": "stream_publish", "anonymous": True})
    assert (await alice.delete(of("a/river") + f"/permissions/{gone['id']}")).status == 204
    stream_key = (await alice.ok("POST", of("a/river") + "/keys", {"permission": "read"}))["id"]
    api_key = (await alice.ok("POST", "/users/me/keys", {"name": "n"}))["id"]
    return alice, stream_key, api_key


async def check_kept(node: Node, alice: Rest, stream_key: str, api_key: str, shown: object) -> None:
    again = Rest(node, alice.authorization)
    assert await again.ok("GET", of("a/river")) == shown
    assert (await again.ok("GET", "/users/me"))["username"] == ALICE.address
    assert (await Rest(node, f"token {api_key}").ok("GET", "/users/me"))["username"] == ALICE.address
    assert (await Rest(node, f"token {stream_key}").get(of("a/river"))).status == 200
    bob = await Rest(node).login(BOB)
    assert (await bob.get(of("a/river"))).status == 200
    assert (await Rest(node).get(of("a/river"))).status == 403
    # Numbers of permissions are not given twice.
    new = await again.ok("POST", of("a/river") + "/permissions", {"operation": "read", "anonymous": True})
    assert new["id"] == 9


def test_a_restart_keeps_streams_permissions_keys_and_sessions(tmp_path: Path) -> None:
    async def main() -> None:
        async with rest_node(tmp_path, access="closed") as (node, rest):
            alice, stream_key, api_key = await set_up(node, rest)
            shown = await alice.ok("GET", of("a/river"))
        async with rest_node(tmp_path, access="closed") as (node, _):
            await check_kept(node, alice, stream_key, api_key, shown)

    asyncio.run(main())


def test_streams_are_found_again_when_their_entries_lie_in_the_lake_only(tmp_path: Path) -> None:
    async def main() -> None:
        async with rest_node(tmp_path, access="closed") as (node, rest):
            alice, stream_key, api_key = await set_up(node, rest)
            shown = await alice.ok("GET", of("a/river"))
            await node.seal()
            assert retire(node.store, sealed_to=node.store.next_offset - 1, older_than_us=2**62, limit=100) == 4
        async with rest_node(tmp_path, access="closed") as (node, _):
            await check_kept(node, alice, stream_key, api_key, shown)

    asyncio.run(main())


def test_an_open_node_remembers_who_published(tmp_path: Path) -> None:
    async def main() -> None:
        async with rest_node(tmp_path) as (node, rest):
            async with connected(node, STREAMR + "&publishAck=1") as peer:
                for raw in (*messages("s", 3), *messages("s", 1, signer=BOB), *messages("t", 1, signer=BOB)):
                    peer.publish(raw)
                    await peer.next()
            assert (await rest.ok("GET", of("s") + "/publishers"))["addresses"] == sorted([ALICE.address, BOB.address])
        for _ in range(2):
            async with rest_node(tmp_path) as (node, rest):
                found = await rest.ok("GET", of("s") + "/publishers")
                assert found["addresses"] == sorted([ALICE.address, BOB.address])
                assert {each["id"] for each in await rest.ok("GET", "/streams?public=true")} == {"s", "t"}

    asyncio.run(main())


def test_a_node_that_was_killed_finds_its_publishers_in_the_log(tmp_path: Path) -> None:
    async def publish(url: str) -> None:
        there = SimpleNamespace(addresses={"ws": url})
        async with connected(there, STREAMR + "&publishAck=1") as peer:  # type: ignore[arg-type]
            peer.publish(messages("s", 1)[0])
            await peer.next()

    with node_process(tmp_path) as killed:
        asyncio.run(publish(killed.url))
        killed.process.kill()
        killed.wait()

    async def main() -> None:
        async with rest_node(tmp_path / "data") as (_, rest):
            assert (await rest.ok("GET", of("s") + "/publishers"))["addresses"] == [ALICE.address]

    asyncio.run(main())


def test_no_secret_is_in_the_log_the_lake_the_metrics_or_a_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> list[str]:
        async with rest_node(tmp_path, access="closed") as (node, rest):
            add_user(node, "carol", password="correct horse", key="carols-key")
            alice, stream_key, api_key = await set_up(node, rest)
            await rest.post("/login/password", {"username": "carol", "password": "correct horse"})
            await rest.post("/login/password", {"username": "carol", "password": "wrong horse"})
            await rest.post("/login/apikey", {"apiKey": "no-such-key"})
            token = (alice.authorization or "").removeprefix("Bearer ")
            unsigned = messages("a/river", 1, signer=None)[0]
            await alice.ask("POST", of("a/river") + "/data?pkey=x", raw=b'{"n":1}')
            async with connected(node, STREAMR + "&publishAck=1") as peer:
                await peer.ask(b'[2,8,"p",%b,"%b"]' % (unsigned, token.encode()))
                await peer.ask(b'[2,8,"p",%b,"stale-token"]' % unsigned)
            await alice.post("/logout")
            await node.seal()
            rows = node.store.read(0, 100)
            assert len(rows) >= 6
            log = b"".join(row.entry.raw for row in rows)
            lake = str(DeltaTable(f"{node.lake_address}/raw").to_pyarrow_table().to_pylist())
            shown = node.metrics().decode()
        secrets = [
            token,
            stream_key,
            api_key,
            "correct horse",
            "wrong horse",
            "carols-key",
            "no-such-key",
            "stale-token",
        ]
        for secret in secrets:
            assert secret.encode() not in log
            assert secret not in lake
            assert secret not in shown
            assert secret not in caplog.text
        return secrets

    secrets = asyncio.run(main())
    # Not even the store beside the log holds one: only hashes.
    data = (tmp_path / "store" / "data.mdb").read_bytes()
    for secret in secrets:
        assert secret.encode() not in data


def test_changes_are_admin_entries_and_say_who_made_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with rest_node(tmp_path, access="closed") as (node, rest):
            await set_up(node, rest)
            entries = [row.entry for row in node.store.read(0, 10)]
        changes = [admin.decode(entry.raw) for entry in entries]
        assert [type(change).__name__ for change in changes] == [
            "StreamCreated",
            "PermissionGranted",
            "PermissionGranted",
            "PermissionRevoked",
        ]
        assert {entry.publisher for entry in entries} == {ALICE.address}
        assert {entry.topic for entry in entries} == {""}
        folded = admin.fold(changes)["a/river"]
        assert (folded.partitions, folded.config) == (3, b'{"x":1}')

    asyncio.run(main())


def test_nobody_can_subscribe_to_admin_entries_or_read_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with rest_node(tmp_path) as (node, rest):
            await rest.ok("POST", "/streams", {"id": "s"})
            async with connected(node) as peer:
                for request in ([2, 9, "r", "", 0, None], [2, 11, "r", "", 0, 5, None]):
                    assert (await peer.ask(request))[1] == 7  # type: ignore[arg-type]
            assert (await rest.get("/streams//data/partitions/0/last")).status in (400, 404)

    asyncio.run(main())


def users(folder: Path, *arguments: str, stdin: str = "") -> str:
    ran = run("users", *arguments, "--data", str(folder), stdin=stdin)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@pytest.mark.slow
def test_a_closed_node_is_set_up_from_an_empty_folder(tmp_path: Path) -> None:
    assert users(tmp_path, "add", "alice", "--password-stdin", stdin="open sesame\n") == "added alice"
    key = users(tmp_path, "key", "Alice", "--label", "sensor")
    assert len(key) == 64
    assert users(tmp_path, "grant", "river", "stream_publish", "stream_subscribe", "--user", "alice") == (
        "river: alice may stream_publish, stream_subscribe"
    )
    users(tmp_path, "grant", "river", "read", "--everyone")
    users(tmp_path, "grant", "river", "read", "--everyone")
    listed = msgspec.json.decode(users(tmp_path, "list", "--json"))
    assert (listed["name"], listed["password"], listed["keys"][0]["label"]) == ("alice", True, "sensor")

    async def main() -> None:
        async with rest_node(tmp_path, access="closed") as (node, rest):
            login = await rest.ok("POST", "/login/password", {"username": "alice", "password": "open sesame"})
            alice = Rest(node, f"Bearer {login['token']}")
            assert (await alice.ask("POST", of("river") + "/data", raw=b"{}")).status == 200
            assert (await Rest(node, f"token {key}").ask("POST", of("river") + "/data", raw=b"{}")).status == 200
            assert (await rest.ask("POST", of("river") + "/data", raw=b"{}")).status == 403
            assert len((await rest.get(of("river") + "/data/partitions/0/last?count=5")).json) == 2
            assert len(await alice.ok("GET", of("river") + "/permissions/me")) == 3
            assert (await alice.ok("POST", "/streams", {"id": "other"}))["id"] == "other"
            # Added while the node runs: seen at the next login.
            await asyncio.to_thread(users, tmp_path, "add", "bob", "--password-stdin", stdin="pw\n")
            login = await rest.ok("POST", "/login/password", {"username": "bob", "password": "pw"})
            await asyncio.to_thread(users, tmp_path, "remove", "bob")
            assert (await rest.post("/login/password", {"username": "bob", "password": "pw"})).status == 401
            assert (await Rest(node, f"Bearer {login['token']}").get("/users/me")).status == 401
            refused = await asyncio.to_thread(run, "users", "grant", "x", "all", "--everyone", "--data", str(tmp_path))
            assert refused.returncode == 2
            assert "in use by another node" in refused.stderr

    asyncio.run(main())


@pytest.mark.parametrize(
    ("arguments", "stdin", "said"),
    [
        (("add", "0x12"), "", "40 hex digits"),
        (("add", ""), "", "1 to 256"),
        (("add", "alice", "--password-stdin"), "\n", "1 to 1024 bytes"),
        (("key", "nobody"), "", "no user nobody"),
        (("remove", "nobody"), "", "no user nobody"),
        (("grant", "s", "fly", "--everyone"), "", "Unknown operation"),
    ],
)
def test_commands_that_cannot_be_carried_out(tmp_path: Path, arguments: tuple[str, ...], stdin: str, said: str) -> None:
    ran = run("users", *arguments, "--data", str(tmp_path), stdin=stdin)
    assert ran.returncode == 2
    assert said in ran.stderr
