"""Key exchange: how publishers and subscribers of encrypted streams hand each other group keys.

Two forms are on the wire (facts/streamr.md, section 4). Clients up to 4.x write JSON objects and know keys by the time
they start (spec/streamr-network-control2-message31.md, GroupKeyRequest to GroupKeyErrorResponse); clients from 5 on
write arrays and know keys by id (spec/streamr-control2-stream32-tracker.md). Both are read into the same values, which
remember their form, so that an answer can be given in the form of its question. Group keys are RSA-encrypted inside
the content; the content itself is readable, and a node can check it without learning a key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Final

import msgspec

from catchment.errors import PeerFault
from catchment.wire.streamr.fields import INVALID_REQUEST, Number, RequestId, StreamId
from catchment.wire.streamr.message import EncryptionType, MessageType, SignatureType, StreamMessage

STREAM_PREFIX: Final = "SYSTEM/keyexchange/"
"""Key-exchange streams since client 4.1.0; before, the bare address was the stream (facts/streamr.md, section 4)."""

PARTITION: Final = 0
"""Key-exchange streams have this one."""

MAX_KEYS: Final = 1024
"""Keys in one request or answer: a subscriber that needs more asks again."""
MAX_KEY_ID: Final = 256
MAX_PUBLIC_KEY: Final = 8192
"""Characters of an RSA public key as PEM; 4096 bits need 800."""
MAX_SEALED_KEY: Final = 4096
"""Hex digits of an RSA-encrypted group key; 4096 bits need 1024."""
MAX_ERROR_TEXT: Final = 16_384

_ADDRESS: Final = re.compile(r"0x[0-9a-f]{40}")

KeyId = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KEY_ID)]
PublicKey = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_PUBLIC_KEY)]
Sealed = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SEALED_KEY)]
_Code = Annotated[str, msgspec.Meta(max_length=256)]
_Text = Annotated[str, msgspec.Meta(max_length=MAX_ERROR_TEXT)]
_KeyIds = Annotated[tuple[KeyId, ...], msgspec.Meta(max_length=MAX_KEYS)]


class ErrorCode:
    """Codes of a GroupKeyErrorResponse (facts/streamr.md, section 4)."""

    INVALID_GROUP_KEY_REQUEST: Final = "INVALID_GROUP_KEY_REQUEST"
    INVALID_GROUP_KEY_RESPONSE: Final = "INVALID_GROUP_KEY_RESPONSE"
    INVALID_MESSAGE_TYPE: Final = "INVALID_MESSAGE_TYPE"
    INVALID_CONTENT_TYPE: Final = "INVALID_CONTENT_TYPE"
    UNEXPECTED_ERROR: Final = "UNEXPECTED_ERROR"


class Form(Enum):
    """How a content is written."""

    OBJECT = "object"
    """Message 31 and clients up to 4.x: keys by time."""
    ARRAY = "array"
    """Clients from 5 on: keys by id."""


class KeyRange(msgspec.Struct, frozen=True):
    """Object form: the keys in use between two times, both included (milliseconds)."""

    start: Number
    end: Number


class SealedKey(msgspec.Struct, frozen=True):
    """A group key encrypted for one reader's RSA key.

    Attributes:
        sealed: the ciphertext in hex.
        key_id: array form: which key it is.
        start: object form: from which time on it is used (milliseconds).
    """

    sealed: str
    key_id: str | None = None
    start: int | None = None


class GroupKeyRequest(msgspec.Struct, frozen=True):
    """A subscriber asks a publisher for keys of a stream.

    Attributes:
        key_ids: array form: the keys that are missing.
        range: object form: the time the keys were in use; without one the newest key is meant.
    """

    request_id: str
    stream_id: str
    public_key: str
    key_ids: tuple[str, ...] = ()
    range: KeyRange | None = None
    form: Form = Form.ARRAY


class GroupKeyResponse(msgspec.Struct, frozen=True):
    """A publisher hands out keys it was asked for."""

    request_id: str
    stream_id: str
    keys: tuple[SealedKey, ...]
    form: Form = Form.ARRAY


class GroupKeyAnnounce(msgspec.Struct, frozen=True):
    """A publisher hands out a key it was not asked for. In the object form this is GroupKeyReset, with one key."""

    stream_id: str
    keys: tuple[SealedKey, ...]
    form: Form = Form.ARRAY


class GroupKeyErrorResponse(msgspec.Struct, frozen=True):
    """A publisher says why it does not hand out a key."""

    request_id: str
    stream_id: str
    code: str
    message: str
    key_ids: tuple[str, ...] = ()
    form: Form = Form.ARRAY


Exchange = GroupKeyRequest | GroupKeyResponse | GroupKeyAnnounce | GroupKeyErrorResponse


def stream_of(address: str) -> str:
    """The key-exchange stream on which an address is spoken to."""
    return STREAM_PREFIX + address.lower()


def legacy_stream_of(address: str) -> str:
    """The same for clients 3.x and 4.1.0-beta.0: the bare address."""
    return address.lower()


def recipient_of(stream_id: str) -> str | None:
    """Whose key-exchange stream this is, or None when it is no such stream."""
    address = stream_id.removeprefix(STREAM_PREFIX)
    return address if _ADDRESS.fullmatch(address) else None


def is_key_exchange(message: StreamMessage) -> bool:
    """Whether `check` has something to say about a message: by its type, or because its stream is reserved."""
    return message.message_type is not MessageType.STREAM_MESSAGE or message.msg_id.stream_id.startswith(STREAM_PREFIX)


# The contents as they are written. Objects may hold more than is known here; arrays are as long as their row.


class _ObjectRequest(msgspec.Struct, rename="camel", omit_defaults=True):
    # Clients 3.x know no request ids: their requests have none, and their answers neither.
    stream_id: StreamId
    public_key: PublicKey
    request_id: RequestId = ""
    range: KeyRange | None = None


class _TimedKey(msgspec.Struct, rename="camel"):
    group_key: Sealed
    start: Number


class _ObjectResponse(msgspec.Struct, rename="camel", omit_defaults=True):
    stream_id: StreamId
    keys: Annotated[list[_TimedKey], msgspec.Meta(max_length=MAX_KEYS)]
    request_id: RequestId = ""


class _ObjectReset(msgspec.Struct, rename="camel"):
    stream_id: StreamId
    group_key: Sealed
    start: Number


class _ObjectError(msgspec.Struct, rename="camel", omit_defaults=True):
    # A publisher that could not read the request has no ids to repeat.
    code: _Code
    message: _Text
    stream_id: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    request_id: RequestId = ""


class _ArrayRequest(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    request_id: RequestId
    stream_id: StreamId
    rsa_public_key: PublicKey
    group_key_ids: _KeyIds


class _Pair(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    group_key_id: KeyId
    encrypted_group_key: Sealed


# The documents' examples show one pair where the text and the shipped clients have a list of pairs.
_Pairs = Annotated[list[_Pair | str], msgspec.Meta(max_length=MAX_KEYS)]


class _ArrayResponse(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    request_id: RequestId
    stream_id: StreamId
    group_keys: _Pairs


class _ArrayAnnounce(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    stream_id: StreamId
    group_keys: _Pairs


class _ArrayError(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    request_id: RequestId
    stream_id: Annotated[str, msgspec.Meta(max_length=1024)]
    error_code: _Code
    error_message: _Text
    group_key_ids: _KeyIds = ()


_SHAPES: Final[Mapping[MessageType, tuple[type[msgspec.Struct], type[msgspec.Struct]]]] = {
    MessageType.GROUP_KEY_REQUEST: (_ObjectRequest, _ArrayRequest),
    MessageType.GROUP_KEY_RESPONSE: (_ObjectResponse, _ArrayResponse),
    MessageType.GROUP_KEY_ANNOUNCE: (_ObjectReset, _ArrayAnnounce),
    MessageType.GROUP_KEY_ERROR_RESPONSE: (_ObjectError, _ArrayError),
}
_decoders: Final = {
    kind: (msgspec.json.Decoder(of_object).decode, msgspec.json.Decoder(of_array).decode)
    for kind, (of_object, of_array) in _SHAPES.items()
}
_encode = msgspec.json.Encoder().encode

ENCRYPTION: Final[Mapping[MessageType, EncryptionType]] = {
    MessageType.GROUP_KEY_REQUEST: EncryptionType.NONE,
    MessageType.GROUP_KEY_RESPONSE: EncryptionType.RSA,
    MessageType.GROUP_KEY_ANNOUNCE: EncryptionType.RSA,
    MessageType.GROUP_KEY_ERROR_RESPONSE: EncryptionType.NONE,
}
"""Stream Protocol, GroupKeyRequest to GroupKeyErrorResponse: the encryption each must have."""


def name_of(kind: MessageType) -> str:
    """The document's name of a message type."""
    return kind.name.title().replace("_", "")


def read(message: StreamMessage) -> Exchange:
    """Check a key-exchange message and read its content.

    Raises:
        PeerFault: it is not well formed; the text says what is wrong.
    """
    kind = message.message_type
    name = name_of(kind)
    if kind is MessageType.STREAM_MESSAGE:
        raise _fault(f"{message.msg_id.stream_id} is for key exchange only, not for messages of type 27.")
    if recipient_of(message.msg_id.stream_id) is None:
        raise _fault(
            f"A {name} goes to a key-exchange stream ({STREAM_PREFIX} and an address in lower case), "
            f"not to {message.msg_id.stream_id!r}."
        )
    if message.msg_id.stream_partition != PARTITION:
        raise _fault(f"A key-exchange stream has partition 0 only, not {message.msg_id.stream_partition}.")
    if message.signature_type is SignatureType.NONE:
        raise _fault(f"A {name} must be signed.")
    wanted = ENCRYPTION[kind]
    if message.encryption_type is not wanted:
        raise _fault(
            f"A {name} must have encryptionType {wanted.value} ({wanted.name}), not {message.encryption_type.value}."
        )
    return decode(kind, message.content)


def check(message: StreamMessage) -> None:
    """Say whether a key-exchange message is well formed; see `read`.

    Signature and permissions are not looked at: that a signature is there, and not by whom.

    Raises:
        PeerFault: it is not.
    """
    read(message)


def decode(kind: MessageType, content: str) -> Exchange:
    """Read a content in either form.

    Raises:
        PeerFault: it has neither.
    """
    name = name_of(kind)
    of_object, of_array = _decoders[kind]
    form = Form.ARRAY if content.lstrip()[:1] == "[" else Form.OBJECT
    try:
        found = (of_array if form is Form.ARRAY else of_object)(content)
    except msgspec.ValidationError as error:
        raise _fault(f"The content of a {name} in the {form.value} form is not as it must be: {error}") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise _fault(f"The content of a {name} must be JSON.") from None
    return _model(found, name)


def _model(found: msgspec.Struct, name: str) -> Exchange:
    match found:
        case _ArrayRequest():
            return GroupKeyRequest(found.request_id, found.stream_id, found.rsa_public_key, found.group_key_ids)
        case _ObjectRequest():
            if found.range is not None and found.range.start > found.range.end:
                raise _fault(f"The range of a {name} ends before it starts.")
            return GroupKeyRequest(
                found.request_id, found.stream_id, found.public_key, range=found.range, form=Form.OBJECT
            )
        case _ArrayResponse():
            return GroupKeyResponse(found.request_id, found.stream_id, _keys(found.group_keys, name))
        case _ObjectResponse():
            timed = tuple(SealedKey(key.group_key, start=key.start) for key in found.keys)
            return GroupKeyResponse(found.request_id, found.stream_id, timed, Form.OBJECT)
        case _ArrayAnnounce():
            return GroupKeyAnnounce(found.stream_id, _keys(found.group_keys, name))
        case _ObjectReset():
            return GroupKeyAnnounce(found.stream_id, (SealedKey(found.group_key, start=found.start),), Form.OBJECT)
        case _ArrayError():
            return GroupKeyErrorResponse(
                found.request_id, found.stream_id, found.error_code, found.error_message, found.group_key_ids
            )
        case _ObjectError():
            return GroupKeyErrorResponse(found.request_id, found.stream_id, found.code, found.message, form=Form.OBJECT)
    raise AssertionError("every shape has a model")


def _keys(pairs: list[_Pair | str], name: str) -> tuple[SealedKey, ...]:
    match pairs:
        case [str(key_id), str(sealed)] if 0 < len(key_id) <= MAX_KEY_ID and 0 < len(sealed) <= MAX_SEALED_KEY:
            return (SealedKey(sealed, key_id),)
    keys = [SealedKey(pair.encrypted_group_key, pair.group_key_id) for pair in pairs if isinstance(pair, _Pair)]
    if len(keys) != len(pairs):
        raise _fault(f"The keys of a {name} must be pairs of groupKeyId and encrypted key.")
    return tuple(keys)


def encode(exchange: Exchange) -> str:
    """The content of a key-exchange message, in its own form.

    Raises:
        ValueError: a key has no id (array form) or no start (object form), or a reset has not exactly one key.
    """
    written = _written_array(exchange) if exchange.form is Form.ARRAY else _written_object(exchange)
    return _encode(written).decode()


def _written_array(exchange: Exchange) -> msgspec.Struct:
    match exchange:
        case GroupKeyRequest():
            return _ArrayRequest(exchange.request_id, exchange.stream_id, exchange.public_key, exchange.key_ids)
        case GroupKeyResponse():
            return _ArrayResponse(exchange.request_id, exchange.stream_id, _pairs(exchange.keys))
        case GroupKeyAnnounce():
            return _ArrayAnnounce(exchange.stream_id, _pairs(exchange.keys))
        case GroupKeyErrorResponse():
            return _ArrayError(
                exchange.request_id, exchange.stream_id, exchange.code, exchange.message, exchange.key_ids
            )


def _pairs(keys: tuple[SealedKey, ...]) -> list[_Pair | str]:
    pairs: list[_Pair | str] = []
    for key in keys:
        if key.key_id is None:
            raise ValueError("in the array form a key is named by its id")
        pairs.append(_Pair(key.key_id, key.sealed))
    return pairs


def _written_object(exchange: Exchange) -> msgspec.Struct:
    match exchange:
        case GroupKeyRequest():
            return _ObjectRequest(exchange.stream_id, exchange.public_key, exchange.request_id, exchange.range)
        case GroupKeyResponse():
            return _ObjectResponse(exchange.stream_id, [_timed(key) for key in exchange.keys], exchange.request_id)
        case GroupKeyAnnounce():
            (key,) = exchange.keys
            timed = _timed(key)
            return _ObjectReset(exchange.stream_id, timed.group_key, timed.start)
        case GroupKeyErrorResponse():
            return _ObjectError(exchange.code, exchange.message, exchange.stream_id, exchange.request_id)


def _timed(key: SealedKey) -> _TimedKey:
    if key.start is None:
        raise ValueError("in the object form a key is named by the time it starts")
    return _TimedKey(key.sealed, key.start)


def type_of(exchange: Exchange) -> MessageType:
    """The message type that carries a content."""
    return _TYPES[type(exchange)]


_TYPES: Final[Mapping[type[Exchange], MessageType]] = {
    GroupKeyRequest: MessageType.GROUP_KEY_REQUEST,
    GroupKeyResponse: MessageType.GROUP_KEY_RESPONSE,
    GroupKeyAnnounce: MessageType.GROUP_KEY_ANNOUNCE,
    GroupKeyErrorResponse: MessageType.GROUP_KEY_ERROR_RESPONSE,
}


class NewGroupKey(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Stream Protocol, EncryptedGroupKey: the next key, encrypted with the one the message is encrypted with."""

    group_key_id: KeyId
    encrypted_group_key: Sealed


_decode_new_key = msgspec.json.Decoder(NewGroupKey).decode


def decode_new_group_key(text: str) -> NewGroupKey:
    """Read the `newGroupKey` of a message 32: a string that holds a JSON pair (facts/streamr.md, section 3).

    Raises:
        PeerFault: it is no such pair.
    """
    try:
        return _decode_new_key(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise _fault("newGroupKey must be a JSON pair of an id and an encrypted key.") from None


def encode_new_group_key(key: NewGroupKey) -> str:
    """The `newGroupKey` of a message 32."""
    return _encode(key).decode()


def _fault(text: str) -> PeerFault:
    return PeerFault(text, code=INVALID_REQUEST, reason="key_exchange")
