"""A closed node over WebSockets, as REST arranged it: tokens, keys of v0, signers, and permissions that end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from catchment.core.accounts import SESSION_US
from catchment.net.ingest import now_us
from catchment.net.server import Node

from ..net.nodehelp import STREAMR, Peer, chain_of, connected, messages
from .resthelp import ALICE, BOB, Rest, add_user, of, rest_node

ACKNOWLEDGED = STREAMR + "&publishAck=1"
OLDEST = "/api/v1/ws"


@contextlib.asynccontextmanager
async def closed_node(folder: Path) -> AsyncIterator[tuple[Node, Rest, Rest]]:
    """A node, nobody, and Alice, who owns the stream "s"."""
    async with rest_node(folder, access="closed") as (node, rest):
        add_user(node, ALICE.address)
        alice = await rest.login(ALICE)
        await alice.ok("POST", "/streams", {"id": "s"})
        yield node, rest, alice


def token_of(rest: Rest) -> str:
    return (rest.authorization or "").removeprefix("Bearer ")


async def old(peer: Peer, **request: object) -> None:
    peer.send(msgspec.json.encode(request))


def test_subscribing_needs_a_token_of_someone_who_may(tmp_path: Path) -> None:
    async def main() -> None:
        async with closed_node(tmp_path) as (node, rest, alice), connected(node) as peer:
            bob = await rest.login(BOB)
            for token, code in ((None, "PERMISSION_DENIED"), (token_of(bob), "PERMISSION_DENIED")):
                answer = await peer.ask([2, 9, "r", "s", 0, token])
                assert answer == [2, 7, "r", "You are not allowed to subscribe to stream s", code]
            assert (await peer.ask([2, 9, "r", "s", 0, "nonsense"]))[4] == "AUTHENTICATION_FAILED"
            assert await peer.ask([2, 9, "r", "no", 0, None]) == [2, 7, "r", "Stream no not found.", "NOT_FOUND"]
            assert (await peer.ask([2, 11, "r", "s", 0, 5, None]))[4] == "PERMISSION_DENIED"
            assert (await peer.ask([2, 9, "r", "s", 1, token_of(alice)]))[4] == "REQUEST_FAILED"
            # The connection has lived through all of it.
            assert await peer.ask([2, 9, "r", "s", 0, token_of(alice)]) == [2, 2, "r", "s", 0]
            assert await peer.ask([2, 11, "r", "s", 0, 5, token_of(alice)]) == [2, 6, "r", "s", 0]

    asyncio.run(main())


def test_publishing_needs_a_signer_or_a_session_that_may(tmp_path: Path) -> None:
    async def main() -> None:
        async with closed_node(tmp_path) as (node, rest, alice), connected(node, ACKNOWLEDGED) as peer:
            bob = await rest.login(BOB)
            signed, unsigned = messages("s", 1)[0], messages("s", 1, signer=None)[0]
            assert (await peer.ask(b'[2,8,"r",%b,null]' % signed))[3] == "stored"
            for token in ("null", f'"{token_of(bob)}"'):
                assert (await peer.ask(b'[2,8,"r",%b,%b]' % (unsigned, token.encode())))[4] == "PERMISSION_DENIED"
            assert (await peer.ask(b'[2,8,"r",%b,"%b"]' % (unsigned, token_of(alice).encode())))[3] == "stored"
            foreign = messages("s", 1, signer=BOB)[0]
            refused = await peer.ask(b'[2,8,"r",%b,"%b"]' % (foreign, token_of(alice).encode()))
            assert refused[4] == "PERMISSION_DENIED"
            found = (await alice.get(of("s") + "/data/partitions/0/last?count=9")).json
            assert len(found) == 2

    asyncio.run(main())


def test_an_address_is_no_stream_that_everyone_may_write_to(tmp_path: Path) -> None:
    """Clients 3.x exchange keys on the bare address, which needs no permission; nothing else goes there."""

    async def main() -> None:
        async with closed_node(tmp_path) as (node, rest, _), connected(node, ACKNOWLEDGED) as peer:
            stream = BOB.address.lower()
            for signer in (None, BOB):
                answer = await peer.ask(b'[2,8,"r",%b,null]' % messages(stream, 1, signer=signer)[0])
                assert answer == [2, 7, "r", f"Stream {stream} not found.", "NOT_FOUND"]
            async with connected(node, OLDEST) as oldest:
                await old(oldest, type="publish", stream=stream, msg="{}")
                assert "not found" in str(await oldest.next())
            posted = await rest.ask("POST", of(stream) + "/data", {})
            assert posted.status == 404
            await peer.subscribe(stream)

    asyncio.run(main())


def test_keys_inside_requests_of_control_0_authenticate(tmp_path: Path) -> None:
    async def main() -> None:
        async with closed_node(tmp_path) as (node, _, alice), connected(node, OLDEST) as peer:
            reader = (await alice.ok("POST", of("s") + "/keys", {"permission": "read"}))["id"]
            writer = (await alice.ok("POST", of("s") + "/keys", {"permission": "write"}))["id"]
            hers = (await alice.ok("POST", "/users/me/keys", {}))["id"]
            for key in (writer, "nonsense", None):
                await old(peer, type="subscribe", stream="s", authKey=key)
                assert (await peer.next())[1] == 7
            await old(peer, type="subscribe", stream="s", authKey=reader)
            assert (await peer.next())[:2] == [0, 2]
            await old(peer, type="publish", stream="s", msg='{"by":"reader"}', authKey=reader)
            assert (await peer.next())[1] == 7
            for key in (writer, hers):
                await old(peer, type="publish", stream="s", msg='{"by":"one who may"}', authKey=key)
                answer = await peer.next()
                assert answer[1] == 0
                assert "one who may" in str(answer)

    asyncio.run(main())


def test_a_token_that_has_expired_opens_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with closed_node(tmp_path) as (node, _, alice), connected(node) as peer:
            assert (await peer.ask([2, 9, "r", "s", 0, token_of(alice)]))[1] == 2
            node.access.accounts.open_session(ALICE.address, "old", now_us() - SESSION_US)
            assert (await peer.ask([2, 11, "r", "s", 0, 5, "old"]))[4] == "AUTHENTICATION_FAILED"

    asyncio.run(main())


def test_a_deleted_stream_is_nobody_elses_to_create_and_read(tmp_path: Path) -> None:
    async def refuse_bob(rest: Rest) -> None:
        refused = await (await rest.login(BOB)).post("/streams", {"id": "s"})
        assert (refused.status, refused.code) == (403, "NOT_PERMITTED")

    async def main() -> None:
        async with closed_node(tmp_path) as (node, rest, alice), connected(node, ACKNOWLEDGED) as peer:
            add_user(node, BOB.address)
            assert (await peer.ask(b'[2,8,"r",%b,null]' % messages("s", 1)[0]))[3] == "stored"
            assert (await alice.delete(of("s"))).status == 204
            await refuse_bob(rest)
        async with rest_node(tmp_path, access="closed") as (node, rest):
            await refuse_bob(rest)
            alice = await rest.login(ALICE)
            await alice.ok("POST", "/streams", {"id": "s"})
            assert len((await alice.get(of("s") + "/data/partitions/0/last")).json) == 1

    asyncio.run(main())


def test_a_key_that_is_deleted_ends_the_subscriptions_it_opened_and_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with closed_node(tmp_path) as (node, _, alice), connected(node, OLDEST) as first, connected(node) as hers:
            keys = [await alice.ok("POST", of("s") + "/keys", {"permission": "read"}) for _ in range(2)]
            async with connected(node, OLDEST) as second:
                for peer, key in zip((first, second), keys, strict=True):
                    await old(peer, type="subscribe", stream="s", authKey=key["id"])
                    assert (await peer.next())[1] == 2
                assert (await alice.delete(of("s") + f"/keys/{keys[0]['keyId']}")).status == 204
                assert "not allowed to subscribe" in str(await first.next())
                hers.publish(chain_of("s").make('{"n":1}', now_us() // 1000))
                assert '{\\"n\\":1}' in msgspec.json.encode(await second.next()).decode()
                await old(first, type="unsubscribe", stream="s")
                assert "Not subscribed to stream s" in str(await first.next())

    asyncio.run(main())


def test_a_permission_that_is_taken_back_ends_the_subscription_and_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with closed_node(tmp_path) as (node, rest, alice), connected(node) as hers, connected(node) as his:
            granted = await alice.ok(
                "POST", of("s") + "/permissions", {"operation": "stream_subscribe", "user": BOB.address}
            )
            bob = await rest.login(BOB)
            assert (await hers.ask([2, 9, "r", "s", 0, token_of(alice)]))[1] == 2
            assert (await his.ask([2, 9, "r", "s", 0, token_of(bob)]))[1] == 2
            chain = chain_of("s")
            hers.publish(chain.make('{"n":1}', now_us() // 1000))
            for peer in (hers, his):
                assert '{"n":1}' in str(await peer.next())
            assert (await alice.delete(of("s") + f"/permissions/{granted['id']}")).status == 204
            assert await his.next() == [
                2,
                7,
                "",
                "You are not allowed to subscribe to stream s",
                "PERMISSION_DENIED",
            ]
            hers.publish(chain.make('{"n":2}', now_us() // 1000 + 1))
            assert '{"n":2}' in str(await hers.next())
            # What came for him since is nothing: the next he hears is the answer to his own question.
            assert (await his.ask([2, 10, "u", "s", 0]))[3] == "Not subscribed to stream s partition 0!"
            assert (await alice.delete(of("s"))).status == 204
            assert (await hers.next())[4] == "NOT_FOUND"

    asyncio.run(main())
