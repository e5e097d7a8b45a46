"""A node as a PoPStellar server over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from catchment import keyfiles, model
from catchment.net.server import Node
from catchment.wire.popstellar import message
from catchment.wire.popstellar.channels import ROOT
from catchment.wire.popstellar.fields import encode_base64
from catchment.wire.popstellar.message import Message

from ..popstellar.world import (
    BALLOT,
    CHIRPS,
    KEYS,
    OWN,
    TOKEN,
    chirp,
    election_end,
    election_open,
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
from .nodehelp import Peer, connected, get, running_node
from .processes import run


class Client:
    """A PoPStellar client: asks, and keeps what is broadcast meanwhile."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.broadcasts: list[tuple[str, Any]] = []
        self._number = 0

    def start(self, method: str, **params: Any) -> int:
        self._number += 1
        query = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        self.peer.send(msgspec.json.encode(query))
        return self._number

    async def frame(self) -> Any:
        frame = await asyncio.wait_for(self.peer.frames.get(), 30)
        assert frame is not None, f"closed ({self.peer.close_code})"
        return msgspec.json.decode(frame)

    async def answer(self, number: int) -> Any:
        while True:
            frame = await self.frame()
            if frame.get("method") == "broadcast":
                self.broadcasts.append((frame["params"]["channel"], frame["params"]["message"]))
            else:
                assert frame["id"] == number, frame
                return frame.get("result", frame.get("error", {}).get("code"))

    async def ask(self, method: str, **params: Any) -> Any:
        return await self.answer(self.start(method, **params))

    async def publish(self, channel: str, sent: Message) -> Any:
        return await self.ask("publish", channel=channel, message=msgspec.to_builtins(sent))

    async def say(self, who: str, channel: str, value: Any) -> Message:
        sent = signed(who, value)
        assert await self.publish(channel, sent) == 0
        return sent

    async def broadcast(self) -> tuple[str, Any]:
        if not self.broadcasts:
            frame = await self.frame()
            assert frame["method"] == "broadcast", frame
            assert "id" not in frame
            return frame["params"]["channel"], frame["params"]["message"]
        return self.broadcasts.pop(0)


@contextlib.asynccontextmanager
async def client(node: Node) -> AsyncIterator[Client]:
    async with connected(node, "/client") as peer:
        yield Client(peer)


async def with_attendees(one: Client) -> None:
    await one.say("organizer", ROOT, lao_create())
    await one.say("organizer", OWN, roll_call_create())
    await one.say("organizer", OWN, roll_call_open())
    await one.say("organizer", OWN, roll_call_close())


def plain(sent: Message) -> Any:
    return msgspec.to_builtins(sent)


def data_of(sent: Any) -> Any:
    return msgspec.json.decode(message.key_bytes(sent["data"]))


def test_a_message_is_answered_stored_and_broadcast_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, client(node) as one, client(node) as two:
            created = await one.say("organizer", ROOT, lao_create())
            for each in (one, two, two):
                assert await each.ask("subscribe", channel=OWN) == 0
            sent = await one.say("organizer", OWN, roll_call_create())
            for each in (one, two):
                assert await each.broadcast() == (OWN, plain(sent))
            assert await one.publish(OWN, sent) == -3
            found = await two.ask("catchup", channel=OWN)
            assert two.broadcasts == []
            assert [found[0], found[2]] == [plain(created), plain(sent)]
            greeting = data_of(found[1])
            assert (greeting["object"], greeting["action"]) == ("lao", "greet")
            assert greeting["address"] == node.addresses["ws"] + "/client"
            assert found[1]["sender"] == node.hub.public_key
            assert await two.ask("unsubscribe", channel=OWN) == 0
            await one.say("organizer", OWN, roll_call_open())
            assert await two.ask("unsubscribe", channel=OWN) == -2
            assert two.broadcasts == []

    asyncio.run(main())


def test_an_election_from_setup_to_result(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, client(node) as one, client(node) as two:
            await with_attendees(one)
            await one.say("organizer", OWN, setup())
            assert await two.ask("subscribe", channel=BALLOT) == 0
            await one.say("organizer", BALLOT, election_open())
            await one.say("attendee", BALLOT, vote(1))
            await one.say("other attendee", BALLOT, vote(0))
            await one.say("organizer", BALLOT, election_end(vote(1), vote(0)))
            seen = [(await two.broadcast())[1] for _ in range(5)]
            assert [data_of(each)["action"] for each in seen] == ["open", "cast_vote", "cast_vote", "end", "result"]
            assert seen[-1]["sender"] == node.hub.public_key
            assert data_of(seen[-1])["questions"] == msgspec.to_builtins(result(1, 1).questions)
            found = await two.ask("catchup", channel=BALLOT)
            assert [data_of(each)["action"] for each in found] == ["setup", *(data_of(each)["action"] for each in seen)]

    asyncio.run(main())


def test_chirps_are_told_to_everyone(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, client(node) as one, client(node) as two:
            await with_attendees(one)
            assert await two.ask("subscribe", channel=CHIRPS) == 0
            sent = await one.say("attendee", TOKEN, chirp())
            channel, note = await two.broadcast()
            assert channel == CHIRPS
            assert (data_of(note)["chirp_id"], note["sender"]) == (sent.message_id, node.hub.public_key)

    asyncio.run(main())


def test_everything_is_there_again_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, client(node) as one:
            await with_attendees(one)
            await one.say("organizer", OWN, setup("SECRET_BALLOT"))
            sent = await one.say("organizer", BALLOT, election_open())
            assert await one.publish(BALLOT, witnessed(sent, "witness")) == 0
            assert await one.publish(BALLOT, witnessed(sent, "witness")) == -3
            before = {name: await one.ask("catchup", channel=name) for name in (ROOT, OWN, BALLOT, TOKEN)}
            key = node.hub.public_key
        async with running_node(tmp_path) as node, client(node) as one:
            assert node.hub.public_key == key
            for name, found in before.items():
                assert await one.ask("catchup", channel=name) == found
            assert before[BALLOT][-1] == plain(witnessed(sent, "witness"))
            assert await one.publish(BALLOT, sent) == -3
            await one.say("organizer", BALLOT, election_end(registered=""))
            last = (await one.ask("catchup", channel=BALLOT))[-1]
            assert (data_of(last)["action"], last["sender"]) == ("result", key)

    asyncio.run(main())


def test_a_late_witness_signature_is_kept_and_not_broadcast(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, client(node) as one:
            await one.say("organizer", ROOT, lao_create())
            sent = await one.say("organizer", OWN, roll_call_create())
            assert await one.ask("subscribe", channel=OWN) == 0
            assert await one.publish(OWN, witnessed(sent, "witness")) == 0
            found = await one.ask("get_messages_by_id", **{OWN: [sent.message_id, "unknown"]})
            assert found == {OWN: [plain(witnessed(sent, "witness"))]}
            assert one.broadcasts == []
            kinds = [row.entry.kind for row in node.store.read(0, 100)]
            assert kinds.count(model.Kind.WITNESS) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("channel", "sent", "code"),
    [
        (ROOT, signed("stranger", lao_create()), -5),
        (ROOT, signed("organizer", roll_call_create()), -1),
        ("/root/none", signed("organizer", lao_create("another")), -2),
        (OWN, signed("stranger", roll_call_create()), -5),
        (OWN, signed("organizer", {"object": "roll_call", "action": "create"}), -4),
        (OWN, signed("organizer", roll_call_open()), -4),
        (
            OWN,
            msgspec.structs.replace(signed("organizer", roll_call_create()), sender=KEYS["stranger"]),
            -4,
        ),
        (
            OWN,
            msgspec.structs.replace(signed("organizer", roll_call_create()), message_id=encode_base64(bytes(32))),
            -4,
        ),
        (
            OWN,
            msgspec.structs.replace(
                signed("organizer", roll_call_create()),
                witness_signatures=[message.WitnessSignature(KEYS["witness"], encode_base64(bytes(64)))],
            ),
            -4,
        ),
    ],
)
def test_a_refusal_has_its_code_changes_nothing_and_others_notice_nothing(
    tmp_path: Path, channel: str, sent: Message, code: int
) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, client(node) as one, client(node) as two:
            await one.say("organizer", ROOT, lao_create())
            assert await two.ask("subscribe", channel=OWN) == 0
            before = await two.ask("catchup", channel=OWN)
            assert await one.publish(channel, sent) == code
            assert await two.ask("catchup", channel=OWN) == before
            good = await one.say("organizer", OWN, roll_call_create())
            assert await two.broadcast() == (OWN, plain(good))
            status, text = await get(node, "/metrics")
            assert status == 200
            assert b'messages_refused_total{protocol="popstellar"' in text

    asyncio.run(main())


def test_too_large_a_frame_closes_with_1009(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, client(node) as one, client(node) as two:
            one.peer.send(b" " * (256 * 1024 + 1))
            await asyncio.wait_for(one.peer.closed.wait(), 30)
            assert one.peer.close_code == 1009
            assert await two.ask("catchup", channel=ROOT) == []
            two.peer.send(b" " * (256 * 1024))
            assert (await two.frame())["error"]["code"] == -4

    asyncio.run(main())


def test_dependent_messages_sent_at_once_are_taken_in_their_order(tmp_path: Path) -> None:
    """State decisions follow the order of the log: no waiting for answers is needed."""

    async def main() -> None:
        async with running_node(tmp_path) as node, client(node) as one:
            steps = [
                ("organizer", ROOT, lao_create()),
                ("organizer", OWN, roll_call_create()),
                ("organizer", OWN, roll_call_open()),
                ("organizer", OWN, roll_call_close()),
                ("organizer", OWN, setup()),
                ("organizer", BALLOT, election_open()),
                ("attendee", BALLOT, vote(1)),
                ("organizer", BALLOT, election_end(vote(1))),
                ("attendee", BALLOT, vote(0)),
            ]
            numbers = [
                one.start("publish", channel=channel, message=plain(signed(who, value)))
                for who, channel, value in steps
            ]
            assert [await one.answer(number) for number in numbers] == [0] * 8 + [-1]

    asyncio.run(main())


def test_a_full_disk_is_answered_and_the_state_goes_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, client(node) as one:
            await one.say("organizer", ROOT, lao_create())
            node.store.max_bytes = 1
            sent = signed("organizer", roll_call_create())
            assert await one.publish(OWN, sent) == -6
            assert await one.publish(OWN, sent) == -6
            node.store.max_bytes = None
            assert await one.publish(OWN, sent) == 0
            assert [each["message_id"] for each in await one.ask("catchup", channel=OWN)][2:] == [sent.message_id]

    asyncio.run(main())


def test_a_subscriber_that_stops_reading_slows_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        count = 3000
        async with running_node(tmp_path, outbox_bytes=200_000) as node, client(node) as one, client(node) as two:
            await with_attendees(one)
            async with client(node) as lazy:
                for each in (two, lazy):
                    assert await each.ask("subscribe", channel=TOKEN) == 0
                lazy.peer.transport.underlying_transport.pause_reading()
                sent = [signed("attendee", chirp(f"{'x' * 200} {number}")) for number in range(count)]
                numbers = [one.start("publish", channel=TOKEN, message=plain(each)) for each in sent]
                assert [await one.answer(number) for number in numbers] == [0] * count
                assert [(await two.broadcast())[1]["message_id"] for _ in sent] == [each.message_id for each in sent]
                found = await two.ask("catchup", channel=TOKEN)
                assert [each["message_id"] for each in found] == [each.message_id for each in sent]

    asyncio.run(main())


def test_the_servers_key_is_made_once_and_only_its_owners(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            path = tmp_path / keyfiles.POPSTELLAR
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            shown = await asyncio.to_thread(run, "keys", "show", str(path), "--popstellar", "--json")
            assert msgspec.json.decode(shown.stdout) == {
                "protocol": "popstellar",
                "public_key": node.hub.public_key,
                "file": str(path),
            }

    asyncio.run(main())


def test_a_streamr_stream_of_a_channels_name_is_another_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, client(node) as one, connected(node) as streamr:
            await one.say("organizer", ROOT, lao_create())
            await streamr.subscribe(OWN)
            await one.say("organizer", OWN, roll_call_create())
            assert await streamr.ask([2, 11, "r", OWN, 0, 10, None]) == [2, 6, "r", OWN, 0]

    asyncio.run(main())
