"""Successive rows of the log column by column: what sealing reads.

A row at a time, `model.Row` and `model.Entry` are made only to be taken apart again. Here each field of many rows is
one sequence from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from catchment import model


class Block(NamedTuple):
    """Rows of one epoch at successive offsets. The columns are those of `model.Entry`, numbers instead of members."""

    epoch: int
    first: int
    """The offset of the first row."""
    kind: Sequence[int]
    protocol: Sequence[int]
    version: Sequence[int]
    topic: Sequence[str]
    partition: Sequence[int]
    publisher: Sequence[str]
    chain: Sequence[str]
    timestamp: Sequence[int]
    sequence: Sequence[int]
    prev_timestamp: Sequence[int | None]
    prev_sequence: Sequence[int | None]
    event_time: Sequence[int]
    id: Sequence[bytes]
    verdict: Sequence[int]
    received_at: Sequence[int]
    raw: Sequence[bytes]

    @property
    def rows(self) -> int:
        """How many rows there are; at least one."""
        return len(self.raw)

    @property
    def end(self) -> int:
        """The offset after the last row."""
        return self.first + len(self.raw)

    @property
    def size(self) -> int:
        """The sum of `model.Entry.size`."""
        return sum(sum(map(len, part)) for part in (self.raw, self.id, self.topic, self.publisher, self.chain))


def block_of(rows: Sequence[model.Row]) -> Block | None:
    """The rows of the first one's epoch, which stand at successive offsets; None when there are none."""
    if not rows:
        return None
    epoch = rows[0].epoch
    entries = [row.entry for row in rows if row.epoch == epoch]
    columns = [[getattr(entry, name) for entry in entries] for name in model.Entry.__struct_fields__]
    return Block(epoch, rows[0].offset, *columns)
