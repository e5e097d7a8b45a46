"""The state as a fold: refused means unchanged, a failed commit means undone, and the log gives the same again."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from catchment import model
from catchment.popstellar import tally
from catchment.popstellar.hub import Hub
from catchment.popstellar.journal import Journal
from catchment.popstellar.state import State
from catchment.popstellar.values import Source
from catchment.store.memory import MemoryStore
from catchment.wire.popstellar import election, message
from catchment.wire.popstellar.channels import ROOT
from catchment.wire.popstellar.fields import decode_base64
from catchment.wire.popstellar.submission import read

from .world import (
    BALLOT,
    ELECTION,
    KEYS,
    LAO,
    OWN,
    PRIVATE,
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
    witnessed,
)

HISTORY: list[tuple[str, str, Any, Source]] = [
    ("organizer", ROOT, lao_create(), Source.CLIENT),
    ("organizer", OWN, roll_call_create(), Source.CLIENT),
    ("organizer", OWN, roll_call_open(), Source.CLIENT),
    ("organizer", OWN, roll_call_close(), Source.CLIENT),
    ("attendee", TOKEN, chirp(), Source.CLIENT),
    ("peer server", OWN, greet(), Source.PEER),
    ("organizer", OWN, setup(), Source.CLIENT),
    ("organizer", BALLOT, election_open(), Source.CLIENT),
    ("attendee", BALLOT, vote(1), Source.CLIENT),
    ("organizer", BALLOT, election_end(vote(1)), Source.CLIENT),
    ("peer server", BALLOT, result(7, 0), Source.PEER),
]


def picture(state: State) -> Any:
    """Everything the state holds, to be compared."""
    return copy.deepcopy((state.laos, state.channels, state.messages, state.witnesses))


def test_a_commit_that_fails_changes_nothing_and_the_message_can_come_again() -> None:
    world = World()
    for who, channel, value, source in HISTORY:
        before = picture(world.state)
        sent = signed(who, value)
        assert world.bring(sent, channel, source, stored=False) == 0
        assert picture(world.state) == before
        assert world.bring(sent, channel, source) == 0
        assert picture(world.state) != before
        assert world.bring(sent, channel, source) == -3


def test_a_refusal_changes_nothing() -> None:
    world = World()
    for step in HISTORY:
        before = picture(world.state)
        assert world.send("stranger", step[1], step[2]) == -5
        assert picture(world.state) == before
        assert world.send(*step) == 0


def test_the_log_gives_the_same_state_again() -> None:
    world = World()
    for step in HISTORY:
        assert world.send(*step) == 0
    late = witnessed(world.sent[1], "witness")
    assert world.bring(late, OWN) == 0
    again = State()
    assert again.replay(world.log) == 0
    assert picture(again) == picture(world.state)
    assert again.journal.mark == 0


def test_a_replayed_server_goes_on_where_it_was() -> None:
    world = World()
    for step in HISTORY[:9]:
        assert world.send(*step) == 0
    fresh = World()
    assert fresh.state.replay(world.log) == 0
    assert fresh.send(*HISTORY[9]) == 0
    assert fresh.said == [result(0, 1)]


def test_what_the_rules_no_longer_take_is_counted_and_passed_over() -> None:
    world = World()
    for step in HISTORY:
        assert world.send(*step) == 0
    again = State()
    # Without the LAO nothing below it has a channel.
    assert again.replay(world.log[1:]) == len(world.log) - 1
    assert picture(again) == picture(State())


def test_a_repeat_with_new_signatures_of_witnesses_is_kept_as_those() -> None:
    world = World().with_roll_call()
    sent = world.sent[-1]
    before = len(world.log)
    assert world.bring(sent, OWN) == -3
    assert world.bring(witnessed(sent, "stranger"), OWN) == -3
    assert world.bring(witnessed(sent, "stranger", "witness", "organizer"), OWN) == 0
    added = world.log[before:]
    assert [(entry.kind, entry.publisher) for entry in added] == [
        (model.Kind.WITNESS, KEYS["witness"]),
        (model.Kind.WITNESS, KEYS["organizer"]),
    ]
    assert len({entry.id for entry in added}) == 2
    assert {entry.topic for entry in added} == {OWN}
    assert world.bring(witnessed(sent, "witness"), OWN) == -3
    shown = world.state.witnessed(sent)
    assert [each.witness for each in shown.witness_signatures] == [KEYS["witness"], KEYS["organizer"]]


def test_signatures_a_message_came_with_are_not_kept_twice() -> None:
    world = World().with_lao()
    sent = witnessed(signed("organizer", roll_call_create()), "witness")
    assert world.bring(sent, OWN) == 0
    assert world.bring(sent, OWN) == -3
    assert world.state.witnessed(sent) == sent


def test_a_signature_of_a_batch_that_is_being_written_is_not_shown_yet() -> None:
    world = World().with_roll_call()
    sent = world.sent[-1]
    hub = world.hub
    publish = hub.publish("1", read(OWN, message.encode(witnessed(sent, "witness"))), Source.CLIENT, 1)
    assert hub.admit(publish, 1) == []
    assert hub.witnesses([sent.message_id]) == {sent.message_id: ()}
    hub.settle(stored=True)
    assert [each.witness for each in hub.witnesses([sent.message_id])[sent.message_id]] == [KEYS["witness"]]


def test_the_secret_of_an_election_outlives_a_restart_and_is_each_elections_own() -> None:
    first, again, other = (Hub(PRIVATE[name], MemoryStore()) for name in ("server", "server", "peer server"))
    assert first.election_secret("e") == again.election_secret("e")
    assert len({first.election_secret("e"), first.election_secret("f"), other.election_secret("e")}) == 3


def test_a_recount_shows_where_a_server_lied() -> None:
    world = World()
    for step in HISTORY:
        assert world.send(*step) == 0
    held = world.state.laos[LAO].elections[ELECTION]
    counted = tally.count(held)
    assert counted is not None
    question = setup().questions[0].id
    assert tally.differences(counted, held.results[KEYS["server"]]) == []
    assert tally.differences(counted, held.results[KEYS["peer server"]]) == [
        (question, "this", 0, 7),
        (question, "that", 1, 0),
    ]
    silent = election.ElectionResult(questions=[])
    assert tally.differences(counted, silent) == [(question, "this", 0, -1), (question, "that", 1, -1)]


def test_a_secret_ballot_is_not_counted_without_its_secret() -> None:
    world = World().with_open_election(election.SECRET_BALLOT)
    held = world.state.laos[LAO].elections[ELECTION]
    assert tally.count(held) is None
    assert len(decode_base64(held.key)) == 32


@pytest.mark.parametrize("changes", range(1, 5))
def test_the_journal_takes_back_in_order(changes: int) -> None:
    class Thing:
        name = "before"

    journal, mapping, items, thing = Journal(), {"a": 1}, [1], Thing()
    journal.keep()
    for step in range(changes):
        journal.put(mapping, "a", step)
        journal.put(mapping, "b", step)
        journal.append(items, step)
        journal.set(thing, "name", str(step))
    mark = journal.mark
    journal.put(mapping, "a", 99)
    journal.roll_back(mark)
    assert (mapping, thing.name) == ({"a": changes - 1, "b": changes - 1}, str(changes - 1))
    journal.roll_back()
    assert (mapping, items, thing.name) == ({"a": 1}, [1], "before")
