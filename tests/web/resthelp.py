"""A client for the REST pages that sends exactly what a test says, over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from catchment.core.accounts import Key, User, digest_of
from catchment.crypto.ethereum import Signer
from catchment.crypto.passwords import hash_password
from catchment.net.server import Node

from ..net.nodehelp import running_node

ALICE = Signer(b"\x01" * 32)
BOB = Signer(b"\x02" * 32)


class Answer(msgspec.Struct):
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> str:
        return str(self.json["code"])


class Rest:
    """Requests to one node, as one user or as nobody."""

    def __init__(self, node: Node, authorization: str | None = None) -> None:
        self.node = node
        self.authorization = authorization

    async def ask(
        self, method: str, path: str, body: object = None, *, raw: bytes | None = None, **headers: str
    ) -> Answer:
        data = raw if raw is not None else (b"" if body is None else msgspec.json.encode(body))
        if self.authorization is not None:
            headers = {"Authorization": self.authorization, **headers}

        def send() -> Answer:
            connection = http.client.HTTPConnection("127.0.0.1", self.node.port, timeout=60)
            try:
                connection.request(method, "/api/v1" + path, data or None, headers)
                response = connection.getresponse()
                found = {name.lower(): value for name, value in response.getheaders()}
                return Answer(response.status, response.read(), found)
            finally:
                connection.close()

        return await asyncio.to_thread(send)

    async def get(self, path: str) -> Answer:
        return await self.ask("GET", path)

    async def post(self, path: str, body: object = None) -> Answer:
        return await self.ask("POST", path, body)

    async def put(self, path: str, body: object = None) -> Answer:
        return await self.ask("PUT", path, body)

    async def delete(self, path: str) -> Answer:
        return await self.ask("DELETE", path)

    async def ok(self, method: str, path: str, body: object = None) -> Any:
        answer = await self.ask(method, path, body)
        assert answer.status == 200, (answer.status, answer.body)
        return answer.json

    async def login(self, signer: Signer) -> Rest:
        """Another one of these, logged in as the owner of a key."""
        asked = await self.ok("POST", f"/login/challenge/{signer.address}")
        answer = {
            "challenge": asked,
            "signature": signer.sign(asked["challenge"].encode()),
            "address": signer.address,
        }
        token = (await self.ok("POST", "/login/response", answer))["token"]
        return Rest(self.node, f"Bearer {token}")


def of(stream_id: str) -> str:
    """The path of a stream."""
    return "/streams/" + quote(stream_id, safe="")


@contextlib.asynccontextmanager
async def rest_node(folder: Path, **settings: object) -> AsyncIterator[tuple[Node, Rest]]:
    async with running_node(folder, **settings) as node:
        yield node, Rest(node)


def add_user(node: Node, name: str, *, password: str | None = None, key: str | None = None) -> None:
    """What `catchment users add` does, in the node's own memory."""
    accounts = node.access.accounts
    accounts.put_user(User(name, None if password is None else hash_password(password, b"s" * 16)))
    if key is not None:
        accounts.put_key(Key("k", digest_of(key), "key", user=name))
