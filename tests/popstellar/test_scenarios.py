"""Each object#action: accepted when right, refused for each single thing wrong, and what it changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from catchment.popstellar.rules import RULES
from catchment.popstellar.values import RollCallState, Source
from catchment.wire.popstellar import channels, consensus, data, election, ids, message, organization, social
from catchment.wire.popstellar.channels import ROOT, Room
from catchment.wire.popstellar.fields import decode_base64, encode_base64

from .world import (
    BALLOT,
    CHIRPS,
    CLOSED,
    ELECTION,
    KEYS,
    LAO,
    OPENED,
    OWN,
    QUESTION,
    REACTIONS,
    ROLL_CALL,
    SIGNERS,
    TIME,
    TOKEN,
    World,
    chirp,
    election_end,
    election_open,
    greet,
    lao_create,
    result,
    roll_call_close,
    roll_call_create,
    roll_call_open,
    setup,
    signed,
    vote,
)

OTHER = ids.hash_len("something else")
CONSENSUS = channels.of_room(LAO, Room.CONSENSUS)
COIN = channels.of_room(LAO, Room.COIN)
AUTHENTICATION = channels.of_room(LAO, Room.AUTHENTICATION)


def changed(value: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(value, **changes)


def meeting(name: str = "meet") -> organization.MeetingCreate:
    return organization.MeetingCreate(
        id=ids.meeting_id(LAO, TIME, name), name=name, creation=TIME, start=TIME, location="here"
    )


def consent(message_id: str, *names: str) -> list[organization.ModificationSignature]:
    return [
        organization.ModificationSignature(
            witness=KEYS[name], signature=encode_base64(SIGNERS[name].sign(decode_base64(message_id)))
        )
        for name in names
    ]


def meeting_state(**changes: Any) -> organization.MeetingState:
    made = organization.MeetingState(
        id=meeting().id,
        name="meet",
        creation=TIME,
        last_modified=TIME + 1,
        start=TIME,
        modification_id=OTHER,
        modification_signatures=consent(OTHER, "witness"),
    )
    return changed(made, **changes)  # type: ignore[no-any-return]


def update(**changes: Any) -> organization.LaoUpdate:
    made = organization.LaoUpdate(id=LAO, name="new", last_modified=TIME + 5, witnesses=[])
    return changed(made, **changes)  # type: ignore[no-any-return]


def witness_message(message_id: str, who: str = "witness") -> organization.MessageWitness:
    made = encode_base64(SIGNERS[who].sign(decode_base64(message_id)))
    return organization.MessageWitness(message_id=message_id, signature=made)


class TestLao:
    def test_created_with_its_channels_and_greeted_by_the_server(self) -> None:
        world = World()
        created = world.ok("organizer", ROOT, lao_create())
        lao = world.state.laos[LAO]
        assert (lao.organizer, lao.witnesses, lao.name) == (KEYS["organizer"], (KEYS["witness"],), "LAO")
        rooms = {"social/chirps", "social/reactions", "coin", "consensus", "authentication", "federation"}
        assert world.state.channels.keys() == {ROOT, OWN, *(f"{OWN}/{room}" for room in rooms)}
        assert world.state.channels[ROOT].messages == [created]
        assert world.state.channels[OWN].messages[0] == created
        (greeting,) = world.said
        assert greeting == organization.LaoGreet(
            lao=LAO, frontend=KEYS["organizer"], address="ws://here.example/client", peers=[]
        )
        assert lao.servers == {KEYS["server"]: "ws://here.example/client"}

    def test_only_by_its_organizer(self) -> None:
        assert World().send("stranger", ROOT, lao_create()) == -5

    def test_once(self) -> None:
        world = World().with_lao()
        assert world.bring(world.sent[0], ROOT) == -3
        assert world.send("organizer", ROOT, lao_create(witnesses=["witness", "stranger"])) == -3

    def test_only_on_root(self) -> None:
        assert World().with_lao().send("organizer", OWN, lao_create("another")) == -1

    def test_with_its_own_id(self) -> None:
        assert World().send("organizer", ROOT, changed(lao_create(), id=OTHER)) == -4

    def test_changes_when_every_witness_has_signed(self) -> None:
        world = World().with_lao()
        proposed = world.ok("organizer", OWN, update(witnesses=[KEYS["second witness"]]))
        assert world.state.laos[LAO].name == "LAO"
        state = organization.LaoState(
            id=LAO,
            name="new",
            creation=TIME,
            last_modified=TIME + 5,
            organizer=KEYS["organizer"],
            witnesses=[KEYS["second witness"]],
            modification_id=proposed,
            modification_signatures=consent(proposed, "witness"),
        )
        for who, wrong, code in (
            ("stranger", {}, -5),
            ("organizer", {"modification_signatures": []}, -4),
            ("organizer", {"modification_signatures": consent(proposed, "second witness")}, -4),
            ("organizer", {"name": "newer"}, -4),
            ("organizer", {"last_modified": TIME + 6}, -4),
            ("organizer", {"witnesses": []}, -4),
            ("organizer", {"creation": TIME - 1}, -4),
            ("organizer", {"organizer": KEYS["stranger"]}, -4),
            ("organizer", {"modification_id": OTHER, "modification_signatures": consent(OTHER, "witness")}, -4),
        ):
            assert world.send(who, OWN, changed(state, **wrong)) == code, wrong
        world.ok("organizer", OWN, state)
        lao = world.state.laos[LAO]
        assert (lao.name, lao.witnesses, lao.last_modified) == ("new", (KEYS["second witness"],), TIME + 5)

    def test_updates_come_from_the_organizer_and_forward_in_time(self) -> None:
        world = World().with_lao()
        assert world.send("witness", OWN, update()) == -5
        assert world.send("organizer", OWN, update(last_modified=TIME - 1)) == -4
        world.ok("organizer", OWN, update())


class TestGreetings:
    def test_a_client_brings_no_new_server(self) -> None:
        assert World().with_lao().send("stranger", OWN, greet()) == -5

    def test_another_server_greets_over_its_connection(self) -> None:
        world = World().with_lao()
        assert world.send("peer server", OWN, greet(), Source.PEER) == 0
        assert KEYS["peer server"] in world.state.laos[LAO].servers

    def test_for_the_organizer_of_the_lao(self) -> None:
        world = World().with_lao()
        assert world.send("peer server", OWN, changed(greet(), frontend=KEYS["stranger"]), Source.PEER) == -4

    def test_a_lao_of_another_server_is_greeted_here_too(self) -> None:
        world = World()
        assert world.send("organizer", ROOT, lao_create(), Source.PEER) == 0
        assert [data.name_of(each) for each in world.said] == ["lao#greet"]


class TestWitnesses:
    def test_a_signature_joins_its_message(self) -> None:
        world = World().with_roll_call()
        target = world.sent[-1]
        world.ok("witness", OWN, witness_message(target.message_id))
        shown = world.state.witnessed(target)
        assert [each.witness for each in shown.witness_signatures] == [KEYS["witness"]]
        assert message.judge(shown).accepted

    def test_of_witnesses_and_the_organizer_only(self) -> None:
        world = World().with_roll_call()
        target = world.last_id()
        assert world.send("stranger", OWN, witness_message(target, "stranger")) == -5
        world.ok("organizer", OWN, witness_message(target, "organizer"))

    def test_of_a_message_that_is_here(self) -> None:
        assert World().with_lao().send("witness", OWN, witness_message(OTHER)) == -4

    def test_of_the_same_lao(self) -> None:
        world = World().with_lao()
        world.ok("organizer", ROOT, lao_create("another", witnesses=[]))
        assert world.send("witness", OWN, witness_message(world.last_id())) == -4

    def test_once_each(self) -> None:
        world = World().with_roll_call()
        target = world.last_id()
        world.ok("witness", OWN, witness_message(target))
        again = msgspec.to_builtins(witness_message(target))
        assert world.send("witness", OWN, dict(reversed(again.items()))) == -3

    def test_signed_by_its_sender(self) -> None:
        world = World().with_roll_call()
        assert world.send("witness", OWN, witness_message(world.last_id(), "stranger")) == -4


class TestMeetings:
    def test_created_once_by_the_organizer(self) -> None:
        world = World().with_lao()
        assert world.send("attendee", OWN, meeting()) == -5
        assert world.send("organizer", OWN, changed(meeting(), id=OTHER)) == -4
        world.ok("organizer", OWN, meeting())
        assert world.send("organizer", OWN, changed(meeting(), location="there")) == -3

    def test_modified_with_the_witnesses(self) -> None:
        world = World().with_lao()
        assert world.send("organizer", OWN, meeting_state()) == -4
        world.ok("organizer", OWN, meeting())
        assert world.send("witness", OWN, meeting_state()) == -5
        assert world.send("organizer", OWN, meeting_state(creation=TIME - 1)) == -4
        strangers = consent(OTHER, "stranger")
        assert world.send("organizer", OWN, meeting_state(modification_signatures=strangers)) == -4
        world.ok("organizer", OWN, meeting_state())


class TestRollCalls:
    def test_the_way_of_a_roll_call(self) -> None:
        world = World().with_attendees()
        lao = world.state.laos[LAO]
        assert lao.attendees == {KEYS["attendee"], KEYS["other attendee"]}
        assert TOKEN in world.state.channels
        world.ok("organizer", OWN, roll_call_open(CLOSED, TIME + 30, "reopen"))
        assert lao.roll_calls[ROLL_CALL].state is RollCallState.OPENED
        reopened = roll_call_open(CLOSED, TIME + 30, "reopen").update_id
        world.ok("organizer", OWN, roll_call_close(reopened, TIME + 40, ["attendee", "stranger"]))
        assert lao.attendees == {KEYS["attendee"], KEYS["stranger"]}
        assert channels.of_attendee(LAO, KEYS["stranger"]) in world.state.channels

    @pytest.mark.parametrize("who", ["witness", "attendee", "stranger", "server"])
    def test_by_the_organizer_only(self, who: str) -> None:
        assert World().with_lao().send(who, OWN, roll_call_create()) == -5
        assert World().with_roll_call().send(who, OWN, roll_call_open()) == -5
        assert World().with_open_roll_call().send(who, OWN, roll_call_close()) == -5
        assert World().with_attendees().send(who, OWN, roll_call_open(CLOSED, TIME + 30, "reopen")) == -5

    def test_created_once(self) -> None:
        assert World().with_roll_call().send("organizer", OWN, changed(roll_call_create(), location="there")) == -3

    def test_steps_in_another_order_are_refused(self) -> None:
        assert World().with_roll_call().send("organizer", OWN, roll_call_close(ROLL_CALL)) == -1
        assert World().with_roll_call().send("organizer", OWN, roll_call_open(ROLL_CALL, action="reopen")) == -1
        assert World().with_open_roll_call().send("organizer", OWN, roll_call_open(at=TIME + 11)) == -1
        assert World().with_attendees().send("organizer", OWN, roll_call_close(at=TIME + 21)) == -1
        assert World().with_attendees().send("organizer", OWN, roll_call_open(at=TIME + 30)) == -1

    def test_each_step_names_the_one_before(self) -> None:
        assert World().with_roll_call().send("organizer", OWN, roll_call_open(OTHER)) == -4
        assert World().with_open_roll_call().send("organizer", OWN, roll_call_close(OTHER)) == -4
        assert World().with_open_roll_call().send("organizer", OWN, roll_call_close(ROLL_CALL)) == -4
        assert World().with_attendees().send("organizer", OWN, roll_call_open(OPENED, TIME + 30, "reopen")) == -4

    def test_times_go_forward(self) -> None:
        assert World().with_roll_call().send("organizer", OWN, roll_call_open(at=TIME)) == -4
        assert World().with_open_roll_call().send("organizer", OWN, roll_call_close(at=TIME + 9)) == -4
        assert World().with_attendees().send("organizer", OWN, roll_call_open(CLOSED, TIME + 19, "reopen")) == -4

    def test_one_is_open_at_a_time(self) -> None:
        world = World().with_open_roll_call()
        world.ok("organizer", OWN, roll_call_create("second"))
        second = roll_call_create("second").id
        assert world.send("organizer", OWN, roll_call_open(second)) == -1
        world.ok("organizer", OWN, roll_call_close())
        world.ok("organizer", OWN, roll_call_open(second, TIME + 50))

    def test_a_token_that_makes_no_channel_is_refused(self) -> None:
        wrong = changed(roll_call_close(), attendees=[""])
        assert World().with_open_roll_call().send("organizer", OWN, wrong) == -4


class TestElections:
    def test_the_way_of_an_open_ballot(self) -> None:
        world = World().with_election()
        assert world.sent[-1].message_id in world.state.channels[BALLOT].messages
        assert world.sent[-1].message_id in world.state.channels[OWN].messages
        assert world.said == []
        world.ok("organizer", BALLOT, election_open())
        world.ok("attendee", BALLOT, vote(0))
        world.ok("attendee", BALLOT, vote(1, TIME + 121))
        world.ok("other attendee", BALLOT, vote(1))
        world.ok("organizer", BALLOT, vote(0))
        ended = election_end(vote(1), vote(1), vote(0))
        assert world.send("organizer", BALLOT, ended) == 0
        assert world.said == [result(1, 2)]
        assert world.state.laos[LAO].elections[ELECTION].results == {KEYS["server"]: result(1, 2)}

    def test_an_earlier_vote_that_comes_late_does_not_count(self) -> None:
        world = World().with_open_election()
        world.ok("attendee", BALLOT, vote(1, TIME + 130))
        world.ok("attendee", BALLOT, vote(0, TIME + 120))
        world.ok("organizer", BALLOT, election_end(vote(1)))
        assert world.said == [result(0, 1)]

    def test_of_two_votes_at_the_same_time_the_later_in_the_log_counts(self) -> None:
        world = World().with_open_election()
        world.ok("attendee", BALLOT, vote(1))
        world.ok("attendee", BALLOT, vote(0))
        world.ok("organizer", BALLOT, election_end(vote(0)))
        assert world.said == [result(1, 0)]

    def test_the_way_of_a_secret_ballot(self) -> None:
        world = World().with_election(election.SECRET_BALLOT)
        (key,) = world.said
        assert isinstance(key, election.ElectionKey)
        public = decode_base64(key.election_key)
        world.ok("organizer", BALLOT, election_open())
        for who, index in (("attendee", 1), ("other attendee", 1), ("organizer", 0)):
            world.ok(who, BALLOT, vote(election.encrypt_vote(public, index, os.urandom)))
        world.ok("organizer", BALLOT, election_end(registered=""))
        assert world.said == [result(1, 2)]

    def test_a_secret_vote_that_names_no_option_or_cannot_be_opened_counts_for_none(self) -> None:
        world = World().with_open_election(election.SECRET_BALLOT)
        public = decode_base64(world.state.laos[LAO].elections[ELECTION].key)
        world.ok("attendee", BALLOT, vote(election.encrypt_vote(public, 7, os.urandom)))
        world.ok("other attendee", BALLOT, vote(encode_base64(bytes(64))))
        world.ok("organizer", BALLOT, election_end(registered=""))
        assert world.said == [result(0, 0)]

    def test_set_up_by_the_organizer_once(self) -> None:
        world = World().with_attendees()
        assert world.send("attendee", OWN, setup()) == -5
        assert world.send("organizer", OWN, changed(setup(), id=OTHER)) == -4
        assert world.send("organizer", BALLOT, setup()) == -2
        world.ok("organizer", OWN, setup())
        assert world.send("organizer", OWN, changed(setup(), end_time=TIME + 300)) == -3
        assert world.send("organizer", BALLOT, changed(setup(), end_time=TIME + 301)) == -1

    def test_opened_by_the_organizer_once(self) -> None:
        world = World().with_election()
        assert world.send("attendee", BALLOT, election_open()) == -5
        assert world.send("organizer", BALLOT, election_open(TIME + 99)) == -4
        assert world.send("organizer", BALLOT, changed(election_open(), election=OTHER)) == -4
        assert world.send("organizer", OWN, election_open()) == -1
        world.ok("organizer", BALLOT, election_open())
        assert world.send("organizer", BALLOT, election_open(TIME + 111)) == -1

    def test_votes_of_those_who_may(self) -> None:
        world = World().with_open_election()
        assert world.send("stranger", BALLOT, vote(1)) == -5
        assert world.send("witness", BALLOT, vote(1)) == -5
        world.ok("organizer", BALLOT, vote(1))

    def test_votes_while_it_is_open(self) -> None:
        assert World().with_election().send("attendee", BALLOT, vote(1)) == -1
        assert World().with_ended_election().send("attendee", BALLOT, vote(0)) == -1

    @pytest.mark.parametrize(
        "wrong",
        [
            vote(2),
            vote(encode_base64(bytes(64))),
            vote(1, TIME + 99),
            vote(1, question=OTHER),
            changed(vote(1), lao=OTHER),
            changed(vote(1), election=OTHER),
        ],
    )
    def test_votes_that_are_none(self, wrong: election.CastVote) -> None:
        assert World().with_open_election().send("attendee", BALLOT, wrong) == -4

    @pytest.mark.parametrize("wrong", [vote(1), vote("AAAA")])
    def test_votes_that_are_not_secret(self, wrong: election.CastVote) -> None:
        assert World().with_open_election(election.SECRET_BALLOT).send("attendee", BALLOT, wrong) == -4

    def test_ended_by_the_organizer_with_the_votes_that_are_here(self) -> None:
        world = World().with_open_election()
        world.ok("attendee", BALLOT, vote(1))
        assert world.send("attendee", BALLOT, election_end(vote(1))) == -5
        assert world.send("organizer", BALLOT, election_end(vote(0))) == -4
        assert world.send("organizer", BALLOT, election_end()) == -4
        assert world.send("organizer", BALLOT, election_end(vote(1), at=TIME + 109)) == -4
        world.ok("organizer", BALLOT, election_end(vote(1)))
        assert world.send("organizer", BALLOT, election_end(vote(1), at=TIME + 201)) == -1

    def test_not_ended_before_it_was_opened(self) -> None:
        assert World().with_election().send("organizer", BALLOT, election_end(registered="")) == -1

    def test_results_of_servers_only_each_once(self) -> None:
        world = World().with_ended_election()
        assert world.send("organizer", BALLOT, result(9, 9)) == -5
        assert world.send("peer server", BALLOT, result(0, 1), Source.PEER) == -5
        assert world.send("peer server", OWN, greet(), Source.PEER) == 0
        assert world.send("peer server", BALLOT, result(5, 0), Source.PEER) == 0
        assert world.send("peer server", BALLOT, result(6, 0)) == -3
        results = world.state.laos[LAO].elections[ELECTION].results
        assert results[KEYS["peer server"]] == result(5, 0)

    def test_results_about_this_election_after_its_end(self) -> None:
        world = World().with_open_election()
        assert world.send("peer server", OWN, greet(), Source.PEER) == 0
        assert world.send("peer server", BALLOT, result(1, 0), Source.PEER) == -1
        world.ok("organizer", BALLOT, election_end(registered=""))
        other = changed(result(1, 0).questions[0], id=OTHER)
        assert world.send("peer server", BALLOT, changed(result(1, 0), questions=[other]), Source.PEER) == -4
        option = changed(result(1, 0).questions[0].result[0], ballot_option="neither")
        wrong = changed(result(1, 0).questions[0], result=[option])
        assert world.send("peer server", BALLOT, changed(result(1, 0), questions=[wrong]), Source.PEER) == -4

    def test_the_key_of_a_secret_ballot_comes_once_from_a_server(self) -> None:
        world = World().with_election(election.SECRET_BALLOT)
        key = election.ElectionKey(election=ELECTION, election_key=world.said[0].election_key)  # type: ignore[attr-defined]
        assert world.send("organizer", BALLOT, key) == -5
        assert world.send("peer server", OWN, greet(), Source.PEER) == 0
        assert world.send("peer server", BALLOT, key, Source.PEER) == -3

    def test_an_open_ballot_has_no_key(self) -> None:
        world = World().with_election()
        key = election.ElectionKey(election=ELECTION, election_key=encode_base64(SIGNERS["server"].public))
        assert world.send("peer server", OWN, greet(), Source.PEER) == 0
        assert world.send("peer server", BALLOT, key, Source.PEER) == -1

    def test_what_another_server_has_followed_up_is_not_followed_up_here(self) -> None:
        world = World().with_attendees()
        assert world.send("organizer", OWN, setup(election.SECRET_BALLOT), Source.PEER) == 0
        assert world.said == []
        assert world.send("organizer", BALLOT, election_open(), Source.PEER) == 0
        assert world.send("organizer", BALLOT, election_end(registered=""), Source.PEER) == 0
        assert world.said == []

    def test_ballots_under_another_servers_key_are_not_counted_here(self) -> None:
        world = World().with_attendees()
        assert world.send("organizer", OWN, setup(election.SECRET_BALLOT), Source.PEER) == 0
        assert world.send("peer server", OWN, greet(), Source.PEER) == 0
        key = election.ElectionKey(election=ELECTION, election_key=encode_base64(SIGNERS["peer server"].public))
        assert world.send("peer server", BALLOT, key, Source.PEER) == 0
        world.ok("organizer", BALLOT, election_open())
        world.ok("organizer", BALLOT, election_end(registered=""))
        assert world.said == []


class TestSocial:
    def test_a_chirp_is_told_to_everyone(self) -> None:
        world = World().with_attendees()
        made = world.ok("attendee", TOKEN, chirp())
        told = social.ChirpNotify(action="notify_add", chirp_id=made, channel=TOKEN, timestamp=TIME + 300)
        assert world.said == [told]
        world.ok("attendee", TOKEN, social.ChirpDelete(chirp_id=made, timestamp=TIME + 301))
        assert world.said == [changed(told, action="notify_delete", timestamp=TIME + 301)]
        assert len(world.state.channels[CHIRPS].messages) == 2
        assert len(world.state.channels[TOKEN].messages) == 2

    def test_chirps_by_the_owner_of_the_channel(self) -> None:
        world = World().with_attendees()
        assert world.send("other attendee", TOKEN, chirp()) == -5
        assert world.send("organizer", TOKEN, chirp()) == -5
        assert world.send("attendee", CHIRPS, chirp()) == -1
        assert world.send("stranger", channels.of_attendee(LAO, KEYS["stranger"]), chirp()) == -2
        assert world.send("attendee", TOKEN, chirp("x" * 301)) == -4

    def test_deleted_once_by_its_author(self) -> None:
        world = World().with_attendees()
        made = world.ok("attendee", TOKEN, chirp())
        theirs = channels.of_attendee(LAO, KEYS["other attendee"])
        gone = social.ChirpDelete(chirp_id=made, timestamp=TIME + 301)
        assert world.send("other attendee", theirs, gone) == -5
        assert world.send("other attendee", TOKEN, gone) == -5
        assert world.send("attendee", TOKEN, changed(gone, chirp_id=OTHER)) == -4
        world.ok("attendee", TOKEN, gone)
        assert world.send("attendee", TOKEN, changed(gone, timestamp=TIME + 302)) == -1

    @pytest.mark.parametrize("action", ["notify_add", "notify_delete"])
    def test_notes_by_servers_about_chirps_that_are_here(self, action: Any) -> None:
        world = World().with_attendees()
        made = world.ok("attendee", TOKEN, chirp())
        note = social.ChirpNotify(action=action, chirp_id=made, channel=TOKEN, timestamp=TIME + 300)
        assert world.send("attendee", CHIRPS, note) == -5
        assert world.send("peer server", OWN, greet(), Source.PEER) == 0
        assert world.send("peer server", CHIRPS, changed(note, chirp_id=OTHER), Source.PEER) == -4
        assert world.send("peer server", CHIRPS, note, Source.PEER) == 0

    def test_reactions_of_attendees_to_chirps_that_are_here(self) -> None:
        world = World().with_attendees()
        made = world.ok("attendee", TOKEN, chirp())
        like = social.ReactionAdd(reaction_codepoint="👍", chirp_id=made, timestamp=TIME + 310)
        assert world.send("stranger", REACTIONS, like) == -5
        assert world.send("attendee", REACTIONS, changed(like, chirp_id=OTHER)) == -4
        assert world.send("attendee", TOKEN, like) == -1
        liked = world.ok("other attendee", REACTIONS, like)
        gone = social.ReactionDelete(reaction_id=liked, timestamp=TIME + 311)
        assert world.send("attendee", REACTIONS, gone) == -5
        assert world.send("other attendee", REACTIONS, changed(gone, reaction_id=OTHER)) == -4
        world.ok("other attendee", REACTIONS, gone)
        assert world.send("other attendee", REACTIONS, changed(gone, timestamp=TIME + 312)) == -1
        world.ok("attendee", TOKEN, social.ChirpDelete(chirp_id=made, timestamp=TIME + 320))
        assert world.send("attendee", REACTIONS, changed(like, timestamp=TIME + 321)) == -1

    def test_who_missed_the_last_roll_call_reacts_no_more(self) -> None:
        world = World().with_attendees()
        made = world.ok("attendee", TOKEN, chirp())
        world.ok("organizer", OWN, roll_call_open(CLOSED, TIME + 30, "reopen"))
        world.ok("organizer", OWN, roll_call_close(world_reopened(), TIME + 40, ["attendee"]))
        like = social.ReactionAdd(reaction_codepoint="👍", chirp_id=made, timestamp=TIME + 310)
        assert world.send("other attendee", REACTIONS, like) == -5
        world.ok("attendee", REACTIONS, like)


def world_reopened() -> str:
    return roll_call_open(CLOSED, TIME + 30, "reopen").update_id


class TestTheRest:
    def test_coins_by_anyone(self, coin_of: Callable[..., dict[str, Any]]) -> None:
        world = World().with_lao()
        world.ok("stranger", COIN, coin_of())
        assert world.send("stranger", OWN, coin_of(2)) == -1
        assert world.send("stranger", COIN, coin_of() | {"transaction_id": OTHER}) == -4

    def test_authentication_by_attendees(self) -> None:
        nonce = b"nonce"
        proof = organization.Authenticate(
            client_id="c",
            nonce=encode_base64(nonce),
            identifier=KEYS["attendee"],
            identifier_proof=encode_base64(SIGNERS["attendee"].sign(nonce)),
            popcha_address="https://host.example",
        )
        world = World().with_attendees()
        assert world.send("stranger", AUTHENTICATION, proof) == -5
        assert world.send("attendee", AUTHENTICATION, changed(proof, identifier=KEYS["stranger"])) == -4
        assert world.send("attendee", OWN, proof) == -1
        world.ok("attendee", AUTHENTICATION, proof)

    def test_consensus_by_organizer_and_witnesses(self) -> None:
        key = consensus.ConsensusKey(type="election", id=ELECTION, property="state")
        instance = ids.consensus_instance_id("election", ELECTION, "state")
        elect = consensus.ConsensusElect(instance_id=instance, created_at=TIME, key=key, value="started")
        world = World().with_lao()
        assert world.send("stranger", CONSENSUS, elect) == -5
        assert world.send("organizer", CONSENSUS, changed(elect, instance_id=OTHER)) == -4
        assert world.send("organizer", OWN, elect) == -1
        proposed = world.ok("organizer", CONSENSUS, elect)
        about = {"instance_id": instance, "message_id": proposed}
        timed = about | {"created_at": TIME}
        for following in (
            consensus.ConsensusElectAccept(**about, accept=True),
            consensus.ConsensusPrepare(**timed, value=consensus.PrepareValue(proposed_try=1)),
            consensus.ConsensusPromise(
                **timed, value=consensus.PromiseValue(accepted_try=-1, accepted_value=False, promised_try=1)
            ),
            consensus.ConsensusPropose(
                **timed,
                value=consensus.ProposeValue(proposed_try=1, proposed_value=True),
                acceptor_signatures=[],
            ),
            consensus.ConsensusAccept(**timed, value=consensus.AcceptValue(accepted_try=1, accepted_value=True)),
            consensus.ConsensusLearn(**timed, value=consensus.LearnValue(decision=True), acceptor_signatures=[]),
            consensus.ConsensusFailure(**timed),
        ):
            assert world.send("stranger", CONSENSUS, following) == -5
            assert world.send("witness", CONSENSUS, changed(following, message_id=OTHER)) == -4
            assert world.send("witness", CONSENSUS, changed(following, instance_id=OTHER)) == -4
            world.ok("witness", CONSENSUS, following)

    def test_federation_is_taken_by_no_channel(self) -> None:
        request = {"object": "federation", "action": "challenge_request", "timestamp": TIME}
        assert World().with_lao().send("organizer", channels.of_room(LAO, Room.FEDERATION), request) == -1


def test_every_kind_has_a_rule_but_federation() -> None:
    assert {name for name in data.KINDS if name not in RULES} == {
        name for name in data.KINDS if name.startswith("federation#")
    }


@pytest.mark.parametrize("channel", ["/root/none", f"{OWN}/none", "/root/a/social", f"{OWN}/social/none"])
def test_a_channel_that_does_not_exist(channel: str) -> None:
    assert World().with_lao().send("organizer", channel, chirp()) == -2


def test_what_is_not_its_senders_never_comes_to_the_state() -> None:
    world = World().with_lao()
    forged = msgspec.structs.replace(signed("organizer", roll_call_create()), sender=KEYS["stranger"])
    assert world.bring(forged, OWN) == -4
    assert world.state.laos[LAO].roll_calls == {}


def test_question_and_election_are_what_the_tests_say() -> None:
    assert setup().questions[0].id == QUESTION
