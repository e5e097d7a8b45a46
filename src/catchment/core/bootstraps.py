"""The bootstraps a node can tell its clients of (spec/mosaic-messages.md, DHT Lookup).

Behind `Bootstraps` may stand anything that finds items. Today it is a table: what the operator has given in a file, and
the node's own. A client of the Mainline DHT can take its place without anyone noticing.

The file has one JSON object a line: `public_key` (mopub0 or mosrv0), `salt` (msb24 or mub25), `seq`, `value` (the text)
and `signature` (hex), that is, the fields of a BEP 44 item.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from catchment.errors import PeerFault, UserError
from catchment.wire.mosaic import bootstrap, keys
from catchment.wire.mosaic.bootstrap import Item, Salt
from catchment.wire.mosaic.keys import Printable

MAX_ITEMS: Final = 100_000


class Bootstraps(Protocol):
    """Where bootstraps are looked up."""

    def lookup(self, public_key: bytes, salt: Salt) -> str | None:
        """The text of the newest item known; None when there is none."""


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    public_key: str
    salt: str
    seq: int
    value: str
    signature: str


class KnownBootstraps:
    """A table of items, each checked before it is taken."""

    def __init__(self) -> None:
        self._items: dict[tuple[bytes, Salt], Item] = {}

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Item) -> bool:
        """Take an item, unless a newer one is here; whether it was taken.

        Raises:
            PeerFault: it is no bootstrap, or not signed by its key.
        """
        bootstrap.check_item(item)
        key = (item.public_key, item.salt)
        known = self._items.get(key)
        if (known is not None and known.sequence >= item.sequence) or len(self._items) >= MAX_ITEMS:
            return False
        self._items[key] = item
        return True

    def lookup(self, public_key: bytes, salt: Salt) -> str | None:
        """See `Bootstraps.lookup`."""
        item = self._items.get((public_key, salt))
        return None if item is None else item.text

    def read(self, lines: str, *, source: str) -> None:
        """Take the items of a file.

        Raises:
            UserError: a line is no item; the text names it.
        """
        for number, line in enumerate(lines.splitlines(), start=1):
            if not line.strip():
                continue
            try:
                self.add(_item(line))
            except (msgspec.DecodeError, UnicodeError, PeerFault, ValueError) as error:
                raise UserError(f"{source}, line {number}, is no bootstrap: {error}") from None


def _item(line: str) -> Item:
    found = msgspec.json.decode(line, type=_Line)
    return Item(
        keys.decode(found.public_key, Printable.USER_KEY, Printable.SERVER_KEY),
        Salt(found.salt.encode()),
        found.seq,
        found.value,
        bytes.fromhex(found.signature),
    )
