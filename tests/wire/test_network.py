"""Tracker messages and network frames: every form that is read, the one that is written per era."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.errors import PeerFault
from catchment.model import Topic
from catchment.wire.streamr import network, tracker
from catchment.wire.streamr.network import Era

from ..conftest import shared_vectors

TOPIC = Topic("stream-id", 0)
LINKS = tracker.Links(["n1"], ["n1", "n2"], 7)
STATUS = tracker.StatusMessage("rid", tracker.Status({"s::0": LINKS}, "1/1/2021", {"n1": 12.5}))
INSTRUCTION = tracker.InstructionMessage("rid", TOPIC, ["ws://address1", "ws://address2"], 10)
REQUEST = tracker.StorageNodesRequest("rid", TOPIC)
RESPONSE = tracker.StorageNodesResponse("rid", TOPIC, ["ws://address1"])
MESSAGES = (STATUS, INSTRUCTION, REQUEST, RESPONSE)

SHIPPED = {
    tracker.StatusMessage: '[1,1,"rid",{"streams":{"s::0":'
    '{"inboundNodes":["n1"],"outboundNodes":["n1","n2"],"counter":7}},'
    '"started":"1/1/2021","rtts":{"n1":12.5},"location":null}]',
    tracker.InstructionMessage: '[1,2,"rid","stream-id",0,["ws://address1","ws://address2"],10]',
    tracker.StorageNodesRequest: '[1,3,"rid","stream-id",0]',
    tracker.StorageNodesResponse: '[1,4,"rid","stream-id",0,["ws://address1"]]',
}


def read(text: str) -> network.Frame:
    return network.read(text.encode())


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_version_1_is_written_as_it_shipped_and_read_back(message: tracker.TrackerMessage) -> None:
    text = SHIPPED[type(message)]
    assert network.write_tracker(message, Era.V20).decode() == text
    assert read(text) == network.Frame(Era.V20, tracker=message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # spec/streamr-control2-stream32-tracker.md, Tracker Protocol: the examples, types 14 to 17 under version 2
        ('[2, 14, {"streams": [], "started": 0, "rtts": {}}]', tracker.StatusMessage("", tracker.Status({}, "0"))),
        ('[2, 15, "request-id", "stream-id", 0, ["ws://a"], 10]', ("request-id", ["ws://a"], 10)),
        ('[2, 16, "request-id", "stream-id", 0]', tracker.StorageNodesRequest("request-id", TOPIC)),
        ('[2, 17, "request-id", "stream-id", 0, ["ws://a"]]', ("request-id", ["ws://a"])),
        # without a request id
        ('[1, 1, {"streams": {}}]', tracker.StatusMessage("", tracker.Status())),
        ('[1, 2, "stream-id", 0, ["ws://a"], 3]', ("", ["ws://a"], 3)),
        ('[1, 3, "stream-id", 0]', tracker.StorageNodesRequest("", TOPIC)),
        ('[1, 4, "stream-id", 0, ["ws://a"]]', ("", ["ws://a"])),
        # a status that is a text, streams as a list
        ('[1, 1, "rid", "status"]', tracker.StatusMessage("rid", tracker.Status())),
        ('[1, 1, "rid", "{\\"started\\": \\"now\\"}"]', tracker.StatusMessage("rid", tracker.Status({}, "now"))),
        (
            '[1, 1, "rid", {"streams": ["a::0", "b::1"]}]',
            tracker.StatusMessage("rid", tracker.Status({"a::0": tracker.Links(), "b::1": tracker.Links()})),
        ),
        # what later versions added is passed over; what was not measured is left out
        (
            '[1, 1, "rid", {"streams": {}, "rtts": {"a": null, "b": 3}, "singleStream": true}]',
            tracker.StatusMessage("rid", tracker.Status({}, "", {"b": 3.0})),
        ),
    ],
)
def test_documented_forms_are_read(text: str, message: Any) -> None:
    if isinstance(message, tuple):
        kind = tracker.InstructionMessage if len(message) == 3 else tracker.StorageNodesResponse
        request_id, *rest = message
        message = kind(request_id, TOPIC, *rest)
    assert read(text) == network.Frame(Era.V20, tracker=message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('["4.4.3", 0, "sender", "status"]', tracker.StatusMessage("", tracker.Status())),
        (
            '["4.4.3", 1, "sender", "stream-id", ["address1", "address2"]]',
            tracker.InstructionMessage("", TOPIC, ["address1", "address2"], None),
        ),
        ('["4.4.3", 2, "sender", "stream-id"]', tracker.StorageNodesRequest("", TOPIC)),
        ('["4.4.3", 3, "sender", "stream-id", ["a"]]', tracker.StorageNodesResponse("", TOPIC, ["a"])),
    ],
)
def test_the_network_layers_arrays_are_read(text: str, message: tracker.TrackerMessage) -> None:
    assert read(text) == network.Frame(Era.ARRAY, tracker=message)


def test_the_document_wraps_a_control_message() -> None:
    frame = read('["4.4.3", 4, "sender", [2, 9, "stream-id", 0, "my-session-token"]]')
    assert frame == network.Frame(Era.ARRAY, control=b'[2, 9, "stream-id", 0, "my-session-token"]')


@pytest.mark.parametrize("era", Era)
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_era_reads_what_it_writes(message: tracker.TrackerMessage, era: Era) -> None:
    frame = network.read(network.write_tracker(message, era, "us"))
    assert frame.era is era
    kept = msgspec.structs.asdict(message) | {"request_id": "rid" if era is Era.V20 else ""}
    if era is Era.ARRAY and isinstance(message, tracker.InstructionMessage):
        kept["counter"] = None
    assert frame.tracker == type(message)(**kept)


@pytest.mark.parametrize("era", Era)
def test_a_control_message_travels_unchanged(era: Era) -> None:
    control = '[2,9,"rid","ströme/\\"x\\"",0,null]'.encode()
    frame = network.read(network.write_control(control, era, "us"))
    assert frame == network.Frame(era, control=control)


def test_a_bare_control_message_is_one() -> None:
    assert read('[2,9,"rid","stream-1",0,null]').control == b'[2,9,"rid","stream-1",0,null]'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not valid JSON"),
        ("[1,2", "not valid JSON"),
        ("[1," + "[" * 100_000, "nested too deeply|not one of the network"),
        ("[]", "not one of the network"),
        ("[1]", "not one of the network"),
        ("{}", "missing required field"),
        ("17", "not one of the network"),
        ('[3,1,"rid"]', "version 3 is not supported"),
        ("[1,9]", "no tracker message of type 9"),
        ("[2,18]", "no tracker message of type 18"),
        ('[1,3,"rid"]', "has 3 elements"),
        ('[1,2,"rid","s",0,[1],1]', "nodeAddresses"),
        ('[1,2,"rid","s",-1,[],1]', "streamPartition"),
        ('[1,2,"rid","",0,[],1]', "streamId"),
        ('[1,1,"rid",{"streams":{"s::0":{"counter":"x"}}}]', "status"),
        ('[1,1,"rid","{\\"streams\\": 1}"]', "status"),
        ('["4.4.3",7,"sender"]', "no network message of type 7"),
        ('["4.4.3",1,"sender","s"]', "InstructionMessage"),
        ('{"version":"19.0.7","code":9,"payload":{}}', "code 9"),
        ('{"version":"19.0.7","code":1,"payload":{}}', "missing required field"),
        ('{"version":"19.0.7","code":4,"payload":{}}', "missing required field"),
    ],
)
def test_what_is_no_frame_is_refused(text: str, says: str) -> None:
    with pytest.raises(PeerFault, match=says):
        read(text)


def test_a_list_of_too_many_nodes_is_refused() -> None:
    addresses = msgspec.json.encode(["a"] * (tracker.MAX_PEERS + 1)).decode()
    with pytest.raises(PeerFault, match="nodeAddresses"):
        read(f'[1,2,"rid","s",0,{addresses},1]')


@given(st.binary(max_size=200))
def test_noise_raises_nothing_but_a_fault(data: bytes) -> None:
    with contextlib.suppress(PeerFault):
        network.read(data)


@given(st.sampled_from(list(SHIPPED.values())), st.integers(0, 200), st.text(max_size=3))
def test_damaged_messages_raise_nothing_but_a_fault(text: str, place: int, noise: str) -> None:
    place %= len(text)
    for damaged in (text[:place], text[:place] + noise + text[place:], text[:place] + noise + text[place + 1 :]):
        with contextlib.suppress(PeerFault):
            network.read(damaged.encode())


@given(st.text(min_size=1, max_size=20), st.integers(0, 99))
def test_a_key_names_its_stream_partition(stream: str, partition: int) -> None:
    topic = Topic(stream, partition)
    assert tracker.topic_of(tracker.key_of(topic)) == topic


@pytest.mark.parametrize("key", ["", "s", "s::", "::0", "s::x", "s::-1", "s::1٣", "s::1234567890", "s" * 2000 + "::0"])
def test_what_is_no_key_names_none(key: str) -> None:
    assert tracker.topic_of(key) is None


def test_the_tracker_of_a_stream_is_chosen_by_javas_hash() -> None:
    trackers = [f"ws://tracker-{number}" for number in (3, 1, 2, 0)]
    # "stream-1::0" hashes to 1579264332, "foobar::7" to 1165957046 (facts of the shipped library)
    assert tracker.tracker_of(Topic("stream-1", 0), trackers) == f"ws://tracker-{1579264332 % 4}"
    assert tracker.tracker_of(Topic("foobar", 7), trackers) == f"ws://tracker-{1165957046 % 4}"
    assert tracker.tracker_of(Topic("x", 0), trackers[:1]) == trackers[0]


SHARED = shared_vectors("streamr.json")

if SHARED is not None:

    @pytest.mark.parametrize("case", SHARED["tracker_hash"]["cases"], ids=lambda case: case["key"])
    def test_the_hash_of_every_vector(case: dict[str, Any]) -> None:
        topic = tracker.topic_of(case["key"])
        assert topic is not None
        trackers = [f"ws://{number:04}" for number in range(1000)]
        assert tracker.tracker_of(topic, trackers) == trackers[abs(case["hashCode"]) % 1000]

    @pytest.mark.parametrize("name", ["Status", "Instruction", "StorageNodesRequest", "StorageNodesResponse"])
    def test_every_vector_is_read_written_and_refused_when_cut(name: str) -> None:
        text = SHARED["tracker"]["cases"][name]
        message = read(text).tracker
        assert message is not None
        assert tracker.encode(message).decode() == text
        for end in range(len(text)):
            with pytest.raises(PeerFault):
                read(text[:end])

    @pytest.mark.parametrize("name", ["Relay", "Error"])
    def test_messages_of_webrtc_nodes_are_refused(name: str) -> None:
        with pytest.raises(PeerFault, match="no tracker message"):
            read(SHARED["tracker"]["cases"][name])

    @pytest.mark.parametrize("name", SHARED["tracker"]["live"])
    def test_captured_frames_are_written_as_they_came(name: str) -> None:
        text = SHARED["tracker"]["live"][name]
        frame = read(text)
        if frame.tracker is not None:
            assert network.write_tracker(frame.tracker, frame.era).decode() == text
        else:
            assert frame.control is not None
            assert network.write_control(frame.control, frame.era).decode() == text
