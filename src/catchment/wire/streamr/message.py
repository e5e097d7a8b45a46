"""The Stream Protocol: messages as their publishers signed them.

A version is a row of `ROWS`; every version is read into the one `StreamMessage`, and `signed_payload` is the one
place that knows what a signature covers. Layouts: Stream Protocol 32 (spec/streamr-control2-stream32-tracker.md),
Message Layer 31 (spec/streamr-network-control2-message31.md), message 28 (spec/streamr-legacy-0-28.md) and
facts/streamr.md, section 3. How one version is shown as another is in `convert.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, Literal, cast

import msgspec

from catchment import model
from catchment.crypto import ethereum
from catchment.errors import PeerFault
from catchment.wire.streamr.fields import (
    INVALID_REQUEST,
    ArrayReader,
    Field,
    LaxMessageID,
    MessageID,
    MessageRef,
    Name,
    NonEmpty,
    Number,
    StreamId,
    content_text,
    not_json,
)

NANOSECONDS_PER_MILLISECOND: Final = 1_000_000

# Looking a member up in its enumeration costs more than comparing it; these stand in the way of every message.
_STREAMR: Final = model.Protocol.STREAMR
_MESSAGE: Final = model.Kind.MESSAGE
_OK: Final = model.Verdict.OK
_UNSIGNED: Final = model.Verdict.UNSIGNED


class MessageType(IntEnum):
    """Stream Protocol, table `messageType`; versions 30 and 31 call it contentType (facts/streamr.md, section 3)."""

    STREAM_MESSAGE = 27
    GROUP_KEY_REQUEST = 28
    GROUP_KEY_RESPONSE = 29
    GROUP_KEY_ANNOUNCE = 30
    GROUP_KEY_ERROR_RESPONSE = 31


class ContentType(IntEnum):
    """Stream Protocol, table `contentType`."""

    JSON = 0


class EncryptionType(IntEnum):
    """Table `encryptionType`; the numbers are from facts/streamr.md, section 3. 3 exists in version 31 only."""

    NONE = 0
    RSA = 1
    AES = 2
    NEW_KEY_AND_AES = 3


class SignatureType(IntEnum):
    """Stream Protocol, table `signatureType`; 1 is from facts/streamr.md, section 3."""

    NONE = 0
    ETH_LEGACY = 1
    ETH = 2


_STREAM_MESSAGE: Final = MessageType.STREAM_MESSAGE
_NONE: Final = SignatureType.NONE
_NEW_KEY_AND_AES: Final = EncryptionType.NEW_KEY_AND_AES


class StreamMessage(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """A message of any version. Its fields stand in the order of version 32, the widest: that one is read directly."""

    version: Number
    msg_id: MessageID
    prev_msg_ref: MessageRef | None
    message_type: MessageType
    content_type: ContentType
    encryption_type: EncryptionType
    group_key_id: str | None
    content: NonEmpty
    new_group_key: str | None
    signature_type: SignatureType
    signature: str | None


class OffsetMessage(StreamMessage, frozen=True, gc=False):
    """A message of version 28 or 29: also a time to live and a place in the server's own order."""

    ttl: Number = 0
    offset: Number = 0
    previous_offset: Number | None = None


_VERSION = Field("version", "version", Number)
_ID = Field("msg_id", "msgId", MessageID)
_PREV = Field("prev_msg_ref", "prevMsgRef", MessageRef | None)
_TYPE = Field("message_type", "contentType", MessageType)
_ENCRYPTION = Field("encryption_type", "encryptionType", EncryptionType)
_CONTENT = Field("content", "content", NonEmpty)
_SIGNATURE_TYPE = Field("signature_type", "signatureType", SignatureType)
_SIGNATURE = Field("signature", "signature", str | None)

_ROW_28 = (
    _VERSION,
    Field("stream_id", "streamId", StreamId),
    Field("stream_partition", "streamPartition", Number),
    Field("timestamp", "timestamp", Number),
    Field("ttl", "ttl", Number | None),
    Field("offset", "offset", Number | None),
    Field("previous_offset", "previousOffset", Number | None),
    Field("message_type", "contentType", Literal[27]),
    _CONTENT,
)

ROWS: Final[Mapping[int, Sequence[Field]]] = {
    28: _ROW_28,
    29: (*_ROW_28, _SIGNATURE_TYPE, Field("publisher_id", "publisherAddress", Name | None), _SIGNATURE),
    30: (
        _VERSION,
        Field("msg_id", "msgId", LaxMessageID),
        _PREV,
        _TYPE,
        _CONTENT,
        _SIGNATURE_TYPE,
        _SIGNATURE,
    ),
    31: (_VERSION, _ID, _PREV, _TYPE, _ENCRYPTION, _CONTENT, _SIGNATURE_TYPE, _SIGNATURE),
    32: (
        _VERSION,
        _ID,
        _PREV,
        Field("message_type", "messageType", MessageType),
        Field("content_type", "contentType", ContentType),
        _ENCRYPTION,
        Field("group_key_id", "groupKeyId", str | None),
        _CONTENT,
        Field("new_group_key", "newGroupKey", str | None),
        _SIGNATURE_TYPE,
        _SIGNATURE,
    ),
}
"""The elements of each version's array, in order."""

NEWEST: Final = 32
_ABSENT: Final = {
    "prev_msg_ref": None,
    "message_type": _STREAM_MESSAGE,
    "content_type": ContentType.JSON,
    "encryption_type": EncryptionType.NONE,
    "group_key_id": None,
    "new_group_key": None,
    "signature_type": _NONE,
    "signature": None,
}
"""What a message has that its version has no element for."""


class _Version(msgspec.Struct, array_like=True):
    """The first element, whatever follows."""

    version: Number


_decode_version = msgspec.json.Decoder(_Version).decode
_readers: Final = {
    version: ArrayReader(f"Message {version}", row, struct=StreamMessage if version == NEWEST else None)
    for version, row in ROWS.items()
}
_lenient_readers: Final = {
    version: ArrayReader(
        f"Message {version}", [field._replace(type=msgspec.Raw) if field is _CONTENT else field for field in row]
    )
    for version, row in ROWS.items()
}
"""The same rows with any content: objects were tolerated (facts/streamr.md, section 3)."""

_newest: Final = _readers[NEWEST]
"""Nearly every message is of this version, and begins as its own clients write it."""

_encode = msgspec.json.Encoder().encode


def decode(data: bytes) -> StreamMessage:
    """Read a message of any supported version.

    Raises:
        PeerFault: not JSON, an unsupported version, an element that is not what its row says, or a message that
            contradicts itself.
    """
    return read(data)[0]


def read(data: bytes) -> tuple[StreamMessage, bytes]:
    """Read a message, and give the bytes to keep of it.

    Those are the bytes it came in; only where its content came as an object they are the message with that content
    as text, which is what was signed and what every reader expects.

    Raises:
        PeerFault: as `decode`.
    """
    version = NEWEST if data.startswith(b"[32,") else _version_of(data)
    try:
        values = _readers[version].read(data)
    except PeerFault as fault:
        message = _with_object_as_content(version, data, fault)
        data = encode(message)
    else:
        message = cast(StreamMessage, values) if version == NEWEST else _message_of(values)
    check(message)
    return message, data


def _with_object_as_content(version: int, data: bytes, fault: PeerFault) -> StreamMessage:
    """Read again what a strict reader refused; its own fault, unless only the content was in the way."""
    try:
        values = _lenient_readers[version].read(data)
    except PeerFault:
        raise fault from None
    content = cast(msgspec.Raw, getattr(values, "content"))  # noqa: B009 - made from a row, so mypy knows no fields
    if bytes(content)[:1] != b"{":
        raise fault
    return _message_of(values, content=content_text(content, f"Message {version}, content"))


def _message_of(values: msgspec.Struct, **changes: object) -> StreamMessage:
    """A message from the elements of its row."""
    found = {name: getattr(values, name) for name in values.__struct_fields__} | changes
    if "msg_id" in found:
        msg_id = found["msg_id"]
        if isinstance(msg_id, LaxMessageID):
            found["msg_id"] = MessageID(
                msg_id.stream_id,
                msg_id.stream_partition,
                msg_id.timestamp,
                msg_id.sequence_number,
                msg_id.publisher_id or "",
                msg_id.msg_chain_id or "",
            )
        return StreamMessage(**(_ABSENT | found))
    # Versions 28 and 29 have no sequence and no chain (facts/streamr.md, section 3, "Conversion").
    timestamp = found.pop("timestamp")
    msg_id = MessageID(
        found.pop("stream_id"), found.pop("stream_partition"), timestamp, 0, found.pop("publisher_id", None) or "", ""
    )
    found["message_type"] = _STREAM_MESSAGE
    found["ttl"] = found["ttl"] or 0
    found["offset"] = timestamp if found["offset"] is None else found["offset"]
    return OffsetMessage(msg_id=msg_id, **(_ABSENT | found))


def _version_of(data: bytes) -> int:
    """The version a message says it has, when it is one we read."""
    try:
        version = _decode_version(data).version
    except msgspec.ValidationError:
        raise PeerFault("The message is not an array that begins with its version.", code=INVALID_REQUEST) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(error) from None
    if version not in ROWS:
        supported = ", ".join(str(known) for known in ROWS)
        raise PeerFault(f"Message version {version} is not supported, only {supported}.", code=INVALID_REQUEST)
    return version


_ID_FIELDS: Final = frozenset(MessageID.__struct_fields__)
_attributes: Final = {version: tuple(field.attribute for field in row) for version, row in ROWS.items()}


def encode(message: StreamMessage) -> bytes:
    """The array of a message in its own version."""
    if message.version == NEWEST:
        return _encode(message)
    msg_id = message.msg_id
    values = [getattr(msg_id if name in _ID_FIELDS else message, name) for name in _attributes[message.version]]
    if message.version == 29 and not msg_id.publisher_id:
        values[-2] = None  # as shipped: an unknown publisherAddress is null
    return _encode(values)


def check(message: StreamMessage) -> None:
    """The rules no single element shows.

    The previous reference is strictly before the message (DESIGN.md, "The entry"; facts/streamr.md, section 3). The
    signature is null (version 32) or empty (version 31) exactly when there is none (table `signatureType`). Version 32
    no longer has NEW_KEY_AND_AES.
    """
    prev = message.prev_msg_ref
    if prev is not None:
        msg_id = message.msg_id
        later = prev.timestamp - msg_id.timestamp or prev.sequence_number - msg_id.sequence_number
        if later >= 0:
            raise PeerFault(
                f"prevMsgRef [{prev.timestamp},{prev.sequence_number}] must come before the message "
                f"[{msg_id.timestamp},{msg_id.sequence_number}] itself.",
                code=INVALID_REQUEST,
                reason="prev_msg_ref",
            )
    if message.signature_type is _NONE:
        if message.signature:
            raise PeerFault("signatureType is 0 (none) but there is a signature.", code=INVALID_REQUEST)
    elif not message.signature:
        raise PeerFault(f"signatureType is {message.signature_type} but there is no signature.", code=INVALID_REQUEST)
    if message.encryption_type is _NEW_KEY_AND_AES and message.version == NEWEST:
        raise PeerFault("Message 32, encryptionType: Invalid enum value 3", code=INVALID_REQUEST)


def signed_payload(message: StreamMessage) -> bytes:
    """The bytes a signer of this message signs, by its signature type.

    ETH: Stream Protocol, table `signatureType`, fields joined without separators, the publisher in lower case
    (facts/streamr.md, section 4). ETH_LEGACY: as it shipped, without the partition.
    """
    msg_id = message.msg_id
    if message.signature_type is SignatureType.ETH_LEGACY:
        return _utf8(f"{msg_id.stream_id}{msg_id.timestamp}{msg_id.publisher_id.lower()}{message.content}")
    prev = message.prev_msg_ref
    return _utf8(
        f"{msg_id.stream_id}{msg_id.stream_partition}{msg_id.timestamp}{msg_id.sequence_number}"
        f"{msg_id.publisher_id.lower()}{msg_id.msg_chain_id}"
        f"{'' if prev is None else f'{prev.timestamp}{prev.sequence_number}'}"
        f"{message.content}{message.new_group_key or ''}"
    )


def documented_payload(message: StreamMessage) -> bytes | None:
    """What the document says an ETH_LEGACY signature covers: the partition, too. None for other types.

    Message Layer 31, table `signatureType`. No published client signed this; it is accepted because it is documented.
    """
    if message.signature_type is not SignatureType.ETH_LEGACY:
        return None
    msg_id = message.msg_id
    return _utf8(
        f"{msg_id.stream_id}{msg_id.stream_partition}{msg_id.timestamp}{msg_id.publisher_id.lower()}{message.content}"
    )


def _utf8(text: str) -> bytes:
    # A lone surrogate (JSON allows its escape) has no UTF-8 form; no signer can have signed it.
    return text.encode("utf-8", "surrogatepass")


def needs_check(message: StreamMessage) -> bool:
    """Whether there is anything to prove: without a signature and without an address as publisher there is not."""
    if message.signature_type is not _NONE:
        return True
    return ethereum.parse_address(message.msg_id.publisher_id) is not None


def judge(message: StreamMessage) -> model.Verdict:
    """What the signature proves. The one place that decides, for the node and for Spark.

    An address has a key, so a message in its name without a signature is nobody's: accepted, it would take the
    identity of a message the owner is about to sign. (Users without a key publish unsigned under a hash of 32 bytes:
    facts/streamr.md, section 4.)
    """
    if not needs_check(message):
        return model.Verdict.UNSIGNED
    publisher, signature = message.msg_id.publisher_id, message.signature or ""
    if ethereum.signed_by(publisher, signed_payload(message), signature):
        return _OK
    documented = documented_payload(message)
    if documented is not None and ethereum.signed_by(publisher, documented, signature):
        return _OK
    return model.Verdict.BAD_SIGNATURE


def to_entry(message: StreamMessage, raw: bytes, *, verdict: model.Verdict, received_at: int) -> model.Entry:
    """The log's line for a message, `raw` being the exact bytes it came in.

    Key-exchange messages are a kind of their own; a message that failed its check is kept as refused.
    """
    if verdict is not _OK and verdict is not _UNSIGNED:
        kind = model.Kind.REFUSED
    elif message.message_type is _STREAM_MESSAGE:
        kind = _MESSAGE
    else:
        kind = model.Kind.KEYEXCHANGE
    msg_id = message.msg_id
    prev = message.prev_msg_ref
    # In the order of Entry's fields: by name it would cost twice as much, and this runs for every message.
    return model.Entry(
        kind,
        _STREAMR,
        message.version,
        msg_id.stream_id,
        msg_id.stream_partition,
        model.canonical_publisher(msg_id.publisher_id),
        msg_id.msg_chain_id,
        msg_id.timestamp,
        msg_id.sequence_number,
        None if prev is None else prev.timestamp,
        None if prev is None else prev.sequence_number,
        msg_id.timestamp * NANOSECONDS_PER_MILLISECOND,
        b"",
        verdict,
        received_at,
        raw,
    )
