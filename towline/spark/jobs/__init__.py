"""Jobs over many messages: archive, replay, trace, report and reconcile. Each is a function over a Spark session.

from towline.spark.jobs.archive.archive import archive
from towline.spark.jobs.source import Source

archive(spark, Source.of(path="/var/lib/towline"), "/backup/towline")
"""
