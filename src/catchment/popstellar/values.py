"""What the state is made of: LAOs, roll calls, elections and what belongs to them."""

from __future__ import annotations

from enum import Enum

import msgspec

from catchment.wire.popstellar.channels import Place
from catchment.wire.popstellar.election import CastVote, ElectionResult, ElectionSetup
from catchment.wire.popstellar.organization import LaoCreate, LaoUpdate


class Source(Enum):
    """From whom a message came; who may send server messages, and who makes them, depends on it."""

    CLIENT = "client"
    PEER = "peer"
    """Another server, over a federation connection."""
    LATE = "late"
    """Another server, when what the message needs has not come after several tries."""
    OWN = "own"
    """This server made it."""
    LOG = "log"
    """It was accepted before: the state is being built again."""


class Channel(msgspec.Struct):
    """A channel and the ids of its messages, oldest first."""

    place: Place
    alone: tuple[str]
    """Its name; one tuple for all messages that stand here only."""
    messages: list[str]


class RollCallState(Enum):
    """facts/popstellar.md, section 2: Created, Opened, Closed, and opened again."""

    CREATED = "created"
    OPENED = "opened"
    CLOSED = "closed"


class RollCall(msgspec.Struct):
    """A roll call; `last_id` is what the next update must name."""

    id: str
    name: str
    created_at: int
    state: RollCallState
    last_id: str
    opened_at: int = 0
    closed_at: int = 0
    attendees: tuple[str, ...] = ()


class ElectionState(Enum):
    """facts/popstellar.md, section 2: setup, open, end."""

    SETUP = "setup"
    OPEN = "open"
    ENDED = "ended"


class Election(msgspec.Struct):
    """An election; `votes` has the vote that counts of each voter, `results` what each server announced."""

    setup: ElectionSetup
    state: ElectionState
    votes: dict[str, CastVote]
    results: dict[str, ElectionResult]
    opened_at: int = 0
    key: str = ""
    key_sender: str = ""


class Post(msgspec.Struct):
    """A chirp or a reaction."""

    sender: str
    deleted: bool = False


class Lao(msgspec.Struct):
    """A LAO and everything in it that later messages refer to."""

    id: str
    name: str
    organizer: str
    witnesses: tuple[str, ...]
    creation: int
    last_modified: int
    updates: dict[str, LaoUpdate]
    """By message id."""
    meetings: dict[str, int]
    """Id and creation."""
    roll_calls: dict[str, RollCall]
    roll_call_updates: dict[str, str]
    """The roll call each update id belongs to."""
    open_roll_call: str
    attendees: frozenset[str]
    """Of the roll call closed last."""
    attended: frozenset[str]
    """Of any roll call."""
    elections: dict[str, Election]
    chirps: dict[str, Post]
    reactions: dict[str, Post]
    consensus: dict[str, str]
    """The instance of each elect message."""
    servers: dict[str, str]
    """Servers that greeted, with their addresses."""

    def may_act(self, key: str, source: Source) -> bool:
        """Whether a key is an attendee's.

        From a client: of the last roll call. What another server has taken was said before a later roll call reached
        it, so there and in the log any roll call will do; otherwise servers could not come to hold the same.
        """
        return key in (self.attendees if source is Source.CLIENT else self.attended)

    def is_elder(self, key: str) -> bool:
        """Whether a key is the organizer's or a witness'."""
        return key == self.organizer or key in self.witnesses


def new_lao(data: LaoCreate) -> Lao:
    """A LAO as it is created."""
    return Lao(
        id=data.id,
        name=data.name,
        organizer=data.organizer,
        witnesses=tuple(data.witnesses),
        creation=data.creation,
        last_modified=data.creation,
        updates={},
        meetings={},
        roll_calls={},
        roll_call_updates={},
        open_roll_call="",
        attendees=frozenset(),
        attended=frozenset(),
        elections={},
        chirps={},
        reactions={},
        consensus={},
        servers={},
    )
