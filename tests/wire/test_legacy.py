"""Control 0: requests as objects, responses as arrays; whole, cut, with everything that can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.errors import PeerFault
from catchment.wire.streamr import control, legacy, message
from catchment.wire.streamr.fields import LooseMessageRef
from catchment.wire.streamr.kinds import Control, ControlType

from .test_control import WRONG, fits

CASES = json.loads((Path(__file__).parents[1] / "vectors" / "streamr_control_0_1.json").read_text(encoding="utf-8"))
every_case = pytest.mark.parametrize("case", CASES, ids=[f"{case['version']} {case['name']}" for case in CASES])
Case = dict[str, Any]

NOW = 1_700_000_000_000


def refused(data: bytes) -> str:
    with pytest.raises(PeerFault) as caught:
        control.decode(data)
    assert caught.value.code == "INVALID_REQUEST"
    caught.value.request_id.encode()
    return caught.value.message


def expected(fields: Case) -> Control:
    refs = {name: LooseMessageRef(*fields[name]) for name in ("from_msg_ref", "to_msg_ref") if name in fields}
    return Control(**(fields | refs | {"type": ControlType(fields["type"])}))


class TestResponsesAndControl1:
    """Both older versions, as arrays."""

    @every_case
    def test_decode(self, case: Case) -> None:
        found = control.decode(case["frame"].encode())
        plain = msgspec.structs.replace(found, message=bytes(found.message).decode() or b"")  # type: ignore[arg-type]
        assert plain == expected(case["fields"])

    @every_case
    def test_encode(self, case: Case) -> None:
        data = case["frame"].encode()
        again = control.encode(control.decode(data), case["version"])
        if case["canonical"]:
            assert again == data
        assert control.encode(control.decode(again), case["version"]) == again

    @every_case
    def test_cut_at_every_byte_and_with_garbage_behind(self, case: Case) -> None:
        data = case["frame"].encode()
        for length in range(len(data)):
            refused(data[:length])
        for tail in (b"]", b",", b"[]", b"1", b"\x00", b'"', b"\xff", b"}"):
            refused(data + tail)

    @every_case
    def test_surplus_elements(self, case: Case) -> None:
        refused(json.dumps([*json.loads(case["frame"]), *[None] * 5]).encode())

    @pytest.mark.parametrize("kind", [8, 9, 10, 11, 12, 13, 14, 99])
    def test_control_0_has_no_requests_as_arrays(self, kind: int) -> None:
        assert "not known in control 0" in refused(b'[0,%d,"r","s"]' % kind)

    @pytest.mark.parametrize(
        "frame",
        [
            b"[0,2,null]",
            b"[0,2,null,null]",
            b'[0,2,null,{"partition":0}]',
            b'[0,2,null,{"stream":"","partition":0}]',
            b'[0,2,null,{"stream":"s","partition":-1}]',
            b'[0,4,null,{"stream":"s","partition":0,"sub":5}]',
            b'[0,2,7,{"stream":"s"}]',
            b"[0,7,null,{}]",
            b'[0,7,null,{"error":null}]',
        ],
    )
    def test_wrong_payloads(self, frame: bytes) -> None:
        refused(frame)

    def test_a_request_cannot_be_written_as_a_response(self) -> None:
        with pytest.raises(ValueError, match="SubscribeRequest is no response"):
            control.encode(Control(ControlType.SUBSCRIBE_REQUEST), 0)

    @given(st.integers(0, 1), st.integers(0, 14), st.lists(st.none() | st.integers() | st.text(max_size=5), max_size=8))
    def test_any_array(self, version: int, kind: int, rest: list[Any]) -> None:
        try:
            found = control.decode(json.dumps([version, kind, *rest]).encode())
        except PeerFault as fault:
            assert fault.request_id == ""  # neither version answers errors under an id
        else:
            assert control.encode(found, version)


REQUESTS: dict[str, tuple[str, Control]] = {
    "subscribe": (
        '{"type":"subscribe","stream":"s","partition":3,"authKey":"k"}',
        Control(ControlType.SUBSCRIBE_REQUEST, stream_id="s", stream_partition=3, auth_key="k"),
    ),
    "subscribe, with a token": (
        '{"type":"subscribe","stream":"s","partition":3,"sessionToken":"t"}',
        Control(ControlType.SUBSCRIBE_REQUEST, stream_id="s", stream_partition=3, session_token="t"),
    ),
    "unsubscribe": (
        '{"type":"unsubscribe","stream":"s","partition":3}',
        Control(ControlType.UNSUBSCRIBE_REQUEST, stream_id="s", stream_partition=3),
    ),
    "resend all": (
        '{"type":"resend","stream":"s","partition":3,"sub":"0","resend_all":true}',
        Control(
            ControlType.RESEND_FROM_REQUEST, "0", stream_id="s", stream_partition=3, from_msg_ref=LooseMessageRef(0)
        ),
    ),
    "resend last": (
        '{"type":"resend","stream":"s","partition":3,"sub":"0","resend_last":5}',
        Control(ControlType.RESEND_LAST_REQUEST, "0", stream_id="s", stream_partition=3, number_last=5),
    ),
    "resend from": (
        '{"type":"resend","stream":"s","partition":3,"sub":"0","resend_from":7}',
        Control(
            ControlType.RESEND_FROM_REQUEST, "0", stream_id="s", stream_partition=3, from_msg_ref=LooseMessageRef(7)
        ),
    ),
    "resend from and to": (
        '{"type":"resend","stream":"s","partition":3,"sub":"0","resend_from":7,"resend_to":9}',
        Control(
            ControlType.RESEND_RANGE_REQUEST,
            "0",
            stream_id="s",
            stream_partition=3,
            from_msg_ref=LooseMessageRef(7),
            to_msg_ref=LooseMessageRef(9),
        ),
    ),
    "resend from a time": (
        '{"type":"resend","stream":"s","partition":3,"sub":"0","resend_from_time":7}',
        Control(
            ControlType.RESEND_FROM_REQUEST, "0", stream_id="s", stream_partition=3, from_msg_ref=LooseMessageRef(7)
        ),
    ),
}
every_request = pytest.mark.parametrize(("frame", "meant"), REQUESTS.values(), ids=REQUESTS)
PUBLISH = '{"type":"publish","stream":"s","authKey":"k","msg":"{}","ts":5,"pkey":"device"}'


class TestRequests:
    @every_request
    def test_mean_what_their_successors_mean(self, frame: str, meant: Control) -> None:
        assert control.decode(frame.encode()) == meant
        assert control.decode(f" \n{frame}\t".encode()) == meant

    @every_request
    def test_there_and_back(self, frame: str, meant: Control) -> None:
        assert legacy.encode_request(legacy.decode_request(frame.encode())).decode() == frame

    def test_publish_there_and_back(self) -> None:
        assert legacy.encode_request(legacy.decode_request(PUBLISH.encode())).decode() == PUBLISH

    def test_shared(self, shared_legacy_request: Case) -> None:
        request = legacy.decode_request(shared_legacy_request["request"].encode())
        assert type(request).__name__ + "V0" == shared_legacy_request["class"]
        assert legacy.encode_request(request).decode() == shared_legacy_request["reserialized"]
        if isinstance(request, legacy.PublishRequest):
            made = legacy.stream_message(request, partition=0, now_ms=NOW, sequence=0)
            assert message.encode(made).decode() == shared_legacy_request["asV30"]

    def test_shared_cut_at_every_byte_and_with_garbage_behind(self, shared_legacy_request: Case) -> None:
        data = shared_legacy_request["request"].encode()
        for length in range(len(data)):
            refused(data[:length])
        for tail in (b"}", b",", b"1", b"\x00", b"\xff", data):
            refused(data + tail)

    @pytest.mark.parametrize("frame", [*(frame for frame, _ in REQUESTS.values()), PUBLISH])
    def test_cut_at_every_byte_and_with_garbage_behind(self, frame: str) -> None:
        data = frame.encode()
        for length in range(len(data)):
            refused(data[:length])
        for tail in (b"}", b",", b"1", b"\x00", b"\xff", data):
            refused(data + tail)

    @pytest.mark.parametrize("kind", ["subscribe", "unsubscribe"])
    def test_the_partition_is_0_when_it_is_not_said(self, kind: str) -> None:
        for rest in ("", ',"partition":null'):
            assert control.decode(f'{{"type":"{kind}","stream":"s"{rest}}}'.encode()).stream_partition == 0

    def test_what_a_type_does_not_know_is_passed_over(self) -> None:
        """Clients 0.9 to 0.12 leave their resend options in the subscribe request."""
        found = control.decode(b'{"type":"subscribe","stream":"s","resend_all":true,"resend_last":"x","other":[1]}')
        assert found == Control(ControlType.SUBSCRIBE_REQUEST, stream_id="s")

    def test_resend_options_in_the_order_brokers_tested_them(self) -> None:
        options = '"resend_from_time":1,"resend_last":2,"resend_to":9,"resend_from":3,"resend_all":%s'
        frame = '{"type":"resend","stream":"s","sub":"0",' + options + "}"
        assert control.decode((frame % "true").encode()).from_msg_ref == LooseMessageRef(0)
        found = control.decode((frame % "false").encode())
        assert (found.from_msg_ref, found.to_msg_ref) == (LooseMessageRef(3), LooseMessageRef(9))
        without = frame.replace('"resend_from":3,', "") % "false"
        assert control.decode(without.encode()).number_last == 2

    def test_a_number_as_subscription_is_echoed_as_text(self) -> None:
        assert control.decode(b'{"type":"resend","stream":"s","sub":7,"resend_last":1}').request_id == "7"

    @pytest.mark.parametrize(
        ("frame", "words"),
        [
            ('{"type":"resend","stream":"s","sub":"0"}', "Unknown resend options"),
            ('{"type":"resend","stream":"s","sub":"0","resend_to":5}', "Unknown resend options"),
            ('{"type":"resend","stream":"s","sub":"0","resend_all":false}', "Unknown resend options"),
            ('{"type":"resend","stream":"s","resend_last":1}', "sub"),
            ('{"type":"resend","stream":"s","sub":null,"resend_last":1}', "sub"),
            ('{"type":"resend","stream":"s","sub":"0","resend_last":-1}', "resend_last"),
            ('{"type":"resend","stream":"s","sub":"0","resend_last":"5"}', "resend_last"),
            ('{"type":"resend","stream":"s","sub":"0","resend_from":1.5}', "resend_from"),
            ('{"type":"subscribe"}', "stream"),
            ('{"type":"subscribe","stream":""}', "stream"),
            ('{"type":"subscribe","stream":5}', "stream"),
            ('{"type":"subscribe","stream":"s","partition":-1}', "partition"),
            ('{"type":"subscribe","stream":"s","partition":1.0}', "partition"),
            ('{"type":"subscribe","stream":"s","partition":"0"}', "partition"),
            ('{"type":"subscribe","stream":"s","authKey":5}', "authKey"),
            ('{"type":"dance","stream":"s"}', "Unknown request type"),
            ('{"type":5,"stream":"s"}', "Unknown request type"),
            ('{"stream":"s"}', "type"),
            ("{}", "type"),
            ('{"type":"publish","stream":"s"}', "msg"),
            ("{", "not valid JSON"),
            ('{"type":"subscribe","stream":"\\ud800"}', "not valid JSON"),
            ('{"type":"resend","stream":"s","sub":%s,"resend_last":1}' % ("9" * 300), "sub"),
        ],
    )
    def test_what_is_wrong_is_named(self, frame: str, words: str) -> None:
        assert words in refused(frame.encode())

    def test_a_type_made_of_paths_costs_and_tells_no_more_than_another(self) -> None:
        """A refusal looked through from every mark on would take minutes, for one frame."""
        hostile = " - at `$" * 120_000 + "\n"
        text = refused(msgspec.json.encode({"type": hostile, "stream": "s"}))
        assert text.startswith("Unknown request type")
        assert len(text) < 500

    def test_a_publish_has_no_stream_message(self) -> None:
        assert "no stream message" in refused(PUBLISH.encode())

    @pytest.mark.parametrize("opening", [b"[", b'{"a":'])
    def test_a_bomb(self, opening: bytes) -> None:
        refused(b'{"type":"publish","stream":"s","msg":' + opening * 100_000)

    @given(st.binary(max_size=60))
    def test_any_bytes(self, data: bytes) -> None:
        try:
            legacy.decode_request(b"{" + data)
        except PeerFault as fault:
            fault.message.encode()


def made(**changes: Any) -> message.StreamMessage:
    values = json.loads(PUBLISH) | changes
    request = legacy.decode_request(
        json.dumps({name: value for name, value in values.items() if value != ...}).encode()
    )
    assert isinstance(request, legacy.PublishRequest)
    return legacy.stream_message(request, partition=2, now_ms=NOW, sequence=4)


class TestPublish:
    def test_becomes_a_message_30(self) -> None:
        assert message.encode(made()) == b'[30,["s",2,5,4,"",""],null,27,"{}",0,null]'

    def test_signed(self) -> None:
        found = made(addr="0xAB", sigtype=1, sig="0x12")
        assert message.encode(found) == b'[30,["s",2,5,4,"0xAB",""],null,27,"{}",1,"0x12"]'

    @pytest.mark.parametrize(
        ("ts", "timestamp"),
        [
            (..., NOW),
            (None, NOW),
            (0, NOW),
            ("", NOW),
            ("0", NOW),
            (7, 7),
            (7.9, 7),
            ("7", 7),
            ("1533924184016", 1_533_924_184_016),
            ("2018-08-10T18:03:04.016Z", 1_533_924_184_016),
            ("2018-08-10T20:03:04.016+02:00", 1_533_924_184_016),
            ("2018-08-10", 1_533_859_200_000),
            ("2018-08-10T18:03:04", 1_533_924_184_000),
        ],
    )
    def test_time(self, ts: object, timestamp: int) -> None:
        assert made(ts=ts).msg_id.timestamp == timestamp

    @pytest.mark.parametrize(
        "ts", ["yesterday", -1, "-5", 2**53, 1e300, "nan", "inf", "1e999", "0001-01-01", "\u0662x"]
    )
    def test_no_time(self, ts: object) -> None:
        with pytest.raises(PeerFault, match="is not a time"):
            made(ts=ts)

    def test_content_as_an_object(self) -> None:
        assert made(msg={"a": 1}).content == '{"a": 1}'

    @pytest.mark.parametrize("msg", ["", 5, None, True])
    def test_no_content(self, msg: object) -> None:
        with pytest.raises(PeerFault, match="msg"):
            made(msg=msg)

    @pytest.mark.parametrize(
        "changes", [{"sig": "0x12"}, {"sigtype": 1}, {"sigtype": 1, "sig": ""}, {"sigtype": 9, "sig": "0x12"}]
    )
    def test_signature_and_type_go_together(self, changes: Case) -> None:
        with pytest.raises(PeerFault, match="sig"):
            made(**changes)


CONTROL_1_CASES = [case for case in CASES if case["version"] == 1 and case["canonical"]]


class TestWrongElementsOfControl1:
    @pytest.mark.parametrize("case", CONTROL_1_CASES, ids=[case["name"] for case in CONTROL_1_CASES])
    @pytest.mark.parametrize("wrong", WRONG)
    def test_each_replaced(self, case: Case, wrong: str) -> None:
        elements = json.loads(case["frame"])
        value = WRONG[wrong]
        names = [field.name for field in control.CONTROL_1[ControlType(elements[1])][0]]
        for position, name in enumerate(names, start=2):
            changed = [*elements[:position], value, *elements[position + 1 :]]
            data = json.dumps(changed).encode()
            if fits(name, value):
                control.decode(data)
            else:
                assert name in refused(data)
