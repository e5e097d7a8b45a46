"""Streams and permissions as a fold: against a model that knows nothing but sets."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment import model
from catchment.errors import PeerFault
from catchment.wire.streamr import admin

STREAMS = st.sampled_from(["a", "b/c", "d d"])
USERS = st.sampled_from([None, "alice", "0x" + "ab" * 20])
NUMBERS = st.integers(1, 8)
PROPERTIES = st.builds(
    admin.Properties,
    name=st.sampled_from([msgspec.UNSET, "n", "m"]),
    partitions=st.sampled_from([msgspec.UNSET, 1, 7]),
    require_signed=st.sampled_from([msgspec.UNSET, True, False]),
    config=st.sampled_from([msgspec.UNSET, msgspec.Raw(b'{"fields":[]}')]),
)
CHANGES = st.one_of(
    st.builds(
        admin.StreamCreated, stream=STREAMS, at=NUMBERS, properties=PROPERTIES, owner=USERS, first_permission=NUMBERS
    ),
    st.builds(admin.StreamEdited, stream=STREAMS, at=NUMBERS, properties=PROPERTIES),
    st.builds(admin.StreamDeleted, stream=STREAMS, at=NUMBERS),
    st.builds(
        admin.PermissionGranted,
        stream=STREAMS,
        at=NUMBERS,
        id=NUMBERS,
        operation=st.sampled_from(admin.OPERATIONS),
        user=USERS,
    ),
    st.builds(admin.PermissionRevoked, stream=STREAMS, at=NUMBERS, id=NUMBERS),
    st.builds(admin.StorageAdded, stream=STREAMS, at=NUMBERS, address=st.sampled_from(["n1", "n2"])),
    st.builds(admin.StorageRemoved, stream=STREAMS, at=NUMBERS, address=st.sampled_from(["n1", "n2"])),
)


def naive(
    changes: list[admin.Change],
) -> dict[str, tuple[dict[int, tuple[str, str | None]], set[str], dict[str, object]]]:
    """The same by the plainest means: dictionaries that are written to."""
    known: dict[str, tuple[dict[int, tuple[str, str | None]], set[str], dict[str, object]]] = {}
    for change in changes:
        if isinstance(change, admin.StreamCreated):
            if change.stream not in known:
                owned = {}
                if change.owner is not None:
                    for number, operation in enumerate(admin.OPERATIONS):
                        owned[change.first_permission + number] = (operation, change.owner)
                known[change.stream] = (owned, set(), {})
            else:
                continue
        if change.stream not in known:
            continue
        permissions, nodes, properties = known[change.stream]
        if isinstance(change, admin.StreamDeleted):
            del known[change.stream]
        elif isinstance(change, admin.PermissionGranted):
            permissions.setdefault(change.id, (change.operation, change.user))
        elif isinstance(change, admin.PermissionRevoked):
            permissions.pop(change.id, None)
        elif isinstance(change, admin.StorageAdded):
            nodes.add(change.address)
        elif isinstance(change, admin.StorageRemoved):
            nodes.discard(change.address)
        else:
            for name in ("name", "partitions", "require_signed", "config"):
                if getattr(change.properties, name) is not msgspec.UNSET:
                    properties[name] = getattr(change.properties, name)
    return known


@given(st.lists(CHANGES, max_size=30))
def test_the_fold_is_what_a_naive_model_finds(changes: list[admin.Change]) -> None:
    folded = admin.fold(admin.decode(admin.encode(change)) for change in changes)
    expected = naive(changes)
    assert folded.keys() == expected.keys()
    for stream_id, (permissions, nodes, properties) in expected.items():
        stream = folded[stream_id]
        assert {number: (each.operation, each.user) for number, each in stream.permissions.items()} == permissions
        assert set(stream.storage_nodes) == nodes
        for name, value in properties.items():
            assert getattr(stream, name) == (bytes(value) if isinstance(value, msgspec.Raw) else value)


@given(st.lists(CHANGES, max_size=20))
def test_streams_fold_apart_from_each_other(changes: list[admin.Change]) -> None:
    """A pipeline may group the changes by stream first."""
    apart: dict[str, admin.Stream] = {}
    for stream_id in {change.stream for change in changes}:
        apart |= admin.fold(change for change in changes if change.stream == stream_id)
    assert apart == admin.fold(changes)


@given(CHANGES)
def test_a_change_comes_back_from_its_bytes(change: admin.Change) -> None:
    assert admin.encode(admin.decode(admin.encode(change))) == admin.encode(change)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"change":"other","stream":"s","at":1}', b"\xff", b"[" * 99999])
def test_what_is_no_change_is_refused(data: bytes) -> None:
    with pytest.raises(PeerFault):
        admin.decode(data)


def test_places_go_forward_whatever_the_clock_says() -> None:
    first = admin.next_ref(model.Ref(0, 0), 5)
    second = admin.next_ref(first, 5)
    third = admin.next_ref(second, 3)
    assert first < second < third < admin.next_ref(third, 6)


def test_old_names_of_operations_stand_for_new_ones() -> None:
    assert admin.expand("read") == ("stream_get", "stream_subscribe")
    assert admin.expand("stream_share") == ("stream_share",)
    with pytest.raises(PeerFault, match="Unknown operation"):
        admin.expand("fly")
