"""Names of `towline.store`, for tests."""

from __future__ import annotations

from towline.store import Append, Appended, Bounds, Chunk, Lost, Read, Store
from towline.store.log import DiskIo, LogSettings, LogStore, store
from towline.store.log.format.index import Known, load_directory, write_index
from towline.store.log.format.keys import Breaks
from towline.store.log.format.record import STAMP, Record
from towline.store.log.format.scan import Scanner
from towline.store.log.format.segment import Segment, create_segment
from towline.store.log.offline import backup, inspect
from towline.store.log.offline.inspect import dump, stat, verify
from towline.store.log.offline.streams import OfflineStreams, read_range
from towline.store.log.read import key_search, range_reader
from towline.store.log.read.key_search import KeyBuilder, KeySearch
from towline.store.log.read.range_reader import StreamReader, Wanted
from towline.store.log.recovery import read_segment
from towline.store.log.torn import cut_tail
from towline.store.log.write import writer
from towline.store.log.write.disk import REAL
from towline.store.log.write.sealer import absorb
from towline.store.memory import MemoryStore
