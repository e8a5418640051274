"""The small documents beside the log: human-readable files in `config/`, each replaced whole."""

from __future__ import annotations

import errno
import re
from pathlib import Path

from towline.errors import BadName, DiskFull, StoreFailed
from towline.store.log.format.folder import is_secret
from towline.store.log.write.disk import DiskIo, reading

__all__ = ["Documents"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,199}")


class Documents:
    """Blocking; the store calls it from one thread, so that the last save of a name is the one that stays."""

    def __init__(self, folder: Path, io: DiskIo) -> None:
        self._folder = folder
        self._io = io

    def path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise BadName(f"document {name[:80]!r}: use letters, digits, dots and hyphens, not beginning with a dot")
        return self._folder / name

    def load(self, path: Path) -> bytes | None:
        try:
            with reading(path):
                return path.read_bytes()
        except FileNotFoundError:
            return None

    def save(self, path: Path, document: bytes) -> None:
        try:
            self._io.replace(path, [document], secret=is_secret(path))
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                free = self._io.free_bytes(self._folder)
                raise DiskFull(f"no room to save {path}: {free} bytes are free") from error
            raise StoreFailed(f"cannot save {path}: {error.strerror} (errno {error.errno})") from error
