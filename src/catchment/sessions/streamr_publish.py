"""What a Streamr message has to pass before it is kept: time, access, key exchange, signature, a free identity.

facts/streamr.md, sections 4 and 7; DESIGN.md, "Rules that follow". All of it is said once and used by every way in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from catchment import metrics, model
from catchment.core.access import ANONYMOUS, Access
from catchment.core.broker import Publish
from catchment.crypto import ethereum
from catchment.errors import PeerFault
from catchment.store.base import Place
from catchment.wire.streamr import convert, keyexchange, message
from catchment.wire.streamr.kinds import ErrorCode
from catchment.wire.streamr.message import OffsetMessage, SignatureType, StreamMessage

MAX_FUTURE_MS: Final = 300_000
"""facts/streamr.md, section 7: timestamps may be five minutes ahead."""

MAX_AT_ONE_TIME: Final = 256
"""Signed messages without a sequence that one publisher may have at one time: each is compared with all others."""

_OK: Final = model.Verdict.OK
_NOT_SIGNED: Final = SignatureType.NONE
_LEGACY: Final = SignatureType.ETH_LEGACY
_NOT_ENCRYPTED: Final = message.EncryptionType.NONE


def prepare(  # noqa: PLR0917 - stands in the way of every message
    access: Access | None,
    parsed: StreamMessage,
    raw: bytes,
    now: int,
    session_token: str | None = None,
    auth_key: str | None = None,
    *,
    unnumbered: bool = False,
) -> Publish:
    """A message on its way to the broker, with the check that is left to do.

    Args:
        access: who may do what where; None allows everything in every partition.
        parsed: the message.
        raw: its bytes.
        now: UTC microseconds.
        session_token: what its sender showed.
        auth_key: what its sender showed.
        unnumbered: whether its sequence is not its publisher's, so that it may get another.

    Raises:
        PeerFault: it is dated too far ahead, there is no such stream or partition, the stream does not take such
            messages, the key exchange is malformed, or the sender is unknown.
    """
    if parsed.msg_id.timestamp > now // 1000 + MAX_FUTURE_MS:
        raise PeerFault(
            f"Failed publish to stream {parsed.msg_id.stream_id}, reason: future timestamps are not allowed, "
            f"max allowed +{MAX_FUTURE_MS} ms",
            code=ErrorCode.FUTURE_TIMESTAMP,
        )
    if parsed.signature_type is _LEGACY:
        parsed, raw = _believed(parsed, raw)
        unnumbered = True
    elif type(parsed) is OffsetMessage:
        # Versions 28 and 29 have no sequence, and what ETH signs has one.
        unnumbered = parsed.signature_type is _NOT_SIGNED
    check: Callable[[], model.Verdict] | None
    verdict = _OK
    if not _permitted(access, parsed, now, session_token, auth_key):
        # Noted under what it claims to be; the check says first whether the claim is true.
        check = partial(_judge_denied, parsed)
    elif parsed.signature_type is not _NOT_SIGNED or message.needs_check(parsed):
        check = partial(_judge, parsed)
    else:
        check, verdict = None, model.Verdict.UNSIGNED
    entry = message.to_entry(parsed, raw, verdict=verdict, received_at=now)
    publish = Publish("", entry, check, False)
    if unnumbered:
        publish.renumber = partial(renumbered, parsed, entry)
    return publish


def _permitted(
    access: Access | None, parsed: StreamMessage, now: int, session_token: str | None, auth_key: str | None
) -> bool:
    """Whether a message may be published by its publisher, if it is theirs.

    A signed message needs no session: its signer is asked for (facts/streamr.md, section 7).
    """
    exchange = keyexchange.read(parsed) if keyexchange.is_key_exchange(parsed) else None
    if access is None:
        return True
    msg_id = parsed.msg_id
    signer = None if parsed.signature_type is _NOT_SIGNED else msg_id.publisher_id
    caller = access.authenticate(session_token, auth_key, now) if signer is None else ANONYMOUS
    encrypted = parsed.encryption_type is not _NOT_ENCRYPTED
    try:
        access.check_publish(
            caller,
            msg_id.stream_id,
            msg_id.stream_partition,
            signer=signer,
            encrypted=encrypted,
            exchange=exchange is not None,
        )
    except PeerFault as fault:
        if fault.code != ErrorCode.PERMISSION_DENIED:
            raise
        return False
    return exchange is None or _may_exchange(access, parsed, exchange)


def _judge(parsed: StreamMessage) -> model.Verdict:
    """The one rule, and a count of signatures no usual signer makes (docs/decisions/0006)."""
    verdict = message.judge(parsed)
    if verdict is _OK and ethereum.has_high_s(parsed.signature or ""):
        metrics.HIGH_S.inc()
    return verdict


def _judge_denied(parsed: StreamMessage) -> model.Verdict:
    """A message that may not be published even if it is its publisher's."""
    verdict = message.judge(parsed)
    return model.Verdict.NOT_PERMITTED if verdict.accepted else verdict


def _may_exchange(access: Access, parsed: StreamMessage, exchange: keyexchange.Exchange) -> bool:
    """Keys are asked for by subscribers of a stream and given by its publishers (facts/streamr.md, section 4)."""
    sender, recipient = parsed.msg_id.publisher_id, keyexchange.recipient_of(parsed.msg_id.stream_id) or ""
    stream_id = exchange.stream_id
    if isinstance(exchange, keyexchange.GroupKeyRequest):
        return access.is_subscriber(stream_id, sender) and access.is_publisher(stream_id, recipient)
    if not stream_id:
        return True  # an error about a request that could not be read
    return access.is_publisher(stream_id, sender) and access.is_subscriber(stream_id, recipient)


def _believed(parsed: StreamMessage, raw: bytes) -> tuple[StreamMessage, bytes]:
    """A message with an ETH_LEGACY signature without what that does not cover, and its bytes.

    Sequence, chain, previous reference and new key are anybody's claim: under others a signed message could be sent
    again and again. So the node gives the sequence, as it does where there is none. (The partition is not covered
    either, in what shipped; it is part of where the message was sent to.)
    """
    msg_id = parsed.msg_id
    if not (msg_id.sequence_number or msg_id.msg_chain_id or parsed.prev_msg_ref or parsed.new_group_key):
        return parsed, raw
    bare = msgspec.structs.replace(
        parsed,
        msg_id=msgspec.structs.replace(msg_id, sequence_number=0, msg_chain_id=""),
        prev_msg_ref=None,
        new_group_key=None,
    )
    return bare, message.encode(bare)


def _numberable(parsed: StreamMessage) -> StreamMessage:
    """The message in a version that has a sequence, with all else it says."""
    return convert.to_version(parsed, 30) if isinstance(parsed, OffsetMessage) else parsed


def with_sequence(parsed: StreamMessage, sequence: int) -> StreamMessage:
    """The message under another sequence number."""
    return msgspec.structs.replace(parsed, msg_id=msgspec.structs.replace(parsed.msg_id, sequence_number=sequence))


def renumbered(parsed: StreamMessage, entry: model.Entry, places: Sequence[Place]) -> model.Entry | None:
    """The entry of a message without a sequence whose identity is taken; None when it is a repeat.

    Only a signed message can be known to be the same one again: same publisher and time, which all of `places` share,
    and same content. One that was dropped from the hot store cannot be compared and counts as the same: a replay must
    not become a new message.

    Raises:
        PeerFault: no sequence is left, or too much would have to be compared.
    """
    if parsed.signature_type is not SignatureType.NONE:
        for place in places:
            if place.row is None or message.decode(place.row.entry.raw).content == parsed.content:
                return None
    sequence = places[-1].key.sequence + 1
    if sequence > model.MAX_SAFE_INTEGER or len(places) >= MAX_AT_ONE_TIME:
        raise PeerFault(
            f"Publish request failed: stream {parsed.msg_id.stream_id} takes no more messages without a sequence "
            f"number at timestamp {parsed.msg_id.timestamp}. Send it with another timestamp.",
            code=ErrorCode.REQUEST_FAILED,
        )
    made = with_sequence(_numberable(parsed), sequence)
    return msgspec.structs.replace(entry, version=made.version, sequence=sequence, raw=message.encode(made))
