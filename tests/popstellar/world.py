"""A small world of PoPStellar: people with keys, a server, and what they say to it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from catchment import model
from catchment.core.broker import Publish
from catchment.crypto.ed25519 import Signer
from catchment.errors import PeerFault
from catchment.popstellar.hub import Hub
from catchment.popstellar.values import Source
from catchment.store.memory import MemoryStore
from catchment.wire.popstellar import channels, data, election, ids, message, organization, rollcall, social
from catchment.wire.popstellar.fields import encode_base64
from catchment.wire.popstellar.message import Message
from catchment.wire.popstellar.submission import read

NOW = 1_700_000_000_000_000
TIME = 1_700_000_000

PEOPLE = ("organizer", "witness", "second witness", "attendee", "other attendee", "stranger", "server", "peer server")
PRIVATE = {name: hashlib.sha256(f"catchment test key: {name}".encode()).digest() for name in PEOPLE}
SIGNERS = {name: Signer(key) for name, key in PRIVATE.items()}
KEYS = {name: encode_base64(signer.public) for name, signer in SIGNERS.items()}


def signed(who: str, value: msgspec.Struct | dict[str, Any]) -> Message:
    """A message of somebody."""
    raw = msgspec.json.encode(value)
    return message.sign(raw, SIGNERS[who])


def witnessed(sent: Message, *names: str) -> Message:
    """A message with the signatures of these witnesses."""
    made = [
        message.WitnessSignature(KEYS[name], encode_base64(SIGNERS[name].sign(message.key_bytes(sent.message_id))))
        for name in names
    ]
    return msgspec.structs.replace(sent, witness_signatures=[*sent.witness_signatures, *made])


def lao_create(name: str = "LAO", *, organizer: str = "organizer", witnesses: Sequence[str] = ("witness",)) -> Any:
    key = KEYS[organizer]
    return organization.LaoCreate(
        id=ids.lao_id(key, TIME, name),
        name=name,
        creation=TIME,
        organizer=key,
        witnesses=[KEYS[each] for each in witnesses],
    )


LAO = lao_create().id
OWN = channels.of_lao(LAO)
ELECTION = ids.election_id(LAO, TIME + 100, "vote")
BALLOT = channels.of_election(LAO, ELECTION)
QUESTION = ids.question_id(ELECTION, "Which?")
CHIRPS = channels.of_room(LAO, channels.Room.CHIRPS)
REACTIONS = channels.of_room(LAO, channels.Room.REACTIONS)
TOKEN = channels.of_attendee(LAO, KEYS["attendee"])


def roll_call_create(name: str = "roll call") -> rollcall.RollCallCreate:
    return rollcall.RollCallCreate(
        id=ids.roll_call_id(LAO, TIME + 1, name),
        name=name,
        creation=TIME + 1,
        proposed_start=TIME + 2,
        proposed_end=TIME + 3,
        location="here",
    )


ROLL_CALL = roll_call_create().id


def roll_call_open(opens: str = ROLL_CALL, at: int = TIME + 10, action: Any = "open") -> rollcall.RollCallOpen:
    update = ids.roll_call_update_id(LAO, opens, at)
    return rollcall.RollCallOpen(action=action, update_id=update, opens=opens, opened_at=at)


OPENED = roll_call_open().update_id


def roll_call_close(
    closes: str = OPENED, at: int = TIME + 20, attendees: Sequence[str] = ("attendee", "other attendee")
) -> rollcall.RollCallClose:
    update = ids.roll_call_update_id(LAO, closes, at)
    keys = [KEYS[each] for each in attendees]
    return rollcall.RollCallClose(update_id=update, closes=closes, closed_at=at, attendees=keys)


CLOSED = roll_call_close().update_id


def setup(version: Any = election.OPEN_BALLOT) -> election.ElectionSetup:
    question = election.Question(
        id=QUESTION, question="Which?", voting_method="Plurality", ballot_options=["this", "that"], write_in=False
    )
    return election.ElectionSetup(
        version=version,
        id=ELECTION,
        lao=LAO,
        name="vote",
        created_at=TIME + 100,
        start_time=TIME + 101,
        end_time=TIME + 200,
        questions=[question],
    )


def election_open(at: int = TIME + 110) -> election.ElectionOpen:
    return election.ElectionOpen(lao=LAO, election=ELECTION, opened_at=at)


def vote(answer: int | str, at: int = TIME + 120, *, question: str = QUESTION) -> election.CastVote:
    made = election.Vote(id=ids.vote_id(ELECTION, question, answer), question=question, vote=answer)
    return election.CastVote(lao=LAO, election=ELECTION, created_at=at, votes=[made])


def election_end(*votes: election.CastVote, at: int = TIME + 200, registered: str | None = None) -> Any:
    if registered is None:
        registered = ids.registered_votes(each.id for cast in votes for each in cast.votes)
    return election.ElectionEnd(lao=LAO, election=ELECTION, created_at=at, registered_votes=registered)


def result(this: int, that: int) -> election.ElectionResult:
    counts = [election.OptionCount(ballot_option=name, count=count) for name, count in (("this", this), ("that", that))]
    return election.ElectionResult(questions=[election.QuestionResult(id=QUESTION, result=counts)])


def greet(lao: str = LAO) -> organization.LaoGreet:
    return organization.LaoGreet(lao=lao, frontend=KEYS["organizer"], address="ws://peer.example/client", peers=[])


def chirp(text: str = "hello", at: int = TIME + 300) -> social.ChirpAdd:
    return social.ChirpAdd(text=text, timestamp=at)


class World:
    """A server and what was said to it."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.hub = Hub(PRIVATE["server"], self.store, address="ws://here.example/client")
        self.log: list[model.Entry] = []
        self.sent: list[Message] = []
        self.said: list[data.Data] = []
        """By the server itself, after the last message."""

    @property
    def state(self) -> Any:
        return self.hub.state

    def bring(self, sent: Message, channel: str, source: Source = Source.CLIENT, *, stored: bool = True) -> int:
        """A message comes to the server as the broker shows it; returns 0 or the error code."""
        try:
            submission = read(channel, message.encode(sent))
            publish = self.hub.publish("1", submission, source, NOW)
            assert publish.check is not None
            verdict = publish.check()
            if not verdict.accepted:
                return -4
            following = self.hub.admit(publish, NOW)
        except PeerFault as fault:
            self.hub.settle(stored=True)
            return int(fault.code)
        self.hub.settle(stored=stored)
        if following is None:
            return -3
        if stored:
            entries = [publish.entry, *(each.entry for each in following)]
            self.log += entries
            self.store.append(entries)
        self.said = [self._data(each) for each in following if each.entry.kind is model.Kind.MESSAGE]
        return 0

    @staticmethod
    def _data(publish: Publish) -> data.Data:
        found = message.decode(publish.entry.raw)
        assert message.judge(found) is model.Verdict.OK
        return data.decode(message.key_bytes(found.data))

    def send(
        self, who: str, channel: str, value: msgspec.Struct | dict[str, Any], source: Source = Source.CLIENT
    ) -> int:
        """Somebody publishes."""
        sent = signed(who, value)
        self.sent.append(sent)
        return self.bring(sent, channel, source)

    def last_id(self) -> str:
        """The id of the message sent last."""
        return self.sent[-1].message_id

    def ok(self, who: str, channel: str, value: msgspec.Struct | dict[str, Any]) -> str:
        """Somebody publishes what must be accepted; returns its message id."""
        assert self.send(who, channel, value) == 0
        return self.last_id()

    # Stages, each upon the one before.

    def with_lao(self) -> World:
        self.ok("organizer", channels.ROOT, lao_create())
        return self

    def with_roll_call(self) -> World:
        self.with_lao().ok("organizer", OWN, roll_call_create())
        return self

    def with_open_roll_call(self) -> World:
        self.with_roll_call().ok("organizer", OWN, roll_call_open())
        return self

    def with_attendees(self) -> World:
        self.with_open_roll_call().ok("organizer", OWN, roll_call_close())
        return self

    def with_election(self, version: Any = election.OPEN_BALLOT) -> World:
        self.with_attendees().ok("organizer", OWN, setup(version))
        return self

    def with_open_election(self, version: Any = election.OPEN_BALLOT) -> World:
        self.with_election(version).ok("organizer", BALLOT, election_open())
        return self

    def with_ended_election(self) -> World:
        self.with_open_election()
        self.ok("attendee", BALLOT, vote(1))
        self.ok("organizer", BALLOT, election_end(vote(1)))
        return self
