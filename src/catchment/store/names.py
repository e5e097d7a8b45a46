"""The intern table of the durable store: topics, publishers and chains as numbers.

LMDB keys hold at most 511 bytes and every index entry repeats its names, so names are numbered once
(DESIGN.md, "The entry", the LMDB paragraph). A number once given never changes and is never used again, which is what
lets any process cache it. Numbers begin at 1 and are shared by all kinds of name.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, TypeAlias

import lmdb
from blake3 import blake3

from catchment import errors
from catchment.store import records

LONGEST_KEY: Final = 511
"""LMDB's own limit."""

NAME_CACHE: Final = 16_384
"""How many names of each kind are remembered in memory."""

_BY_NUMBER: Final = b"\xff"

_Txn: TypeAlias = "lmdb.Transaction[bytes]"


class Naming(IntEnum):
    """What a name names. The numbers are stored: never change one, only add (below 255)."""

    TOPIC = 1
    PUBLISHER = 2
    CHAIN = 3
    POPSTELLAR_TOPIC = 4
    MOSAIC_TOPIC = 5


TOPIC_OF: Final = (Naming.TOPIC, Naming.TOPIC, Naming.POPSTELLAR_TOPIC, Naming.MOSAIC_TOPIC)
"""What a topic's name is interned as, by the number of its protocol: equal names of two protocols are two topics."""


Fresh: TypeAlias = dict[tuple[Naming, str], int]
"""Numbers found or given in a write transaction that is not committed yet."""


def short_key(data: bytes) -> bytes:
    """Data as the end of a key: itself, or its hash when it would make the key too long."""
    return b"\0" + data if len(data) <= LONGEST_KEY - 2 else b"\1" + blake3(data).digest()


class Names:
    """The intern table. Its caches hold committed numbers only."""

    def __init__(self, db: lmdb._Database) -> None:
        self._db = db
        self.numbers: dict[Naming, dict[str, int]] = {naming: {} for naming in Naming}
        self._names: dict[int, str] = {}

    def look_up(self, txn: _Txn, naming: Naming, name: str) -> int | None:
        """The number of a name, None when it has none."""
        number = self.numbers[naming].get(name)
        if number is None:
            key = _name_key(naming, name)
            stored = txn.get(key, db=self._db)
            if stored is not None:
                number = int.from_bytes(records.without_checksum(key, stored), "big")
        return number

    def numbers_of(self, txn: _Txn, naming: Naming) -> list[int]:
        """The numbers of all names of a kind."""
        prefix = bytes((naming,))
        numbers: list[int] = []
        with txn.cursor(db=self._db) as cursor:
            if cursor.set_range(prefix):
                for key, stored in cursor:
                    if not key.startswith(prefix):
                        break
                    numbers.append(int.from_bytes(records.without_checksum(key, stored), "big"))
        return numbers

    def intern(self, txn: _Txn, naming: Naming, name: str, fresh: Fresh) -> int:
        """The number of a name, given now if it has none.

        Args:
            txn: the write transaction.
            naming: what the name names.
            name: the name.
            fresh: takes the number; `remember` it once the transaction is committed.
        """
        number = fresh.get((naming, name)) or self.look_up(txn, naming, name)
        if number is None:
            number = self._next_number(txn)
            key, packed = _name_key(naming, name), records.pack_number(number)
            txn.put(key, records.with_checksum(key, packed), db=self._db)
            key = _BY_NUMBER + packed
            txn.put(key, records.with_checksum(key, bytes((naming,)) + records.encode_name(name)), db=self._db)
        fresh[naming, name] = number
        return number

    def _next_number(self, txn: _Txn) -> int:
        with txn.cursor(db=self._db) as cursor:
            # Keys by number sort behind all others, so the last key holds the greatest number.
            return int.from_bytes(cursor.key()[1:], "big") + 1 if cursor.last() else 1

    def remember(self, fresh: Fresh) -> None:
        """Cache the numbers of a transaction that was committed."""
        for (naming, name), number in fresh.items():
            cache = self.numbers[naming]
            if len(cache) >= NAME_CACHE:
                cache.clear()
            cache[name] = number

    def view(self, txn: _Txn) -> NameView:
        """The names by number, for the length of a transaction."""
        return NameView(self, txn)

    def name(self, txn: _Txn, number: int) -> str:
        """The name that has this number.

        Raises:
            StoreCorrupt: no name has it.
        """
        name = self._names.get(number)
        if name is None:
            key = _BY_NUMBER + records.pack_number(number)
            stored = txn.get(key, db=self._db)
            if stored is None:
                raise errors.StoreCorrupt(f"the intern table has no name number {number}")
            name = records.decode_name(records.without_checksum(key, stored)[1:])
            if len(self._names) >= NAME_CACHE:
                self._names.clear()
            self._names[number] = name
        return name


class NameView(dict[int, str]):
    """Names by number as a dictionary that fills itself: a page has few names and asks for each many times."""

    def __init__(self, names: Names, txn: _Txn) -> None:
        super().__init__()
        self._source = names
        self._txn = txn

    def __missing__(self, number: int) -> str:
        name = self[number] = self._source.name(self._txn, number)
        return name


def _name_key(naming: Naming, name: str) -> bytes:
    return bytes((naming,)) + short_key(records.encode_name(name))
