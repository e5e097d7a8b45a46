"""Subscriptions that are interrupted, slow, or lack messages: nothing lost, nothing twice, in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from picows import WSUpgradeResponse

from catchment import model
from catchment.client.streamr import (
    Chain,
    ConnectionEnded,
    From,
    GapOpen,
    Happening,
    Last,
    Patience,
    Range,
    Received,
    Refused,
    ResendFailed,
    StreamrClient,
    Subscription,
    now_ms,
)
from catchment.client.streamr.values import Arrived
from catchment.crypto.ethereum import Signer
from catchment.net.server import Node
from catchment.sessions.streamr import StreamrSession
from catchment.wire.streamr import message

from ..net.nodehelp import forge, running_node
from ..net.processes import NodeProcess, node_process

ALICE = b"\x41" * 32
BOB = b"\x42" * 32
IMPATIENT = Patience(gap_delay=20, retry_delay=20, max_requests=3)


def run(main: Callable[[Node], Any], folder: Path, **settings: object) -> None:
    async def with_node() -> None:
        async with asyncio.timeout(120), running_node(folder, **settings) as node:
            await main(node)

    asyncio.run(with_node())


def client(node: Node, key: bytes | None = None, **options: Any) -> StreamrClient:
    return StreamrClient(node.addresses["ws"], private_key=key, **{"attempts": 20, **options})


@contextlib.asynccontextmanager
async def reading(reader: StreamrClient, **options: Any) -> AsyncGenerator[Subscription, None]:
    subscription = await reader.open_subscription("s", **{"events": True, **options})
    try:
        yield subscription
    finally:
        await subscription.close()


async def take(messages: Subscription, count: int) -> list[Happening]:
    async with asyncio.timeout(60):
        return [await anext(messages) for _ in range(count)]


def values(happenings: list[Happening]) -> list[object]:
    assert all(isinstance(each, Received) for each in happenings), happenings
    return [each.value for each in happenings if isinstance(each, Received)]


def cut_all(node: Node) -> None:
    for connection in list(node.connections):
        connection.cut()


@pytest.mark.parametrize("name", ["last", "last none", "from", "range"])
def test_history_then_what_is_new(tmp_path: Path, name: str) -> None:
    start = now_ms() - 1000
    resend, old = {
        "last": (Last(2), [3, 4]),
        "last none": (Last(0), []),
        "from": (From(start + 1), [1, 2, 3, 4]),
        "range": (Range(start + 1, start + 2), [1, 2]),
    }[name]

    async def main(node: Node) -> None:
        async with client(node, ALICE) as alice, client(node) as reader:
            for number in range(5):
                await alice.publish("s", number, timestamp=start + number)
            async with reading(reader, resend=resend) as messages:
                await alice.publish("s", "1000")
                await alice.publish("s", "1001")
                assert values(await take(messages, len(old) + 2)) == [*old, 1000, 1001]

    run(main, tmp_path)


def test_history_of_one_publisher(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, ALICE) as alice, client(node, BOB) as bob, client(node) as reader:
            for number in range(3):
                await alice.publish("s", number)
                await bob.publish("s", -number)
            async with reading(reader, resend=From(0, publisher=alice.address)) as messages:
                assert values(await take(messages, 3)) == [0, 1, 2]

    run(main, tmp_path)


def test_two_iterators_share_one_wire_subscription_and_each_gets_everything_once(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, ALICE) as alice, client(node) as reader:
            async with reading(reader) as one, reading(reader) as two:
                assert node.broker.subscriptions.count() == 1
                for number in range(3):
                    await alice.publish("s", number)
                assert values(await take(one, 3)) == values(await take(two, 3)) == [0, 1, 2]
            async with reading(reader):  # on the same connection: the node has read the unsubscribe before
                assert node.broker.subscriptions.count() == 1

    run(main, tmp_path)


def test_leaving_one_iterator_leaves_the_other(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, ALICE) as alice, client(node) as reader, reading(reader) as one:
            async with reading(reader):
                pass
            await alice.publish("s", 1)
            assert values(await take(one, 1)) == [1]

    run(main, tmp_path)


@pytest.mark.parametrize("cuts", [1, 4])
def test_connections_that_break_while_messages_flow(tmp_path: Path, cuts: int) -> None:
    async def main(node: Node) -> None:
        async with (
            client(node, ALICE) as alice,
            client(node, BOB) as bob,
            client(node) as reader,
            reading(reader, patience=IMPATIENT) as messages,
        ):

            async def publish(who: StreamrClient, sign: int) -> None:
                for number in range(1, 301):
                    if number % (300 // (cuts + 1)) == 0:
                        cut_all(node)
                    await who.publish("s", sign * number)

            async with asyncio.TaskGroup() as group:
                group.create_task(publish(alice, 1))
                group.create_task(publish(bob, -1))
            got = [each for each in values(await take(messages, 600)) if isinstance(each, int)]
            assert [each for each in got if each > 0] == list(range(1, 301))
            assert [each for each in got if each < 0] == list(range(-1, -301, -1))
            await alice.publish("s", 0)
            assert values(await take(messages, 1)) == [0]

    run(main, tmp_path)


def test_what_was_published_while_we_were_away_comes_also_from_those_not_known_before(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, ALICE) as alice, client(node) as reader, reading(reader) as messages:
            await alice.publish("s", 1)
            assert values(await take(messages, 1)) == [1]
            opened = asyncio.Event()
            connect = reader._reading._try_to_connect

            async def held_back() -> Any:
                await opened.wait()
                return await connect()

            reader._reading._try_to_connect = held_back  # type: ignore[method-assign]
            cut_all(node)
            await alice.publish("s", 2)
            async with client(node, BOB) as bob:
                await bob.publish("s", 3)
            opened.set()
            assert sorted(values(await take(messages, 2))) == [2, 3]  # type: ignore[type-var]

    run(main, tmp_path)


def test_nothing_new_is_taken_before_the_history_of_an_interruption(tmp_path: Path) -> None:
    """A publisher begins while we are away and goes on before we have read what we missed."""

    async def main(node: Node) -> None:
        async with client(node, ALICE) as alice, client(node, BOB) as bob, client(node) as reader:
            messages = await reader.open_subscription("s", events=True)
            live = messages.live
            messages.live = lambda arrived: None  # type: ignore[method-assign]  # nothing comes by itself
            await alice.publish("s", 0)
            messages.lost()
            chain = Chain("s", 0, signer=Signer(BOB))
            raw = [chain.make(str(number), now_ms()) for number in (1, 2)]
            for each in raw:
                await bob.publish_raw(each)
            live(Arrived(message.decode(raw[1]), raw[1]))  # the first thing heard after the interruption
            await asyncio.sleep(0)
            messages.resumed()
            assert values(await take(messages, 3)) == [0, 1, 2]

    run(main, tmp_path)


def test_a_quiet_publisher_is_looked_at_from_its_own_last_message(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, ALICE) as alice, client(node) as reader, reading(reader) as messages:
            long_ago = now_ms() - 1_000_000
            await alice.publish("s", 1, timestamp=long_ago)
            assert values(await take(messages, 1)) == [1]
            messages.live = lambda arrived: None  # type: ignore[method-assign]  # what comes now is lost
            await alice.publish("s", 2, timestamp=long_ago + 1)
            del messages.live  # type: ignore[method-assign]
            cut_all(node)
            assert values(await take(messages, 1)) == [2]

    run(main, tmp_path)


def test_a_resend_goes_on_where_a_broken_connection_stopped_it(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, ALICE) as alice, client(node) as reader:
            chain = Chain("s", 0, signer=Signer(ALICE))
            sent = [chain.make(f'{{"n":{number}}}', 1_700_000_000_000 + number // 7) for number in range(5000)]
            for waiting in [await alice.send_raw(raw) for raw in sent]:
                await waiting
            for messages in (
                reader.resend_last("s", 4000),
                reader.resend_range("s", model.FIRST_REF),
                reader.resend_range("s", model.FIRST_REF, model.LAST_REF),
                reader.resend_range("s", model.FIRST_REF, publisher=alice.address, chain=chain.chain_id),
            ):
                got = []
                async for received in messages:
                    got.append(received.raw)
                    if len(got) in (100, 2500):
                        cut_all(node)
                assert got == sent[-len(got) :]
                assert len(got) in (4000, 5000)

    run(main, tmp_path)


def test_a_gap_is_asked_for_and_filled_from_the_history(tmp_path: Path) -> None:
    """A message whose delivery was lost on the way: the node has it, the subscriber has not."""

    async def main(node: Node) -> None:
        async with (
            client(node, ALICE) as alice,
            client(node) as reader,
            reading(reader, patience=IMPATIENT) as messages,
        ):
            lost = {2, 3}
            live = messages.live
            messages.live = lambda arrived: None if int(arrived.message.content) in lost else live(arrived)  # type: ignore[method-assign]
            for number in range(6):
                await alice.publish("s", number)
            assert values(await take(messages, 6)) == [0, 1, 2, 3, 4, 5]

    run(main, tmp_path)


def test_a_gap_that_is_filled_later_waits_and_one_that_is_not_is_said(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, ALICE) as alice, client(node) as reader:
            chain = Chain("s", 0, signer=Signer(ALICE))
            made = [chain.make(str(number), now_ms()) for number in range(8)]
            async with reading(reader, patience=Patience(gap_delay=20, retry_delay=20, max_requests=1000)) as messages:
                for number in (0, 1, 3, 4):
                    await alice.publish_raw(made[number])
                assert values(await take(messages, 2)) == [0, 1]
                await alice.publish_raw(made[2])
                assert values(await take(messages, 3)) == [2, 3, 4]
            async with reading(reader, patience=IMPATIENT) as messages:
                for number in (5, 7):
                    await alice.publish_raw(made[number])
                first, gap, last = await take(messages, 3)
                assert values([first, last]) == [5, 7]
                assert isinstance(gap, GapOpen)
                assert gap.key.publisher == alice.address

    run(main, tmp_path)


def test_a_storage_error_does_not_end_a_subscription(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(node: Node) -> None:
        async with client(node, ALICE) as alice, client(node) as reader:
            monkeypatch.setattr(node.resender._history, "range", _broken)
            monkeypatch.setattr(node.resender._history, "before_last", _broken)
            async with reading(reader, resend=Last(5), patience=IMPATIENT) as messages:
                (failed,) = await take(messages, 1)
                assert isinstance(failed, ResendFailed)
                assert failed.code == "RESEND_FAILED"
                chain = Chain("s", 0, signer=Signer(ALICE))
                made = [chain.make(str(number), now_ms()) for number in range(4)]
                for number in (0, 1, 3):
                    await alice.publish_raw(made[number])
                got = await take(messages, 3 + IMPATIENT.max_requests + 1)
                assert values([each for each in got if isinstance(each, Received)]) == [0, 1, 3]
                assert [type(each) for each in got[2:-2]] == [ResendFailed] * IMPATIENT.max_requests
                assert isinstance(got[-2], GapOpen)
            with pytest.raises(Refused, match="Failed to resend"):
                await anext(reader.resend_last("s", 1))

    run(main, tmp_path)


def _broken(*arguments: object, **options: object) -> None:
    raise OSError("the disk is gone")


def test_a_slow_reader_loses_nothing_and_holds_little(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with (
            client(node, ALICE) as alice,
            client(node) as reader,
            client(node) as quick,
            reading(reader) as slow,
            reading(quick) as messages,
        ):
            slow._high, slow._low = 50, 25
            chain = Chain("s", 0, signer=Signer(ALICE))
            for waiting in [await alice.send_raw(chain.make(str(number), now_ms())) for number in range(3000)]:
                await waiting
            assert values(await take(messages, 3000)) == list(range(3000))
            assert len(slow._out) + len(slow._inbox) <= 50
            got = []
            for _ in range(3000):
                got += await take(slow, 1)
                assert len(slow._out) <= 51
            assert values(got) == list(range(3000))
            assert slow.forced_resends >= 1

    run(main, tmp_path)


def test_a_reader_may_publish_and_wait_while_much_is_resent(tmp_path: Path) -> None:
    """Reading stops when nobody takes what comes; that must not hold up the confirmation the reader waits for."""

    async def main(node: Node) -> None:
        async with client(node, ALICE) as alice:
            chain = Chain("s", 0, signer=Signer(ALICE))
            made = [chain.make(f'"{number}{"x" * 500}"', now_ms()) for number in range(8000)]
            for waiting in [await alice.send_raw(raw) for raw in made]:
                await waiting
            seen = 0
            async for _ in alice.resend_last("s", 8000):
                seen += 1
                if seen % 1000 == 1:
                    assert await alice.publish("t", seen) == "stored"
            assert seen == 8000

    run(main, tmp_path)


def test_leaving_a_resend_in_the_middle_leaves_nothing_behind(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, ALICE) as alice:
            chain = Chain("s", 0, signer=Signer(ALICE))
            made = [chain.make(f'"{number}{"x" * 500}"', now_ms()) for number in range(8000)]
            for waiting in [await alice.send_raw(raw) for raw in made]:
                await waiting
            paused = asyncio.Event()  # when so much came that the connection is not read any further
            pause = alice._reading.pause_reading
            alice._reading.pause_reading = lambda: (pause(), paused.set())  # type: ignore[method-assign]
            history = alice.resend_last("s", 8000)
            assert (await anext(history)).raw == made[0]
            await paused.wait()
            await history.aclose()
            assert not alice._reader._pipes
            assert [each.raw async for each in alice.resend_last("s", 1)] == made[-1:]
            again = alice.resend_last("s", 8000)
            await anext(again)
        await again.aclose()

    run(main, tmp_path)


def test_a_subscription_that_was_closed_is_not_gone_on_from(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, ALICE) as alice:
            await (await alice.open_subscription("s")).close()
            await alice.open_subscription("s")
            await alice.publish("s", 1)
            async for received in alice.subscribe("s"):
                assert received.value == 1
                break

    run(main, tmp_path)


def test_forged_messages_reach_nobody(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with (
            client(node, ALICE) as alice,
            client(node) as reader,
            reading(reader, patience=IMPATIENT) as messages,
        ):
            raw = Chain("s", 0, signer=Signer(ALICE)).make('{"n":1}', now_ms())
            with pytest.raises(Refused):
                await alice.publish_raw(forge(raw))
            # A node that lets them through is not believed.
            messages.live(Arrived(message.decode(forge(raw)), forge(raw)))
            await alice.publish("s", 2)
            assert values(await take(messages, 1)) == [2]
            assert reader.forged == 1

    run(main, tmp_path)


def test_a_refused_message_leaves_no_hole(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node, ALICE) as alice, client(node) as reader, reading(reader) as messages:
            await alice.publish("s", 1)
            with pytest.raises(Refused, match="future"):
                await alice.publish("s", 2, timestamp=now_ms() + 10_000_000)
            with pytest.raises(Refused, match="over the limit"):
                await alice.publish("s", "x" * 2_000_000)
            await alice.publish("s", 3)
            got = await take(messages, 2)
            assert values(got) == [1, 3]
            assert isinstance(got[0], Received)
            assert isinstance(got[1], Received)
            prev = got[1].message.prev_msg_ref
            assert prev is not None
            assert model.Ref(prev.timestamp, prev.sequence_number) == got[0].ref

    run(main, tmp_path)


def test_a_server_that_acknowledges_nothing_is_published_to_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("catchment.net.server.WSUpgradeResponse", _NamelessResponse)
    opened = StreamrSession.open.__func__  # type: ignore[attr-defined]

    def without_ack(kind: type[StreamrSession], query: dict[str, str], *rest: object) -> StreamrSession:
        made: StreamrSession = opened(
            kind, {name: value for name, value in query.items() if name != "publishAck"}, *rest
        )
        return made

    monkeypatch.setattr(StreamrSession, "open", classmethod(without_ack))

    async def main(node: Node) -> None:
        async with client(node, ALICE) as alice, client(node) as reader, reading(reader) as messages:
            assert await alice.publish("s", 1) == "sent"
            assert values(await take(messages, 1)) == [1]

    run(main, tmp_path)


class _NamelessResponse:
    """The upgrade of a server that is not ours."""

    create_error_response = WSUpgradeResponse.create_error_response

    @classmethod
    def create_101_response(cls, headers: object = None) -> Any:
        return WSUpgradeResponse.create_101_response(None)


def test_a_subscription_that_is_refused_says_why(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node) as reader:
            with pytest.raises(Refused, match="partition"):
                await reader.open_subscription("s", partition=7)
            async with reading(reader):
                pass

    run(main, tmp_path)


def test_closing_ends_an_iteration(tmp_path: Path) -> None:
    async def main(node: Node) -> None:
        async with client(node) as reader:
            subscription = await reader.open_subscription("s")
            ending = asyncio.ensure_future(subscription.next())
            await asyncio.sleep(0)
            await reader.close()
            assert await asyncio.wait_for(ending, 10) is None
            with pytest.raises(ConnectionEnded):
                await reader.publish("s", 1)

    run(main, tmp_path)


@pytest.mark.crash
def test_a_node_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    """kill -9 while messages flow, twice: every confirmed message is delivered once and in order."""

    async def main() -> None:
        with contextlib.ExitStack() as stack:
            node = stack.enter_context(node_process(tmp_path))
            port = node.url.rsplit(":", 1)[1]
            options: dict[str, Any] = {"attempts": 60}
            async with (
                StreamrClient(node.url, private_key=ALICE, **options) as alice,
                StreamrClient(node.url, **options) as reader,
            ):
                messages = await reader.open_subscription("s", events=True, patience=IMPATIENT)
                chain = Chain("s", 0, signer=Signer(ALICE))
                waiting = []
                for number in range(3000):
                    waiting.append(await alice.send_raw(chain.make(str(number), now_ms())))
                    if number in (1000, 2000):
                        await waiting[number - 500]
                        node.process.kill()
                        await asyncio.to_thread(node.process.wait, 30)
                        node = await asyncio.to_thread(_again, stack, tmp_path, port)
                outcomes = await asyncio.wait_for(asyncio.gather(*waiting), 60)
                assert set(outcomes) <= {"stored", "duplicate"}
                got = await take(messages, 3000)
                assert values(got) == list(range(3000))
                await alice.publish("s", -1)
                assert values(await take(messages, 1)) == [-1]

    asyncio.run(main())


def _again(stack: contextlib.ExitStack, folder: Path, port: str) -> NodeProcess:
    return stack.enter_context(node_process(folder, "--port", port))
