"""Mosaic's twenty messages in both layouts (spec/mosaic-messages.md; facts/mosaic.md, sections 3.1 and 6).

A layout is a table, a message in it a row: where its length stands, where its fields stand, where its body begins.
Layout A is the document: the length of the whole message at [1:4], except in five messages that have none there.
Layout B is what the implementations at hand speak: the length at [4:8] in every message. What is reserved is written
as zero and not looked at.

The document leaves three bodies open. Hello Auth is the 64-byte signature in both layouts. DHT Lookup and Response
exist in layout B only; in layout A they have the same bodies behind the usual header, with the flag or result at [4].
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from catchment.errors import PeerFault
from catchment.wire.mosaic.record import REFERENCE_BYTES
from catchment.wire.mosaic.results import Result, invalid

HEADER: Final = 8
"""No message is shorter, and so many bytes tell how long it is."""

UNRECOGNIZED: Final = "UNRECOGNIZED"
"""The code of a fault that is answered with the message of that name and not with a result."""


class MessageType(IntEnum):
    """The first byte of a message."""

    GET = 0x01
    QUERY = 0x02
    SUBSCRIBE = 0x03
    UNSUBSCRIBE = 0x04
    SUBMISSION = 0x05
    DHT_LOOKUP = 0x06
    BLOB_SUBMISSION = 0x07
    BLOB_GET = 0x08
    HELLO = 0x10
    HELLO_AUTH = 0x11
    RECORD = 0x80
    LOCALLY_COMPLETE = 0x81
    QUERY_CLOSED = 0x82
    SUBMISSION_RESULT = 0x83
    DHT_RESPONSE = 0x84
    BLOB_SUBMISSION_RESULT = 0x85
    BLOB_RESULT = 0x86
    HELLO_ACK = 0x90
    UNRECOGNIZED = 0xF0
    CLOSING = 0xFE

    @property
    def from_client(self) -> bool:
        """Whether clients send it. Unrecognized is sent by either side."""
        return self < 0x80 or self is MessageType.UNRECOGNIZED


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message of any type; each type fills the fields of its row.

    Attributes:
        query_id: two bytes the client made up.
        limit: how many stored records are wanted at most; 0 for all.
        version: the highest major version of Mosaic.
        applications: which a client wants or a server grants.
        references: ids and addresses.
        server: whether a server's bootstrap is looked for, not a user's.
        subject: the 32 bytes a message is about: a hash, the beginning of an id, or a key.
        body: what the message carries: a record, a filter, a blob, a signature, a bootstrap.
    """

    type: MessageType
    query_id: bytes = b"\0\0"
    result: Result = Result.SUCCESS
    limit: int = 0
    version: int = 0
    applications: tuple[int, ...] = ()
    references: tuple[bytes, ...] = ()
    server: int = 0
    subject: bytes = bytes(32)
    body: bytes = b""


class Length(NamedTuple):
    """Where a message's length stands, and what it leaves out."""

    start: int
    end: int
    beside: int = 0
    """Bytes of the message that are not counted."""

    def read(self, head: bytes) -> int:
        """The length of the whole message."""
        return int.from_bytes(head[self.start : self.end], "little") + self.beside


class Field(NamedTuple):
    """A field of the header."""

    name: str
    start: int
    end: int


class Body(NamedTuple):
    """What stands behind the header: a field of `Message`, and of how many bytes each its pieces are."""

    name: str
    start: int
    piece: int = 1
    exact: int | None = None
    """The one size there is, where there is only one."""


class Row(NamedTuple):
    """How one message is laid out."""

    length: Length
    fields: tuple[Field, ...] = ()
    body: Body | None = None
    size: int = HEADER
    """The bytes before the body."""


class Layout(msgspec.Struct, frozen=True):
    """A layout: its rows, and where a message of no known type has its length."""

    name: str
    rows: Mapping[int, Row]
    length: Length

    def __repr__(self) -> str:
        return f"Layout({self.name})"


_T = MessageType


def _row(length: Length, *parts: Field | Body) -> Row:
    fields = tuple(part for part in parts if isinstance(part, Field))
    bodies = [part for part in parts if isinstance(part, Body)]
    end = max((field.end for field in fields), default=HEADER)
    size = bodies[0].start if bodies else max(HEADER, end)
    return Row(length, fields, bodies[0] if bodies else None, size)


_SUBJECT: Final = Field("subject", 8, 40)
_RECORD: Final = Body("body", 8)
_SIGNATURE: Final = Body("body", 8, exact=64)
_APPLICATIONS: Final = Body("applications", 8, piece=4)
_REFERENCES: Final = Body("references", 8, piece=REFERENCE_BYTES)
_BLOB: Final = Body("body", 40)


def _layout_a() -> Layout:
    whole, none, blob = Length(1, 4), Length(0, 0, HEADER), Length(2, 8, 40)
    hashed = Length(0, 0, 40)
    query, version = Field("query_id", 4, 6), Field("version", 6, 8)
    limit, early, result = Field("limit", 6, 8), Field("result", 1, 2), Field("result", 4, 5)
    rows: dict[int, Row] = {
        _T.GET: _row(whole, query, _REFERENCES),
        _T.QUERY: _row(whole, query, limit, _RECORD),
        _T.SUBSCRIBE: _row(whole, query, limit, _RECORD),
        _T.UNSUBSCRIBE: _row(whole, query),
        _T.SUBMISSION: _row(whole, _RECORD),
        _T.DHT_LOOKUP: _row(whole, Field("server", 4, 5), _SUBJECT),
        _T.BLOB_SUBMISSION: _row(blob, _SUBJECT, _BLOB),
        _T.BLOB_GET: _row(hashed, _SUBJECT),
        _T.HELLO: _row(whole, version, _APPLICATIONS),
        _T.HELLO_AUTH: _row(whole, _SIGNATURE),
        _T.RECORD: _row(whole, query, _RECORD),
        _T.LOCALLY_COMPLETE: _row(whole, query),
        _T.QUERY_CLOSED: _row(whole, query, Field("result", 6, 7)),
        _T.SUBMISSION_RESULT: _row(whole, result, _SUBJECT),
        _T.DHT_RESPONSE: _row(whole, result, _RECORD),
        _T.BLOB_SUBMISSION_RESULT: _row(hashed, early, _SUBJECT),
        _T.BLOB_RESULT: _row(blob, early, _SUBJECT, _BLOB),
        _T.HELLO_ACK: _row(whole, result, version, _APPLICATIONS),
        _T.UNRECOGNIZED: _row(whole),
        _T.CLOSING: _row(none, early),
    }
    return Layout("A", rows, whole)


def _layout_b() -> Layout:
    whole = Length(4, 8)
    query, version = Field("query_id", 2, 4), Field("version", 3, 4)
    result, limit = Field("result", 1, 2), Field("limit", 8, 10)
    filtered = Body("body", 16)
    rows: dict[int, Row] = {
        _T.GET: _row(whole, query, _REFERENCES),
        _T.QUERY: _row(whole, query, limit, filtered),
        _T.SUBSCRIBE: _row(whole, query, limit, filtered),
        _T.UNSUBSCRIBE: _row(whole, query),
        _T.SUBMISSION: _row(whole, _RECORD),
        _T.DHT_LOOKUP: _row(whole, Field("server", 1, 2), _SUBJECT),
        _T.BLOB_SUBMISSION: _row(whole, _SUBJECT, _BLOB),
        _T.BLOB_GET: _row(whole, _SUBJECT),
        _T.HELLO: _row(whole, version, _APPLICATIONS),
        _T.HELLO_AUTH: _row(whole, _SIGNATURE),
        _T.RECORD: _row(whole, query, _RECORD),
        _T.LOCALLY_COMPLETE: _row(whole, query),
        _T.QUERY_CLOSED: _row(whole, result, query),
        _T.SUBMISSION_RESULT: _row(whole, result, _SUBJECT),
        _T.DHT_RESPONSE: _row(whole, result, _RECORD),
        _T.BLOB_SUBMISSION_RESULT: _row(whole, result, _SUBJECT),
        _T.BLOB_RESULT: _row(whole, result, _SUBJECT, _BLOB),
        _T.HELLO_ACK: _row(whole, result, version, _APPLICATIONS),
        _T.UNRECOGNIZED: _row(whole),
        _T.CLOSING: _row(whole, result),
    }
    return Layout("B", rows, whole)


LAYOUT_A: Final = _layout_a()
LAYOUT_B: Final = _layout_b()
LAYOUTS: Final = (LAYOUT_A, LAYOUT_B)

_TYPES: Final = {kind.value: kind for kind in MessageType}
_RESULTS: Final = {result.value: result for result in Result}
_AS_BYTES: Final = frozenset({"query_id", "subject"})


# How long a message is, and which layout it is in.


def frame_size(head: bytes, layout: Layout) -> int:
    """How many bytes the message has that begins with these eight.

    Raises:
        PeerFault: fewer than its header; where the next one begins cannot be known.
    """
    row = layout.rows.get(head[0])
    size = (layout.length if row is None else row.length).read(head)
    if size < HEADER:
        raise invalid(f"A message has at least {HEADER} bytes; this one says it has {size}.")
    return size


def recognise(frame: bytes, size: int | None = None) -> Layout:
    """The layout of a whole message on its own: the one whose length field fits, A when both do or neither does.

    Where A has no length field, B's decides: those bytes are zero in A.

    Args:
        frame: the message, or its beginning.
        size: how long the message is, if `frame` is only its beginning.
    """
    length = len(frame) if size is None else size
    if len(frame) >= HEADER and not _fits(frame, length, LAYOUT_A) and _fits(frame, length, LAYOUT_B):
        return LAYOUT_B
    return LAYOUT_A


def _fits(frame: bytes, size: int, layout: Layout) -> bool:
    row = layout.rows.get(frame[0])
    length = layout.length if row is None else row.length
    return length.end > 0 and length.read(frame) == size


def recognise_hello(head: bytes) -> Layout:
    """The layout of a stream that begins with this Hello: in B the bytes [1:3] are zero, in A they hold the length."""
    return LAYOUT_A if head[1] or head[2] else LAYOUT_B


# Reading and writing.


def decode(frame: bytes, layout: Layout) -> Message:
    """Read a whole message.

    Raises:
        PeerFault: of no known type (code `UNRECOGNIZED`), or not laid out as its row says (code `INVALID`).
    """
    kind = _TYPES.get(frame[0]) if frame else None
    if kind is None:
        what = f"of type {frame[0]:#04x}" if frame else "without a byte"
        raise PeerFault(f"There is no message {what}.", code=UNRECOGNIZED)
    row = layout.rows[kind]
    size = len(frame)
    if size < row.size or row.length.read(frame) != size:
        raise invalid(f"{kind.name} of {size} bytes does not have the length it says.")
    values: dict[str, object] = {}
    for name, start, end in row.fields:
        piece = frame[start:end]
        values[name] = piece if name in _AS_BYTES else int.from_bytes(piece, "little")
    if "result" in values:
        found = _RESULTS.get(values["result"])  # type: ignore[call-overload]
        if found is None:
            raise invalid(f"{kind.name} has the result {values['result']}, which is not defined.")
        values["result"] = found
    if row.body is None:
        if size != row.size:
            raise invalid(f"{kind.name} has {row.size} bytes, not {size}.")
    else:
        values[row.body.name] = _read_body(kind, row.body, frame)
    return Message(kind, **values)  # type: ignore[arg-type]


def _read_body(kind: MessageType, body: Body, frame: bytes) -> object:
    content = frame[body.start :]
    if len(content) % body.piece or body.exact not in (None, len(content)):
        raise invalid(f"{kind.name} carries {len(content)} bytes, which do not come out even.")
    if body.piece == 1:
        return content
    pieces = [content[at : at + body.piece] for at in range(0, len(content), body.piece)]
    if body.name == "applications":
        return tuple(int.from_bytes(piece, "little") for piece in pieces)
    return tuple(pieces)


def encode(message: Message, layout: Layout) -> bytes:
    """Write a message.

    Raises:
        ValueError: it does not fit this layout's numbers.
    """
    row = layout.rows[message.type]
    body = b"" if row.body is None else _body_bytes(message, row.body)
    head = bytearray(row.size)
    head[0] = message.type
    for name, start, end in row.fields:
        value = getattr(message, name)
        piece = value if isinstance(value, bytes) else _number(value, end - start, name)
        if len(piece) != end - start:
            raise ValueError(f"{name} has {end - start} bytes, not {len(piece)}")
        head[start:end] = piece
    start, end, beside = row.length
    if end:
        head[start:end] = _number(len(head) + len(body) - beside, end - start, "length")
    return bytes(head) + body


class RecordWriter:
    """Writes the Record messages of one query; what all of them have in common is made once."""

    __slots__ = ("_behind", "_size", "_start", "_width")

    def __init__(self, query_id: bytes, layout: Layout) -> None:
        head = encode(Message(MessageType.RECORD, query_id=query_id), layout)
        start, end, _ = layout.rows[MessageType.RECORD].length
        self._start, self._behind = head[:start], head[end:]
        self._width = end - start
        self._size = len(head)

    def write(self, raw: bytes) -> bytes:
        """The message that carries a record."""
        length = (self._size + len(raw)).to_bytes(self._width, "little")
        return b"".join((self._start, length, self._behind, raw))


def _body_bytes(message: Message, body: Body) -> bytes:
    if body.name == "applications":
        return b"".join(application.to_bytes(4, "little") for application in message.applications)
    if body.name == "references":
        return b"".join(message.references)
    return message.body


def _number(value: int, size: int, name: str) -> bytes:
    try:
        return value.to_bytes(size, "little")
    except OverflowError:
        raise ValueError(f"{name} {value} does not fit into {size} bytes") from None
