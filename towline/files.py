"""Files and folders that hold messages or secrets: for their owner, whatever the umask and the folder around them are.

Where a folder lets its group in and nobody else (mode 0750), the group is meant to read along: then files in it are
0640, but for those that hold secrets. No file is ever for others.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["file_mode", "folder_mode", "make_folder", "narrow", "open_private"]

_OWNER: Final = 0o600
_GROUP: Final = 0o640


def open_private(path: Path, flags: int, *, secret: bool = False) -> int:
    """Open a file to write to it; the one way to make one. What is there already with a wider mode is narrowed before
    anything is written to it, unless it is another user's. `secret` files are not for the group either. A link is not
    followed: in a folder that others may write to, they would say which of our files is overwritten."""
    mode = _OWNER if secret else file_mode(path.parent)
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "it is a link, and what that leads to is not written to: remove it", path) from None
    with suppress(PermissionError):
        _narrow(fd, mode)
    return fd


def make_folder(path: Path) -> list[Path]:
    """Make a folder for its owner alone, and those above it for nobody else to change; returns what was missing, from
    the inside out."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=0o700 if one == path else 0o755, exist_ok=True)
    return missing


def file_mode(folder: Path) -> int:
    """The mode of files in a folder."""
    return _GROUP if _lets_group_in(folder) else _OWNER


def folder_mode(folder: Path) -> int:
    """The mode of folders within a folder."""
    return folder.stat().st_mode & 0o770 if _lets_group_in(folder) else 0o700


def narrow(path: Path, mode: int) -> bool:
    """Remove permissions of a file or folder beyond `mode`; whether there were any. A link is left as it is."""
    status = path.lstat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)) or not status.st_mode & 0o777 & ~mode:
        return False
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return _narrow(fd, mode)
    finally:
        os.close(fd)


def _narrow(fd: int, mode: int) -> bool:
    found = os.fstat(fd).st_mode
    # A device (/dev/null) is everybody's.
    if not (stat.S_ISREG(found) or stat.S_ISDIR(found)) or not found & 0o777 & ~mode:
        return False
    os.fchmod(fd, stat.S_IMODE(found) & (mode | 0o7000))
    return True


def _lets_group_in(folder: Path) -> bool:
    return folder.stat().st_mode & 0o057 == 0o050
