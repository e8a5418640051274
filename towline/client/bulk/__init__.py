"""Bulk reading and writing past delivery, for the Spark connector: `scan` reads, `publish` writes, over all `nodes`."""
