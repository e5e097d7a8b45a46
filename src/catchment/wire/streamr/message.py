"""The Stream Protocol: messages as their publishers signed them.

A version is a row of `ROWS`; every version is read into the one `StreamMessage`, and `signed_payload` is the one
place that knows what a signature covers. Layouts: Stream Protocol 32 (spec/streamr-control2-stream32-tracker.md) and
facts/streamr.md, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final

import msgspec

from catchment import model
from catchment.crypto import ethereum
from catchment.errors import PeerFault
from catchment.wire.streamr.fields import (
    INVALID_REQUEST,
    ArrayReader,
    Field,
    MessageID,
    MessageRef,
    NonEmpty,
    Number,
    not_json,
)

NANOSECONDS_PER_MILLISECOND: Final = 1_000_000

# Looking a member up in its enumeration costs more than comparing it; these stand in the way of every message.
_STREAMR: Final = model.Protocol.STREAMR
_MESSAGE: Final = model.Kind.MESSAGE
_OK: Final = model.Verdict.OK
_UNSIGNED: Final = model.Verdict.UNSIGNED


class MessageType(IntEnum):
    """Stream Protocol, table `messageType`."""

    STREAM_MESSAGE = 27
    GROUP_KEY_REQUEST = 28
    GROUP_KEY_RESPONSE = 29
    GROUP_KEY_ANNOUNCE = 30
    GROUP_KEY_ERROR_RESPONSE = 31


class ContentType(IntEnum):
    """Stream Protocol, table `contentType`."""

    JSON = 0


class EncryptionType(IntEnum):
    """Stream Protocol, table `encryptionType`."""

    NONE = 0
    RSA = 1
    AES = 2


class SignatureType(IntEnum):
    """Stream Protocol, table `signatureType`; 1 is from facts/streamr.md, section 3."""

    NONE = 0
    ETH_LEGACY = 1
    ETH = 2


_STREAM_MESSAGE: Final = MessageType.STREAM_MESSAGE
_NONE: Final = SignatureType.NONE


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


_COLUMNS: Final = (
    Field("version", "version", Number),
    Field("msg_id", "msgId", MessageID),
    Field("prev_msg_ref", "prevMsgRef", MessageRef | None),
    Field("message_type", "messageType", MessageType),
    Field("content_type", "contentType", ContentType),
    Field("encryption_type", "encryptionType", EncryptionType),
    Field("group_key_id", "groupKeyId", str | None),
    Field("content", "content", NonEmpty),
    Field("new_group_key", "newGroupKey", str | None),
    Field("signature_type", "signatureType", SignatureType),
    Field("signature", "signature", str | None),
)

ROWS: Final[Mapping[int, Sequence[Field]]] = {
    32: _COLUMNS,
}
"""The elements of each version's array, in order."""


class _Version(msgspec.Struct, array_like=True):
    """The first element, whatever follows."""

    version: Number


_decode_version = msgspec.json.Decoder(_Version).decode
_readers: Final = {
    version: ArrayReader(f"Message {version}", row, struct=StreamMessage if row is _COLUMNS else None)
    for version, row in ROWS.items()
}
_newest: Final = _readers[32]
"""Nearly every message is of this version, and begins as its own clients write it."""

_encode = msgspec.json.Encoder().encode


def decode(data: bytes) -> StreamMessage:
    """Read a message of any supported version.

    Raises:
        PeerFault: not JSON, an unsupported version, an element that is not what its row says, or a message that
            contradicts itself.
    """
    reader = _newest if data.startswith(b"[32,") else _reader_of(data)
    message = reader.read(data)
    assert isinstance(message, StreamMessage)
    check(message)
    return message


def _reader_of(data: bytes) -> ArrayReader:
    """The row a message says it follows."""
    try:
        version = _decode_version(data).version
    except msgspec.ValidationError:
        raise PeerFault("The message is not an array that begins with its version.", code=INVALID_REQUEST) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(error) from None
    reader = _readers.get(version)
    if reader is None:
        supported = ", ".join(str(known) for known in ROWS)
        raise PeerFault(f"Message version {version} is not supported, only {supported}.", code=INVALID_REQUEST)
    return reader


def encode(message: StreamMessage) -> bytes:
    """The array of a message in its own version."""
    return _encode(message)


def check(message: StreamMessage) -> None:
    """The rules no single element shows.

    The previous reference is strictly before the message (DESIGN.md, "The entry"; facts/streamr.md, section 3), and
    "the `signature` field is null" exactly when there is no signature (Stream Protocol, table `signatureType`).
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
            )
    if message.signature_type is _NONE:
        if message.signature is not None:
            raise PeerFault("signatureType is 0 (none) but there is a signature.", code=INVALID_REQUEST)
    elif not message.signature:
        raise PeerFault(f"signatureType is {message.signature_type} but there is no signature.", code=INVALID_REQUEST)


def signed_payload(message: StreamMessage) -> bytes:
    """The bytes a message's signature covers, by its signature type.

    ETH: Stream Protocol, table `signatureType`, fields joined without separators, the publisher in lower case
    (facts/streamr.md, section 4). ETH_LEGACY: as it shipped, without the partition.
    """
    msg_id = message.msg_id
    if message.signature_type is SignatureType.ETH_LEGACY:
        text = f"{msg_id.stream_id}{msg_id.timestamp}{msg_id.publisher_id.lower()}{message.content}"
    else:
        prev = message.prev_msg_ref
        text = (
            f"{msg_id.stream_id}{msg_id.stream_partition}{msg_id.timestamp}{msg_id.sequence_number}"
            f"{msg_id.publisher_id.lower()}{msg_id.msg_chain_id}"
            f"{'' if prev is None else f'{prev.timestamp}{prev.sequence_number}'}"
            f"{message.content}{message.new_group_key or ''}"
        )
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
    if ethereum.signed_by(message.msg_id.publisher_id, signed_payload(message), message.signature or ""):
        return model.Verdict.OK
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
