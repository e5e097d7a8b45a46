"""Who may publish and subscribe where, and which streams there are.

Two modes. Open: a stream exists as soon as someone names it, with one partition; anyone reads and writes, and signed
messages are still checked (by `wire.streamr.message.judge`, not here). Closed: a stream exists when it was created,
and everything needs a permission. A signed message needs one for its signer, whoever sends it; an unsigned one needs
one for the session's user (facts/streamr.md, section 7). Key-exchange streams are implicit, have partition 0 and need
no permission (section 4).

Sans I/O: what is known comes in by `apply`, `note` and the tables of `core/accounts.py`; time is an argument. All
calls belong to one thread, the event loop's. Refusals are `PeerFault` with the code and text of section 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

from catchment import model
from catchment.core.accounts import ANONYMOUS, Accounts, Caller
from catchment.errors import PeerFault
from catchment.wire.streamr import admin
from catchment.wire.streamr.admin import Change, Stream
from catchment.wire.streamr.keyexchange import recipient_of
from catchment.wire.streamr.kinds import ErrorCode

__all__ = ["ANONYMOUS", "Access", "Caller"]

Doing = Literal["publish", "subscribe"]


_STREAMR: Final = model.Protocol.STREAMR

MAX_SEEN: Final = 1_000_000
"""(stream, publisher) pairs that are remembered of an open node; more are served all the same, but not listed."""


class Access:
    """The decisions of one node.

    Attributes:
        open: whether anyone may read and write any stream.
        accounts: users, keys and session tokens.
    """

    def __init__(self, *, open_to_all: bool, accounts: Accounts | None = None) -> None:
        self.open = open_to_all
        self.accounts = accounts or Accounts()
        self._streams: dict[str, Stream] = {}
        self._granted: dict[str, frozenset[tuple[str, str | None]]] = {}
        self._creators: dict[str, str | None] = {}
        """Whose each stream was that was ever created; its messages stay in the log."""
        self._next_permission = 1
        self._seen: dict[str, set[str]] = {}
        self._seen_count = 0
        self._fresh: list[tuple[str, str]] = []

    # Who asks.

    def authenticate(self, session_token: str | None, auth_key: str | None, now: int) -> Caller:
        """Whom a token or a key (an API key or a stream key) speaks for; nobody in particular when there is neither.

        On an open node nothing depends on it, so it is not looked at. `now` is UTC microseconds.

        Raises:
            PeerFault: AUTHENTICATION_FAILED, it is unknown or has expired.
        """
        if self.open or not (session_token or auth_key):
            return ANONYMOUS
        return self.identify(session_token, auth_key, now)

    def identify(self, session_token: str | None, auth_key: str | None, now: int) -> Caller:
        """Like `authenticate`, and strict in both modes: for questions like "who am I".

        Raises:
            PeerFault: AUTHENTICATION_FAILED, it is unknown or has expired.
        """
        caller = ANONYMOUS
        if session_token:
            caller = self.accounts.caller_of_token(session_token, now) or ANONYMOUS
        elif auth_key:
            caller = self.accounts.caller_of_key(auth_key) or ANONYMOUS
        if caller is ANONYMOUS and (session_token or auth_key):
            raise PeerFault(
                "Authentication failed: the session token or key is unknown or has expired. Log in again.",
                code=ErrorCode.AUTHENTICATION_FAILED,
            )
        return caller

    # What is allowed.

    def check_publish(
        self,
        caller: Caller,
        stream_id: str,
        partition: int,
        *,
        signer: str | None,
        encrypted: bool = True,
        exchange: bool = False,
    ) -> None:
        """Whether a message may go into a stream-partition.

        Args:
            caller: who sends it.
            stream_id: where it is to go.
            partition: where it is to go.
            signer: its publisher when it is signed (whether the signature is theirs is checked later), else None.
            encrypted: whether its content is encrypted.
            exchange: whether it is a key-exchange message; a closed node takes nothing else where nobody was permitted.

        Raises:
            PeerFault: NOT_FOUND, PERMISSION_DENIED, or REQUEST_FAILED for what the stream does not take.
        """
        stream = self._streams.get(stream_id)
        if stream is None:
            if not exchange and not self.open:
                raise _not_found(stream_id)
            self._check_implicit(stream_id, partition, "publish")
            return
        if partition >= stream.partitions:
            raise _no_partition(stream, partition, "publish")
        if stream.require_signed and signer is None:
            raise _failed("publish", f"stream {stream_id} takes signed messages only.", reason="unsigned")
        if stream.require_encrypted and not encrypted:
            raise _failed("publish", f"stream {stream_id} takes encrypted messages only.", reason="unencrypted")
        if self.open:
            return
        allowed = (
            self.may(caller, stream_id, "stream_publish") if signer is None else self.is_publisher(stream_id, signer)
        )
        if not allowed:
            raise _denied(stream_id, "publish")

    def check_subscribe(self, caller: Caller, stream_id: str, partition: int) -> None:
        """Whether a stream-partition may be subscribed to and its history read.

        Raises:
            PeerFault: NOT_FOUND, PERMISSION_DENIED, or REQUEST_FAILED when there is no such partition.
        """
        stream = self._streams.get(stream_id)
        if stream is None:
            self._check_implicit(stream_id, partition, "subscribe")
        elif partition >= stream.partitions:
            raise _no_partition(stream, partition, "subscribe")
        elif not self.open and not self.may(caller, stream_id, "stream_subscribe"):
            raise _denied(stream_id, "subscribe")

    def _check_implicit(self, stream_id: str, partition: int, doing: Doing) -> None:
        """A stream nobody created: there on an open node, and for key exchange, with one partition."""
        if not self.open and recipient_of(stream_id) is None:
            raise _not_found(stream_id)
        if partition:
            raise _no_partition(Stream(id=stream_id, name=stream_id), partition, doing)

    def may(self, caller: Caller, stream_id: str, operation: str) -> bool:
        """Whether a caller has a permission: their own, everyone's, or that of the key they hold."""
        granted = self._granted.get(stream_id, frozenset())
        if (operation, None) in granted:
            return True
        if caller.user is not None:
            return (operation, caller.user) in granted
        held = caller.stream == stream_id and operation in caller.operations
        return held and self.accounts.holds_key(caller)

    def may_change(self, caller: Caller, stream_id: str, operation: str) -> bool:
        """Whether a caller may edit, delete or share a stream.

        Needs the permission in both modes; on an open node a stream without an owner is everyone's.
        """
        if self.open and not any(user is not None for _, user in self._granted.get(stream_id, ())):
            return True
        return self.may(caller, stream_id, operation)

    def is_publisher(self, stream_id: str, address: str) -> bool:
        """Whether messages signed by an address belong into a stream; an unknown stream has no publishers."""
        return self._has(stream_id, address, "stream_publish")

    def is_subscriber(self, stream_id: str, address: str) -> bool:
        """Whether an address may read a stream; an unknown stream has no subscribers."""
        return self._has(stream_id, address, "stream_subscribe")

    def _has(self, stream_id: str, address: str, operation: str) -> bool:
        if self.open:
            return True
        granted = self._granted.get(stream_id, frozenset())
        return (operation, None) in granted or (operation, model.canonical_publisher(address)) in granted

    def publishers(self, stream_id: str, now: int) -> list[str]:
        """Who may publish, by name; on an open node everyone who was seen publishing or has a session."""
        found = self._holders(stream_id, "stream_publish")
        if self.open:
            found.update(self._seen.get(stream_id, ()))
            found.update(self.accounts.with_session(now))
            found.discard("")  # nobody's messages have no publisher
        return sorted(found)

    def subscribers(self, stream_id: str, now: int) -> list[str]:
        """Who may subscribe, by name; on an open node everyone who has a session."""
        found = self._holders(stream_id, "stream_subscribe")
        if self.open:
            found.update(self.accounts.with_session(now))
        return sorted(found)

    def _holders(self, stream_id: str, operation: str) -> set[str]:
        return {user for held, user in self._granted.get(stream_id, ()) if held == operation and user is not None}

    # Which streams there are.

    def stream(self, stream_id: str) -> Stream:
        """What is known of a stream: created, or on an open node and for key exchange as everyone finds it.

        Raises:
            PeerFault: NOT_FOUND.
        """
        stream = self._streams.get(stream_id)
        if stream is not None:
            return stream
        if not self.open and recipient_of(stream_id) is None:
            raise _not_found(stream_id)
        return Stream(id=stream_id, name=stream_id)

    def created(self, stream_id: str) -> Stream | None:
        """A stream somebody created, None when it is not there or only appeared."""
        return self._streams.get(stream_id)

    def may_create(self, caller: Caller, stream_id: str) -> bool:
        """Whether an id is free for a caller: on a closed node the messages of a deleted stream stay its creator's."""
        return self.open or self._creators.get(stream_id) in (None, caller.user)

    def created_streams(self) -> Sequence[Stream]:
        """The streams that somebody created."""
        return list(self._streams.values())

    def streams(self) -> Iterator[Stream]:
        """Every stream there is: those that were created, and those that appeared with their first message.

        There may be very many, so they are made one by one; streams may come and go meanwhile.
        """
        yield from self.created_streams()
        for stream_id in list(self._seen):
            if stream_id not in self._streams and recipient_of(stream_id) is None:
                yield Stream(id=stream_id, name=stream_id)

    def next_permission(self) -> int:
        """A number no permission has or had."""
        return self._next_permission

    def load(self, changes: Sequence[Change]) -> None:
        """Take all changes the log has."""
        self._streams = admin.fold(changes)
        self._granted = {stream.id: _granted(stream) for stream in self._streams.values()}
        self._note_creators(changes)
        self._next_permission = admin.next_permission(changes)

    def apply(self, change: Change) -> None:
        """Take a change that is in the log."""
        after = admin.step(self._streams.get(change.stream), change)
        self._note_creators((change,))
        if after is None:
            self._streams.pop(change.stream, None)
            self._granted.pop(change.stream, None)
        else:
            self._streams[change.stream] = after
            self._granted[change.stream] = _granted(after)
        self._next_permission = max(self._next_permission, admin.next_permission((change,)))

    def _note_creators(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if isinstance(change, admin.StreamCreated):
                self._creators[change.stream] = change.owner

    # Whom an open node has seen.

    def note(self, topic: model.Topic, entries: Sequence[model.Entry]) -> None:
        """Remember who published where; called with what was committed."""
        if topic.protocol is not _STREAMR:
            return
        seen = self._seen.get(topic.name)
        if seen is None:
            if not topic.name or recipient_of(topic.name) is not None:
                return  # the log's own entries; key exchange
            if self._seen_count >= MAX_SEEN:
                return
            seen = self._seen[topic.name] = set()
        for publisher in {entry.publisher for entry in entries} - seen:
            if self._seen_count >= MAX_SEEN:
                return
            seen.add(publisher)
            self._seen_count += 1
            self._fresh.append((topic.name, publisher))

    def take_fresh(self) -> list[tuple[str, str]]:
        """The (stream, publisher) pairs noted since the last time, to be kept."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def put_back(self, fresh: Iterable[tuple[str, str]]) -> None:
        """Take pairs back that could not be kept."""
        self._fresh = [*fresh, *self._fresh]

    def remember(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Take pairs that were kept."""
        for stream_id, publisher in pairs:
            self._seen.setdefault(stream_id, set()).add(publisher)
        self._seen_count = sum(map(len, self._seen.values()))


def _granted(stream: Stream) -> frozenset[tuple[str, str | None]]:
    """Who may do what, every operation under its new name."""
    return frozenset(
        (operation, each.user) for each in stream.permissions.values() for operation in admin.expand(each.operation)
    )


def _not_found(stream_id: str) -> PeerFault:
    return PeerFault(f"Stream {stream_id} not found.", code=ErrorCode.NOT_FOUND)


def _denied(stream_id: str, doing: Doing) -> PeerFault:
    word = "write" if doing == "publish" else "subscribe"
    return PeerFault(f"You are not allowed to {word} to stream {stream_id}", code=ErrorCode.PERMISSION_DENIED)


def _failed(doing: Doing, text: str, *, reason: str) -> PeerFault:
    return PeerFault(f"{doing.title()} request failed: {text}", code=ErrorCode.REQUEST_FAILED, reason=reason)


def _no_partition(stream: Stream, partition: int, doing: Doing) -> PeerFault:
    known = "partition 0 only" if stream.partitions == 1 else f"partitions 0 to {stream.partitions - 1}"
    return _failed(doing, f"stream {stream.id} has {known}, not {partition}.", reason="partition")
