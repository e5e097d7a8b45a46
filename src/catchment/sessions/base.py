"""What every conversation is made of: commands for the node, and the questions the node asks back.

A session never touches a socket or the store. It turns a frame into commands; whoever runs it carries them out and
asks the session to word the answers. That is why the broker, the tests and a simulator can run the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import msgspec

from catchment import model
from catchment.core.broker import Publish, Status
from catchment.core.subscriptions import Form
from catchment.errors import PeerFault


class Send(msgspec.Struct, frozen=True, gc=False):
    """Send this payload to the peer."""

    payload: bytes


class Subscribe(msgspec.Struct, frozen=True, gc=False):
    """Deliver a topic to this peer from now on, after sending `answer`."""

    topic: model.Topic
    answer: bytes


class Unsubscribe(msgspec.Struct, frozen=True, gc=False):
    """Deliver a topic no more, then send `answer`."""

    topic: model.Topic
    answer: bytes


class Resend(msgspec.Struct, frozen=True, gc=False):
    """Send history: a range, or with `last` only that many from its end."""

    request_id: str
    question: model.Range
    last: int | None = None


class Source(Protocol):
    """An answer of any length, made page by page."""

    done: bool
    """Whether the last page has been made."""
    closed: bool
    """Whether nobody wants it any more; nothing more is sent."""

    def page(self) -> Sequence[bytes]:
        """The next payloads, perhaps none. Runs on a reader's thread and may read the store."""

    def ended(self) -> None:
        """The last page was handed to the connection. Runs on the event loop."""

    def failed(self) -> bytes:
        """Word the end of an answer that broke: our fault, no detail. Runs on the event loop."""


class Serve(msgspec.Struct, frozen=True, gc=False):
    """Send what a source makes, no faster than the peer reads."""

    source: Source


class Close(msgspec.Struct, frozen=True, gc=False):
    """Send this payload unless it is empty, then end the connection with a WebSocket close code."""

    payload: bytes = b""
    code: int = 1000
    reason: bytes = b""


Command = Send | Publish | Subscribe | Unsubscribe | Resend | Serve | Close


class Resending(Protocol):
    """How a protocol words the answer to a resend."""

    def resend_started(self, request: Resend) -> bytes | None:
        """Word what goes before the first message of a resend."""

    def resend_message(self, request: Resend, entry: model.Entry) -> bytes:
        """Word one message of a resend."""

    def resend_ended(self, request: Resend, count: int) -> bytes:
        """Word the end of a resend that sent `count` messages."""

    def resend_failed(self, request: Resend) -> bytes:
        """Word the failure of a resend that was our fault."""


class TextSession:
    """What a conversation of text has that does nothing unless it is asked."""

    text = True
    upgrade_headers: Mapping[str, str] = MappingProxyType({})

    def connected(self, address: str, send: Callable[[bytes], None]) -> None:
        """Nothing depends on it."""

    def disconnected(self) -> None:
        """Nothing is left to do."""

    def idle(self, now: int) -> Sequence[Command]:
        """Silence is fine."""
        return ()

    def goodbye(self) -> bytes | None:
        """Say nothing."""
        return None


class NoResends:
    """Of a protocol that answers questions about history otherwise; nobody asks it to word a resend."""

    def resend_started(self, request: Resend) -> bytes | None:
        """Never asked."""
        raise AssertionError("this protocol has no resends")

    def resend_message(self, request: Resend, entry: model.Entry) -> bytes:
        """Never asked."""
        raise AssertionError("this protocol has no resends")

    def resend_ended(self, request: Resend, count: int) -> bytes:
        """Never asked."""
        raise AssertionError("this protocol has no resends")

    def resend_failed(self, request: Resend) -> bytes:
        """Never asked."""
        raise AssertionError("this protocol has no resends")


class Session(Resending, Protocol):
    """A conversation with one peer."""

    protocol: model.Protocol
    version: int
    form: Form
    max_frame: int
    """Frames above this many bytes are answered with `frame_too_large` and passed over."""
    text: bool
    """Whether payloads are text."""
    upgrade_headers: Mapping[str, str]
    """What the answer to the upgrade request carries beside the usual."""

    def connected(self, address: str, send: Callable[[bytes], None]) -> None:
        """The peer is there: from where, and what takes payloads that answer no frame."""

    def disconnected(self) -> None:
        """The peer is gone."""

    def idle(self, now: int) -> Sequence[Command]:
        """Asked every minute or so; a peer that has been silent for too long may be told to go."""

    def goodbye(self) -> bytes | None:
        """Word the end of a node that goes away; None when the protocol says nothing."""

    def receive(self, data: bytes, *, text: bool, now: int) -> Sequence[Command]:
        """Take one frame; `now` is UTC microseconds. Errors of the peer come back as `Send` commands."""

    def frame_too_large(self, size: int, head: bytes) -> Sequence[Command]:
        """Word the refusal of a frame that is not read; `head` is its beginning."""

    def published(self, request_id: str, status: Status, verdict: model.Verdict) -> bytes | None:
        """Word the end of a `Publish`; None when the protocol says nothing."""

    def refused(self, request_id: str, fault: PeerFault) -> bytes | None:
        """Word the refusal of a `Publish` whose check or gate gave a reason; None when nothing is said."""
