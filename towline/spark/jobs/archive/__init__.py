"""The archive: written (`archive`, `parquet`), listed (`manifest`), compacted, verified, and held for by retention."""
