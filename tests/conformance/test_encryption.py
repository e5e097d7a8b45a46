"""Encrypted streams: keys that both sides were given, and keys that one asks the other for through the node."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from catchment.client.streamr import KeyStore
from catchment.crypto.ethereum import Signer
from catchment.crypto.groupkeys import GroupKey

from ..net.processes import NodeProcess
from . import ours, wire
from .cases import CALLBACKS, case, lacking, numbered
from .clients import Client
from .conftest import OpenClient, address

pytestmark = pytest.mark.clients

NO_ENCRYPTION = lacking("Encryption came with 2.0.", *CALLBACKS)
NO_EXCHANGE = (
    NO_ENCRYPTION
    | lacking("2.2.7 has no key exchange.", "2.2.7")
    | lacking("4.1.6 asks for keys with objects, and its own check of what comes in takes arrays only.", "4.1.6")
)
NO_GIVEN_KEYS = NO_ENCRYPTION | lacking("5.x names keys by ids and asks for them.", "5.2.1", "5.4.1")
KEY, NEXT_KEY = "0b" * 32, "0c" * 32


@pytest.fixture(scope="module")
def subscriber_of(open_client: OpenClient) -> Callable[[str], Client]:
    """A second client of a version, with a key of its own."""
    known: dict[str, Client] = {}

    def of(version: str) -> Client:
        if version not in known:
            known[version] = open_client(version, name="b")
        return known[version]

    return of


@case("reads with a key it was given what its like encrypts", NO_GIVEN_KEYS)
def test_a_key_both_were_given(
    version: str, client: Client, subscriber_of: Callable[[str], Client], node: NodeProcess, stream: str
) -> None:
    inbox = subscriber_of(version).subscribe(stream, groupKeys={client.ask("address"): KEY})
    [sent] = wire.heard(node, stream, 1, lambda: client.publish(stream, {"n": 0}, groupKey=KEY))
    assert "n" not in sent.content
    assert inbox.contents_until({"n": 0}) == [{"n": 0}]


@case("asks its like for the key of an encrypted stream, and reads it", NO_EXCHANGE)
def test_a_key_is_asked_for(
    version: str, client: Client, subscriber_of: Callable[[str], Client], node: NodeProcess, stream: str
) -> None:
    inbox = subscriber_of(version).subscribe(stream)

    def publish() -> None:
        client.publish(stream, {"n": 0}, groupKey=KEY)
        client.publish(stream, {"n": 1}, {"n": 2})

    assert not any("n" in made.content for made in wire.heard(node, stream, 3, publish))
    assert inbox.contents_until({"n": 2}) == numbered(3)


@case("goes on reading when the publisher takes a new key", NO_EXCHANGE)
def test_a_key_is_changed(version: str, client: Client, subscriber_of: Callable[[str], Client], stream: str) -> None:
    inbox = subscriber_of(version).subscribe(stream)
    client.publish(stream, {"n": 0}, groupKey=KEY)
    inbox.until({"n": 0})
    client.publish(stream, {"n": 1}, groupKey=NEXT_KEY)
    client.publish(stream, {"n": 2})
    assert inbox.contents_until({"n": 2}) == numbered(3)


@case("reads what ours encrypts, with the key it asks ours for", NO_EXCHANGE)
def test_what_ours_encrypts_is_read(
    version: str, subscriber_of: Callable[[str], Client], node: NodeProcess, stream: str
) -> None:
    inbox = subscriber_of(version).subscribe(stream)
    # Message 31 has no place for the key that ours hands on with a message when it takes a new one.
    rotations = 0 if version == "3.2.1" else 1
    contents = ours.publish_encrypted(node, stream, numbered(4), rotations, lambda: inbox.contents_until({"n": 3}))
    assert contents == numbered(4)


@case("is read by ours, which asks it for the key", NO_EXCHANGE)
def test_ours_reads_what_is_encrypted(version: str, client: Client, node: NodeProcess, stream: str) -> None:
    def publish() -> None:
        client.publish(stream, {"n": 0}, groupKey=KEY)
        client.publish(stream, {"n": 1}, {"n": 2})

    received = ours.received(node, stream, 3, publish)
    assert [got.value for got in received] == numbered(3)


@case("is read by ours with a key both were given", NO_GIVEN_KEYS)
def test_ours_reads_with_a_key_it_was_given(version: str, client: Client, node: NodeProcess, stream: str) -> None:
    keys = KeyStore()
    keys.remember(stream, address(version), bytes.fromhex(KEY), start=0)
    received = ours.received(node, stream, 1, lambda: client.publish(stream, {"n": 0}, groupKey=KEY), keys)
    assert [got.value for got in received] == [{"n": 0}]


@case("reads with a key both were given what ours encrypts", NO_GIVEN_KEYS)
def test_what_ours_encrypts_is_read_with_a_given_key(
    version: str, subscriber_of: Callable[[str], Client], node: NodeProcess, stream: str
) -> None:
    keys = KeyStore()
    keys.add(stream, GroupKey("given", bytes.fromhex(KEY)), 0)
    inbox = subscriber_of(version).subscribe(stream, groupKeys={Signer(ours.PRIVATE_KEY).address: KEY})
    contents = ours.publish_encrypted(node, stream, numbered(2), 0, lambda: inbox.contents_until({"n": 1}), keys)
    assert contents == numbered(2)
