"""What a publisher knows about a stream it encrypts: its key, and the one that comes next."""

from __future__ import annotations

from typing import NamedTuple

from catchment.client.streamr.keystore import KeyStore, TimedKey
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

    def rotate(self) -> str:
        """Bring a new key along with the next message."""
        if self._next is None:
            self._next = self._keystore.new_key()
        return self._next.key_id

    def rekey(self, start: int) -> TimedKey:
        """Use a new key from `start` on, which is later than every message so far."""
        self._next = None
        return self._keystore.add(self.stream_id, self._keystore.new_key(), start)

    def keys_for(self, timestamp: int, latest: int) -> Keys:
        """How to encrypt the next message.

        Older readers know keys by the time they start: the first message under a key is later than the last under
        the one before.

        Args:
            timestamp: when the message is to be.
            latest: the time of the stream's newest message, in any partition.
        """
        current = self._keystore.newest(self.stream_id)
        if current is None:
            current = self._keystore.add(self.stream_id, self._keystore.new_key(), timestamp)
        timestamp = max(timestamp, current.start)
        next_key, self._next = self._next, None
        if next_key is not None:
            self._keystore.add(self.stream_id, next_key, max(timestamp, latest) + 1)
        return Keys(current.key, next_key, timestamp)
