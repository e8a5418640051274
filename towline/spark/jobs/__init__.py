"""Jobs over many messages, each a function over a Spark session.

archive/      write, verify, compact an archive       analysis/       trace, report, reconcile
replay        messages sent again                     source          a broker or a folder to read
session       the Spark session                       tasks           documents written by Spark's workers

from towline.spark.jobs.archive.archive import archive
from towline.spark.jobs.source import Source

archive(spark, Source.of(path="/var/lib/towline"), "/backup/towline")
"""
