"""Publish encrypted, read with a key asked for through the node, rotate, and take the key away from a reader.

`python examples/encrypted.py [ws://127.0.0.1:7170]`, with a node running there (`catchment serve`).
"""

from __future__ import annotations

import asyncio
import secrets
import sys

from catchment.client.streamr import Last, StreamrClient


async def main(url: str) -> None:
    """Talk to the node at `url`."""
    stream = f"example/{secrets.token_hex(4)}"
    reader = StreamrClient(url, private_key=secrets.token_bytes(32), rsa_bits=2048)
    readers = {reader.address}
    writer = StreamrClient(url, private_key=secrets.token_bytes(32), allow=lambda stream, address: address in readers)
    async with writer, reader:
        await writer.publish(stream, {"level": 1}, encrypt=True)  # makes a key
        await writer.rotate_key(stream)
        await writer.publish(stream, {"level": 2}, encrypt=True)  # brings the next key along
        await writer.publish(stream, {"level": 3}, encrypt=True)  # is under it
        async for received in reader.resend_last(stream, 3):
            print("history:", received.content, "of", len(received.message.content), "digits")
        async for received in reader.subscribe(stream, resend=Last(1)):
            print("live:", received.content)
            break
        readers.clear()
        print("told about the new key:", await writer.rekey(stream))
        await writer.publish(stream, {"level": 4}, encrypt=True)
    async with StreamrClient(url) as stranger:
        async for received in stranger.resend_last(stream, 1):
            print("without a key:", "encrypted" if received.encrypted else received.content)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:7170"))
