"""The log store: all frames of all streams in one sequential message log, with consume logs that find them.

A store is a folder:

    format    the version of all this
    lock      held by the broker that has the folder open
    log/      00000000000000000001.log, …  segments of the message log: records back to back (see `format/record`)
              00000000000000000001.idx, …  the consume logs of a sealed segment (see `format/index`)
              00000000000000000001.key, …  hashes of its keys (see `format/keys`); made later, and only a cache
    config/   small documents, each replaced whole
    torn/     copies of torn tails that were cut

docs/disk-format.md specifies it byte by byte. The formats are in `format/`; `write/` moves bytes to the disk (group
commit, room, sealing) and `read/` brings them back; `recovery` opens a folder, and cuts a tail `torn` by a crash;
`retention` chooses the segments to delete; `documents` are those of `config/`; `offline/` looks into a folder without
opening it; `store` joins them, with its `settings` and `stats`.
"""

from towline.store.log.settings import LogSettings
from towline.store.log.store import LogStore
from towline.store.log.write.disk import DiskIo

__all__ = ["DiskIo", "LogSettings", "LogStore"]
