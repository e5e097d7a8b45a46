"""A client and the REST beside its node: logging in where that is needed, who may publish, read and get keys."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from catchment.client.streamr import Chain, KeyTiming, Received, Refused, StreamrClient, Undecryptable, now_ms
from catchment.client.streamr import rest as client_rest
from catchment.client.streamr.values import Arrived
from catchment.crypto.ethereum import Signer
from catchment.net.server import Node
from catchment.wire.streamr import keyexchange, message
from catchment.wire.streamr.keyexchange import GroupKeyRequest
from catchment.wire.streamr.partition import partition_of

from ..net.nodehelp import chain_of, running_node
from ..web.resthelp import ALICE, BOB, Rest, add_user, of

KEYS = {"alice": b"\x01" * 32, "bob": b"\x02" * 32, "carol": b"\x03" * 32}
STREAM = "closed/river"


@contextlib.asynccontextmanager
async def closed_node(folder: Path) -> AsyncIterator[tuple[Node, Rest]]:
    """Alice owns a stream of four partitions; Bob may subscribe, Carol may not."""
    async with asyncio.timeout(100), running_node(folder, access="closed") as node:
        add_user(node, ALICE.address)
        alice = await Rest(node).login(ALICE)
        await alice.ok("POST", "/streams", {"id": STREAM, "partitions": 4})
        grant = {"operation": "stream_subscribe", "user": BOB.address}
        assert (await alice.post(of(STREAM) + "/permissions", grant)).status in (200, 201)
        yield node, alice


def client(node: Node, who: str, **options: object) -> StreamrClient:
    return StreamrClient(node.addresses["ws"], private_key=KEYS[who], rsa_bits=2048, **options)  # type: ignore[arg-type]


def test_a_closed_node_is_logged_in_to_when_it_asks(tmp_path: Path) -> None:
    async def main() -> None:
        async with closed_node(tmp_path) as (node, _), client(node, "alice") as alice, client(node, "bob") as bob:
            assert await alice.publish(STREAM, 1) == "stored"
            assert [each.value async for each in bob.resend_last(STREAM, 5)] == [1]
            subscription = await bob.open_subscription(STREAM)
            await alice.publish(STREAM, 2)
            got = await subscription.next()
            assert isinstance(got, Received)
            assert got.value == 2

    asyncio.run(main())


def test_who_may_not_read_or_write_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with closed_node(tmp_path) as (node, _), client(node, "carol") as carol, client(node, "bob") as bob:
            with pytest.raises(Refused) as refused:
                await carol.open_subscription(STREAM)
            assert refused.value.code == "PERMISSION_DENIED"
            with pytest.raises(Refused) as refused:
                await anext(carol.resend_last(STREAM, 1))
            assert refused.value.code == "PERMISSION_DENIED"
            with pytest.raises(Refused) as refused:
                await bob.publish(STREAM, 1)
            assert refused.value.code in ("PERMISSION_DENIED", "REQUEST_FAILED")
            async with StreamrClient(node.addresses["ws"]) as nobody:
                with pytest.raises(Refused):
                    await nobody.open_subscription(STREAM)

    asyncio.run(main())


def test_a_message_of_someone_who_may_not_publish_is_dropped(tmp_path: Path) -> None:
    """Whatever the node lets through: the signature is good, the permission is not there."""

    async def main() -> None:
        async with closed_node(tmp_path) as (node, _), client(node, "alice") as alice, client(node, "bob") as bob:
            subscription = await bob.open_subscription(STREAM)
            raw = chain_of(STREAM, BOB).make("1", 1_700_000_000_000)
            subscription.live(Arrived(message.decode(raw), raw))
            await alice.publish(STREAM, 2)
            got = await subscription.next()
            assert isinstance(got, Received)
            assert (got.value, bob.forged) == (2, 1)

    asyncio.run(main())


def test_keys_go_to_those_the_node_lets_subscribe(tmp_path: Path) -> None:
    async def main() -> None:
        async with closed_node(tmp_path) as (node, _), client(node, "alice") as alice, client(node, "bob") as bob:
            await alice.publish(STREAM, 1, encrypt=True)
            assert [each.value async for each in bob.resend_last(STREAM, 5)] == [1]
            assert await alice._may_read(STREAM, BOB.address) is True
            assert await alice._may_read(STREAM, "0x" + "ab" * 20) is False
            with pytest.raises(Refused):  # the node does not even pass the question on
                async with client(node, "carol") as carol:
                    request = GroupKeyRequest("r", STREAM, "PEM", ("k",))
                    chain = Chain(keyexchange.stream_of(ALICE.address), 0, signer=Signer(KEYS["carol"]))
                    await carol.publish_raw(chain.make_exchange(request, now_ms()))

    asyncio.run(main())


def test_the_partition_is_chosen_by_key(tmp_path: Path) -> None:
    async def main() -> None:
        async with closed_node(tmp_path) as (node, _), client(node, "alice") as alice:
            for key in ("a", "b", "sensor-7", 5, -6):
                assert await alice.publish(STREAM, {"key": key}, partition_key=key) == "stored"
                partition = partition_of(key, 4)
                (got,) = [each async for each in alice.resend_last(STREAM, 1, partition=partition)]
                assert got.value == {"key": key}
                assert got.message.msg_id.stream_partition == partition
            with pytest.raises(Refused, match="partition"):
                await alice.publish(STREAM, 1, partition=4)

    asyncio.run(main())


def test_answers_are_remembered_and_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with closed_node(tmp_path) as (node, _):
            asked: list[str] = []
            blocking = client_rest.Rest._blocking

            def counted(self: client_rest.Rest, method: str, path: str, *rest: object) -> tuple[int, bytes]:
                asked.append(path)
                return blocking(self, method, path, *rest)  # type: ignore[arg-type]

            monkeypatch.setattr(client_rest.Rest, "_blocking", counted)
            rest = client_rest.Rest(client_rest.base_of(node.addresses["ws"]), signer=ALICE)
            await rest.try_to_login()
            asked.clear()
            found = await asyncio.gather(*(rest.is_publisher(STREAM, ALICE.address) for _ in range(5)))
            assert found == [True] * 5
            assert len([path for path in asked if ALICE.address in path]) == 1
            count = len(asked)
            assert await rest.is_publisher(STREAM, ALICE.address.upper().replace("0X", "0x")) is True
            assert len(asked) == count
            assert await rest.is_publisher(STREAM, BOB.address) is False
            assert await rest.is_subscriber(STREAM, BOB.address) is True
            assert await rest.partitions(STREAM) == 4
            count = len(asked)
            assert await rest.partitions(STREAM) == 4
            assert await rest.is_publisher(STREAM, BOB.address) is False
            assert len(asked) == count

    asyncio.run(main())


def test_an_open_node_is_asked_once_for_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            asked: list[str] = []
            blocking = client_rest.Rest._blocking

            def counted(self: client_rest.Rest, method: str, path: str, *rest: object) -> tuple[int, bytes]:
                asked.append(path)
                return blocking(self, method, path, *rest)  # type: ignore[arg-type]

            monkeypatch.setattr(client_rest.Rest, "_blocking", counted)
            rest = client_rest.Rest(client_rest.base_of(node.addresses["ws"]))
            for number in range(5):
                assert await rest.is_publisher("s", f"0x{number:040x}") is True
            assert len(asked) == 1

    asyncio.run(main())


def test_where_nobody_answers_nothing_is_known() -> None:
    async def main() -> None:
        rest = client_rest.Rest("http://127.0.0.1:9/api/v1", signer=ALICE)
        assert await rest.is_publisher("s", ALICE.address) is None
        assert await rest.partitions("s") == 1
        with pytest.raises(Refused, match="failed"):
            await rest.login()
        assert not await rest.try_to_login()
        with pytest.raises(Refused, match="private key"):
            await client_rest.Rest("http://127.0.0.1:9/api/v1").login()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("ws://127.0.0.1:7170", "http://127.0.0.1:7170/api/v1"),
        ("wss://example.org/api/v1/ws?x=1", "https://example.org/api/v1"),
    ],
)
def test_the_rest_address_is_beside_the_socket(url: str, base: str) -> None:
    assert client_rest.base_of(url) == base


def test_without_a_word_about_who_may_read_nobody_gets_a_key(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(100), running_node(tmp_path) as node:
            quick = KeyTiming(batch=0.01, retry=0.1, timeout=2)
            async with (
                StreamrClient(
                    node.addresses["ws"], private_key=KEYS["alice"], rest_url="http://127.0.0.1:9/api/v1"
                ) as alice,
                client(node, "bob", key_timing=quick) as bob,
            ):
                await alice.publish("s", 1, encrypt=True)
                subscription = await bob.open_subscription("s", events=True)
                await alice.publish("s", 2, encrypt=True)
                got = await subscription.next()
                assert isinstance(got, Undecryptable)

    asyncio.run(main())
