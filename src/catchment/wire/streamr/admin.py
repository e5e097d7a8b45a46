"""Streams and permissions as a fold over the log's `admin` entries.

Each change is one JSON object, kept as the exact bytes of an entry of kind `admin` (DESIGN.md, "The entry"). `step`
is the whole of the rules: what a stream is after a change, given what it was before. The node folds at start and
after each commit; a pipeline can do the same per stream. Nothing secret is ever part of a change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import msgspec

from catchment import model
from catchment.errors import PeerFault
from catchment.wire.streamr.fields import INVALID_REQUEST, Name, Number, StreamId

ADMIN_TOPIC: Final = model.Topic("", 0)
"""Where admin entries stand in the log: a name no client can subscribe to, because stream ids are not empty."""

OPERATIONS: Final = ("stream_get", "stream_edit", "stream_delete", "stream_publish", "stream_subscribe", "stream_share")
"""facts/streamr.md, section 9."""

OLD_OPERATIONS: Final = {
    "read": ("stream_get", "stream_subscribe"),
    "write": ("stream_publish", "stream_edit", "stream_delete"),
    "share": ("stream_share",),
}
"""What the names used before 2020 stand for."""

MAX_PARTITIONS: Final = 100
"""As many as Streamr streams could have."""

MAX_CONFIG: Final = 64 * 1024
"""Bytes of a stream's `config`, as JSON."""

Partitions = Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTITIONS)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
EMPTY_CONFIG: Final = msgspec.Raw(b"{}")


class Permission(msgspec.Struct, frozen=True, gc=False):
    """One user (None: everyone) may do one thing."""

    id: int
    operation: str
    user: str | None


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one stream."""

    id: str
    name: str
    description: str = ""
    partitions: int = 1
    require_signed: bool = False
    require_encrypted: bool = False
    storage_days: int = 365
    config: bytes = b"{}"
    """JSON of the clients' own making; not looked into."""
    created: int = 0
    """Milliseconds, UTC."""
    updated: int = 0
    permissions: Mapping[int, Permission] = {}
    """By number, in the order they were granted."""
    storage_nodes: tuple[str, ...] = ()


class Properties(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a stream that its owner sets; what is not given stays as it is."""

    name: Name | msgspec.UnsetType = msgspec.UNSET
    description: Text | msgspec.UnsetType = msgspec.UNSET
    partitions: Partitions | msgspec.UnsetType = msgspec.UNSET
    require_signed: bool | msgspec.UnsetType = msgspec.UNSET
    require_encrypted: bool | msgspec.UnsetType = msgspec.UNSET
    storage_days: Number | msgspec.UnsetType = msgspec.UNSET
    config: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Change(msgspec.Struct, frozen=True, kw_only=True, tag_field="change"):
    stream: StreamId
    at: Number
    """Milliseconds, UTC."""


class StreamCreated(_Change, frozen=True, kw_only=True, tag="stream_created"):
    """A stream with these properties; its owner gets every permission, numbered from `first_permission` on."""

    properties: Properties
    owner: Name | None = None
    first_permission: Number = 0


class StreamEdited(_Change, frozen=True, kw_only=True, tag="stream_edited"):
    """Other properties."""

    properties: Properties


class StreamDeleted(_Change, frozen=True, kw_only=True, tag="stream_deleted"):
    """The stream and its permissions are gone; its messages stay in the log."""


class PermissionGranted(_Change, frozen=True, kw_only=True, tag="permission_granted"):
    """A permission for a user, or for everyone."""

    id: Number
    operation: Name
    user: Name | None


class PermissionRevoked(_Change, frozen=True, kw_only=True, tag="permission_revoked"):
    """A permission is taken back."""

    id: Number


class StorageAdded(_Change, frozen=True, kw_only=True, tag="storage_added"):
    """A storage node is asked to keep the stream."""

    address: Name


class StorageRemoved(_Change, frozen=True, kw_only=True, tag="storage_removed"):
    """A storage node need not keep the stream any more."""

    address: Name


Change = (
    StreamCreated | StreamEdited | StreamDeleted | PermissionGranted | PermissionRevoked | StorageAdded | StorageRemoved
)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Change).decode


def encode(change: Change) -> bytes:
    """The bytes the log keeps."""
    return _encode(change)


def decode(data: bytes) -> Change:
    """Read what the log kept.

    Raises:
        PeerFault: these bytes are no change this version knows.
    """
    try:
        change: Change = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerFault(f"This is no admin entry that can be read: {error}", code=INVALID_REQUEST) from None
    return change


def to_entry(change: Change, *, by: str, ref: model.Ref, received_at: int) -> model.Entry:
    """The log's line for a change made by the user `by`; `ref` is its place among all changes."""
    return model.Entry(
        kind=model.Kind.ADMIN,
        protocol=model.Protocol.STREAMR,
        version=1,
        topic=ADMIN_TOPIC.name,
        partition=ADMIN_TOPIC.partition,
        publisher=by,
        chain="",
        timestamp=ref.timestamp,
        sequence=ref.sequence,
        prev_timestamp=None,
        prev_sequence=None,
        event_time=change.at * 1_000_000,
        id=b"",
        verdict=model.Verdict.OK,
        received_at=received_at,
        raw=encode(change),
    )


def next_ref(last: model.Ref, now_ms: int) -> model.Ref:
    """The place of the next change: after the last one whatever the clock says."""
    if now_ms > last.timestamp:
        return model.Ref(now_ms, 0)
    return model.Ref(last.timestamp, last.sequence + 1)


def step(stream: Stream | None, change: Change) -> Stream | None:
    """What a stream is after a change; None when it does not exist.

    A change that does not fit (of a stream that is not there, of a permission that is not there or there already)
    changes nothing.
    """
    if isinstance(change, StreamCreated):
        return stream or _created(change)
    if stream is None or isinstance(change, StreamDeleted):
        return None
    match change:
        case StreamEdited():
            return _with(stream, change.properties, change.at)
        case PermissionGranted():
            added = Permission(change.id, change.operation, change.user)
            if change.id in stream.permissions:
                return stream
            return msgspec.structs.replace(stream, permissions={**stream.permissions, change.id: added})
        case PermissionRevoked():
            left = dict(stream.permissions)
            left.pop(change.id, None)
            return msgspec.structs.replace(stream, permissions=left)
        case StorageAdded():
            nodes = dict.fromkeys((*stream.storage_nodes, change.address))
            return msgspec.structs.replace(stream, storage_nodes=tuple(nodes))
        case StorageRemoved():
            kept = tuple(each for each in stream.storage_nodes if each != change.address)
            return msgspec.structs.replace(stream, storage_nodes=kept)


def _created(change: StreamCreated) -> Stream:
    owned: dict[int, Permission] = {}
    if change.owner is not None:
        for number, operation in enumerate(OPERATIONS, change.first_permission):
            owned[number] = Permission(number, operation, change.owner)
    plain = Stream(id=change.stream, name=change.stream, created=change.at, permissions=owned)
    return _with(plain, change.properties, change.at)


def _with(stream: Stream, properties: Properties, at: int) -> Stream:
    given = {
        name: bytes(value) if isinstance(value, msgspec.Raw) else value
        for name in properties.__struct_fields__
        if (value := getattr(properties, name)) is not msgspec.UNSET
    }
    return msgspec.structs.replace(stream, updated=at, **given)


def fold(changes: Iterable[Change]) -> dict[str, Stream]:
    """The streams there are after all changes, in their order."""
    streams: dict[str, Stream] = {}
    for change in changes:
        after = step(streams.get(change.stream), change)
        if after is None:
            streams.pop(change.stream, None)
        else:
            streams[change.stream] = after
    return streams


def next_permission(changes: Iterable[Change]) -> int:
    """A number that no permission has or had after these changes."""
    number = 1
    for change in changes:
        if isinstance(change, StreamCreated):
            number = max(number, change.first_permission + len(OPERATIONS))
        elif isinstance(change, PermissionGranted):
            number = max(number, change.id + 1)
    return number


def expand(operation: str) -> tuple[str, ...]:
    """The operations a name stands for, in its old or its new form.

    Raises:
        PeerFault: it is none.
    """
    if operation in OPERATIONS:
        return (operation,)
    if operation in OLD_OPERATIONS:
        return OLD_OPERATIONS[operation]
    known = ", ".join((*OPERATIONS, *OLD_OPERATIONS))
    raise PeerFault(f"Unknown operation {operation[:100]!r}; there are {known}.", code=INVALID_REQUEST)
