"""The network under virtual time: the same tracker and nodes as the real one, latencies instead of sockets.

A history goes through four phases: everyone joins; messages flow while nodes come and go; a share of the nodes dies
at once; messages flow again. Everything random comes from one seed, and events at the same time keep the order in
which they were made, so the same seed gives the same result, byte for byte.

At every step the rules are checked, and a broken one ends the run with `Broken`: no node delivers a message twice, no
node has more neighbours than it may, every topology is connected and symmetric. In the end nothing is lost: whoever
took part from before a message was published until the end has it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Final

import msgspec

from catchment import model
from catchment.overlay import node as overlay
from catchment.overlay.topology import DEGREE, Topology
from catchment.overlay.tracker import Instruct, Tracker
from catchment.wire.streamr import tracker as wire

TRACKER: Final = "ws://tracker"
PROCESSING: Final = 0.0002
"""Seconds a node needs to verify and keep a message before it passes it on."""

PING_SECONDS: Final = 5.0
"""A dead peer is noticed when it has not answered a ping until the next one."""

JOIN_SECONDS: Final = 30.0
SETTLE_SECONDS: Final = 15.0
FLOW_SECONDS: Final = 60.0
REPAIR_LIMIT: Final = 120.0

Progress = Callable[[str, float], None]


class Broken(Exception):
    """A rule of the network did not hold; the text says which, when and where."""


class Options(msgspec.Struct, frozen=True):
    """A history to play."""

    nodes: int = 1000
    streams: int = 10
    nodes_per_stream: int = 200
    messages: int = 1000
    churn: float = 0.05
    """The share of nodes that leave, and come back, during each minute in which messages flow."""
    loss: float = 0.02
    """The share of connections that break, and are made again, during each such minute."""
    kill: float = 0.3
    """The share of nodes that die at once."""
    seed: int = 1

    def check(self) -> str | None:
        """What is wrong with these numbers; None when nothing is."""
        if not 2 <= self.nodes <= 1_000_000:
            return "nodes must be from 2 to 1,000,000"
        if not 2 <= self.nodes_per_stream <= self.nodes:
            return f"nodes per stream must be from 2 to the number of nodes, {self.nodes}"
        if self.streams < 1 or self.messages < 1:
            return "there must be a stream and a message"
        if not (0 <= self.churn < 1 and 0 <= self.loss < 1 and 0 <= self.kill < 1):
            return "churn, loss and kill are shares from 0 to below 1"
        return None


class Spread(msgspec.Struct, frozen=True):
    """A distribution in five numbers."""

    mean: float
    p50: float
    p95: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The distribution of these; zeros when there are none."""
        if not values:
            return cls(0.0, 0.0, 0.0, 0.0, 0.0)
        ordered = sorted(values)

        def at(share: float) -> float:
            return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

        return cls(sum(ordered) / len(ordered), at(0.5), at(0.95), at(0.99), ordered[-1])


class Result(msgspec.Struct, frozen=True):
    """What a history showed."""

    options: Options
    hops: Spread
    latency_ms: Spread
    load: Spread
    """Messages a node sent on, over the whole history, per message of its streams."""
    link_rtt_ms: Spread
    deliveries: int
    repeats: int
    """Copies that came after the first and went no further."""
    links_changed: int
    instructions: int
    killed: int
    repair_seconds: float
    """From the death of the nodes until all who are left are linked again as their tracker wants."""
    events: int
    hops_counted: Sequence[int] = ()
    """How many deliveries took 0, 1, 2, ... hops."""
    latencies_ms: Sequence[float] = ()
    """A sample of delivery latencies, for pictures."""


class _Message(msgspec.Struct):
    topic: model.Topic
    published: float
    owed: dict[str, None]
    """Who took part when it was published and still does."""
    source: str = ""


class _Alive(msgspec.Struct):
    """A simulated node: the real thing, where it is, and what it has."""

    node: overlay.OverlayNode
    place: tuple[float, float]
    topics: list[model.Topic]
    links: dict[str, int] = {}
    """Connected peers, with the number of the connection."""
    has: dict[int, None] = {}
    sent: int = 0
    ticking: float | None = None


class Simulation:
    """One history."""

    def __init__(self, options: Options, progress: Progress = lambda _phase, _share: None) -> None:
        self._options = options
        self._progress = progress
        self._random = Random(options.seed)  # noqa: S311 - a history to repeat, no secret
        self._now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._tracker = Tracker(self._random)
        self._tracker.settle()
        self._tracked: dict[str, None] = {}
        self._nodes: dict[str, _Alive] = {}
        self._by_address: dict[str, str] = {}
        self._connections = 0
        self._messages: list[_Message] = []
        self._hops: list[int] = []
        self._latencies: list[float] = []
        self._loads: list[float] = []
        self._deliveries = self._repeats = self._instructed = self._changed = self._events = 0

    def run(self) -> Result:
        """Play it.

        Raises:
            Broken: a rule of the network did not hold.
        """
        options = self._options
        topics = [model.Topic(f"stream-{number}", 0) for number in range(options.streams)]
        places = self._assign(topics)
        for number in range(options.nodes):
            at = self._random.random() * JOIN_SECONDS
            self._later(at, lambda number=number: self._arrive(f"node-{number}", places[number]))  # type: ignore[misc]
        self._until(JOIN_SECONDS + SETTLE_SECONDS, "joining")
        half = max(1, options.messages // 2)
        self._flow(topics, half)
        self._disturb()
        self._until(self._now + FLOW_SECONDS + SETTLE_SECONDS, "messages under churn")
        killed, repair = self._kill()
        self._flow(topics, options.messages - half)
        self._until(self._now + FLOW_SECONDS + SETTLE_SECONDS, "messages after repair")
        self._check_nothing_lost()
        return self._result(killed, repair)

    # Time.

    def _later(self, delay: float, call: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (self._now + delay, self._sequence, call))

    def _until(self, end: float, phase: str) -> None:
        begin = self._now
        while self._queue and self._queue[0][0] <= end:
            self._now, _, call = heapq.heappop(self._queue)
            call()
            self._events += 1
            if self._events % 20_000 == 0:
                self._progress(phase, (self._now - begin) / (end - begin))
        self._now = end
        self._progress(phase, 1.0)

    # The world.

    def _assign(self, topics: Sequence[model.Topic]) -> list[list[model.Topic]]:
        """Which streams each node takes part in."""
        places: list[list[model.Topic]] = [[] for _ in range(self._options.nodes)]
        for topic in topics:
            for number in self._random.sample(range(self._options.nodes), self._options.nodes_per_stream):
                places[number].append(topic)
        return places

    def _latency(self, one: _Alive, other: _Alive) -> float:
        """One way, in seconds: 1 ms for the first mile and up to 100 ms for half the world, with 20 % of jitter."""
        distance = math.dist(one.place, other.place)
        return (0.001 + 0.07 * distance) * (0.9 + 0.2 * self._random.random())

    def _arrive(self, name: str, topics: list[model.Topic]) -> None:
        address = f"ws://{name}"
        node = overlay.OverlayNode(name, address=address, trackers=[TRACKER], allowed=lambda _address: True)
        alive = _Alive(node, (self._random.random(), self._random.random()), topics, links={}, has={})
        self._nodes[name] = alive
        self._by_address[address] = name
        for topic in topics:
            node.join(topic, self._now)
        self._do(alive, node.start())

    def _depart(self, name: str, *, gracefully: bool) -> None:
        """A node goes: with a goodbye everyone knows at once, without one when a ping stays unanswered."""
        gone = self._nodes.pop(name)
        self._loads.append(gone.sent)
        for message in self._messages:
            message.owed.pop(name, None)
        for peer, connection in gone.links.items():
            delay = 0.01 if gracefully else PING_SECONDS * (1 + self._random.random())
            self._later(delay, self._noticing(peer, name, connection))
        delay = 0.01 if gracefully else PING_SECONDS * (1 + self._random.random())
        self._later(delay, lambda: self._untrack(name, gone))

    def _noticing(self, peer: str, name: str, connection: int) -> Callable[[], None]:
        def notice() -> None:
            alive = self._nodes.get(peer)
            if alive is not None and alive.links.get(name) == connection:
                del alive.links[name]
                alive.node.peer_lost(name, self._now)
                self._schedule(alive)

        return notice

    def _untrack(self, name: str, gone: _Alive) -> None:
        if name in self._tracked and self._nodes.get(name) is not gone:
            del self._tracked[name]
            self._tell(self._tracker.left(name))
            if name in self._nodes:  # it came back before its old connection was found dead
                self._track(self._nodes[name])

    # Carrying out commands.

    def _do(self, alive: _Alive, commands: Sequence[overlay.Command]) -> None:
        for command in commands:
            match command:
                case overlay.DialTracker():
                    self._later(0.05, lambda: self._track(alive))
                case overlay.ToTracker(_, wire.StatusMessage(_, status)):
                    self._later(0.02, lambda status=status: self._report(alive, status))  # type: ignore[misc]
                case overlay.DialPeer(address):
                    self._dial(alive, address)
                case overlay.ClosePeer(peer, _, _):
                    self._break(alive.node.id, peer)
                case overlay.SubscribePeer(peer, topic):
                    self._to_peer(alive, peer, _subscribed(topic))
                case overlay.UnsubscribePeer(peer, topic):
                    self._to_peer(alive, peer, _unsubscribed(topic))
                case overlay.Replay(peer, topic, messages):
                    for message in messages:
                        self._send(alive, peer, topic, int.from_bytes(message), 1)
        self._schedule(alive)

    def _schedule(self, alive: _Alive) -> None:
        """Wake a node when it next has something to do."""
        due = alive.node.due
        if due is None or (alive.ticking is not None and alive.ticking <= due):
            return
        alive.ticking = due

        def tick() -> None:
            if alive.ticking == due and self._is_here(alive):
                alive.ticking = None
                self._do(alive, alive.node.tick(self._now))

        self._later(max(0.0, due - self._now), tick)

    def _is_here(self, alive: _Alive) -> bool:
        return self._nodes.get(alive.node.id) is alive

    def _track(self, alive: _Alive) -> None:
        name = alive.node.id
        if not self._is_here(alive) or name in self._tracked:
            return
        self._tracked[name] = None
        self._tell(self._tracker.joined(name, alive.node.address))
        self._do(alive, alive.node.tracker_connected(TRACKER, self._now))

    def _report(self, alive: _Alive, status: wire.Status) -> None:
        if self._is_here(alive) and alive.node.id in self._tracked:
            self._tell(self._tracker.status(alive.node.id, status))

    def _tell(self, instructions: Sequence[Instruct]) -> None:
        checked: dict[model.Topic, None] = {}
        for instruct in instructions:
            self._instructed += 1
            checked[instruct.topic] = None
            message = wire.InstructionMessage("", instruct.topic, instruct.addresses, instruct.counter)
            self._later(0.02, self._instructing(instruct.node, message))
        for topic in checked:
            found = self._tracker.overlays.get(wire.key_of(topic))
            if found is not None:
                self._check_degrees(topic, found, [i.node for i in instructions if i.topic == topic])

    def _instructing(self, name: str, message: wire.InstructionMessage) -> Callable[[], None]:
        def instruct() -> None:
            alive = self._nodes.get(name)
            if alive is not None and name in self._tracked:
                self._do(alive, alive.node.instructed(TRACKER, message, self._now))

        return instruct

    def _dial(self, alive: _Alive, address: str) -> None:
        name = self._by_address[address]
        other = self._nodes.get(name)

        def answer() -> None:
            if not self._is_here(alive):
                return
            there = self._nodes.get(name)
            if there is None or there is not other:
                alive.node.dial_failed(address, self._now)
            elif name not in alive.links:
                self._connect(alive, there)
            self._schedule(alive)

        self._later(0.1 if other is None else 3 * self._latency(alive, other), answer)

    def _connect(self, one: _Alive, other: _Alive) -> None:
        self._connections += 1
        self._changed += 1
        for alive, peer in ((one, other), (other, one)):
            alive.links[peer.node.id] = self._connections
            commands = alive.node.peer_connected(peer.node.id, peer.node.address, self._now)
            alive.node.measured(peer.node.id, 2000 * self._latency(alive, peer))
            self._do(alive, commands)

    def _break(self, one: str, other: str) -> None:
        for name, peer in ((one, other), (other, one)):
            alive = self._nodes.get(name)
            if alive is not None and alive.links.pop(peer, None) is not None:
                alive.node.peer_lost(peer, self._now)
                self._schedule(alive)

    def _to_peer(self, alive: _Alive, peer: str, deliver: Callable[[Simulation, _Alive, str], None]) -> None:
        """Bring something to a peer, unless the connection breaks on the way."""
        connection = alive.links.get(peer)
        other = self._nodes.get(peer)
        if connection is None or other is None:
            return
        name = alive.node.id

        def arrive() -> None:
            if other.links.get(name) == connection and self._is_here(other):
                deliver(self, other, name)

        self._later(self._latency(alive, other), arrive)

    def _send(self, alive: _Alive, peer: str, topic: model.Topic, number: int, hops: int) -> None:
        alive.sent += 1

        def deliver(world: Simulation, other: _Alive, source: str) -> None:
            world._receive(other, topic, number, source, hops)

        self._to_peer(alive, peer, deliver)

    # Messages.

    def _flow(self, topics: Sequence[model.Topic], count: int) -> None:
        for _ in range(count):
            topic = topics[int(self._random.random() * len(topics))]
            self._later(self._random.random() * FLOW_SECONDS, lambda topic=topic: self._publish(topic))  # type: ignore[misc]

    def _publish(self, topic: model.Topic) -> None:
        overlay_ = self._tracker.overlays.get(wire.key_of(topic))
        taking_part = [name for name in (overlay_.links if overlay_ else ()) if name in self._nodes]
        if not taking_part:
            return
        name = taking_part[int(self._random.random() * len(taking_part))]
        message = _Message(topic, self._now, dict.fromkeys(taking_part), source=name)
        self._messages.append(message)
        self._receive(self._nodes[name], topic, len(self._messages) - 1, "", 0)

    def _receive(self, alive: _Alive, topic: model.Topic, number: int, source: str, hops: int) -> None:
        if number in alive.has:
            self._repeats += 1
            return
        if topic not in alive.topics:
            raise Broken(f"{alive.node.id} got message {number} of {topic}, where it takes no part")
        alive.has[number] = None
        message = self._messages[number]
        if alive.node.id in message.owed:  # others get it late because they came late
            self._hops.append(hops)
            self._latencies.append((self._now - message.published) * 1000)
        self._deliveries += 1
        self._later(PROCESSING, lambda: self._pass_on(alive, topic, number, source, hops))

    def _pass_on(self, alive: _Alive, topic: model.Topic, number: int, source: str, hops: int) -> None:
        if self._is_here(alive):
            for peer in alive.node.accepted(topic, number.to_bytes(8), source, self._now):
                self._send(alive, peer, topic, number, hops + 1)

    # Trouble.

    def _disturb(self) -> None:
        """Let nodes leave and come back, and connections break, while messages flow."""
        minutes = FLOW_SECONDS / 60
        names = list(self._nodes)
        for name in self._random.sample(names, int(len(names) * self._options.churn * minutes)):
            gracefully = self._random.random() < 0.5
            self._later(
                self._random.random() * FLOW_SECONDS,
                lambda name=name, gracefully=gracefully: self._restart(name, gracefully),  # type: ignore[misc]
            )
        breaks = int(self._connections * self._options.loss * minutes)
        for _ in range(breaks):
            self._later(self._random.random() * FLOW_SECONDS, self._break_one)

    def _restart(self, name: str, gracefully: bool) -> None:
        topics = self._nodes[name].topics
        self._depart(name, gracefully=gracefully)
        self._later(1.0 + self._random.random() * 10, lambda: self._arrive(name, topics))

    def _break_one(self) -> None:
        names = list(self._nodes)
        name = names[int(self._random.random() * len(names))]
        links = list(self._nodes[name].links)
        if links:
            self._break(name, links[int(self._random.random() * len(links))])

    def _kill(self) -> tuple[int, float]:
        """Let a share of the nodes die, and measure how long the rest needs to be whole again."""
        names = list(self._nodes)
        dead = self._random.sample(names, int(len(names) * self._options.kill))
        for name in dead:
            self._depart(name, gracefully=False)
        began = self._now
        while not self._is_whole():
            if self._now - began > REPAIR_LIMIT:
                raise Broken(f"{REPAIR_LIMIT:.0f} s after {len(dead)} nodes died the rest is not linked again")
            self._until(self._now + 0.5, "repair")
        return len(dead), self._now - began if dead else 0.0

    def _is_whole(self) -> bool:
        """Whether everyone alive is tracked, and linked exactly as the tracker wants."""
        if len(self._tracked) != len(self._nodes):
            return False
        for key, topology in self._tracker.overlays.items():
            topic = wire.topic_of(key)
            assert topic is not None
            for name, wanted in topology.links.items():
                alive = self._nodes.get(name)
                if alive is None or set(alive.node.neighbours(topic)) != set(wanted):
                    return False
        return True

    # Rules.

    def _check_degrees(self, topic: model.Topic, topology: Topology, nodes: Sequence[str]) -> None:
        for name in nodes:
            linked = topology.links.get(name, ())
            if len(linked) > DEGREE or name in linked or any(name not in topology.links[peer] for peer in linked):
                raise Broken(f"at {self._now:.3f} s the neighbours of {name} in {topic} are {list(linked)}")

    def _check_nothing_lost(self) -> None:
        for key, topology in self._tracker.overlays.items():
            if not is_connected(topology):
                raise Broken(f"the topology of {key} fell apart")
        for number, message in enumerate(self._messages):
            for name in message.owed:
                if number not in self._nodes[name].has:
                    raise Broken(
                        f"message {number} of {message.topic}, published at {message.published:.3f} s by "
                        f"{message.source}, never reached {name}"
                    )

    def _result(self, killed: int, repair: float) -> Result:
        per_stream = max(1.0, len(self._messages) / self._options.streams)
        loads = self._loads + [alive.sent for alive in self._nodes.values()]
        rtts = [
            2000 * (0.001 + 0.07 * math.dist(self._nodes[one].place, self._nodes[other].place))
            for topology in self._tracker.overlays.values()
            for one, linked in topology.links.items()
            for other in linked
            if one < other
        ]
        counted = [0] * (max(self._hops, default=0) + 1)
        for hops in self._hops:
            counted[hops] += 1
        return Result(
            options=self._options,
            hops=Spread.of([float(hops) for hops in self._hops if hops]),
            latency_ms=Spread.of([ms for ms, hops in zip(self._latencies, self._hops, strict=True) if hops]),
            load=Spread.of([load / per_stream for load in loads]),
            link_rtt_ms=Spread.of(rtts),
            deliveries=self._deliveries,
            repeats=self._repeats,
            links_changed=self._changed,
            instructions=self._instructed,
            killed=killed,
            repair_seconds=repair,
            events=self._events,
            hops_counted=counted,
            latencies_ms=list(_sample(self._latencies, 5000)),
        )


def is_connected(topology: Topology) -> bool:
    """Whether there is a way from everyone to everyone."""
    first = next(iter(topology.links), None)
    if first is None:
        return True
    seen = {first: None}
    queue = [first]
    for name in queue:
        for peer in topology.links[name]:
            if peer not in seen:
                seen[peer] = None
                queue.append(peer)
    return len(seen) == len(topology)


def _sample(values: Sequence[float], count: int) -> Iterator[float]:
    step = max(1, len(values) // count)
    return (round(value, 3) for value in values[::step])


def _subscribed(topic: model.Topic) -> Callable[[Simulation, _Alive, str], None]:
    def deliver(world: Simulation, alive: _Alive, source: str) -> None:
        world._do(alive, alive.node.subscribe_requested(source, topic, world._now))

    return deliver


def _unsubscribed(topic: model.Topic) -> Callable[[Simulation, _Alive, str], None]:
    def deliver(world: Simulation, alive: _Alive, source: str) -> None:
        alive.node.unsubscribe_requested(source, topic, world._now)
        world._schedule(alive)

    return deliver
