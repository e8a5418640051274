"""Stores: keepers of streams.

spi         the interface                                 document        small files of people and of state
memory, log/, sql/   the three stores                     eras            times, when the clock was set back
histogram   durations, for metrics
"""

from towline.store.histogram import Histogram
from towline.store.spi import Append, Appended, Bounds, Chunk, Lost, Read, Store, Trimmed

__all__ = ["Append", "Appended", "Bounds", "Chunk", "Histogram", "Lost", "Read", "Store", "Trimmed"]
