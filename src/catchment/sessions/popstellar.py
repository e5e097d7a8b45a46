"""The conversation with a PoPStellar client: JSON-RPC queries in, answers and broadcasts out.

spec/popstellar-protocol.md, "JSON RPC (low-level)". Error codes as its text defines them: an invalid frame or message
is -4, an unknown channel or one not subscribed to -2, what exists already -3, what the sender may not do -5, what this
channel or state does not take -1, our own failure -6; each under the query's id, null where it cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

from catchment import metrics, model
from catchment.core.broker import Publish, Status
from catchment.core.subscriptions import Form
from catchment.errors import OurFault, PeerFault
from catchment.popstellar.hub import Hub
from catchment.popstellar.values import Source
from catchment.sessions.base import Close, Command, NoResends, Send, Serve, Subscribe, TextSession, Unsubscribe
from catchment.store.base import Store
from catchment.wire.popstellar import channels, message, rpc
from catchment.wire.popstellar.fields import ErrorCode, fault
from catchment.wire.popstellar.message import WitnessSignature
from catchment.wire.popstellar.submission import read

MAX_FRAME: Final = 256 * 1024
"""facts/popstellar.md, section 2, "Endpoints": the read limit of the project's own server."""

MAX_SUBSCRIPTIONS: Final = 10_000
MESSAGE_TOO_BIG: Final = 1009
"""RFC 6455, section 7.4.1."""

FORM: Final = Form("popstellar", lambda entry: rpc.broadcast(entry.topic, entry.raw))

Witnesses: TypeAlias = Mapping[str, tuple[WitnessSignature, ...]]
_POPSTELLAR: Final = model.Protocol.POPSTELLAR


class Answer:
    """The answer to a question about messages, made on a reader's thread: one frame, as the document has it."""

    def __init__(self, make: Callable[[], bytes], query_id: int) -> None:
        self.done = False
        self.closed = False
        self._make = make
        self._query_id = query_id

    def page(self) -> Sequence[bytes]:
        """Everything."""
        made = self._make()
        self.done = True
        return (made,)

    def ended(self) -> None:
        """Nothing is left to do."""

    def failed(self) -> bytes:
        """Our fault, no detail."""
        return rpc.failure(self._query_id, ErrorCode.INTERNAL, "The messages cannot be read at the moment.")


class PopstellarSession(TextSession, NoResends):
    """One client's conversation."""

    protocol = _POPSTELLAR
    version = message.VERSION
    form = FORM
    max_frame = MAX_FRAME
    source = Source.CLIENT

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._channels: set[str] = set()

    def receive(self, data: bytes, *, text: bool, now: int) -> Sequence[Command]:
        """Take one frame."""
        request_id = ""
        try:
            if not text:
                raise fault("Queries are sent as text, not as binary frames.")
            query = rpc.decode(data)
            request_id = str(getattr(query, "id", ""))
            if isinstance(query, rpc.Publish):
                return (self._publish(query, now),)
            handler = _HANDLERS.get(type(query))
            if handler is None:
                # Notifications between servers, and answers to questions we never ask: JSON-RPC answers neither.
                metrics.REQUESTS_INVALID.labels("popstellar", str(ErrorCode.INVALID_ACTION.value)).inc()
                return ()
            return (handler(self, query),)
        except PeerFault as wrong:
            metrics.REQUESTS_INVALID.labels("popstellar", wrong.code).inc()
            return (Send(_failure(wrong.request_id or request_id, int(wrong.code), wrong.message)),)

    def frame_too_large(self, size: int, head: bytes) -> Sequence[Command]:
        """Such a frame ends the connection, as with the project's own server."""
        metrics.REQUESTS_INVALID.labels("popstellar", str(ErrorCode.INVALID_DATA.value)).inc()
        reason = b"frames have at most %d bytes" % self.max_frame
        return (Close(code=MESSAGE_TOO_BIG, reason=reason),)

    def published(self, request_id: str, status: Status, verdict: model.Verdict) -> bytes | None:
        """Answer a publish: 0 once it is on disk."""
        if status is Status.STORED:
            return rpc.success(int(request_id))
        if status is Status.DUPLICATE:
            return _failure(request_id, ErrorCode.ALREADY_EXISTS, "The message exists already.")
        if status is Status.REFUSED:
            return _failure(request_id, ErrorCode.INVALID_DATA, _REFUSALS[verdict])
        return _failure(request_id, ErrorCode.INTERNAL, "The server cannot store messages at the moment.")

    def refused(self, request_id: str, fault: PeerFault) -> bytes | None:
        """Answer a publish that was refused for a reason of its own."""
        return _failure(request_id, int(fault.code), fault.message)

    def _publish(self, query: rpc.Publish, now: int) -> Publish:
        submission = read(query.params.channel, query.params.message)
        return self._hub.publish(str(query.id), submission, self.source, now, origin=self)

    def _subscribe(self, query: rpc.Subscribe) -> Command:
        channel = query.params.channel
        self._require_below_root(channel)
        self._require_channel(channel)
        if len(self._channels) >= MAX_SUBSCRIPTIONS and channel not in self._channels:
            raise fault(f"Too many subscriptions; a connection may have {MAX_SUBSCRIPTIONS}.", ErrorCode.ACCESS_DENIED)
        self._channels.add(channel)
        return Subscribe(topic_of(channel), rpc.success(query.id))

    def _unsubscribe(self, query: rpc.Unsubscribe) -> Command:
        channel = query.params.channel
        self._require_below_root(channel)
        if channel not in self._channels:
            raise fault(f"Not subscribed to {channel}.", ErrorCode.INVALID_RESOURCE)
        self._channels.discard(channel)
        return Unsubscribe(topic_of(channel), rpc.success(query.id))

    def _catchup(self, query: rpc.Catchup) -> Command:
        channel = query.params.channel
        self._require_channel(channel)
        return self._give(query.id, list(self._hub.state.channels[channel].messages))

    def _paged_catchup(self, query: rpc.PagedCatchup) -> Command:
        params = query.params
        self._require_channel(params.channel)
        found = self._hub.state.channels[params.channel].messages
        end = len(found)
        if isinstance(params.before_message_id, str):
            if params.before_message_id not in found:
                raise fault("before_message_id: not on this channel.", ErrorCode.INVALID_RESOURCE)
            end = found.index(params.before_message_id)
        return self._give(query.id, found[max(0, end - params.number_of_messages) : end])

    def _give(self, query_id: int, message_ids: Sequence[str]) -> Serve:
        witnesses = self._hub.witnesses(message_ids)
        return Serve(Answer(partial(_list, query_id, message_ids, witnesses, self._hub.store), query_id))

    def _get_messages_by_id(self, query: rpc.GetMessagesById) -> Command:
        """What is not on the channel it is asked for on is left out."""
        wanted = {
            channel: [each for each in dict.fromkeys(message_ids) if self._stands_on(each, channel)]
            for channel, message_ids in query.params.items()
        }
        wanted = {channel: message_ids for channel, message_ids in wanted.items() if message_ids}
        witnesses = self._hub.witnesses(each for message_ids in wanted.values() for each in message_ids)
        return Serve(Answer(partial(_map, query.id, wanted, witnesses, self._hub.store), query.id))

    def _stands_on(self, message_id: str, channel: str) -> bool:
        return channel in self._hub.state.messages.get(message_id, ())

    @staticmethod
    def _require_below_root(channel: str) -> None:
        if channel == channels.ROOT:
            raise fault("Only servers subscribe to /root.", ErrorCode.ACCESS_DENIED)

    def _require_channel(self, channel: str) -> None:
        if channel not in self._hub.state.channels:
            raise fault(f"The channel {channel} does not exist.", ErrorCode.INVALID_RESOURCE)


def topic_of(channel: str) -> model.Topic:
    """A channel as the broker knows it."""
    return model.Topic(channel, 0, _POPSTELLAR)


def _failure(request_id: str, code: ErrorCode | int, text: str) -> bytes:
    return rpc.failure(int(request_id) if request_id else None, code, text)


def _list(query_id: int, message_ids: Sequence[str], witnesses: Witnesses, store: Store) -> bytes:
    rows = _rows(message_ids, store)
    # What is being written while this is read stands at the end of its channel.
    missing = rows.index(None) if None in rows else len(rows)
    if any(rows[missing:]):
        raise OurFault(f"the message {message_ids[missing]} is not in the store")
    return rpc.message_list(query_id, _worded(message_ids, rows, witnesses))


def _map(query_id: int, wanted: Mapping[str, Sequence[str]], witnesses: Witnesses, store: Store) -> bytes:
    found = {name: _worded(each, _rows(each, store), witnesses) for name, each in wanted.items()}
    return rpc.message_map(query_id, {name: each for name, each in found.items() if each})


def _rows(message_ids: Sequence[str], store: Store) -> list[model.Row | None]:
    return store.find_all(_POPSTELLAR, [message.key_bytes(each) for each in message_ids])


def _worded(message_ids: Sequence[str], rows: Sequence[model.Row | None], witnesses: Witnesses) -> list[bytes]:
    """The messages that are there, with all their witness signatures."""
    found = []
    for message_id, row in zip(message_ids, rows, strict=True):
        if row is not None:
            raw, later = row.entry.raw, witnesses.get(message_id)
            found.append(raw if not later else message.encode(message.merged(message.decode(raw), list(later))))
    return found


_REFUSALS: Final = {
    model.Verdict.BAD_SIGNATURE: "signature: not the sender's over the data, or a witness' signature is wrong.",
    model.Verdict.BAD_ID: "message_id: not the hash of data and signature.",
    model.Verdict.MALFORMED: "The message cannot be read.",
    model.Verdict.NOT_PERMITTED: "The sender may not do this.",
}

_HANDLERS: Final[Mapping[type, Callable[..., Command]]] = {
    rpc.Subscribe: PopstellarSession._subscribe,
    rpc.Unsubscribe: PopstellarSession._unsubscribe,
    rpc.Catchup: PopstellarSession._catchup,
    rpc.PagedCatchup: PopstellarSession._paged_catchup,
    rpc.GetMessagesById: PopstellarSession._get_messages_by_id,
}
"""What each query does; what is not here is none of a client's."""
