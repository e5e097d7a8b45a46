"""Copies and holes: which messages are new, which came again, and what is missing from the chains.

DESIGN.md, "The pipeline": one shuffle and one sort on the chain key; every window below is satisfied by that order
(facts/spark.md: 8.6 s for 5M rows, self-joins 51.3 s). All results depend on the set of rows alone, never on how they
were cut into runs or in which order they came:

* Of several copies the one received first is kept: least (received_at, node, epoch, offset).
* The messages of a chain stand in the order of (timestamp, sequence). Between neighbours q and m there is a hole
  (q, m.prev] if m says it follows something later than q. The first known message of a chain opens none: the chain may
  be older than the log.
* A hole is provisional until `grace` after m was received, measured by the latest receipt of all processed rows, then
  open. When m.prev itself comes it is gone; if that took `grace` or longer, it stays in the table as filled.

Each function takes DataFrames and gives one back. `existing` are the rows of `messages` before the run, of all chains
the run touches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from catchment import lake, model
from catchment.errors import MissingExtra
from catchment.pipeline.columns import DUPLICATES, FILLED, GAPS, IDENTITY, MESSAGES, OPEN, PROVISIONAL, QUARANTINE
from catchment.pipeline.tables import FILE_COLUMN, event_date
from catchment.pipeline.verify import Role

try:
    from pyspark.sql import functions as sf
    from pyspark.sql.window import Window
except ImportError as error:
    raise MissingExtra("spark", needed_for="The pipeline", missing="pyspark") from error

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CHAIN_NAMES: Final = ("protocol", "topic", "partition", "publisher", "chain")
_PLACE: Final = ("received_at", "node", "epoch", "offset")
_NARROW: Final = tuple(
    dict.fromkeys((*IDENTITY, *CHAIN_NAMES, "prev_timestamp", "prev_sequence", "id", "event_time", *_PLACE))
)
_NOT_FROM_BYTES: Final = lake.verdict_name(model.Verdict.NOT_PERMITTED)


def fresh_sightings(judged: DataFrame) -> DataFrame:
    """The rows of this run, with Delta's times and nothing known of earlier runs."""
    return judged.withColumn("event_time", sf.timestamp_micros(sf.expr("event_time div 1000"))).withColumn(
        FILE_COLUMN, sf.lit(None).cast("string")
    )


def existing_sightings(messages: DataFrame, touched: DataFrame) -> DataFrame:
    """The messages of earlier runs in the chains of this one: what order and identity need of them, and their file."""
    return (
        messages.select(*_NARROW, FILE_COLUMN)
        .join(touched, "chain_key", "left_semi")
        .withColumn("role", sf.lit(int(Role.MESSAGE)))
    )


def ranked(fresh: DataFrame, existing: DataFrame | None) -> DataFrame:
    """All sightings in the order of their chains: `copy` numbers those of one message, `seen` counts them.

    The kept copy of a message has copy 1 and role MESSAGE; rows of earlier runs have `FILE_COLUMN`.
    """
    rows = fresh if existing is None else fresh.unionByName(existing, allowMissingColumns=True)
    same = Window.partitionBy("chain_key", "timestamp", "sequence").orderBy("role", *_PLACE)
    whole = Window.partitionBy("chain_key", "timestamp", "sequence")
    return (
        rows.repartition("chain_key")
        .sortWithinPartitions(*IDENTITY, "role", *_PLACE)
        .withColumn("copy", sf.row_number().over(same))
        .withColumn("seen", sf.count(sf.lit(1)).over(whole))
    )


def quarantine(rows: DataFrame, run: int) -> DataFrame:
    """The table's rows of this run."""
    agrees = sf.when(sf.col("node_verdict") != _NOT_FROM_BYTES, sf.col("node_verdict") == sf.col("verdict"))
    return (
        rows.where(sf.col("role") == int(Role.QUARANTINE))
        .withColumn("agrees", agrees)
        .transform(_stamped, run)
        .select(*QUARANTINE.names)
    )


def messages(rows: DataFrame, run: int) -> DataFrame:
    """The messages this run adds: kept copies that no earlier run had kept."""
    return rows.where(is_new()).transform(_stamped, run).select(*MESSAGES.names)


def is_new() -> Column:
    """Whether a row goes into `messages`."""
    return _kept() & sf.col(FILE_COLUMN).isNull()


def gives_way() -> Column:
    """Whether a row of `messages` gives way to a copy received earlier, which another node sealed later."""
    return (sf.col("role") == int(Role.MESSAGE)) & (sf.col("copy") > 1) & sf.col(FILE_COLUMN).isNotNull()


def duplicates(rows: DataFrame, before: DataFrame | None, run: int) -> DataFrame:
    """The table's rows that this run makes or changes, with `FILE_COLUMN` of the row to replace.

    A message in `messages` is one sighting that is no copy; without one (the repeat of a message this lake never got)
    all are copies. Counting from what was there before gives the same numbers whatever the cutting into runs.
    """
    is_message, is_fresh = sf.col("role") == int(Role.MESSAGE), sf.col(FILE_COLUMN).isNull()
    counting = sf.col("role").isin(int(Role.MESSAGE), int(Role.NOTE))
    several = rows.where(counting & ((sf.col("seen") > 1) | ~is_message))
    if before is not None:
        # Repeats may have been noted before the message itself came.
        alone = rows.where(is_message & is_fresh & (sf.col("seen") == 1))
        several = several.unionByName(alone.join(before, list(IDENTITY), "left_semi"))
    counted = (
        several.groupBy(*IDENTITY)
        .agg(
            *(sf.first(name, ignorenulls=True).alias(name) for name in (*CHAIN_NAMES, "id", "event_time")),
            sf.count(sf.when(is_fresh, 1)).alias("fresh"),
            sf.max(is_message & ~is_fresh).alias("had"),
            sf.max(is_message).alias("has"),
            sf.collect_set("node").alias("nodes"),
            sf.min("received_at").alias("first_seen"),
            sf.max("received_at").alias("last_seen"),
        )
        .where("fresh > 0")
    )
    sightings = sf.col("fresh") + sf.col("had").cast("bigint")
    if before is not None:
        old = before.select(
            *IDENTITY,
            sf.col("copies").alias("old_copies"),
            sf.col("nodes").alias("old_nodes"),
            sf.col("first_seen").alias("old_first"),
            sf.col("last_seen").alias("old_last"),
            FILE_COLUMN,
        )
        counted = (
            counted.join(old, list(IDENTITY), "left")
            .withColumn("nodes", sf.array_union("nodes", sf.coalesce("old_nodes", sf.array().cast("array<binary>"))))
            .withColumn("first_seen", sf.least("first_seen", "old_first"))
            .withColumn("last_seen", sf.greatest("last_seen", "old_last"))
        )
        sightings = sightings + sf.coalesce("old_copies", sf.lit(0))
    else:
        counted = counted.withColumn(FILE_COLUMN, sf.lit(None).cast("string"))
    return (
        counted.withColumn("copies", sightings - sf.col("has").cast("bigint"))
        .withColumn("nodes", sf.sort_array("nodes"))
        .where("copies > 0")
        .transform(_stamped, run)
        .select(*DUPLICATES.names, FILE_COLUMN, sf.lit(False).alias("gone"))
    )


def gaps(rows: DataFrame, *, watermark: int, grace: int, run: int) -> DataFrame:
    """All holes of the chains this run touches.

    Args:
        rows: what `ranked` gave, the messages of earlier runs included.
        watermark: UTC microseconds, the latest receipt of all rows processed so far.
        grace: microseconds a missing message may take.
        run: the number of the run.
    """
    chain = Window.partitionBy("chain_key").orderBy("timestamp", "sequence")
    neighbours = rows.where(_kept()).select(
        "*",
        sf.lag(sf.struct("timestamp", "sequence")).over(chain).alias("q"),
        sf.lag(sf.struct("timestamp", "sequence"), 2).over(chain).alias("qq"),
        sf.lag("received_at").over(chain).alias("q_received_at"),
        _ref("prev_timestamp", "prev_sequence").alias("prev"),
    )
    follows = sf.col("prev_timestamp").isNotNull() & sf.col("q").isNotNull()
    late = sf.unix_micros("q_received_at") - sf.unix_micros("received_at") >= grace
    hole = follows & (sf.col("prev") > sf.col("q"))
    filled = follows & (sf.col("prev") == sf.col("q")) & late & sf.col("qq").isNotNull()
    return (
        neighbours.withColumn("hole", hole)
        .where(hole | filled)
        .withColumn("from", sf.when(sf.col("hole"), sf.col("q")).otherwise(sf.col("qq")))
        .withColumn("since", sf.col("received_at"))
        .withColumn("filled_at", sf.when(~sf.col("hole"), sf.col("q_received_at")))
        .withColumn("status", sf.when(sf.col("hole"), _status(watermark, grace)).otherwise(FILLED))
        .transform(_stamped, run)
        .withColumns(
            {
                "from_timestamp": sf.col("from.timestamp"),
                "from_sequence": sf.col("from.sequence"),
                "to_timestamp": sf.col("prev.timestamp"),
                "to_sequence": sf.col("prev.sequence"),
                "next_timestamp": sf.col("timestamp"),
                "next_sequence": sf.col("sequence"),
            }
        )
        .select(*GAPS.names)
    )


def gap_changes(now: DataFrame, before: DataFrame, touched: DataFrame, *, watermark: int, grace: int) -> DataFrame:
    """What changes in the table: rows of `now` that it has not or has otherwise, holes that are gone, holes that aged.

    Args:
        now: all holes of the chains this run touches.
        before: the table before the run, with `FILE_COLUMN`.
        touched: the keys of those chains.
        watermark: as for `gaps`.
        grace: as for `gaps`.

    Returns:
        The table's columns, `FILE_COLUMN` of the row to replace, and `gone`. Which run wrote a row is no difference.
    """
    key = list(GAPS.key)
    values = [name for name in GAPS.names if name not in (*key, "run")]
    old = before.join(touched, "chain_key", "left_semi").select(*key, sf.struct(*values).alias("old"), FILE_COLUMN)
    compared = (
        now.withColumn("new", sf.struct(*values))
        .join(old, key, "full_outer")
        .where(~sf.col("new").eqNullSafe(sf.col("old")))
        .select(*GAPS.names, FILE_COLUMN, sf.col("new").isNull().alias("gone"))
    )
    # Time went on for the other chains too.
    aged = (
        before.where(sf.col("status") == PROVISIONAL)
        .join(touched, "chain_key", "left_anti")
        .withColumn("status", _status(watermark, grace))
        .where(sf.col("status") == OPEN)
        .select(*GAPS.names, FILE_COLUMN, sf.lit(False).alias("gone"))
    )
    return compared.unionByName(aged)


def _kept() -> Column:
    return (sf.col("role") == int(Role.MESSAGE)) & (sf.col("copy") == 1)


def _status(watermark: int, grace: int) -> Column:
    return sf.when(sf.lit(watermark) - sf.unix_micros("since") >= grace, OPEN).otherwise(PROVISIONAL)


def _stamped(rows: DataFrame, run: int) -> DataFrame:
    return rows.withColumn("run", sf.lit(run).cast("bigint")).withColumn("event_date", event_date(sf.col("event_time")))


def _ref(timestamp: str, sequence: str) -> Column:
    # The field names of both sides of a comparison must agree.
    return sf.struct(sf.col(timestamp).alias("timestamp"), sf.coalesce(sequence, sf.lit(0)).alias("sequence"))
