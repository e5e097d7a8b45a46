"""Where nodes are, learned from round-trip times alone: network coordinates after Vivaldi (Dabek et al., 2004).

Nodes report round-trip times to those they are connected to. A tracker that wants to know how near two strangers are
gives each node a place in the plane and a height (its way to the network), and with every report moves it a little to
where its measured distances fit better. The time between two nodes is then about the distance of their places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Final

import msgspec

_STEP: Final = 0.25
"""How far towards the fitting place a report moves a node (Vivaldi's c_c)."""

_TRUST: Final = 0.25
"""How quickly the error follows the last reports (Vivaldi's c_e)."""

_LEAST_HEIGHT: Final = 0.1
CERTAIN: Final = 0.5
"""A relative error below this makes a place worth believing."""


class Place(msgspec.Struct):
    """A node's coordinates in milliseconds, and how wrong they may be (1.0: nothing is known)."""

    x: float
    y: float
    height: float = _LEAST_HEIGHT
    error: float = 1.0


class Coordinates:
    """The places of all nodes a tracker knows."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._places: dict[str, Place] = {}

    def measured(self, node: str, rtts: Mapping[str, float]) -> None:
        """A node has reported its round-trip times."""
        mine = self._places.get(node)
        if mine is None:
            mine = self._places[node] = Place(self._random.random(), self._random.random())
        for peer, rtt in rtts.items():
            theirs = self._places.get(peer)
            if theirs is not None and rtt > 0:
                _move(mine, theirs, rtt)

    def forget(self, node: str) -> None:
        """A node has gone."""
        self._places.pop(node, None)

    def rtt(self, one: str, other: str) -> float | None:
        """About how many milliseconds are between two nodes; None when too little is known."""
        a, b = self._places.get(one), self._places.get(other)
        if a is None or b is None or a.error > CERTAIN or b.error > CERTAIN:
            return None
        return _distance(a, b)


def _distance(a: Place, b: Place) -> float:
    return math.hypot(a.x - b.x, a.y - b.y) + a.height + b.height


def _move(mine: Place, theirs: Place, rtt: float) -> None:
    """Bring a place nearer to where one measurement wants it, the more the surer the other's place is."""
    predicted = _distance(mine, theirs)
    weight = mine.error / (mine.error + theirs.error)
    sample_error = min(abs(predicted - rtt) / rtt, 1.0)
    mine.error = sample_error * _TRUST * weight + mine.error * (1 - _TRUST * weight)
    force = _STEP * weight * (rtt - predicted)
    apart = math.hypot(mine.x - theirs.x, mine.y - theirs.y)
    if apart > 0:
        share = force / (apart + mine.height + theirs.height)
        mine.x += (mine.x - theirs.x) * share
        mine.y += (mine.y - theirs.y) * share
        mine.height = max(_LEAST_HEIGHT, mine.height + (mine.height + theirs.height) * share)
