"""The twenty messages in both layouts: whole, byte by byte, cut, with bytes behind, and anything at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.crypto import ed25519, mosaic
from catchment.errors import PeerFault
from catchment.wire.mosaic import frames, keys
from catchment.wire.mosaic.frames import LAYOUT_A, LAYOUT_B, LAYOUTS, Layout, Message, MessageType
from catchment.wire.mosaic.results import Result

from .conftest import Case, own

CASES = own("mosaic_frames.json")
BY_NAME = {layout.name: layout for layout in LAYOUTS}
each_case = pytest.mark.parametrize("case", CASES, ids=[f"{case['layout']}-{case['name']}" for case in CASES])


def parts(case: Case) -> tuple[Layout, bytes]:
    return BY_NAME[case["layout"]], bytes.fromhex(case["frame"])


def code_of(frame: bytes, layout: Layout) -> str | None:
    try:
        frames.decode(frame, layout)
    except PeerFault as fault:
        return fault.code
    return None


def plain(value: Any) -> Any:
    """A field as the vectors write it."""
    if isinstance(value, Result):
        return value.name
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    return value


@each_case
def test_frames_are_read_and_written(case: Case) -> None:
    layout, frame = parts(case)
    message = frames.decode(frame, layout)
    assert message.type.name == case["name"].split(",")[0]
    for name, expected in case["fields"].items():
        assert plain(getattr(message, name)) == expected, name
    assert frames.encode(message, layout) == frame


@each_case
def test_a_layout_is_recognised(case: Case) -> None:
    layout, frame = parts(case)
    assert frames.recognise(frame) is layout


def test_every_type_is_in_both_layouts_and_has_vectors() -> None:
    assert len(MessageType) == 20
    for layout in LAYOUTS:
        assert set(layout.rows) == set(MessageType)
        assert {case["name"].split(",")[0] for case in CASES if case["layout"] == layout.name} == {
            kind.name for kind in MessageType
        }


def check_sizes(frame: bytes, layout: Layout) -> None:
    """The size is known from the first eight bytes, whatever comes behind; less or more is refused."""
    assert frames.frame_size(frame[:8], layout) == len(frame)
    assert frames.frame_size(frame + b"garbage", layout) == len(frame)
    for size in range(1, len(frame)):
        assert code_of(frame[:size], layout) == "INVALID", size
    for more in (b"\0", b"\1", bytes(8), frame):
        assert code_of(frame + more, layout) == "INVALID"


@each_case
def test_sizes(case: Case) -> None:
    layout, frame = parts(case)
    check_sizes(frame, layout)


def test_shared_frames(shared_frame: tuple[str, bytes]) -> None:
    layout, frame = BY_NAME[shared_frame[0]], shared_frame[1]
    assert frames.recognise(frame) is layout
    assert frames.encode(frames.decode(frame, layout), layout) == frame
    check_sizes(frame, layout)


def test_shared_frames_come_out_of_a_stream_one_by_one(shared_frame: tuple[str, bytes]) -> None:
    layout, frame = BY_NAME[shared_frame[0]], shared_frame[1]
    stream = frame * 3
    found = []
    while stream:
        size = frames.frame_size(stream[:8], layout)
        found.append(stream[:size])
        stream = stream[size:]
    assert found == [frame] * 3


def test_shared_hello_auth(shared_hello_auth: Case) -> None:
    message = frames.decode(bytes.fromhex(shared_hello_auth["frame"]), LAYOUT_B)
    assert message.type is MessageType.HELLO_AUTH
    signer = mosaic.Signer(keys.decode(shared_hello_auth["secret"], keys.Printable.SECRET))
    nonce = shared_hello_auth["nonce"].encode()
    assert mosaic.verify(signer.public, nonce, message.body)
    assert signer.sign(nonce) == message.body
    assert not ed25519.verify(signer.public, nonce, message.body)


def test_a_streams_layout_is_recognised_by_its_hello() -> None:
    for layout in LAYOUTS:
        for applications in ((), (0,), tuple(range(100))):
            hello = frames.encode(Message(MessageType.HELLO, version=0, applications=applications), layout)
            assert frames.recognise_hello(hello[:8]) is layout


def test_a_frame_that_fits_no_layout_is_taken_for_a() -> None:
    assert frames.recognise(b"") is LAYOUT_A
    assert frames.recognise(b"\2" + bytes(20)) is LAYOUT_A


def test_what_fits_both_layouts_is_taken_for_a() -> None:
    # A Get of 8 bytes whose query id reads as B's length.
    both = b"\1" + (8).to_bytes(3, "little") + (8).to_bytes(4, "little")
    assert frames.recognise(both) is LAYOUT_A


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_unknown_types_and_results(layout: Layout) -> None:
    for first in set(range(256)) - {kind.value for kind in MessageType}:
        frame = bytes((first,)) + bytes(7)
        assert code_of(frame, layout) == frames.UNRECOGNIZED
    assert code_of(b"", layout) == frames.UNRECOGNIZED
    closed = frames.encode(Message(MessageType.QUERY_CLOSED, result=Result.SUCCESS), layout)
    at = closed.index(Result.SUCCESS, 4 if layout is LAYOUT_A else 1)
    for code in range(256):
        answer = code_of(closed[:at] + bytes((code,)) + closed[at + 1 :], layout)
        assert answer == (None if code in set(Result) else "INVALID"), code


def test_a_length_below_the_header_cannot_be_gone_past() -> None:
    for layout in LAYOUTS:
        with pytest.raises(PeerFault):
            frames.frame_size(b"\2" + bytes(7), layout)


def test_the_result_codes_are_the_documents() -> None:
    assert {result.name: result.value for result in Result} == {
        "SUCCESS": 1, "ACCEPTED": 2, "DUPLICATE": 3, "NO_CONSUMERS": 4, "NOT_FOUND": 16,
        "REQUIRES_AUTHENTICATION": 32, "UNAUTHORIZED": 33, "INVALID": 36, "TOO_OPEN": 37, "TOO_LARGE": 38,
        "TOO_FAST": 39, "IP_TEMP_BANNED": 48, "IP_PERM_BANNED": 49, "PUBKEY_TEMP_BANNED": 50,
        "PUBKEY_PERM_BANNED": 51, "SHUTTING_DOWN": 64, "TEMPORARY_ERROR": 65, "PERSISTENT_ERROR": 66,
        "GENERAL_ERROR": 67,
    }  # fmt: skip


messages = st.builds(
    Message,
    st.sampled_from(MessageType),
    query_id=st.binary(min_size=2, max_size=2),
    result=st.sampled_from(Result),
    limit=st.integers(0, 65535),
    version=st.integers(0, 255),
    applications=st.lists(st.integers(0, 2**32 - 1), max_size=4).map(tuple),
    references=st.lists(st.binary(min_size=48, max_size=48), max_size=4).map(tuple),
    server=st.integers(0, 1),
    subject=st.binary(min_size=32, max_size=32),
    body=st.binary(min_size=64, max_size=64),
)


@given(messages, st.sampled_from(LAYOUTS))
def test_what_is_written_is_read(message: Message, layout: Layout) -> None:
    frame = frames.encode(message, layout)
    again = frames.decode(frame, layout)
    assert frames.encode(again, layout) == frame
    assert frames.frame_size(frame[:8], layout) == len(frame)
    row = layout.rows[message.type]
    for name in [field.name for field in row.fields] + ([row.body.name] if row.body else []):
        assert getattr(again, name) == getattr(message, name)


@given(messages, st.sampled_from(LAYOUTS))
def test_one_layout_is_turned_into_the_other_and_back(message: Message, layout: Layout) -> None:
    other = LAYOUT_B if layout is LAYOUT_A else LAYOUT_A
    frame = frames.encode(message, layout)
    across = frames.encode(frames.decode(frame, layout), other)
    assert frames.encode(frames.decode(across, other), layout) == frame


@given(st.binary(max_size=120), st.sampled_from(LAYOUTS))
def test_nothing_but_a_peers_fault_comes_of_any_bytes(data: bytes, layout: Layout) -> None:
    code_of(data, layout)
    frames.recognise(data)
    if len(data) >= 8:
        try:
            assert frames.frame_size(data[:8], layout) >= 8
        except PeerFault as fault:
            assert fault.code == "INVALID"


@given(messages, st.sampled_from(LAYOUTS), st.data())
def test_nothing_but_a_peers_fault_comes_of_altered_frames(
    message: Message, layout: Layout, data: st.DataObject
) -> None:
    frame = bytearray(frames.encode(message, layout))
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(frame) - 1), st.integers(0, 255)), max_size=6)):
        frame[at] = value
    code_of(bytes(frame), layout)


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_records_are_written_alike_one_by_one_and_in_a_row(layout: Layout) -> None:
    writer = frames.RecordWriter(b"qi", layout)
    for size in (0, 240, 70_000, 1_048_576):
        body = b"r" * size
        assert writer.write(body) == frames.encode(Message(MessageType.RECORD, query_id=b"qi", body=body), layout)


def test_a_layout_is_recognised_by_the_beginning_of_a_message_too() -> None:
    for layout in LAYOUTS:
        frame = frames.encode(Message(MessageType.SUBMISSION, body=bytes(5000)), layout)
        assert frames.recognise(frame[:64], len(frame)) is layout


def test_numbers_that_do_not_fit_are_not_written() -> None:
    with pytest.raises(ValueError, match="version 256"):
        frames.encode(Message(MessageType.HELLO, version=256), LAYOUT_B)
    with pytest.raises(ValueError, match="length"):
        frames.encode(Message(MessageType.SUBMISSION, body=bytes(2**24)), LAYOUT_A)
    with pytest.raises(ValueError, match="subject"):
        frames.encode(Message(MessageType.BLOB_GET, subject=b"short"), LAYOUT_A)
