"""The REST calls a client makes: log in, how many partitions, who may publish and subscribe (facts, section 9).

Everything here is optional: a node that has no REST answers nothing, and then nothing is known. Requests run on
threads of the standard library's HTTP client; there are few, and their answers are remembered as long as the
published clients do (section 4: 15 minutes, errors 1 minute).
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import ssl
from typing import Final
from urllib.parse import quote, urlsplit

import msgspec

from catchment.client.streamr.values import Refused
from catchment.crypto.ethereum import Signer

log = logging.getLogger(__name__)

TIMEOUT: Final = 10.0
MAX_BODY: Final = 1024 * 1024
REMEMBER_YES: Final = 15 * 60.0
REMEMBER_NO: Final = 60.0
MAX_REMEMBERED: Final = 10_000
NOBODY: Final = "0x" + "0" * 40
"""An address nobody has the key of."""


class _Challenge(msgspec.Struct):
    id: str
    challenge: str
    expires: str | int | None = None


class _Session(msgspec.Struct):
    token: str


class _Stream(msgspec.Struct):
    partitions: int = 1


def base_of(url: str) -> str:
    """The REST address that belongs to a WebSocket address."""
    parts = urlsplit(url)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    return f"{scheme}://{parts.netloc}/api/v1"


class Rest:
    """Asks one node."""

    def __init__(self, base: str, *, signer: Signer | None = None, ssl_context: ssl.SSLContext | None = None) -> None:
        """Ask the node whose REST address is `base`; log in as `signer` where it wants that."""
        self.base = base.rstrip("/")
        self.token: str | None = None
        self._signer = signer
        self._logging_in = asyncio.Lock()
        self._ssl = ssl_context
        self._known: dict[str, tuple[float, bool | None]] = {}
        self._asking: dict[str, asyncio.Task[bool | None]] = {}
        self._partitions: dict[str, tuple[float, int]] = {}

    async def login(self) -> str:
        """Prove by a signature who we are; the token goes with every request from then on.

        Raises:
            Refused: the node does not let us in, or has no login; or there is no key to sign with.
        """
        signer = self._signer
        if signer is None:
            raise Refused("Logging in needs a private key.", "AUTHENTICATION_FAILED")
        status, body = await self._send("POST", f"/login/challenge/{signer.address}", b"")
        try:
            challenge = msgspec.json.decode(body, type=_Challenge)
            answer = {
                "challenge": challenge,
                "signature": signer.sign(challenge.challenge.encode()),
                "address": signer.address,
            }
            status, body = await self._send("POST", "/login/response", msgspec.json.encode(answer))
            self.token = msgspec.json.decode(body, type=_Session).token
        except msgspec.DecodeError:
            raise Refused(
                f"Logging in at {self.base} failed (HTTP {status}): check that the node has a login.",
                "AUTHENTICATION_FAILED",
            ) from None
        return self.token

    async def try_to_login(self) -> bool:
        """Log in, if that can help."""
        before = self.token
        async with self._logging_in:
            if self.token != before:
                return True  # someone else has meanwhile
            try:
                await self.login()
            except Refused as refused:
                log.info("not logged in: %s", refused)
                return False
        return True

    async def partitions(self, stream_id: str) -> int:
        """How many partitions a stream has; one when nothing is known about it."""
        now = asyncio.get_running_loop().time()
        found = self._partitions.get(stream_id)
        if found is not None and found[0] > now:
            return found[1]
        status, body = await self._get(f"/streams/{quote(stream_id, safe='')}")
        count, remember = 1, REMEMBER_NO
        if status == 200:
            try:
                count, remember = max(1, msgspec.json.decode(body, type=_Stream).partitions), REMEMBER_YES
            except msgspec.DecodeError:
                log.warning("the node's description of stream %r cannot be read", stream_id[:100])
        _bounded(self._partitions)
        self._partitions[stream_id] = (now + remember, count)
        return count

    async def is_publisher(self, stream_id: str, address: str) -> bool | None:
        """Whether an address may publish to a stream; None when the node does not say.

        Where a stranger may, everyone may: that is one question for a stream and not one for each publisher.
        """
        anyone = await self._permitted(stream_id, "publisher", NOBODY)
        return anyone if anyone is not False else await self._permitted(stream_id, "publisher", address)

    async def is_subscriber(self, stream_id: str, address: str) -> bool | None:
        """Whether an address may subscribe to a stream; None when the node does not say."""
        return await self._permitted(stream_id, "subscriber", address)

    async def _permitted(self, stream_id: str, role: str, address: str) -> bool | None:
        path = f"/streams/{quote(stream_id, safe='')}/{role}/{quote(address.lower(), safe='')}"
        now = asyncio.get_running_loop().time()
        found = self._known.get(path)
        if found is not None and found[0] > now:
            return found[1]
        task = self._asking.get(path)
        if task is None:
            task = self._asking[path] = asyncio.create_task(self._ask(path, stream_id))
            task.add_done_callback(lambda _: self._asking.pop(path, None))
        return await asyncio.shield(task)

    async def _ask(self, path: str, stream_id: str) -> bool | None:
        status, _ = await self._get(path)
        answer: bool | None = None
        if status == 200:
            answer = True
        elif status == 404:
            # "No" and "no such request here" look alike; a node that describes the stream means no.
            described, _ = await self._get(f"/streams/{quote(stream_id, safe='')}/validation")
            answer = False if described == 200 else None
        elif status in (401, 403):
            answer = None
        _bounded(self._known)
        remember = REMEMBER_YES if answer else REMEMBER_NO
        self._known[path] = (asyncio.get_running_loop().time() + remember, answer)
        return answer

    async def _get(self, path: str) -> tuple[int, bytes]:
        """Read a page, logged in if it has to be."""
        status, body = await self._send("GET", path)
        if status in (401, 403) and await self.try_to_login():
            return await self._send("GET", path)
        return status, body

    async def _send(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """One request; status 0 when nobody answers."""
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        return await asyncio.to_thread(self._blocking, method, path, body, headers)

    def _blocking(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        parts = urlsplit(self.base)
        connection = (
            http.client.HTTPSConnection(parts.netloc, timeout=TIMEOUT, context=self._ssl)
            if parts.scheme == "https"
            else http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT)
        )
        try:
            connection.request(method, parts.path + path, body, headers)
            response = connection.getresponse()
            return response.status, response.read(MAX_BODY)
        except (OSError, http.client.HTTPException) as error:
            log.info("no answer from %s: %s", self.base, error)
            return 0, b""
        finally:
            connection.close()


def _bounded(remembered: dict[str, tuple[float, bool | None]] | dict[str, tuple[float, int]]) -> None:
    if len(remembered) >= MAX_REMEMBERED:
        remembered.clear()
