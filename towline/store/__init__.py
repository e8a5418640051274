"""Stores: where the bytes of streams live. `spi` says what one is; `memory` and `log` are two."""

from towline.store.histogram import Histogram
from towline.store.spi import Append, Appended, Bounds, Chunk, Lost, Read, Store, Trimmed

__all__ = ["Append", "Appended", "Bounds", "Chunk", "Histogram", "Lost", "Read", "Store", "Trimmed"]
