"""The publisher's side of key exchange: answers requests, hands out new keys.

Each request is answered in the form it was asked in (facts/streamr.md, section 4), with the keys that were found and
an error for those that were not. Who may have a key is asked of the node, or of the user; when nobody says, nobody
gets one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric import rsa

from catchment.client.streamr.keystore import KeyStore, TimedKey
from catchment.crypto import groupkeys
from catchment.crypto.groupkeys import CannotDecrypt
from catchment.wire.streamr import keyexchange
from catchment.wire.streamr.keyexchange import (
    ErrorCode,
    Exchange,
    Form,
    GroupKeyAnnounce,
    GroupKeyErrorResponse,
    GroupKeyRequest,
    GroupKeyResponse,
    SealedKey,
)

log = logging.getLogger(__name__)

MAX_READERS: Final = 10_000
"""Subscribers of one stream that are told about a new key; more have to ask."""

Allowed = Callable[[str, str], Awaitable[bool | None]]
"""Whether an address may read a stream: yes, no, or None when that is not known."""

Tell = Callable[[str, Exchange], Awaitable[None]]
"""Sends to a key-exchange stream."""


class ReadBy(msgspec.Struct, frozen=True):
    """A subscriber who asked for a key once.

    Attributes:
        reply_to: its key-exchange stream.
        public_key: its RSA key, as PEM.
        form: how it asked.
    """

    reply_to: str
    public_key: str
    form: Form


class KeyServer:
    """Hands out the keys in a key store."""

    def __init__(self, keystore: KeyStore, *, allowed: Allowed, tell: Tell) -> None:
        """Answer out of `keystore` whom `allowed` lets through, by `tell`."""
        self._keystore = keystore
        self._allowed = allowed
        self._tell = tell
        self._readers: dict[str, dict[str, ReadBy]] = {}

    async def answer(self, request: GroupKeyRequest, sender: str, reply_to: str) -> None:
        """Answer a request whose signature was found to be `sender`'s."""
        try:
            if not await self._check(request, sender, reply_to):
                return
            public_key = groupkeys.load_public_key(request.public_key)
        except CannotDecrypt as problem:
            await self._refuse(request, reply_to, ErrorCode.INVALID_GROUP_KEY_REQUEST, str(problem))
            return
        found, missing = self._find(request)
        if found:
            keys = await asyncio.to_thread(_seal_all, public_key, found)
            await self._tell(reply_to, GroupKeyResponse(request.request_id, request.stream_id, keys, request.form))
            self._note(request, sender, reply_to)
        if missing or not found:
            text = f"There is no such key of stream {request.stream_id}."
            await self._refuse(request, reply_to, ErrorCode.INVALID_GROUP_KEY_REQUEST, text, missing)

    async def _check(self, request: GroupKeyRequest, sender: str, reply_to: str) -> bool:
        if self._keystore.current(request.stream_id) is None:
            text = f"This publisher has no keys of stream {request.stream_id}."
            await self._refuse(request, reply_to, ErrorCode.INVALID_GROUP_KEY_REQUEST, text)
            return False
        allowed = await self._allowed(request.stream_id, sender)
        if not allowed:
            log.info("no key of stream %r for %s", request.stream_id[:100], sender)
            code = ErrorCode.UNEXPECTED_ERROR if allowed is None else ErrorCode.INVALID_GROUP_KEY_REQUEST
            text = f"{sender} is not known to be a subscriber of stream {request.stream_id}."
            await self._refuse(request, reply_to, code, text)
            return False
        return True

    def _find(self, request: GroupKeyRequest) -> tuple[list[TimedKey], tuple[str, ...]]:
        if request.form is Form.OBJECT:
            return self._keystore.used_between(request.stream_id, request.range)[-keyexchange.MAX_KEYS :], ()
        found = []
        missing = []
        for key_id in dict.fromkeys(request.key_ids):
            key = self._keystore.find(request.stream_id, key_id)
            if key is None:
                missing.append(key_id)
            else:
                found.append(TimedKey(0, key))
        return found, tuple(missing)

    async def _refuse(
        self, request: GroupKeyRequest, reply_to: str, code: str, text: str, missing: tuple[str, ...] | None = None
    ) -> None:
        ids = request.key_ids if missing is None else missing
        await self._tell(
            reply_to, GroupKeyErrorResponse(request.request_id, request.stream_id, code, text, ids, request.form)
        )

    def _note(self, request: GroupKeyRequest, sender: str, reply_to: str) -> None:
        readers = self._readers.setdefault(request.stream_id, {})
        readers.pop(sender, None)
        readers[sender] = ReadBy(reply_to, request.public_key, request.form)
        if len(readers) > MAX_READERS:
            del readers[next(iter(readers))]

    async def announce(self, stream_id: str, key: TimedKey) -> int:
        """Hand a new key to everyone who asked for one of this stream before and still may; returns how many."""
        told = 0
        for address, reader in list(self._readers.get(stream_id, {}).items()):
            if not await self._allowed(stream_id, address):
                del self._readers[stream_id][address]
                continue
            public_key = groupkeys.load_public_key(reader.public_key)
            (sealed,) = await asyncio.to_thread(_seal_all, public_key, [key])
            await self._tell(reader.reply_to, GroupKeyAnnounce(stream_id, (sealed,), reader.form))
            told += 1
        return told


def _seal_all(public_key: rsa.RSAPublicKey, keys: list[TimedKey]) -> tuple[SealedKey, ...]:
    return tuple(
        SealedKey(groupkeys.seal(public_key, each.key.key), key_id=each.key.key_id, start=each.start) for each in keys
    )
