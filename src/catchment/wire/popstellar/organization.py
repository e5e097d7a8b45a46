"""A LAO itself: its properties, witnesses, meetings and authentication (facts/popstellar.md, sections 1 and 2)."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import UNSET, UnsetType

from catchment.crypto import ed25519
from catchment.wire.popstellar import ids
from catchment.wire.popstellar.channels import Place
from catchment.wire.popstellar.fields import (
    Address,
    Base64,
    Strict,
    Timestamp,
    decode_base64,
    require,
    require_same,
    require_unique,
)

Extra: TypeAlias = dict[str, object]
"""Whatever a meeting's organizer adds."""


class LaoCreate(Strict, frozen=True, kw_only=True):
    """A LAO comes into being; on /root."""

    object: Literal["lao"] = "lao"
    action: Literal["create"] = "create"
    id: Base64
    name: str
    creation: Timestamp
    organizer: Base64
    witnesses: list[Base64]


class LaoUpdate(Strict, frozen=True, kw_only=True):
    """Its organizer wants other properties."""

    object: Literal["lao"] = "lao"
    action: Literal["update_properties"] = "update_properties"
    id: Base64
    name: str
    last_modified: Timestamp
    witnesses: list[Base64]


class ModificationSignature(Strict, frozen=True, kw_only=True):
    """A witness' consent to an update: its signature over the update's message id."""

    witness: Base64
    signature: Base64


class LaoState(Strict, frozen=True, kw_only=True):
    """The properties after an update that all witnesses signed."""

    object: Literal["lao"] = "lao"
    action: Literal["state"] = "state"
    id: Base64
    name: str
    creation: Timestamp
    last_modified: Timestamp
    organizer: Base64
    witnesses: list[Base64]
    modification_id: Base64
    modification_signatures: list[ModificationSignature]


class Peer(Strict, frozen=True, kw_only=True):
    """Another server of a LAO."""

    address: Address


class LaoGreet(Strict, frozen=True, kw_only=True):
    """A server says where it can be reached; signed by the server."""

    object: Literal["lao"] = "lao"
    action: Literal["greet"] = "greet"
    lao: Base64
    frontend: Base64
    address: Address
    peers: list[Peer]


class MessageWitness(Strict, frozen=True, kw_only=True):
    """A witness signs somebody's message."""

    object: Literal["message"] = "message"
    action: Literal["witness"] = "witness"
    message_id: Base64
    signature: Base64


class MeetingCreate(Strict, frozen=True, kw_only=True):
    """A meeting is announced."""

    object: Literal["meeting"] = "meeting"
    action: Literal["create"] = "create"
    id: Base64
    name: str
    creation: Timestamp
    location: str | UnsetType = UNSET
    start: Timestamp
    end: Timestamp | UnsetType = UNSET
    extra: Extra | UnsetType = UNSET


class MeetingState(Strict, frozen=True, kw_only=True):
    """A meeting after a modification that witnesses signed."""

    object: Literal["meeting"] = "meeting"
    action: Literal["state"] = "state"
    id: Base64
    name: str
    creation: Timestamp
    last_modified: Timestamp
    location: str | UnsetType = UNSET
    start: Timestamp
    end: Timestamp | UnsetType = UNSET
    extra: Extra | UnsetType = UNSET
    modification_id: Base64
    modification_signatures: list[ModificationSignature]


class Authenticate(Strict, frozen=True, kw_only=True):
    """An attendee proves a token to a client of the LAO (PoPCHA)."""

    object: Literal["popcha"] = "popcha"
    action: Literal["authenticate"] = "authenticate"
    client_id: str
    nonce: Base64
    identifier: Base64
    identifier_proof: Base64
    state: str | UnsetType = UNSET
    response_mode: str | UnsetType = UNSET
    popcha_address: str


def check_lao_create(data: LaoCreate, place: Place, sender: str) -> None:
    """The id is the hash of organizer, time and name."""
    require(data.name != "", "name: a LAO has a name.")
    require_unique("witnesses", data.witnesses)
    require_same("id", data.id, ids.lao_id(data.organizer, data.creation, data.name))


def check_lao_update(data: LaoUpdate, place: Place, sender: str) -> None:
    """It is about the LAO of its channel."""
    require(data.name != "", "name: a LAO has a name.")
    require_unique("witnesses", data.witnesses)
    require_same("id", data.id, place.lao)


def check_lao_state(data: LaoState, place: Place, sender: str) -> None:
    """It is about the LAO of its channel, and its signatures are those of the witnesses it names."""
    require(data.name != "", "name: a LAO has a name.")
    require_unique("witnesses", data.witnesses)
    require_same("id", data.id, place.lao)
    require(data.last_modified >= data.creation, "last_modified: earlier than creation.")
    _check_signatures(data)


def check_lao_greet(data: LaoGreet, place: Place, sender: str) -> None:
    """It is about the LAO of its channel."""
    require_same("lao", data.lao, place.lao)


def check_message_witness(data: MessageWitness, place: Place, sender: str) -> None:
    """The sender signed the decoded message id."""
    _require_signed("signature", sender, data.message_id, data.signature)


def check_meeting_create(data: MeetingCreate, place: Place, sender: str) -> None:
    """The id is the hash of LAO, time and name; it does not begin before it was made, nor end before it begins."""
    require_same("id", data.id, ids.meeting_id(place.lao, data.creation, data.name))
    _check_times(data)


def check_meeting_state(data: MeetingState, place: Place, sender: str) -> None:
    """A modification comes after the creation, and its signatures are those of the witnesses it names."""
    require(data.last_modified >= data.creation, "last_modified: earlier than creation.")
    _check_times(data)
    _check_signatures(data)


def check_authenticate(data: Authenticate, place: Place, sender: str) -> None:
    """The token of `identifier` signed the decoded nonce."""
    _require_signed("identifier_proof", data.identifier, data.nonce, data.identifier_proof)


def _check_times(data: MeetingCreate | MeetingState) -> None:
    require(data.start >= data.creation, "start: earlier than creation.")
    require(data.end is UNSET or data.end >= data.start, "end: earlier than start.")


def _check_signatures(data: LaoState | MeetingState) -> None:
    require_unique("modification_signatures", [each.witness for each in data.modification_signatures])
    for number, each in enumerate(data.modification_signatures):
        _require_signed(f"modification_signatures[{number}]", each.witness, data.modification_id, each.signature)


def _require_signed(name: str, key: str, signed: str, signature: str) -> None:
    valid = ed25519.verify(decode_base64(key), decode_base64(signed), decode_base64(signature))
    require(valid, f"{name}: not a signature of {key} over it.")
