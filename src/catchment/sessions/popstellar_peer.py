"""The conversation with another PoPStellar server, whoever dialled (spec/popstellar-protocol.md; issue 7, item 5).

Whoever dialled greets first and is greeted back, once. Then both name all their messages in heartbeats, ask for what
they miss with get_messages_by_id, and go on with heartbeats of what is new. Everything a server delivers is proven
and decided upon exactly as if a client had sent it. The addresses in a greeting are information: nobody is dialled
because of them.

Messages come in the order of their channels from /root down. One whose parents are not here yet waits until something
else has been taken, and is asked for again later when nothing was.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from catchment import metrics, model
from catchment.core.broker import Publish, Status
from catchment.errors import PeerFault
from catchment.popstellar.federation import Federation, Ids, by_channel, parts
from catchment.popstellar.hub import Hub
from catchment.popstellar.steps import Missing
from catchment.popstellar.values import Source
from catchment.sessions.base import Command
from catchment.sessions.popstellar import PopstellarSession
from catchment.wire.popstellar import channels, rpc
from catchment.wire.popstellar.fields import ErrorCode, fault
from catchment.wire.popstellar.submission import Submission, read

log = logging.getLogger(__name__)

MAX_FRAME: Final = 16 * 1024 * 1024
"""Older servers send all their ids in one frame."""

ASK_AT_ONCE: Final = 64
"""Messages in one question: with the greatest of messages the answer still fits a frame."""

QUESTIONS: Final = 4
"""Questions that may wait for their answer."""

MAX_WANTED: Final = 1_000_000
MAX_WAITING: Final = 10_000
"""Messages of one connection that wait for their parents."""


class _Origin:
    """Hears of messages that are tried again."""

    def __init__(self, session: PopstellarPeerSession) -> None:
        self.sender = ""
        self._session = session

    def published(self, request_id: str, status: Status, verdict: model.Verdict) -> None:
        """Tell the session."""
        self._session.published(request_id, status, verdict)

    def refused(self, request_id: str, fault: PeerFault) -> None:
        """Tell the session."""
        self._session.refused(request_id, fault)


class PopstellarPeerSession(PopstellarSession):
    """One connection with another server."""

    max_frame = MAX_FRAME
    source = Source.PEER

    def __init__(self, hub: Hub, *, dialled: bool) -> None:
        super().__init__(hub)
        self.peer_key = ""
        """What the other called itself; nothing proves it."""
        self._federation: Federation = hub.federation
        self._dialled = dialled
        self._greeted = False
        self._send: Callable[[bytes], None] = _unconnected
        self._number = 0
        self._questions: dict[int, list[tuple[str, str]] | None] = {}
        """What each question that waits was about; None for a catchup of /root."""
        self._wanted: deque[tuple[str, str]] = deque()
        self._under_way: dict[str, Submission] = {}
        self._waiting: dict[str, tuple[Submission, PeerFault]] = {}
        self._progress = False
        self._now = 0
        self._origin = _Origin(self)

    # The connection.

    def connected(self, address: str, send: Callable[[bytes], None]) -> None:
        """Whoever dialled greets first."""
        self._send = send
        self._origin.sender = address
        if self._dialled:
            self._greet()

    def disconnected(self) -> None:
        """Others may be asked for what this one did not answer."""
        self._federation.leave(self)
        asked = (name for about in self._questions.values() if about for _, name in about)
        self._federation.forget_asked([*asked, *(name for _, name in self._wanted)])

    def idle(self, now: int) -> Sequence[Command]:
        """Say that we are alive."""
        if self._greeted:
            self.tell({})
        return ()

    # What the federation calls.

    def tell(self, news: Ids) -> None:
        """Send a heartbeat, split under the limit of older servers."""
        if not news:
            self._send(rpc.encode(rpc.Heartbeat(jsonrpc="2.0", params={})))
        for part in parts((channel, name) for channel, names in news.items() for name in names):
            self._send(rpc.encode(rpc.Heartbeat(jsonrpc="2.0", params=part)))

    def look(self, now: int) -> None:
        """Ask again for what could not be taken."""
        self._now = now
        self._want(self._federation.due(now), now)

    # Frames.

    def receive(self, data: bytes, *, text: bool, now: int) -> Sequence[Command]:
        """Take one frame."""
        self._now = now
        try:
            if not text:
                raise fault("Queries are sent as text, not as binary frames.")
            query = rpc.decode(data)
            match query:
                case rpc.GreetServer():
                    self._greeted_by(query)
                    return ()
                case rpc.Heartbeat():
                    self._want(query.params, now)
                    return ()
                case rpc.Broadcast():
                    return self._take(query.params.channel, [query.params.message])
                case rpc.Answer():
                    return self._answered(query)
        except PeerFault as wrong:
            metrics.REQUESTS_INVALID.labels("popstellar", wrong.code).inc()
            log.debug("another server sent what it should not: %s", wrong.message)
            if not wrong.request_id or not rpc.is_query(data):
                return ()  # notifications and answers are not answered
        return super().receive(data, text=text, now=now)

    def published(self, request_id: str, status: Status, verdict: model.Verdict) -> bytes | None:
        """One of the messages we asked for has ended; or the other published one itself."""
        submission = self._under_way.pop(request_id, None)
        if submission is None:
            return super().published(request_id, status, verdict) if _is_number(request_id) else None
        if status is Status.REFUSED:
            self._refused(submission, fault("It does not prove what it claims."))
        elif status is Status.FAILED:
            self._refused(submission, fault("It could not be stored.", ErrorCode.INTERNAL))
        self._progress |= status is Status.STORED
        self._settled()
        return None

    def refused(self, request_id: str, fault: PeerFault) -> bytes | None:
        """One of the messages we asked for was refused; or one the other published itself."""
        submission = self._under_way.pop(request_id, None)
        if submission is None:
            return super().refused(request_id, fault) if _is_number(request_id) else None
        if _may_change(fault) and len(self._waiting) < MAX_WAITING:
            self._waiting[submission.message.message_id] = (submission, fault)
        else:
            self._refused(submission, fault)
        self._settled()
        return None

    # Greetings.

    def _greet(self) -> None:
        if self._greeted:
            return
        self._greeted = True
        hub = self._hub
        params = rpc.GreetParams(
            public_key=hub.public_key, client_address=hub.address, server_address=hub.server_address
        )
        self._send(rpc.encode(rpc.GreetServer(jsonrpc="2.0", params=params)))
        self._federation.join(self)
        self._ask(rpc.Catchup(jsonrpc="2.0", id=self._next(), params=rpc.ChannelParams(channel=channels.ROOT)), None)
        for part in self._federation.everything():
            self.tell(part)

    def _greeted_by(self, query: rpc.GreetServer) -> None:
        if self.peer_key:
            return  # once for each connection
        self.peer_key = query.params.public_key
        if self.peer_key == self._hub.public_key:
            log.warning("this server is connected with itself; take its own address out of popstellar_peers")
            return
        log.info("federated with the PoPStellar server %s", self.peer_key)
        self._greet()

    # Asking.

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _ask(self, query: rpc.Catchup | rpc.GetMessagesById, about: list[tuple[str, str]] | None) -> None:
        self._questions[query.id] = about
        self._send(rpc.encode(query))

    def _want(self, named: Ids, now: int) -> None:
        """Ask for what is named and not here."""
        for channel, names in named.items():
            for name in names:
                if len(self._wanted) < MAX_WANTED and self._federation.wants(channel, name, now):
                    self._wanted.append((channel, name))
        self._go_on()

    def _go_on(self) -> None:
        """Ask as much as may wait for an answer; not faster than what came is taken."""
        while self._wanted and len(self._questions) < QUESTIONS and not self._under_way:
            about = [self._wanted.popleft() for _ in range(min(ASK_AT_ONCE, len(self._wanted)))]
            self._ask(rpc.GetMessagesById(jsonrpc="2.0", id=self._next(), params=by_channel(about)), about)

    def _answered(self, answer: rpc.Answer) -> Sequence[Command]:
        if answer.id is None or answer.id not in self._questions:
            return ()
        about = self._questions.pop(answer.id)
        if not isinstance(answer.error, msgspec.UnsetType):
            log.debug("another server cannot answer: %s", answer.error.description)
            self._federation.forget_asked(name for _, name in about or ())
            self._go_on()
            return ()
        try:
            found = {channels.ROOT: rpc.messages(answer)} if about is None else rpc.messages_by_channel(answer)
        except PeerFault as wrong:
            log.debug("another server's answer is none: %s", wrong.message)
            found = {}
        commands: list[Command] = []
        for channel in sorted(found, key=_depth):
            commands += self._take(channel, found[channel])
        for channel, name in about or ():
            if name not in self._under_way and name not in self._hub.state.messages:
                self._federation.refused(channel, name, Missing("It was named and not delivered."), self._now)
        self._go_on()
        return commands

    # Taking.

    def _take(self, channel: str, raws: Iterable[msgspec.Raw]) -> list[Command]:
        """Messages another server delivered, each on its own."""
        commands: list[Command] = []
        for raw in raws:
            try:
                submission = read(channel, raw)
            except PeerFault as wrong:
                metrics.REQUESTS_INVALID.labels("popstellar", wrong.code).inc()
                log.debug("another server delivered no message: %s", wrong.message)
                continue
            name = submission.message.message_id
            if name in self._under_way or (name in self._hub.state.messages and not self._brings_witnesses(submission)):
                continue
            commands.append(self._submit(submission))
        return commands

    def _brings_witnesses(self, submission: Submission) -> bool:
        return bool(self._hub.state.new_witnesses(submission.message))

    def _submit(self, submission: Submission) -> Publish:
        name = submission.message.message_id
        self._under_way[name] = submission
        return self._hub.publish(name, submission, self._federation.source(name), self._now, origin=self)

    def _settled(self) -> None:
        """When everything that came has ended: what waits for its parents is tried again, if anything was taken."""
        if self._under_way:
            return
        waiting, self._waiting = self._waiting, {}
        if self._progress and waiting:
            self._progress = False
            for submission, _ in sorted(waiting.values(), key=lambda each: _depth(each[0].channel)):
                again = self._submit(submission)
                again.origin = self._origin
                self._hub.submit(again)
        else:
            for submission, why in waiting.values():
                self._refused(submission, why)
        if not self._under_way:
            self._go_on()

    def _refused(self, submission: Submission, why: PeerFault) -> None:
        self._federation.refused(submission.channel, submission.message.message_id, why, self._now)

    @staticmethod
    def _require_below_root(channel: str) -> None:
        """A server may subscribe to /root."""


def _may_change(fault: PeerFault) -> bool:
    """Whether what comes later may make a message right: its parents, a state, a role."""
    return isinstance(fault, Missing) or fault.code in _BY_STATE


_BY_STATE: Final = {str(code.value) for code in (ErrorCode.INVALID_ACTION, ErrorCode.ACCESS_DENIED)}


def _depth(channel: str) -> int:
    return channel.count("/")


def _is_number(request_id: str) -> bool:
    """Whether a publish was the other's own: ours are called by their message id, which is never all digits."""
    return request_id.removeprefix("-").isdecimal()


def _unconnected(payload: bytes) -> None:
    raise AssertionError(f"nobody is connected ({ErrorCode.INTERNAL})")
