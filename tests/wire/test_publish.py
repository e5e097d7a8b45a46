"""The one-pass reader of publish requests against the general way: never another result, and taken where it counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.errors import PeerFault
from catchment.wire.streamr import control, message, publish

RAW = b'[32,["s",0,5,0,"0xAb","c"],[4,0],27,0,0,null,"{\\"a\\":1}",null,0,null]'


def general(data: bytes) -> publish.Published:
    request = control.decode(data)
    raw = bytes(request.message)
    return publish.Published(request.request_id, message.decode(raw), raw, request.session_token)


@pytest.mark.parametrize("frame", [b'[2,8,"r",%b,null]', b'[2,8,"r",%b]', b'[2,8,"",%b,null]'])
def test_the_usual_forms_are_read_here(frame: bytes) -> None:
    assert (
        publish.read(frame % RAW)
        == general(frame % RAW)
        == publish.Published(frame[6:7].decode().strip('"'), message.decode(RAW), RAW)
    )


@pytest.mark.parametrize("token", ["token", "", "a]", "[32", "]]", "\u00e4", "x" * 64])
def test_with_a_token(token: str) -> None:
    frame = b'[2,8,"r",%b,"%b"]' % (RAW, token.encode())
    assert publish.read(frame) == general(frame) == publish.Published("r", message.decode(RAW), RAW, token)


@pytest.mark.parametrize(
    "frame",
    [
        b'[2,8,"r",%b,"to\\"ken"]',
        b'[2,8,"r",%b,"to\\u006ben"]',
        b'[2,8,"r",%b,"a,\\"b"]',
        b'[2,8,"r",%b,"[32,"]',
        b'[2,8,"r",%b,","]',
        b'[2,8,"r", %b,null]',
        b'[2,8,"r",%b ,null]',
        b'[2,8,"r",%b, null]',
        b'[2,8,"r",%b,null] ',
        b'[2, 8,"r",%b,null]',
        b'[2,8,"\\",[32,",%b,null]',
        b'[2,8,"\\\\",%b,null]',
    ],
)
def test_other_forms_are_left_to_the_general_way(frame: bytes) -> None:
    assert publish.read(frame % RAW) is None
    assert general(frame % RAW).raw == RAW


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'[2,8,"',
        b'[2,8,"r"]]',
        b'[2,8,"r",[32,]]',
        b'[2,8,"r",[31,["s",0,5,0,"",""],null,27,0,0,"{}",0,null],null]',
        b'[2,8,"r",' + RAW + b",null,null]",
        b'[2,8,"r",' + RAW + RAW + b",null]",
        b'[2,8,"r",' + b"[" * 50_000 + b"]]",
        b'[2,8,"\xff",' + RAW + b",null]",
    ],
)
def test_what_is_wrong_is_left_to_the_general_way(data: bytes) -> None:
    assert publish.read(data) is None
    with pytest.raises(PeerFault):
        general(data)


def test_a_message_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(PeerFault, match="prevMsgRef") as refused:
        publish.read(b'[2,8,"r",' + RAW.replace(b"[4,0]", b"[5,0]") + b",null]")
    assert refused.value.request_id == "r"


def test_a_message_inside_a_text_is_not_taken_for_the_message() -> None:
    raw = RAW.replace(b'"0xAb"', b'",[32,"').replace(b'"{\\"a\\":1}"', b'",[32,"')
    for frame in (b'[2,8,"", %b,null]', b'[2,8,"" ,%b]', b'[2,8,",[32,",%b]', b'[2,8,",[32,", %b]'):
        read = publish.read(frame % raw)
        assert read is None or read.raw == raw
        assert general(frame % raw).raw == raw


ODD = st.sampled_from([",[32,", '"', "\\", '",[32,', ",null]", "]]", " ", "\\u0022", "é", "\n", "[", "]", "a"])
TEXT = st.lists(ODD, max_size=6).map("".join)


@given(TEXT, TEXT, TEXT, st.sampled_from(["", " "]), st.sampled_from([",null]", "]", ',"t"]', " ,null]"]))
def test_both_ways_agree_on_odd_texts(request_id: str, stream: str, content: str, space: str, end: str) -> None:
    made = message.StreamMessage(
        32,
        message.MessageID(stream or "s", 0, 5, 0, content, request_id),
        None,
        message.MessageType.STREAM_MESSAGE,
        message.ContentType.JSON,
        message.EncryptionType.NONE,
        request_id or None,
        content or "{}",
        stream or None,
        message.SignatureType.NONE,
        None,
    )
    raw = message.encode(made)
    data = b"[2,8,%b,%b%b%b" % (control._encode_json(request_id), space.encode(), raw, end.encode())
    read = publish.read(data)
    expected = (request_id, made, raw, "t" if '"t"' in end else None)
    assert general(data) == expected
    assert read is None or read == expected
