"""Quotas, with the time as an argument."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

_MAX_SENDERS: Final = 10_000


class Bucket:
    """A token bucket: `burst` at once, refilled at `rate` a second."""

    __slots__ = ("_burst", "_left", "_rate", "_since")

    def __init__(self, rate: float, burst: float, now: int) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._since = now

    def take(self, amount: float, now: int) -> bool:
        """Take `amount` if it is there; `now` in microseconds.

        A clock set back refills nothing for that step and counts from its new time on.
        """
        self._left = min(self._burst, self._left + max(0, now - self._since) * self._rate / 1e6)
        self._since = now
        if amount > self._left:
            return False
        self._left -= amount
        return True


class NoteQuota:
    """How much trouble one sender may have noted in the log (DESIGN.md, "Rules that follow").

    What is over the quota is still answered and counted; only the note is left out, so that nobody fills the disk
    with refused messages.
    """

    def __init__(
        self, *, notes_per_second: float, notes_burst: float, bytes_per_second: float, bytes_burst: float
    ) -> None:
        self._notes = (notes_per_second, notes_burst)
        self._bytes = (bytes_per_second, bytes_burst)
        self._senders: OrderedDict[str, tuple[Bucket, Bucket]] = OrderedDict()

    def change(self, *, notes_per_second: float, notes_burst: float) -> None:
        """Set other limits; every sender begins anew with a full burst."""
        self._notes = (notes_per_second, notes_burst)
        self._senders.clear()

    def allows(self, sender: str, size: int, now: int) -> bool:
        """Whether a note of `size` bytes about `sender` may be kept."""
        buckets = self._senders.get(sender)
        if buckets is None:
            buckets = (Bucket(*self._notes, now), Bucket(*self._bytes, now))
            self._senders[sender] = buckets
            if len(self._senders) > _MAX_SENDERS:
                self._senders.popitem(last=False)
        else:
            self._senders.move_to_end(sender)
        return buckets[0].take(1, now) and buckets[1].take(size, now)
