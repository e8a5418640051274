"""Stores: keepers of streams. `spi` is the interface; `memory`, `log` (files) and `sql` (databases) are the three."""

from towline.store.histogram import Histogram
from towline.store.spi import Append, Appended, Bounds, Chunk, Lost, Read, Store, Trimmed, lowest

__all__ = ["Append", "Appended", "Bounds", "Chunk", "Histogram", "Lost", "Read", "Store", "Trimmed", "lowest"]
