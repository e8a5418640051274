"""One broker per folder: an advisory lock that the kernel releases when its process dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from towline.errors import StoreLocked
from towline.files import open_private

__all__ = ["FolderLock"]


class FolderLock:
    """Holds the lock from its making until `release`. The file stays: removing it would race with the next opener."""

    def __init__(self, folder: Path) -> None:
        self._fd = open_private(folder / "lock", os.O_RDWR | os.O_CREAT, secret=True)  # whoever can open it can hold it
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise StoreLocked(
                f"the folder {folder.absolute()} is open in the process with pid {owner}: stop it, or choose another"
            ) from error
        self._pid = os.getpid()
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            # A process forked from this one has the descriptor, too: it neither keeps the lock nor releases it.
            if os.getpid() == self._pid:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = -1
