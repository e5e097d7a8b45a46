"""The tracker role: `overlay.tracker` behind sockets (facts/streamr.md, section 8)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from random import Random
from typing import Final

from picows import WSListener

from catchment import metrics
from catchment.errors import PeerFault
from catchment.net.peerlink import ID_HEADER, PROTOCOL, STORAGE, TRACKER, TYPE_HEADER, PeerLink, Rejected, missing
from catchment.overlay.node import DUPLICATE_CONNECTION, GRACEFUL_SHUTDOWN, NORMAL_CLOSURE, PROTOCOL_ERROR
from catchment.overlay.tracker import Instruct, Tracker
from catchment.sessions.streamr_peer import PeerSession, Told
from catchment.wire.streamr import tracker as wire

log = logging.getLogger(__name__)

SETTLE_SECONDS: Final = 5.0
"""How long a tracker listens before it instructs: nodes come back within seconds and keep the links they have."""

PING_SECONDS: Final = 5.0
MAX_NODES: Final = 100_000


class TrackerService:
    """Nodes' connections to this tracker."""

    def __init__(self, *, node_id: str, outbox_limit: int, settle_seconds: float | None = None) -> None:
        self.node_id = node_id
        self.tracker = Tracker(Random())  # noqa: S311 - who is whose neighbour is no secret
        self._outbox_limit = outbox_limit
        self._settle_seconds = SETTLE_SECONDS if settle_seconds is None else settle_seconds
        self._links: dict[str, PeerLink] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to listen to nodes."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._settle()), loop.create_task(self._ping_all())]

    def stop(self) -> None:
        """Say goodbye to everyone."""
        for task in self._tasks:
            task.cancel()
        for link in list(self._links.values()):
            link.close(NORMAL_CLOSURE, GRACEFUL_SHUTDOWN)

    def accept(self, headers: Mapping[str, str], query: Mapping[str, str]) -> WSListener:
        """Take a connection; what is wrong with it is told in its close frame."""
        address = query.get("address")
        wrong = missing(headers, address)
        if not wrong and headers[TYPE_HEADER] == TRACKER:
            wrong = "a tracker has nothing to ask a tracker"
        if not wrong and len(self._links) >= MAX_NODES:
            wrong = "this tracker has as many nodes as it can take"
        if wrong or address is None:
            metrics.REQUESTS_INVALID.labels(PROTOCOL, "headers").inc()
            return Rejected(PROTOCOL_ERROR, wrong)
        if headers[ID_HEADER] in self._links:
            metrics.REQUESTS_INVALID.labels(PROTOCOL, "duplicate").inc()
            return Rejected(PROTOCOL_ERROR, DUPLICATE_CONNECTION)
        return PeerLink(
            self,
            PeerSession(node_id=self.node_id),
            peer_id=headers[ID_HEADER],
            peer_type=headers[TYPE_HEADER],
            address=address,
            dialled=False,
            outbox_limit=self._outbox_limit,
        )

    # What links call.

    def opened(self, link: PeerLink) -> None:
        """A node is here."""
        if link.peer_id in self._links:
            link.close(PROTOCOL_ERROR, DUPLICATE_CONNECTION)
            return
        self._links[link.peer_id] = link
        self._tell(self.tracker.joined(link.peer_id, link.address, storage=link.peer_type == STORAGE))

    def received(self, link: PeerLink, data: bytes) -> None:
        """A node reports or asks."""
        if self._links.get(link.peer_id) is not link:
            return
        command = link.session.read(data, now=0)
        match command:
            case Told(wire.StatusMessage(_, status)):
                self._tell(self.tracker.status(link.peer_id, status))
            case Told(wire.StorageNodesRequest(request_id, topic)):
                # Shipped trackers leave the request id empty; nodes go by the stream.
                found = self.tracker.storage_nodes(topic)
                link.send_all([link.session.tell(wire.StorageNodesResponse(request_id, topic, found))])
            case _:
                raise PeerFault("A tracker takes StatusMessage and StorageNodesRequest.", code="INVALID_REQUEST")

    def measured(self, link: PeerLink, rtt: float) -> None:
        """Nothing follows from the way to a tracker."""

    def closed(self, link: PeerLink) -> None:
        """A node has gone."""
        if self._links.get(link.peer_id) is link:
            del self._links[link.peer_id]
            self._tell(self.tracker.left(link.peer_id))

    # What the pages show.

    def topology(self, stream: str | None = None, partition: int | None = None) -> dict[str, dict[str, list[str]]]:
        """Each stream-partition's nodes with their neighbours."""
        found = {}
        for key, overlay in self.tracker.overlays.items():
            topic = wire.topic_of(key)
            assert topic is not None
            if stream in (None, topic.name) and partition in (None, topic.partition):
                found[key] = {node: sorted(linked) for node, linked in sorted(overlay.links.items())}
        return found

    def locations(self) -> dict[str, wire.Location]:
        """Where the nodes say they are."""
        return {node.id: node.location for node in self.tracker.nodes.values() if node.location is not None}

    def counts(self) -> dict[str, int]:
        """How much there is to track."""
        return {
            "nodes": len(self.tracker.nodes),
            "storageNodes": sum(node.storage for node in self.tracker.nodes.values()),
            "streamPartitions": len(self.tracker.overlays),
            "links": sum(len(linked) for o in self.tracker.overlays.values() for linked in o.links.values()) // 2,
        }

    # Inside.

    def _tell(self, instructions: list[Instruct]) -> None:
        for instruct in instructions:
            link = self._links.get(instruct.node)
            if link is not None:
                message = wire.InstructionMessage("", instruct.topic, instruct.addresses, instruct.counter)
                link.send_all([link.session.tell(message)])
        metrics.INSTRUCTIONS.inc(len(instructions))

    async def _settle(self) -> None:
        await asyncio.sleep(self._settle_seconds)
        self._tell(self.tracker.settle())

    async def _ping_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(PING_SECONDS)
            for link in list(self._links.values()):
                link.ping(loop.time())
