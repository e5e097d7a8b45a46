"""Channels: the paths below /root, and what each of them is for (facts/popstellar.md, section 2, "Channels").

/root                                   LAOs are created here
/root/<lao>                             the LAO itself
/root/<lao>/<election>                  one election
/root/<lao>/social/chirps               who chirped where
/root/<lao>/social/reactions            reactions to chirps
/root/<lao>/social/<pop token>          the chirps of one attendee
/root/<lao>/coin, consensus, authentication, federation
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Annotated, Final, NamedTuple

import msgspec

from catchment.wire.popstellar.fields import PATTERN_WORDS

ROOT: Final = "/root"
MAX_CHANNEL: Final = 512
"""Characters of a channel's name: the longest in use has a LAO and a token, about a hundred and ten."""

CHANNEL_PATTERN: Final = r"^/root(/[^/]+)*\Z"
BELOW_ROOT_PATTERN: Final = r"^/root(/[^/]+)+\Z"
SOCIAL_PATTERN: Final = r"^/root/([^/]+)/social/([^/]+)"
PATTERN_WORDS[CHANNEL_PATTERN] = "a channel (/root or /root/...)"
PATTERN_WORDS[BELOW_ROOT_PATTERN] = "a channel below /root"
PATTERN_WORDS[SOCIAL_PATTERN] = "a social channel (/root/<lao>/social/...)"

Channel = Annotated[str, msgspec.Meta(pattern=CHANNEL_PATTERN, max_length=MAX_CHANNEL)]
SocialChannel = Annotated[str, msgspec.Meta(pattern=SOCIAL_PATTERN, max_length=MAX_CHANNEL)]

_below_root = re.compile(BELOW_ROOT_PATTERN)


class Room(Enum):
    """What a channel is for."""

    ROOT = "root"
    LAO = "lao"
    ELECTION = "election"
    CHIRPS = "social/chirps"
    REACTIONS = "social/reactions"
    SOCIAL = "social"
    COIN = "coin"
    CONSENSUS = "consensus"
    AUTHENTICATION = "authentication"
    FEDERATION = "federation"


class Place(NamedTuple):
    """A channel's name taken apart; `subject` is the election's id or the attendee's token."""

    room: Room
    lao: str = ""
    subject: str = ""


LAO_ROOMS: Final = (
    Room.CHIRPS,
    Room.REACTIONS,
    Room.COIN,
    Room.CONSENSUS,
    Room.AUTHENTICATION,
    Room.FEDERATION,
)
"""The channels every LAO has from its creation on, beside its own."""

_NAMED: Final = {room.value: room for room in LAO_ROOMS}


def parse(channel: str) -> Place | None:
    """What a channel is by its name; None when no channel is called like this."""
    if channel == ROOT:
        return Place(Room.ROOT)
    if _below_root.match(channel) is None:
        return None
    lao, _, rest = channel.removeprefix("/root/").partition("/")
    if not rest:
        return Place(Room.LAO, lao)
    if rest in _NAMED:
        return Place(_NAMED[rest], lao)
    first, _, last = rest.partition("/")
    if not last:
        return Place(Room.ELECTION, lao, first) if first != "social" else None
    return Place(Room.SOCIAL, lao, last) if first == "social" and "/" not in last else None


def of_lao(lao: str) -> str:
    """The channel of a LAO."""
    return f"{ROOT}/{lao}"


def of_room(lao: str, room: Room) -> str:
    """One of the channels every LAO has."""
    return f"{ROOT}/{lao}/{room.value}"


def of_election(lao: str, election: str) -> str:
    """The channel of an election."""
    return f"{ROOT}/{lao}/{election}"


def of_attendee(lao: str, token: str) -> str:
    """The chirps of an attendee."""
    return f"{ROOT}/{lao}/social/{token}"
