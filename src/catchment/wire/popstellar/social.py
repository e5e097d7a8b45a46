"""The social part: chirps, reactions, and a server's notes of them (facts/popstellar.md, sections 1 and 2)."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import UNSET, UnsetType

from catchment.wire.popstellar import channels
from catchment.wire.popstellar.channels import Place, Room, SocialChannel
from catchment.wire.popstellar.fields import Base64, Strict, Timestamp, require

MAX_CHIRP: Final = 300
"""Characters of a chirp (facts/popstellar.md, section 2: one of the two servers refuses longer ones)."""


class ChirpAdd(Strict, frozen=True, kw_only=True):
    """An attendee says something."""

    object: Literal["chirp"] = "chirp"
    action: Literal["add"] = "add"
    text: str
    parent_id: Base64 | UnsetType = UNSET
    timestamp: Timestamp


class ChirpDelete(Strict, frozen=True, kw_only=True):
    """An attendee takes a chirp back."""

    object: Literal["chirp"] = "chirp"
    action: Literal["delete"] = "delete"
    chirp_id: Base64
    timestamp: Timestamp


class ChirpNotify(Strict, frozen=True, kw_only=True):
    """A chirp came or went on an attendee's channel; signed by the server."""

    object: Literal["chirp"] = "chirp"
    action: Literal["notify_add", "notify_delete"]
    chirp_id: Base64
    channel: SocialChannel
    timestamp: Timestamp


class ReactionAdd(Strict, frozen=True, kw_only=True):
    """An attendee reacts to a chirp."""

    object: Literal["reaction"] = "reaction"
    action: Literal["add"] = "add"
    reaction_codepoint: str
    chirp_id: Base64
    timestamp: Timestamp


class ReactionDelete(Strict, frozen=True, kw_only=True):
    """An attendee takes a reaction back."""

    object: Literal["reaction"] = "reaction"
    action: Literal["delete"] = "delete"
    reaction_id: Base64
    timestamp: Timestamp


def check_chirp_add(data: ChirpAdd, place: Place, sender: str) -> None:
    """A chirp has 1 to 300 characters."""
    require(1 <= len(data.text) <= MAX_CHIRP, f"text: a chirp has 1 to {MAX_CHIRP} characters.")


def check_chirp_notify(data: ChirpNotify, place: Place, sender: str) -> None:
    """The channel it names is an attendee's, of the same LAO."""
    named = channels.parse(data.channel)
    attendee = named is not None and named.room is Room.SOCIAL and named.lao == place.lao
    require(attendee, "channel: not the channel of an attendee of this LAO.")


def check_reaction_add(data: ReactionAdd, place: Place, sender: str) -> None:
    """A reaction shows something."""
    require(data.reaction_codepoint != "", "reaction_codepoint: a reaction is not empty.")
