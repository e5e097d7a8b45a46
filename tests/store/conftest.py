"""What every store test starts from: a store of each kind, and entries to put into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from catchment import model
from catchment.store import base
from catchment.store.lmdb import LmdbStore
from catchment.store.memory import MemoryStore

MakeEntry = Callable[..., model.Entry]


def _make_entry(**changes: Any) -> model.Entry:
    fields: dict[str, Any] = {
        "kind": model.Kind.MESSAGE,
        "protocol": model.Protocol.STREAMR,
        "version": 32,
        "topic": "0xab/stream",
        "partition": 0,
        "publisher": "0xcd",
        "chain": "chain",
        "timestamp": 1_700_000_000_000,
        "sequence": 0,
        "prev_timestamp": None,
        "prev_sequence": None,
        "event_time": 1_700_000_000_000_000_000,
        "id": b"",
        "verdict": model.Verdict.OK,
        "received_at": 1_700_000_000_000_123,
        "raw": b'[32,["0xab/stream",0]]',
    }
    return model.Entry(**(fields | changes))


@pytest.fixture(scope="session")
def make_entry() -> MakeEntry:
    return _make_entry


@pytest.fixture(params=["lmdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[base.Store]:
    made: base.Store = LmdbStore.open(tmp_path / "hot") if request.param == "lmdb" else MemoryStore()
    yield made
    made.close()


@pytest.fixture(params=["lmdb", "memory"])
def small_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[base.Store]:
    """A store that has room for some hundred kilobytes."""
    made: base.Store = (
        LmdbStore.open(tmp_path / "hot", max_bytes=300_000)
        if request.param == "lmdb"
        else MemoryStore(max_bytes=300_000)
    )
    yield made
    made.close()
