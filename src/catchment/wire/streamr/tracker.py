"""The Tracker Protocol: what nodes tell a tracker and what it tells them.

Version 1 as it shipped (facts/streamr.md, section 8) is what we write. Read is also what the document prints: types
14 to 17 under version 2, arrays without a request id, a status that is a text, streams as a list
(spec/streamr-control2-stream32-tracker.md, "Tracker Protocol"). Rows of one type differ in length and are told apart
by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Annotated, Final

import msgspec

from catchment import model
from catchment.errors import PeerFault
from catchment.wire.streamr.fields import (
    INVALID_REQUEST,
    MAX_NAME,
    ArrayReader,
    Field,
    Number,
    RequestId,
    StreamId,
    not_json,
)

VERSION: Final = 1
DOCUMENT_VERSION: Final = 2
DOCUMENT_OFFSET: Final = 13
"""The document's examples number the types from 14, under version 2."""

MAX_PEERS: Final = 1000
"""Nodes one list may name; a neighbour list has four."""

MAX_STREAMS: Final = 10_000
"""Stream-partitions one status may name."""

NodeName = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
NodeNames = Annotated[list[NodeName], msgspec.Meta(max_length=MAX_PEERS)]
Counter = Annotated[int, msgspec.Meta(ge=-1, le=model.MAX_SAFE_INTEGER)]


class TrackerType(IntEnum):
    """Tracker Protocol, table of types."""

    STATUS_MESSAGE = 1
    INSTRUCTION_MESSAGE = 2
    STORAGE_NODES_REQUEST = 3
    STORAGE_NODES_RESPONSE = 4


class Links(msgspec.Struct, frozen=True, rename="camel"):
    """A node's neighbours in one stream-partition, and the last instruction it has carried out."""

    inbound_nodes: NodeNames = []
    outbound_nodes: NodeNames = []
    counter: Counter = 0


class Location(msgspec.Struct, frozen=True):
    """Where a node says it is."""

    latitude: float | None = None
    longitude: float | None = None
    country: Annotated[str, msgspec.Meta(max_length=MAX_NAME)] | None = None
    city: Annotated[str, msgspec.Meta(max_length=MAX_NAME)] | None = None


class Status(msgspec.Struct, frozen=True):
    """What a node says of itself (facts/streamr.md, section 8)."""

    streams: Mapping[str, Links] = {}
    """By key, `streamId::partition`."""
    started: str = ""
    rtts: Mapping[str, float] = {}
    """Milliseconds to each peer it is connected to."""
    location: Location | None = None


class StatusMessage(msgspec.Struct, frozen=True):
    """A node reports to its tracker."""

    request_id: str
    status: Status


class InstructionMessage(msgspec.Struct, frozen=True):
    """The complete list of neighbours a node shall have in a stream-partition."""

    request_id: str
    topic: model.Topic
    node_addresses: Sequence[str]
    counter: int | None
    """None in forms that carry none: then it is the newest."""


class StorageNodesRequest(msgspec.Struct, frozen=True):
    """Who stores a stream-partition?"""

    request_id: str
    topic: model.Topic


class StorageNodesResponse(msgspec.Struct, frozen=True):
    """They do."""

    request_id: str
    topic: model.Topic
    node_addresses: Sequence[str]


TrackerMessage = StatusMessage | InstructionMessage | StorageNodesRequest | StorageNodesResponse


class AnyStatus(msgspec.Struct, frozen=True):
    """A status in any of its forms; what later versions added is passed over."""

    streams: (
        Annotated[dict[str, Links], msgspec.Meta(max_length=MAX_STREAMS)]
        | Annotated[list[str], msgspec.Meta(max_length=MAX_STREAMS)]
    ) = {}
    started: str | int | float = ""
    rtts: dict[str, float | None] | None = None
    location: Location | None = None


_REQUEST_ID = Field("request_id", "requestId", RequestId)
_STATUS = Field("status", "status", AnyStatus | str)
_STREAM_ID = Field("stream_id", "streamId", StreamId)
_PARTITION = Field("stream_partition", "streamPartition", Number)
_ADDRESSES = Field("node_addresses", "nodeAddresses", NodeNames)
_COUNTER = Field("counter", "counter", Counter)

ROWS: Final[Mapping[TrackerType, Sequence[Sequence[Field]]]] = {
    TrackerType.STATUS_MESSAGE: ((_REQUEST_ID, _STATUS), (_STATUS,)),
    TrackerType.INSTRUCTION_MESSAGE: (
        (_REQUEST_ID, _STREAM_ID, _PARTITION, _ADDRESSES, _COUNTER),
        (_STREAM_ID, _PARTITION, _ADDRESSES, _COUNTER),
    ),
    TrackerType.STORAGE_NODES_REQUEST: ((_REQUEST_ID, _STREAM_ID, _PARTITION), (_STREAM_ID, _PARTITION)),
    TrackerType.STORAGE_NODES_RESPONSE: (
        (_REQUEST_ID, _STREAM_ID, _PARTITION, _ADDRESSES),
        (_STREAM_ID, _PARTITION, _ADDRESSES),
    ),
}
"""The elements after version and type, as shipped first, without the request id second."""

_NO_HEAD: Final = "A tracker message is an array that begins with version and type."
_HEAD: Final = (Field("version", "version", Number), Field("type", "type", Number))
_readers: Final = {
    (kind, len(_HEAD) + len(row)): ArrayReader(f"{kind.name.title().replace('_', '')}", (*_HEAD, *row))
    for kind, rows in ROWS.items()
    for row in rows
}
_decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_number = msgspec.json.Decoder(Number).decode
_decode_status = msgspec.json.Decoder(AnyStatus).decode
_encode = msgspec.json.Encoder().encode


def key_of(topic: model.Topic) -> str:
    """The name a stream-partition has in a status and in the choice of its tracker."""
    return f"{topic.name}::{topic.partition}"


def topic_of(key: str) -> model.Topic | None:
    """The stream-partition of such a name; None when it is not one."""
    stream, separator, partition = key.rpartition("::")
    if not separator or not stream or len(stream) > MAX_NAME:
        return None
    if not (partition.isascii() and partition.isdecimal()) or len(partition) > 9:
        return None
    return model.Topic(stream, int(partition))


def tracker_of(topic: model.Topic, trackers: Sequence[str]) -> str:
    """Which of the trackers is a stream-partition's (facts/streamr.md, section 8: since network 20.1).

    Java's hash of the key, as a 32-bit number without its sign, chooses from the sorted addresses.
    """
    number = 0
    for unit in memoryview(key_of(topic).encode("utf-16-le", "surrogatepass")).cast("H"):
        number = (number * 31 + unit) & 0xFFFF_FFFF
    signed = number - (1 << 32) if number >> 31 else number
    return sorted(trackers)[abs(signed) % len(trackers)]


def decode(data: bytes | msgspec.Raw) -> TrackerMessage:
    """Read a tracker message in any documented array form.

    Raises:
        PeerFault: it is none, or an element is not what its row says; the text names the element.
    """
    try:
        elements = _decode_elements(data)
        head = [_decode_number(element) for element in elements[:2]]
    except msgspec.ValidationError:
        raise PeerFault(_NO_HEAD, code=INVALID_REQUEST) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(error) from None
    if len(head) < len(_HEAD):
        raise PeerFault(_NO_HEAD, code=INVALID_REQUEST)
    kind = _kind(*head)
    reader = _readers.get((kind, len(elements)))
    if reader is None:
        raise PeerFault(f"{kind.name.title().replace('_', '')} has {len(elements)} elements.", code=INVALID_REQUEST)
    fields = msgspec.structs.asdict(reader.read(data))
    return assemble(kind, fields)


def _kind(version: int, number: int) -> TrackerType:
    wanted = number - DOCUMENT_OFFSET if version == DOCUMENT_VERSION else number
    if version not in (VERSION, DOCUMENT_VERSION):
        raise PeerFault(f"Tracker Protocol version {version} is not supported, only {VERSION}.", code=INVALID_REQUEST)
    try:
        return TrackerType(wanted)
    except ValueError:
        raise PeerFault(f"There is no tracker message of type {number}.", code=INVALID_REQUEST) from None


def assemble(kind: TrackerType, fields: Mapping[str, object]) -> TrackerMessage:
    """A message from the fields some form carried; what it left out has its default.

    Raises:
        PeerFault: the status cannot be read.
    """
    request_id = fields.get("request_id") or ""
    assert isinstance(request_id, str)
    if kind is TrackerType.STATUS_MESSAGE:
        return StatusMessage(request_id, read_status(fields["status"]))
    stream_id, partition = fields["stream_id"], fields.get("stream_partition") or 0
    assert isinstance(stream_id, str)
    assert isinstance(partition, int)
    topic = model.Topic(stream_id, partition)
    if kind is TrackerType.STORAGE_NODES_REQUEST:
        return StorageNodesRequest(request_id, topic)
    addresses = fields["node_addresses"]
    assert isinstance(addresses, list)
    if kind is TrackerType.STORAGE_NODES_RESPONSE:
        return StorageNodesResponse(request_id, topic, addresses)
    counter = fields.get("counter")
    assert counter is None or isinstance(counter, int)
    return InstructionMessage(request_id, topic, addresses, counter)


def read_status(value: object) -> Status:
    """A status in any of its forms: an object, or a text that holds one or says nothing we can use.

    Raises:
        PeerFault: the object in the text is not a status.
    """
    if isinstance(value, str):
        if not value.lstrip().startswith("{"):
            return Status()  # the Network Layer's example: "status"
        try:
            value = _decode_status(value.encode("utf-8", "surrogatepass"))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PeerFault(f"StatusMessage, status: {error}", code=INVALID_REQUEST) from None
    assert isinstance(value, AnyStatus)
    streams = value.streams if isinstance(value.streams, dict) else dict.fromkeys(value.streams, Links())
    rtts = {node: rtt for node, rtt in (value.rtts or {}).items() if rtt is not None and 0 <= rtt < 1e9}
    return Status(streams, str(value.started), rtts, value.location)


def encode(message: TrackerMessage) -> bytes:
    """The array of a message as version 1 shipped it."""
    match message:
        case StatusMessage():
            return _encode((VERSION, TrackerType.STATUS_MESSAGE, message.request_id, message.status))
        case InstructionMessage():
            counter = 0 if message.counter is None else message.counter
            return _encode(
                (
                    VERSION,
                    TrackerType.INSTRUCTION_MESSAGE,
                    message.request_id,
                    message.topic.name,
                    message.topic.partition,
                    message.node_addresses,
                    counter,
                )
            )
        case StorageNodesRequest():
            topic = message.topic
            return _encode(
                (VERSION, TrackerType.STORAGE_NODES_REQUEST, message.request_id, topic.name, topic.partition)
            )
        case StorageNodesResponse():
            return _encode(
                (
                    VERSION,
                    TrackerType.STORAGE_NODES_RESPONSE,
                    message.request_id,
                    message.topic.name,
                    message.topic.partition,
                    message.node_addresses,
                )
            )
