"""What one sender may ask of the REST pages at once; a sender is an address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from catchment.core.limits import NoteQuota

MAX_ANSWERS: Final = 32
"""Histories one sender may be reading at once; each holds a page."""


class RestLimits:
    """The counts of one node.

    Attributes:
        passwords: how many may be tried; guessing must not be fast.
        challenges: how many may be asked for; nobody can push out those of others.
    """

    def __init__(self) -> None:
        self.passwords = NoteQuota(notes_per_second=0.2, notes_burst=20, bytes_per_second=1, bytes_burst=1)
        self.challenges = NoteQuota(notes_per_second=20, notes_burst=1000, bytes_per_second=1, bytes_burst=1)
        self._answers: Counter[str] = Counter()

    def may_read(self, sender: str) -> bool:
        """Whether one more history may be read by a sender."""
        return self._answers[sender] < MAX_ANSWERS

    @contextmanager
    def reading(self, sender: str) -> Iterator[None]:
        """Count a history as being read."""
        self._answers[sender] += 1
        try:
            yield
        finally:
            self._answers[sender] -= 1
            if not self._answers[sender]:
                del self._answers[sender]
