"""Plain HTTP on the same port, and upgrades that are refused in HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from picows import WSHandshakeError

from catchment.net.http import MAX_HEAD

from .nodehelp import STREAMR, connected, get, messages, running_node


def test_health_readiness_metrics_and_information(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            assert await get(node, "/healthz") == (200, b'{"status":"ok"}\n')
            status, body = await get(node, "/readyz")
            assert status == 200
            assert msgspec.json.decode(body) == {
                "ready": True,
                "checks": {"store": "ok", "sealing": "ok", "accepting": "ok"},
            }
            async with connected(node, STREAMR + "&publishAck=1") as peer:
                peer.publish(messages("s", 1)[0])
                await peer.next()
                status, body = await get(node, "/api/info")
                info = msgspec.json.decode(body)
                assert (info["next_offset"], info["connections"]) == (1, 1)
                assert info["node"] == node.store.node.hex()
            status, body = await get(node, "/metrics")
            assert status == 200
            assert b'catchment_broker_messages_accepted_total{protocol="streamr",version="32"}' in body

    asyncio.run(main())


def test_unknown_pages_and_methods(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            status, body = await get(node, "/nowhere")
            assert status == 404
            assert "/healthz" in msgspec.json.decode(body)["pages"]
            assert (await get(node, "/healthz", method="POST"))[0] == 405
            assert await get(node, "/healthz", method="HEAD") == (200, b"")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("target", "status", "text"),
    [
        ("/api/v1/ws?controlLayerVersion=9&messageLayerVersion=32", 400, "Unsupported controlLayerVersion"),
        ("/api/v1/ws?controlLayerVersion=2&messageLayerVersion=x", 400, "Unsupported messageLayerVersion"),
        ("/elsewhere", 404, "/api/v1/ws"),
    ],
)
def test_upgrades_nobody_can_serve(tmp_path: Path, target: str, status: int, text: str) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            with pytest.raises(WSHandshakeError) as refused:
                async with connected(node, target):
                    pass
            assert refused.value.response is not None
            assert refused.value.response.status == status
            assert text in (refused.value.raw_body or b"").decode()

    asyncio.run(main())


def test_a_head_without_end_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
            writer.write(b"GET / HTTP/1.1\r\nx: " + b"y" * (MAX_HEAD + 1))
            assert (await reader.read()).startswith(b"HTTP/1.1 431 ")
            writer.close()

    asyncio.run(main())


def test_a_head_that_comes_byte_by_byte_is_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
            for byte in b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n":
                writer.write(bytes([byte]))
                await writer.drain()
            assert b'{"status":"ok"}' in await reader.read()
            writer.close()

    asyncio.run(main())


def test_the_ready_file_names_what_listens(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path, ready_file=str(tmp_path / "ready")) as node:
            node.write_ready_file()
            ready = msgspec.json.decode((tmp_path / "ready").read_bytes())
            assert ready["http"] == f"http://127.0.0.1:{node.port}"
            assert ready["ws"] == f"ws://127.0.0.1:{node.port}"
            # Mosaic's own ports stand there too; which depends on what is installed.
            assert {name for name in ready if not name.startswith("mosaic")} == {"http", "pid", "ws"}

    asyncio.run(main())
