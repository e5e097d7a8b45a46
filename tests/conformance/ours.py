"""Our own client beside the published ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from catchment.client.streamr import KeyStore, Received, StreamrClient

from ..net.processes import NodeProcess

T = TypeVar("T")
PRIVATE_KEY = b"\x03" * 32


def received(
    node: NodeProcess, stream: str, count: int, act: Callable[[], None], keys: KeyStore | None = None
) -> list[Received]:
    """What our client is given of a stream while something is done, checked by itself."""

    async def run() -> list[Received]:
        async with StreamrClient(node.url, private_key=PRIVATE_KEY, keystore=keys, rsa_bits=2048) as client:
            await client.open_subscription(stream)
            await asyncio.to_thread(act)
            messages = client.subscribe(stream)
            return [await anext(messages) for _ in range(count)]

    return asyncio.run(asyncio.wait_for(run(), 60))


def publish_encrypted(
    node: NodeProcess,
    stream: str,
    contents: list[object],
    rotations: int,
    until: Callable[[], T],
    keys: KeyStore | None = None,
) -> T:
    """Publish, with a new key before each of the last messages, and hand out keys until something is there."""

    async def run() -> T:
        async with StreamrClient(node.url, private_key=PRIVATE_KEY, keystore=keys) as client:
            for number, content in enumerate(contents):
                if number >= len(contents) - rotations:
                    await client.rotate_key(stream)
                await client.publish(stream, content, encrypt=True)
            return await asyncio.to_thread(until)

    return asyncio.run(asyncio.wait_for(run(), 60))


def publish(node: NodeProcess, stream: str, *contents: object) -> None:
    """Publish with our client."""

    async def run() -> None:
        async with StreamrClient(node.url, private_key=PRIVATE_KEY) as client:
            for content in contents:
                await client.publish(stream, content)

    asyncio.run(asyncio.wait_for(run(), 60))
