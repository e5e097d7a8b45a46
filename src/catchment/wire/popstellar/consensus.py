"""Consensus: Paxos about one property of one object (facts/popstellar.md, section 1)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from catchment.model import MAX_SAFE_INTEGER
from catchment.wire.popstellar import ids
from catchment.wire.popstellar.channels import Place
from catchment.wire.popstellar.fields import Base64, Natural, Strict, Timestamp, require_same

Try = Annotated[int, Meta(ge=1, le=MAX_SAFE_INTEGER)]
AnyTry = Annotated[int, Meta(ge=-1, le=MAX_SAFE_INTEGER)]


class ConsensusKey(Strict, frozen=True, kw_only=True):
    """What is agreed upon: a property of an object."""

    type: str
    id: Base64
    property: str


class ConsensusElect(Strict, frozen=True, kw_only=True):
    """A value is proposed."""

    object: Literal["consensus"] = "consensus"
    action: Literal["elect"] = "elect"
    instance_id: Base64
    created_at: Timestamp
    key: ConsensusKey
    value: str


class ConsensusElectAccept(Strict, frozen=True, kw_only=True):
    """An acceptor says yes or no."""

    object: Literal["consensus"] = "consensus"
    action: Literal["elect_accept"] = "elect_accept"
    instance_id: str
    message_id: str
    accept: bool


class PrepareValue(Strict, frozen=True, kw_only=True):
    """The try that is prepared."""

    proposed_try: Try


class ConsensusPrepare(Strict, frozen=True, kw_only=True):
    """Paxos, first phase."""

    object: Literal["consensus"] = "consensus"
    action: Literal["prepare"] = "prepare"
    instance_id: str
    message_id: str
    created_at: Timestamp
    value: PrepareValue


class PromiseValue(Strict, frozen=True, kw_only=True):
    """What an acceptor promised, and what it accepted before (-1: nothing)."""

    accepted_try: AnyTry
    accepted_value: bool
    promised_try: Try


class ConsensusPromise(Strict, frozen=True, kw_only=True):
    """Paxos, first phase, the answer."""

    object: Literal["consensus"] = "consensus"
    action: Literal["promise"] = "promise"
    instance_id: str
    message_id: str
    created_at: Timestamp
    value: PromiseValue


class ProposeValue(Strict, frozen=True, kw_only=True):
    """The value that is proposed under a try."""

    proposed_try: Natural
    proposed_value: bool


class ConsensusPropose(Strict, frozen=True, kw_only=True):
    """Paxos, second phase."""

    object: Literal["consensus"] = "consensus"
    action: Literal["propose"] = "propose"
    instance_id: str
    message_id: str
    created_at: Timestamp
    value: ProposeValue
    acceptor_signatures: list[str] = field(name="acceptor-signatures")


class AcceptValue(Strict, frozen=True, kw_only=True):
    """The value that was accepted under a try."""

    accepted_try: Natural
    accepted_value: bool


class ConsensusAccept(Strict, frozen=True, kw_only=True):
    """Paxos, second phase, the answer."""

    object: Literal["consensus"] = "consensus"
    action: Literal["accept"] = "accept"
    instance_id: str
    message_id: str
    created_at: Timestamp
    value: AcceptValue


class LearnValue(Strict, frozen=True, kw_only=True):
    """What was decided."""

    decision: bool


class ConsensusLearn(Strict, frozen=True, kw_only=True):
    """The decision is made known."""

    object: Literal["consensus"] = "consensus"
    action: Literal["learn"] = "learn"
    instance_id: str
    message_id: str
    created_at: Timestamp
    value: LearnValue
    acceptor_signatures: list[str] = field(name="acceptor-signatures")


class ConsensusFailure(Strict, frozen=True, kw_only=True):
    """No decision was reached."""

    object: Literal["consensus"] = "consensus"
    action: Literal["failure"] = "failure"
    instance_id: str
    message_id: str
    created_at: Timestamp


def check_elect(data: ConsensusElect, place: Place, sender: str) -> None:
    """The instance is the hash of what is agreed upon."""
    key = data.key
    require_same("instance_id", data.instance_id, ids.consensus_instance_id(key.type, key.id, key.property))
