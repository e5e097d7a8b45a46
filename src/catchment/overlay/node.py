"""A node of the network: follows its trackers' instructions and passes messages on.

Events in, commands out; time comes as an argument (seconds). Whoever runs it owns the connections: `net/` with
sockets, `simulation.py` with numbers. Rules are those of facts/streamr.md, section 8, where not said otherwise.

A message goes on when the store has taken it, to every neighbour but the one it came from: the store's identity rule
decides what is a repeat, there is no second detector. Messages of the last while are kept, and a neighbour that
subscribes gets them: so what was accepted while a link was being replaced is not lost (repeats cost it nothing).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from catchment import model
from catchment.wire.streamr import tracker as wire

STATUS_DELAY: Final = 1.0
"""A status is sent so long after something changed; what changes meanwhile goes with it."""

DIAL_DELAY: Final = 0.3
"""A new neighbour is dialled so long after the instruction, twice as long by the one with the greater address.

Both are told of each other at once. Shipped nodes dial at once, and when two connections cross they close one and take
it for the other: so we let them, and dial only who has not come by then."""

UNSHARED_SECONDS: Final = 10.0
"""A neighbour without a common stream is disconnected after this long."""

RECENT_SECONDS: Final = 60.0
RECENT_MESSAGES: Final = 10_000
RECENT_BYTES: Final = 16 * 1024 * 1024
"""What is kept for neighbours to come: as long and as many as the shipped nodes buffered, and not more than this."""

MAX_NEIGHBOURS: Final = 32
"""Links one stream-partition may have, whoever asks; trackers give four."""

FIRST_RETRY: Final = 1.0
LAST_RETRY: Final = 30.0

NORMAL_CLOSURE: Final = 1000
PROTOCOL_ERROR: Final = 1002
NO_SHARED_STREAMS: Final = "streamr:node:no-shared-streams"
GRACEFUL_SHUTDOWN: Final = "streamr:node:graceful-shutdown"
DUPLICATE_CONNECTION: Final = "streamr:endpoint:duplicate-connection"
DEAD_CONNECTION: Final = "streamr:endpoint:dead-connection"


class DialTracker(NamedTuple):
    """Connect to a tracker."""

    address: str


class DialPeer(NamedTuple):
    """Connect to a node."""

    address: str


class ClosePeer(NamedTuple):
    """End the connection with a node."""

    peer: str
    code: int
    reason: str


class ToTracker(NamedTuple):
    """Send a tracker something."""

    address: str
    message: wire.TrackerMessage


class SubscribePeer(NamedTuple):
    """Send a node a SubscribeRequest."""

    peer: str
    topic: model.Topic


class UnsubscribePeer(NamedTuple):
    """Send a node an UnsubscribeRequest."""

    peer: str
    topic: model.Topic


class Replay(NamedTuple):
    """Send a node messages it may have missed."""

    peer: str
    topic: model.Topic
    messages: Sequence[bytes]


Command: TypeAlias = DialTracker | DialPeer | ClosePeer | ToTracker | SubscribePeer | UnsubscribePeer | Replay


class _Recent(NamedTuple):
    """Messages that were accepted together."""

    at: float
    topic: model.Topic
    messages: Sequence[bytes]
    size: int
    source: str


class _Stream(msgspec.Struct):
    """A stream-partition this node takes part in."""

    tracker: str
    wanted: dict[str, None] = {}
    """Addresses the tracker named."""
    neighbours: dict[str, None] = {}
    counter: int = 0


class _Peer(msgspec.Struct):
    """A node we are connected to."""

    address: str
    streams: dict[model.Topic, None] = {}
    rtt: float | None = None


class OverlayNode:
    """One node's part in the network."""

    def __init__(
        self,
        node_id: str,
        *,
        address: str,
        trackers: Sequence[str],
        started: str = "",
        storage: bool = False,
        allowed: Callable[[str], bool],
    ) -> None:
        """Begin, connected to nobody.

        Args:
            node_id: our name.
            address: where others dial us.
            trackers: all trackers of the network.
            started: when the node began, for people.
            storage: whether we keep streams we are told of, not only those we have an interest in.
            allowed: whether an address a tracker tells may be dialled.
        """
        self.id = node_id
        self.address = address
        self.storage = storage
        self.refused = 0
        """Instructions and requests that were not followed."""
        self._trackers = tuple(sorted(trackers))
        self._started = started
        self.allowed = allowed
        self._streams: dict[model.Topic, _Stream] = {}
        self._peers: dict[str, _Peer] = {}
        self._by_address: dict[str, str] = {}
        self._dialling: dict[str, None] = {}
        self._connected_trackers: dict[str, None] = {}
        self._retries: dict[str, float] = {}
        self._timers: dict[tuple[str, str], float] = {}
        self._recent: deque[_Recent] = deque()
        self._recent_messages = self._recent_bytes = 0

    @property
    def streams(self) -> Sequence[model.Topic]:
        """Where it takes part."""
        return list(self._streams)

    @property
    def peers(self) -> Mapping[str, str]:
        """The nodes it is connected to, with their addresses."""
        return {peer: found.address for peer, found in self._peers.items()}

    @property
    def due(self) -> float | None:
        """When `tick` has something to do; None when nothing waits."""
        return min(self._timers.values(), default=None)

    def takes_part(self, topic: model.Topic) -> bool:
        """Whether it takes part in a stream-partition."""
        return topic in self._streams

    def neighbours(self, topic: model.Topic) -> Sequence[str]:
        """Its neighbours in a stream-partition."""
        stream = self._streams.get(topic)
        return [] if stream is None else list(stream.neighbours)

    def tracker_of(self, topic: model.Topic) -> str:
        """The tracker that instructs us in a stream-partition."""
        return wire.tracker_of(topic, self._trackers)

    # The node itself.

    def start(self) -> list[Command]:
        """Dial the trackers."""
        return [DialTracker(address) for address in self._trackers]

    def stop(self) -> list[Command]:
        """Say goodbye to everyone."""
        self._timers.clear()
        return [ClosePeer(peer, NORMAL_CLOSURE, GRACEFUL_SHUTDOWN) for peer in self._peers]

    def join(self, topic: model.Topic, now: float) -> None:
        """Take part in a stream-partition: somebody here subscribes to it or publishes on it."""
        if topic not in self._streams:
            tracker = self.tracker_of(topic)
            self._streams[topic] = _Stream(tracker, wanted={}, neighbours={})
            self._report(tracker, now)

    def leave(self, topic: model.Topic, now: float) -> list[Command]:
        """Take part no longer."""
        stream = self._streams.pop(topic, None)
        if stream is None:
            return []
        commands: list[Command] = []
        for peer in stream.neighbours:
            commands.append(UnsubscribePeer(peer, topic))
            self._unshare(peer, topic, now)
        self._report(stream.tracker, now)
        return commands

    def accepted(self, topic: model.Topic, message: bytes, source: str, now: float) -> list[str]:
        """The store has taken a new message; returns who gets it next. See `accepted_all`."""
        return self.accepted_all(topic, (message,), source, now)

    def accepted_all(self, topic: model.Topic, messages: Sequence[bytes], source: str, now: float) -> list[str]:
        """The store has taken new messages; returns who gets them next.

        Args:
            topic: where they were published.
            messages: their exact bytes.
            source: the node they came from; empty when they were published here.
            now: seconds.
        """
        stream = self._streams.get(topic)
        if stream is None:
            return []
        size = sum(map(len, messages))
        self._recent.append(_Recent(now, topic, messages, size, source))
        self._recent_messages += len(messages)
        self._recent_bytes += size
        self._forget(now)
        return [peer for peer in stream.neighbours if peer != source]

    # Trackers.

    def tracker_connected(self, address: str, now: float) -> list[Command]:
        """A tracker answers; it may be a new one that counts from the beginning."""
        self._connected_trackers[address] = None
        self._retries.pop(address, None)
        self._timers.pop(("tracker", address), None)
        for stream in self._streams.values():
            if stream.tracker == address:
                stream.counter = 0
        self._timers.pop(("status", address), None)
        return [self._status(address)]

    def tracker_lost(self, address: str, now: float) -> None:
        """A tracker has gone or could not be reached; neighbours stay, and it is dialled again."""
        self._connected_trackers.pop(address, None)
        self._timers.pop(("status", address), None)
        self._retry("tracker", address, now)

    def instructed(self, tracker: str, message: wire.InstructionMessage, now: float) -> list[Command]:
        """A tracker names the complete list of our neighbours in a stream-partition."""
        topic = message.topic
        if tracker not in self._trackers or self.tracker_of(topic) != tracker:
            self.refused += 1
            return []
        if topic not in self._streams:
            if not self.storage:
                self.refused += 1  # we have left, and the tracker will hear of it
                return []
            self.join(topic, now)
        stream = self._streams[topic]
        if message.counter is not None:
            if message.counter < stream.counter:
                return []  # the newest wins
            stream.counter = message.counter
        own = self.address
        wanted = [a for a in message.node_addresses[:MAX_NEIGHBOURS] if a != own and self.allowed(a)]
        self.refused += len(message.node_addresses) - len(wanted)
        stream.wanted = dict.fromkeys(wanted)
        commands: list[Command] = []
        for address in wanted:
            peer = self._by_address.get(address)
            if peer is None:
                self._dial_soon(address, now)
            elif peer not in stream.neighbours:
                commands += self._subscribe(peer, topic, stream)
        for peer in list(stream.neighbours):
            if self._peers[peer].address not in stream.wanted:
                del stream.neighbours[peer]
                commands.append(UnsubscribePeer(peer, topic))
                self._unshare(peer, topic, now)
        self._report(tracker, now)
        return commands

    # Other nodes.

    def peer_connected(self, peer: str, address: str, now: float) -> list[Command]:
        """A node is connected, whoever dialled."""
        self._dialling.pop(address, None)
        self._retries.pop(address, None)
        self._timers.pop(("peer", address), None)
        self._peers[peer] = _Peer(address, streams={})
        self._by_address[address] = peer
        commands: list[Command] = []
        for topic, stream in self._streams.items():
            if address in stream.wanted:
                commands += self._subscribe(peer, topic, stream)
                self._report(stream.tracker, now)
        if not self._peers[peer].streams:
            self._timers["unshared", peer] = now + UNSHARED_SECONDS
        return commands

    def dial_failed(self, address: str, now: float) -> None:
        """A node could not be reached; it is dialled again while it is wanted."""
        self._dialling.pop(address, None)
        if self._is_wanted(address):
            self._retry("peer", address, now)
            for stream in self._streams.values():
                if address in stream.wanted:
                    self._report(stream.tracker, now)
        else:
            self._retries.pop(address, None)

    def peer_lost(self, peer: str, now: float) -> None:
        """A connection has ended."""
        gone = self._peers.pop(peer, None)
        if gone is None:
            return
        if self._by_address.get(gone.address) == peer:
            del self._by_address[gone.address]
        self._timers.pop(("unshared", peer), None)
        for topic in gone.streams:
            stream = self._streams[topic]
            stream.neighbours.pop(peer, None)
            self._report(stream.tracker, now)
        if self._is_wanted(gone.address):
            self._retry("peer", gone.address, now)

    def subscribe_requested(self, peer: str, topic: model.Topic, now: float) -> list[Command]:
        """A node wants to be our neighbour in a stream-partition; that goes both ways."""
        found = self._peers.get(peer)
        if found is None:  # its connection is being closed
            return []
        stream = self._streams.get(topic)
        if stream is None and self.storage:
            self.join(topic, now)
            stream = self._streams[topic]
        if stream is None or (peer not in stream.neighbours and len(stream.neighbours) >= MAX_NEIGHBOURS):
            self.refused += 1
            return [UnsubscribePeer(peer, topic)]
        if peer not in stream.neighbours:
            self._share(found, peer, topic, stream)
            self._report(stream.tracker, now)
        return self._replay(peer, topic)

    def unsubscribe_requested(self, peer: str, topic: model.Topic, now: float) -> None:
        """A node ends being our neighbour in a stream-partition."""
        stream = self._streams.get(topic)
        if stream is None or stream.neighbours.pop(peer, peer) is peer:
            return
        self._unshare(peer, topic, now)
        self._report(stream.tracker, now)

    def measured(self, peer: str, rtt: float) -> None:
        """A pong came after so many milliseconds."""
        found = self._peers.get(peer)
        if found is not None:
            found.rtt = rtt

    def tick(self, now: float) -> list[Command]:
        """Do what is due."""
        commands: list[Command] = []
        for timer in [timer for timer, due in self._timers.items() if due <= now]:
            del self._timers[timer]
            kind, name = timer
            if kind == "status":
                commands.append(self._status(name))
            elif kind == "tracker":
                commands.append(DialTracker(name))
            elif kind == "peer":
                if name not in self._by_address and self._is_wanted(name):
                    self._dialling[name] = None
                    commands.append(DialPeer(name))
                else:
                    self._retries.pop(name, None)
            elif not self._peers[name].streams:
                commands.append(ClosePeer(name, NORMAL_CLOSURE, NO_SHARED_STREAMS))
        return commands

    # Inside.

    def _is_wanted(self, address: str) -> bool:
        return any(address in stream.wanted for stream in self._streams.values())

    def _dial_soon(self, address: str, now: float) -> None:
        if address not in self._dialling:
            delay = DIAL_DELAY if self.address < address else 2 * DIAL_DELAY
            self._timers.setdefault(("peer", address), now + delay)

    def _subscribe(self, peer: str, topic: model.Topic, stream: _Stream) -> list[Command]:
        self._share(self._peers[peer], peer, topic, stream)
        return [SubscribePeer(peer, topic), *self._replay(peer, topic)]

    def _share(self, found: _Peer, peer: str, topic: model.Topic, stream: _Stream) -> None:
        stream.neighbours[peer] = None
        found.streams[topic] = None
        self._timers.pop(("unshared", peer), None)

    def _unshare(self, peer: str, topic: model.Topic, now: float) -> None:
        found = self._peers[peer]
        found.streams.pop(topic, None)
        if not found.streams:
            self._timers["unshared", peer] = now + UNSHARED_SECONDS

    def _replay(self, peer: str, topic: model.Topic) -> list[Command]:
        messages = [
            message
            for recent in self._recent
            if recent.topic == topic and recent.source != peer
            for message in recent.messages
        ]
        return [Replay(peer, topic, messages)] if messages else []

    def _forget(self, now: float) -> None:
        recent = self._recent
        while recent[0].at < now - RECENT_SECONDS or (
            len(recent) > 1 and (self._recent_messages > RECENT_MESSAGES or self._recent_bytes > RECENT_BYTES)
        ):
            gone = recent.popleft()
            self._recent_messages -= len(gone.messages)
            self._recent_bytes -= gone.size

    def _report(self, tracker: str, now: float) -> None:
        if tracker in self._connected_trackers:
            self._timers.setdefault(("status", tracker), now + STATUS_DELAY)

    def _retry(self, kind: str, address: str, now: float) -> None:
        wait = self._retries.get(address, FIRST_RETRY)
        self._retries[address] = min(wait * 2, LAST_RETRY)
        self._timers[kind, address] = now + wait

    def _status(self, tracker: str) -> ToTracker:
        streams = {}
        for topic, stream in self._streams.items():
            if stream.tracker == tracker:
                linked = list(stream.neighbours)
                streams[wire.key_of(topic)] = wire.Links(linked, linked, stream.counter)
        rtts = {peer: found.rtt for peer, found in self._peers.items() if found.rtt is not None}
        return ToTracker(tracker, wire.StatusMessage("", wire.Status(streams, self._started, rtts)))
