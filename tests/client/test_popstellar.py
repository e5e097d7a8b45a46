"""The PoPStellar client against a real node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from catchment.client.popstellar import ConnectionEnded, PopstellarClient, Received, Refused, Subscription
from catchment.client.popstellar_lao import Lao, now
from catchment.crypto.ed25519 import Signer
from catchment.net.server import Node
from catchment.wire.popstellar import channels, message
from catchment.wire.popstellar.organization import MessageWitness
from catchment.wire.popstellar.rollcall import RollCallCreate
from catchment.wire.popstellar.social import ChirpAdd

from ..net.nodehelp import running_node
from ..popstellar.world import KEYS, PRIVATE

TIME = 1_700_000_000


def client_of(node: Node, who: str | None = "organizer") -> PopstellarClient:
    return PopstellarClient(node.addresses["ws"] + "/client", None if who is None else PRIVATE[who])


async def texts(subscription: Subscription, count: int) -> list[str]:
    """The chirps among the next messages."""
    found: list[str] = []
    async with asyncio.timeout(30):
        async for received in subscription:
            if isinstance(received.data, ChirpAdd):
                found.append(received.data.text)
            if len(found) == count:
                break
    return found


async def attended(client: PopstellarClient, *attendees: str) -> Lao:
    lao = await Lao.create(client, "LAO", witnesses=[KEYS["witness"]], at=TIME)
    roll_call = await lao.create_roll_call("first", location="here", at=TIME + 1)
    opened = await lao.open_roll_call(roll_call, at=TIME + 2)
    await lao.close_roll_call(opened, [KEYS[each] for each in attendees], at=TIME + 3)
    return lao


@pytest.mark.parametrize("secret", [False, True])
def test_an_election_from_its_setup_to_its_result(tmp_path: Path, secret: bool) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, client_of(node) as organizer, client_of(node, "attendee") as voter:
            lao = await attended(organizer, "attendee")
            election = await lao.create_election("vote", {"Which?": ["this", "that"]}, secret=secret)
            await election.open()
            theirs = await Lao(voter, lao.id).election(election.id)
            await theirs.vote({"Which?": 0})
            await theirs.vote({"Which?": 1})
            with pytest.raises(LookupError, match="no question"):
                await theirs.vote({"What?": 1})
            await election.end()
            results = await theirs.results()
            assert list(results) == [node.hub.public_key]
            counts = {each.ballot_option: each.count for each in results[node.hub.public_key].questions[0].result}
            assert counts == {"this": 0, "that": 1}
            with pytest.raises(Refused) as raised:
                await theirs.vote({"Which?": 1}, at=now() + 5)
            assert raised.value.code == -1

    asyncio.run(main())


def test_an_election_without_votes_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, client_of(node) as organizer:
            lao = await attended(organizer)
            election = await lao.create_election("vote", {"Which?": ["this", "that"]})
            await election.open()
            await election.end()
            assert len(await election.results()) == 1

    asyncio.run(main())


def test_a_subscription_begins_with_what_is_there_and_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, client_of(node) as organizer, client_of(node, "attendee") as speaker:
            lao = Lao(speaker, (await attended(organizer, "attendee")).id)
            await lao.chirp("before")
            own = channels.of_attendee(lao.id, KEYS["attendee"])
            async with client_of(node, None) as reader:
                subscription = await reader.subscribe(own)
                assert await reader.subscribe(own) is subscription
                await lao.chirp("after")
                assert await texts(subscription, 2) == ["before", "after"]
                await subscription.close()
                assert [each async for each in subscription] == []
                with pytest.raises(Refused) as raised:
                    await reader.subscribe("/root/none")
                assert raised.value.code == -2
                with pytest.raises(ValueError, match="private key"):
                    await reader.publish(own, ChirpAdd(text="x", timestamp=TIME))

    asyncio.run(main())


def test_after_a_restart_of_the_server_nothing_is_missed_and_nothing_comes_twice(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, client_of(node) as organizer:
            lao = await attended(organizer, "attendee")
            port = node.port
            async with client_of(node, "attendee") as speaker:
                await Lao(speaker, lao.id).chirp("one")
            reader = client_of(node, None)
            await reader.__aenter__()
            subscription = await reader.subscribe(channels.of_attendee(lao.id, KEYS["attendee"]))
            assert await texts(subscription, 1) == ["one"]
        async with running_node(tmp_path, port=port) as node, client_of(node, "attendee") as speaker:
            await Lao(speaker, lao.id).chirp("two")
            assert await texts(subscription, 1) == ["two"]
            await Lao(speaker, lao.id).chirp("three")
            assert await texts(subscription, 1) == ["three"]
            await reader.close()

    asyncio.run(main())


def test_a_publish_without_an_answer_is_sent_again_and_a_repeat_is_success(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, client_of(node) as organizer:
            lao = await attended(organizer)
            broken = 0
            original = organizer.received

            def deaf(payload: bytes) -> None:
                """The first answer is lost, and the connection with it."""
                nonlocal broken
                if not broken and b'"result":0' in payload:
                    broken += 1
                    assert organizer._transport is not None
                    organizer._transport.disconnect(graceful=False)
                    return
                original(payload)

            organizer.received = deaf  # type: ignore[method-assign]
            made = await lao.create_roll_call("second", location="here", at=TIME + 9)
            assert broken == 1
            found = [each.data for each in await organizer.catchup(lao.channel)]
            assert [each.id for each in found if isinstance(each, RollCallCreate)].count(made) == 1
            sent = message.sign(b"{}", organizer.signer)  # type: ignore[arg-type]
            with pytest.raises(Refused) as raised:
                await organizer.publish_message(lao.channel, sent)
            assert raised.value.code == -4

    asyncio.run(main())


def test_a_witness_signs(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, client_of(node) as organizer, client_of(node, "witness") as witness:
            lao = await attended(organizer)
            first = (await organizer.catchup(lao.channel))[0]
            await Lao(witness, lao.id).witness(first.id)
            shown = (await organizer.catchup(lao.channel))[0].message.witness_signatures
            assert [each.witness for each in shown] == [KEYS["witness"]]
            assert isinstance((await organizer.catchup(lao.channel))[-1].data, MessageWitness)

    asyncio.run(main())


def test_what_does_not_prove_itself_is_not_handed_out() -> None:
    async def main() -> None:
        client = PopstellarClient("ws://127.0.0.1:9/client")
        subscription = Subscription(client, "/root/a/social/b")
        client._subscriptions[subscription.channel] = subscription
        sent = message.sign(b'{"object":"chirp","action":"add","text":"x","timestamp":1}', client_key())
        forged = msgspec.structs.replace(sent, sender=KEYS["stranger"])
        for each in (forged, sent, sent):
            params = {"channel": subscription.channel, "message": msgspec.to_builtins(each)}
            client.received(msgspec.json.encode({"jsonrpc": "2.0", "method": "broadcast", "params": params}))
        client.received(b"not JSON")
        assert (client.invalid, subscription.waiting) == (1, 1)
        received = await anext(subscription)
        assert isinstance(received, Received)
        assert received.id == sent.message_id

    asyncio.run(main())


def client_key() -> Signer:
    return Signer(PRIVATE["attendee"])


def test_no_server_is_an_error_that_names_the_address() -> None:
    async def main() -> None:
        with pytest.raises(ConnectionEnded, match=r"127\.0\.0\.1:9"):
            async with PopstellarClient("ws://127.0.0.1:9/client"):
                pass

    asyncio.run(main())


def test_what_the_page_shows_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "protocols" / "popstellar.md"
    code = page.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    script, _, _ = code.partition("asyncio.run(")

    async def main() -> None:
        async with running_node(tmp_path) as node:
            namespace: dict[str, Any] = {}
            exec(compile(script.replace("ws://127.0.0.1:7170", node.addresses["ws"]), str(page), "exec"), namespace)
            await namespace["main"](bytes(range(32)))

    asyncio.run(main())
    assert "count=1" in capsys.readouterr().out
