"""PoPStellar's JSON-RPC: eight methods and ours, answers, errors, and frames that are none."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.errors import PeerFault
from catchment.wire.popstellar import rpc
from catchment.wire.popstellar.fields import ErrorCode

CHANNEL = "/root/p_EYbHyMv6sopI5QhEXBf40MO_eNoq7V_LygBd4c9RA="
KEY = "J9fBzJV70Jk5c-i3277Uq4CmeL4t53WDfUghaK0HpeM="
MESSAGE = {"data": "any", "as": "it came"}
GREETING = {
    "public_key": KEY,
    "client_address": "wss://popdemo.example:9000/client",
    "server_address": "ws://popdemo.example/server",
}

QUERIES: dict[str, tuple[type, dict[str, Any]]] = {
    "greet_server": (rpc.GreetServer, {"params": GREETING}),
    "subscribe": (rpc.Subscribe, {"id": 2, "params": {"channel": CHANNEL}}),
    "unsubscribe": (rpc.Unsubscribe, {"id": -7, "params": {"channel": CHANNEL}}),
    "publish": (rpc.Publish, {"id": 4, "params": {"channel": "/root", "message": MESSAGE}}),
    "broadcast": (rpc.Broadcast, {"params": {"channel": CHANNEL, "message": MESSAGE}}),
    "catchup": (rpc.Catchup, {"id": 3, "params": {"channel": "/root"}}),
    "heartbeat": (rpc.Heartbeat, {"params": {CHANNEL: ["a"], "/root": ["b", "c"]}}),
    "get_messages_by_id": (rpc.GetMessagesById, {"id": 6, "params": {CHANNEL: ["a"]}}),
    "paged_catchup": (rpc.PagedCatchup, {"id": 8, "params": {"channel": CHANNEL, "number_of_messages": 5}}),
}
NOTIFICATIONS = {"greet_server", "broadcast", "heartbeat"}

every_method = pytest.mark.parametrize("method", sorted(QUERIES))


def frame(method: str, **changes: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method} | QUERIES[method][1] | changes


def read(value: object) -> Any:
    return rpc.decode(json.dumps(value).encode())


def fault_of(raw: bytes) -> PeerFault:
    with pytest.raises(PeerFault) as raised:
        rpc.decode(raw)
    assert raised.value.code == "-4"
    assert len(raised.value.message) < 1000
    return raised.value


def refused(value: object) -> PeerFault:
    return fault_of(json.dumps(value).encode())


def test_the_methods_are_those_of_the_table() -> None:
    assert set(rpc.METHODS) == set(QUERIES)


@every_method
def test_a_query_is_read_and_written(method: str) -> None:
    kind, fields = QUERIES[method]
    query = read(frame(method))
    assert type(query) is kind
    assert json.loads(rpc.encode(query)) == frame(method)
    assert rpc.decode(rpc.encode(query)) == query
    assert getattr(query, "id", None) == fields.get("id")


@every_method
def test_every_part_of_a_query_is_required(method: str) -> None:
    for name in ("jsonrpc", "params", *([] if method in NOTIFICATIONS else ["id"])):
        less = {key: value for key, value in frame(method).items() if key != name}
        assert name in refused(less).message


@every_method
def test_unknown_properties_are_refused_where_the_schema_refuses_them(method: str) -> None:
    more = frame(method, surplus=1)
    if method == "unsubscribe":
        assert isinstance(read(more), rpc.Unsubscribe)
    else:
        assert "surplus" in refused(more).message
    inside = frame(method)
    inside["params"] = inside["params"] | {"surplus": 1}
    assert "params" in refused(inside).message


@every_method
def test_another_version_is_refused_under_the_frames_id(method: str) -> None:
    fault = refused(frame(method, jsonrpc="1.0"))
    assert "jsonrpc" in fault.message
    assert fault.request_id == str(QUERIES[method][1].get("id", ""))


@pytest.mark.parametrize("method", sorted(NOTIFICATIONS))
def test_a_notification_has_no_id(method: str) -> None:
    assert refused(frame(method, id=5)).request_id == "5"


@pytest.mark.parametrize("method", ["subscribe", "unsubscribe", "publish", "catchup", "broadcast"])
@pytest.mark.parametrize("channel", ["", "root", "/root/", "/root//a", "/roots", "/root\n", "/root/" + "a" * 600, 1])
def test_channels_follow_the_pattern(method: str, channel: object) -> None:
    params = QUERIES[method][1]["params"] | {"channel": channel}
    assert "params.channel" in refused(frame(method, params=params)).message


@pytest.mark.parametrize("method", ["heartbeat", "get_messages_by_id"])
@pytest.mark.parametrize("params", [{"root": ["a"]}, {CHANNEL: []}, {CHANNEL: "a"}, {CHANNEL: [1]}, []])
def test_ids_by_channel_follow_the_schema(method: str, params: object) -> None:
    assert "params" in refused(frame(method, params=params)).message


@pytest.mark.parametrize("method", ["heartbeat", "get_messages_by_id"])
def test_no_ids_at_all_are_allowed(method: str) -> None:
    assert read(frame(method, params={})).params == {}


@pytest.mark.parametrize("query_id", [0, -1, 2**53 - 1, -(2**53) + 1])
def test_ids_are_integers(query_id: int) -> None:
    assert read(frame("subscribe", id=query_id)).id == query_id


@pytest.mark.parametrize("query_id", ["1", 1.5, None, [], 2**53, 10**400, True])
def test_an_id_that_cannot_be_read_is_answered_with_none(query_id: object) -> None:
    fault = refused(frame("subscribe", id=query_id))
    assert fault.request_id == ""
    assert "id" in fault.message


@pytest.mark.parametrize(
    "changes", [{"public_key": "short"}, {"client_address": "x"}, {"server_address": "http://a/b"}]
)
def test_a_greeting_names_a_key_and_addresses(changes: dict[str, str]) -> None:
    assert next(iter(changes)) in refused(frame("greet_server", params=GREETING | changes)).message


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b"null", b"[]", b"3", b"{}", b'"text"'])
def test_frames_that_are_none(raw: bytes) -> None:
    assert fault_of(raw).request_id == ""


def test_nesting_without_end_is_refused() -> None:
    assert "deep" in fault_of(b'{"jsonrpc":"2.0","method":"publish","id":1,"params":' + b"[" * 100_000).message
    assert "object" in fault_of(b"[" * 100_000).message


def test_an_unknown_method_is_refused_under_its_id() -> None:
    fault = refused({"jsonrpc": "2.0", "method": "dance", "id": 12, "params": {}})
    assert fault.request_id == "12"
    assert "dance" in fault.message


def test_a_message_stays_as_it_came() -> None:
    raw = b'{"jsonrpc":"2.0","method":"publish","id":1,"params":{"channel":"/root","message": {"x" : 1e2 } }}'
    query = rpc.decode(raw)
    assert isinstance(query, rpc.Publish)
    assert bytes(query.params.message).strip() == b'{"x" : 1e2 }'


def test_answers() -> None:
    assert json.loads(rpc.success(-5)) == {"jsonrpc": "2.0", "id": -5, "result": 0}
    made = rpc.message_list(3, [b'{"a":1}', b'{"b":2}'])
    assert json.loads(made) == {"jsonrpc": "2.0", "id": 3, "result": [{"a": 1}, {"b": 2}]}
    made = rpc.message_map(4, {CHANNEL: [b"{}"], "/root": []})
    assert json.loads(made)["result"] == {CHANNEL: [{}], "/root": []}
    assert json.loads(rpc.failure(None, ErrorCode.INVALID_DATA, "why")) == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -4, "description": "why"},
    }
    assert json.loads(rpc.broadcast(CHANNEL, b'{"a":1}')) == frame(
        "broadcast", params={"channel": CHANNEL, "message": {"a": 1}}
    )


def test_answers_are_read() -> None:
    zero = rpc.decode(rpc.success(1))
    assert isinstance(zero, rpc.Answer)
    assert zero.result == msgspec.Raw(b"0")
    listed = rpc.decode(rpc.message_list(3, [b'{"a":1}']))
    assert isinstance(listed, rpc.Answer)
    assert [bytes(each) for each in rpc.messages(listed)] == [b'{"a":1}']
    mapped = rpc.decode(rpc.message_map(3, {CHANNEL: [b"{}"]}))
    assert isinstance(mapped, rpc.Answer)
    assert {name: [bytes(each) for each in found] for name, found in rpc.messages_by_channel(mapped).items()} == {
        CHANNEL: [b"{}"]
    }
    failed = rpc.decode(rpc.failure(None, ErrorCode.INTERNAL, "x" * 10_000))
    assert isinstance(failed, rpc.Answer)
    assert isinstance(failed.error, rpc.Error)
    assert (failed.id, failed.error.code, len(failed.error.description)) == (None, -6, rpc.MAX_DESCRIPTION)
    for wrong, reader in ((zero, rpc.messages), (zero, rpc.messages_by_channel), (failed, rpc.messages)):
        with pytest.raises(PeerFault):
            reader(wrong)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"result": 0, "error": {"code": -1, "description": ""}},
        {"error": {"code": 0, "description": ""}},
        {"error": {"code": -7, "description": ""}},
        {"error": {"code": -1}},
        {"error": {"code": -1, "description": "", "data": 1}},
        {"result": 0, "surplus": 1},
        {"result": 0, "id": "1"},
    ],
)
def test_answers_that_are_none(changes: dict[str, Any]) -> None:
    refused({"jsonrpc": "2.0", "id": 1} | changes)


@given(st.binary())
def test_nothing_but_the_peers_fault_is_raised_on_any_bytes(raw: bytes) -> None:
    with pytest.raises(PeerFault):
        rpc.decode(raw)


@given(st.sampled_from(sorted(QUERIES)), st.integers(0), st.binary(min_size=1, max_size=3))
def test_nothing_but_the_peers_fault_is_raised_on_damaged_frames(method: str, at: int, patch: bytes) -> None:
    raw = json.dumps(frame(method)).encode()
    place = at % len(raw)
    try:
        rpc.decode(raw[:place] + patch + raw[place + len(patch) :])
    except PeerFault as fault:
        assert fault.code == "-4"


@every_method
def test_a_frame_cut_short_is_refused(method: str) -> None:
    raw = json.dumps(frame(method)).encode()
    for size in range(len(raw)):
        fault_of(raw[:size])
    fault_of(raw + b"x")


def test_a_name_made_of_paths_costs_and_tells_no_more_than_another() -> None:
    """A refusal looked through from every mark on would take minutes, for one frame."""
    name = " - at `$" * 120_000 + "\n"
    frame = {"jsonrpc": "2.0", "method": "subscribe", "id": 1, "params": {"channel": "/root"}, name: 1}
    with pytest.raises(PeerFault, match="unknown field") as fault:
        rpc.decode(msgspec.json.encode(frame))
    assert len(fault.value.message) < 500
