"""Keeps what `core/access.py` knows: brings it from the log and the store at start, and writes changes down.

Streams and permissions are entries of the log; a change is committed before it counts. Users, keys and sessions are
small values beside the log (never in it), saved every few seconds and when a page asks for it. So are the publishers
an open node has seen: that is a view of the log, with a mark of how far it reaches; at start the rows beyond the mark
are looked at again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from catchment import model
from catchment.core.access import Access
from catchment.core.accounts import User, digest_of
from catchment.crypto import passwords
from catchment.errors import OurFault, PeerFault
from catchment.net.ingest import Ingest, now_us
from catchment.store.base import Store
from catchment.store.history import History
from catchment.wire.streamr import admin

log = logging.getLogger(__name__)

SAVE_SECONDS: Final = 5
ACCOUNTS: Final = "access/"
SEEN: Final = "seen/"
MARK: Final = "seen-offset"
TOUCHED: Final = "access-touched"
"""Another value whenever a process that is not the node changes users or keys."""

PAGE: Final = 1024
MAX_LOOK_BACK: Final = 250_000
"""Rows looked at again at start at most."""

HASHES_AT_ONCE: Final = 2
"""Each takes 32 MiB and a core."""

_Pair = tuple[str, str]
_decode_pair = msgspec.json.Decoder(_Pair).decode


def read_changes(history: History) -> tuple[list[admin.Change], model.Ref]:
    """Every admin entry of the log in its order, and the place of the last.

    Raises:
        OurFault: one of them cannot be read.
    """
    changes: list[admin.Change] = []
    last = model.Ref(0, 0)
    after: model.OrderKey | None = None
    question = model.Range(admin.ADMIN_TOPIC)
    while True:
        page, after = history.range(question, after=after, limit=PAGE)
        for row in page:
            try:
                changes.append(admin.decode(row.entry.raw))
            except PeerFault as fault:
                raise OurFault(
                    f"the admin entry at offset {row.offset} cannot be read: {fault.message} "
                    "If a newer Catchment wrote it, use that one."
                ) from None
            last = model.Ref(row.entry.timestamp, row.entry.sequence)
        if after is None:
            return changes, last


class Registrar:
    """The link between a node's `Access` and its store."""

    def __init__(self, access: Access, store: Store, history: History, ingest: Ingest) -> None:
        self.access = access
        self.on_change: Callable[[str], None] = lambda _: None
        """Told which stream is not as it was."""
        self._store = store
        self._history = history
        self._ingest = ingest
        self._changing = asyncio.Lock()
        self._saving = asyncio.Lock()
        self._hashing = asyncio.Semaphore(HASHES_AT_ONCE)
        self._touched: bytes | None = b"not looked at yet"
        self._last = model.Ref(0, 0)
        self._reached = store.next_offset

    async def load(self) -> None:
        """Bring everything; before anyone may ask.

        Raises:
            OurFault: the log or the lake cannot be read.
        """
        loop = asyncio.get_running_loop()
        changes, self._last = await loop.run_in_executor(None, read_changes, self._history)
        self.access.load(changes)
        await self.reload()
        if self.access.open:
            await loop.run_in_executor(None, self._bring_sightings)
            self._ingest.broker.observe = self.access.note

    def _bring_sightings(self) -> None:
        """Remember who was seen; a list that cannot be completed keeps no node from starting."""
        self.access.remember(_decode_pair(value) for _, value in self._store.metas(SEEN))
        try:
            self._look_back()
        except OurFault as problem:
            log.error("publishers of some messages are not listed: %s", problem)

    def _look_back(self) -> None:
        """Note the publishers of the rows beyond the mark."""
        end = self._store.next_offset
        mark = int(self._store.get_meta(MARK) or b"0")
        start = max(mark, self._store.first_hot_offset, end - MAX_LOOK_BACK)
        while start < end:
            rows = self._store.read(start, PAGE)
            for row in rows:
                entry = row.entry
                if entry.kind is model.Kind.MESSAGE:
                    self.access.note(model.Topic(entry.topic, entry.partition, entry.protocol), (entry,))
            start += PAGE

    async def reload(self) -> None:
        """Take over users and keys that another process (`catchment users`) put into the store."""
        if self._store.get_meta(TOUCHED) == self._touched:
            return
        async with self._saving:
            self._touched = self._store.get_meta(TOUCHED)
            loop = asyncio.get_running_loop()
            records = await loop.run_in_executor(None, self._store.metas, ACCOUNTS)
            self.access.accounts.load((name.removeprefix(ACCOUNTS), value) for name, value in records)

    async def user_with_password(self, name: str, password: str) -> User | None:
        """The user of this name if the password is theirs; finding out takes as long in any case."""
        await self.reload()
        user = self.access.accounts.user(name)
        async with self._hashing:
            right = await asyncio.to_thread(passwords.matches, user.password if user else None, password)
        return user if right else None

    async def change(self, by: str, make: Callable[[], Sequence[admin.Change]]) -> None:
        """Commit changes, all or none, and apply them; one caller at a time.

        Args:
            by: who makes them.
            make: looks at what there is now and returns the changes, or raises PeerFault to refuse.

        Raises:
            OurFault: they could not be written.
        """
        async with self._changing:
            changes = make()
            now = now_us()
            entries = []
            last = self._last
            for change in changes:
                last = admin.next_ref(last, now // 1000)
                entries.append(admin.to_entry(change, by=by, ref=last, received_at=now))
            await self._ingest.on_writer(partial(self._store.append, entries))
            self._last = last
            for change in changes:
                self.access.apply(change)
                self.on_change(change.stream)

    async def save(self) -> None:
        """Write down what has changed beside the log.

        Raises:
            OurFault: it could not be written; it is tried again with the next call.
        """
        async with self._saving:
            await self._save()

    async def _save(self) -> None:
        unsaved, fresh = self.access.accounts.take_unsaved(), self.access.take_fresh()
        values: dict[str, bytes | None] = {ACCOUNTS + name: value for name, value in unsaved.items()}
        for pair in fresh:
            values[SEEN + digest_of("\0".join(pair))] = msgspec.json.encode(pair)
        if self.access.open:
            # What was committed by the last time has been delivered, and so noted, by now.
            reached, self._reached = self._reached, self._store.next_offset
            if values or reached != self._reached:
                values[MARK] = str(reached).encode()
        if not values:
            return
        try:
            await self._ingest.on_writer(partial(self._store.put_metas, values))
        except OurFault:
            self.access.accounts.put_back(unsaved)
            self.access.put_back(fresh)
            raise

    async def save_regularly(self) -> None:
        """Save, and see what other processes did, every few seconds."""
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            await self.save_if_possible()
            try:
                await self.reload()
            except OurFault as problem:
                log.error("users and keys could not be read, trying again in %d s: %s", SAVE_SECONDS, problem)

    async def save_if_possible(self) -> None:
        """Save; not being able to is logged and tried again."""
        try:
            await self.save()
        except OurFault as problem:
            log.error("sessions and sightings could not be saved, trying again later: %s", problem)
