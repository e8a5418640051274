"""The last scene: Spark archives the demo's messages, traces every order, and makes a page of it."""

from __future__ import annotations

import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

from towline.demo.consumer import TOPIC
from towline.demo.story import GROUPS, Story

__all__ = ["pipeline"]

QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}


def pipeline(story: Story) -> None:
    missing = [name for name in ("pyspark", "pyarrow", "numpy") if find_spec(name) is None]
    missing += [] if shutil.which("java") else ["Java 17"]
    if missing:
        story.tell(f"[dim]no archive, trace and report: {', '.join(missing)} not installed (towline\\[spark])[/dim]")
        return
    from towline.spark.jobs.analysis.reconcile import reconcile
    from towline.spark.jobs.analysis.report import report
    from towline.spark.jobs.analysis.report_html import render
    from towline.spark.jobs.analysis.trace import trace
    from towline.spark.jobs.archive.archive import archive
    from towline.spark.jobs.archive.manifest import Archive
    from towline.spark.jobs.archive.verify import verify
    from towline.spark.jobs.session import session
    from towline.spark.jobs.source import Source

    source, folder = Source.of(path=str(story.folder / "data")), story.folder
    with session("towline demo", "local[2]", QUICK, quiet=True) as spark:
        story.tell("Spark is up, on this machine: it reads the folder of the running broker")
        done = archive(spark, source, str(folder / "archive"))
        kept = Archive.open(str(folder / "archive"))
        checked = verify(spark, kept, source)
        story.tell(f"{done.rows:,} messages and delivery events are archived as Parquet, and compared with the log")
        story.promise("the archive holds what the log holds", checked.sound and not checked.behind)
        frame = trace(spark, kept, str(folder / "trace"), topics=[TOPIC], groups=GROUPS)
        found = reconcile(spark, kept, frame, topics=[TOPIC])
        handled = found.settled == found.deliveries == len(GROUPS) * len(story.expected)
        story.promise("Spark finds every order handled, and none lost or dead", found.sound and handled)
        now_us = kept.last.made_at_us if kept.last else 0
        made = render(report(spark, kept, frame, topics=[TOPIC], now_us=now_us), "What the demo did")
    page = Path(tempfile.gettempdir()) / "towline-demo.html"
    page.write_text(made, encoding="utf-8")
    story.tell(f"the life of {found.deliveries:,} deliveries is traced; look at file://{page}")
