"""What a user is told when Spark cannot start."""

from __future__ import annotations

import subprocess
import sys

import pytest

from catchment.pipeline.session import GIB, driver_memory


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("physical", "given"), [(GIB, GIB), (6 * GIB, 3 * GIB // 2), (64 * GIB, 2 * GIB)])
def test_memory_is_a_bounded_quarter(physical: int, given: int) -> None:
    assert driver_memory(physical) == given


@pytest.mark.parametrize("call", ["session.spark_session()", "__import__('catchment.pipeline.jobs')"])
def test_without_pyspark_the_extra_is_named(call: str) -> None:
    done = python(
        "import sys; sys.modules['pyspark'] = None\n"
        "from catchment.errors import MissingExtra\n"
        "from catchment.pipeline import session\n"
        f"try: {call}\n"
        "except MissingExtra as error: print(error)"
    )
    assert "catchment[spark]" in done.stdout, done.stderr


@pytest.mark.spark
def test_a_spark_that_does_not_start_says_why() -> None:
    done = python(
        "from catchment.errors import UserError\n"
        "from catchment.pipeline import session\n"
        "try: session.spark_session('local[1]', settings={'spark.driver.memory': '1k'})\n"
        "except UserError as error: print(error)"
    )
    assert "Spark did not start with master local[1]" in done.stdout, done.stderr
    assert "--master" in done.stdout
    assert done.stderr == ""
