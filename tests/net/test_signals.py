"""How a node ends: one SIGTERM drains, a second ends it at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from pathlib import Path

from catchment.client.streamr import StreamrClient

from .nodehelp import STREAMR
from .processes import NodeProcess, node_process

UPGRADE = (
    f"GET {STREAMR} HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    "sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


async def _goodbye(node: NodeProcess) -> asyncio.StreamWriter:
    """Connect, send SIGTERM, and return once the close frame came, without answering it."""
    host, port = node.url.removeprefix("ws://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(UPGRADE.encode())
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    node.process.send_signal(signal.SIGTERM)
    head = await reader.readexactly(2)
    assert head[0] == 0x88
    assert int.from_bytes(await reader.readexactly(2)) == 1001
    return writer


def test_one_sigterm_drains(tmp_path: Path) -> None:
    with node_process(tmp_path) as node:

        async def main() -> None:
            writer = await _goodbye(node)
            writer.close()
            await writer.wait_closed()

        asyncio.run(main())
        assert node.wait() == 0


async def _stuck_subscriber(node: NodeProcess) -> socket.socket:
    """Subscribe to a stream and read nothing of the megabytes that are then published to it."""
    host, port = node.url.removeprefix("ws://").split(":")
    stuck = socket.socket()
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stuck.connect((host, int(port)))
    request = b'[2,9,"r","s",0,null]'
    stuck.sendall(UPGRADE.encode() + bytes([0x81, 0x80 | len(request), 0, 0, 0, 0]) + request)
    seen = b""
    while b'[2,2,"r","s",0]' not in seen:
        seen += await asyncio.to_thread(stuck.recv, 1000)
    async with StreamrClient(node.url) as publisher:
        for _ in range(200):
            await publisher.publish("s", "x" * 50_000)
    return stuck


async def _until_refused(node: NodeProcess) -> None:
    """Wait until the node listens no more: it has begun to drain."""
    host, port = node.url.removeprefix("ws://").split(":")
    with contextlib.suppress(ConnectionError):
        while True:
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            await writer.wait_closed()


def test_a_second_sigterm_ends_at_once(tmp_path: Path) -> None:
    with node_process(tmp_path) as node:

        async def main() -> None:
            stuck = await _stuck_subscriber(node)
            node.process.send_signal(signal.SIGTERM)
            await _until_refused(node)  # it now waits for the stuck one to read its goodbye
            node.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(node.process.wait, 30) == 1
            stuck.close()

        asyncio.run(main())
