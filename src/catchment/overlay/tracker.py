"""A tracker: status in, instructions out (Tracker Protocol; facts/streamr.md, section 8).

It begins by listening (`settle` ends that): nodes that were there before it report the links they have, and keep
them. Then it keeps one topology per stream-partition. What it wants is told to a node when it changes, as the complete
list of its neighbours with a counter; a status that reports an older counter cannot undo it. A node that says again
and again that it does not have a neighbour it should have cannot reach it, and both get others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Final, NamedTuple

import msgspec

from catchment import model
from catchment.overlay.coordinates import Coordinates
from catchment.overlay.topology import DEGREE, Topology
from catchment.wire.streamr import tracker as wire

STRIKES: Final = 3
"""So many statuses without a neighbour, and the link is given up."""

MAX_RTTS: Final = 1000

SAVING: Final = 0.4
"""A link is replaced for being slow only where two links together get this much faster."""

MAX_SHORTENED: Final = 2
"""How often a node's slowest link may be replaced in one stream-partition: half of its links stay random, which is
what keeps the way to everyone short."""


class Instruct(NamedTuple):
    """Tell a node its neighbours in a stream-partition."""

    node: str
    topic: model.Topic
    addresses: Sequence[str]
    counter: int


class _Membership(msgspec.Struct):
    """A node's place in one stream-partition, as the tracker has told it."""

    counter: int = 0
    told: tuple[str, ...] = ()
    missing: str = ""
    strikes: int = 0
    shortened: int = 0


class Node(msgspec.Struct):
    """A node that is connected to the tracker."""

    id: str
    address: str
    storage: bool
    started: str = ""
    location: wire.Location | None = None
    rtts: Mapping[str, float] = {}
    memberships: dict[str, _Membership] = {}
    reported: Mapping[str, wire.Links] = {}
    """What it said before the tracker had settled."""


def everything(_node: str, _topic: model.Topic) -> bool:
    """The assignment of storage nodes as it shipped: each keeps every stream."""
    return True


class Tracker:
    """Ties nodes together, per stream-partition."""

    def __init__(
        self,
        random: Random,
        *,
        degree: int = DEGREE,
        assigned: Callable[[str, model.Topic], bool] = everything,
    ) -> None:
        """Begin without nodes.

        Args:
            random: where chance comes from.
            degree: how many neighbours a node has.
            assigned: whether a storage node keeps a stream-partition.
        """
        self._random = random
        self._degree = degree
        self._assigned = assigned
        self._nodes: dict[str, Node] = {}
        self._storage: dict[str, Node] = {}
        self._overlays: dict[str, Topology] = {}
        self._topics: dict[str, model.Topic] = {}
        self._coordinates = Coordinates(random)
        self._settled = False

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Who is connected."""
        return self._nodes

    @property
    def overlays(self) -> Mapping[str, Topology]:
        """The topology of each stream-partition, by its key."""
        return self._overlays

    def settle(self) -> list[Instruct]:
        """Have listened long enough: keep the links that were reported, and begin to instruct."""
        if self._settled:
            return []
        self._settled = True
        changed: dict[tuple[str, str], None] = {}
        claims: dict[str, dict[str, list[str]]] = {}
        for node in self._nodes.values():
            for key, links in node.reported.items():
                claims.setdefault(key, {})[node.id] = [*links.inbound_nodes, *links.outbound_nodes]
            node.reported = {}
        for key, reported in claims.items():
            if not self._open_overlay(key):
                continue
            for node_id in self._storage:
                if self._assigned(node_id, self._topics[key]):
                    reported.setdefault(node_id, [])
            self._overlays[key].adopt(reported)
            for node_id in reported:
                self._nodes[node_id].memberships[key] = _Membership()
                changed[node_id, key] = None
        return self._instructions(changed)

    def joined(self, node: str, address: str, *, storage: bool = False) -> list[Instruct]:
        """A node has connected. A storage node enters every overlay it is assigned to."""
        if node in self._nodes:
            raise ValueError(f"{node} is connected already")
        found = self._nodes[node] = Node(node, address, storage, memberships={})
        if storage:
            self._storage[node] = found
        if not (storage and self._settled):
            return []
        changed: dict[tuple[str, str], None] = {}
        for key, topic in self._topics.items():
            if self._assigned(node, topic):
                self._enter(key, node, (), changed)
        return self._instructions(changed)

    def left(self, node: str) -> list[Instruct]:
        """A node has gone."""
        gone = self._nodes.pop(node, None)
        if gone is None:
            return []
        self._storage.pop(node, None)
        self._coordinates.forget(node)
        changed: dict[tuple[str, str], None] = {}
        for key in gone.memberships:
            self._exit(key, node, changed)
        return self._instructions(changed)

    def status(self, node: str, status: wire.Status) -> list[Instruct]:
        """A node has reported: where it takes part, who its neighbours are, and what it measured."""
        source = self._nodes[node]
        source.started = status.started
        source.location = status.location or source.location
        source.rtts = dict(list(status.rtts.items())[:MAX_RTTS])
        self._coordinates.measured(node, source.rtts)
        if not self._settled:
            source.reported = status.streams
            return []
        changed: dict[tuple[str, str], None] = {}
        repeat: list[Instruct] = []
        for key, links in status.streams.items():
            membership = source.memberships.get(key)
            if membership is None:
                self._begin(key, source, links, changed)
            elif links.counter >= membership.counter:
                repeat += self._compare(key, source, membership, links, changed)
        for key in [key for key in source.memberships if key not in status.streams]:
            # A storage node stays where it is assigned; it may not have heard of the stream yet.
            if not (source.storage and self._assigned(node, self._topics[key])):
                self._exit(key, node, changed)
                source.memberships.pop(key, None)
        instructions = self._instructions(changed)
        told = {(instruct.node, instruct.topic) for instruct in instructions}
        return instructions + [again for again in repeat if (again.node, again.topic) not in told]

    def storage_nodes(self, topic: model.Topic) -> list[str]:
        """The addresses of those who keep a stream-partition."""
        return [node.address for node in self._storage.values() if self._assigned(node.id, topic)]

    # Inside.

    def _rtt(self, one: str, other: str) -> float | None:
        for node, peer in ((one, other), (other, one)):
            found = self._nodes.get(node)
            rtt = None if found is None else found.rtts.get(peer)
            if rtt is not None:
                return rtt
        return self._coordinates.rtt(one, other)

    def _begin(self, key: str, source: Node, links: wire.Links, changed: dict[tuple[str, str], None]) -> None:
        """A node takes part in a stream-partition the tracker did not know it in."""
        if key not in self._overlays:
            if not self._open_overlay(key):
                return
            for storage in self._storage:
                if storage != source.id and self._assigned(storage, self._topics[key]):
                    self._enter(key, storage, (), changed)
        self._enter(key, source.id, (*links.inbound_nodes, *links.outbound_nodes), changed)

    def _open_overlay(self, key: str) -> bool:
        """Begin a topology; not for what is no name of a stream-partition."""
        topic = wire.topic_of(key)
        if topic is None:
            return False
        self._overlays[key] = Topology(self._random, degree=self._degree, cost=self._rtt)
        self._topics[key] = topic
        return True

    def _enter(self, key: str, node: str, linked: Iterable[str], changed: dict[tuple[str, str], None]) -> None:
        self._nodes[node].memberships[key] = _Membership()
        for other in self._overlays[key].add(node, linked):
            changed[other, key] = None

    def _exit(self, key: str, node: str, changed: dict[tuple[str, str], None]) -> None:
        overlay = self._overlays[key]
        for other in overlay.remove(node):
            changed[other, key] = None
        changed.pop((node, key), None)
        if any(other not in self._storage for other in overlay.links):
            return
        # Nobody but storage nodes is left: they need not talk to each other about it.
        for other in overlay.links:
            self._nodes[other].memberships.pop(key, None)
            changed.pop((other, key), None)
        del self._overlays[key], self._topics[key]

    def _compare(
        self,
        key: str,
        source: Node,
        membership: _Membership,
        links: wire.Links,
        changed: dict[tuple[str, str], None],
    ) -> list[Instruct]:
        """Whether a node has the neighbours it was told; if not it is told again, and not for ever."""
        has = {*links.inbound_nodes, *links.outbound_nodes}
        wanted = self._overlays[key].links[source.id]
        missing = next((node for node in wanted if node not in has), "")
        if not missing:
            membership.missing, membership.strikes = "", 0
            if len(wanted) < self._degree:
                for other in self._overlays[key].fill(source.id):
                    changed[other, key] = None
            else:
                self._shorten(key, source, membership, changed)
            return []
        membership.strikes = membership.strikes + 1 if missing == membership.missing else 1
        membership.missing = missing
        if membership.strikes > STRIKES:
            membership.missing, membership.strikes = "", 0
            for other in self._overlays[key].part(source.id, missing):
                changed[other, key] = None
        membership.counter += 1
        return [self._instruct(source.id, key, membership)]

    def _shorten(self, key: str, source: Node, membership: _Membership, changed: dict[tuple[str, str], None]) -> None:
        """Replace a node's slowest link where a much faster one is at hand."""
        overlay = self._overlays[key]
        linked = overlay.links[source.id]
        measured = [(source.rtts[peer], peer) for peer in linked if peer in source.rtts]
        if membership.shortened >= MAX_SHORTENED or len(measured) < len(linked) or not linked:
            return
        for other in overlay.shorten(source.id, max(measured)[1], SAVING):
            changed[other, key] = None
            self._nodes[other].memberships[key].shortened += 1

    def _instructions(self, changed: Mapping[tuple[str, str], None]) -> list[Instruct]:
        """What has to be told to those whose neighbours differ from what they were told last."""
        instructions = []
        for node, key in changed:
            overlay = self._overlays.get(key)
            if overlay is None or node not in overlay:
                continue
            membership = self._nodes[node].memberships[key]
            wanted = tuple(overlay.links[node])
            if membership.counter == 0 or set(wanted) != set(membership.told):
                membership.told = wanted
                membership.counter += 1
                instructions.append(self._instruct(node, key, membership))
        return instructions

    def _instruct(self, node: str, key: str, membership: _Membership) -> Instruct:
        addresses = [self._nodes[other].address for other in self._overlays[key].links[node]]
        return Instruct(node, self._topics[key], addresses, membership.counter)
