"""Entries, stores and lakes for the tests of sealing, proof and history."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from catchment import lake, model
from catchment.store.base import Store
from catchment.store.lmdb import LmdbStore
from catchment.store.memory import MemoryStore

NOW = 1_790_000_000_000_000
"""Microseconds: the first entry's time of receipt, 2026-09-21T14:13:20Z."""


def entry(number: int, **changes: object) -> model.Entry:
    """A Streamr message; different numbers have different identities."""
    timestamp = NOW // 1000 + number
    values: dict[str, object] = {
        "kind": model.Kind.MESSAGE,
        "protocol": model.Protocol.STREAMR,
        "version": 32,
        "topic": f"0x{number % 3:040x}/sensor \u00e9{number % 3}",
        "partition": number % 2,
        "publisher": f"0x{number % 5:040x}",
        "chain": f"chain{number % 5}",
        "timestamp": timestamp,
        "sequence": number % 4,
        "prev_timestamp": timestamp - 5 if number >= 5 else None,
        "prev_sequence": 0 if number >= 5 else None,
        "event_time": timestamp * 1_000_000,
        "id": b"",
        "verdict": model.Verdict.OK,
        "received_at": NOW + number * 1001,
        "raw": json.dumps([32, number, "x" * (number % 50)]).encode(),
    }
    return model.Entry(**(values | changes))


def mixed(count: int, seed: int, *, start: int = 0) -> list[model.Entry]:
    """Entries of every protocol and several kinds over two days, none a repeat."""
    chance = random.Random(f"{seed} {start}")
    entries = []
    for number in range(start, start + count):
        changes: dict[str, object] = {"received_at": NOW + number * 1001 + chance.randrange(2) * 86_400_000_000}
        dice = chance.random()
        if dice < 0.1:
            changes |= {"kind": model.Kind.REFUSED, "verdict": model.Verdict.BAD_SIGNATURE, "raw": chance.randbytes(40)}
        elif dice < 0.2:
            changes |= {"kind": model.Kind.DUPLICATE, "raw": b""}
        elif dice < 0.3:
            changes |= {
                "kind": model.Kind.RECORD,
                "protocol": model.Protocol.MOSAIC,
                "id": chance.randbytes(48),
                "raw": chance.randbytes(200),
            }
        entries.append(entry(number, **changes))
    return entries


def batches(entries: Sequence[model.Entry], size: int) -> Iterator[Sequence[model.Entry]]:
    for at in range(0, len(entries), size):
        yield entries[at : at + size]


def sealed_rows(address: str) -> list[dict[str, object]]:
    """Everything in the raw table, by node, epoch and offset, read as a stranger would."""
    table = pa.table(DeltaTable(lake.raw_address(address)).to_pyarrow_dataset().to_table())
    return table.sort_by([("node", "ascending"), ("epoch", "ascending"), ("offset", "ascending")]).to_pylist()


def fixed_bytes(seed: int) -> Callable[[int], bytes]:
    """Random bytes that are the same for the same seed: two stores made with them are copies of each other."""
    return random.Random(seed).randbytes


def open_store(kind: str, folder: Path, *, seed: int | None = None) -> Store:
    """A new or existing store; `kind` is `memory` or `lmdb`."""
    random_bytes = os.urandom if seed is None else fixed_bytes(seed)
    if kind == "memory":
        return MemoryStore(random_bytes=random_bytes)
    return LmdbStore.open(folder, map_size=1 << 28, random_bytes=random_bytes)


def log_rows(store: Store) -> list[model.Row]:
    """All hot rows."""
    return store.read(0, store.next_offset + 1)


def optimize(address: str, how: str) -> None:
    """Rewrite the raw table's files as `lake compact` may, and delete the old ones."""
    table = DeltaTable(lake.raw_address(address))
    if how == "compact":
        table.optimize.compact()
    else:
        table.optimize.z_order(["topic", "timestamp"])
    table.create_checkpoint()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
