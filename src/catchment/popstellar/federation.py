"""What servers tell each other: which messages are new, which are missing, and when to ask again.

One `Federation` is shared by all connections with other servers (`sessions/popstellar_peer.py`). It knows what has
been asked of whom, so that two servers are not asked for the same message at once, and what could not be taken, so
that it is asked for again later and later. Nothing is shut out for good: what is given up is logged with its reason,
and the next server that names it is asked again.

Heartbeats (spec/popstellar-protocol.md, "Sending a heartbeat message to servers") name all messages once, when a
connection begins, and from then on only new ones: their size follows what is new, not what there is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from catchment.errors import PeerFault
from catchment.popstellar.state import State
from catchment.popstellar.steps import Missing
from catchment.popstellar.values import Source

log = logging.getLogger(__name__)

MICROSECONDS: Final = 1_000_000
ASK_AGAIN: Final = 10 * MICROSECONDS
"""An answer that does not come is asked of somebody else after this long."""

FIRST_RETRY: Final = 2 * MICROSECONDS
LAST_RETRY: Final = 3600 * MICROSECONDS
MAX_TRIES: Final = 12
PATIENCE: Final = 3
"""Tries after which a message is no longer made to wait for what may be on its way."""
MAX_REMEMBERED: Final = 100_000
"""Messages that could not be taken, and are remembered."""

HEARTBEAT_BYTES: Final = 200 * 1024
"""Of one heartbeat: older servers read 256 KiB (facts/popstellar.md, section 4)."""

Ids = Mapping[str, Sequence[str]]
"""Message ids by channel."""


class Link(Protocol):
    """A connection with another server."""

    def tell(self, news: Ids) -> None:
        """Send a heartbeat."""

    def look(self, now: int) -> None:
        """Ask for what is wanted and due."""


class Trouble(msgspec.Struct):
    """A message that could not be taken."""

    channel: str
    due: int
    tries: int


class Fresh(msgspec.Struct, frozen=True, gc=False):
    """A message that is in the log now, and the connection it came over."""

    channel: str
    message_id: str
    origin: object


class Federation:
    """Everything that all connections with other servers share."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._links: dict[Link, None] = {}
        self._asked: dict[str, int] = {}
        self._trouble: dict[str, Trouble] = {}

    def join(self, link: Link) -> None:
        """A connection with another server has been greeted."""
        self._links[link] = None

    def leave(self, link: Link) -> None:
        """It has ended."""
        self._links.pop(link, None)

    @property
    def links(self) -> Iterable[Link]:
        """The connections with other servers."""
        return list(self._links)

    def stored(self, fresh: Sequence[Fresh]) -> None:
        """Tell every other server what is new, except the one it came from."""
        for each in fresh:
            self._asked.pop(each.message_id, None)
            self._trouble.pop(each.message_id, None)
        for link in list(self._links):
            news = by_channel((each.channel, each.message_id) for each in fresh if each.origin is not link)
            if news:
                link.tell(news)

    def wants(self, channel: str, message_id: str, now: int) -> bool:
        """Whether to ask a server for a message it names; if so, it counts as asked."""
        if message_id in self._state.messages:
            return False
        if self._asked.get(message_id, 0) > now - ASK_AGAIN:
            return False
        trouble = self._trouble.get(message_id)
        if trouble is not None and trouble.due > now:
            return False
        self._asked[message_id] = now
        return True

    def refused(self, channel: str, message_id: str, fault: PeerFault, now: int) -> None:
        """A server's message was not taken. What it refers to may come; anything else is tried again all the same."""
        self._asked.pop(message_id, None)
        trouble = self._trouble.pop(message_id, None) or Trouble(channel, now, 0)
        trouble.tries += 1
        if trouble.tries > MAX_TRIES:
            log.warning("gave up on message %s of %s after %d tries: %s", message_id, channel, MAX_TRIES, fault.message)
            return
        if trouble.tries == 1:
            level = logging.INFO if isinstance(fault, Missing) else logging.WARNING
            log.log(level, "message %s of %s from another server was not taken: %s", message_id, channel, fault.message)
        trouble.due = now + min(FIRST_RETRY << trouble.tries - 1, LAST_RETRY)
        if len(self._trouble) >= MAX_REMEMBERED:
            self._trouble.pop(next(iter(self._trouble)))
        self._trouble[message_id] = trouble

    def source(self, message_id: str) -> Source:
        """As what a message of another server is shown to the state: after some tries it waits for nothing more."""
        trouble = self._trouble.get(message_id)
        return Source.LATE if trouble is not None and trouble.tries >= PATIENCE else Source.PEER

    def due(self, now: int) -> dict[str, list[str]]:
        """What could not be taken and is to be asked for again."""
        found = [(each.channel, name) for name, each in self._trouble.items() if each.due <= now]
        return by_channel(found)

    def everything(self) -> Iterator[dict[str, list[str]]]:
        """All message ids by the channel they were published on, in parts that fit a heartbeat."""
        return parts((channels[0], name) for name, channels in list(self._state.messages.items()))

    def forget_asked(self, message_ids: Iterable[str]) -> None:
        """Who was asked is gone: others may be asked at once."""
        for each in message_ids:
            self._asked.pop(each, None)


def by_channel(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Ids as a heartbeat has them."""
    found: dict[str, list[str]] = {}
    for channel, message_id in pairs:
        found.setdefault(channel, []).append(message_id)
    return found


def parts(pairs: Iterable[tuple[str, str]], limit: int = HEARTBEAT_BYTES) -> Iterator[dict[str, list[str]]]:
    """Ids by channel, in parts of at most so many bytes of JSON."""
    part: dict[str, list[str]] = {}
    size = 0
    for channel, message_id in pairs:
        cost = len(message_id) + 3 + (0 if channel in part else len(channel) + 6)
        if part and size + cost > limit:
            yield part
            part, size = {}, 0
            cost = len(message_id) + len(channel) + 9
        part.setdefault(channel, []).append(message_id)
        size += cost
    if part:
        yield part
