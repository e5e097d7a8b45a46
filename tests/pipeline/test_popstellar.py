"""Elections counted again: honest servers agree, a cheating one is named, and nothing unproven counts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from catchment import model
from catchment.net.server import Node
from catchment.pipeline.popstellar import Signed, recount
from catchment.popstellar.values import Source
from catchment.wire.popstellar import message
from catchment.wire.popstellar.election import SECRET_BALLOT

from ..net.nodehelp import connected, running_node
from ..net.processes import run
from ..net.test_popstellar import client, plain, with_attendees
from ..popstellar.world import (
    BALLOT,
    KEYS,
    OWN,
    World,
    election_end,
    election_open,
    greet,
    result,
    setup,
    signed,
    vote,
    witnessed,
)


def rows(world: World) -> list[Signed]:
    return [Signed(entry.topic, entry.kind, entry.raw) for entry in world.log]


def verdicts(world: World) -> list[tuple[str, str, int | None, int | None, str]]:
    return [
        (each.server, each.option, each.counted, each.announced, each.verdict) for each in recount("n", rows(world))
    ]


def test_a_server_that_cheats_is_named() -> None:
    world = World().with_ended_election()
    assert world.send("peer server", OWN, greet(), Source.PEER) == 0
    assert world.send("peer server", BALLOT, result(1, 1), Source.PEER) == 0
    assert verdicts(world) == [
        (KEYS["server"], "this", 0, 0, "agrees"),
        (KEYS["server"], "that", 1, 1, "agrees"),
        (KEYS["peer server"], "this", 0, 1, "differs"),
        (KEYS["peer server"], "that", 1, 1, "agrees"),
    ]


def test_an_election_that_nobody_announced_is_counted() -> None:
    world = World().with_open_election()
    world.ok("attendee", BALLOT, vote(0))
    assert verdicts(world) == [("", "this", 1, None, ""), ("", "that", 0, None, "")]


def test_an_option_a_server_says_nothing_about_differs() -> None:
    world = World().with_ended_election()
    assert world.send("peer server", OWN, greet(), Source.PEER) == 0
    short = msgspec.structs.replace(result(0, 1).questions[0], result=result(0, 1).questions[0].result[:1])
    said = msgspec.structs.replace(result(0, 1), questions=[short])
    assert world.send("peer server", BALLOT, said, Source.PEER) == 0
    assert verdicts(world)[-1] == (KEYS["peer server"], "that", 1, None, "differs")


def test_secret_ballots_cannot_be_counted_again() -> None:
    world = World().with_open_election(SECRET_BALLOT)
    world.ok("organizer", BALLOT, election_end(registered=""))
    assert {each[4] for each in verdicts(world)} == {"not_recountable"}


def test_a_vote_that_does_not_prove_itself_does_not_count() -> None:
    world = World().with_ended_election()
    found = rows(world)
    at = next(number for number, row in enumerate(found) if b'"sender":"' + KEYS["attendee"].encode() in row.raw)
    sent = message.decode(found[at].raw)
    changed = msgspec.structs.replace(sent, sender=KEYS["other attendee"])
    found[at] = Signed(found[at].channel, found[at].kind, message.encode(changed))
    counted = {each.option: (each.counted, each.verdict) for each in recount("n", found)}
    assert counted == {"this": (0, "agrees"), "that": (0, "differs")}


def test_late_witness_signatures_and_rubbish_change_nothing() -> None:
    world = World().with_ended_election()
    before = verdicts(world)
    assert world.bring(witnessed(world.sent[0], "witness"), "/root") == 0
    found = [*rows(world), Signed(OWN, model.Kind.MESSAGE, b"rubbish"), Signed("x", model.Kind.MESSAGE, b"{}")]
    again = recount("n", found)
    assert [(each.server, each.option, each.counted, each.announced, each.verdict) for each in again] == before


async def hold_an_election(node: Node) -> None:
    async with client(node) as one:
        await with_attendees(one)
        await one.say("organizer", OWN, setup())
        await one.say("organizer", BALLOT, election_open())
        await one.say("attendee", BALLOT, vote(1))
        await one.say("organizer", BALLOT, election_end(vote(1)))


async def cheat(node: Node) -> None:
    """A server that connects, greets the LAO and announces what nobody voted."""
    async with connected(node, "/server") as peer, client(node) as one:
        assert await one.ask("subscribe", channel=BALLOT) == 0
        greeting = {
            "public_key": KEYS["peer server"],
            "client_address": "ws://peer.example/client",
            "server_address": "ws://peer.example/server",
        }
        peer.send(msgspec.json.encode({"jsonrpc": "2.0", "method": "greet_server", "params": greeting}))
        for channel, value in ((OWN, greet()), (BALLOT, result(9, 0))):
            params = {"channel": channel, "message": plain(signed("peer server", value))}
            peer.send(msgspec.json.encode({"jsonrpc": "2.0", "method": "broadcast", "params": params}))
        channel, seen = await one.broadcast()
        assert (channel, seen["sender"]) == (BALLOT, KEYS["peer server"])


@pytest.mark.parametrize("cheating", [False, True])
def test_the_command_counts_the_lake_again(tmp_path: Path, cheating: bool) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            await hold_an_election(node)
            if cheating:
                await cheat(node)
            await node.seal()

    asyncio.run(main())
    ended = run("pop", "recount", "--data", str(tmp_path), "--json")
    found = [msgspec.json.decode(line) for line in ended.stdout.splitlines()]
    differing = [
        (each["server"], each["option"], each["counted"], each["announced"])
        for each in found
        if each["verdict"] == "differs"
    ]
    if cheating:
        assert ended.returncode == 1
        assert differing == [(KEYS["peer server"], "this", 0, 9), (KEYS["peer server"], "that", 1, 0)]
    else:
        assert (ended.returncode, differing, len(found)) == (0, [], 2)
    shown = run("pop", "recount", "--data", str(tmp_path))
    assert ("differs" in shown.stdout) is cheating


def test_without_a_lake_the_command_says_what_to_do(tmp_path: Path) -> None:
    ended = run("pop", "recount", "--data", str(tmp_path))
    assert ended.returncode == 2
    assert "catchment lake seal" in ended.stderr
