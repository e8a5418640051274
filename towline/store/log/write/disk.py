"""All calls that touch the disk's bytes, in one object, so that a test can let each of them fail."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from towline.errors import Unreadable
from towline.files import open_private

__all__ = ["REAL", "DiskIo", "not_now", "reading"]

_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_NOT_AT_ONCE = {errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_REMEDIES = {
    errno.EMFILE: "allow the process more open files (ulimit -n, LimitNOFILE)",
    errno.ENFILE: "allow the system more open files (fs.file-max)",
    errno.ENOMEM: "free some memory",
    errno.ENOENT: "put the file back",
    errno.EACCES: "let this user read the file",
    errno.EPERM: "let this user read the file",
}
_REMEDY = "look at the disk; for one that never reads again, see 'A disk that cannot be read' in docs/operations.md"


def not_now(error: OSError, path: Path) -> Unreadable:
    """An error of opening or reading. It is never damage: only a checksum proves that bytes are lost."""
    remedy = _REMEDIES.get(error.errno or 0, _REMEDY)
    return Unreadable(f"{path} cannot be read now: {error.strerror or error}. Nothing is taken for lost: {remedy}")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name the file that cannot be read. One that is not there is the caller's own matter."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise not_now(error, path) from error


class DiskIo:
    """The real disk."""

    def pwritev(self, fd: int, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> int:
        return os.pwritev(fd, buffers, position)

    def pread(self, fd: int, length: int, position: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        data = os.pread(fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        while data and sum(map(len, parts)) < length:
            done = sum(map(len, parts))
            data = os.pread(fd, length - done, position + done)
            parts.append(data)
        return b"".join(parts)

    def pread_into(self, fd: int, buffer: memoryview, position: int) -> int:
        """Fill the buffer from the disk; the number of bytes got is smaller only at the end of the file."""
        done = 0
        while done < len(buffer):
            got = os.preadv(fd, [buffer[done:]], position + done)
            if not got:
                break
            done += got
        return done

    def pread_cached(self, fd: int, buffer: memoryview, position: int) -> int:
        """`pread_into` for cached bytes only: never waits for the disk."""
        if not _NOWAIT:
            return 0
        try:
            return os.preadv(fd, [buffer], position, _NOWAIT)
        except OSError as error:
            if error.errno in _NOT_AT_ONCE:
                return 0
            raise

    def next_data(self, fd: int, position: int) -> int | None:
        """The first place from `position` on that was ever written; None if there is none. It may be too early."""
        try:
            return max(position, os.lseek(fd, position, os.SEEK_DATA))
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            return position

    def fallocate(self, fd: int, length: int) -> None:
        os.posix_fallocate(fd, 0, length)

    def ftruncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def sync_folder(self, path: Path) -> None:
        """Make the creation, renaming and removal of files in this folder durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.fsync(fd)
        finally:
            os.close(fd)

    def replace(self, path: Path, parts: Sequence[bytes | memoryview], *, secret: bool = False) -> None:
        """Write a whole file: after a crash the old or the new content is there, never a mixture."""
        temporary = path.with_name(f".{path.name}.tmp")
        fd = open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, secret=secret)
        try:
            try:
                self.write_all(fd, parts, 0)
                self.fsync(fd)
            finally:
                os.close(fd)
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        self.sync_folder(path.parent)

    def write_all(self, fd: int, parts: Sequence[bytes | memoryview], position: int) -> None:
        for part in parts:
            view = memoryview(part).cast("B")
            while view:
                done = self.pwritev(fd, [view], position)
                position += done
                view = view[done:]

    def free_bytes(self, path: Path) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize


REAL = DiskIo()
