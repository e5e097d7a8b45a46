"""Roll calls: announced, opened, closed with the tokens of who was there, reopened (facts/popstellar.md, section 1)."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from catchment.wire.popstellar import ids
from catchment.wire.popstellar.channels import Place
from catchment.wire.popstellar.fields import Base64, Strict, Timestamp, require, require_same, require_unique


class RollCallCreate(Strict, frozen=True, kw_only=True):
    """A roll call is announced."""

    object: Literal["roll_call"] = "roll_call"
    action: Literal["create"] = "create"
    id: Base64
    name: str
    creation: Timestamp
    proposed_start: Timestamp
    proposed_end: Timestamp
    location: str
    description: str | UnsetType = UNSET


class RollCallOpen(Strict, frozen=True, kw_only=True):
    """Attendance is taken from now on; `opens` is the roll call, or the closing that is undone."""

    object: Literal["roll_call"] = "roll_call"
    action: Literal["open", "reopen"] = "open"
    update_id: Base64
    opens: Base64
    opened_at: Timestamp


class RollCallClose(Strict, frozen=True, kw_only=True):
    """Who was there: one token for each attendee. `closes` is the opening."""

    object: Literal["roll_call"] = "roll_call"
    action: Literal["close"] = "close"
    update_id: Base64
    closes: Base64
    closed_at: Timestamp
    attendees: list[Base64]


def check_create(data: RollCallCreate, place: Place, sender: str) -> None:
    """The id is the hash of LAO, time and name; the proposed times are in order."""
    require(data.name != "", "name: a roll call has a name.")
    require_same("id", data.id, ids.roll_call_id(place.lao, data.creation, data.name))
    require(data.proposed_start >= data.creation, "proposed_start: earlier than creation.")
    require(data.proposed_end >= data.proposed_start, "proposed_end: earlier than proposed_start.")


def check_open(data: RollCallOpen, place: Place, sender: str) -> None:
    """The id is the hash of LAO, what is opened, and the time."""
    require_same("update_id", data.update_id, ids.roll_call_update_id(place.lao, data.opens, data.opened_at))


def check_close(data: RollCallClose, place: Place, sender: str) -> None:
    """The id is the hash of LAO, what is closed, and the time; nobody attends twice."""
    require_unique("attendees", data.attendees)
    require_same("update_id", data.update_id, ids.roll_call_update_id(place.lao, data.closes, data.closed_at))
