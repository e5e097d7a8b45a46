"""Counting an election (facts/popstellar.md, section 2): by the server that announces it, and again by the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from catchment.popstellar.values import Election
from catchment.wire.popstellar import ids
from catchment.wire.popstellar.election import (
    SECRET_BALLOT,
    ElectionResult,
    OptionCount,
    Question,
    QuestionResult,
    Vote,
    decrypt_vote,
)

Read = Callable[[int | str], int | None]
"""The option a vote names; None when it names none."""


def registered_votes(election: Election) -> str:
    """What the end of an election must say: the hash of the ids of all votes that count."""
    return ids.registered_votes(vote.id for vote in _votes(election))


def count(election: Election, secret: bytes | None = None) -> ElectionResult | None:
    """The result; None for a secret ballot without the secret of its key.

    A vote that names no option, or that the secret does not open, counts for none.
    """
    if election.setup.version != SECRET_BALLOT:
        return _count(election, lambda vote: vote if isinstance(vote, int) else None)
    if secret is None:
        return None
    return _count(election, lambda vote: decrypt_vote(secret, vote) if isinstance(vote, str) else None)


def _count(election: Election, read: Read) -> ElectionResult:
    counts = {question.id: [0] * len(question.ballot_options) for question in election.setup.questions}
    for vote in _votes(election):
        options = counts.get(vote.question)
        index = read(vote.vote)
        if options is not None and index is not None and index < len(options):
            options[index] += 1
    return ElectionResult(questions=[_result(question, counts[question.id]) for question in election.setup.questions])


def _result(question: Question, counts: list[int]) -> QuestionResult:
    pairs = zip(question.ballot_options, counts, strict=True)
    return QuestionResult(id=question.id, result=[OptionCount(ballot_option=name, count=n) for name, n in pairs])


def _votes(election: Election) -> Iterable[Vote]:
    return (vote for cast in election.votes.values() for vote in cast.votes)


def differences(counted: ElectionResult, announced: ElectionResult) -> list[tuple[str, str, int, int]]:
    """Where an announced result is not what was counted: question, option, counted, announced (-1: not announced)."""
    said = {(each.id, option.ballot_option): option.count for each in announced.questions for option in each.result}
    found = []
    for question in counted.questions:
        for option in question.result:
            there = said.get((question.id, option.ballot_option), -1)
            if there != option.count:
                found.append((question.id, option.ballot_option, option.count, there))
    return found
