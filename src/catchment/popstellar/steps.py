"""One step of the fold: the message that goes in, and what follows from it."""

from __future__ import annotations

from typing import Final

import msgspec

from catchment.errors import PeerFault
from catchment.popstellar.values import Lao, Source
from catchment.wire.popstellar.channels import Place
from catchment.wire.popstellar.data import Data
from catchment.wire.popstellar.fields import ErrorCode


class Missing(PeerFault):
    """A message refers to something that is not here, or not yet: between servers its parents may be on their way."""

    def __init__(self, text: str, code: ErrorCode = ErrorCode.INVALID_DATA) -> None:
        super().__init__(text, code=str(code.value))


class Greet(msgspec.Struct, frozen=True):
    """The server shall greet a new LAO."""

    lao: str


class MakeKey(msgspec.Struct, frozen=True):
    """The server shall make the key of a secret ballot."""

    lao: str
    election: str


class Announce(msgspec.Struct, frozen=True):
    """The server shall count an election and announce its result."""

    lao: str
    election: str


class Notify(msgspec.Struct, frozen=True):
    """The server shall tell everyone that a chirp came or went."""

    lao: str
    action: str
    chirp_id: str
    channel: str
    timestamp: int


Order = Greet | MakeKey | Announce | Notify
"""What the server that took a message from a client has to sign itself."""


class Outcome(msgspec.Struct, frozen=True):
    """What follows from a message that was taken."""

    also_on: tuple[str, ...] = ()
    """Channels it stands on beside the one it was published on."""
    creates: tuple[str, ...] = ()
    orders: tuple[Order, ...] = ()


class Step(msgspec.Struct, frozen=True):
    """One message on its way into the state."""

    channel: str
    place: Place
    lao: Lao
    """Of the channel; for a message on /root one without meaning."""
    sender: str
    message_id: str
    data: Data
    source: Source


NOTHING: Final = Outcome()
