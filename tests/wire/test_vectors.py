"""The vectors of `tests/vectors`: they are what their script makes, and the readers agree with every one."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from catchment import lake, model
from catchment.wire.registry import READERS, read_again

FOLDER = Path(__file__).parents[1] / "vectors"
CASES = json.loads((FOLDER / "streamr_signatures.json").read_text(encoding="utf-8"))


def test_the_files_are_what_the_script_makes() -> None:
    script: dict[str, Any] = runpy.run_path(str(FOLDER / "make_vectors.py"))
    for name, make in script["FILES"].items():
        assert (FOLDER / name).read_text(encoding="utf-8") == script["render"](make()), name


def test_there_are_enough_of_each_verdict() -> None:
    verdicts = [case["verdict"] for case in CASES]
    assert len({case["name"] for case in CASES}) == len(CASES) >= 40
    for verdict, least in (("ok", 40), ("unsigned", 4), ("bad_signature", 40), ("malformed", 40)):
        assert verdicts.count(verdict) >= least, verdict


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_verdicts(case: dict[str, str]) -> None:
    raw = case["raw"].encode()
    for _ in range(2):  # the second time with the publisher's key remembered
        reading = read_again(model.Protocol.STREAMR, raw)
        assert lake.verdict_name(reading.verdict) == case["verdict"]
        assert case["reason_contains"] in reading.reason
        assert bool(reading.reason) is not reading.verdict.accepted
        assert (reading.entry is None) is (reading.verdict is model.Verdict.MALFORMED)
        if reading.entry is not None:
            assert reading.entry.raw == raw
            assert reading.entry.verdict is reading.verdict
            assert (reading.entry.kind is model.Kind.REFUSED) is not reading.verdict.accepted


def test_every_protocol_has_a_reader() -> None:
    assert set(READERS) == set(model.Protocol)


@pytest.mark.parametrize("protocol", list(model.Protocol))
def test_a_protocol_without_a_reader_is_malformed(protocol: model.Protocol, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(READERS, protocol)  # type: ignore[arg-type]
    reading = read_again(protocol, b"anything")
    assert reading.verdict is model.Verdict.MALFORMED
    assert protocol.name.lower() in reading.reason
