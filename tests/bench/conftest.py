"""The benchmarks are scripts in `bench/` that import each other; here they are found the same way."""

from __future__ import annotations

import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))
