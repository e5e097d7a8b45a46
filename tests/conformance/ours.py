"""Our own client beside the published ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from catchment.client.streamr import Received, StreamrClient

from ..net.processes import NodeProcess

PRIVATE_KEY = b"\x03" * 32


def received(node: NodeProcess, stream: str, count: int, act: Callable[[], None]) -> list[Received]:
    """What our client is given of a stream while something is done, checked by itself."""

    async def run() -> list[Received]:
        async with StreamrClient(node.url) as client:
            await client.open_subscription(stream)
            await asyncio.to_thread(act)
            messages = client.subscribe(stream)
            return [await anext(messages) for _ in range(count)]

    return asyncio.run(asyncio.wait_for(run(), 60))


def publish(node: NodeProcess, stream: str, *contents: object) -> None:
    """Publish with our client."""

    async def run() -> None:
        async with StreamrClient(node.url, private_key=PRIVATE_KEY) as client:
            for content in contents:
                await client.publish(stream, content)

    asyncio.run(asyncio.wait_for(run(), 60))
