"""However many streams, clients and mistakes a node meets, its metrics have the same series."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from catchment.crypto.ethereum import Signer

from .nodehelp import STREAMR, connected, forge, get, messages, running_node

SERIES = re.compile(rb"^(catchment_[a-z_]+(?:\{[^}]*\})?) ", re.MULTILINE)


def test_the_number_of_series_does_not_depend_on_who_talks(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:

            async def visit(number: int) -> None:
                """Something of everything, under names of its own."""
                stream, signer = f"lagoon-{number}", Signer(bytes([number]) * 32)
                async with connected(node, STREAMR + "&publishAck=1") as peer:
                    raw = messages(stream, 1, signer=signer)[0]
                    await peer.subscribe(stream)
                    for frame in (raw, raw, forge(messages(stream, 1, signer=signer, start=number + 1)[0])):
                        peer.publish(frame, f"ask-me-{number}")
                    peer.send(f'[2,{number + 500},"ask-me-{number}"]')
                    peer.send(f'[{number + 500},9,"ask-me-{number}"]')
                    peer.send(f"rubbish-{number}")
                    peer.send([2, 8, f"ask-me-{number}", [number + 500, [stream, 0, 1, 0, "p", "c"]], None])
                    await peer.ask([2, 11, f"last-{number}", stream, 0, 5, None])
                    for _ in range(8):
                        await peer.next()

            await visit(1)
            before = set(SERIES.findall((await get(node, "/metrics"))[1]))
            for number in range(2, 12):
                await visit(number)
            status, body = await get(node, "/metrics")
            assert status == 200
            assert set(SERIES.findall(body)) == before
            assert len(before) > 20
            for word in (b"lagoon", b"ask-me", b"rubbish", b"127.0.0.1", b"0x"):
                assert word not in body

    asyncio.run(main())
