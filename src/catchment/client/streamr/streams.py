"""What a publisher knows about a stream it encrypts: its key, and the one that comes next."""

from __future__ import annotations

from typing import NamedTuple

from catchment.client.streamr.keystore import KeyStore, TimedKey
from catchment.client.streamr.values import Chain
from catchment.crypto.groupkeys import GroupKey


class Keys(NamedTuple):
    """How to encrypt one message: with which key, which one goes along, and when it is."""

    key: GroupKey
    next_key: GroupKey | None
    timestamp: int


class EncryptedStream:
    """The keys of one stream as messages are made."""

    def __init__(self, stream_id: str, keystore: KeyStore) -> None:
        """Use the newest key of `keystore`, or one that is made on first use."""
        self.stream_id = stream_id
        self._keystore = keystore
        self._next: GroupKey | None = None
        self._fresh = False

    def rotate(self) -> str:
        """Bring a new key along with the next message."""
        if self._next is None:
            self._next = self._keystore.new_key()
        return self._next.key_id

    def rekey(self, start: int) -> TimedKey:
        """Use a new key from `start` on."""
        self._next = None
        key = self._keystore.new_key()
        self._keystore.add(self.stream_id, key, start)
        self._fresh = True
        return self._keystore.used_between(self.stream_id, None)[0]

    def keys_for(self, chain: Chain, timestamp: int) -> Keys:
        """How to encrypt the next message of a chain.

        Older readers know keys by the time they start: the first message under a key is later than the last under
        the one before.
        """
        last = chain.last.timestamp if chain.last is not None else -1
        current = self._keystore.current(self.stream_id)
        if current is None:
            self._keystore.add(self.stream_id, self._keystore.new_key(), timestamp)
            current = self._keystore.current(self.stream_id)
            assert current is not None
        if self._fresh:
            self._fresh = False
            timestamp = max(timestamp, last + 1)
        next_key, self._next = self._next, None
        if next_key is not None:
            self._keystore.add(self.stream_id, next_key, max(timestamp, last) + 1)
            self._fresh = True
        return Keys(current, next_key, timestamp)
