"""Key exchange in both forms: read, written, refused; and nothing but a PeerFault for whatever is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.crypto.ethereum import Signer
from catchment.errors import PeerFault
from catchment.wire.streamr import control, keyexchange, message
from catchment.wire.streamr.fields import MessageID
from catchment.wire.streamr.keyexchange import Form, KeyRange, SealedKey
from catchment.wire.streamr.message import EncryptionType, MessageType, SignatureType, StreamMessage

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "streamr_keyexchange.json").read_text(encoding="utf-8"))
ADDRESS = Signer(b"\x01" * 32).address
SENDER = Signer(b"\x02" * 32)
KINDS = [kind for kind in MessageType if kind is not MessageType.STREAM_MESSAGE]
MODELS: dict[MessageType, Any] = {
    MessageType.GROUP_KEY_REQUEST: keyexchange.GroupKeyRequest,
    MessageType.GROUP_KEY_RESPONSE: keyexchange.GroupKeyResponse,
    MessageType.GROUP_KEY_ANNOUNCE: keyexchange.GroupKeyAnnounce,
    MessageType.GROUP_KEY_ERROR_RESPONSE: keyexchange.GroupKeyErrorResponse,
}

every_form = pytest.mark.parametrize(
    "case", VECTORS["well_formed"], ids=[each["name"] for each in VECTORS["well_formed"]]
)
every_malformed = pytest.mark.parametrize(
    "case", VECTORS["malformed"], ids=[each["name"] for each in VECTORS["malformed"]]
)


def expected(case: dict[str, Any]) -> keyexchange.Exchange:
    fields = dict(case["fields"])
    if "keys" in fields:
        fields["keys"] = tuple(SealedKey(*key) for key in fields["keys"])
    if "key_ids" in fields:
        fields["key_ids"] = tuple(fields["key_ids"])
    if fields.get("range") is not None:
        fields["range"] = KeyRange(*fields["range"])
    made: keyexchange.Exchange = MODELS[MessageType[case["type"]]](**fields, form=Form(case["form"]))
    return made


def carried(kind: MessageType, content: str, **changes: Any) -> StreamMessage:
    """A message 32 around a content, as it should be unless changed."""
    values: dict[str, Any] = {
        "stream_id": keyexchange.stream_of(ADDRESS),
        "stream_partition": 0,
        "message_type": kind,
        "encryption_type": keyexchange.ENCRYPTION.get(kind, EncryptionType.NONE),
        "signature_type": SignatureType.ETH,
        "signature": "0x00",
    } | changes
    return StreamMessage(
        version=32,
        msg_id=MessageID(values.pop("stream_id"), values.pop("stream_partition"), 5, 0, SENDER.address, "c"),
        prev_msg_ref=None,
        content_type=message.ContentType.JSON,
        group_key_id=None,
        content=content,
        new_group_key=None,
        **values,
    )


GOOD = {
    MessageType.GROUP_KEY_REQUEST: '["r","river","PEM",["k"]]',
    MessageType.GROUP_KEY_RESPONSE: '["r","river",[["k","aa"]]]',
    MessageType.GROUP_KEY_ANNOUNCE: '["river",[["k","aa"]]]',
    MessageType.GROUP_KEY_ERROR_RESPONSE: '["r","river","C","text",["k"]]',
}
every_kind = pytest.mark.parametrize("kind", KINDS, ids=keyexchange.name_of)


@every_form
def test_each_form_is_read(case: dict[str, Any]) -> None:
    kind = MessageType[case["type"]]
    found = keyexchange.decode(kind, case["content"])
    assert found == expected(case)
    assert keyexchange.type_of(found) is kind
    assert keyexchange.read(carried(kind, case["content"])) == found


@every_form
def test_each_form_is_written_as_it_is_read(case: dict[str, Any]) -> None:
    made = expected(case)
    text = keyexchange.encode(made)
    assert keyexchange.decode(MessageType[case["type"]], text) == made
    if case["canonical"]:
        assert json.loads(text) == json.loads(case["content"])
        if case["form"] == "array":
            assert text == case["content"]


@every_malformed
def test_what_has_neither_form_is_a_fault(case: dict[str, Any]) -> None:
    kind = MessageType[case["type"]]
    with pytest.raises(PeerFault) as caught:
        keyexchange.check(carried(kind, case["content"]))
    assert caught.value.code == "INVALID_REQUEST"
    assert keyexchange.name_of(kind) in caught.value.message


@every_kind
def test_a_content_cut_anywhere_is_a_fault(kind: MessageType) -> None:
    whole = GOOD[kind]
    for end in range(len(whole)):
        with pytest.raises(PeerFault):
            keyexchange.decode(kind, whole[:end])
    with pytest.raises(PeerFault):
        keyexchange.decode(kind, whole + "]")


@every_kind
def test_each_has_the_encryption_its_document_says(kind: MessageType) -> None:
    for encryption in EncryptionType:
        made = carried(kind, GOOD[kind], encryption_type=encryption)
        if encryption is keyexchange.ENCRYPTION[kind]:
            keyexchange.check(made)
        else:
            with pytest.raises(PeerFault, match="must have encryptionType"):
                keyexchange.check(made)


@every_kind
def test_each_must_be_signed(kind: MessageType) -> None:
    with pytest.raises(PeerFault, match="must be signed"):
        keyexchange.check(carried(kind, GOOD[kind], signature_type=SignatureType.NONE, signature=None))


@every_kind
def test_each_goes_to_partition_zero_of_a_key_exchange_stream(kind: MessageType) -> None:
    with pytest.raises(PeerFault, match="partition 0 only"):
        keyexchange.check(carried(kind, GOOD[kind], stream_partition=1))
    for stream in (keyexchange.stream_of(ADDRESS), keyexchange.legacy_stream_of(ADDRESS)):
        keyexchange.check(carried(kind, GOOD[kind], stream_id=stream))
    for stream in (
        "river",
        "SYSTEM/keyexchange/",
        "SYSTEM/keyexchange/river",
        f"SYSTEM/keyexchange/{ADDRESS.upper()}",
        f"SYSTEM/keyexchange/{ADDRESS}/",
        f"SYSTEM/keyexchange/SYSTEM/keyexchange/{ADDRESS}",
        f"system/keyexchange/{ADDRESS}",
        f"{ADDRESS}0",
        f"{ADDRESS}\n",
        ADDRESS[2:],
    ):
        with pytest.raises(PeerFault, match="goes to a key-exchange stream"):
            keyexchange.check(carried(kind, GOOD[kind], stream_id=stream))


def test_a_message_on_a_reserved_stream_is_a_fault() -> None:
    made = carried(MessageType.STREAM_MESSAGE, "{}")
    assert keyexchange.is_key_exchange(made)
    with pytest.raises(PeerFault, match="for key exchange only"):
        keyexchange.check(made)


def test_messages_elsewhere_are_no_key_exchange() -> None:
    # A bare address is a key-exchange stream of old clients, and may be anybody's stream as well.
    for stream in ("river", ADDRESS):
        assert not keyexchange.is_key_exchange(carried(MessageType.STREAM_MESSAGE, "{}", stream_id=stream))
    for kind in KINDS:
        assert keyexchange.is_key_exchange(carried(kind, "{}", stream_id="river"))


def test_streams_are_named_by_their_reader() -> None:
    checksum = "0xAb" + "c" * 38
    assert keyexchange.stream_of(checksum) == "SYSTEM/keyexchange/0xab" + "c" * 38
    assert keyexchange.legacy_stream_of(checksum) == checksum.lower()
    for name in (keyexchange.stream_of(checksum), keyexchange.legacy_stream_of(checksum)):
        assert keyexchange.recipient_of(name) == checksum.lower()
    assert keyexchange.recipient_of("river") is None


def test_a_key_cannot_be_written_without_its_name() -> None:
    with pytest.raises(ValueError, match="id"):
        keyexchange.encode(keyexchange.GroupKeyResponse("r", "river", (SealedKey("aa", start=5),)))
    with pytest.raises(ValueError, match="time"):
        keyexchange.encode(keyexchange.GroupKeyAnnounce("river", (SealedKey("aa", "k"),), Form.OBJECT))
    with pytest.raises(ValueError, match="unpack"):
        keyexchange.encode(keyexchange.GroupKeyAnnounce("river", (SealedKey("aa", start=5),) * 2, Form.OBJECT))


def test_the_next_key_in_a_message() -> None:
    key = keyexchange.NewGroupKey("k2", "00ff")
    assert keyexchange.encode_new_group_key(key) == '["k2","00ff"]'
    assert keyexchange.decode_new_group_key('["k2","00ff"]') == key
    for text in (
        "",
        "k2",
        '["k2"]',
        '["","00"]',
        '["k2","00",1]',
        '["k2",""]',
        '{"k2":"00"}',
        "[" * 5000,
        '["\\ud800"]',
    ):
        with pytest.raises(PeerFault, match="newGroupKey"):
            keyexchange.decode_new_group_key(text)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.sampled_from(
                ["requestId", "streamId", "publicKey", "range", "start", "end", "keys", "groupKey", "code", "message"]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)


@given(kind=st.sampled_from(KINDS), content=ANY.map(json.dumps) | st.text(max_size=60))
def test_any_content_is_read_or_a_fault(kind: MessageType, content: str) -> None:
    try:
        found = keyexchange.decode(kind, content)
    except PeerFault:
        return
    assert keyexchange.decode(kind, keyexchange.encode(found)) == found


NAMES = st.text(min_size=1, max_size=30).filter(lambda text: text.isprintable())
IDS = st.lists(NAMES, max_size=4).map(tuple)
TIMES = st.integers(0, 2**53 - 1)
SEALED = st.text("0123456789abcdef", min_size=2, max_size=20)
BY_ID = st.lists(st.builds(SealedKey, SEALED, NAMES), max_size=4).map(tuple)
BY_TIME = st.lists(st.builds(SealedKey, SEALED, st.none(), TIMES), max_size=4).map(tuple)
RANGES = st.builds(lambda a, b: KeyRange(min(a, b), max(a, b)), TIMES, TIMES)
EXCHANGES = st.one_of(
    st.builds(keyexchange.GroupKeyRequest, NAMES, NAMES, NAMES, IDS),
    st.builds(
        keyexchange.GroupKeyRequest, NAMES, NAMES, NAMES, st.just(()), st.none() | RANGES, form=st.just(Form.OBJECT)
    ),
    st.builds(keyexchange.GroupKeyResponse, NAMES, NAMES, BY_ID),
    st.builds(keyexchange.GroupKeyResponse, NAMES, NAMES, BY_TIME, st.just(Form.OBJECT)),
    st.builds(keyexchange.GroupKeyAnnounce, NAMES, BY_ID),
    st.builds(keyexchange.GroupKeyAnnounce, NAMES, BY_TIME.filter(lambda keys: len(keys) == 1), st.just(Form.OBJECT)),
    st.builds(keyexchange.GroupKeyErrorResponse, NAMES, NAMES, NAMES, NAMES, IDS),
    st.builds(keyexchange.GroupKeyErrorResponse, NAMES, NAMES, NAMES, NAMES, form=st.just(Form.OBJECT)),
)


@given(EXCHANGES)
def test_whatever_is_written_is_read_again(exchange: keyexchange.Exchange) -> None:
    assert keyexchange.decode(keyexchange.type_of(exchange), keyexchange.encode(exchange)) == exchange


def test_what_a_published_client_sent_is_well_formed(shared_captured_frame: str) -> None:
    request = control.decode(shared_captured_frame.encode())
    if request.type is not control.ControlType.PUBLISH_REQUEST:
        return
    sent = message.decode(bytes(request.message))
    assert keyexchange.is_key_exchange(sent) is (sent.message_type is not MessageType.STREAM_MESSAGE)
    if keyexchange.is_key_exchange(sent):
        found = keyexchange.read(sent)
        assert found.form is Form.ARRAY
        assert found.stream_id == "enc-stream"
        assert keyexchange.encode(found) == sent.content


def test_contents_the_published_library_writes(shared_group_key_content: tuple[str, str]) -> None:
    name, content = shared_group_key_content
    (kind,) = (each for each in KINDS if keyexchange.name_of(each) == name)
    found = keyexchange.decode(kind, content)
    assert msgspec.json.decode(keyexchange.encode(found)) == msgspec.json.decode(content)
    assert keyexchange.encode(found) == content
