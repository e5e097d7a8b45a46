"""Decryption without a node: message 31's own rotation, and what is not for reading; frames a client must survive."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment import model
from catchment.client.streamr import KeyStore, Received, Undecryptable
from catchment.client.streamr.connection import Connection, delay_after, with_versions
from catchment.client.streamr.decryption import Decryption, KeyMissing, Opener
from catchment.client.streamr.values import Chain
from catchment.crypto import groupkeys
from catchment.crypto.ethereum import Signer
from catchment.crypto.groupkeys import CannotDecrypt, GroupKey
from catchment.wire.streamr import message
from catchment.wire.streamr.message import EncryptionType

SIGNER = Signer(b"\x09" * 32)
OLD, NEW = b"\x0a" * 32, b"\x0b" * 32
IV = b"\x01" * 16


def received(chain: Chain, timestamp: int, **changes: object) -> Received:
    raw = chain.make('"plain"', timestamp)
    made = msgspec.structs.replace(message.decode(raw), **changes)
    return Received(made, model.Verdict.OK, raw)


def opener(store: KeyStore) -> Opener:
    return Opener(store, own_address=None, exchange=None)


def test_the_next_key_inside_a_content_is_used_from_the_next_message_on() -> None:
    store = KeyStore()
    store.remember("s", SIGNER.address, OLD, start=0)
    chain = Chain("s", 0, signer=SIGNER)
    both = groupkeys.encrypt_with_new_key(OLD, IV, NEW, b'{"n":1}')
    first = received(chain, 100, encryption_type=EncryptionType.NEW_KEY_AND_AES, content=both)
    assert opener(store).open(first).value == {"n": 1}
    later = groupkeys.encrypt(NEW, IV, b'{"n":2}')
    second = received(chain, 101, encryption_type=EncryptionType.AES, content=later)
    assert opener(store).open(second).value == {"n": 2}
    # What was before it is still under the old one.
    before = received(chain, 102, encryption_type=EncryptionType.AES, content=groupkeys.encrypt(OLD, IV, b"0"))
    early = msgspec.structs.replace(before.message.msg_id, timestamp=99)
    before = msgspec.structs.replace(before, message=msgspec.structs.replace(before.message, msg_id=early))
    assert opener(store).open(before).value == 0


@pytest.mark.parametrize("content", ["zz", "00", groupkeys.encrypt(OLD, IV, b"too short")])
def test_a_content_that_cannot_hold_a_key_is_said(content: str) -> None:
    store = KeyStore()
    store.remember("s", SIGNER.address, OLD, start=0)
    made = received(Chain("s", 0, signer=SIGNER), 1, encryption_type=EncryptionType.NEW_KEY_AND_AES, content=content)
    with pytest.raises(CannotDecrypt):
        opener(store).open(made)


def test_a_next_key_that_cannot_be_read_does_not_hurt_the_message() -> None:
    store = KeyStore()
    store.remember("s", SIGNER.address, OLD, key_id="k")
    made = received(
        Chain("s", 0, signer=SIGNER),
        1,
        encryption_type=EncryptionType.AES,
        group_key_id="k",
        content=groupkeys.encrypt(OLD, IV, b"5"),
        new_group_key="no pair",
    )
    assert opener(store).open(made).value == 5


def test_rsa_is_for_keys() -> None:
    made = received(Chain("s", 0, signer=SIGNER), 1, encryption_type=EncryptionType.RSA, content="00")
    with pytest.raises(CannotDecrypt, match="RSA"):
        opener(KeyStore()).open(made)


def test_a_key_by_time_that_does_not_fit_may_still_come() -> None:
    store = KeyStore()
    store.remember("s", SIGNER.address, NEW, start=0)
    content = groupkeys.encrypt(OLD, IV, b'{"long":"enough to be no JSON by chance"}')
    made = received(Chain("s", 0, signer=SIGNER), 1, encryption_type=EncryptionType.AES, content=content)
    with pytest.raises(KeyMissing, match="does not fit"):
        opener(store).open(made)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["plain", "known", "unknown"])), max_size=30))
def test_without_anyone_to_ask_everything_comes_out_once_in_order(sent: list[tuple[int, str]]) -> None:
    store = KeyStore()
    signers = [Signer(bytes([number + 1]) * 32) for number in range(3)]
    chains = [Chain("s", 0, signer=signer) for signer in signers]
    for signer in signers:
        store.remember("s", signer.address, OLD, key_id="known")
    out: list[Received | Undecryptable] = []
    decryption = Decryption(opener(store), emit=out.append, max_waiting=5, timeout=1)
    made = []
    for number, (who, kind) in enumerate(sent):
        key = None if kind == "plain" else GroupKey(kind, OLD)
        raw = chains[who].make(str(number), 1, key=key)
        made.append(raw)
        decryption.add(Received(message.decode(raw), model.Verdict.OK, raw), 0.0)
    assert [each.raw if isinstance(each, Received) else each.received.raw for each in out] == made
    assert [isinstance(each, Undecryptable) for each in out] == [kind == "unknown" for _, kind in sent]
    assert [each.value for each in out if isinstance(each, Received)] == [
        number for number, (_, kind) in enumerate(sent) if kind != "unknown"
    ]
    assert decryption.count == 0
    assert decryption.next_deadline is None


@given(
    st.binary(max_size=60) | st.lists(st.integers(-1, 101) | st.text(max_size=5), max_size=8).map(msgspec.json.encode)
)
def test_no_frame_of_a_node_breaks_a_connection(data: bytes) -> None:
    async def main() -> None:
        Connection("ws://127.0.0.1:9").received(data)

    asyncio.run(main())


def test_delays_grow_and_end() -> None:
    assert all(0 < delay_after(attempt) <= 5 for attempt in range(1, 100))
    assert delay_after(1) < 0.06
    assert delay_after(50) >= 2.5


@pytest.mark.parametrize(
    ("url", "begins"),
    [
        ("ws://h:1", "ws://h:1/api/v1/ws?controlLayerVersion=2&"),
        ("ws://h:1/", "ws://h:1/api/v1/ws?controlLayerVersion=2&"),
        ("wss://h/own/path", "wss://h/own/path?controlLayerVersion=2&"),
        ("ws://h/own?a=1", "ws://h/own?a=1&controlLayerVersion=2&"),
    ],
)
def test_the_address_gets_the_versions_we_speak(url: str, begins: str) -> None:
    made = with_versions(url)
    assert made.startswith(begins)
    assert made.endswith("messageLayerVersion=32&publishAck=1")
