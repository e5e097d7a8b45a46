"""Encrypted messages on their way to a subscriber: read as soon as their key is there, in their publisher's order.

A message without its key waits, and those of the same publisher wait behind it; other publishers do not. What waits
is bounded in number and time, and ends as `Undecryptable`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from catchment.client.streamr.keys import Group, KeyExchange
from catchment.client.streamr.keystore import KeyStore
from catchment.client.streamr.values import Received, Undecryptable
from catchment.crypto import groupkeys
from catchment.crypto.groupkeys import CannotDecrypt
from catchment.errors import CatchmentError, PeerFault
from catchment.wire.streamr import keyexchange
from catchment.wire.streamr.message import EncryptionType, MessageType, StreamMessage


class KeyMissing(CatchmentError):
    """The key of a message is not there, or not the right one yet."""


class Opener:
    """Decrypts with the keys of a key store, and puts into it what comes along inside messages."""

    def __init__(self, keystore: KeyStore, *, own_address: str | None, exchange: KeyExchange | None) -> None:
        """Read with `keystore`; `exchange` is where missing keys are asked for, if they can be."""
        self.keystore = keystore
        self.exchange = exchange
        self._own = own_address

    def open(self, received: Received) -> Received:
        """The message with its content readable.

        Raises:
            KeyMissing: its key is not there yet.
            CannotDecrypt: it cannot be read, now or later.
        """
        made = received.message
        if made.encryption_type is EncryptionType.NONE or made.message_type is not MessageType.STREAM_MESSAGE:
            return received  # of a key-exchange message only the keys inside are encrypted
        if made.encryption_type is EncryptionType.RSA:
            raise CannotDecrypt("It is encrypted with RSA, which is for keys only.")
        group = Group(made.msg_id.stream_id, received.publisher)
        key = self._key(made, group)
        if key is None:
            raise KeyMissing("No key came for it.")
        plain = self._plain(made, group, key)
        self._learn_next(made, group, key)
        return msgspec.structs.replace(received, plain=plain)

    def _key(self, made: StreamMessage, group: Group) -> bytes | None:
        if group.publisher == self._own and made.group_key_id is not None:
            own = self.keystore.find(group.stream_id, made.group_key_id)
            if own is not None:
                return own.key
        return self.keystore.lookup(*group, made.group_key_id, made.msg_id.timestamp)

    def _plain(self, made: StreamMessage, group: Group, key: bytes) -> str:
        new_key = None
        if made.encryption_type is EncryptionType.NEW_KEY_AND_AES:
            new_key, data = groupkeys.decrypt_with_new_key(key, made.content)
        else:
            data = groupkeys.decrypt(key, made.content)
        try:
            text = data.decode()
            msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            # CTR has no checksum: content that is not JSON is how a wrong key shows. Keys by time may have been
            # replaced since we asked; a key by its id is the key.
            if made.group_key_id is None:
                raise KeyMissing("The key known for its time does not fit.") from None
            raise CannotDecrypt(f"Its key {made.group_key_id[:100]!r} gives no JSON: it is the wrong key.") from None
        if new_key is not None:
            self._keep(group, new_key, None, made.msg_id.timestamp + 1)
        return text

    def _learn_next(self, made: StreamMessage, group: Group, key: bytes) -> None:
        """The next key, which a message 32 brings along under its own."""
        if made.new_group_key is None:
            return
        try:
            new = keyexchange.decode_new_group_key(made.new_group_key)
            self._keep(group, groupkeys.open_new_key(key, new.encrypted_group_key), new.group_key_id, None)
        except (PeerFault, CannotDecrypt):
            return  # the message is good; whoever needs the next key asks for it

    def _keep(self, group: Group, key: bytes, key_id: str | None, start: int | None) -> None:
        if self.exchange is not None:
            self.exchange.learn(group, key, key_id=key_id, start=start)
        else:
            self.keystore.remember(*group, key, key_id=key_id, start=start)


class HistoryOpener:
    """Decrypts messages one after the other, waiting for a key where one is missing, once for each key."""

    def __init__(self, opener: Opener, *, timeout: float) -> None:
        """Read with `opener`; a key is waited for `timeout` seconds."""
        self._opener = opener
        self._timeout = timeout
        self._given_up: set[tuple[Group, str | None]] = set()

    async def open(self, received: Received) -> Received:
        """The message, readable if its key is there or comes; else as it was, `encrypted`."""
        made = received.message
        group = Group(made.msg_id.stream_id, received.publisher)
        exchange = self._opener.exchange
        until = asyncio.get_running_loop().time() + self._timeout
        came = asyncio.Event()
        if exchange is not None:
            exchange.listen(group.stream_id, wake := lambda _: came.set())
        try:
            while True:
                came.clear()
                try:
                    return self._opener.open(received)
                except CannotDecrypt:
                    return received
                except KeyMissing:
                    if exchange is None or (group, made.group_key_id) in self._given_up:
                        return received
                    exchange.want(group, made.group_key_id, made.msg_id.timestamp, until)
                async with asyncio.timeout_at(until):
                    await came.wait()
        except TimeoutError:
            self._given_up.add((group, made.group_key_id))
            return received
        finally:
            if exchange is not None:
                exchange.unlisten(group.stream_id, wake)


class _Waiting(NamedTuple):
    received: Received
    until: float


class Decryption:
    """The messages of one subscription that wait for keys."""

    def __init__(
        self,
        opener: Opener,
        *,
        emit: Callable[[Received | Undecryptable], None],
        max_waiting: int,
        timeout: float,
    ) -> None:
        """Pass everything to `emit`, in order.

        Args:
            opener: decrypts.
            emit: takes what is readable, and what will never be.
            max_waiting: messages that may wait; when there are more, the oldest of its publisher is given up.
            timeout: seconds a message waits.
        """
        self._opener = opener
        self._emit = emit
        self._max_waiting = max_waiting
        self._timeout = timeout
        self._waiting: dict[str, deque[_Waiting]] = {}
        self._reading: set[str] = set()
        self.count = 0
        """How many wait."""

    @property
    def next_deadline(self) -> float | None:
        """When `expire` has something to do."""
        return min((queue[0].until for queue in self._waiting.values()), default=None)

    def add(self, received: Received, now: float) -> None:
        """Take a message, in its place."""
        publisher = received.publisher
        queue = self._waiting.get(publisher)
        if queue is None and self._tried(received):
            return
        if queue is None:
            queue = self._waiting[publisher] = deque()
        queue.append(_Waiting(received, now + self._timeout))
        self.count += 1
        self._want(received, now + self._timeout)
        if self.count > self._max_waiting:
            self._give_up(publisher, "Too many messages wait for keys.")
            self.retry(publisher)

    def _tried(self, received: Received, *, final: str = "") -> bool:
        """Whether a message is done with, readable or not."""
        try:
            self._emit(self._opener.open(received))
        except KeyMissing as missing:
            if self._opener.exchange is None and not final:
                final = "There is no private key to ask for its group key with."
            if not final:
                return False
            self._emit(Undecryptable(received, final if final != "?" else str(missing)))
        except CannotDecrypt as error:
            self._emit(Undecryptable(received, str(error)))
        return True

    def _want(self, received: Received, until: float) -> None:
        made = received.message
        if self._opener.exchange is not None and made.encryption_type is not EncryptionType.NONE:
            group = Group(made.msg_id.stream_id, received.publisher)
            if self._opener.keystore.lookup(*group, made.group_key_id, made.msg_id.timestamp) is None or (
                made.group_key_id is None
            ):
                self._opener.exchange.want(group, made.group_key_id, made.msg_id.timestamp, until)

    def retry(self, publisher: str) -> None:
        """A key of a publisher came: read what can be read now."""
        queue = self._waiting.get(publisher)
        if queue is None or publisher in self._reading:
            return  # a message that is being read may bring a key along, which leads here again
        self._reading.add(publisher)
        while queue and self._tried(queue[0].received):
            queue.popleft()
            self.count -= 1
        self._reading.discard(publisher)
        if not queue:
            del self._waiting[publisher]

    def expire(self, now: float) -> None:
        """Give up what has waited too long."""
        for publisher, queue in list(self._waiting.items()):
            while queue and queue[0].until <= now:
                self._give_up(publisher, "")
            self.retry(publisher)

    def _give_up(self, publisher: str, reason: str) -> None:
        received = self._waiting[publisher].popleft().received
        self.count -= 1
        exchange = self._opener.exchange
        if not reason and exchange is not None:
            said = exchange.problem_of(Group(received.message.msg_id.stream_id, publisher))
            reason = f"No key came for it within {self._timeout:g} s." + (
                f" The publisher said: {said}" if said else ""
            )
        self._tried(received, final=reason or "?")
