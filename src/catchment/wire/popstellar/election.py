"""Elections: questions, open and secret ballots, results (facts/popstellar.md, sections 1 and 2)."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from catchment.crypto import elgamal
from catchment.wire.popstellar import ids
from catchment.wire.popstellar.channels import Place
from catchment.wire.popstellar.fields import (
    Base64,
    Natural,
    Strict,
    Timestamp,
    decode_base64,
    encode_base64,
    require,
    require_same,
    require_unique,
)

OPEN_BALLOT: Final = "OPEN_BALLOT"
SECRET_BALLOT: Final = "SECRET_BALLOT"  # noqa: S105 - a word of the protocol
INDEX_BYTES: Final = 2
"""A secret ballot holds the index of the option in this many bytes, big-endian."""

NonEmpty = Annotated[str, Meta(min_length=1)]
AnyList: TypeAlias = list[object]


class Question(Strict, frozen=True, kw_only=True):
    """One question of an election."""

    id: Base64
    question: str
    voting_method: Literal["Plurality"]
    ballot_options: Annotated[list[str], Meta(min_length=2)]
    write_in: bool


class ElectionSetup(Strict, frozen=True, kw_only=True):
    """An election is announced."""

    object: Literal["election"] = "election"
    action: Literal["setup"] = "setup"
    version: Literal["OPEN_BALLOT", "SECRET_BALLOT"]
    id: Base64
    lao: Base64
    name: NonEmpty
    created_at: Timestamp
    start_time: Timestamp
    end_time: Timestamp
    questions: Annotated[list[Question], Meta(min_length=1)]


class ElectionKey(Strict, frozen=True, kw_only=True):
    """With what secret ballots are encrypted; signed by the server."""

    object: Literal["election"] = "election"
    action: Literal["key"] = "key"
    election: Base64
    election_key: Base64


class ElectionOpen(Strict, frozen=True, kw_only=True):
    """Votes are taken from now on."""

    object: Literal["election"] = "election"
    action: Literal["open"] = "open"
    lao: Base64
    election: Base64
    opened_at: Timestamp


class Vote(Strict, frozen=True, kw_only=True):
    """The answer to one question: an index in an open ballot, an encrypted one in a secret ballot."""

    id: Base64
    question: Base64
    vote: Natural | Base64


class CastVote(Strict, frozen=True, kw_only=True):
    """Somebody's votes. A later one replaces an earlier one."""

    object: Literal["election"] = "election"
    action: Literal["cast_vote"] = "cast_vote"
    lao: Base64
    election: Base64
    created_at: Timestamp
    votes: Annotated[list[Vote], Meta(min_length=1)]


class ElectionEnd(Strict, frozen=True, kw_only=True):
    """No more votes; `registered_votes` is the hash of those the organizer has seen."""

    object: Literal["election"] = "election"
    action: Literal["end"] = "end"
    lao: Base64
    election: Base64
    created_at: Timestamp
    registered_votes: Base64


class OptionCount(Strict, frozen=True, kw_only=True):
    """How many voted for one option."""

    ballot_option: str
    count: Natural


class QuestionResult(Strict, frozen=True, kw_only=True):
    """The counts of one question."""

    id: str
    result: Annotated[list[OptionCount], Meta(min_length=1)]


class ElectionResult(Strict, frozen=True, kw_only=True):
    """What a server counted; signed by the server."""

    object: Literal["election"] = "election"
    action: Literal["result"] = "result"
    questions: Annotated[list[QuestionResult], Meta(min_length=1)]
    witness_signatures: AnyList | UnsetType = UNSET


def check_setup(data: ElectionSetup, place: Place, sender: str) -> None:
    """Ids are hashes, times are in order, questions and their options are told apart."""
    require_same("lao", data.lao, place.lao)
    require_same("id", data.id, ids.election_id(place.lao, data.created_at, data.name))
    require(data.start_time >= data.created_at, "start_time: earlier than created_at.")
    require(data.end_time >= data.start_time, "end_time: earlier than start_time.")
    require_unique("questions", [question.id for question in data.questions])
    for number, question in enumerate(data.questions):
        where = f"questions[{number}]"
        require(not question.write_in, f"{where}.write_in: must be false.")
        require_same(f"{where}.id", question.id, ids.question_id(data.id, question.question))
        require_unique(f"{where}.ballot_options", question.ballot_options)


def check_key(data: ElectionKey, place: Place, sender: str) -> None:
    """The key is a point that ballots can be encrypted to."""
    require_same("election", data.election, place.subject)
    require(elgamal.is_point(decode_base64(data.election_key)), "election_key: not a point of the Ed25519 group.")


def check_open(data: ElectionOpen, place: Place, sender: str) -> None:
    """It is about the election of its channel."""
    _check_place(data, place)


def check_cast_vote(data: CastVote, place: Place, sender: str) -> None:
    """Each question is answered once, and each vote's id is the hash of what was voted."""
    _check_place(data, place)
    require_unique("votes", [vote.question for vote in data.votes])
    for number, vote in enumerate(data.votes):
        require_same(f"votes[{number}].id", vote.id, ids.vote_id(data.election, vote.question, vote.vote))


def check_end(data: ElectionEnd, place: Place, sender: str) -> None:
    """It is about the election of its channel."""
    _check_place(data, place)


def check_result(data: ElectionResult, place: Place, sender: str) -> None:
    """Each question and each of its options is counted once."""
    require_unique("questions", [question.id for question in data.questions])
    for number, question in enumerate(data.questions):
        require_unique(f"questions[{number}].result", [each.ballot_option for each in question.result])


def _check_place(data: ElectionOpen | CastVote | ElectionEnd, place: Place) -> None:
    require_same("lao", data.lao, place.lao)
    require_same("election", data.election, place.subject)


def encrypt_vote(public: bytes, index: int, random_bytes: elgamal.RandomBytes) -> str:
    """The text of a vote in a secret ballot.

    Raises:
        ValueError: `public` is no key, or the index has more than two bytes.
    """
    if not 0 <= index < 1 << 8 * INDEX_BYTES:
        raise ValueError(f"option {index} cannot be written in {INDEX_BYTES} bytes")
    return encode_base64(elgamal.encrypt(public, index.to_bytes(INDEX_BYTES), random_bytes))


def decrypt_vote(secret: bytes, vote: str) -> int | None:
    """The index in a vote of a secret ballot; None when there is none that this secret opens."""
    data = elgamal.decrypt(secret, decode_base64(vote))
    return int.from_bytes(data) if data is not None and len(data) == INDEX_BYTES else None
