"""A pipeline killed with SIGKILL, and run again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from catchment.pipeline.jobs import run_pipeline

from .lakes import Node, expected, found, history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.crash]

RUN_AND_DIE = """
import os, signal, sys
from catchment.pipeline.jobs import run_pipeline

def checkpoint(name):
    if name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

run_pipeline(sys.argv[1], master="local[2]", checkpoint=checkpoint)
"""


def test_killed_while_files_lie_around_and_tables_are_ahead_of_each_other(spark: SparkSession, tmp_path: Path) -> None:
    nodes = [Node(tmp_path)]
    arrivals = history(7, chains=3, nodes=1)[0]
    nodes[0].keep(arrivals[: len(arrivals) // 2])
    run_pipeline(str(tmp_path), spark=spark)
    nodes[0].keep(arrivals[len(arrivals) // 2 :])
    for name in ("written messages", "committed duplicates"):
        died = subprocess.run([sys.executable, "-c", RUN_AND_DIE, tmp_path, name], capture_output=True, check=False)
        assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    report = run_pipeline(str(tmp_path), spark=spark)
    assert (report.run, report.resumed) == (2, 2)
    assert found(tmp_path) == expected(nodes)
    assert run_pipeline(str(tmp_path), spark=spark).run == 0
