"""What a client hands out and what it raises."""

from __future__ import annotations

import secrets
import time
from typing import Final, NamedTuple

import msgspec

from catchment import model
from catchment.core.ordering import GapOpen
from catchment.crypto import groupkeys
from catchment.crypto.ethereum import Signer
from catchment.crypto.groupkeys import GroupKey
from catchment.errors import CatchmentError
from catchment.wire.streamr import keyexchange, message
from catchment.wire.streamr.fields import MessageID, MessageRef

CHAIN_ID_CHARACTERS: Final = 20


class Refused(CatchmentError):
    """The node answered with an ErrorResponse, or would have.

    Attributes:
        code: its error code.
    """

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


class ConnectionEnded(CatchmentError):
    """The connection is gone; what was not confirmed may or may not have arrived."""


class Received(msgspec.Struct, frozen=True):
    """A message from the node.

    Attributes:
        message: as it was signed; its `content` may be encrypted.
        verdict: what our own check of the signature found.
        raw: the bytes as signed.
        plain: the content, decrypted where that was needed.
    """

    message: message.StreamMessage
    verdict: model.Verdict
    raw: bytes
    plain: str | None = None

    @property
    def content(self) -> str:
        """The content as text, decrypted."""
        return self.message.content if self.plain is None else self.plain

    @property
    def encrypted(self) -> bool:
        """Whether the content could not be decrypted: it is what was sent, in hex."""
        kind = self.message.encryption_type
        return self.plain is None and kind in (message.EncryptionType.AES, message.EncryptionType.NEW_KEY_AND_AES)

    @property
    def value(self) -> object:
        """The content as a value.

        Raises:
            msgspec.DecodeError: it is not JSON.
        """
        return msgspec.json.decode(self.content)

    @property
    def ref(self) -> model.Ref:
        """Its place in its chain."""
        return model.Ref(self.message.msg_id.timestamp, self.message.msg_id.sequence_number)

    @property
    def publisher(self) -> str:
        """Who published it, in canonical form."""
        return model.canonical_publisher(self.message.msg_id.publisher_id)


class Undecryptable(msgspec.Struct, frozen=True):
    """A message that could not be read, in its place among the others.

    Attributes:
        received: the message, its content still encrypted.
        reason: why: no key came in time, or it was the wrong one.
    """

    received: Received
    reason: str


class ResendFailed(msgspec.Struct, frozen=True):
    """The node could not resend what was asked for; the subscription goes on without it.

    Attributes:
        reason: what the node said.
        code: its error code.
    """

    reason: str
    code: str


Happening = Received | GapOpen | Undecryptable | ResendFailed
"""What comes out of a subscription that was asked for events too."""


class Last(msgspec.Struct, frozen=True):
    """History: the last `count` messages."""

    count: int


class From(msgspec.Struct, frozen=True):
    """History: everything from a time on (milliseconds), of one publisher or of all."""

    timestamp: int
    sequence: int = 0
    publisher: str | None = None


class Range(msgspec.Struct, frozen=True):
    """History: everything between two times (milliseconds), both included."""

    start: int
    end: int


History = Last | From | Range
"""What to read before what is new."""


class Arrived(NamedTuple):
    """A message as it came, not yet judged."""

    message: message.StreamMessage
    raw: bytes


class Chain:
    """A publisher's place in one stream-partition: makes messages that refer to each other."""

    def __init__(self, stream_id: str, partition: int, *, signer: Signer | None, chain_id: str | None = None) -> None:
        """Begin a chain.

        Args:
            stream_id: the stream.
            partition: its partition.
            signer: signs the messages; without one they are unsigned.
            chain_id: its name, a random one when none is given.
        """
        self.stream_id = stream_id
        self.partition = partition
        self.chain_id = (
            secrets.token_urlsafe(CHAIN_ID_CHARACTERS)[:CHAIN_ID_CHARACTERS] if chain_id is None else chain_id
        )
        self._signer = signer
        self._last: MessageRef | None = None

    @property
    def last(self) -> MessageRef | None:
        """The message made last."""
        return self._last

    def make(
        self, content: str, timestamp: int, *, key: GroupKey | None = None, next_key: GroupKey | None = None
    ) -> bytes:
        """The next message, signed, as it goes on the wire.

        The sequence counts up within one millisecond; a clock that went back does not take the chain with it.

        Args:
            content: JSON text.
            timestamp: milliseconds.
            key: encrypts the content.
            next_key: goes along under `key`: whoever reads this message can read those under the next key.
        """
        msg_id = self._place(timestamp)
        return self._finish(_sealed(_plain(msg_id, content, self._last), key, next_key))

    def make_exchange(self, exchange: keyexchange.Exchange, timestamp: int) -> bytes:
        """The next message, carrying a key-exchange content; see `make`."""
        kind = keyexchange.type_of(exchange)
        plain = _plain(self._place(timestamp), keyexchange.encode(exchange), self._last)
        # Published clients leave groupKeyId null where the document wants the reader's public key (facts, section 4).
        return self._finish(
            msgspec.structs.replace(plain, message_type=kind, encryption_type=keyexchange.ENCRYPTION[kind])
        )

    def _place(self, timestamp: int) -> MessageID:
        last = self._last
        sequence = 0
        if last is not None and timestamp <= last.timestamp:
            timestamp, sequence = last.timestamp, last.sequence_number + 1
        publisher = "" if self._signer is None else self._signer.address
        return MessageID(self.stream_id, self.partition, timestamp, sequence, publisher, self.chain_id)

    def _finish(self, made: message.StreamMessage) -> bytes:
        if self._signer is not None:
            made = sign(made, self._signer)
        self._last = MessageRef(made.msg_id.timestamp, made.msg_id.sequence_number)
        return message.encode(made)

    def take_back(self, raw: bytes) -> None:
        """Forget the message made last, if it is this one: it was refused, and nothing may refer to it."""
        made = message.decode(raw)
        if self._last == MessageRef(made.msg_id.timestamp, made.msg_id.sequence_number):
            self._last = made.prev_msg_ref


def _plain(msg_id: MessageID, content: str, last: MessageRef | None) -> message.StreamMessage:
    return message.StreamMessage(
        version=32,
        msg_id=msg_id,
        prev_msg_ref=last,
        message_type=message.MessageType.STREAM_MESSAGE,
        content_type=message.ContentType.JSON,
        encryption_type=message.EncryptionType.NONE,
        group_key_id=None,
        content=content,
        new_group_key=None,
        signature_type=message.SignatureType.NONE,
        signature=None,
    )


def _sealed(plain: message.StreamMessage, key: GroupKey | None, next_key: GroupKey | None) -> message.StreamMessage:
    """facts/streamr.md, section 4: content under the key, the next key under the same."""
    if key is None:
        return plain
    new = None
    if next_key is not None:
        sealed = groupkeys.encrypt(key.key, secrets.token_bytes(groupkeys.IV_BYTES), next_key.key)
        new = keyexchange.encode_new_group_key(keyexchange.NewGroupKey(next_key.key_id, sealed))
    return msgspec.structs.replace(
        plain,
        encryption_type=message.EncryptionType.AES,
        group_key_id=key.key_id,
        content=groupkeys.encrypt(key.key, secrets.token_bytes(groupkeys.IV_BYTES), plain.content.encode()),
        new_group_key=new,
    )


def sign(made: message.StreamMessage, signer: Signer) -> message.StreamMessage:
    """The message with an ETH signature."""
    typed = msgspec.structs.replace(made, signature_type=message.SignatureType.ETH)
    return msgspec.structs.replace(typed, signature=signer.sign(message.signed_payload(typed)))


def now_ms() -> int:
    """UTC milliseconds: Streamr's clock."""
    return time.time_ns() // 1_000_000
