"""Ties between LAOs on different servers, as newer servers have them (facts/popstellar.md, section 1).

They are read, so that a message of this kind is known for what it is. No state takes them yet.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from catchment.wire.popstellar.channels import Place
from catchment.wire.popstellar.fields import PATTERN_WORDS, Address, Base64, Strict, Timestamp, require, require_unique
from catchment.wire.popstellar.message import Message

CHALLENGE_PATTERN: Final = r"^[0-9a-fA-F]{64}\Z"
PATTERN_WORDS[CHALLENGE_PATTERN] = "64 hexadecimal digits"

ChallengeValue = Annotated[str, Meta(pattern=CHALLENGE_PATTERN)]


class ChallengeRequest(Strict, frozen=True, kw_only=True):
    """An organizer asks its server for a challenge (newer servers)."""

    object: Literal["federation"] = "federation"
    action: Literal["challenge_request"] = "challenge_request"
    timestamp: Timestamp


class FederationChallenge(Strict, frozen=True, kw_only=True):
    """The challenge (newer servers)."""

    object: Literal["federation"] = "federation"
    action: Literal["challenge"] = "challenge"
    value: ChallengeValue
    valid_until: Timestamp


class FederationTie(Strict, frozen=True, kw_only=True):
    """Another LAO is expected, or dialled (newer servers)."""

    object: Literal["federation"] = "federation"
    action: Literal["expect", "init"]
    lao_id: Base64
    server_address: Address
    public_key: Base64
    challenge: Message


class FederationResult(Strict, frozen=True, kw_only=True):
    """How it ended (newer servers)."""

    object: Literal["federation"] = "federation"
    action: Literal["result"] = "result"
    status: Literal["success", "failure"]
    public_key: Base64 | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    challenge: Message


class TokensExchange(Strict, frozen=True, kw_only=True):
    """The attendees of a federated LAO (newer servers)."""

    object: Literal["federation"] = "federation"
    action: Literal["tokens_exchange"] = "tokens_exchange"
    lao_id: Base64
    roll_call_id: Base64
    tokens: list[Base64]
    timestamp: Timestamp


def check_result(data: FederationResult, place: Place, sender: str) -> None:
    """A success names a key, a failure its reason, and neither the other's."""
    if data.status == "success":
        require(data.public_key is not UNSET and data.reason is UNSET, "public_key: a success has it, and no reason.")
    else:
        require(data.reason is not UNSET and data.public_key is UNSET, "reason: a failure has it, and no public_key.")


def check_tokens_exchange(data: TokensExchange, place: Place, sender: str) -> None:
    """Nobody is there twice."""
    require_unique("tokens", data.tokens)
