"""What every conversation is made of: commands for the node, and the questions the node asks back.

A session never touches a socket or the store. It turns a frame into commands; whoever runs it carries them out and
asks the session to word the answers. That is why the broker, the tests and a simulator can run the same code.
"""

from __future__ import annotations

from collections.abc import Sequence
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


Command = Send | Publish | Subscribe | Unsubscribe | Resend


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


class Session(Resending, Protocol):
    """A conversation with one peer."""

    protocol: model.Protocol
    version: int
    form: Form
    max_frame: int
    """Frames above this many bytes are answered with `frame_too_large` and passed over."""

    def receive(self, data: bytes, *, text: bool, now: int) -> Sequence[Command]:
        """Take one frame; `now` is UTC microseconds. Errors of the peer come back as `Send` commands."""

    def frame_too_large(self, size: int, head: bytes) -> Sequence[Command]:
        """Word the refusal of a frame that is not read; `head` is its beginning."""

    def published(self, request_id: str, status: Status, verdict: model.Verdict) -> bytes | None:
        """Word the end of a `Publish`; None when the protocol says nothing."""

    def refused(self, request_id: str, fault: PeerFault) -> bytes:
        """Word the refusal of a `Publish` whose check or gate gave a reason."""
