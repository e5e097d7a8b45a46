"""The node role: `overlay.node` behind sockets, between the broker and the other nodes.

What a neighbour sends goes the same way as what a client publishes: judged, committed, delivered. What was committed
and is new goes on to the other neighbours. History that is not here is asked for from neighbours, then from the
storage nodes the tracker knows, and every message of it is judged before it goes to the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from picows import WSListener

from catchment import metrics, model
from catchment.core.access import Access
from catchment.core.broker import Publish
from catchment.errors import PeerFault
from catchment.net.ingest import Ingest, now_us
from catchment.net.peerlink import (
    ID_HEADER,
    MAX_RESENDS,
    NODE,
    PROTOCOL,
    STORAGE,
    TRACKER,
    TYPE_HEADER,
    Dialler,
    PeerLink,
    Rejected,
    missing,
)
from catchment.net.resend import Resender
from catchment.net.tracking import PING_SECONDS
from catchment.overlay import node as overlay
from catchment.overlay.node import DUPLICATE_CONNECTION, PROTOCOL_ERROR, OverlayNode
from catchment.sessions.base import Resend
from catchment.sessions.streamr_peer import Denied, Neighbour, PeerSession, ResendEnded, Resent, Told
from catchment.wire.streamr import message
from catchment.wire.streamr import tracker as wire
from catchment.wire.streamr.network import Era

log = logging.getLogger(__name__)

MAX_PEERS: Final = 1000
"""Nodes that may be connected at once."""

MAX_ASKED: Final = 3
"""Neighbours asked for history before the storage nodes are (facts/streamr.md, section 6)."""

ANSWER_SECONDS: Final = 20.0
"""facts/streamr.md, section 6: how long one node may take to go on with a resend."""

LINGER_SECONDS: Final = 600.0
"""How long a node takes part in a stream after the last local publish, when nobody here subscribes to it."""

SPARE_SECONDS: Final = 5.0
"""How long after our own dial the other's may still come in."""

ASKED_PAGE: Final = 256
_PASSED_ON: Final = frozenset({model.Kind.MESSAGE, model.Kind.KEYEXCHANGE})


class Asked(asyncio.Queue[Resent | None]):
    """The answers to a resend we asked another node for; None ends them."""

    def __init__(self, link: PeerLink) -> None:
        super().__init__()
        self.link = link
        self.paused = False
        """Whether the link is not read until some of this is taken."""


class NetworkService:
    """This node among the others."""

    def __init__(
        self,
        node: OverlayNode,
        *,
        ingest: Ingest,
        resender: Resender,
        access: Access,
        outbox_limit: int,
        clock: Callable[[], int] = now_us,
    ) -> None:
        self.node = node
        self._ingest = ingest
        self._resender = resender
        self._access = access
        self._outbox_limit = outbox_limit
        self._clock = clock
        self._kind = STORAGE if node.storage else NODE
        self._loop = asyncio.get_running_loop()
        self._dialler = Dialler(self, node_id=node.id, kind=self._kind, address=node.address, outbox_limit=outbox_limit)
        self._links: dict[str, PeerLink] = {}
        self._spares: dict[str, PeerLink] = {}
        self._trackers: dict[str, PeerLink] = {}
        self._published: dict[model.Topic, float] = {}
        self._asked: dict[str, Asked] = {}
        self._storage: dict[model.Topic, list[asyncio.Future[Sequence[str]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def start(self) -> None:
        """Dial the trackers, and take part where somebody here wants it."""
        broker = self._ingest.broker
        broker.forward = self._forward
        broker.subscriptions.on_change = self._wanted
        self._resender.elsewhere = self._elsewhere
        self._remember(self._loop.time())
        self._do(self.node.start())
        self._spawn(self._every(PING_SECONDS, self._ping_all))
        self._spawn(self._every(60.0, self._sweep))

    def _remember(self, now: float) -> None:
        """Offer the end of the log to neighbours again.

        A node that was killed may have acknowledged messages and not passed them on: they are nowhere else.
        """
        store = self._ingest.broker.store
        most = overlay.RECENT_MESSAGES
        rows = store.read(max(store.first_hot_offset, store.next_offset - most), most)
        if not rows:
            return
        since = rows[-1].entry.received_at - int(overlay.RECENT_SECONDS * 1_000_000)
        for row in rows:
            entry = row.entry
            if entry.received_at >= since and entry.protocol is model.Protocol.STREAMR and entry.kind in _PASSED_ON:
                topic = model.Topic(entry.topic, entry.partition)
                self._published[topic] = now
                self.node.join(topic, now)
                self.node.accepted(topic, entry.raw, "", now)

    def stop(self) -> None:
        """Say goodbye to everyone."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        self._do(self.node.stop())
        for link in [*self._spares.values(), *self._trackers.values()]:
            link.close(overlay.NORMAL_CLOSURE, overlay.GRACEFUL_SHUTDOWN)

    @property
    def state(self) -> Mapping[str, object]:
        """Who is connected, for the pages."""
        return {
            "id": self.node.id,
            "address": self.node.address,
            "trackers": sorted(self._trackers),
            "peers": dict(self.node.peers),
            "streams": {wire.key_of(topic): list(self.node.neighbours(topic)) for topic in self.node.streams},
        }

    def accept(self, headers: Mapping[str, str], query: Mapping[str, str]) -> WSListener:
        """Take another node's connection; what is wrong with it is told in its close frame."""
        address = query.get("address")
        wrong = missing(headers, address)
        if not wrong and headers[TYPE_HEADER] == TRACKER:
            wrong = "trackers are dialled, they do not dial"
        if not wrong and (headers[ID_HEADER] == self.node.id or address == self.node.address):
            wrong = "this is my own name"
        if not wrong and len(self._links) >= MAX_PEERS:
            wrong = "this node has as many peers as it can take"
        if wrong or address is None:
            metrics.REQUESTS_INVALID.labels(PROTOCOL, "headers").inc()
            return Rejected(PROTOCOL_ERROR, wrong)
        if headers[ID_HEADER] in self._links and not self._just_dialled(headers[ID_HEADER], address):
            metrics.REQUESTS_INVALID.labels(PROTOCOL, "duplicate").inc()
            return Rejected(PROTOCOL_ERROR, DUPLICATE_CONNECTION)
        return PeerLink(
            self,
            PeerSession(self._access, node_id=self.node.id),
            peer_id=headers[ID_HEADER],
            peer_type=headers[TYPE_HEADER],
            address=address,
            dialled=False,
            outbox_limit=self._outbox_limit,
        )

    # What links call.

    def opened(self, link: PeerLink) -> None:
        """A connection is there, whoever dialled."""
        if self._stopped:
            link.close(overlay.NORMAL_CLOSURE, overlay.GRACEFUL_SHUTDOWN)
        elif link.peer_type == TRACKER:
            self._trackers[link.address] = link
            self._do(self.node.tracker_connected(link.address, self._loop.time()))
        else:
            self._opened_peer(link)

    def _opened_peer(self, link: PeerLink) -> None:
        """A node is connected.

        Two nodes that are told of each other dial each other at once. Shipped nodes then close one of the two
        connections, which one depends on who was first, and believe a closed one open for a while: so we close
        neither. The second is a spare: what comes over it counts, and it takes the first one's place.
        """
        if link.peer_id not in self._links:
            self._links[link.peer_id] = link
            self._do(self.node.peer_connected(link.peer_id, link.address, self._loop.time()))
        elif link.peer_id not in self._spares and self._links[link.peer_id].dialled != link.dialled:
            self._spares[link.peer_id] = link
        else:
            link.close(PROTOCOL_ERROR, DUPLICATE_CONNECTION)

    def _just_dialled(self, peer_id: str, address: str) -> bool:
        """Whether a second connection comes from a node we have dialled ourselves this moment.

        Later ones are refused: whoever claims a name that is here already may be lying.
        """
        first = self._links[peer_id]
        fresh = self._loop.time() - first.since < SPARE_SECONDS
        return first.dialled and first.address == address and fresh and peer_id not in self._spares

    def received(self, link: PeerLink, data: bytes) -> None:
        """A frame has come."""
        command = link.session.read(data, now=self._clock())
        if link.peer_type == TRACKER:
            self._told(link, command)
            return
        match command:
            case Publish():
                self._submit(link, command)
            case Neighbour(topic, True):
                self._do(self.node.subscribe_requested(link.peer_id, topic, self._loop.time()))
            case Neighbour(topic, False):
                self.node.unsubscribe_requested(link.peer_id, topic, self._loop.time())
                self._schedule()
            case Resend():
                self._resend(link, command)
            case Denied(request, fault):
                link.send_all([link.session.resend_ended(request, 0)])
                raise fault
            case Resent(request_id) | ResendEnded(request_id):
                asked = self._asked.get(request_id)
                if asked is not None and asked.link is link:
                    self._answered(asked, command if isinstance(command, Resent) else None)
            case Told():
                raise PeerFault("Nodes do not send tracker messages to each other.", code="INVALID_REQUEST")
            case None:
                pass

    def _resend(self, link: PeerLink, request: Resend) -> None:
        if link.resends >= MAX_RESENDS:
            link.send_all([link.session.resend_ended(request, 0)])
            raise PeerFault(f"More than {MAX_RESENDS} resends at once.", code="INVALID_REQUEST", reason="resends")
        link.resends += 1
        self._spawn(self._answer(link, request))

    async def _answer(self, link: PeerLink, request: Resend) -> None:
        try:
            await self._resender.run(link, request, elsewhere=False)
        finally:
            link.resends -= 1

    def _told(self, link: PeerLink, command: object) -> None:
        match command:
            case Told(wire.InstructionMessage() as instruction):
                before = self.node.refused
                self._do(self.node.instructed(link.address, instruction, self._loop.time()))
                metrics.REQUESTS_INVALID.labels(PROTOCOL, "instruction").inc(self.node.refused - before)
            case Told(wire.StorageNodesResponse(_, topic, addresses)):
                for waiting in self._storage.pop(topic, ()):
                    if not waiting.done():
                        waiting.set_result(addresses)
            case _:
                raise PeerFault("A node takes InstructionMessage and StorageNodesResponse.", code="INVALID_REQUEST")

    def _submit(self, link: PeerLink, publish: Publish) -> None:
        publish.origin = link
        publish.note_repeat = False
        self._ingest.submit(publish)
        if self._ingest.full:
            link.pause_reading()
            self._ingest.when_roomy(link.resume_reading)

    def measured(self, link: PeerLink, rtt: float) -> None:
        """A ping was answered."""
        self.node.measured(link.peer_id, rtt)

    def closed(self, link: PeerLink) -> None:
        """A connection has ended."""
        now = self._loop.time()
        for asked in [asked for asked in self._asked.values() if asked.link is link]:
            asked.put_nowait(None)
        if link.peer_type == TRACKER:
            if self._trackers.get(link.address) is link:
                del self._trackers[link.address]
                self.node.tracker_lost(link.address, now)
        elif self._spares.get(link.peer_id) is link:
            del self._spares[link.peer_id]
        elif self._links.get(link.peer_id) is link:
            spare = self._spares.pop(link.peer_id, None)
            if spare is not None:
                self._links[link.peer_id] = spare
            else:
                del self._links[link.peer_id]
                self.node.peer_lost(link.peer_id, now)
        if not self._stopped:
            self._schedule()

    # What the broker calls.

    def _wanted(self, topic: model.Topic) -> None:
        """Somebody here has begun to want a stream-partition, or nobody does any more."""
        if topic.protocol is not model.Protocol.STREAMR or self._stopped:
            return
        now = self._loop.time()
        if self._ingest.broker.subscriptions.of(topic):
            self.node.join(topic, now)
            self._schedule()
        elif topic not in self._published and not self.node.storage:
            self._do(self.node.leave(topic, now))

    def _forward(self, stored: Sequence[Publish]) -> None:
        """Pass on what was committed, to every neighbour but the one it came from."""
        now = self._loop.time()
        topic, source = None, ""
        raws: list[bytes] = []
        # Found run by run: most batches are one.
        for publish in stored:
            entry, origin = publish.entry, publish.origin
            if entry.protocol is not model.Protocol.STREAMR or entry.kind not in _PASSED_ON:
                continue
            came_from = origin.peer_id if isinstance(origin, PeerLink) else ""
            if topic is None or topic.name != entry.topic or topic.partition != entry.partition or source != came_from:
                if topic is not None:
                    self._forward_run(topic, source, raws, now)
                topic, source, raws = model.Topic(entry.topic, entry.partition), came_from, []
            raws.append(entry.raw)
        if topic is not None:
            self._forward_run(topic, source, raws, now)

    def _forward_run(self, topic: model.Topic, source: str, raws: Sequence[bytes], now: float) -> None:
        if not source:
            self._published[topic] = now
            if not self.node.takes_part(topic):
                self.node.join(topic, now)
                self._schedule()
        self._pass_on(self.node.accepted_all(topic, raws, source, now), raws)

    def _pass_on(self, peers: Iterable[str], raws: Sequence[bytes]) -> None:
        """Send messages to neighbours; framed once for all that take the same bytes."""
        framed: dict[tuple[Era, bool], bytes] = {}
        for peer in peers:
            link = self._links.get(peer)
            if link is None:
                continue
            session = link.session
            data = framed.get((session.era, link.dialled))
            if data is None:
                data = framed[session.era, link.dialled] = link.framed(session.broadcasts(raws))
            link.send_framed(data)
            metrics.FORWARDED.inc(len(raws))

    def _sweep(self) -> None:
        """Leave streams nobody here has used for a while."""
        now = self._loop.time()
        for topic, last in list(self._published.items()):
            if now - last > LINGER_SECONDS:
                del self._published[topic]
                self._wanted(topic)

    # Carrying out commands.

    def _do(self, commands: Sequence[overlay.Command]) -> None:
        for command in commands:
            match command:
                case overlay.DialTracker(address):
                    self._spawn(self._dial_tracker(address))
                case overlay.DialPeer(address):
                    self._spawn(self._dial_peer(address))
                case overlay.ToTracker(address, made):
                    link = self._trackers.get(address)
                    if link is not None:
                        link.send_all([link.session.tell(made)])
                case _:
                    self._do_with_peer(command)
        if not self._stopped:
            self._schedule()

    def _do_with_peer(
        self, command: overlay.ClosePeer | overlay.SubscribePeer | overlay.UnsubscribePeer | overlay.Replay
    ) -> None:
        link = self._links.get(command.peer)
        if link is None:
            return
        match command:
            case overlay.ClosePeer(peer, code, reason):
                for open_link in (self._spares.get(peer), link):
                    if open_link is not None:
                        open_link.close(code, reason)
            case overlay.SubscribePeer(_, topic):
                link.send_all([link.session.subscribe(topic, str(uuid.uuid4()), wanted=True)])
            case overlay.UnsubscribePeer(_, topic):
                link.send_all([link.session.subscribe(topic, str(uuid.uuid4()), wanted=False)])
            case overlay.Replay(_, _, messages):
                link.send_all(link.session.broadcasts(messages))

    def _schedule(self) -> None:
        """Wake up when the node next has something to do."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.node.due
        if due is not None:
            self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._do(self.node.tick(self._loop.time()))

    async def _dial_tracker(self, address: str) -> None:
        if not await self._dialler.dial(address, PeerSession(node_id=self.node.id)):
            log.info("the tracker %s cannot be reached; it is tried again", address)
            self.node.tracker_lost(address, self._loop.time())
            self._schedule()

    async def _dial_peer(self, address: str) -> None:
        if not await self._dialler.dial(address, PeerSession(self._access, node_id=self.node.id)):
            self.node.dial_failed(address, self._loop.time())
            self._schedule()

    def _ping_all(self) -> None:
        for link in [*self._links.values(), *self._spares.values(), *self._trackers.values()]:
            link.ping(self._loop.time())

    async def _every(self, seconds: float, call: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(seconds)
            call()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # History that is not here.

    async def _elsewhere(self, request: Resend) -> AsyncGenerator[Sequence[model.Entry], None]:
        """Ask neighbours, then storage nodes, until one has something."""
        topic = request.question.topic
        if topic.protocol is not model.Protocol.STREAMR:
            return
        asked: set[str] = set()
        async with contextlib.aclosing(self._sources(topic)) as sources:
            async for link in sources:
                if link.peer_id in asked:
                    continue
                asked.add(link.peer_id)
                found = False
                async with contextlib.aclosing(self._ask(link, request)) as pages:
                    async for page in pages:
                        found = True
                        yield page
                if found:
                    return

    async def _sources(self, topic: model.Topic) -> AsyncGenerator[PeerLink, None]:
        for peer in self.node.neighbours(topic)[:MAX_ASKED]:
            if peer in self._links:
                yield self._links[peer]
        for address in await self._storage_nodes(topic):
            link = await self._linked(address)
            if link is not None:
                yield link

    async def _storage_nodes(self, topic: model.Topic) -> Sequence[str]:
        tracker = self._trackers.get(self.node.tracker_of(topic))
        if tracker is None:
            return ()
        answer: asyncio.Future[Sequence[str]] = self._loop.create_future()
        self._storage.setdefault(topic, []).append(answer)
        tracker.send_all([tracker.session.tell(wire.StorageNodesRequest(str(uuid.uuid4()), topic))])
        try:
            return await asyncio.wait_for(answer, ANSWER_SECONDS)
        except TimeoutError:
            return ()
        finally:
            waiting = self._storage.get(topic, [])
            if answer in waiting:
                waiting.remove(answer)
            if not waiting:
                self._storage.pop(topic, None)

    async def _linked(self, address: str) -> PeerLink | None:
        """The connection to an address, made if it may be."""

        def found() -> PeerLink | None:
            return next((link for link in self._links.values() if link.address == address), None)

        if found() is None and address != self.node.address and self.node.allowed(address):
            await self._dialler.dial(address, PeerSession(self._access, node_id=self.node.id))
        return found()

    async def _ask(self, link: PeerLink, request: Resend) -> AsyncGenerator[Sequence[model.Entry], None]:
        """Ask one node, and give what it answers page by page, judged, no faster than it is taken."""
        request_id = str(uuid.uuid4())
        asked = self._asked[request_id] = Asked(link)
        link.send_all([link.session.ask(Resend(request_id, request.question, request.last))])
        try:
            ended = False
            while not ended:
                page: list[Resent] = []
                while len(page) < ASKED_PAGE and not ended:
                    answer = await asyncio.wait_for(asked.get(), ANSWER_SECONDS)
                    ended = answer is None
                    if answer is not None:
                        page.append(answer)
                    if page and asked.empty():
                        break
                judged = await self._loop.run_in_executor(None, partial(_judged, page, request, self._clock()))
                for _ in range(len(page) - len(judged)):
                    link.fault()
                if judged:
                    yield judged
                self._read_on(asked)
        except TimeoutError:
            log.warning("node %r did not answer a resend of %s", link.peer_id, request.question.topic.name)
        finally:
            del self._asked[request_id]
            while not asked.empty():
                asked.get_nowait()
            self._read_on(asked)

    def _answered(self, asked: Asked, answer: Resent | None) -> None:
        asked.put_nowait(answer)
        if asked.qsize() == 4 * ASKED_PAGE:
            asked.link.pause_reading()
            asked.paused = True

    def _read_on(self, asked: Asked) -> None:
        if asked.paused and asked.qsize() <= ASKED_PAGE:
            asked.paused = False
            asked.link.resume_reading()


def _judged(page: Sequence[Resent], request: Resend, now: int) -> list[model.Entry]:
    """What of an answer is what was asked for and what it claims to be."""
    kept = []
    for answer in page:
        verdict = message.judge(answer.message)
        entry = message.to_entry(answer.message, answer.raw, verdict=verdict, received_at=now)
        if verdict.accepted and _asked_for(entry, request.question):
            kept.append(entry)
    return kept


def _asked_for(entry: model.Entry, question: model.Range) -> bool:
    if (entry.topic, entry.partition) != (question.topic.name, question.topic.partition):
        return False
    if not question.start <= model.Ref(entry.timestamp, entry.sequence) <= question.end:
        return False
    return question.publisher in (None, entry.publisher) and question.chain in (None, entry.chain)
