"""The steps of a LAO for whoever takes them: roll calls, elections, witnesses, chirps.

Ids and times are put together here, so that callers name what they mean. Times are UTC seconds, now by default.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from catchment.client.popstellar import PopstellarClient
from catchment.wire.popstellar import channels, ids, message
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
    encrypt_vote,
)
from catchment.wire.popstellar.fields import decode_base64, encode_base64
from catchment.wire.popstellar.organization import LaoCreate, LaoGreet, MessageWitness
from catchment.wire.popstellar.rollcall import RollCallClose, RollCallCreate, RollCallOpen
from catchment.wire.popstellar.social import ChirpAdd


def now() -> int:
    """UTC seconds, as the protocol counts."""
    return int(time.time())


class Lao:
    """A LAO, seen from one client."""

    def __init__(self, client: PopstellarClient, lao: str) -> None:
        self.id = lao
        self.channel = channels.of_lao(lao)
        self._client = client

    @classmethod
    async def create(
        cls, client: PopstellarClient, name: str, *, witnesses: Sequence[str] = (), at: int | None = None
    ) -> Lao:
        """Make a LAO that the client organizes.

        Raises:
            Refused: the server does not take it.
        """
        creation = now() if at is None else at
        lao = ids.lao_id(client.public_key, creation, name)
        made = LaoCreate(id=lao, name=name, creation=creation, organizer=client.public_key, witnesses=list(witnesses))
        await client.publish(channels.ROOT, made)
        return cls(client, lao)

    async def servers(self) -> set[str]:
        """The keys of the servers that greeted this LAO."""
        found = await self._client.catchup(self.channel)
        return {each.message.sender for each in found if isinstance(each.data, LaoGreet)}

    async def create_roll_call(
        self, name: str, *, location: str, start: int | None = None, end: int | None = None, at: int | None = None
    ) -> str:
        """Announce a roll call; returns its id, by which it is opened."""
        creation = now() if at is None else at
        begin = creation if start is None else start
        roll_call = ids.roll_call_id(self.id, creation, name)
        await self._client.publish(
            self.channel,
            RollCallCreate(
                id=roll_call,
                name=name,
                creation=creation,
                proposed_start=begin,
                proposed_end=begin if end is None else end,
                location=location,
            ),
        )
        return roll_call

    async def open_roll_call(self, opens: str, *, reopen: bool = False, at: int | None = None) -> str:
        """Open a roll call, or open the one again that `opens` closed; returns the id by which it is closed."""
        opened_at = now() if at is None else at
        update = ids.roll_call_update_id(self.id, opens, opened_at)
        action = RollCallOpen(action="reopen" if reopen else "open", update_id=update, opens=opens, opened_at=opened_at)
        await self._client.publish(self.channel, action)
        return update

    async def close_roll_call(self, closes: str, attendees: Sequence[str], *, at: int | None = None) -> str:
        """Close a roll call with the tokens of who was there; returns the id by which it can be opened again."""
        closed_at = now() if at is None else at
        update = ids.roll_call_update_id(self.id, closes, closed_at)
        action = RollCallClose(update_id=update, closes=closes, closed_at=closed_at, attendees=list(attendees))
        await self._client.publish(self.channel, action)
        return update

    async def witness(self, message_id: str) -> str:
        """Sign somebody's message as a witness."""
        signer = self._client.signer
        if signer is None:
            raise ValueError("a client without a private key cannot sign")
        signature = encode_base64(signer.sign(decode_base64(message_id, "message_id")))
        return await self._client.publish(self.channel, MessageWitness(message_id=message_id, signature=signature))

    async def chirp(self, text: str, *, at: int | None = None) -> str:
        """Say something on one's own channel."""
        own = channels.of_attendee(self.id, self._client.public_key)
        return await self._client.publish(own, ChirpAdd(text=text, timestamp=now() if at is None else at))

    async def create_election(
        self,
        name: str,
        questions: Mapping[str, Sequence[str]],
        *,
        secret: bool = False,
        start: int | None = None,
        end: int | None = None,
        at: int | None = None,
    ) -> Election:
        """Announce an election; each question has its options."""
        created_at = now() if at is None else at
        begin = created_at if start is None else start
        election = ids.election_id(self.id, created_at, name)
        made = ElectionSetup(
            version="SECRET_BALLOT" if secret else "OPEN_BALLOT",
            id=election,
            lao=self.id,
            name=name,
            created_at=created_at,
            start_time=begin,
            end_time=begin if end is None else end,
            questions=[
                Question(
                    id=ids.question_id(election, question),
                    question=question,
                    voting_method="Plurality",
                    ballot_options=list(options),
                    write_in=False,
                )
                for question, options in questions.items()
            ],
        )
        await self._client.publish(self.channel, made)
        return Election(self._client, self, made)

    async def election(self, election: str) -> Election:
        """An election that exists.

        Raises:
            Refused: it does not.
            LookupError: its channel does not begin with its setup.
        """
        for each in await self._client.catchup(channels.of_election(self.id, election)):
            if isinstance(each.data, ElectionSetup) and each.data.id == election:
                return Election(self._client, self, each.data)
        raise LookupError(f"the channel of {election} has no setup")


class Election:
    """An election, seen from one client."""

    def __init__(self, client: PopstellarClient, lao: Lao, setup: ElectionSetup) -> None:
        self.setup = setup
        self.id = setup.id
        self.channel = channels.of_election(lao.id, setup.id)
        self._client = client
        self._lao = lao

    async def open(self, *, at: int | None = None) -> str:
        """Take votes from now on."""
        opened_at = now() if at is None else at
        return await self._client.publish(
            self.channel, ElectionOpen(lao=self._lao.id, election=self.id, opened_at=opened_at)
        )

    async def vote(self, answers: Mapping[str, int], *, at: int | None = None) -> str:
        """Vote: for each question the index of the option. Secret ballots are encrypted to the server's key.

        Raises:
            LookupError: a question is none of this election, or the key of a secret ballot has not come yet.
        """
        questions = {question.question: question for question in self.setup.questions}
        public = await self._key() if self.setup.version == SECRET_BALLOT else None
        votes = []
        for text, index in answers.items():
            if text not in questions:
                raise LookupError(f"{text!r} is no question of this election")
            question = questions[text].id
            answer = index if public is None else encrypt_vote(public, index, os.urandom)
            votes.append(Vote(id=ids.vote_id(self.id, question, answer), question=question, vote=answer))
        created_at = now() if at is None else at
        cast = CastVote(lao=self._lao.id, election=self.id, created_at=created_at, votes=votes)
        return await self._client.publish(self.channel, cast)

    async def end(self, *, at: int | None = None) -> str:
        """Take no more votes, and name those that are there."""
        last: dict[str, CastVote] = {}
        for each in await self._client.catchup(self.channel):
            if isinstance(each.data, CastVote):
                before = last.get(each.message.sender)
                if before is None or each.data.created_at >= before.created_at:
                    last[each.message.sender] = each.data
        registered = ids.registered_votes(vote.id for cast in last.values() for vote in cast.votes)
        created_at = now() if at is None else at
        ended = ElectionEnd(
            lao=self._lao.id, election=self.id, created_at=created_at, registered_votes=registered if last else ""
        )
        return await self._client.publish(self.channel, ended)

    async def results(self) -> dict[str, ElectionResult]:
        """What each server of the LAO announced."""
        servers = await self._lao.servers()
        found = await self._client.catchup(self.channel)
        return {
            each.message.sender: each.data
            for each in found
            if isinstance(each.data, ElectionResult) and each.message.sender in servers
        }

    async def _key(self) -> bytes:
        servers = await self._lao.servers()
        for each in await self._client.catchup(self.channel):
            if isinstance(each.data, ElectionKey) and each.message.sender in servers:
                return message.key_bytes(each.data.election_key)
        raise LookupError("no server of the LAO has made the key of this election yet")
