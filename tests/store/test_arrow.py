"""Arrow columns made from buffers equal those pyarrow makes itself."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.store.arrow import column

LONG = st.integers(-(2**63), 2**63 - 1)
VALUES = {
    "int64": (pa.int64(), LONG),
    "int64 with nulls": (pa.int64(), st.none() | LONG),
    "int32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "string": (pa.string(), st.text()),
    "binary": (pa.binary(), st.binary()),
}


@pytest.mark.parametrize("name", VALUES)
@given(st.data())
def test_equal_to_what_pyarrow_makes(name: str, data: Any) -> None:
    kind, element = VALUES[name]
    values = data.draw(st.lists(element, max_size=40))
    made = column(kind, values)
    made.validate(full=True)
    assert made.equals(pa.array(values, kind))


def test_timestamps_are_their_microseconds() -> None:
    kind = pa.timestamp("us", tz="UTC")
    assert column(kind, [5, 6]).equals(pa.array([5, 6], pa.int64()).cast(kind))


def test_a_node_that_seals_does_not_import_pandas() -> None:
    code = """
import sys, tempfile
from catchment.net.server import Node
from catchment.store.memory import MemoryStore
from catchment.store.sealing import Sealer
from catchment import model
store = MemoryStore()
store.append([model.Entry(model.Kind.MESSAGE, model.Protocol.STREAMR, 32, "s", 0, "", "", 1, 0, None, None, 1, b"",
                          model.Verdict.UNSIGNED, 1, b"raw")])
assert len(Sealer(store, tempfile.mkdtemp()).seal_all()) == 1
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
