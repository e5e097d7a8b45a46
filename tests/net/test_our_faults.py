"""What breaks in our own code is logged, answered where someone waits, and ends nothing but its own piece of work."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NoReturn

import pytest

from .nodehelp import STREAMR, connected, get, messages, running_node


class BrokenError(Exception):
    """Nothing the code expects."""


def broken(*_: object, **__: object) -> NoReturn:
    raise BrokenError


def test_a_frame_that_breaks_us_ends_its_connection_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, connected(node) as victim:
            (its_own,) = node.connections
            async with connected(node) as other:
                its_own.session.receive = broken  # type: ignore[method-assign]
                victim.send("[]")
                await asyncio.wait_for(victim.closed.wait(), 30)
                assert victim.close_code == 1011
                await other.subscribe("s")

    asyncio.run(main())
    assert "broke its connection" in caplog.text


def test_a_resend_that_breaks_is_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, connected(node) as peer:
            node.resender._history.range = broken  # type: ignore[method-assign]
            assert (await peer.ask([2, 12, "r", "s", 0, [0, 0], None, None]))[2::2] == ["r", "RESEND_FAILED"]
            await peer.subscribe("s")

    asyncio.run(main())
    assert "a resend of" in caplog.text


def test_a_delivery_that_breaks_loses_nothing_and_blocks_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, connected(node, STREAMR + "&publishAck=1") as peer:
            first, second = messages("s", 2)
            deliver = node.broker.deliver
            node.broker.deliver = broken  # type: ignore[method-assign]
            peer.publish(first)
            await peer.subscribe("t")  # the publish was read
            await asyncio.wait_for(node.ingest.drained(), 30)
            node.broker.deliver = deliver  # type: ignore[method-assign]
            peer.publish(second)
            assert (await peer.next())[3] == "stored"
            assert [row.entry.raw for row in node.store.read(0, 5)] == [first, second]

    asyncio.run(main())
    assert "delivering a batch failed" in caplog.text


def test_a_seal_that_breaks_is_shown_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            seal_all = node.sealer.seal_all
            node.sealer.seal_all = broken  # type: ignore[method-assign]
            await node.seal()
            assert (await get(node, "/readyz"))[0] == 503
            node.sealer.seal_all = seal_all  # type: ignore[method-assign]
            await node.seal()
            assert (await get(node, "/readyz"))[0] == 200

    asyncio.run(main())
    assert "sealing failed" in caplog.text
