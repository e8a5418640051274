"""Many messages past all delivery, for the Spark connector: `scan` reads, `publish` writes, over all `nodes`."""
