"""Frames between nodes, and between nodes and trackers, in every era of the network.

An era is a row of `ERAS` (facts/streamr.md, section 8; spec/streamr-network-control2-message31.md, "Network Layer"):

    V20      tracker messages as arrays of version 1, control messages as they are    nodes 20 to 22; what we speak
    OBJECT   {"version", "code", "payload"}, control messages inside a wrapper        nodes 4.4 to 19
    ARRAY    ["4.4.3", type, source, ...], control messages inside a wrapper          the document; never shipped

The first frame tells which one a peer speaks, and it is answered in kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Annotated, Final

import msgspec

from catchment.errors import PeerFault
from catchment.wire.streamr import tracker
from catchment.wire.streamr.fields import INVALID_REQUEST, MAX_NAME, ArrayReader, Field, Number, StreamId, not_json
from catchment.wire.streamr.tracker import Counter, NodeNames, TrackerMessage, TrackerType

OBJECT_VERSION: Final = "19.0.7"
"""The version we give in the object form: the last that spoke it."""

ARRAY_VERSION: Final = "4.4.3"
WRAPPER: Final = 4


class Era(Enum):
    """A way to write the same messages."""

    V20 = "20"
    OBJECT = "19"
    ARRAY = "4.4.3"


class Frame(msgspec.Struct, frozen=True):
    """One frame, read: a tracker message, or the control message it carries."""

    era: Era
    tracker: TrackerMessage | None = None
    control: bytes | None = None


_Version = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]


class _Object(msgspec.Struct, frozen=True):
    """The envelope of nodes 4.4 to 19."""

    version: _Version
    code: Number
    payload: msgspec.Raw


class _Place(msgspec.Struct, frozen=True, rename="camel"):
    """The payload that names a stream-partition, with what an instruction or answer adds."""

    stream_id: StreamId
    stream_partition: Number = 0
    node_addresses: NodeNames = []
    counter: Counter | None = None


class _Wrapped(msgspec.Struct, frozen=True, rename="camel"):
    serialized_control_layer_payload: str


_OBJECT_CODES: Final = {
    0: TrackerType.STATUS_MESSAGE,
    1: TrackerType.INSTRUCTION_MESSAGE,
    2: TrackerType.STORAGE_NODES_REQUEST,
    3: TrackerType.STORAGE_NODES_RESPONSE,
}
"""Network Layer, table of types; the object form has the same codes. 4 is the wrapper."""
_CODES: Final = {kind: code for code, kind in _OBJECT_CODES.items()}

_HEAD: Final = (
    Field("version", "version", _Version),
    Field("type", "type", Number),
    Field("source", "source", Annotated[str, msgspec.Meta(max_length=MAX_NAME)]),
)
_STREAM_ID = Field("stream_id", "streamId", StreamId)
_ADDRESSES = Field("node_addresses", "nodeAddresses", NodeNames)
ARRAY_ROWS: Final[Mapping[int, tuple[Field, ...]]] = {
    0: (Field("status", "status", msgspec.Raw),),
    1: (_STREAM_ID, _ADDRESSES),  # and so its StorageNodesMessage example, which has type 1, reads as an instruction
    2: (_STREAM_ID,),
    3: (_STREAM_ID, _ADDRESSES),
    WRAPPER: (Field("control", "controlLayerPayload", msgspec.Raw),),
}
_NAMES: Final = (
    "StatusMessage",
    "InstructionMessage",
    "FindStorageNodesMessage",
    "StorageNodesMessage",
    "WrapperMessage",
)
_array_readers: Final = {code: ArrayReader(_NAMES[code], (*_HEAD, *row)) for code, row in ARRAY_ROWS.items()}


class _ArrayHead(msgspec.Struct, array_like=True):
    version: str | int
    type: Number


_decode_object = msgspec.json.Decoder(_Object).decode
_decode_place = msgspec.json.Decoder(_Place).decode
_decode_wrapped = msgspec.json.Decoder(_Wrapped).decode
_decode_head = msgspec.json.Decoder(_ArrayHead).decode
_decode_any_status = msgspec.json.Decoder(tracker.AnyStatus | str).decode
_encode = msgspec.json.Encoder().encode


def read(data: bytes) -> Frame:
    """Read a frame of any era.

    Raises:
        PeerFault: it is a frame of none.
    """
    try:
        if data.lstrip(b" \t\r\n").startswith(b"{"):
            return _read_object(data)
        head = _decode_head(data)
    except msgspec.ValidationError as error:
        raise PeerFault(f"The frame is not one of the network: {error}", code=INVALID_REQUEST) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(error) from None
    if isinstance(head.version, str):
        return _read_array(data, head.type)
    if head.version == tracker.DOCUMENT_VERSION and head.type <= tracker.DOCUMENT_OFFSET:
        return Frame(Era.V20, control=data)
    return Frame(Era.V20, tracker=tracker.decode(data))


def _read_object(data: bytes) -> Frame:
    envelope = _decode_object(data)
    if envelope.code == WRAPPER:
        text = _decode_wrapped(envelope.payload).serialized_control_layer_payload
        return Frame(Era.OBJECT, control=text.encode("utf-8", "surrogatepass"))
    kind = _OBJECT_CODES.get(envelope.code)
    if kind is None:
        raise PeerFault(f"There is no network message with code {envelope.code}.", code=INVALID_REQUEST)
    if kind is TrackerType.STATUS_MESSAGE:
        fields: dict[str, object] = {"status": _decode_any_status(envelope.payload)}
    else:
        fields = msgspec.structs.asdict(_decode_place(envelope.payload))
    return Frame(Era.OBJECT, tracker=tracker.assemble(kind, fields))


def _read_array(data: bytes, code: int) -> Frame:
    reader = _array_readers.get(code)
    if reader is None:
        raise PeerFault(f"There is no network message of type {code}.", code=INVALID_REQUEST)
    fields = msgspec.structs.asdict(reader.read(data))
    if code == WRAPPER:
        return Frame(Era.ARRAY, control=bytes(fields["control"]))
    if "status" in fields:
        fields["status"] = _decode_any_status(fields["status"])
    return Frame(Era.ARRAY, tracker=tracker.assemble(_OBJECT_CODES[code], fields))


def write_tracker(message: TrackerMessage, era: Era, source: str = "") -> bytes:
    """A tracker message in an era's form."""
    return _TRACKER_WRITERS[era](message, source)


def write_control(control: bytes, era: Era, source: str = "") -> bytes:
    """A control message on its way to another node, in an era's form."""
    if era is Era.V20:
        return control
    if era is Era.OBJECT:
        payload = {"serializedControlLayerPayload": control.decode()}
        return _encode({"version": OBJECT_VERSION, "code": WRAPPER, "payload": payload})
    return b'["%b",%d,%b,%b]' % (ARRAY_VERSION.encode(), WRAPPER, _encode(source), control)


def _write_v20(message: TrackerMessage, _source: str) -> bytes:
    return tracker.encode(message)


def _write_object(message: TrackerMessage, _source: str) -> bytes:
    kind = _kind_of(message)
    payload: object
    match message:
        case tracker.StatusMessage():
            payload = message.status
        case tracker.StorageNodesRequest():
            payload = {"streamId": message.topic.name, "streamPartition": message.topic.partition}
        case tracker.StorageNodesResponse() | tracker.InstructionMessage():
            payload = {
                "streamId": message.topic.name,
                "streamPartition": message.topic.partition,
                "nodeAddresses": message.node_addresses,
            }
            if isinstance(message, tracker.InstructionMessage):
                payload["counter"] = message.counter or 0
    return _encode({"version": OBJECT_VERSION, "code": _CODES[kind], "payload": payload})


def _write_array(message: TrackerMessage, source: str) -> bytes:
    head = (ARRAY_VERSION, _CODES[_kind_of(message)], source)
    match message:
        case tracker.StatusMessage():
            return _encode((*head, message.status))
        case tracker.StorageNodesRequest():
            return _encode((*head, message.topic.name))
        case tracker.StorageNodesResponse() | tracker.InstructionMessage():
            return _encode((*head, message.topic.name, message.node_addresses))


def _kind_of(message: TrackerMessage) -> TrackerType:
    return _KINDS[type(message)]


_KINDS: Final[Mapping[type, TrackerType]] = {
    tracker.StatusMessage: TrackerType.STATUS_MESSAGE,
    tracker.InstructionMessage: TrackerType.INSTRUCTION_MESSAGE,
    tracker.StorageNodesRequest: TrackerType.STORAGE_NODES_REQUEST,
    tracker.StorageNodesResponse: TrackerType.STORAGE_NODES_RESPONSE,
}
_TRACKER_WRITERS: Final[Mapping[Era, Callable[[TrackerMessage, str], bytes]]] = {
    Era.V20: _write_v20,
    Era.OBJECT: _write_object,
    Era.ARRAY: _write_array,
}
