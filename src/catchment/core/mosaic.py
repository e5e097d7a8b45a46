"""What all Mosaic conversations of a node share: records, watches, bans, limits and the server's own key."""

from __future__ import annotations

from typing import Final

from catchment.core.bans import Bans
from catchment.core.bootstraps import Bootstraps, KnownBootstraps
from catchment.core.broker import Publish, Status
from catchment.core.limits import Bucket
from catchment.core.watches import Watches
from catchment.crypto import mosaic
from catchment.store.base import Store
from catchment.wire.mosaic.record import Record

APPLICATIONS: Final = frozenset({0, 1, 99})
"""Core, Social Media, Examples (facts/mosaic.md, section 3.5). Records of any other are kept and served alike."""

BURST_SECONDS: Final = 2


class Mosaic:
    """One node's side of Mosaic.

    Attributes:
        signer: the server's identity.
        watches: live subscriptions of all connections.
        bans: who is turned away.
        bootstraps: where lookups are answered from.
        requests_per_second: what one connection may ask for; 0 for any number.
        idle_seconds: how long a client without an open query may be silent; 0 for ever.
    """

    def __init__(
        self,
        store: Store,
        *,
        signer: mosaic.Signer,
        bans: Bans | None = None,
        bootstraps: Bootstraps | None = None,
        requests_per_second: float = 0,
        idle_seconds: float = 0,
    ) -> None:
        self.signer = signer
        self.watches = Watches()
        self.bans = bans or Bans()
        self.bootstraps: Bootstraps = KnownBootstraps() if bootstraps is None else bootstraps
        self.requests_per_second = requests_per_second
        self.idle_seconds = idle_seconds
        self.postings = store.postings
        self._store = store

    @property
    def next_offset(self) -> int:
        """Where the log stands: what is below was kept before now."""
        return self._store.next_offset

    def bucket(self, now: int) -> Bucket | None:
        """What a new connection's requests are taken from; None when there is no limit."""
        rate = self.requests_per_second
        return Bucket(rate, max(1, rate * BURST_SECONDS), now) if rate else None

    def route(self, record: Record, publish: Publish) -> int:
        """Give an accepted record to everyone who waits for it."""
        offset = None if publish.status is Status.PASSED else publish.offset
        return self.watches.deliver(record, offset=offset, received_at=publish.entry.received_at)
