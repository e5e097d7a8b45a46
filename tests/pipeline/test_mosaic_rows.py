"""Mosaic's records on their way through the lake: judged again, each once, with UTC for their time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from catchment import model
from catchment.core.mosaic_search import posting_of
from catchment.pipeline.jobs import run_pipeline
from catchment.store.memory import MemoryStore
from catchment.store.sealing import Sealer
from catchment.wire.mosaic import record

from ..sessions.mosaichelp import ALICE, START, UNIQUE, make
from .lakes import contents, repeat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def entry(raw: bytes, received_at: int) -> model.Entry:
    found = record.decode(raw)
    return record.to_entry(found, verdict=record.judge(found), received_at=received_at)


def test_records_reach_the_tables(spark: SparkSession, tmp_path: Path) -> None:
    received = START // 1000
    good = [make(time * 1000, payload=b"text %d" % time) for time in range(3)]
    forged = bytearray(make(9000))
    forged[-64] ^= 1
    lying = msgspec.structs.replace(entry(make(8000), received), verdict=model.Verdict.OK, publisher="somebody else")
    store = MemoryStore(extracts={model.Protocol.MOSAIC: posting_of})
    store.append([entry(raw, received + number) for number, raw in enumerate(good)])
    store.append([entry(bytes(forged), received + 7), lying, repeat(entry(good[0], received), received + 9)])
    Sealer(store, str(tmp_path)).seal_all()
    run_pipeline(str(tmp_path), spark=spark)
    messages = sorted(contents(tmp_path, "messages"), key=lambda row: row["timestamp"])
    assert [row["content"] for row in messages] == ["text 0", "text 1", "text 2"]
    assert {(row["protocol"], row["topic"], row["publisher"]) for row in messages} == {
        ("mosaic", f"{UNIQUE:016x}", ALICE.public.hex())
    }
    assert [row["id"] for row in messages] == [raw[:48] for raw in good]
    assert {row["kind"] for row in messages} == {"record"}
    troubles = sorted((row["verdict"], row["agrees"]) for row in contents(tmp_path, "quarantine"))
    assert troubles == [("bad_id", False), ("bad_signature", True)]
    assert [row["copies"] for row in contents(tmp_path, "duplicates")] == [1]
    assert contents(tmp_path, "gaps") == []
