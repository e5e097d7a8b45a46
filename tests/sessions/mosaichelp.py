"""A Mosaic conversation without a socket: messages in, messages out, as a node would carry them out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from catchment import model
from catchment.core.broker import Broker, Publish
from catchment.core.limits import NoteQuota
from catchment.core.mosaic import Mosaic
from catchment.core.mosaic_search import posting_of
from catchment.core.subscriptions import Subscriptions
from catchment.crypto import mosaic
from catchment.errors import PeerFault
from catchment.sessions.base import Close, Command, Send, Serve
from catchment.sessions.mosaic import MosaicSession
from catchment.store.memory import MemoryStore
from catchment.wire.mosaic import filter as filters
from catchment.wire.mosaic import frames, record
from catchment.wire.mosaic.filter import Filter
from catchment.wire.mosaic.frames import LAYOUT_A, Layout, Message, MessageType
from catchment.wire.mosaic.results import Result

NOW = 1_790_000_000_000_000
START = 1_790_000_000_000_000_000
ALICE, BOB, CAROL = (mosaic.Signer(bytes((number,)) * 32) for number in (1, 2, 3))
UNIQUE, EPHEMERAL, REPLACEABLE, VERSIONED = (record.EXAMPLE | bits for bits in range(4))
SERVER = mosaic.Signer(b"\x0f" * 32)


def make(time: int = 0, **changes: Any) -> bytes:
    """A signed record."""
    values: dict[str, Any] = {
        "kind": UNIQUE,
        "nonce": b"\x81" + bytes(7),
        "timestamp": START + time,
        "payload": b"%d" % time,
    }
    return record.make(changes.pop("signer", ALICE), **(values | changes))


def by(*signers: mosaic.Signer, **more: Any) -> bytes:
    """A filter of authors, as bytes."""
    return filters.encode(Filter(authors=frozenset(signer.public for signer in signers), **more))


class Room:
    """A node's parts, driven by hand."""

    def __init__(self, **options: Any) -> None:
        self.store = MemoryStore(extracts={model.Protocol.MOSAIC: posting_of})
        quota = NoteQuota(notes_per_second=1e6, notes_burst=1e6, bytes_per_second=1e9, bytes_burst=1e9)
        self.broker = Broker(self.store, Subscriptions(), quota)
        self.house = Mosaic(self.store, signer=SERVER, **options)

    def peer(self, *, layout: Layout = LAYOUT_A, **options: Any) -> Peer:
        return Peer(self, layout, **options)


class Peer:
    """One client: what it is sent stands in `heard`."""

    sender = "192.0.2.7"

    def __init__(self, room: Room, layout: Layout, **options: Any) -> None:
        self.room = room
        self.layout = layout
        self.session = options.pop("session", None) or MosaicSession(room.house, **options)
        self.heard: list[Message] = []
        self.closed = False
        self.waiting: list[Serve] = []
        self.hold = False
        """Whether answers are left waiting, as if the readers were busy."""
        self.session.connected(self.sender, self._hear)

    def _hear(self, payload: bytes) -> None:
        assert not self.closed, "nothing is sent to one who is gone"
        self.heard.append(frames.decode(payload, self.layout))

    # What the broker calls.

    def published(self, request_id: str, status: Any, verdict: model.Verdict) -> None:
        self._hear(self.session.published(request_id, status, verdict))

    def refused(self, request_id: str, fault: PeerFault) -> None:
        self._hear(self.session.refused(request_id, fault))

    # What tests call.

    def say(self, kind: MessageType, **fields: Any) -> list[Message]:
        """Send a message and return what was heard since."""
        return self.send(frames.encode(Message(kind, **fields), self.layout))

    def send(self, data: bytes, *, text: bool = False, now: int = NOW) -> list[Message]:
        return self.carry_out(self.session.receive(data, text=text, now=now), now)

    def carry_out(self, commands: Any, now: int = NOW) -> list[Message]:
        for command in commands:
            self._carry_out(command, now)
        return self.take()

    def _carry_out(self, command: Command, now: int) -> None:
        if isinstance(command, Send):
            self._hear(command.payload)
        elif isinstance(command, Close):
            self._hear(command.payload)
            self.leave()
        elif isinstance(command, Serve):
            self.waiting.append(command)
            if not self.hold:
                for _ in self.pages():
                    pass
        else:
            assert isinstance(command, Publish)
            command.origin = self
            broker = self.room.broker
            broker.judge([command])
            broker.commit([command], now)
            broker.deliver([command])

    def pages(self) -> Iterator[None]:
        """Serve what waits, page by page."""
        while self.waiting:
            source = self.waiting[0].source
            if not source.closed:
                payloads = source.page()
                if not source.closed:
                    for payload in payloads:
                        self._hear(payload)
                    if source.done:
                        source.ended()
            if source.closed or source.done:
                self.waiting.pop(0)
            yield

    def serve(self) -> list[Message]:
        for _ in self.pages():
            pass
        return self.take()

    def leave(self) -> None:
        self.closed = True
        self.session.disconnected()

    def take(self) -> list[Message]:
        heard, self.heard = self.heard, []
        return heard

    def submit(self, raw: bytes) -> Result:
        """Submit a record and return how it ended, checking that the answer names it."""
        answers = [each for each in self.say(MessageType.SUBMISSION, body=raw) if each.type.name == "SUBMISSION_RESULT"]
        assert len(answers) == 1
        assert answers[0].subject == raw[:32].ljust(32, b"\0")
        return answers[0].result

    def query(self, question: bytes, *, query_id: bytes = b"q1", limit: int = 0) -> tuple[list[bytes], Result]:
        """Ask and return the records and how it ended."""
        return split(self.say(MessageType.QUERY, query_id=query_id, limit=limit, body=question), query_id)

    def get(self, *references: bytes) -> tuple[list[bytes], Result]:
        return split(self.say(MessageType.GET, query_id=b"g1", references=references), b"g1")


def split(messages: list[Message], query_id: bytes) -> tuple[list[bytes], Result]:
    """The records of an answer, and the result it ended with."""
    *records, last = messages
    assert last.type is MessageType.QUERY_CLOSED
    assert {each.query_id for each in messages} == {query_id}
    assert {each.type for each in records} <= {MessageType.RECORD}
    return [each.body for each in records], last.result
