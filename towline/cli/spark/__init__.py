"""`towline spark`: jobs over many messages, on Spark: `archive`, `analysis` and `replay`, with their `options`."""

from __future__ import annotations

from cyclopts import App

from towline.cli.spark.analysis import reconcile, report, trace
from towline.cli.spark.archive import archive
from towline.cli.spark.replay import replay

__all__ = ["spark"]

spark = App(
    name="spark",
    help="Jobs over many messages, on Spark: history backup, replay, traces, reports and reconciliation.\n\n"
    "They run on this machine (`local[*]`) unless `--master` names a cluster, and under spark-submit on its own. They "
    "need `pip install 'towline[spark]'` and Java 17.",
)
spark.command(archive)
spark.command(replay)
spark.command(trace)
spark.command(report)
spark.command(reconcile)
