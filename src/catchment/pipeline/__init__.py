"""The lake's tables: what the log says, checked again and put in order by Spark (DESIGN.md, "The pipeline").

What a notebook or script needs is here; Spark itself is imported when one of these is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from catchment.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_table", "spark_session"]


def spark_session(master: str | None = None) -> SparkSession:
    """A Spark session that can read the lake; see `catchment.pipeline.session`."""
    from catchment.pipeline import session  # noqa: PLC0415 - Spark is an extra and slow to import

    return session.spark_session(master)


def read_table(spark: SparkSession, lake: str, name: str) -> DataFrame:
    """A table of the lake, as it is now, as a Spark DataFrame: no jar needed.

    Raises:
        UserError: there is no such table (yet).
    """
    from catchment.pipeline import columns, tables  # noqa: PLC0415 - see above

    spec = columns.TABLES.get(name)
    if spec is None:
        raise UserError(f"There is no table {name!r}; there are {', '.join(columns.TABLES)}.")
    table = tables.LakeTable.open(lake, spec)
    if table is None:
        raise UserError(f"{lake} has no table {name!r} yet; 'catchment lake run' makes it.")
    return table.read(spark)
