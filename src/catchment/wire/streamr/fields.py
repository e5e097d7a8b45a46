"""How Streamr's JSON arrays are read: a row of field names per version and type, one decoder made from each row.

"In the following, all `number` are positive integers or zero" (Streamr Protocol, Data Types): floats, negative
numbers and numbers a JSON peer could not hold exactly are refused. Arrays longer than their row are refused too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from catchment.errors import PeerFault
from catchment.model import MAX_SAFE_INTEGER
from catchment.wire.refusals import split_path

INVALID_REQUEST: Final = "INVALID_REQUEST"

Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_SAFE_INTEGER)]
NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]

MAX_NAME: Final = 1024
"""Characters of a stream id, publisher id or chain id: they are indexed, and repeated in notes and statistics. The
documents set no limit; the longest in use are well below a hundred."""

MAX_REQUEST_ID: Final = 256
"""Characters of a request id: a resend repeats it with every message."""

Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
StreamId = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
RequestId = Annotated[str, msgspec.Meta(max_length=MAX_REQUEST_ID)]

_INDEX = re.compile(r"\[(\d+)\]")


class MessageID(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """Stream Protocol, MessageID: what identifies a message."""

    stream_id: StreamId
    stream_partition: Number
    timestamp: Number
    sequence_number: Number
    publisher_id: Name
    msg_chain_id: Name


class MessageRef(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """Stream Protocol, MessageRef: a place in a message chain."""

    timestamp: Number
    sequence_number: Number


class LooseMessageRef(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """A reference inside a request, where the sequence may be null or left out (facts/streamr.md, section 2)."""

    timestamp: Number
    sequence_number: Number | None = None


class LaxMessageID(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """The MessageID of version 30, where publisher and chain may be null (facts/streamr.md, section 3)."""

    stream_id: StreamId
    stream_partition: Number
    timestamp: Number
    sequence_number: Number
    publisher_id: Name | None
    msg_chain_id: Name | None


class Field(NamedTuple):
    """A column of the tables; an optional one may be left out at the end."""

    attribute: str
    name: str
    type: object
    optional: bool = False


class ArrayReader:
    """One row of a version table: reads one kind of array and names its elements in errors."""

    def __init__(self, what: str, row: Sequence[Field], *, struct: type[msgspec.Struct] | None = None) -> None:
        """Make the decoder of a row.

        Args:
            what: the document's name of the array, for errors.
            row: its elements in order.
            struct: a value that already has this very layout, to be filled directly.
        """
        self.what = what
        self.names = tuple(field.name for field in row)
        self.struct = struct or _struct_of(what, row)
        self._decode = msgspec.json.Decoder(self.struct).decode

    def read(self, data: bytes | msgspec.Raw) -> msgspec.Struct:
        """Decode one array.

        Raises:
            PeerFault: it is not JSON, or an element is not what the row says; the text names the element.
        """
        try:
            return self._decode(data)
        except msgspec.ValidationError as error:
            raise PeerFault(explain(self.what, self.names, error), code=INVALID_REQUEST) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise not_json(error) from None


def _struct_of(what: str, row: Sequence[Field]) -> type[msgspec.Struct]:
    columns: list[Any] = [
        (field.attribute, field.type, None) if field.optional else (field.attribute, field.type) for field in row
    ]
    return msgspec.defstruct(what, columns, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False)


_decode_text = msgspec.json.Decoder(NonEmpty).decode


def content_text(raw: msgspec.Raw, what: str) -> str:
    """A message's content as text, whether it was sent as text or, as shipped software tolerated, as an object.

    An object is the text it stands as in the frame: that is what its sender's JSON.stringify gave.

    Raises:
        PeerFault: it is empty, or neither text nor an object; `what` names it.
    """
    data = bytes(raw)
    try:
        return data.decode() if data[:1] in (b"{", b"[") else _decode_text(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise PeerFault(f"{what}: Expected text of at least one character.", code=INVALID_REQUEST) from None


def not_json(error: Exception) -> PeerFault:
    """The fault of a frame that cannot be read at all."""
    if isinstance(error, RecursionError):
        return PeerFault("The frame is nested too deeply to be read.", code=INVALID_REQUEST)
    return PeerFault(f"The frame is not valid JSON: {error}", code=INVALID_REQUEST)


_NESTED: Final[Mapping[str, tuple[str, ...]]] = {
    "msgId": ("streamId", "streamPartition", "timestamp", "sequenceNumber", "publisherId", "msgChainId"),
    "prevMsgRef": ("timestamp", "sequenceNumber"),
    "fromMsgRef": ("timestamp", "sequenceNumber"),
    "toMsgRef": ("timestamp", "sequenceNumber"),
}


def explain(what: str, names: Sequence[str], error: msgspec.ValidationError) -> str:
    """Word a validation error with the document's field names instead of positions."""
    text, found = split_path(error)
    if not found:
        return f"{what}: {text}"
    steps = [int(step) for step in _INDEX.findall(found)]
    path: list[str] = []
    known: Sequence[str] = names
    for step in steps:
        name = known[step] if step < len(known) else f"element {step}"
        path.append(name)
        known = _NESTED.get(name, ())
    return f"{what}, {'.'.join(path)}: {text}"
