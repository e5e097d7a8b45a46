"""What the simulation is asked for, and what it showed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

MAX_PARTITION: Final = 30.0
"""Nodes keep what they may have to send again for a minute. A tracker that is not reached is dialled after 1, 3, 7, 15,
31 and then every 30 seconds: after a longer partition some of that would have been forgotten."""


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
    partition: float = 0.0
    """Seconds for which the network is split into halves, one of them without the tracker."""
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
        if not 0 <= self.partition <= MAX_PARTITION:
            return f"a partition lasts from 0 to {MAX_PARTITION:.0f} seconds"
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
    heal_seconds: float
    """From the end of the partition until everyone is linked again as the tracker wants."""
    events: int
    hops_counted: Sequence[int] = ()
    """How many deliveries took 0, 1, 2, ... hops."""
    latencies_ms: Sequence[float] = ()
    """A sample of delivery latencies, for pictures."""
