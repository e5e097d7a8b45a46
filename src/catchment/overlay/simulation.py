"""The network under virtual time: the same tracker and nodes as the real one, latencies instead of sockets.

A history goes through its phases: everyone joins; messages flow while nodes come and go; the network is split in two
and healed, if that was asked for; a share of the nodes dies at once; messages flow again. Everything random comes from
one seed, and events at the same time keep the order in which they were made, so the same seed gives the same result,
byte for byte.

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
from catchment.overlay.results import Options, Result, Spread
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
    tracked: int = 0
    """The number of its connection with the tracker; 0 for none."""
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
        self._tracked: dict[str, int] = {}
        """Whom the tracker is connected with, with the number of the connection."""
        self._far: dict[str, None] = {}
        """While the network is split: who is on the side without the tracker."""
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
        share = max(1, options.messages // (3 if options.partition else 2))
        self._flow(topics, share, FLOW_SECONDS)
        self._disturb()
        self._until(self._now + FLOW_SECONDS + SETTLE_SECONDS, "messages under churn")
        heal = self._split(topics, share) if options.partition else 0.0
        killed, repair = self._kill()
        self._flow(topics, max(1, options.messages - share * (2 if options.partition else 1)), FLOW_SECONDS)
        self._until(self._now + FLOW_SECONDS + SETTLE_SECONDS, "messages after repair")
        self._check_nothing_lost()
        return self._result(killed, repair, heal)

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
        self._later(delay, self._untracking(name, gone.tracked))

    def _noticing(self, peer: str, name: str, connection: int) -> Callable[[], None]:
        def notice() -> None:
            alive = self._nodes.get(peer)
            if alive is not None and alive.links.get(name) == connection:
                del alive.links[name]
                alive.node.peer_lost(name, self._now)
                self._schedule(alive)

        return notice

    def _untracking(self, name: str, connection: int) -> Callable[[], None]:
        """The tracker notices that a node has gone."""

        def notice() -> None:
            if connection and self._tracked.get(name) == connection:
                del self._tracked[name]
                self._tell(self._tracker.left(name))

        return notice

    def _reaches(self, one: str, other: str) -> bool:
        return (one in self._far) == (other in self._far)

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
        if not self._is_here(alive):
            return
        if name in self._far or name in self._tracked:
            # Out of reach; or the tracker believes in an older connection, and refuses a second of the same name.
            self._lose_tracker(alive)
            return
        self._connections += 1
        alive.tracked = self._tracked[name] = self._connections
        self._tell(self._tracker.joined(name, alive.node.address))
        self._do(alive, alive.node.tracker_connected(TRACKER, self._now))

    def _lose_tracker(self, alive: _Alive) -> None:
        alive.tracked = 0
        alive.node.tracker_lost(TRACKER, self._now)
        self._schedule(alive)

    def _hears_tracker(self, alive: _Alive) -> bool:
        """Whether both believe in the same connection, and it works."""
        name = alive.node.id
        connected = alive.tracked and self._tracked.get(name) == alive.tracked
        return bool(connected) and name not in self._far and self._is_here(alive)

    def _report(self, alive: _Alive, status: wire.Status) -> None:
        if self._hears_tracker(alive):
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
            if alive is not None and self._hears_tracker(alive):
                self._do(alive, alive.node.instructed(TRACKER, message, self._now))

        return instruct

    def _dial(self, alive: _Alive, address: str) -> None:
        name = self._by_address[address]
        other = self._nodes.get(name)

        def answer() -> None:
            if not self._is_here(alive):
                return
            there = self._nodes.get(name)
            if there is None or there is not other or not self._reaches(name, alive.node.id):
                alive.node.dial_failed(address, self._now)
            elif name in alive.links:
                pass
            elif alive.node.id in there.links:  # it has not noticed yet that the one before is dead, and refuses this
                alive.node.dial_failed(address, self._now)
            else:
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
            if name == other and not self._reaches(one, other):
                return  # it will notice by itself
            if alive is not None and alive.links.pop(peer, None) is not None:
                alive.node.peer_lost(peer, self._now)
                self._schedule(alive)

    def _to_peer(self, alive: _Alive, peer: str, deliver: Callable[[Simulation, _Alive, str], None]) -> None:
        """Bring something to a peer, unless the connection breaks on the way."""
        connection = alive.links.get(peer)
        other = self._nodes.get(peer)
        if connection is None or other is None or not self._reaches(alive.node.id, peer):
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

    def _flow(self, topics: Sequence[model.Topic], count: int, seconds: float) -> None:
        for _ in range(count):
            topic = topics[int(self._random.random() * len(topics))]
            self._later(self._random.random() * seconds, lambda topic=topic: self._publish(topic))  # type: ignore[misc]

    def _publish(self, topic: model.Topic) -> None:
        if self._far:  # the tracker knows only one side
            taking_part = [name for name, alive in self._nodes.items() if topic in alive.topics]
        else:
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

    def _split(self, topics: Sequence[model.Topic], count: int) -> float:
        """Split the network in two while messages flow, heal it, and measure how long it needs to be whole again.

        What is sent across is lost, and so is every connection across: each end notices by its own ping.
        """
        names = list(self._nodes)
        self._far = dict.fromkeys(self._random.sample(names, len(names) // 2))
        for name, alive in self._nodes.items():
            for peer, connection in alive.links.items():
                if not self._reaches(name, peer):
                    self._later(PING_SECONDS * (1 + self._random.random()), self._noticing(name, peer, connection))
        for name in self._far:
            alive = self._nodes[name]
            self._later(PING_SECONDS * (1 + self._random.random()), self._untracking(name, alive.tracked))
            self._later(
                PING_SECONDS * (1 + self._random.random()),
                lambda alive=alive: self._lose_tracker(alive),  # type: ignore[misc]
            )
        self._flow(topics, count, self._options.partition)
        self._until(self._now + self._options.partition, "split in two")
        self._far = {}
        # Not before the last connection across was given up.
        began = self._now
        self._until(max(self._now, began - self._options.partition + 2 * PING_SECONDS), "healing")
        self._repair("healing", f"the network was split for {self._options.partition:.0f} s")
        return self._now - began

    def _repair(self, phase: str, what: str) -> None:
        """Go on until everyone is linked as the tracker wants."""
        began = self._now
        while not self._is_whole():
            if self._now - began > REPAIR_LIMIT:
                raise Broken(f"{REPAIR_LIMIT:.0f} s after {what} the rest is not linked again")
            self._until(self._now + 0.5, phase)

    def _kill(self) -> tuple[int, float]:
        """Let a share of the nodes die, and measure how long the rest needs to be whole again."""
        names = list(self._nodes)
        dead = self._random.sample(names, int(len(names) * self._options.kill))
        for name in dead:
            self._depart(name, gracefully=False)
        began = self._now
        self._repair("repair", f"{len(dead)} nodes died")
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

    def _result(self, killed: int, repair: float, heal: float) -> Result:
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
            heal_seconds=heal,
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
