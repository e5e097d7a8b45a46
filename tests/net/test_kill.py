"""kill -9 of a node under load, again and again: what was acknowledged or delivered is there, once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from catchment import model
from catchment.client.streamr import ConnectionEnded, StreamrClient
from catchment.lake import raw_address
from catchment.store.history import History
from catchment.store.lmdb import LmdbStore
from catchment.store.proof import verify_lake
from catchment.store.sealing import Sealer

from .nodehelp import ALICE, messages
from .processes import node_process

ROUNDS = int(os.environ.get("KILL_ROUNDS", "12"))
PER_ROUND = 400


async def _publish_until_killed(
    url: str, batch: list[bytes], kill_after: int, kill: Callable[[], None], delivered: list[bytes]
) -> list[bytes]:
    """Publish a batch, kill the node after so many acknowledgements, and return what was acknowledged."""
    acknowledged: list[bytes] = []

    async def confirm(raw: bytes, confirmed: asyncio.Future[str]) -> None:
        with contextlib.suppress(ConnectionEnded):
            await confirmed
            acknowledged.append(raw)
            if len(acknowledged) == kill_after:
                kill()

    async with (
        StreamrClient(url, attempts=1) as publisher,
        StreamrClient(url, attempts=1, verify=False) as subscriber,
    ):
        await subscriber.open_subscription("s")

        async def listen() -> None:
            with contextlib.suppress(ConnectionEnded):
                async for received in subscriber.subscribe("s"):
                    delivered.append(received.raw)

        listening = asyncio.create_task(listen())
        confirming = []
        with contextlib.suppress(ConnectionEnded):
            for raw in batch:
                confirming.append(asyncio.create_task(confirm(raw, await publisher.send_raw(raw))))
        await asyncio.gather(*confirming)
        await listening
    return acknowledged


@pytest.mark.crash
def test_nothing_acknowledged_or_delivered_is_lost_and_nothing_is_there_twice(tmp_path: Path) -> None:
    seed = int(os.environ.get("KILL_SEED") or random.SystemRandom().randrange(2**32))
    print(f"KILL_SEED={seed} KILL_ROUNDS={ROUNDS}")
    chance = random.Random(seed)
    sent = messages("s", ROUNDS * PER_ROUND, signer=ALICE, start=1_700_000_000_000)
    acknowledged: list[bytes] = []
    delivered: list[bytes] = []
    for number in range(ROUNDS):
        # A restarted publisher sends its last unconfirmed messages again; some of them the node already has.
        batch = sent[max(0, number * PER_ROUND - 50) : (number + 1) * PER_ROUND]
        with node_process(tmp_path, "--seal-seconds", "0.05", "--hot-hours", chance.choice(["0", "24"])) as node:
            kill_after = chance.randrange(1, len(batch) - 60)
            acknowledged += asyncio.run(
                _publish_until_killed(node.url, batch, kill_after, node.process.kill, delivered)
            )
            assert node.process.wait(60) != 0
    store = LmdbStore.open(tmp_path / "data" / "store")
    lake = str(tmp_path / "data" / "lake")
    Sealer(store, lake, lock_path=tmp_path / "data" / "seal.lock").seal_all()
    kept = [row.entry.raw for row in _everything(History(store, lake))]
    assert len(kept) == len(set(kept))
    assert set(acknowledged) | set(delivered) <= set(kept)
    assert len(acknowledged) > ROUNDS
    rows = DeltaTable(raw_address(lake)).to_pyarrow_table(columns=["offset", "kind", "raw"])
    offsets = rows["offset"].to_pylist()
    assert sorted(offsets) == list(range(store.next_offset))  # sealing lost no row and sealed none twice
    sealed = [
        raw for raw, kind in zip(rows["raw"].to_pylist(), rows["kind"].to_pylist(), strict=True) if kind == "message"
    ]
    assert sorted(sealed) == sorted(kept)
    assert verify_lake(lake).problems == []
    store.close()


def _everything(history: History) -> list[model.Row]:
    rows: list[model.Row] = []
    after: model.OrderKey | None = None
    while True:
        page, after = history.range(model.Range(model.Topic("s", 0)), after=after, limit=500)
        rows += page
        if after is None:
            return rows
