"""Message data, the high level: one table of every object#action (facts/popstellar.md, section 1).

The values and their rules stand in the modules by subject; a row of `KINDS` names the value, the kind of channel that
takes it, the rule that no single field shows, and the field with the time the sender claims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from catchment.wire.popstellar import coin, consensus, election, federation, organization, rollcall, social
from catchment.wire.popstellar.channels import Place, Room
from catchment.wire.popstellar.fields import Reader, fault

Data: TypeAlias = msgspec.Struct
"""One of the values of `KINDS`."""

Check: TypeAlias = Callable[[Any, Place, str], None]
"""Given the data, the channel and the sender; raises PeerFault. Any: each takes its own row's value."""


class Kind(msgspec.Struct, frozen=True):
    """A row: what a kind of data is made of."""

    value: type[msgspec.Struct]
    room: Room
    """The only kind of channel that takes it (facts/popstellar.md, section 2, "Who")."""
    check: Check | None = None
    time: str = ""
    """The field with its time in seconds; empty where the data names none."""


class _Head(msgspec.Struct):
    """The two fields that say what the rest is."""

    object: str
    action: str


KINDS: Final[Mapping[str, Kind]] = {
    "lao#create": Kind(organization.LaoCreate, Room.ROOT, organization.check_lao_create, "creation"),
    "lao#update_properties": Kind(organization.LaoUpdate, Room.LAO, organization.check_lao_update, "last_modified"),
    "lao#state": Kind(organization.LaoState, Room.LAO, organization.check_lao_state, "last_modified"),
    "lao#greet": Kind(organization.LaoGreet, Room.LAO, organization.check_lao_greet),
    "message#witness": Kind(organization.MessageWitness, Room.LAO, organization.check_message_witness),
    "meeting#create": Kind(organization.MeetingCreate, Room.LAO, organization.check_meeting_create, "creation"),
    "meeting#state": Kind(organization.MeetingState, Room.LAO, organization.check_meeting_state, "last_modified"),
    "roll_call#create": Kind(rollcall.RollCallCreate, Room.LAO, rollcall.check_create, "creation"),
    "roll_call#open": Kind(rollcall.RollCallOpen, Room.LAO, rollcall.check_open, "opened_at"),
    "roll_call#reopen": Kind(rollcall.RollCallOpen, Room.LAO, rollcall.check_open, "opened_at"),
    "roll_call#close": Kind(rollcall.RollCallClose, Room.LAO, rollcall.check_close, "closed_at"),
    "election#setup": Kind(election.ElectionSetup, Room.LAO, election.check_setup, "created_at"),
    "election#key": Kind(election.ElectionKey, Room.ELECTION, election.check_key),
    "election#open": Kind(election.ElectionOpen, Room.ELECTION, election.check_open, "opened_at"),
    "election#cast_vote": Kind(election.CastVote, Room.ELECTION, election.check_cast_vote, "created_at"),
    "election#end": Kind(election.ElectionEnd, Room.ELECTION, election.check_end, "created_at"),
    "election#result": Kind(election.ElectionResult, Room.ELECTION, election.check_result),
    "chirp#add": Kind(social.ChirpAdd, Room.SOCIAL, social.check_chirp_add, "timestamp"),
    "chirp#delete": Kind(social.ChirpDelete, Room.SOCIAL, None, "timestamp"),
    "chirp#notify_add": Kind(social.ChirpNotify, Room.CHIRPS, social.check_chirp_notify, "timestamp"),
    "chirp#notify_delete": Kind(social.ChirpNotify, Room.CHIRPS, social.check_chirp_notify, "timestamp"),
    "reaction#add": Kind(social.ReactionAdd, Room.REACTIONS, social.check_reaction_add, "timestamp"),
    "reaction#delete": Kind(social.ReactionDelete, Room.REACTIONS, None, "timestamp"),
    "coin#post_transaction": Kind(coin.PostTransaction, Room.COIN, coin.check_post_transaction),
    "popcha#authenticate": Kind(organization.Authenticate, Room.AUTHENTICATION, organization.check_authenticate),
    "consensus#elect": Kind(consensus.ConsensusElect, Room.CONSENSUS, consensus.check_elect, "created_at"),
    "consensus#elect_accept": Kind(consensus.ConsensusElectAccept, Room.CONSENSUS),
    "consensus#prepare": Kind(consensus.ConsensusPrepare, Room.CONSENSUS, None, "created_at"),
    "consensus#promise": Kind(consensus.ConsensusPromise, Room.CONSENSUS, None, "created_at"),
    "consensus#propose": Kind(consensus.ConsensusPropose, Room.CONSENSUS, None, "created_at"),
    "consensus#accept": Kind(consensus.ConsensusAccept, Room.CONSENSUS, None, "created_at"),
    "consensus#learn": Kind(consensus.ConsensusLearn, Room.CONSENSUS, None, "created_at"),
    "consensus#failure": Kind(consensus.ConsensusFailure, Room.CONSENSUS, None, "created_at"),
    "federation#challenge_request": Kind(federation.ChallengeRequest, Room.FEDERATION, None, "timestamp"),
    "federation#challenge": Kind(federation.FederationChallenge, Room.FEDERATION),
    "federation#expect": Kind(federation.FederationTie, Room.FEDERATION),
    "federation#init": Kind(federation.FederationTie, Room.FEDERATION),
    "federation#result": Kind(federation.FederationResult, Room.FEDERATION, federation.check_result),
    "federation#tokens_exchange": Kind(
        federation.TokensExchange, Room.FEDERATION, federation.check_tokens_exchange, "timestamp"
    ),
}

_head = Reader(_Head, "data")
_readers: Final = {name: Reader(kind.value, f"data, {name}") for name, kind in KINDS.items()}
_encode = msgspec.json.Encoder().encode


def name_of(data: Data) -> str:
    """The object#action of a value."""
    return f"{data.object}#{data.action}"  # type: ignore[attr-defined]  # every value of KINDS has both


def decode(raw: bytes) -> Data:
    """Read the decoded data of a message.

    Raises:
        PeerFault: not JSON, an unknown object#action, or a field is not what its schema says; the text names it.
    """
    head = _head.read(raw)
    name = f"{head.object}#{head.action}"
    reader = _readers.get(name)
    if reader is None:
        raise fault(f"data: unknown object and action {name[:100]!r}.")
    return reader.read(raw)


def encode(data: Data) -> bytes:
    """The JSON of a value, to be signed."""
    return _encode(data)


def check(data: Data, place: Place, sender: str) -> None:
    """What can be told from the data, its channel and its sender alone; the channel must be of the data's kind.

    Raises:
        PeerFault: an id is not its formula's, a time, a signature inside or a sum is wrong.
    """
    rule = KINDS[name_of(data)].check
    if rule is not None:
        rule(data, place, sender)


def time_of(data: Data) -> int:
    """The seconds the sender claims; 0 where the data names no time."""
    attribute = KINDS[name_of(data)].time
    return int(getattr(data, attribute)) if attribute else 0
