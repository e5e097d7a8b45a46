"""Encrypted streams over a real node: who can read what, and what a node never sees."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from catchment import model
from catchment.client.streamr import (
    Chain,
    Happening,
    KeyStore,
    KeyTiming,
    Last,
    Received,
    Refused,
    StreamrClient,
    Subscription,
    Undecryptable,
    now_ms,
)
from catchment.client.streamr.keys import Group
from catchment.client.streamr.values import Arrived
from catchment.crypto import groupkeys
from catchment.crypto.ethereum import Signer
from catchment.errors import UserError
from catchment.net.server import Node
from catchment.wire.streamr import keyexchange, message
from catchment.wire.streamr.keyexchange import (
    Form,
    GroupKeyAnnounce,
    GroupKeyErrorResponse,
    GroupKeyRequest,
    GroupKeyResponse,
    KeyRange,
    SealedKey,
)

from ..net.nodehelp import running_node

PUBLISHER = b"\x21" * 32
READER = b"\x22" * 32
OTHER = b"\x23" * 32
STREAM = "secret/river"
QUICK = KeyTiming(batch=0.01, retry=0.2, timeout=30)
HURRIED = KeyTiming(batch=0.01, retry=0.05, timeout=0.3)
PAIR = rsa.generate_private_key(65537, 2048)
PEM = groupkeys.public_pem(PAIR)


def client(node: Node, key: bytes | None, **options: Any) -> StreamrClient:
    return StreamrClient(
        node.addresses["ws"], private_key=key, **{"rsa_bits": 2048, "key_timing": QUICK, "attempts": 20, **options}
    )


async def take(messages: Subscription, count: int) -> list[Happening]:
    async with asyncio.timeout(60):
        return [await anext(messages) for _ in range(count)]


def contents(happenings: list[Happening]) -> list[object]:
    assert all(isinstance(each, Received) for each in happenings), happenings
    return [each.value for each in happenings if isinstance(each, Received)]


@contextlib.asynccontextmanager
async def reading(reader: StreamrClient, **options: Any) -> AsyncGenerator[Subscription, None]:
    """A subscription that is there, with its events."""
    subscription = await reader.open_subscription(STREAM, events=True, **options)
    try:
        yield subscription
    finally:
        await subscription.close()


def run(main: Callable[[Node], Any], folder: Path, **settings: object) -> None:
    async def with_node() -> None:
        async with asyncio.timeout(120), running_node(folder, **settings) as node:
            await main(node)

    asyncio.run(with_node())


class ByHand(StreamrClient):
    """A client that also says by hand what it likes on key-exchange streams, and keeps what it is told."""

    async def tell(self, to: str, exchange: keyexchange.Exchange, *, signer: Signer | None = None) -> None:
        chain = Chain(keyexchange.stream_of(to), 0, signer=signer or self._signer)
        await self.publish_raw(chain.make_exchange(exchange, now_ms()))


@contextlib.asynccontextmanager
async def by_hand(node: Node, key: bytes) -> AsyncGenerator[tuple[ByHand, Callable[[], Any]], None]:
    """A subscriber that exchanges keys by hand: the client, and what comes to its key-exchange stream."""
    async with ByHand(node.addresses["ws"], private_key=key) as hand:
        yield hand, await overhear(hand, hand.address)


async def overhear(
    hand: StreamrClient, address: str | None, *, of: Callable[[str], str] = keyexchange.stream_of
) -> Callable[[], Any]:
    """What is sent to the key-exchange stream of an address, one at a call."""
    stream = await hand.open_subscription(of(address or ""))

    async def told() -> keyexchange.Exchange:
        async with asyncio.timeout(30):
            got = await stream.next()
        assert isinstance(got, Received)
        return keyexchange.read(got.message)

    return told


def test_a_late_subscriber_reads_everything_and_the_node_never_sees_a_key(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, PUBLISHER) as publisher:
            for number in range(3):
                assert await publisher.publish(STREAM, {"secret": number}, encrypt=True) == "stored"
            async with client(node, READER) as reader, reading(reader, resend=Last(10)) as messages:
                assert contents(await take(messages, 3)) == [{"secret": number} for number in range(3)]
                await publisher.publish(STREAM, {"secret": 3}, encrypt=True)
                assert contents(await take(messages, 1)) == [{"secret": 3}]
            key = publisher.keystore.current(STREAM)
        assert key is not None
        await node.seal()
        kept = b"".join(
            await asyncio.to_thread(lambda: [each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()])
        )
        rows = [row.entry for row in node.store.read(0, 1000)]
        assert {row.kind for row in rows} == {model.Kind.MESSAGE, model.Kind.KEYEXCHANGE}
        everything = kept + b"".join(row.raw for row in rows)
        assert key.key_id.encode() in everything  # the search would find something
        assert b"secret/river" in everything
        for form in (key.key, key.key.hex().encode(), key.key.hex().upper().encode(), b'{\\"secret\\"', b'{"secret"'):
            assert form not in everything

    run(main, tmp_path, seal_seconds=3600.0)


def test_what_comes_before_its_key_waits_and_goes_in_order(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with (
            client(node, PUBLISHER) as publisher,
            client(node, OTHER) as plain,
            client(node, READER) as reader,
            reading(reader) as messages,
        ):
            sent = [publisher.publish(STREAM, number, encrypt=number != 1) for number in range(4)]
            for each in sent:
                await each
            await plain.publish(STREAM, {"of": "another"})
            got = contents(await take(messages, 5))
            # Message 1 is readable at once, and yet waits behind message 0; another publisher does not.
            assert [each for each in got if isinstance(each, int)] == [0, 1, 2, 3]

    run(main, tmp_path)


def test_rotation_needs_no_new_request(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, PUBLISHER) as publisher, client(node, READER) as reader, reading(reader) as messages:
            await publisher.publish(STREAM, 0, encrypt=True)
            await take(messages, 1)
            assert reader._exchange is not None
            asked = len(reader._exchange._asked)
            first = publisher.keystore.current(STREAM)
            new_id = await publisher.rotate_key(STREAM)
            for number in range(1, 4):
                await publisher.publish(STREAM, number, encrypt=True)
            got = await take(messages, 3)
            assert contents(got) == [1, 2, 3]
            assert first is not None
            ids = [each.message.group_key_id for each in got if isinstance(each, Received)]
            assert ids == [first.key_id, new_id, new_id]
            assert len(reader._exchange._asked) == asked

    run(main, tmp_path)


def test_a_late_joiner_reads_across_rotations(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, PUBLISHER) as publisher, client(node, READER) as reader:
            for number in range(9):
                await publisher.publish(STREAM, number, encrypt=True)
                if number % 3 == 0:
                    await publisher.rotate_key(STREAM)
                if number == 5:
                    await publisher.rekey(STREAM)
            async with reading(reader, resend=Last(100)) as messages:
                assert contents(await take(messages, 9)) == list(range(9))

    run(main, tmp_path)


def test_an_announced_key_is_there_before_it_is_needed(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, PUBLISHER) as publisher, client(node, READER) as reader, reading(reader) as messages:
            await publisher.publish(STREAM, 0, encrypt=True)
            await take(messages, 1)
            assert reader._exchange is not None
            asked = len(reader._exchange._asked)
            assert await publisher.rekey(STREAM) == 1
            await publisher.publish(STREAM, 1, encrypt=True)
            (got,) = await take(messages, 1)
            assert isinstance(got, Received)
            assert got.value == 1
            assert got.message.new_group_key is None
            assert len(reader._exchange._asked) == asked

    run(main, tmp_path)


def test_whoever_may_not_read_any_more_gets_no_new_key(tmp_path: Path) -> None:
    allowed = {Signer(READER).address, Signer(OTHER).address}

    async def main(node: Node) -> None:
        async with (
            client(node, PUBLISHER, allow=lambda stream, address: address in allowed) as publisher,
            client(node, READER, key_timing=KeyTiming(batch=0.01, retry=0.2, timeout=3)) as reader,
            client(node, OTHER) as other,
            reading(reader) as messages,
            reading(other) as more,
        ):
            await publisher.publish(STREAM, 0, encrypt=True)
            assert contents(await take(more, 1)) == [0]
            key = publisher.keystore.current(STREAM)
            assert key is not None
            # What it could read it still can.
            reader._exchange.learn(Group(STREAM, publisher.address or ""), key.key, key_id=key.key_id)  # type: ignore[union-attr]
            assert contents(await take(messages, 1)) == [0]
            allowed.remove(Signer(READER).address)
            assert await publisher.rekey(STREAM) == 1
            await publisher.publish(STREAM, 1, encrypt=True)
            (got,) = await take(messages, 1)
            assert isinstance(got, Undecryptable)
            assert "No key came" in got.reason
            assert contents(await take(more, 1)) == [1]

    run(main, tmp_path)


def test_a_publisher_says_why_it_gives_no_key(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with (
            client(node, PUBLISHER, allow=lambda stream, address: False) as publisher,
            by_hand(node, READER) as made,
        ):
            hand, told = made
            await publisher.publish(STREAM, 0, encrypt=True)
            await hand.tell(publisher.address or "", GroupKeyRequest("r", STREAM, PEM, ("k",)))
            error = await told()
            assert isinstance(error, GroupKeyErrorResponse)
            assert "not known to be a subscriber" in error.message
            assert error.code == "INVALID_GROUP_KEY_REQUEST"

    run(main, tmp_path)


def test_history_is_decrypted_and_what_has_no_key_is_handed_out_as_it_is(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, PUBLISHER) as publisher:
            for number in range(3):
                await publisher.publish(STREAM, number, encrypt=number != 1)
                await publisher.rekey(STREAM)
            async with client(node, READER) as reader:
                assert [each.value async for each in reader.resend_last(STREAM, 9)] == [0, 1, 2]
        async with client(node, OTHER, key_timing=HURRIED) as late:
            got = [each async for each in late.resend_range(STREAM, model.FIRST_REF)]
            assert [each.encrypted for each in got] == [True, False, True]
            assert got[1].value == 1

    run(main, tmp_path)


def test_a_key_that_does_not_come_is_said_and_what_is_readable_goes_on(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, READER, key_timing=HURRIED) as reader, reading(reader) as messages:
            async with client(node, PUBLISHER) as publisher:
                await publisher.publish(STREAM, 0, encrypt=True)
                await publisher.publish(STREAM, 1)
                publisher._exchange.close()  # type: ignore[union-attr]  # it answers nothing any more
                lost, readable = await take(messages, 2)
            assert isinstance(lost, Undecryptable)
            assert "No key came" in lost.reason
            assert lost.received.message.encryption_type is message.EncryptionType.AES
            assert contents([readable]) == [1]

    run(main, tmp_path)


def test_a_publisher_that_comes_back_is_asked_again(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        store = KeyStore()
        async with client(node, PUBLISHER, keystore=store) as publisher:
            await publisher.publish(STREAM, 0, encrypt=True)
        async with client(node, READER) as reader, reading(reader, resend=Last(1)) as messages:
            async with client(node, OTHER) as third:
                told = await overhear(third, Signer(PUBLISHER).address)
                assert isinstance(await told(), GroupKeyRequest)  # which nobody answers
            async with client(node, PUBLISHER, keystore=store) as again:
                await again.serve_keys()
                assert contents(await take(messages, 1)) == [0]

    run(main, tmp_path)


def test_too_many_waiting_messages_are_given_up_oldest_first(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, PUBLISHER, allow=lambda stream, address: False) as publisher:
            for number in range(5):
                await publisher.publish(STREAM, number, encrypt=True)
            first = await anext(publisher.resend_last(STREAM, 5))
            async with client(node, READER, max_waiting=3) as reader, reading(reader, resend=Last(5)) as messages:
                lost = await take(messages, 2)
                assert [type(each) for each in lost] == [Undecryptable, Undecryptable]
                assert isinstance(lost[0], Undecryptable)
                assert lost[0].received.raw == first.raw
                assert "Too many" in lost[0].reason

    run(main, tmp_path)


def test_without_a_private_key_encrypted_messages_are_said_to_be_unreadable(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, PUBLISHER) as publisher, client(node, None) as reader, reading(reader) as messages:
            await publisher.publish(STREAM, 0, encrypt=True)
            (got,) = await take(messages, 1)
            assert isinstance(got, Undecryptable)
            assert "no private key" in got.reason
            with pytest.raises(UserError, match="private key"):
                await reader.publish(STREAM, 0, encrypt=True)
            with pytest.raises(UserError, match="private key"):
                await reader.serve_keys()

    run(main, tmp_path)


def test_only_json_is_encrypted(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, PUBLISHER) as publisher:
            with pytest.raises(UserError, match="must be JSON"):
                await publisher.publish(STREAM, "no JSON", encrypt=True)
            assert await publisher.publish(STREAM, '"JSON"', encrypt=True) == "stored"

    run(main, tmp_path)


def test_a_publisher_reads_its_own_messages(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, PUBLISHER) as publisher, reading(publisher) as messages:
            for number in range(3):
                await publisher.rotate_key(STREAM)
                await publisher.publish(STREAM, number, encrypt=True)
            assert contents(await take(messages, 3)) == [0, 1, 2]

    run(main, tmp_path)


def test_a_wrong_key_is_noticed(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        store = KeyStore()
        async with client(node, PUBLISHER) as publisher, client(node, READER, keystore=store) as reader:
            await publisher.publish(STREAM, {"a": "long enough to be no JSON by chance"}, encrypt=True)
            key = publisher.keystore.current(STREAM)
            assert key is not None
            store.remember(STREAM, publisher.address or "", b"\x00" * 32, key_id=key.key_id)
            async with reading(reader, resend=Last(1)) as messages:
                (got,) = await take(messages, 1)
                assert isinstance(got, Undecryptable)
                assert "wrong key" in got.reason

    run(main, tmp_path)


def test_forged_and_unasked_for_answers_are_passed_over(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, READER) as reader, client(node, PUBLISHER) as publisher, by_hand(node, OTHER) as made:
            forger, _ = made
            async with reading(reader) as messages:
                publisher._exchange.server._allowed = _never  # type: ignore[union-attr]
                told = await overhear(forger, publisher.address)
                await publisher.publish(STREAM, 0, encrypt=True)
                request_id = (await told()).request_id
                exchange = reader._exchange
                assert exchange is not None
                key = publisher.keystore.current(STREAM)
                assert key is not None
                pem = groupkeys.public_pem(await exchange._key_pair())
                sealed = SealedKey(groupkeys.seal(groupkeys.load_public_key(pem), b"\x66" * 32), key.key_id)
                # The right request id, the right reader's key, the wrong publisher.
                await forger.tell(reader.address or "", GroupKeyResponse(request_id, STREAM, (sealed,)))
                # In the publisher's name, under another signature. (A node would refuse it.)
                chain = Chain(keyexchange.stream_of(reader.address or ""), 0, signer=Signer(OTHER))
                raw = chain.make_exchange(GroupKeyResponse(request_id, STREAM, (sealed,)), now_ms())
                raw = raw.replace((forger.address or "").encode(), (publisher.address or "").encode())
                exchange.on_message(Arrived(message.decode(raw), raw))
                # For a stream nobody reads.
                await forger.tell(reader.address or "", GroupKeyAnnounce("elsewhere", (sealed,)))
                # A request id nobody gave out.
                await forger.tell(reader.address or "", GroupKeyResponse("mine", STREAM, (sealed,)))
                # No request id, as clients 3.x answer, of a publisher nobody asked.
                timed = SealedKey(sealed.sealed, start=0)
                await forger.tell(reader.address or "", GroupKeyResponse("", STREAM, (timed,), Form.OBJECT))
                publisher._exchange.server._allowed = _always  # type: ignore[union-attr]
                assert contents(await take(messages, 1)) == [0]
                assert exchange.ignored == 5

    run(main, tmp_path)


async def _never(stream_id: str, address: str) -> bool:
    return False


async def _always(stream_id: str, address: str) -> bool:
    return True


def test_a_node_refuses_a_forged_answer(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, PUBLISHER) as publisher:
            chain = Chain(keyexchange.stream_of(Signer(READER).address), 0, signer=Signer(PUBLISHER))
            raw = chain.make_exchange(GroupKeyResponse("r", STREAM, (SealedKey("00", "k"),)), now_ms())
            with pytest.raises(Refused, match="signature"):
                await publisher.publish_raw(raw.replace(b'\\"00\\"', b'\\"01\\"'))

    run(main, tmp_path)


def test_requests_are_answered_in_the_form_they_are_asked_in(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, PUBLISHER) as publisher, by_hand(node, READER) as made:
            hand, told = made
            stamps = []
            for number in range(3):
                stamps.append(now_ms() + number)
                await publisher.publish(STREAM, number, encrypt=True, timestamp=stamps[-1])
                await publisher.rotate_key(STREAM)
            keys = publisher.keystore._published[STREAM]
            to = publisher.address or ""
            await hand.tell(to, GroupKeyRequest("a", STREAM, PEM, (keys[0].key.key_id, "none", keys[1].key.key_id)))
            answer = await told()
            assert (answer.request_id, answer.form) == ("a", Form.ARRAY)
            assert [each.key_id for each in answer.keys] == [each.key.key_id for each in keys[:2]]
            assert [groupkeys.unseal(PAIR, each.sealed) for each in answer.keys] == [each.key.key for each in keys[:2]]
            error = await told()
            assert isinstance(error, GroupKeyErrorResponse)
            assert (error.request_id, error.key_ids, error.form) == ("a", ("none",), Form.ARRAY)
            assert error.code == "INVALID_GROUP_KEY_REQUEST"
            # By time: the newest; a moment; everything.
            for span, expected in (
                (None, keys[-1:]),
                (KeyRange(stamps[1] + 0, stamps[1]), [each for each in keys if each.start <= stamps[1]][-1:]),
                (KeyRange(0, now_ms() + 1000), keys),
            ):
                await hand.tell(to, GroupKeyRequest("o", STREAM, PEM, range=span, form=Form.OBJECT))
                answer = await told()
                assert (answer.request_id, answer.form) == ("o", Form.OBJECT)
                assert [each.start for each in answer.keys] == [each.start for each in expected]
                assert [groupkeys.unseal(PAIR, each.sealed) for each in answer.keys] == [
                    each.key.key for each in expected
                ]
            # Having asked by time, it is told about a new key as a reset.
            assert await publisher.rekey(STREAM) == 1
            reset = await told()
            assert isinstance(reset, GroupKeyAnnounce)
            assert reset.form is Form.OBJECT
            current = publisher.keystore.current(STREAM)
            assert current is not None
            assert groupkeys.unseal(PAIR, reset.keys[0].sealed) == current.key

    run(main, tmp_path)


@pytest.mark.parametrize(
    ("exchange", "code", "text"),
    [
        (GroupKeyRequest("r", "elsewhere", PEM, ("k",)), "INVALID_GROUP_KEY_REQUEST", "no keys of stream"),
        (GroupKeyRequest("r", STREAM, "no PEM", ("k",)), "INVALID_GROUP_KEY_REQUEST", "PEM"),
        (GroupKeyRequest("r", STREAM, PEM, ("k",)), "INVALID_GROUP_KEY_REQUEST", "no such key"),
        (GroupKeyRequest("r", STREAM, PEM, ()), "INVALID_GROUP_KEY_REQUEST", "no such key"),
        (
            GroupKeyRequest("r", STREAM, PEM, range=KeyRange(0, 1), form=Form.OBJECT),
            "INVALID_GROUP_KEY_REQUEST",
            "no such key",
        ),
    ],
    ids=["another stream", "no public key", "unknown key", "no key", "before the first key"],
)
def test_a_request_that_cannot_be_met_is_answered_with_an_error(
    tmp_path: Path, exchange: GroupKeyRequest, code: str, text: str
) -> None:
    async def main(node: Node) -> None:
        async with client(node, PUBLISHER) as publisher, by_hand(node, READER) as made:
            hand, told = made
            await publisher.publish(STREAM, 0, encrypt=True)
            await hand.tell(publisher.address or "", exchange)
            error = await told()
            assert isinstance(error, GroupKeyErrorResponse)
            assert (error.request_id, error.code, error.form) == ("r", code, exchange.form)
            assert text in error.message
            # It still answers.
            key = publisher.keystore.current(STREAM)
            assert key is not None
            await hand.tell(publisher.address or "", GroupKeyRequest("s", STREAM, PEM, (key.key_id,)))
            assert isinstance(await told(), GroupKeyResponse)

    run(main, tmp_path)


def encrypted(chain: Chain, content: str, under: bytes, timestamp: int) -> bytes:
    """A message of the publisher as the older form has it: AES without a key id."""
    plain = message.decode(chain.make(content, timestamp))
    sealed = msgspec.structs.replace(
        plain,
        encryption_type=message.EncryptionType.AES,
        content=groupkeys.encrypt(under, b"\x01" * 16, content.encode()),
    )
    signature = Signer(PUBLISHER).sign(message.signed_payload(sealed))
    return message.encode(msgspec.structs.replace(sealed, signature=signature))


def test_a_reader_understands_a_publisher_of_clients_3(tmp_path: Path) -> None:
    """It listens on its bare address, repeats no request id, and dates a key after the message it made it for."""
    key = b"\x33" * 32

    async def main(node: Node) -> None:
        async with by_hand(node, PUBLISHER) as made, client(node, READER) as reader, reading(reader) as messages:
            hand, _ = made
            told = await overhear(hand, hand.address, of=keyexchange.legacy_stream_of)
            when = now_ms() - 1000
            await hand.publish_raw(encrypted(Chain(STREAM, 0, signer=Signer(PUBLISHER)), '{"n":1}', key, when))
            request = await told()
            assert isinstance(request, GroupKeyRequest)
            assert request.range is not None
            assert request.range.start <= when < when + 5 < request.range.end
            public = groupkeys.load_public_key(request.public_key)
            answer = GroupKeyResponse(
                "", STREAM, (SealedKey(groupkeys.seal(public, key), start=when + 5),), Form.OBJECT
            )
            await hand.tell(reader.address or "", answer)
            assert contents(await take(messages, 1)) == [{"n": 1}]

    run(main, tmp_path)


def test_a_reader_understands_a_publisher_of_the_older_form(tmp_path: Path) -> None:
    """Client 4.x: AES without a key id, keys by time, NEW_KEY_AND_AES left out of message 32; reset."""
    key, later = b"\x31" * 32, b"\x32" * 32
    signer = Signer(PUBLISHER)

    async def main(node: Node) -> None:
        async with by_hand(node, PUBLISHER) as made, client(node, READER) as reader, reading(reader) as messages:
            hand, told = made
            chain = Chain(STREAM, 0, signer=signer)
            await hand.publish_raw(encrypted(chain, '{"n":1}', key, now_ms()))
            request = await told()
            assert isinstance(request, GroupKeyRequest)
            assert request.form is Form.OBJECT
            assert request.range is not None
            public = groupkeys.load_public_key(request.public_key)
            start = request.range.start
            answer = GroupKeyResponse(
                request.request_id, STREAM, (SealedKey(groupkeys.seal(public, key), start=start),), Form.OBJECT
            )
            await hand.tell(reader.address or "", answer)
            await hand.tell(reader.address or "", answer)  # another instance of the publisher answers too
            assert contents(await take(messages, 1)) == [{"n": 1}]
            new_start = now_ms() + 1
            reset = GroupKeyAnnounce(STREAM, (SealedKey(groupkeys.seal(public, later), start=new_start),), Form.OBJECT)
            await hand.tell(reader.address or "", reset)
            await hand.publish_raw(encrypted(chain, '{"n":2}', later, new_start))
            assert contents(await take(messages, 1)) == [{"n": 2}]

    run(main, tmp_path)


def test_keys_outlive_a_client_in_their_file(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        folder = tmp_path / "keys"
        async with client(node, PUBLISHER, keystore=folder / "publisher.json") as publisher:
            await publisher.publish(STREAM, 0, encrypt=True)
            async with (
                client(node, READER, keystore=folder / "reader.json") as reader,
                reading(reader, resend=Last(1)) as messages,
            ):
                assert contents(await take(messages, 1)) == [0]
        modes = await asyncio.to_thread(lambda: {path.stat().st_mode & 0o777 for path in folder.iterdir()})
        assert modes == {0o600}
        # Nobody is there to ask any more.
        async with (
            client(node, READER, keystore=folder / "reader.json") as reader,
            reading(reader, resend=Last(1)) as messages,
        ):
            assert contents(await take(messages, 1)) == [0]
        async with client(node, PUBLISHER, keystore=folder / "publisher.json") as publisher:
            await publisher.publish(STREAM, 1, encrypt=True)
        assert len(KeyStore(folder / "publisher.json")._published[STREAM]) == 1

    run(main, tmp_path / "node")
