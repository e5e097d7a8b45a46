"""The state of all LAOs as a fold over the log.

`State.admit` takes one message that has proven itself (`wire/popstellar/submission.py`) or refuses it, by what came
before and by who may do what (facts/popstellar.md, section 2). The server asks it just before every commit; a restart
and the pipeline give it the messages of the log in their order and get the same state. It knows no clock, no key and
no store. Changes are taken back when a commit fails (`journal.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from catchment import model
from catchment.errors import PeerFault
from catchment.popstellar.journal import Journal
from catchment.popstellar.rules import RULES
from catchment.popstellar.steps import Missing, Outcome, Step
from catchment.popstellar.values import Channel, Lao, Source
from catchment.wire.popstellar import channels, message
from catchment.wire.popstellar.channels import Place, Room
from catchment.wire.popstellar.data import KINDS, name_of
from catchment.wire.popstellar.fields import ErrorCode, fault
from catchment.wire.popstellar.message import Message, WitnessSignature
from catchment.wire.popstellar.submission import Submission, read

_NO_LAO: Final = Lao("", "", "", (), 0, 0, {}, {}, {}, {}, "", frozenset(), frozenset(), {}, {}, {}, {}, {})
"""Of messages on /root."""


class State:
    """All LAOs, and which messages stand on which channel."""

    def __init__(self) -> None:
        self.laos: dict[str, Lao] = {}
        self.channels: dict[str, Channel] = {channels.ROOT: Channel(Place(Room.ROOT), (channels.ROOT,), [])}
        self.messages: dict[str, tuple[str, ...]] = {}
        """The channels each message stands on, the one furthest down last."""
        self.witnesses: dict[str, list[WitnessSignature]] = {}
        """Signatures of witnesses, by message id: those a message came with, and those that came later."""
        self.journal = Journal()

    def admit(self, submission: Submission, source: Source) -> Outcome:
        """Take a message that has proven itself and is not here yet.

        Raises:
            Missing: what it refers to is not here: its channel (-2), or something its data names (-4).
            PeerFault: -1 this channel or state does not take it, -3 what it creates exists, -4 its data is wrong
                here, -5 its sender may not. Nothing has changed.
        """
        place = submission.place
        if place is None or submission.channel not in self.channels:
            raise Missing(f"The channel {submission.channel[:200]} does not exist.", ErrorCode.INVALID_RESOURCE)
        assert submission.data is not None, "what cannot be read is refused before"
        name = name_of(submission.data)
        if KINDS[name].room is not place.room:
            raise fault(f"{name} does not belong on {submission.channel}.", ErrorCode.INVALID_ACTION)
        sent = submission.message
        step = Step(
            submission.channel,
            place,
            self.laos.get(place.lao, _NO_LAO),
            sent.sender,
            sent.message_id,
            submission.data,
            source,
        )
        rule = RULES.get(name)
        if rule is None:
            raise fault(f"{name} is not taken by this server.", ErrorCode.INVALID_ACTION)
        mark = self.journal.mark
        try:
            outcome = rule(self, step)
            self._place(step, outcome, sent.witness_signatures)
        except BaseException:
            self.journal.roll_back(mark)
            raise
        return outcome

    def _place(self, step: Step, outcome: Outcome, witnesses: Iterable[WitnessSignature]) -> None:
        for name in outcome.creates:
            place = channels.parse(name)
            assert place is not None, name
            self.journal.put(self.channels, name, Channel(place, (name,), []))
        home = self.channels[step.channel].alone
        stands_on = (*home, *outcome.also_on) if outcome.also_on else home
        for name in stands_on:
            self.journal.append(self.channels[name].messages, step.message_id)
        self.journal.put(self.messages, step.message_id, stands_on)
        for each in witnesses:
            self.witness(step.message_id, each)

    def new_witnesses(self, sent: Message) -> list[WitnessSignature]:
        """Of a repeated message's witness signatures those that are new and of its LAO's organizer or witnesses."""
        lao = self.lao_of(sent.message_id)
        known = {each.witness for each in self.witnesses.get(sent.message_id, ())}
        fresh = {each.witness: each for each in sent.witness_signatures if each.witness not in known}
        return [each for each in fresh.values() if lao is not None and lao.is_elder(each.witness)]

    def witness(self, message_id: str, signature: WitnessSignature) -> None:
        """Keep a witness signature."""
        found = self.witnesses.get(message_id)
        if found is None:
            self.journal.put(self.witnesses, message_id, [signature])
        else:
            self.journal.append(found, signature)

    def has_witnessed(self, message_id: str, witness: str) -> bool:
        """Whether a witness' signature of this message is here."""
        return any(each.witness == witness for each in self.witnesses.get(message_id, ()))

    def witnessed(self, sent: Message) -> Message:
        """A message with all witness signatures that are here."""
        later = self.witnesses.get(sent.message_id)
        return sent if later is None else message.merged(sent, later)

    def lao_of(self, message_id: str) -> Lao | None:
        """The LAO a message belongs to; None when it is not here."""
        stands_on = self.messages.get(message_id)
        return None if stands_on is None else self.laos.get(self.channels[stands_on[-1]].place.lao)

    def replay(self, entries: Iterable[model.Entry]) -> int:
        """Build the state again from the log; returns how many entries it no longer takes.

        Everything in the log was accepted once. What this version of the rules would refuse is passed over, as a
        newer server may be stricter, and the caller says so.
        """
        passed = 0
        for entry in entries:
            try:
                self.replay_one(entry)
            except PeerFault:
                passed += 1
            self.journal.keep()
        return passed

    def replay_one(self, entry: model.Entry) -> None:
        """Take one entry of the log.

        Raises:
            PeerFault: it is refused by the rules of this version.
        """
        if entry.kind is model.Kind.WITNESS:
            late = message.decode_witnessed(entry.raw)
            if late.message_id in self.messages and not self.has_witnessed(late.message_id, late.witness):
                self.witness(late.message_id, WitnessSignature(late.witness, late.signature))
            return
        submission = read(entry.topic, entry.raw)
        if submission.problem is not None:
            raise submission.problem
        if submission.message.message_id not in self.messages:
            self.admit(submission, Source.LOG)
