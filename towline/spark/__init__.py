"""Spark: the part of Towline that handles many messages.

    lower layer   `arrow/` makes Arrow batches of frames, and back; `plan` cuts ranges of what `catalog` lists;
                  `range_reader` reads one from a broker or from a store's folder (`sources`); `sink_routing` finds the
                  broker of a row; `delayed_rows` reads the schedule
    connector     `data_source` is what Spark calls for `format("towline")`, with `options`: `batch_reader`,
                  `stream_reader`, `writer`; `progress` is reported to a group, `short_errors` are for people
    jobs/         archive, replay, trace, report, reconcile

Nothing here is imported by `import towline`; it needs the extra `towline[spark]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("towline")` known to a session: needed where the package was shipped with `--py-files`, which Spark
    does not search."""
    from towline.spark.data_source import TowlineSource

    spark.dataSource.register(TowlineSource)
