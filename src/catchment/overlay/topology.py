"""The neighbours of one stream-partition: a random regular graph that changes by few links.

A node that joins takes its place in the middle of links (u-v becomes u-new-v), so everyone keeps as many neighbours
as before; when one leaves, those it linked are linked with each other. The graph stays connected: a link replaced by
a path is still a way, and what a leaving node tore apart is linked across the tear first. Streamr's own tracker keeps
four neighbours (facts/streamr.md, section 8: maxNeighborsPerNode).

Every choice comes from the given source of chance and from the order of calls, so a seed repeats a history exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from random import Random
from typing import Final

DEGREE: Final = 4

_CANDIDATES: Final = 3
"""Links looked at for each place: enough to prefer a near one, few enough to stay random."""

_ATTEMPTS: Final = 24
"""Random picks before every link is looked at."""

Cost = Callable[[str, str], float | None]
"""The round-trip time between two nodes in milliseconds, where somebody has measured it."""


def _unknown(_one: str, _other: str) -> float | None:
    return None


class Topology:
    """Who is whose neighbour."""

    def __init__(self, random: Random, *, degree: int = DEGREE, cost: Cost = _unknown) -> None:
        """Begin without nodes.

        Args:
            random: where chance comes from.
            degree: how many neighbours a node has at most.
            cost: what is known of round-trip times; nearer links are preferred among a few random ones.
        """
        if degree < 2:
            raise ValueError("a node needs two neighbours to be in the middle of a link")
        self.degree = degree
        self._random = random
        self._cost = cost
        self._links: dict[str, list[str]] = {}
        self._order: list[str] = []
        self._place: dict[str, int] = {}
        self._open: dict[str, None] = {}
        self._changed: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, node: str) -> bool:
        return node in self._links

    @property
    def links(self) -> Mapping[str, Sequence[str]]:
        """Each node's neighbours."""
        return self._links

    def adopt(self, reported: Mapping[str, Iterable[str]]) -> None:
        """Begin with nodes that are linked already: a tracker that was restarted learns of them.

        What two report of each other is kept where there is room; what is missing is added.
        """
        for node in reported:
            self._insert(node)
        claims = {node: dict.fromkeys(linked) for node, linked in reported.items()}
        for node, linked in claims.items():
            for other in linked:
                mutual = other != node and node in claims.get(other, ())
                if mutual and self._free(node) and self._free(other) and not self._are_linked(node, other):
                    self._link(node, other)
        self._mend(list(reported))
        self._changed = {}

    def add(self, node: str, linked: Iterable[str] = ()) -> list[str]:
        """Give a node a place.

        Args:
            node: who is new.
            linked: neighbours it has already; kept where there is room.

        Returns:
            Everyone whose neighbours changed.
        """
        if node in self._links:
            raise ValueError(f"{node} is in the topology already")
        self._changed = {node: None}
        self._insert(node)
        for other in dict.fromkeys(linked):
            if other != node and other in self._open and self._free(node):
                self._link(node, other)
        self._fill(node)
        return list(self._changed)

    def _insert(self, node: str) -> None:
        self._links[node] = []
        self._place[node] = len(self._order)
        self._order.append(node)
        self._open[node] = None

    def fill(self, node: str) -> list[str]:
        """Use the free places of a node.

        Returns:
            Everyone whose neighbours changed.
        """
        self._changed = {}
        self._fill(node)
        return list(self._changed)

    def remove(self, node: str) -> list[str]:
        """Take a node out and mend the hole.

        Returns:
            Everyone left whose neighbours changed.
        """
        self._changed = {}
        orphans = list(self._links[node])
        for other in orphans:
            self._unlink(node, other)
        del self._links[node]
        self._open.pop(node, None)
        place = self._place.pop(node)
        last = self._order.pop()
        if last != node:
            self._order[place] = last
            self._place[last] = place
        self._mend(orphans)
        self._changed.pop(node, None)
        return list(self._changed)

    def part(self, one: str, other: str) -> list[str]:
        """Give up a link that cannot be made (one cannot reach the other) and find both another.

        Returns:
            Everyone whose neighbours changed; nobody when there is no other way.
        """
        self._changed = {}
        if not self._are_linked(one, other) or len(self) <= self.degree + 1:
            return []
        edge = self._random_link(lambda u, v: self._crosses(one, other, u, v))
        return [] if edge is None else self._swap((one, other), edge)

    def shorten(self, one: str, other: str, saving: float) -> list[str]:
        """Replace a slow link and a random one by two that are together faster, if such are found at once.

        Args:
            one: an end of the slow link.
            other: its other end.
            saving: by which share of their time the two must get faster.

        Returns:
            Everyone whose neighbours changed; mostly nobody.
        """
        self._changed = {}
        if not self._are_linked(one, other) or len(self) <= self.degree + 1:
            return []
        best: tuple[float, tuple[str, str]] | None = None
        for _ in range(_CANDIDATES):
            edge = self._random_link(lambda u, v: self._crosses(one, other, u, v))
            if edge is None:
                return []
            before = self._distance(one, other) + self._distance(*edge)
            after = self._distance(one, edge[0]) + self._distance(other, edge[1])
            if before < math.inf and after < before * (1 - saving) and (best is None or after - before < best[0]):
                best = (after - before, edge)
        return [] if best is None else self._swap((one, other), best[1])

    def _crosses(self, one: str, other: str, u: str, v: str) -> bool:
        """Whether one-other and u-v could become one-u and other-v."""
        if u in (one, other) or v in (one, other):
            return False
        return not self._are_linked(one, u) and not self._are_linked(other, v)

    def _swap(self, first: tuple[str, str], second: tuple[str, str]) -> list[str]:
        """Cross two links, unless something would fall apart."""
        (one, other), (u, v) = first, second
        self._unlink(one, other)
        self._unlink(u, v)
        self._link(one, u)
        self._link(other, v)
        if len(self._groups([one, other])) > 1:  # both were bridges: put them back
            self._unlink(one, u)
            self._unlink(other, v)
            self._link(one, other)
            self._link(u, v)
            self._changed = {}
        return list(self._changed)

    # Links.

    def _free(self, node: str) -> int:
        return self.degree - len(self._links[node])

    def _are_linked(self, one: str, other: str) -> bool:
        return other in self._links[one]

    def _link(self, one: str, other: str) -> None:
        for node, neighbour in ((one, other), (other, one)):
            neighbours = self._links[node]
            neighbours.append(neighbour)
            self._changed[node] = None
            if len(neighbours) == self.degree:
                del self._open[node]

    def _unlink(self, one: str, other: str) -> None:
        for node, neighbour in ((one, other), (other, one)):
            self._links[node].remove(neighbour)
            self._open[node] = None
            self._changed[node] = None

    def _fill(self, node: str) -> None:
        """Use a node's free places: first with others that have one, then two at a time in the middle of a link."""
        waiting = [other for other in self._open if other != node and not self._are_linked(node, other)]
        self._random.shuffle(waiting)
        waiting.sort(key=lambda other: self._distance(node, other))
        for other in waiting[: self._free(node)]:
            self._link(node, other)
        while self._free(node) >= 2:
            edge = self._near_link(node)
            if edge is None:
                return
            u, v = edge
            self._unlink(u, v)
            self._link(u, node)
            self._link(v, node)

    def _distance(self, node: str, other: str) -> float:
        known = self._cost(node, other)
        return math.inf if known is None else known

    def _near_link(self, node: str) -> tuple[str, str] | None:
        """A link whose ends are not yet this node's neighbours; of a few random ones the nearest."""

        def fits(u: str, v: str) -> bool:
            return node not in (u, v) and not self._are_linked(node, u) and not self._are_linked(node, v)

        found: list[tuple[str, str]] = []
        for _ in range(_CANDIDATES):
            edge = self._random_link(fits)
            if edge is None:
                return None
            found.append(edge)
        return min(found, key=lambda edge: self._distance(node, edge[0]) + self._distance(node, edge[1]))

    def _random_link(self, fits: Callable[[str, str], bool]) -> tuple[str, str] | None:
        """Any link that fits, as (one end, other end); None when there is none."""
        random, order, links = self._random, self._order, self._links
        for _ in range(_ATTEMPTS):
            u = order[int(random.random() * len(order))]
            if links[u]:
                v = links[u][int(random.random() * len(links[u]))]
                if fits(u, v):
                    return u, v
        every = [(u, v) for u in order for v in links[u] if fits(u, v)]
        return every[int(random.random() * len(every))] if every else None

    # Mending.

    def _mend(self, orphans: list[str]) -> None:
        """Link the neighbours of one who left: across tears first, then in pairs."""
        if len(self) <= self.degree + 1:
            for one, other in combinations(self._order, 2):
                if not self._are_linked(one, other):
                    self._link(one, other)
            return
        groups = self._groups(orphans)
        while len(groups) > 1:
            part, rest = groups.pop(), groups.pop()
            self._bridge(part, rest)
            groups.append(part + rest)
        self._pair([node for node in orphans if self._free(node)])
        for node in orphans:
            if self._free(node):
                self._fill(node)

    def _bridge(self, one: list[str], other: list[str]) -> None:
        """Link two parts that nothing else links."""
        ends = []
        for group in (one, other):
            free = next((node for node in group if self._free(node)), None)
            ends.append(free if free is not None else self._make_room(group[0]))
        self._link(*ends)

    def _make_room(self, start: str) -> str:
        """Open a link on a circle of this node's part, where nothing falls apart, and return one of its ends."""
        seen = {start: start}
        queue = [start]
        for node in queue:
            for neighbour in self._links[node]:
                if neighbour not in seen:
                    seen[neighbour] = node
                    queue.append(neighbour)
                elif seen[node] != neighbour:  # a second way to the same place
                    self._unlink(node, neighbour)
                    return node
        raise AssertionError("a part in which nobody has a free place holds a circle")

    def _pair(self, free: list[str]) -> None:
        """Link those with a free place in twos; neighbours already, they go into the two ends of another link."""
        self._random.shuffle(free)
        while len(free) >= 2:
            one = free.pop()
            partner = next((node for node in free if not self._are_linked(one, node)), None)
            if partner is not None:
                free.remove(partner)
                self._link(one, partner)
                continue
            other = free.pop()

            edge = self._random_link(lambda u, v, one=one, other=other: self._crosses(one, other, u, v))  # type: ignore[misc]
            if edge is not None:
                # one and other are linked, so u and v keep a way to each other.
                self._unlink(*edge)
                self._link(one, edge[0])
                self._link(other, edge[1])

    def _groups(self, nodes: Sequence[str]) -> list[list[str]]:
        """The nodes in groups that have a way to each other.

        All searches go on in turn and join where they meet, so in a graph that holds together only a few nodes are
        looked at, however large it is.
        """
        group_of = {node: number for number, node in enumerate(nodes)}
        joined = list(range(len(nodes)))
        fronts = [[node] for node in nodes]

        def root(number: int) -> int:
            while joined[number] != number:
                number = joined[number]
            return number

        left = len(nodes)
        while left > 1:
            moved = False
            for number, front in enumerate(fronts):
                if not front:
                    continue
                moved = True
                reached: list[str] = []
                for node in front:
                    for neighbour in self._links[node]:
                        met = group_of.get(neighbour)
                        if met is None:
                            group_of[neighbour] = number
                            reached.append(neighbour)
                        elif root(met) != root(number):
                            joined[root(met)] = root(number)
                            left -= 1
                fronts[number] = reached
            if not moved:
                break
        groups: dict[int, list[str]] = {}
        for number, node in enumerate(nodes):
            groups.setdefault(root(number), []).append(node)
        return list(groups.values())
