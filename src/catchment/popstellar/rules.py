"""Who may do what, when, and what it changes: one rule for every object#action (facts/popstellar.md, section 2).

A rule looks first and changes last: it raises before anything has changed. What a message proves by itself (ids,
signatures, order of its own times) has been checked before (`wire/popstellar/data.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from catchment.popstellar import election_rules
from catchment.popstellar.guards import data_of, require_attendee, require_elder, require_organizer, require_server
from catchment.popstellar.steps import NOTHING, Greet, Missing, Notify, Outcome, Step
from catchment.popstellar.values import Post, RollCall, RollCallState, Source, new_lao
from catchment.wire.popstellar import channels
from catchment.wire.popstellar.consensus import ConsensusElect
from catchment.wire.popstellar.fields import ErrorCode, fault, require
from catchment.wire.popstellar.message import WitnessSignature
from catchment.wire.popstellar.organization import (
    LaoCreate,
    LaoGreet,
    LaoState,
    LaoUpdate,
    MeetingCreate,
    MeetingState,
    MessageWitness,
)
from catchment.wire.popstellar.rollcall import RollCallClose, RollCallCreate, RollCallOpen
from catchment.wire.popstellar.social import ChirpAdd, ChirpDelete, ChirpNotify, ReactionAdd, ReactionDelete

if TYPE_CHECKING:
    from catchment.popstellar.state import State

Rule: TypeAlias = "Callable[[State, Step], Outcome]"


# The LAO itself.


def lao_create(state: State, step: Step) -> Outcome:
    """Its sender organizes it; it brings its channels."""
    data = data_of(step, LaoCreate)
    if step.sender != data.organizer:
        raise fault("organizer: a LAO is created by its organizer.", ErrorCode.ACCESS_DENIED)
    if data.id in state.laos:
        raise fault(f"The LAO {data.id} exists already.", ErrorCode.ALREADY_EXISTS)
    state.journal.put(state.laos, data.id, new_lao(data))
    own = channels.of_lao(data.id)
    rooms = tuple(channels.of_room(data.id, room) for room in channels.LAO_ROOMS)
    return Outcome(also_on=(own,), creates=(own, *rooms), orders=(Greet(data.id),))


def lao_update(state: State, step: Step) -> Outcome:
    """The organizer proposes; the witnesses' signatures make it a state."""
    data = data_of(step, LaoUpdate)
    require_organizer(step)
    require(data.last_modified >= step.lao.last_modified, "last_modified: earlier than the last modification.")
    state.journal.put(step.lao.updates, step.message_id, data)
    return NOTHING


def lao_state(state: State, step: Step) -> Outcome:
    """An update that every witness signed takes effect."""
    data, lao = data_of(step, LaoState), step.lao
    require_organizer(step)
    update = lao.updates.get(data.modification_id)
    if update is None:
        raise Missing("modification_id: no update of this LAO has this id.")
    same = (data.name, data.last_modified, data.witnesses) == (update.name, update.last_modified, update.witnesses)
    require(same, "name, last_modified, witnesses: not those of the update.")
    require(
        (data.creation, data.organizer) == (lao.creation, lao.organizer), "creation, organizer: not those of the LAO."
    )
    signed = {each.witness for each in data.modification_signatures}
    require(set(lao.witnesses) <= signed, "modification_signatures: not every witness has signed.")
    state.journal.set(lao, "name", data.name)
    state.journal.set(lao, "witnesses", tuple(data.witnesses))
    state.journal.set(lao, "last_modified", data.last_modified)
    return NOTHING


def lao_greet(state: State, step: Step) -> Outcome:
    """A server says where it is. Clients may not bring a new one: whoever greets may announce results."""
    data = data_of(step, LaoGreet)
    if step.source is Source.CLIENT and step.sender not in step.lao.servers:
        raise fault("Only a server may greet.", ErrorCode.ACCESS_DENIED)
    require(data.frontend == step.lao.organizer, "frontend: not the organizer of the LAO.")
    state.journal.put(step.lao.servers, step.sender, data.address)
    return NOTHING


def message_witness(state: State, step: Step) -> Outcome:
    """The signature joins those of the message it names."""
    data = data_of(step, MessageWitness)
    require_elder(step)
    if state.lao_of(data.message_id) is not step.lao:
        raise Missing("message_id: no message of this LAO has this id.")
    if state.has_witnessed(data.message_id, step.sender):
        raise fault("This message has this witness' signature already.", ErrorCode.ALREADY_EXISTS)
    state.witness(data.message_id, WitnessSignature(step.sender, data.signature))
    return NOTHING


def meeting_create(state: State, step: Step) -> Outcome:
    """The organizer announces it."""
    data = data_of(step, MeetingCreate)
    require_organizer(step)
    if data.id in step.lao.meetings:
        raise fault(f"The meeting {data.id} exists already.", ErrorCode.ALREADY_EXISTS)
    state.journal.put(step.lao.meetings, data.id, data.creation)
    return NOTHING


def meeting_state(state: State, step: Step) -> Outcome:
    """It is about a meeting that was created, and signed by witnesses of the LAO."""
    data = data_of(step, MeetingState)
    require_organizer(step)
    creation = step.lao.meetings.get(data.id)
    if creation is None:
        raise Missing("id: no meeting of this LAO has this id.")
    require(data.creation == creation, "creation: not that of the meeting.")
    signed = {each.witness for each in data.modification_signatures}
    require(signed <= set(step.lao.witnesses), "modification_signatures: of somebody who is no witness of the LAO.")
    return NOTHING


# Roll calls: created, opened, closed, reopened; one open at a time.


def roll_call_create(state: State, step: Step) -> Outcome:
    """The organizer announces it."""
    data = data_of(step, RollCallCreate)
    require_organizer(step)
    if data.id in step.lao.roll_calls:
        raise fault(f"The roll call {data.id} exists already.", ErrorCode.ALREADY_EXISTS)
    made = RollCall(data.id, data.name, data.creation, RollCallState.CREATED, data.id)
    state.journal.put(step.lao.roll_calls, data.id, made)
    state.journal.put(step.lao.roll_call_updates, data.id, data.id)
    return NOTHING


def roll_call_open(state: State, step: Step) -> Outcome:
    """`opens` is the roll call, or for a reopening its last closing."""
    data, lao = data_of(step, RollCallOpen), step.lao
    require_organizer(step)
    expected = RollCallState.CREATED if data.action == "open" else RollCallState.CLOSED
    roll_call = _roll_call(step, "opens", data.opens, expected)
    if lao.open_roll_call:
        raise fault("Another roll call is open.", ErrorCode.INVALID_ACTION)
    earliest = roll_call.created_at if data.action == "open" else roll_call.closed_at
    require(data.opened_at >= earliest, "opened_at: earlier than what it opens.")
    state.journal.set(roll_call, "opened_at", data.opened_at)
    _update(state, step, roll_call, data.update_id, RollCallState.OPENED)
    state.journal.set(lao, "open_roll_call", roll_call.id)
    return NOTHING


def roll_call_close(state: State, step: Step) -> Outcome:
    """Its attendees are those of the LAO from now on, each with a channel."""
    data, lao = data_of(step, RollCallClose), step.lao
    require_organizer(step)
    roll_call = _roll_call(step, "closes", data.closes, RollCallState.OPENED)
    require(data.closed_at >= roll_call.opened_at, "closed_at: earlier than the opening.")
    rooms = [channels.of_attendee(lao.id, token) for token in data.attendees]
    known = [channels.parse(room) for room in rooms]
    for number, place in enumerate(known):
        attendee = place is not None and place.room is channels.Room.SOCIAL
        require(attendee, f"attendees[{number}]: no channel can have this name.")
    state.journal.set(roll_call, "closed_at", data.closed_at)
    state.journal.set(roll_call, "attendees", tuple(data.attendees))
    _update(state, step, roll_call, data.update_id, RollCallState.CLOSED)
    state.journal.set(lao, "open_roll_call", "")
    state.journal.set(lao, "attendees", frozenset(data.attendees))
    state.journal.set(lao, "attended", lao.attended.union(data.attendees))
    return Outcome(creates=tuple(room for room in rooms if room not in state.channels))


def _roll_call(step: Step, name: str, update_id: str, expected: RollCallState) -> RollCall:
    found = step.lao.roll_call_updates.get(update_id)
    if found is None:
        raise Missing(f"{name}: no roll call of this LAO has this id.")
    roll_call = step.lao.roll_calls[found]
    if roll_call.state is not expected:
        text = f"The roll call is {roll_call.state.value}, not {expected.value}."
        raise fault(text, ErrorCode.INVALID_ACTION)
    require(roll_call.last_id == update_id, f"{name}: not the last update of the roll call.")
    return roll_call


def _update(state: State, step: Step, roll_call: RollCall, update_id: str, new: RollCallState) -> None:
    state.journal.set(roll_call, "state", new)
    state.journal.set(roll_call, "last_id", update_id)
    state.journal.put(step.lao.roll_call_updates, update_id, roll_call.id)


# The social part.


def _require_owner(step: Step) -> None:
    if step.sender != step.place.subject:
        raise fault("Only the owner of this channel may do this.", ErrorCode.ACCESS_DENIED)


def chirp_add(state: State, step: Step) -> Outcome:
    """On its author's own channel; the server tells everyone."""
    data = data_of(step, ChirpAdd)
    _require_owner(step)
    state.journal.put(step.lao.chirps, step.message_id, Post(step.sender))
    told = Notify(step.lao.id, "notify_add", step.message_id, step.channel, data.timestamp)
    return Outcome(orders=(told,))


def chirp_delete(state: State, step: Step) -> Outcome:
    """Its author takes it back; the server tells everyone."""
    data = data_of(step, ChirpDelete)
    _require_owner(step)
    chirp = step.lao.chirps.get(data.chirp_id)
    if chirp is None:
        raise Missing("chirp_id: no chirp of this LAO has this id.")
    _delete(state, step, chirp)
    told = Notify(step.lao.id, "notify_delete", data.chirp_id, step.channel, data.timestamp)
    return Outcome(orders=(told,))


def chirp_notify(state: State, step: Step) -> Outcome:
    """A server's note of a chirp that is here."""
    data = data_of(step, ChirpNotify)
    require_server(step)
    if data.chirp_id not in step.lao.chirps:
        raise Missing("chirp_id: no chirp of this LAO has this id.")
    return NOTHING


def reaction_add(state: State, step: Step) -> Outcome:
    """An attendee reacts to a chirp."""
    data = data_of(step, ReactionAdd)
    require_attendee(step)
    chirp = step.lao.chirps.get(data.chirp_id)
    if chirp is None:
        raise Missing("chirp_id: no chirp of this LAO has this id.")
    if chirp.deleted and step.source is Source.CLIENT:
        raise fault("The chirp has been deleted.", ErrorCode.INVALID_ACTION)
    state.journal.put(step.lao.reactions, step.message_id, Post(step.sender))
    return NOTHING


def reaction_delete(state: State, step: Step) -> Outcome:
    """Whoever reacted takes it back."""
    data = data_of(step, ReactionDelete)
    require_attendee(step)
    reaction = step.lao.reactions.get(data.reaction_id)
    if reaction is None:
        raise Missing("reaction_id: no reaction of this LAO has this id.")
    _delete(state, step, reaction)
    return NOTHING


def _delete(state: State, step: Step, post: Post) -> None:
    if post.sender != step.sender:
        raise fault("Only its author may delete it.", ErrorCode.ACCESS_DENIED)
    if post.deleted:
        raise fault("It has been deleted already.", ErrorCode.INVALID_ACTION)
    state.journal.set(post, "deleted", True)


# The rest.


def coin_post_transaction(state: State, step: Step) -> Outcome:
    """Anyone may whose transaction proves itself."""
    return NOTHING


def popcha_authenticate(state: State, step: Step) -> Outcome:
    """An attendee proves a token."""
    require_attendee(step)
    return NOTHING


def consensus_elect(state: State, step: Step) -> Outcome:
    """Organizer and witnesses propose."""
    data = data_of(step, ConsensusElect)
    require_elder(step)
    state.journal.put(step.lao.consensus, step.message_id, data.instance_id)
    return NOTHING


def consensus_follow(state: State, step: Step) -> Outcome:
    """Every other step names the elect message it is about, and its instance."""
    require_elder(step)
    named: str = step.data.message_id  # type: ignore[attr-defined]  # all of them have both
    instance: str = step.data.instance_id  # type: ignore[attr-defined]
    elected = step.lao.consensus.get(named)
    if elected is None:
        raise Missing("message_id: no consensus of this LAO was proposed by this message.")
    require(elected == instance, "instance_id: not that of the proposal.")
    return NOTHING


RULES: Final[Mapping[str, Rule]] = {
    "lao#create": lao_create,
    "lao#update_properties": lao_update,
    "lao#state": lao_state,
    "lao#greet": lao_greet,
    "message#witness": message_witness,
    "meeting#create": meeting_create,
    "meeting#state": meeting_state,
    "roll_call#create": roll_call_create,
    "roll_call#open": roll_call_open,
    "roll_call#reopen": roll_call_open,
    "roll_call#close": roll_call_close,
    "chirp#add": chirp_add,
    "chirp#delete": chirp_delete,
    "chirp#notify_add": chirp_notify,
    "chirp#notify_delete": chirp_notify,
    "reaction#add": reaction_add,
    "reaction#delete": reaction_delete,
    "coin#post_transaction": coin_post_transaction,
    "popcha#authenticate": popcha_authenticate,
    "consensus#elect": consensus_elect,
    "consensus#elect_accept": consensus_follow,
    "consensus#prepare": consensus_follow,
    "consensus#promise": consensus_follow,
    "consensus#propose": consensus_follow,
    "consensus#accept": consensus_follow,
    "consensus#learn": consensus_follow,
    "consensus#failure": consensus_follow,
    "election#setup": election_rules.setup,
    "election#key": election_rules.key,
    "election#open": election_rules.open_election,
    "election#cast_vote": election_rules.cast_vote,
    "election#end": election_rules.end,
    "election#result": election_rules.result,
}
"""What is not here (federation#...) is taken by no channel."""
