"""Elections: setup, key, open, votes, end, result (facts/popstellar.md, section 2, "State")."""

from __future__ import annotations

from typing import TYPE_CHECKING

from catchment.crypto import elgamal
from catchment.popstellar import tally
from catchment.popstellar.guards import data_of, require_organizer, require_server
from catchment.popstellar.steps import NOTHING, Announce, MakeKey, Missing, Outcome, Step
from catchment.popstellar.values import Election, ElectionState, Source
from catchment.wire.popstellar import channels
from catchment.wire.popstellar.election import (
    SECRET_BALLOT,
    CastVote,
    ElectionEnd,
    ElectionKey,
    ElectionOpen,
    ElectionResult,
    ElectionSetup,
    Question,
    Vote,
)
from catchment.wire.popstellar.fields import ErrorCode, decode_base64, fault, require

if TYPE_CHECKING:
    from catchment.popstellar.state import State


def setup(state: State, step: Step) -> Outcome:
    """The organizer announces it; it brings a channel, where it stands too."""
    data, lao = data_of(step, ElectionSetup), step.lao
    require_organizer(step)
    own = channels.of_election(lao.id, data.id)
    if data.id in lao.elections or own in state.channels:
        raise fault(f"The election {data.id} exists already.", ErrorCode.ALREADY_EXISTS)
    state.journal.put(lao.elections, data.id, Election(data, ElectionState.SETUP, {}, {}))
    orders = (MakeKey(lao.id, data.id),) if data.version == SECRET_BALLOT else ()
    return Outcome(also_on=(own,), creates=(own,), orders=orders)


def key(state: State, step: Step) -> Outcome:
    """A server says with what ballots are encrypted; once."""
    data, election = data_of(step, ElectionKey), _election(step)
    require_server(step)
    if election.setup.version != SECRET_BALLOT:
        raise fault("An open ballot has no key.", ErrorCode.INVALID_ACTION)
    if election.key:
        raise fault("The election has its key already.", ErrorCode.ALREADY_EXISTS)
    state.journal.set(election, "key", data.election_key)
    state.journal.set(election, "key_sender", step.sender)
    return NOTHING


def open_election(state: State, step: Step) -> Outcome:
    """The organizer opens it."""
    data, election = data_of(step, ElectionOpen), _election(step)
    require_organizer(step)
    _require_state(election, ElectionState.SETUP)
    require(data.opened_at >= election.setup.created_at, "opened_at: earlier than the election was created.")
    state.journal.set(election, "state", ElectionState.OPEN)
    state.journal.set(election, "opened_at", data.opened_at)
    return NOTHING


def cast_vote(state: State, step: Step) -> Outcome:
    """Attendees of the last roll call and the organizer vote while it is open; the last vote of each counts.

    A vote that another server took before the end reached it is kept here after the end, and not counted.
    """
    data, election = data_of(step, CastVote), _election(step)
    if step.sender != step.lao.organizer and not step.lao.may_act(step.sender, step.source):
        raise fault("Only attendees of the last roll call and the organizer may vote.", ErrorCode.ACCESS_DENIED)
    late = election.state is ElectionState.ENDED and step.source is not Source.CLIENT
    if not late:
        _require_state(election, ElectionState.OPEN)
    require(data.created_at >= election.setup.created_at, "created_at: earlier than the election was created.")
    questions = {question.id: question for question in election.setup.questions}
    for number, vote in enumerate(data.votes):
        where = f"votes[{number}]"
        question = questions.get(vote.question)
        require(question is not None, f"{where}.question: not a question of this election.")
        assert question is not None
        _check_vote(election, question, vote, where)
    before = election.votes.get(step.sender)
    if not late and (before is None or data.created_at >= before.created_at):
        state.journal.put(election.votes, step.sender, data)
    return NOTHING


def _check_vote(election: Election, question: Question, vote: Vote, where: str) -> None:
    if election.setup.version == SECRET_BALLOT:
        encrypted = isinstance(vote.vote, str) and len(decode_base64(vote.vote)) == elgamal.CIPHERTEXT_BYTES
        require(encrypted, f"{where}.vote: a secret ballot takes an encrypted vote of 64 bytes.")
    else:
        index = isinstance(vote.vote, int) and vote.vote < len(question.ballot_options)
        require(index, f"{where}.vote: an open ballot takes the index of one of its options.")


def end(state: State, step: Step) -> Outcome:
    """The organizer ends it, and names the votes it has seen; an empty name is not compared.

    From another server it waits for votes that may be on their way. One that came too late there never comes, so in
    the end it is taken all the same.
    """
    data, election = data_of(step, ElectionEnd), _election(step)
    require_organizer(step)
    _require_state(election, ElectionState.OPEN)
    require(data.created_at >= election.opened_at, "created_at: earlier than the opening.")
    known = data.registered_votes in ("", tally.registered_votes(election))
    if not known and step.source in (Source.CLIENT, Source.PEER):
        raise Missing("registered_votes: not the hash of the votes this server has.")
    state.journal.set(election, "state", ElectionState.ENDED)
    return Outcome(orders=(Announce(step.lao.id, step.place.subject),))


def result(state: State, step: Step) -> Outcome:
    """A server says what it counted, once. Whether it is true is for the recount."""
    data, election = data_of(step, ElectionResult), _election(step)
    require_server(step)
    _require_state(election, ElectionState.ENDED)
    if step.sender in election.results:
        raise fault("This server has announced its result already.", ErrorCode.ALREADY_EXISTS)
    options = {question.id: set(question.ballot_options) for question in election.setup.questions}
    for number, question in enumerate(data.questions):
        known = {each.ballot_option for each in question.result} <= options.get(question.id, set())
        require(known, f"questions[{number}]: not a question of this election, or not its options.")
    state.journal.put(election.results, step.sender, data)
    return NOTHING


def _election(step: Step) -> Election:
    return step.lao.elections[step.place.subject]


def _require_state(election: Election, expected: ElectionState) -> None:
    if election.state is not expected:
        text = f"The election's state is {election.state.value}, not {expected.value}."
        raise fault(text, ErrorCode.INVALID_ACTION)
