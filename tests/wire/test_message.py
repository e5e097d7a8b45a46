"""The message layer: message 32 whole, cut, changed; what is signed; the log's line made of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment import model
from catchment.crypto.ethereum import Signer
from catchment.errors import PeerFault
from catchment.wire.registry import read_again
from catchment.wire.streamr import control, message
from catchment.wire.streamr.fields import MessageID, MessageRef

CASES = json.loads((Path(__file__).parents[1] / "vectors" / "streamr_signatures.json").read_text(encoding="utf-8"))
READABLE = [case for case in CASES if case["verdict"] != "malformed"]
readable = pytest.mark.parametrize("case", READABLE, ids=[case["name"] for case in READABLE])

MakeMessage = Callable[..., bytes]

PLAIN = json.loads(next(case["raw"] for case in CASES if case["name"] == "encrypted, with a new group key"))


def refused(data: bytes) -> PeerFault:
    with pytest.raises(PeerFault) as caught:
        message.decode(data)
    assert caught.value.code == "INVALID_REQUEST"
    return caught.value


class TestWhole:
    @readable
    def test_fields_are_the_elements(self, case: dict[str, str]) -> None:
        found = message.decode(case["raw"].encode())
        elements = json.loads(case["raw"])
        assert message.read(case["raw"].encode())[1] == (
            message.encode(found) if "as an object" in case["name"] else case["raw"].encode()
        )
        if "as an object" in case["name"]:
            at = next(at for at, element in enumerate(elements) if isinstance(element, dict))
            elements[at] = json.dumps(elements[at], separators=(",", ":"))
        if "publisher and chain null" in case["name"]:
            elements[1][4:] = ["", ""]
        assert json.loads(message.encode(found)) == elements
        if found.version == 32:
            assert msgspec.to_builtins(found) == elements

    @readable
    def test_there_and_back(self, case: dict[str, str]) -> None:
        found = message.decode(case["raw"].encode())
        assert message.decode(message.encode(found)) == found

    def test_compact_ones_come_back_byte_for_byte(self) -> None:
        compact = [case["raw"] for case in READABLE if "\\u" not in case["raw"] and "\\/" not in case["raw"]]
        same = [raw for raw in compact if message.encode(message.decode(raw.encode())) == raw.encode()]
        assert len(same) >= 60

    def test_inside_a_request(self, make_message: MakeMessage) -> None:
        raw = make_message()
        outer = control.decode(b'[2,8,"r",%b,null]' % raw)
        assert bytes(outer.message) == raw

    def test_shared(self, shared_signed_message: dict[str, Any]) -> None:
        case = shared_signed_message
        raw = case["serialized"].encode()
        found = message.decode(raw)
        assert found.version == case["version"]
        assert message.encode(found) == raw
        if "aes_newkey" in case.get("name", "") and found.version < 32:
            assert message.judge(found) is model.Verdict.BAD_SIGNATURE  # it covers a newGroupKey that is not shown
            return
        assert message.signed_payload(found) == case["payloadToSign"].encode()
        assert message.judge(found) is model.Verdict.OK
        if "privateKey" in case:
            assert Signer(bytes.fromhex(case["privateKey"])).sign(message.signed_payload(found)) == found.signature
        forged = msgspec.structs.replace(found, content=found.content + " ")
        assert message.judge(forged) is model.Verdict.BAD_SIGNATURE

    def test_shared_cut_at_every_byte_and_with_garbage_behind(self, shared_signed_message: dict[str, Any]) -> None:
        raw = shared_signed_message["serialized"].encode()
        for length in range(len(raw)):
            refused(raw[:length])
        for tail in (b"]", b",", b"1", b"\x00", b"\xff", raw):
            refused(raw + tail)

    def test_captured_from_a_client(self, shared_captured_frame: str) -> None:
        """Real clients' messages, key exchange among them, are read and proved."""
        outer = control.decode(shared_captured_frame.encode())
        if outer.type is not control.ControlType.PUBLISH_REQUEST:
            return
        reading = read_again(model.Protocol.STREAMR, bytes(outer.message))
        assert reading.verdict is model.Verdict.OK
        assert reading.entry is not None
        keyexchange = reading.entry.topic.startswith("SYSTEM/keyexchange/")
        assert reading.entry.kind is (model.Kind.KEYEXCHANGE if keyexchange else model.Kind.MESSAGE)


class TestCut:
    def test_at_every_byte(self) -> None:
        data = json.dumps(PLAIN, separators=(",", ":")).encode()
        message.decode(data)
        for length in range(len(data)):
            refused(data[:length])

    @pytest.mark.parametrize("tail", [b"]", b",", b"[]", b"1", b"\x00", b'"', b"\xff"])
    def test_with_something_behind(self, tail: bytes) -> None:
        refused(json.dumps(PLAIN).encode() + tail)

    @pytest.mark.parametrize("length", [*range(11), 12, 13, 100])
    def test_number_of_elements(self, length: int) -> None:
        refused(json.dumps((PLAIN + [None] * 100)[:length]).encode())


WRONG: list[Any] = [
    1.0,
    1e300,
    True,
    False,
    -1,
    2**53,
    2**64,
    10**400,
    None,
    "text",
    "",
    5,
    32,
    [],
    [1],
    [1, 2],
    {},
    1.5,
]


def number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


FITS: list[tuple[str, Callable[[Any], bool]]] = [
    ("version", lambda value: value == 32 and number(value)),
    ("msgId", lambda value: False),
    ("prevMsgRef", lambda value: value in (None, [1, 2])),
    ("messageType", lambda value: number(value) and 27 <= value <= 31),
    ("contentType", lambda value: number(value) and value == 0),
    ("encryptionType", lambda value: number(value) and value in (0, 1, 2)),
    ("groupKeyId", lambda value: value is None or isinstance(value, str)),
    ("content", lambda value: (isinstance(value, str) and value != "") or isinstance(value, dict)),
    ("newGroupKey", lambda value: value is None or isinstance(value, str)),
    ("signatureType", lambda value: number(value) and value in (1, 2)),
    ("signature", lambda value: isinstance(value, str) and value != ""),
]
ID_FITS: list[tuple[str, Callable[[Any], bool]]] = [
    ("streamId", lambda value: isinstance(value, str) and value != ""),
    ("streamPartition", number),
    ("timestamp", number),
    ("sequenceNumber", number),
    ("publisherId", lambda value: isinstance(value, str)),
    ("msgChainId", lambda value: isinstance(value, str)),
]


class TestWrongElements:
    @pytest.mark.parametrize("value", WRONG, ids=[str(value)[:12] for value in WRONG])
    def test_each_replaced(self, value: Any) -> None:
        for position, (name, allowed) in enumerate(FITS):
            data = json.dumps([*PLAIN[:position], value, *PLAIN[position + 1 :]]).encode()
            if allowed(value):
                message.decode(data)
            elif position:
                assert name in refused(data).message or isinstance(value, list) or name == "signature"
            else:
                refused(data)

    @pytest.mark.parametrize("value", WRONG, ids=[str(value)[:12] for value in WRONG])
    def test_each_of_the_id_replaced(self, value: Any) -> None:
        for position, (name, allowed) in enumerate(ID_FITS):
            msg_id = [*PLAIN[1][:position], value, *PLAIN[1][position + 1 :]]
            data = json.dumps([32, msg_id, *PLAIN[2:]]).encode()
            if allowed(value):
                message.decode(data)
            else:
                assert f"msgId.{name}" in refused(data).message

    def test_a_bomb_inside(self) -> None:
        before = json.dumps(PLAIN[:6]).encode()[:-1]
        refused(before + b"," + b"[" * 100_000)
        refused(before + b"," + b"[" * 100_000 + b"]" * 100_001)
        refused(json.dumps([33]).encode()[:-1] + b"," + b"[" * 100_000)

    @pytest.mark.parametrize(
        "bad", [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\x00", b"\n", b"\\ud800", b"\\udfff xxxxxx"]
    )
    @pytest.mark.parametrize("within", ["river", "chain-1", "9abef2710b", "key-1", "key-2"])
    def test_bad_text(self, within: str, bad: bytes) -> None:
        data = json.dumps(PLAIN).encode()
        assert within.encode() in data
        refused(data.replace(within.encode(), bad))


class TestPreviousReference:
    @pytest.mark.parametrize(
        ("prev", "good"),
        [((9, 5), True), ((10, 4), True), ((9, 9), True), ((10, 5), False), ((10, 6), False), ((11, 0), False)],
    )
    def test_is_strictly_before(self, make_message: MakeMessage, prev: tuple[int, int], good: bool) -> None:
        raw = make_message(timestamp=10, sequence_number=5, prev_msg_ref=MessageRef(*prev))
        if good:
            assert message.judge(message.decode(raw)) is model.Verdict.OK
        else:
            assert "must come before" in refused(raw).message


class TestSignedPayload:
    def made(self, **changes: Any) -> message.StreamMessage:
        values: dict[str, Any] = {
            "version": 32,
            "msg_id": MessageID("s", 1, 2, 3, "0xAB", "c"),
            "prev_msg_ref": MessageRef(1, 9),
            "message_type": message.MessageType.STREAM_MESSAGE,
            "content_type": message.ContentType.JSON,
            "encryption_type": message.EncryptionType.NONE,
            "group_key_id": "never signed",
            "content": "{}",
            "new_group_key": None,
            "signature_type": message.SignatureType.ETH,
            "signature": "never signed",
        }
        return message.StreamMessage(**(values | changes))

    def test_fields_in_order_without_separators(self) -> None:
        assert message.signed_payload(self.made()) == b"s1230xabc19{}"
        assert message.signed_payload(self.made(prev_msg_ref=None)) == b"s1230xabc{}"
        assert message.signed_payload(self.made(new_group_key='["k", "v"]')) == b's1230xabc19{}["k", "v"]'

    def test_legacy_as_shipped(self) -> None:
        made = self.made(signature_type=message.SignatureType.ETH_LEGACY, new_group_key="not covered")
        assert message.signed_payload(made) == b"s20xab{}"

    def test_is_utf8(self) -> None:
        assert message.signed_payload(self.made(content="ä😀")) == "s1230xabc19ä😀".encode()


class TestEntry:
    def test_every_column(self, make_message: MakeMessage, signer: Signer) -> None:
        publisher = "0x" + signer.address[2:].upper()
        raw = make_message(
            stream_id="a/b", stream_partition=4, timestamp=77, sequence_number=5, publisher_id=publisher,
            msg_chain_id="c", prev_msg_ref=MessageRef(76, 9),
        )  # fmt: skip
        parsed = message.decode(raw)
        assert message.to_entry(parsed, raw, verdict=model.Verdict.OK, received_at=123) == model.Entry(
            kind=model.Kind.MESSAGE,
            protocol=model.Protocol.STREAMR,
            version=32,
            topic="a/b",
            partition=4,
            publisher=signer.address,
            chain="c",
            timestamp=77,
            sequence=5,
            prev_timestamp=76,
            prev_sequence=9,
            event_time=77_000_000,
            id=b"",
            verdict=model.Verdict.OK,
            received_at=123,
            raw=raw,
        )

    @pytest.mark.parametrize("kind", message.MessageType)
    @pytest.mark.parametrize("verdict", model.Verdict)
    def test_kinds(self, make_message: MakeMessage, kind: message.MessageType, verdict: model.Verdict) -> None:
        raw = make_message(message_type=kind)
        entry = message.to_entry(message.decode(raw), raw, verdict=verdict, received_at=0)
        if not verdict.accepted:
            assert entry.kind is model.Kind.REFUSED
        elif kind is message.MessageType.STREAM_MESSAGE:
            assert entry.kind is model.Kind.MESSAGE
        else:
            assert entry.kind is model.Kind.KEYEXCHANGE

    def test_reading_again(self, make_message: MakeMessage) -> None:
        raw = make_message(
            encryption_type=message.EncryptionType.AES, group_key_id="k", content="00ff", new_group_key='["k2","ff"]'
        )
        reading = read_again(model.Protocol.STREAMR, raw)
        assert (reading.verdict, reading.reason) == (model.Verdict.OK, "")
        assert (reading.content, reading.encryption, reading.group_key_id) == ("00ff", "aes", "k")
        assert reading.entry == message.to_entry(message.decode(raw), raw, verdict=model.Verdict.OK, received_at=0)


@pytest.mark.parametrize(
    ("publisher", "canonical"),
    [("0xAbC", "0xabc"), ("0XABC", "0xabc"), ("Alice", "Alice"), ("", ""), ("0", "0"), ("x0AB", "x0AB")],
)
def test_canonical_publisher(publisher: str, canonical: str) -> None:
    assert model.canonical_publisher(publisher) == canonical


def only_peer_faults(data: bytes) -> None:
    try:
        message.decode(data)
    except PeerFault as fault:
        fault.message.encode()


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    only_peer_faults(data)
    assert read_again(model.Protocol.STREAMR, data).verdict is model.Verdict.MALFORMED


@given(st.sampled_from(CASES), st.data())
def test_one_byte_changed(case: dict[str, str], data: st.DataObject) -> None:
    raw = bytearray(case["raw"].encode() or b" ")
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    only_peer_faults(bytes(raw))
    assert read_again(model.Protocol.STREAMR, bytes(raw)).verdict in model.Verdict


@given(
    st.lists(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.lists(st.integers()),
        max_size=12,
    )
)
def test_any_array(rest: list[Any]) -> None:
    only_peer_faults(json.dumps([32, *rest]).encode())


@given(
    st.text(min_size=1),
    st.tuples(*[st.integers(0, 2**53 - 1)] * 3),
    st.text(),
    st.text(),
    st.text(min_size=1),
    st.none() | st.text(),
)
def test_what_we_write_we_read_and_prove(
    stream: str, numbers: tuple[int, int, int], chain: str, group: str, content: str, rotation: str | None
) -> None:
    signer = Signer(bytes(31) + b"\x07")
    unsigned = message.StreamMessage(
        32,
        MessageID(stream, *numbers, signer.address, chain),
        None,
        message.MessageType.STREAM_MESSAGE,
        message.ContentType.JSON,
        message.EncryptionType.AES,
        group,
        content,
        rotation,
        message.SignatureType.ETH,
        None,
    )
    made = msgspec.structs.replace(unsigned, signature=signer.sign(message.signed_payload(unsigned)))
    raw = message.encode(made)
    assert message.decode(raw) == made
    assert read_again(model.Protocol.STREAMR, raw).verdict is model.Verdict.OK
