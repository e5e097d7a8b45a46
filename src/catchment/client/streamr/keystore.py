"""Where group keys are kept: in memory, or in a file only its owner can read.

Two kinds. Our own keys of the streams we publish encrypted, each with the time it is used from, because older readers
ask by time (facts/streamr.md, section 4). Keys that publishers gave us, by id or by time.
"""

from __future__ import annotations

import bisect
import os
import secrets
import stat
from pathlib import Path
from typing import Final

import msgspec

from catchment.crypto import groupkeys
from catchment.crypto.groupkeys import GroupKey
from catchment.errors import UserError
from catchment.wire.streamr.keyexchange import KeyRange

FORMAT: Final = 1
MAX_KEYS: Final = 10_000
"""Keys a publisher may give us for one stream; the oldest are forgotten."""


class TimedKey(msgspec.Struct, frozen=True):
    """A key and the time (milliseconds) from which on it is used."""

    start: int
    key: GroupKey


class _StoredKey(msgspec.Struct, omit_defaults=True):
    key: str
    id: str | None = None
    start: int | None = None


class _File(msgspec.Struct):
    format: int = FORMAT
    published: dict[str, list[_StoredKey]] = {}
    received: dict[str, dict[str, list[_StoredKey]]] = {}


class _Received:
    """The keys of one publisher in one stream."""

    def __init__(self) -> None:
        self.by_id: dict[str, bytes] = {}
        self.by_time: list[tuple[int, bytes]] = []


class KeyStore:
    """Group keys. With a path every change is written there."""

    def __init__(self, path: Path | str | None = None) -> None:
        """Open a key store.

        Args:
            path: a file, made when it is not there; without one keys live as long as this object.

        Raises:
            UserError: the file can be read by others, or is no key store.
        """
        self._path = None if path is None else Path(path)
        self._published: dict[str, list[TimedKey]] = {}
        self._received: dict[tuple[str, str], _Received] = {}
        if self._path is not None and self._path.exists():
            self._load(self._path)

    def __repr__(self) -> str:
        # Keys are never shown.
        return f"KeyStore({str(self._path) if self._path else 'in memory'})"

    # Our own keys.

    @staticmethod
    def new_key() -> GroupKey:
        """A random key under a random id."""
        return GroupKey(secrets.token_urlsafe(16), secrets.token_bytes(groupkeys.KEY_BYTES))

    def current(self, stream_id: str) -> GroupKey | None:
        """The key we encrypt a stream with."""
        newest = self.newest(stream_id)
        return None if newest is None else newest.key

    def newest(self, stream_id: str) -> TimedKey | None:
        """The key we encrypt a stream with, and since when."""
        keys = self._published.get(stream_id)
        return keys[-1] if keys else None

    def add(self, stream_id: str, key: GroupKey, start: int) -> TimedKey:
        """Encrypt a stream with this key from `start` on, or from after the start of the key before."""
        keys = self._published.setdefault(stream_id, [])
        added = TimedKey(max(start, keys[-1].start + 1) if keys else start, key)
        keys.append(added)
        self._save()
        return added

    def find(self, stream_id: str, key_id: str) -> GroupKey | None:
        """One of our keys by its id."""
        return next((each.key for each in self._published.get(stream_id, ()) if each.key.key_id == key_id), None)

    def used_between(self, stream_id: str, span: KeyRange | None) -> list[TimedKey]:
        """Our keys that were in use at some time of a range, or the newest."""
        keys = self._published.get(stream_id, [])
        if span is None:
            return keys[-1:]
        ends = [each.start for each in keys[1:]] + [None]
        return [
            key
            for key, end in zip(keys, ends, strict=False)
            if key.start <= span.end and (end is None or end > span.start)
        ]

    # Keys we were given.

    def remember(
        self, stream_id: str, publisher: str, key: bytes, *, key_id: str | None = None, start: int | None = None
    ) -> None:
        """Keep a key that a publisher gave us, named by id or by time."""
        found = self._received.setdefault((stream_id, publisher), _Received())
        if key_id is not None:
            found.by_id.pop(key_id, None)
            found.by_id[key_id] = key
            if len(found.by_id) > MAX_KEYS:
                del found.by_id[next(iter(found.by_id))]
        if start is not None:
            place = bisect.bisect_left(found.by_time, start, key=lambda each: each[0])
            if place < len(found.by_time) and found.by_time[place][0] == start:
                found.by_time[place] = (start, key)
            else:
                found.by_time.insert(place, (start, key))
                del found.by_time[:-MAX_KEYS]
        self._save()

    def lookup(self, stream_id: str, publisher: str, key_id: str | None, timestamp: int) -> bytes | None:
        """The key of a publisher's message: by id, or, when the message names none, the one in use at its time.

        Before all keys known that is the first one: clients 3.x date it a moment after the message they made it for.
        """
        found = self._received.get((stream_id, publisher))
        if found is None:
            return None
        if key_id is not None:
            return found.by_id.get(key_id)
        place = bisect.bisect_right(found.by_time, timestamp, key=lambda each: each[0])
        return found.by_time[max(place - 1, 0)][1] if found.by_time else None

    # The file.

    def _load(self, path: Path) -> None:
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise UserError(f"The key store {path} can be read by others; run: chmod 600 {path}")
            stored = msgspec.json.decode(path.read_bytes(), type=_File)
            if stored.format != FORMAT:
                raise UserError(f"The key store {path} is of format {stored.format}; this version reads {FORMAT}.")
            self._fill(stored)
        except OSError as error:
            raise UserError(f"The key store {path} cannot be read: {error.strerror}.") from None
        except (msgspec.DecodeError, ValueError, UnicodeError):
            raise UserError(f"{path} is not a key store.") from None

    def _fill(self, stored: _File) -> None:
        for stream_id, keys in stored.published.items():
            self._published[stream_id] = [
                TimedKey(each.start or 0, GroupKey(each.id or "", bytes.fromhex(each.key))) for each in keys
            ]
        for stream_id, publishers in stored.received.items():
            for publisher, keys in publishers.items():
                found = self._received.setdefault((stream_id, publisher), _Received())
                for each in keys:
                    if each.id is not None:
                        found.by_id[each.id] = bytes.fromhex(each.key)
                    elif each.start is not None:
                        found.by_time.append((each.start, bytes.fromhex(each.key)))

    def _save(self) -> None:
        """Write everything anew beside the old file and put it in its place, readable by its owner only."""
        if self._path is None:
            return
        stored = _File(
            published={
                stream_id: [_StoredKey(each.key.key.hex(), each.key.key_id, each.start) for each in keys]
                for stream_id, keys in self._published.items()
            }
        )
        for (stream_id, publisher), found in self._received.items():
            stored.received.setdefault(stream_id, {})[publisher] = [
                *(_StoredKey(key.hex(), id=key_id) for key_id, key in found.by_id.items()),
                *(_StoredKey(key.hex(), start=start) for start, key in found.by_time),
            ]
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(stored), indent=1))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        except OSError as error:
            raise UserError(f"The key store {self._path} cannot be written: {error.strerror}.") from None
