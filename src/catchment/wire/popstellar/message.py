"""The message object: somebody's data with the proof of who sent it (document, "Mid-level (message) communication").

The signature covers the decoded data, a witness signs the decoded message id, and the id is the hash of the texts of
data and signature (facts/popstellar.md, section 2). `judge` is the one place that decides, for the node and for Spark.
"""

from __future__ import annotations

import base64
from typing import Annotated, Final

import msgspec

from catchment import model
from catchment.crypto import ed25519
from catchment.wire.popstellar import ids
from catchment.wire.popstellar.fields import Base64, Key, Reader, Signature, encode_base64

VERSION: Final = 1
"""What the log notes as version: the document has no number."""

MAX_WITNESSES: Final = 1024
"""Witness signatures one message may carry: each costs a check."""

NANOSECONDS_PER_SECOND: Final = 1_000_000_000
LAST_SECOND: Final = (2**63 - 1) // NANOSECONDS_PER_SECOND
"""The last second whose nanoseconds fit the log (the year 2262); data may name a later one."""


class WitnessSignature(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One witness' signature over the message id."""

    witness: Key
    signature: Signature


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message as it travels. Every field but the list is plain text, so encoding it again changes nothing signed."""

    data: Base64
    sender: Key
    signature: Signature
    message_id: Key
    witness_signatures: Annotated[list[WitnessSignature], msgspec.Meta(max_length=MAX_WITNESSES)]


class Witnessed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A witness signature that came after its message, as the log keeps it."""

    message_id: Key
    witness: Key
    signature: Signature


_reader = Reader(Message, "message")
_witnessed = Reader(Witnessed, "witness signature")
_encode = msgspec.json.Encoder().encode


def decode(raw: bytes | msgspec.Raw) -> Message:
    """Read a message object.

    Raises:
        PeerFault: it does not follow the schema; the text names the field.
    """
    return _reader.read(raw)


def encode(message: Message | Witnessed) -> bytes:
    """The form in which we keep and send: the document's fields in its order, no white space."""
    return _encode(message)


def decode_witnessed(raw: bytes) -> Witnessed:
    """Read a witness signature as the log keeps it.

    Raises:
        PeerFault: it is none.
    """
    return _witnessed.read(raw)


def key_bytes(text: str) -> bytes:
    """The bytes of a text that a pattern has checked already."""
    return base64.urlsafe_b64decode(text)


def judge(message: Message) -> model.Verdict:
    """What a message proves, in the order of the checks of facts/popstellar.md, section 2.

    A wrong witness signature makes the message as bad as a wrong one of its sender: it would be handed on as a proof.
    """
    if not ed25519.verify(key_bytes(message.sender), key_bytes(message.data), key_bytes(message.signature)):
        return model.Verdict.BAD_SIGNATURE
    if ids.message_id(message.data, message.signature) != message.message_id:
        return model.Verdict.BAD_ID
    if not all(witnessed(message.message_id, each) for each in message.witness_signatures):
        return model.Verdict.BAD_SIGNATURE
    return model.Verdict.OK


def witnessed(message_id: str, signature: WitnessSignature | Witnessed) -> bool:
    """Whether a witness signed this message id: its decoded bytes."""
    return ed25519.verify(key_bytes(signature.witness), key_bytes(message_id), key_bytes(signature.signature))


def witness_id(late: Witnessed) -> str:
    """What identifies a late witness signature in the log: each witness has one for each message."""
    return ids.hash_len("witness", late.message_id, late.witness)


def sign(data: bytes, signer: ed25519.Signer) -> Message:
    """Make a message out of encoded data."""
    text = encode_base64(data)
    signature = encode_base64(signer.sign(data))
    return Message(text, encode_base64(signer.public), signature, ids.message_id(text, signature), [])


def to_entry(message: Message, channel: str, *, seconds: int, verdict: model.Verdict, received_at: int) -> model.Entry:
    """The log's line for a message that was published on a channel; `seconds` is the time its data names."""
    return model.Entry(
        kind=model.Kind.MESSAGE if verdict.accepted else model.Kind.REFUSED,
        protocol=model.Protocol.POPSTELLAR,
        version=VERSION,
        topic=channel,
        partition=0,
        publisher=message.sender,
        chain="",
        timestamp=seconds,
        sequence=0,
        prev_timestamp=None,
        prev_sequence=None,
        event_time=min(seconds, LAST_SECOND) * NANOSECONDS_PER_SECOND,
        id=key_bytes(message.message_id),
        verdict=verdict,
        received_at=received_at,
        raw=encode(message),
    )


def witness_entry(late: Witnessed, channel: str, *, received_at: int) -> model.Entry:
    """The log's line for a witness signature that came after its message; each witness has one for each message."""
    identity = key_bytes(witness_id(late))
    return model.Entry(
        kind=model.Kind.WITNESS,
        protocol=model.Protocol.POPSTELLAR,
        version=VERSION,
        topic=channel,
        partition=0,
        publisher=late.witness,
        chain="",
        timestamp=0,
        sequence=0,
        prev_timestamp=None,
        prev_sequence=None,
        event_time=0,
        id=identity,
        verdict=model.Verdict.OK,
        received_at=received_at,
        raw=encode(late),
    )


def merged(message: Message, later: list[WitnessSignature]) -> Message:
    """The message with witness signatures that came after it; each witness once."""
    known = {each.witness for each in message.witness_signatures}
    fresh = [each for each in later if each.witness not in known]
    if not fresh:
        return message
    return msgspec.structs.replace(message, witness_signatures=[*message.witness_signatures, *fresh])
