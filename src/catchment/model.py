"""Protocol-neutral values: what the log keeps and how a place in it is named.

Nothing here knows a protocol, a clock or a disk. `Entry` is the table of DESIGN.md ("The entry") without the three
columns the log itself gives (node, epoch, offset); those come back in `Row`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import msgspec

MAX_SAFE_INTEGER = 2**53 - 1
"""The greatest integer every JSON peer reads exactly; larger numbers are refused."""


class Kind(IntEnum):
    """What an entry is. The numbers are stored: never change one, only add."""

    MESSAGE = 1
    KEYEXCHANGE = 2
    WITNESS = 3
    RECORD = 4
    BLOB = 5
    ADMIN = 6
    REFUSED = 7
    DUPLICATE = 8

    @property
    def indexed(self) -> bool:
        """Whether entries of this kind are found by key or id; what was refused or repeated is only counted."""
        return self is not Kind.REFUSED and self is not Kind.DUPLICATE


class Protocol(IntEnum):
    """The wire protocols. The numbers are stored: never change one, only add."""

    STREAMR = 1
    POPSTELLAR = 2
    MOSAIC = 3


class Verdict(IntEnum):
    """What a check of the signed bytes found. The numbers are stored: never change one, only add."""

    OK = 1
    UNSIGNED = 2
    BAD_SIGNATURE = 3
    BAD_ID = 4
    MALFORMED = 5
    NOT_PERMITTED = 6

    @property
    def accepted(self) -> bool:
        """Whether a message with this verdict may be served."""
        return self is Verdict.OK or self is Verdict.UNSIGNED


class Ref(NamedTuple):
    """A place in a message chain: Streamr's MessageRef."""

    timestamp: int
    sequence: int


class Topic(NamedTuple):
    """What one subscribes to: a stream-partition, or a channel with partition 0.

    Protocols name their topics as they like, so the same name in two of them is two topics.
    """

    name: str
    partition: int
    protocol: Protocol = Protocol.STREAMR


class OrderKey(NamedTuple):
    """The order of a topic's messages, and a Streamr message's identity within its topic."""

    timestamp: int
    sequence: int
    publisher: str
    chain: str


FIRST_REF = Ref(0, 0)
LAST_REF = Ref(MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)


class Range(msgspec.Struct, frozen=True):
    """A question about history: the messages of one topic from `start` to `end`, both included.

    With `publisher` (canonical form, see `canonical_publisher`) and `chain` only those of one publisher or chain.
    """

    topic: Topic
    start: Ref = FIRST_REF
    end: Ref = LAST_REF
    publisher: str | None = None
    chain: str | None = None


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One line of the log, as the protocols see it.

    `publisher` is in canonical form; the form that was sent is in `raw`. `id` is empty where the order key is the
    identity (Streamr). `raw` holds the exact signed bytes, never the request around them.
    """

    kind: Kind
    protocol: Protocol
    version: int
    topic: str
    partition: int
    publisher: str
    chain: str
    timestamp: int
    sequence: int
    prev_timestamp: int | None
    prev_sequence: int | None
    event_time: int
    """UTC nanoseconds."""
    id: bytes
    verdict: Verdict
    received_at: int
    """UTC microseconds."""
    raw: bytes

    @property
    def size(self) -> int:
        """About how many bytes a place in the log costs: everything whose length a peer chooses."""
        return len(self.raw) + len(self.id) + len(self.topic) + len(self.publisher) + len(self.chain)

    @property
    def order_key(self) -> OrderKey:
        """Where this entry stands among those of its topic."""
        return OrderKey(self.timestamp, self.sequence, self.publisher, self.chain)


class Row(msgspec.Struct, frozen=True, gc=False):
    """An entry with the place the log gave it."""

    offset: int
    epoch: int
    entry: Entry


def canonical_publisher(publisher: str) -> str:
    """The form in which publishers are compared.

    Addresses (0x...) differ in case between clients (facts/streamr.md, section 4: checksum case in 2.x to 4.x, lower
    case in 1.x and 5.x) and mean the same; other names are compared as they are.
    """
    return publisher.lower() if publisher[:2] in ("0x", "0X") else publisher
