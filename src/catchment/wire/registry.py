"""Which protocols there are, and how each reads its own signed bytes again.

The pipeline asks `read_again` for every row of the lake; the answer comes from the same functions the node used when
it accepted the message. A new protocol is one line in `READERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from catchment import lake, model
from catchment.errors import PeerFault
from catchment.wire.mosaic import record as mosaic
from catchment.wire.popstellar import message as popstellar_message
from catchment.wire.popstellar import submission as popstellar
from catchment.wire.streamr import message as streamr
from catchment.wire.streamr.keyexchange import recipient_of


class Reading(msgspec.Struct, frozen=True, gc=False):
    """What the signed bytes of a row say, read and checked from nothing but themselves.

    Attributes:
        entry: the log's line these bytes make; `received_at` is 0. None when they cannot be read.
        reason: why they were not accepted, in one sentence; empty when they were.
        content: the message's content as text, still encrypted where `encryption` is not "none".
        encryption: "none", "rsa", "aes" or (Streamr 31 only) "new_key_and_aes".
        group_key_id: which key the content needs.
    """

    verdict: model.Verdict
    entry: model.Entry | None = None
    reason: str = ""
    content: str | None = None
    encryption: str = "none"
    group_key_id: str | None = None


def _read_streamr(raw: bytes) -> Reading:
    try:
        message = streamr.decode(raw)
    except PeerFault as fault:
        return Reading(model.Verdict.MALFORMED, reason=fault.message)
    verdict = streamr.judge(message)
    return Reading(
        verdict,
        entry=streamr.to_entry(message, raw, verdict=verdict, received_at=0),
        reason="" if verdict.accepted else _why_refused(message),
        content=message.content,
        encryption=message.encryption_type.name.lower(),
        group_key_id=message.group_key_id,
    )


def _why_refused(message: streamr.StreamMessage) -> str:
    publisher = message.msg_id.publisher_id
    return f"The signature is not {publisher}'s." if message.signature else f"The signature of {publisher} is missing."


def _read_mosaic(raw: bytes) -> Reading:
    try:
        record = mosaic.decode(raw)
    except PeerFault as fault:
        return Reading(model.Verdict.MALFORMED, reason=fault.message)
    verdict = mosaic.judge(record)
    return Reading(
        verdict,
        entry=mosaic.to_entry(record, verdict=verdict, received_at=0),
        reason=_WHY_NO_RECORD.get(verdict, ""),
        content=record.text,
    )


_WHY_NO_RECORD: Final = {
    model.Verdict.BAD_ID: "The id is not the hash of the record.",
    model.Verdict.BAD_SIGNATURE: "The signature is not that of the record's signing key.",
}


_STREAMR: Final = lake.protocol_name(model.Protocol.STREAMR)


def _read_popstellar(raw: bytes, topic: str) -> Reading:
    if raw.startswith(b'{"message_id"'):
        return _read_witnessed(raw, topic)
    try:
        submission = popstellar.read(topic, raw)
    except PeerFault as fault:
        return Reading(model.Verdict.MALFORMED, reason=fault.message)
    reason = ""
    try:
        verdict = submission.judge()
    except PeerFault as fault:
        verdict, reason = model.Verdict.MALFORMED, fault.message
    return Reading(
        verdict,
        entry=submission.entry(verdict=verdict, received_at=0),
        reason=reason or _WHY_NO_MESSAGE.get(verdict, ""),
        content=submission.content,
    )


def _read_witnessed(raw: bytes, topic: str) -> Reading:
    try:
        late = popstellar_message.decode_witnessed(raw)
    except PeerFault as fault:
        return Reading(model.Verdict.MALFORMED, reason=fault.message)
    entry = popstellar_message.witness_entry(late, topic, received_at=0)
    if popstellar_message.witnessed(late.message_id, late):
        return Reading(model.Verdict.OK, entry=entry)
    verdict = model.Verdict.BAD_SIGNATURE
    return Reading(verdict, entry=msgspec.structs.replace(entry, verdict=verdict), reason=_WHY_NO_MESSAGE[verdict])


_WHY_NO_MESSAGE: Final = {
    model.Verdict.BAD_SIGNATURE: "The signature is not that of the message's sender, or one of a witness is wrong.",
    model.Verdict.BAD_ID: "The id is not the hash of data and signature.",
}


READERS: Final[Mapping[model.Protocol, Callable[[bytes, str], Reading]]] = {
    model.Protocol.STREAMR: lambda raw, topic: _read_streamr(raw),
    model.Protocol.POPSTELLAR: _read_popstellar,
    model.Protocol.MOSAIC: lambda raw, topic: _read_mosaic(raw),
}


def is_key_exchange(protocol: str, topic: str) -> bool:
    """Whether everything in a topic is key exchange; `protocol` as the lake names it."""
    return protocol == _STREAMR and recipient_of(topic) is not None


def read_again(protocol: model.Protocol, raw: bytes, topic: str = "") -> Reading:
    """Read and judge the signed bytes of a row. Never raises on what they hold.

    Args:
        protocol: of the row.
        raw: the signed bytes.
        topic: of the row, for protocols whose messages do not name it themselves.
    """
    reader = READERS.get(protocol)
    if reader is None:
        return Reading(
            model.Verdict.MALFORMED, reason=f"No reader for protocol {protocol.name.lower()} in this version."
        )
    return reader(raw, topic)
