"""Subscribe, publish three signed messages with confirmation, read the last two from the history.

`python examples/publish_and_subscribe.py [ws://127.0.0.1:7170]`, with a node running there (`catchment serve`).
"""

from __future__ import annotations

import asyncio
import secrets
import sys

from catchment.client.streamr import StreamrClient


async def main(url: str) -> None:
    """Talk to the node at `url`."""
    stream = f"example/{secrets.token_hex(4)}"
    async with StreamrClient(url) as reader, StreamrClient(url, private_key=secrets.token_bytes(32)) as writer:
        await reader.open_subscription(stream)  # returns once the node has said yes
        for level in (1, 2, 3):
            print("publish:", await writer.publish(stream, {"level": level}))  # "stored": it is on disk
        async for received in reader.subscribe(stream):
            print("live:", received.message.content)
            if received.message.content == '{"level":3}':
                break
        async for received in reader.resend_last(stream, 2):
            print("history:", received.message.content)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:7170"))
