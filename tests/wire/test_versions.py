"""Messages across versions: each shown as every other, and what an older reader is not shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment import model
from catchment.errors import PeerFault
from catchment.wire.registry import read_again
from catchment.wire.streamr import convert, message
from catchment.wire.streamr.fields import MessageID, MessageRef
from catchment.wire.streamr.message import EncryptionType, MessageType, OffsetMessage, SignatureType, StreamMessage

CASES = json.loads((Path(__file__).parents[1] / "vectors" / "streamr_versions.json").read_text(encoding="utf-8"))
every_case = pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
VERSIONS = sorted(message.ROWS)
every_version = pytest.mark.parametrize("version", VERSIONS)


def test_the_versions() -> None:
    assert VERSIONS == [28, 29, 30, 31, 32]


@every_case
@every_version
def test_there_and_back(case: dict[str, Any], version: int) -> None:
    raw = case["shown"][str(version)].encode()
    assert message.encode(message.decode(raw)) == raw


@every_case
@every_version
def test_the_newest_shown_as_each(case: dict[str, Any], version: int) -> None:
    newest = message.decode(case["shown"]["32"].encode())
    assert message.encode(convert.to_version(newest, version)).decode() == case["shown"][str(version)]


def test_shared_conversions(shared_conversion: tuple[str, int, str]) -> None:
    given, version, expected = shared_conversion
    converted = convert.to_version(message.decode(given.encode()), version)
    assert message.encode(converted).decode() == expected


@every_case
@every_version
def test_cut_at_every_byte_and_with_garbage_behind(case: dict[str, Any], version: int) -> None:
    raw = case["shown"][str(version)].encode()
    for length in range(len(raw)):
        with pytest.raises(PeerFault):
            message.decode(raw[:length])
    for tail in (b"]", b",", b"1", b"\x00", b"\xff", raw):
        with pytest.raises(PeerFault):
            message.decode(raw + tail)


@every_case
@every_version
def test_elements_too_few_and_too_many(case: dict[str, Any], version: int) -> None:
    elements = json.loads(case["shown"][str(version)])
    for length in range(len(elements)):
        with pytest.raises(PeerFault):
            message.decode(json.dumps(elements[:length]).encode())
    with pytest.raises(PeerFault):
        message.decode(json.dumps([*elements, None]).encode())


@pytest.mark.parametrize("version", [28, 29])
def test_time_to_live_and_offsets_are_kept(version: int) -> None:
    tail = [0, None, None] if version == 29 else []
    raw = json.dumps([version, "s", 1, 5, 60, 12, 11, 27, "{}", *tail], separators=(",", ":")).encode()
    found = message.decode(raw)
    assert isinstance(found, OffsetMessage)
    assert (found.ttl, found.offset, found.previous_offset) == (60, 12, 11)
    assert message.encode(found) == raw
    assert found.msg_id == MessageID("s", 1, 5, 0, "", "")
    again = convert.to_version(convert.to_version(found, 57 - version), version)
    assert message.encode(again) == raw
    entry = message.to_entry(found, raw, verdict=model.Verdict.UNSIGNED, received_at=0)
    assert (entry.version, entry.topic, entry.partition, entry.sequence, entry.chain) == (version, "s", 1, 0, "")


def test_null_offset_is_the_timestamp() -> None:
    found = message.decode(b'[28,"s",0,5,null,null,null,27,"{}"]')
    assert message.encode(found) == b'[28,"s",0,5,0,5,null,27,"{}"]'


def test_there_is_no_other_version() -> None:
    found = message.decode(CASES[0]["shown"]["32"].encode())
    for version in (27, 33):
        with pytest.raises(ValueError, match=str(version)):
            convert.to_version(found, version)


def made(**changes: Any) -> StreamMessage:
    values: dict[str, Any] = {
        "version": 32,
        "msg_id": MessageID("s", 1, 2, 3, "0xAB", "c"),
        "prev_msg_ref": MessageRef(1, 9),
        "message_type": MessageType.STREAM_MESSAGE,
        "content_type": message.ContentType.JSON,
        "encryption_type": EncryptionType.NONE,
        "group_key_id": None,
        "content": "{}",
        "new_group_key": None,
        "signature_type": SignatureType.NONE,
        "signature": None,
    }
    return StreamMessage(**(values | changes))


class TestWhatIsNotShown:
    @every_version
    @pytest.mark.parametrize("encryption", EncryptionType)
    def test_encryption(self, version: int, encryption: EncryptionType) -> None:
        reason = convert.why_not_shown(made(encryption_type=encryption), version)
        shown = encryption is EncryptionType.NONE or version == 31
        shown = shown or (version == 32 and encryption is not EncryptionType.NEW_KEY_AND_AES)
        assert (reason is None) is shown
        if version < 31 and not shown:
            assert reason is not None
            assert reason.startswith("Encrypted message received.")

    @every_version
    @pytest.mark.parametrize("kind", MessageType)
    def test_key_exchange(self, version: int, kind: MessageType) -> None:
        reason = convert.why_not_shown(made(message_type=kind), version)
        assert (reason is None) is (kind is MessageType.STREAM_MESSAGE or version >= 30)

    @pytest.mark.parametrize("version", [29, 30, 31, 32])
    def test_an_empty_signature_is_shown_as_none(self, version: int) -> None:
        assert convert.to_version(made(version=31, signature=""), version).signature is None

    def test_unsigned(self) -> None:
        signed = made(signature_type=SignatureType.ETH, signature="0x12")
        assert convert.unsigned(signed) == made()


numbers = st.integers(0, 2**53 - 1)
names = st.text(max_size=10)


@st.composite
def messages(draw: st.DrawFn, version: int) -> StreamMessage:
    """Any message of a version, with what that version can say."""
    timestamp, sequence = draw(numbers), draw(numbers)
    with_offsets = version < 30
    kind = MessageType.STREAM_MESSAGE if with_offsets else draw(st.sampled_from(MessageType))
    signature_type = SignatureType.NONE if version == 28 else draw(st.sampled_from(SignatureType))
    encryption = [each for each in EncryptionType if version == 31 or each is not EncryptionType.NEW_KEY_AND_AES]
    prev = None
    if not with_offsets and timestamp:
        prev = draw(st.none() | st.builds(MessageRef, st.integers(0, timestamp - 1), numbers))
    values: dict[str, Any] = {
        "version": version,
        "msg_id": MessageID(
            draw(st.text(min_size=1, max_size=10)),
            draw(numbers),
            timestamp,
            0 if with_offsets else sequence,
            "" if version == 28 else draw(names),
            "" if with_offsets else draw(names),
        ),
        "prev_msg_ref": prev,
        "message_type": kind,
        "content_type": message.ContentType.JSON,
        "encryption_type": draw(st.sampled_from(encryption)) if version >= 31 else EncryptionType.NONE,
        "group_key_id": draw(st.none() | names) if version >= 32 else None,
        "content": draw(st.text(min_size=1)),
        "new_group_key": draw(st.none() | names) if version >= 32 else None,
        "signature_type": signature_type,
        "signature": None if signature_type is SignatureType.NONE else draw(st.text(min_size=1, max_size=10)),
    }
    if not with_offsets:
        return StreamMessage(**values)
    return OffsetMessage(**values, ttl=draw(numbers), offset=draw(numbers), previous_offset=draw(st.none() | numbers))


@every_version
@given(data=st.data())
def test_whatever_we_write_we_read(version: int, data: st.DataObject) -> None:
    written = data.draw(messages(version))
    assert message.decode(message.encode(written)) == written


@every_version
@pytest.mark.parametrize("other", VERSIONS)
@given(data=st.data())
def test_whatever_is_shown_can_be_read_and_says_the_same(version: int, other: int, data: st.DataObject) -> None:
    original = data.draw(messages(version))
    if convert.why_not_shown(original, other) is not None:
        return
    shown = convert.to_version(original, other)
    read = message.decode(message.encode(shown))
    assert read == shown
    assert read.version == other
    assert read.content == original.content
    for name in ("stream_id", "stream_partition", "timestamp"):
        assert getattr(read.msg_id, name) == getattr(original.msg_id, name)
    if other > 28 and version > 28:
        assert read.msg_id.publisher_id == original.msg_id.publisher_id
        assert (read.signature_type, read.signature) == (original.signature_type, original.signature)
    if version == other:
        assert read == original
    if version >= 30 and other >= 30:
        assert (read.msg_id, read.prev_msg_ref) == (original.msg_id, original.prev_msg_ref)
        # What is kept of the newer version is enough to prove it, unless it carried a key the older has no place for.
        if original.new_group_key is None or other == 32:
            assert message.signed_payload(read) == message.signed_payload(original)


@given(st.sampled_from(VERSIONS), st.binary(max_size=80))
def test_any_bytes_behind_a_version(version: int, data: bytes) -> None:
    raw = b"[%d," % version + data
    try:
        message.decode(raw)
    except PeerFault as fault:
        fault.message.encode()
    assert read_again(model.Protocol.STREAMR, raw).verdict in model.Verdict


@given(st.sampled_from(CASES), st.sampled_from(VERSIONS), st.data())
def test_one_byte_changed(case: dict[str, Any], version: int, data: st.DataObject) -> None:
    raw = bytearray(case["shown"][str(version)].encode())
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = message.decode(bytes(raw))
    except PeerFault as fault:
        fault.message.encode()
    else:
        assert message.decode(message.encode(found)) == found


class TestContentAsAnObject:
    def test_is_kept_as_the_text_it_stands_as(self) -> None:
        raw = b'[31,["s",0,5,0,"p","c"],null,27,0,{"b":1.0,"a":[2, "x"]},0,null]'
        found, kept = message.read(raw)
        assert found.content == '{"b":1.0,"a":[2, "x"]}'
        assert message.read(kept) == (found, kept)
        assert kept == b'[31,["s",0,5,0,"p","c"],null,27,0,"{\\"b\\":1.0,\\"a\\":[2, \\"x\\"]}",0,null]'

    @pytest.mark.parametrize("content", [b"[1]", b"1", b"null", b'""', b"true", b"{", b'{"a":\xff}', b'{"a":}'])
    def test_nothing_else_is(self, content: bytes) -> None:
        with pytest.raises(PeerFault):
            message.read(b'[31,["s",0,5,0,"p","c"],null,27,0,%b,0,null]' % content)

    def test_other_faults_are_named_as_ever(self) -> None:
        with pytest.raises(PeerFault, match=r"msgId\.timestamp"):
            message.read(b'[31,["s",0,-5,0,"p","c"],null,27,0,{},0,null]')


def test_a_struct_replaced_keeps_its_class() -> None:
    found = message.decode(b'[28,"s",0,5,60,12,11,27,"{}"]')
    assert isinstance(msgspec.structs.replace(found, content="x"), OffsetMessage)
