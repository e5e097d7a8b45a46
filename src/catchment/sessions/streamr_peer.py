"""The conversation with another node of the Streamr network (facts/streamr.md, section 8).

Nodes speak control 2 with each other: BroadcastMessage carries a message on, SubscribeRequest and UnsubscribeRequest
make and end a neighbourhood, resend requests are answered as a client's are. What a node delivers is judged as if a
client had published it. Nothing is answered to a message, good or bad: that is how it shipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from catchment import model
from catchment.core.access import Access
from catchment.core.broker import Publish
from catchment.errors import PeerFault
from catchment.sessions.base import Resend
from catchment.sessions.streamr import StreamrSession
from catchment.wire.streamr import control, message, network, tracker
from catchment.wire.streamr.fields import LooseMessageRef
from catchment.wire.streamr.kinds import Control, ControlType
from catchment.wire.streamr.network import Era
from catchment.wire.streamr.publish import Published

CONTROL: Final = 2
MESSAGE: Final = 32


class Neighbour(msgspec.Struct, frozen=True, gc=False):
    """The node wants to be our neighbour in a stream-partition, or not any more."""

    topic: model.Topic
    wanted: bool


class Resent(msgspec.Struct, frozen=True, gc=False):
    """A message that answers a resend we asked this node for."""

    request_id: str
    message: message.StreamMessage
    raw: bytes


class ResendEnded(msgspec.Struct, frozen=True, gc=False):
    """The end of a resend we asked this node for."""

    request_id: str


class Denied(msgspec.Struct, frozen=True, gc=False):
    """A resend that is not answered with messages, and why: the node hears that there is nothing, and asks others."""

    request: Resend
    fault: PeerFault


class Told(msgspec.Struct, frozen=True, gc=False):
    """A message of the Tracker Protocol."""

    message: tracker.TrackerMessage


PeerCommand = Publish | Resend | Denied | Neighbour | Resent | ResendEnded | Told

_ENDS: Final = frozenset(
    {
        ControlType.RESEND_RESPONSE_RESENT,
        ControlType.RESEND_RESPONSE_NO_RESEND,
        ControlType.ERROR_RESPONSE,
    }
)
_NEIGHBOURS: Final = frozenset({ControlType.SUBSCRIBE_REQUEST, ControlType.UNSUBSCRIBE_REQUEST})
_RESENDS: Final = frozenset(
    {ControlType.RESEND_LAST_REQUEST, ControlType.RESEND_FROM_REQUEST, ControlType.RESEND_RANGE_REQUEST}
)


class PeerSession:
    """One node's conversation. Resends are answered as a client's are, in the peer's era."""

    def __init__(self, access: Access | None = None, *, era: Era = Era.V20, node_id: str = "") -> None:
        """Begin a conversation.

        Args:
            access: who may publish what where.
            era: how the peer writes; its first frame tells.
            node_id: our name, which one era puts into each frame.
        """
        self.era = era
        self._node_id = node_id
        self._client = StreamrSession(CONTROL, MESSAGE, publish_ack=False, access=access)

    def read(self, data: bytes, *, now: int) -> PeerCommand | None:
        """Take one frame; None when it asks for nothing.

        Raises:
            PeerFault: it is none of the network's, or carries a message that cannot be taken.
        """
        frame = network.read(data)
        self.era = frame.era
        if frame.tracker is not None:
            return Told(frame.tracker)
        assert frame.control is not None
        request = control.decode(frame.control)
        kind = request.type
        if kind is ControlType.BROADCAST_MESSAGE:
            parsed, raw = message.read(bytes(request.message))
            return self._client.publish(Published("", parsed, raw, None), now)
        if kind in _NEIGHBOURS:
            topic = model.Topic(request.stream_id, request.stream_partition)
            return Neighbour(topic, kind is ControlType.SUBSCRIBE_REQUEST)
        if kind in _RESENDS:
            try:
                return self._client.resend(request, now)
            except PeerFault as fault:
                topic = model.Topic(request.stream_id, request.stream_partition)
                return Denied(Resend(request.request_id, model.Range(topic)), fault)
        if kind is ControlType.UNICAST_MESSAGE:
            parsed, raw = message.read(bytes(request.message))
            return Resent(request.request_id, parsed, raw)
        if kind in _ENDS:
            return ResendEnded(request.request_id)
        return None  # what else shipped nodes answer asks for nothing

    def write(self, made: bytes) -> bytes:
        """A control message in the peer's era."""
        return network.write_control(made, self.era, self._node_id)

    def subscribe(self, topic: model.Topic, request_id: str, *, wanted: bool) -> bytes:
        """Become a neighbour, or end being one."""
        kind = ControlType.SUBSCRIBE_REQUEST if wanted else ControlType.UNSUBSCRIBE_REQUEST
        asked = Control(kind, request_id, stream_id=topic.name, stream_partition=topic.partition)
        return self.write(control.encode(asked, CONTROL))

    def broadcasts(self, raws: Sequence[bytes]) -> list[bytes]:
        """Pass messages on."""
        made = [control.broadcast(raw, CONTROL) for raw in raws]
        return made if self.era is Era.V20 else [self.write(each) for each in made]

    def tell(self, made: tracker.TrackerMessage) -> bytes:
        """A message of the Tracker Protocol in the peer's era."""
        return network.write_tracker(made, self.era, self._node_id)

    def resend_started(self, request: Resend) -> bytes | None:
        """See `StreamrSession`."""
        started = self._client.resend_started(request)
        return None if started is None else self.write(started)

    def resend_message(self, request: Resend, entry: model.Entry) -> bytes:
        """See `StreamrSession`."""
        return self.write(self._client.resend_message(request, entry))

    def resend_ended(self, request: Resend, count: int) -> bytes:
        """See `StreamrSession`."""
        return self.write(self._client.resend_ended(request, count))

    def resend_failed(self, request: Resend) -> bytes:
        """See `StreamrSession`."""
        return self.write(self._client.resend_failed(request))

    def ask(self, request: Resend) -> bytes:
        """Ask for history what a client asked us for."""
        return self.write(control.encode(_request(request), CONTROL))


def _request(request: Resend) -> Control:
    """The control message that asks another node for the same history."""
    question = request.question
    made = Control(
        ControlType.RESEND_LAST_REQUEST,
        request.request_id,
        stream_id=question.topic.name,
        stream_partition=question.topic.partition,
        number_last=request.last or 0,
        from_msg_ref=LooseMessageRef(*question.start),
        to_msg_ref=LooseMessageRef(*question.end),
        publisher_id=question.publisher,
        msg_chain_id=question.chain,
    )
    if request.last is not None:
        return made
    ends = question.end != model.LAST_REF
    kind = ControlType.RESEND_RANGE_REQUEST if ends else ControlType.RESEND_FROM_REQUEST
    return msgspec.structs.replace(made, type=kind)
