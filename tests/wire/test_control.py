"""The control layer: every row whole, cut at every byte, with too much, and with every element replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from catchment.errors import PeerFault
from catchment.wire.streamr import control, message
from catchment.wire.streamr.control import CONTROL_2, Control, ControlType
from catchment.wire.streamr.fields import LooseMessageRef

CASES = json.loads((Path(__file__).parents[1] / "vectors" / "streamr_control.json").read_text(encoding="utf-8"))
IDS = [case["name"] for case in CASES]
every_case = pytest.mark.parametrize("case", CASES, ids=IDS)
canonical_cases = pytest.mark.parametrize(
    "case", [case for case in CASES if case["canonical"]], ids=[case["name"] for case in CASES if case["canonical"]]
)

Case = dict[str, Any]


def expected(fields: dict[str, Any]) -> Control:
    made = dict(fields)
    for name in ("from_msg_ref", "to_msg_ref"):
        if name in made:
            made[name] = LooseMessageRef(*made[name])
    return Control(ControlType(made.pop("type")), **made)


def plain(found: Control) -> Control:
    """The same with the message as text, since a Raw equals only itself."""
    return msgspec.structs.replace(found, message=bytes(found.message).decode() or b"")  # type: ignore[arg-type]


def refused(data: bytes) -> PeerFault:
    with pytest.raises(PeerFault) as caught:
        control.decode(data)
    assert caught.value.code == "INVALID_REQUEST"
    assert caught.value.message
    return caught.value


@pytest.mark.parametrize("version", control.SUPPORTED)
@given(request_id=st.text(st.characters(exclude_categories=("Cs",))), outcome=st.sampled_from(["stored", "duplicate"]))
def test_an_acknowledgement_made_at_once_is_the_one_encode_makes(version: int, request_id: str, outcome: str) -> None:
    whole = Control(ControlType.PUBLISH_ACKNOWLEDGED, request_id, outcome=outcome)
    assert control.publish_acknowledged(request_id, outcome, version) == control.encode(whole, version)


def test_every_type_of_the_table_has_a_case() -> None:
    assert {case["fields"]["type"] for case in CASES} == set(CONTROL_2)


class TestWhole:
    @every_case
    def test_decode(self, case: Case) -> None:
        assert plain(control.decode(case["frame"].encode())) == expected(case["fields"])

    @every_case
    def test_decode_with_white_space(self, case: Case) -> None:
        """Also keeps the shortcut for publishes honest: spaced out, a publish goes the general way."""
        spaced = " " + json.dumps(json.loads(case["frame"]), separators=(" , ", " : "), ensure_ascii=False) + "\r\n\t "
        found = control.decode(spaced.encode())
        inner = bytes(found.message)
        assert json.loads(inner or b"null") == json.loads(case["fields"].get("message", "null"))
        fields = {name: value for name, value in case["fields"].items() if name != "message"}
        assert msgspec.structs.replace(found, message=b"") == expected(fields)

    @canonical_cases
    def test_encode_gives_the_bytes_back(self, case: Case) -> None:
        data = case["frame"].encode()
        assert control.encode(control.decode(data)) == data

    @every_case
    def test_encode_then_decode(self, case: Case) -> None:
        once = control.decode(case["frame"].encode())
        again = plain(control.decode(control.encode(once)))
        if once.type is ControlType.RESEND_FROM_REQUEST:
            again = msgspec.structs.replace(again, msg_chain_id=once.msg_chain_id)  # the form we emit has none
        assert again == plain(once)

    def test_shared_frames_there_and_back(self, shared_control_frame: tuple[int, str]) -> None:
        version, frame = shared_control_frame
        data = frame.encode()
        assert control.encode(control.decode(data), version) == data

    def test_shared_frames_cut_at_every_byte_and_with_garbage_behind(
        self, shared_control_frame: tuple[int, str]
    ) -> None:
        data = shared_control_frame[1].encode()
        for length in range(len(data)):
            refused(data[:length])
        for tail in (b"]", b",", b"1", b"\x00", b"\xff", data):
            refused(data + tail)

    def test_messages_in_shared_frames(self, shared_control_frame: tuple[int, str]) -> None:
        inner = bytes(control.decode(shared_control_frame[1].encode()).message)
        if inner:
            assert message.encode(message.decode(inner)) == inner

    def test_captured_frames_there_and_back(self, shared_captured_frame: str) -> None:
        data = shared_captured_frame.encode()
        assert control.encode(control.decode(data)) == data


class TestCut:
    @every_case
    def test_at_every_byte(self, case: Case) -> None:
        data = case["frame"].encode()
        for length in range(len(data)):
            refused(data[:length])

    @every_case
    @pytest.mark.parametrize("tail", [b"]", b",", b"[]", b"1", b"\x00", b'"', b"\xff", b"}", b"null"])
    def test_with_something_behind(self, case: Case, tail: bytes) -> None:
        refused(case["frame"].encode() + tail)

    @every_case
    def test_one_element_too_few(self, case: Case) -> None:
        """What is missing is named, or was allowed to be."""
        elements = json.loads(case["frame"])
        row = CONTROL_2[ControlType(elements[1])][0]
        least = 2 + sum(not field.optional for field in row)
        for length in range(least):
            fault = refused(json.dumps(elements[:length]).encode())
            assert fault.request_id == (elements[2] if length > 2 else "")

    @every_case
    def test_surplus_elements(self, case: Case) -> None:
        elements = json.loads(case["frame"])
        longest = 2 + max(len(row) for row in CONTROL_2[ControlType(elements[1])])
        elements += [None] * (longest + 1 - len(elements))
        fault = refused(json.dumps(elements).encode())
        assert fault.request_id == elements[2]


WRONG: dict[str, Any] = {
    "a float": 1.0,
    "a float with an exponent": 1e300,
    "true": True,
    "false": False,
    "negative": -1,
    "beyond 2**53": 2**53,
    "beyond 2**64": 2**64,
    "beyond everything": 10**400,
    "null": None,
    "text": "text",
    "empty text": "",
    "a number": 5,
    "an array": [],
    "an object": {},
}


def fits(name: str, value: Any) -> bool:
    """What the document allows for an element, said a second time."""
    number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
    allowed: dict[str, bool] = {
        "streamId": isinstance(value, str) and value != "",
        "streamPartition": number or value is None,
        "numberLast": number,
        "streamProtocolMessage": True,  # read later, by the message layer
        "sessionToken": isinstance(value, str) or value is None,
        "publisherId": isinstance(value, str) or value is None,
        "msgChainId": isinstance(value, str) or value is None,
        "fromMsgRef": False,
        "toMsgRef": False,
    }
    return allowed.get(name, isinstance(value, str))


class TestWrongElements:
    @canonical_cases
    @pytest.mark.parametrize("wrong", WRONG)
    def test_each_replaced(self, case: Case, wrong: str) -> None:
        elements = json.loads(case["frame"])
        names = [field.name for field in CONTROL_2[ControlType(elements[1])][0]]
        value = WRONG[wrong]
        for position, name in enumerate(names, start=2):
            changed = [*elements[:position], value, *elements[position + 1 :]]
            data = json.dumps(changed).encode()
            if fits(name, value):
                control.decode(data)
                continue
            fault = refused(data)
            assert name in fault.message, fault.message
            assert fault.request_id == (changed[2] if isinstance(changed[2], str) else "")

    @pytest.mark.parametrize("wrong", WRONG)
    @pytest.mark.parametrize("position", [0, 1])
    def test_version_and_type(self, wrong: str, position: int) -> None:
        changed: list[Any] = [2, 9, "r", "s", 0]
        changed[position] = WRONG[wrong]
        if changed[:2] == [2, 5]:
            return  # another type with the same elements
        fault = refused(json.dumps(changed).encode())
        assert fault.request_id == "r"

    @pytest.mark.parametrize("name", ["fromMsgRef", "toMsgRef"])
    @pytest.mark.parametrize(
        "ref", [[], [1.5, 0], [-1, 0], [2**53, 0], [1, -1], [1, 0, 0], [None, 0], ["1", 0], [1, "0"]]
    )
    def test_references(self, name: str, ref: list[Any]) -> None:
        refs = {"fromMsgRef": [1, 0], "toMsgRef": [2, 0]} | {name: ref}
        fault = refused(json.dumps([2, 13, "r", "s", 0, *refs.values(), None, None]).encode())
        assert fault.request_id == "r"

    @pytest.mark.parametrize("version", [3, 28, 2**53 - 1])
    def test_other_versions(self, version: int) -> None:
        fault = refused(b'[%d,9,"r","s",0]' % version)
        assert f"version {version} is not supported" in fault.message
        assert fault.request_id == "r"

    @pytest.mark.parametrize("kind", [14, 99, 101, 2**53 - 1])
    def test_unknown_types(self, kind: int) -> None:
        fault = refused(b'[2,%d,"r","s",0]' % kind)
        assert "not known" in fault.message
        assert fault.request_id == "r"


class TestNotJson:
    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b" ",
            b"hello",
            b'\xef\xbb\xbf[2,9,"r","s"]',
            b'[2,9,"r","s",]',
            b"[2,9,'r','s']",
            b'[2,9,"r","s",NaN]',
            b'[2,9,"r","s",0x1]',
            b'[2,9,"r","s",01]',
            b'[2,9,"r","s",+1]',
            b'[2,9,"r","s",.5]',
            b'[2,9,"r","s\x00"]',
            b'[2,9,"r","s\n"]',
            b'[2,9,"r","\xff"]',
            b'[2,9,"r","\xc0\xaf"]',
            b'[2,9,"r","\xed\xa0\x80"]',
            b'[2,9,"\xff","s"]',
            b'[2,8,"\xff",[]]',
            b'[2,9,"r","\\ud800"]',
            b'[2,9,"r","\\udc00 and more text"]',
            b'[2,9,"r","\\ud800\\u0041"]',
            b'[2,8,"\\ud800",[]]',
            b'[2,9,"r","\\x41"]',
            b'[2,9,"r","s" /* comment */]',
            b"\x00\x01\x02\x03",
            "[2,9]".encode("utf-16"),
        ],
    )
    def test_is_refused(self, data: bytes) -> None:
        """The id is given where it can be read: letters that are no UTF-8 further on do not hide it."""
        assert refused(data).request_id in ("", "r")

    @pytest.mark.parametrize("data", [b"{}", b"1", b'"text"', b"null", b"true", b"[]", b"[2]", b'{"0":2,"1":9}'])
    def test_json_that_is_no_control_message(self, data: bytes) -> None:
        assert refused(data).request_id == ""

    def test_nul_as_an_escape_is_a_letter_like_others(self) -> None:
        assert control.decode(b'[2,9,"r","a\\u0000b"]').stream_id == "a\x00b"

    def test_pairs_of_surrogates_are_letters(self) -> None:
        assert control.decode(b'[2,9,"r","\\ud83d\\ude00"]').stream_id == "\U0001f600"


DEPTH = 100_000


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "open"])
@pytest.mark.parametrize(
    "head", [b'[2,8,"r%s",', b'[2,9,"r%s","s",', b'[2,12,"r%s","s",0,', b' [ 2 , 13 , "r%s" ,"s",0,[1,0],']
)
def test_nesting_bombs(head: bytes, closed: bool, opening: bytes) -> None:
    closing = {b"[": b"]", b'{"a":': b"}", b'[{"a":': b"}]"}[opening]
    # An id full of escapes: it is read by its own rules even when the rest is too deep to be read.
    head = head % b'\\"\\\\,['
    data = head + opening * DEPTH + (b"1" + closing * DEPTH + b"]" if closed else b"")
    fault = refused(data)
    assert "nested too deeply" in fault.message
    assert fault.request_id == 'r"\\,['


@pytest.mark.parametrize("head", [b"", b"[", b"[2,", b"[2,9,7,", b"[[", b'[2,9,"\\x",', b'[2,9,"\xff",'])
def test_nesting_bombs_without_an_id(head: bytes) -> None:
    assert refused(head + b"[" * DEPTH).request_id == ""


def test_long_numbers_are_no_work() -> None:
    refused(b'[2,9,"r","s",' + b"9" * 500_000 + b"]")
    refused(b"[" + b"9" * 500_000 + b"]")


class TestExactBytes:
    """What was signed is kept as it came (DESIGN.md, "The log is the truth")."""

    @pytest.mark.parametrize(
        "inner",
        [
            b"[32,[]]",
            b"[ 32 , [ ] ]",
            b'[32,"\\u0041\\/\\ud83d\\ude00"]',
            '[32,"ä😀"]'.encode(),
            b'{"b":1,"a":2,"b":3}',
            b"[1e2,1.0,-0]",
            b"[\n\t32\r]",
            b"null",
            b'"text with ] and [ and \\" inside"',
        ],
    )
    @pytest.mark.parametrize("form", [b'[2,8,"r",%b,"tok"]', b'[2,8,"r",%b]', b'[2,0,"",%b]', b'[ 2, 1, "r",%b]'])
    def test_through_decode(self, form: bytes, inner: bytes) -> None:
        found = control.decode(form % inner)
        assert bytes(found.message) == inner
        again = control.decode(control.encode(found))
        assert bytes(again.message) == inner

    def test_space_around_is_not_part_of_it(self) -> None:
        assert bytes(control.decode(b'[2,8,"r",  [32, 1]  ,null]').message) == b"[32, 1]"

    def test_writers(self) -> None:
        inner = b"[ 32 ]"
        assert control.broadcast(inner) == b'[2,0,"",[ 32 ]]'
        assert control.unicast('a"b', inner) == b'[2,1,"a\\"b",[ 32 ]]'
        assert control.error_response("r", 'say "no"', "CODE") == b'[2,7,"r","say \\"no\\"","CODE"]'


def test_the_message_keeps_nothing_else_alive_after_a_copy() -> None:
    found = control.decode(b'[2,8,"r",[1],"secret-token"]')
    assert b"secret" not in bytes(found.message)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=3), children, max_size=3),
    max_leaves=12,
)


def only_peer_faults(data: bytes) -> None:
    try:
        found = control.decode(data)
    except PeerFault as fault:
        fault.request_id.encode()  # goes back on the wire
        fault.message.encode()
        return
    assert control.encode(found)


@given(st.binary(max_size=200))
@example(b'[2,8,"' + b"\xff" * 10)
def test_any_bytes(data: bytes) -> None:
    only_peer_faults(data)


@given(st.sampled_from([b"[2,8,", b"[2,9,", b"[2,12,", b"[2,13,"]), st.binary(max_size=60))
def test_any_bytes_behind_a_good_head(head: bytes, data: bytes) -> None:
    only_peer_faults(head + data)


@given(st.integers(0, 101), st.lists(json_values, max_size=9))
def test_any_json(kind: int, rest: list[Any]) -> None:
    only_peer_faults(json.dumps([2, kind, *rest]).encode())


@given(st.sampled_from(CASES), st.data())
def test_one_byte_changed(case: Case, data: st.DataObject) -> None:
    frame = bytearray(case["frame"].encode())
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    only_peer_faults(bytes(frame))


@given(st.text(), st.text(min_size=1), st.integers(0, 2**53 - 1), st.text() | st.none())
def test_any_subscribe_there_and_back(request_id: str, stream: str, partition: int, token: str | None) -> None:
    request = Control(
        ControlType.SUBSCRIBE_REQUEST, request_id, stream_id=stream, stream_partition=partition, session_token=token
    )
    assert control.decode(control.encode(request)) == request
