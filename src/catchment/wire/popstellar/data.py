"""Message data, the high level: one table of every object#action (facts/popstellar.md, section 1).

The values and their rules stand in the modules by subject; a row of `KINDS` names the value, the rule that no single
field shows, and the field with the time the sender claims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from catchment.wire.popstellar import coin, consensus, election, federation, organization, rollcall, social
from catchment.wire.popstellar.channels import Place
from catchment.wire.popstellar.fields import Reader, fault

Data: TypeAlias = msgspec.Struct
"""One of the values of `KINDS`."""

Check: TypeAlias = Callable[[Any, Place, str], None]
"""Given the data, the channel and the sender; raises PeerFault. Any: each takes its own row's value."""


class Kind(msgspec.Struct, frozen=True):
    """A row: what a kind of data is made of."""

    value: type[msgspec.Struct]
    check: Check | None = None
    time: str = ""
    """The field with its time in seconds; empty where the data names none."""


class _Head(msgspec.Struct):
    """The two fields that say what the rest is."""

    object: str
    action: str


KINDS: Final[Mapping[str, Kind]] = {
    "lao#create": Kind(organization.LaoCreate, organization.check_lao_create, "creation"),
    "lao#update_properties": Kind(organization.LaoUpdate, organization.check_lao_update, "last_modified"),
    "lao#state": Kind(organization.LaoState, organization.check_lao_state, "last_modified"),
    "lao#greet": Kind(organization.LaoGreet, organization.check_lao_greet),
    "message#witness": Kind(organization.MessageWitness, organization.check_message_witness),
    "meeting#create": Kind(organization.MeetingCreate, organization.check_meeting_create, "creation"),
    "meeting#state": Kind(organization.MeetingState, organization.check_meeting_state, "last_modified"),
    "roll_call#create": Kind(rollcall.RollCallCreate, rollcall.check_create, "creation"),
    "roll_call#open": Kind(rollcall.RollCallOpen, rollcall.check_open, "opened_at"),
    "roll_call#reopen": Kind(rollcall.RollCallOpen, rollcall.check_open, "opened_at"),
    "roll_call#close": Kind(rollcall.RollCallClose, rollcall.check_close, "closed_at"),
    "election#setup": Kind(election.ElectionSetup, election.check_setup, "created_at"),
    "election#key": Kind(election.ElectionKey, election.check_key),
    "election#open": Kind(election.ElectionOpen, election.check_open, "opened_at"),
    "election#cast_vote": Kind(election.CastVote, election.check_cast_vote, "created_at"),
    "election#end": Kind(election.ElectionEnd, election.check_end, "created_at"),
    "election#result": Kind(election.ElectionResult, election.check_result),
    "chirp#add": Kind(social.ChirpAdd, social.check_chirp_add, "timestamp"),
    "chirp#delete": Kind(social.ChirpDelete, None, "timestamp"),
    "chirp#notify_add": Kind(social.ChirpNotify, social.check_chirp_notify, "timestamp"),
    "chirp#notify_delete": Kind(social.ChirpNotify, social.check_chirp_notify, "timestamp"),
    "reaction#add": Kind(social.ReactionAdd, social.check_reaction_add, "timestamp"),
    "reaction#delete": Kind(social.ReactionDelete, None, "timestamp"),
    "coin#post_transaction": Kind(coin.PostTransaction, coin.check_post_transaction),
    "popcha#authenticate": Kind(organization.Authenticate, organization.check_authenticate),
    "consensus#elect": Kind(consensus.ConsensusElect, consensus.check_elect, "created_at"),
    "consensus#elect_accept": Kind(consensus.ConsensusElectAccept),
    "consensus#prepare": Kind(consensus.ConsensusPrepare, None, "created_at"),
    "consensus#promise": Kind(consensus.ConsensusPromise, None, "created_at"),
    "consensus#propose": Kind(consensus.ConsensusPropose, None, "created_at"),
    "consensus#accept": Kind(consensus.ConsensusAccept, None, "created_at"),
    "consensus#learn": Kind(consensus.ConsensusLearn, None, "created_at"),
    "consensus#failure": Kind(consensus.ConsensusFailure, None, "created_at"),
    "federation#challenge_request": Kind(federation.ChallengeRequest, None, "timestamp"),
    "federation#challenge": Kind(federation.FederationChallenge),
    "federation#expect": Kind(federation.FederationTie),
    "federation#init": Kind(federation.FederationTie),
    "federation#result": Kind(federation.FederationResult, federation.check_result),
    "federation#tokens_exchange": Kind(federation.TokensExchange, federation.check_tokens_exchange, "timestamp"),
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
    """What can be told from the data, its channel and its sender alone.

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
