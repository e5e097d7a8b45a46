"""The Spark session of the pipeline: one machine by default, any master when asked.

DESIGN.md, "The pipeline"; facts/spark.md. What Spark and its JVM write goes into a file of a temporary folder and not
on the user's terminal; when Spark does not start, the end of that file is the reason given.
"""

from __future__ import annotations

import atexit
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from catchment.errors import MissingExtra, UserError
from catchment.pipeline.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GIB: Final = 2**30

_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"

_LOG4J: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


def driver_memory(physical: int) -> int:
    """Bytes for the JVM: a quarter of the machine, at least 1 GiB and at most 2 GiB.

    What does not fit is spilled; the pages of the files being read are worth more in the system's cache.
    """
    return max(GIB, min(2 * GIB, physical // 4))


def spark_session(
    master: str | None = None,
    *,
    app: str = "catchment",
    memory: int | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a session, or give back the one this process has.

    Args:
        master: Spark's address; by default all cores of this machine, on loopback.
        app: the name a cluster shows.
        memory: bytes for the driver's JVM; see `driver_memory`.
        settings: further Spark settings, which win over ours.

    Raises:
        MissingExtra: pyspark is not installed.
        UserError: there is no Java, or Spark does not start.
    """
    try:
        importlib.import_module("pyspark")
    except ImportError as error:
        raise MissingExtra("spark", needed_for="The pipeline", missing="pyspark") from error
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    home = find_java()
    folder = Path(tempfile.mkdtemp(prefix="catchment-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    chosen = _settings(master, app, memory, folder)
    further = dict(settings or {})
    # Ours keep the log off the terminal; others are added.
    further[_JAVA_OPTIONS] = f"{chosen[_JAVA_OPTIONS]} {further.get(_JAVA_OPTIONS, '')}".strip()
    return _start(home, folder, chosen | further)


def stop(spark: SparkSession) -> None:
    """End a session and its JVM, so that the next one may have other settings."""
    from pyspark import SparkContext  # noqa: PLC0415 - an extra

    gateway = SparkContext._gateway  # the JVM outlives stop() otherwise
    spark.stop()
    if gateway is not None:
        process = gateway.proc
        gateway.shutdown()
        process.stdin.close()
        process.wait()
        SparkContext._gateway = None
        SparkContext._jvm = None


def _settings(master: str | None, app: str, memory: int | None, folder: Path) -> dict[str, str]:
    log4j = folder / "log4j2.properties"
    log4j.write_text(_LOG4J)
    heap = memory or driver_memory(_physical_memory())
    values = {
        "spark.master": master or "local[*]",
        "spark.app.name": app,
        "spark.driver.memory": f"{heap // 2**20}m",
        _JAVA_OPTIONS: f"-Dlog4j2.configurationFile={log4j.as_uri()} -Dderby.system.home={folder}",
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.parquet.compression.codec": "zstd",
        # Delta's timestamps are microseconds; Spark's own default has no statistics.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if (master or "local").startswith("local"):
        values |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(folder),
            "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        }
    return values


def _start(home: Path, folder: Path, settings: Mapping[str, str]) -> SparkSession:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - an extra
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    log = folder / "driver.log"
    try:
        # Spark takes both from the environment alone, while it starts.
        with log.open("ab") as output, _environment(JAVA_HOME=str(home), PYSPARK_PYTHON=sys.executable):
            gateway = launch_gateway(conf, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
            return SparkSession(SparkContext(conf=conf, gateway=gateway))
    except (PySparkException, OSError) as error:
        raise _did_not_start(settings["spark.master"], home, log, error) from error
    except Exception as error:
        # py4j's errors are plain Exceptions of its own; anything else is a fault of ours and keeps its traceback.
        if not type(error).__module__.startswith("py4j"):
            raise
        raise _did_not_start(settings["spark.master"], home, log, error) from error


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _did_not_start(master: str, home: Path, log: Path, error: Exception) -> UserError:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()] if log.exists() else []
    telling = [line for line in lines if any(word in line for word in ("ERROR", "Exception", "rror:", "Invalid"))]
    reason = " ".join((telling or lines[-1:] or str(error).splitlines() or [type(error).__name__])[:2])[:300]
    return UserError(
        f"Spark did not start with master {master} and the Java in {home}: {reason} "
        "(check --master, or set JAVA_HOME to another Java)"
    )


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
