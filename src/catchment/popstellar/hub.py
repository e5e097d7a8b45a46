"""The server: the gate that decides about every message, and its own voice.

The broker shows each judged message to `Hub.admit` just before the commit (`core/broker.py`, `Gate`), so the state
holds exactly what the log holds. What the protocol has the server say (greetings, election keys and results, notes of
chirps; facts/popstellar.md, section 2) is signed with the server's own key and committed with the message it follows
from.

Who speaks: the server a client published at. A message that came from another server, or out of the log, has been
followed up there; only a greeting is everyone's own, since it says where this server is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from catchment import model
from catchment.core.broker import Publish
from catchment.crypto import ed25519, elgamal
from catchment.popstellar import tally
from catchment.popstellar.federation import Federation, Fresh
from catchment.popstellar.state import State
from catchment.popstellar.steps import Announce, Greet, MakeKey, Notify, Order
from catchment.popstellar.values import Source
from catchment.store.base import Store
from catchment.wire.popstellar import channels, data, message
from catchment.wire.popstellar.election import SECRET_BALLOT, ElectionKey
from catchment.wire.popstellar.fields import ErrorCode, encode_base64, fault
from catchment.wire.popstellar.message import Message, Witnessed, WitnessSignature
from catchment.wire.popstellar.organization import LaoGreet, Peer
from catchment.wire.popstellar.social import ChirpNotify
from catchment.wire.popstellar.submission import Submission, read

_KEY_PURPOSE: Final = b"catchment: secret of a PoPStellar election"


class Subject(msgspec.Struct, frozen=True, gc=False):
    """What the gate wants to know of a publish."""

    submission: Submission
    source: Source
    origin: object = None
    """The conversation it came over."""


def _nobody_listens(publish: Publish) -> None:
    raise AssertionError("nobody takes messages")


def _nowhere(publish: Publish) -> int:
    """A late signature is shown with its message; it is no message itself."""
    return 0


class Hub:
    """One server's state and key."""

    def __init__(self, private_key: bytes, store: Store, *, address: str = "", peers: Sequence[str] = ()) -> None:
        """Begin with nothing.

        Args:
            private_key: the server's own, 32 bytes.
            store: where the messages are read.
            address: where clients reach this server, for greetings.
            peers: where clients reach the servers it is federated with.
        """
        self.state = State()
        self.store = store
        self.address = address
        self.peers = tuple(peers)
        self.signer = ed25519.Signer(private_key)
        self.public_key = encode_base64(self.signer.public)
        self._private_key = private_key
        self.server_address = ""
        self.trusted: frozenset[str] = frozenset()
        """The servers whose greetings are taken; empty for any that connects."""
        self.federation = Federation(self.state)
        self.submit: Callable[[Publish], None] = _nobody_listens
        """Takes a message that no frame has brought just now."""
        self._pending: set[tuple[str, str]] = set()
        self._fresh: list[Fresh] = []

    # What the conversations ask.

    def publish(
        self, request_id: str, submission: Submission, source: Source, now: int, *, origin: object = None
    ) -> Publish:
        """A message on its way through the broker; `origin` is the conversation it came over."""
        entry = submission.entry(verdict=model.Verdict.OK, received_at=now)
        return Publish(
            request_id, entry, submission.judge, True, gate=self, subject=Subject(submission, source, origin)
        )

    def witnesses(self, message_ids: Iterable[str]) -> dict[str, tuple[WitnessSignature, ...]]:
        """The witness signatures of messages, those of a batch that is being written left out."""
        found = {}
        for message_id in message_ids:
            signatures = self.state.witnesses.get(message_id)
            if signatures is not None:
                found[message_id] = tuple(
                    each for each in signatures if (message_id, each.witness) not in self._pending
                )
        return found

    # The gate.

    def admit(self, publish: Publish, now: int) -> Sequence[Publish] | None:
        """See `Gate.admit`."""
        subject = publish.subject
        assert isinstance(subject, Subject)
        sent = subject.submission.message
        if sent.message_id in self.state.messages:
            return self._admit_witnesses(publish, sent, now)
        self._require_trusted(subject)
        mark, known = self.state.journal.mark, len(self._fresh)
        try:
            outcome = self.state.admit(subject.submission, subject.source)
            self._fresh.append(Fresh(subject.submission.channel, sent.message_id, subject.origin))
            orders = [order for order in outcome.orders if self._follows_up(order, subject.source)]
            return [self._speak(order, now) for order in orders]
        except BaseException:
            self.state.journal.roll_back(mark)
            del self._fresh[known:]
            raise

    def _require_trusted(self, subject: Subject) -> None:
        greets = isinstance(subject.submission.data, LaoGreet) and subject.source in (Source.PEER, Source.LATE)
        if greets and self.trusted and subject.submission.message.sender not in self.trusted:
            raise fault("Greetings of this server are not taken here.", ErrorCode.ACCESS_DENIED)

    def settle(self, *, stored: bool) -> None:
        """See `Gate.settle`."""
        if stored:
            self.state.journal.keep()
        else:
            self.state.journal.roll_back()
        self._pending.clear()
        fresh, self._fresh = self._fresh, []
        if stored and fresh:
            self.federation.stored(fresh)

    def _admit_witnesses(self, publish: Publish, sent: Message, now: int) -> Sequence[Publish] | None:
        """A repeat is one, unless it brings signatures of witnesses that are new: those are kept for themselves."""
        fresh = self.state.new_witnesses(sent)
        if not fresh:
            return None
        channel = self.state.messages[sent.message_id][-1]
        entries = []
        for each in fresh:
            self.state.witness(sent.message_id, each)
            self._pending.add((sent.message_id, each.witness))
            late = Witnessed(sent.message_id, each.witness, each.signature)
            entries.append(message.witness_entry(late, channel, received_at=now))
        publish.entry, publish.route = entries[0], _nowhere
        return [Publish("", entry, None, False, route=_nowhere) for entry in entries[1:]]

    # The server's own voice.

    def _follows_up(self, order: Order, source: Source) -> bool:
        if isinstance(order, Greet):
            return source is not Source.LOG
        if isinstance(order, Announce):
            # Another server's key cannot be read here; that server announces the result.
            election = self.state.laos[order.lao].elections[order.election]
            if election.setup.version == SECRET_BALLOT and election.key_sender != self.public_key:
                return False
        return source is Source.CLIENT

    def _speak(self, order: Order, now: int) -> Publish:
        channel, value = self._word(order)
        made = message.sign(data.encode(value), self.signer)
        submission = read(channel, message.encode(made))
        self.state.admit(submission, Source.OWN)
        self._fresh.append(Fresh(channel, made.message_id, None))
        return Publish("", submission.entry(verdict=model.Verdict.OK, received_at=now), None, False)

    def _word(self, order: Order) -> tuple[str, data.Data]:
        lao = self.state.laos[order.lao]
        match order:
            case Greet():
                peers = [Peer(address=address) for address in self.peers]
                greeting = LaoGreet(lao=lao.id, frontend=lao.organizer, address=self.address, peers=peers)
                return channels.of_lao(lao.id), greeting
            case MakeKey():
                public = elgamal.public_of(self.election_secret(order.election))
                return channels.of_election(lao.id, order.election), ElectionKey(
                    election=order.election, election_key=encode_base64(public)
                )
            case Notify():
                return channels.of_room(lao.id, channels.Room.CHIRPS), ChirpNotify(
                    action=order.action,  # type: ignore[arg-type]  # one of its two
                    chirp_id=order.chirp_id,
                    channel=order.channel,
                    timestamp=order.timestamp,
                )
            case Announce():
                election = lao.elections[order.election]
                result = tally.count(election, self.election_secret(order.election))
                assert result is not None
                return channels.of_election(lao.id, order.election), result

    def election_secret(self, election: str) -> bytes:
        """The secret that opens the ballots of an election this server made the key of.

        Derived from the server's own key, so that it needs no place to be kept and outlives a restart.
        """
        seed = hashlib.sha512(_KEY_PURPOSE + self._private_key + election.encode()).digest()
        return elgamal.make_secret(lambda _: seed)
