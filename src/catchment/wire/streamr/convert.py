"""One message shown as another version.

facts/streamr.md, section 3, "Conversion". What was signed stays as it is in the log; these are only ways of showing
it. A reader of an older version loses what his version has no element for; what he could not make sense of at all he
is not shown (`why_not_shown`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from catchment.wire.streamr.message import (
    ROWS,
    EncryptionType,
    MessageType,
    OffsetMessage,
    SignatureType,
    StreamMessage,
)

OFFSETS: Final = (28, 29)
"""Versions with the server's own order instead of a message id."""


def to_version(message: StreamMessage, version: int) -> StreamMessage:
    """The same message in another version, as the published converter makes it.

    Offsets of 28 and 29 are timestamps, "a hack for resend and gap detection" in its own words.

    Raises:
        ValueError: there is no such version.
    """
    if version not in ROWS:
        raise ValueError(f"there is no message version {version}")
    if version in OFFSETS:
        made: StreamMessage = _with_offsets(message)
    else:
        made = _without_offsets(message) if isinstance(message, OffsetMessage) else message
    # An empty signature is none; only message 31's document writes it so.
    changes: dict[str, object] = {"version": version, "signature": made.signature or None}
    if version == 28:
        changes |= {"signature_type": SignatureType.NONE, "signature": None}
        changes["msg_id"] = msgspec.structs.replace(made.msg_id, publisher_id="")
    if version < 31:
        changes["encryption_type"] = EncryptionType.NONE
    if version < 32:
        changes |= {"group_key_id": None, "new_group_key": None}
    return msgspec.structs.replace(made, **changes)


def _with_offsets(message: StreamMessage) -> OffsetMessage:
    if isinstance(message, OffsetMessage):
        return message
    msg_id, prev = message.msg_id, message.prev_msg_ref
    found = {name: getattr(message, name) for name in StreamMessage.__struct_fields__}
    found["msg_id"] = msgspec.structs.replace(msg_id, sequence_number=0, msg_chain_id="")
    found["prev_msg_ref"] = None
    return OffsetMessage(**found, offset=msg_id.timestamp, previous_offset=None if prev is None else prev.timestamp)


def _without_offsets(message: OffsetMessage) -> StreamMessage:
    return StreamMessage(**{name: getattr(message, name) for name in StreamMessage.__struct_fields__})


def why_not_shown(message: StreamMessage, version: int) -> str | None:
    """Why a reader of `version` cannot be shown a message, as a sentence for him; None when he can.

    Brokers answered so below version 31, which has no element for encryption (facts/streamr.md, section 3). Versions
    28 and 29 have no key exchange, and 32 has no NEW_KEY_AND_AES.
    """
    encryption = message.encryption_type
    if encryption is not EncryptionType.NONE and version < 31:
        return "Encrypted message received. A client with message version 31 or later can decrypt it."
    if encryption is EncryptionType.NEW_KEY_AND_AES and version > 31:
        return "Message encrypted for message version 31 received. A client with that version can decrypt it."
    if message.message_type is not MessageType.STREAM_MESSAGE and version in OFFSETS:
        return "Key exchange message received. A client with message version 31 or later can read it."
    return None


def unsigned(message: StreamMessage) -> StreamMessage:
    """The message without its signature, for readers that throw on its type."""
    return msgspec.structs.replace(message, signature_type=SignatureType.NONE, signature=None)
