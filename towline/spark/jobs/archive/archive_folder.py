"""The folder of an archive, on any file system that Arrow knows.

`/data/archive` and `file:///data/archive` are local folders; `hdfs://…`, `s3://…`, `gs://…` and their like go through
`pyarrow.fs`. Locally a file that is replaced or published is there after a power cut; elsewhere the file system's own
promise counts. Elsewhere no document is renamed over another, which Hadoop's file systems refuse and Arrow does in two
steps; and a missing file is found by a listing, because an error of Hadoop's does not say so.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from towline.errors import BadRequest, Conflict, StoreFailed

__all__ = ["ArchiveFolder"]

LEASE_S: Final = 120.0
"""Elsewhere than on a local disk, a lock that was not renewed for this long is nobody's."""
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*)://")


class _Owner(msgspec.Struct):
    owner: str
    at_s: float


class ArchiveFolder:
    """Names are relative to the folder, with `/` between their parts. Made from a text, it can be sent to tasks."""

    def __init__(self, uri: str | Path) -> None:
        self.uri = str(uri)
        scheme = _SCHEME.match(self.uri)
        self.local = scheme is None or scheme[1] == "file"
        if self.local:
            self.root = os.path.abspath(os.path.expanduser(self.uri.removeprefix("file://")))  # noqa: PTH100, PTH111
        else:
            self.root = ""
        self._remote: tuple[Any, str] | None = None

    def __reduce__(self) -> tuple[type[ArchiveFolder], tuple[str]]:
        return ArchiveFolder, (self.uri,)

    def __str__(self) -> str:
        return self.root if self.local else self.uri

    @property
    def _fs(self) -> Any:
        return self._open_remote()[0]

    def _open_remote(self) -> tuple[Any, str]:
        if self._remote is None:
            from pyarrow import ArrowInvalid, ArrowNotImplementedError, fs

            try:
                self._remote = fs.FileSystem.from_uri(self.uri)
            except (ArrowInvalid, ArrowNotImplementedError) as error:
                raise BadRequest(f"{self.uri}: this file system cannot be used: {error}") from None
            except OSError as error:
                raise StoreFailed(f"{self.uri}: the file system cannot be reached: {error}") from None
        return self._remote

    def path(self, name: str) -> str:
        """The path of this name for the file system."""
        assert not name.startswith("/"), name
        assert ".." not in name.split("/"), name
        return f"{self.root if self.local else self._open_remote()[1]}/{name}".rstrip("/")

    def url(self, name: str = "") -> str:
        """The URL of this name for Spark."""
        return f"file://{self.path(name)}" if self.local else f"{self.uri.rstrip('/')}/{name}".rstrip("/")

    # Reading

    def read(self, name: str) -> bytes | None:
        """The whole of a small file; None if there is none."""
        data = self._read(name)
        if data is None and not self.local:  # being replaced, or it was when its writer died
            data = self._read(_old(name)) or self._read(name)
        return data

    def _read(self, name: str) -> bytes | None:
        try:
            if self.local:
                return Path(self.path(name)).read_bytes()
            if not self.exists(name):  # libhdfs would print a trace
                return None
            with self._fs.open_input_stream(self.path(name)) as source:
                data: bytes = source.read()
                return data
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreFailed(f"{self.path(name)} cannot be read: {error}") from None

    def open(self, name: str) -> Any:
        """A file that Arrow can read from anywhere within."""
        import pyarrow

        try:
            return pyarrow.OSFile(self.path(name), "rb") if self.local else self._fs.open_input_file(self.path(name))
        except OSError as error:
            raise StoreFailed(f"{self.path(name)} cannot be read: {error}") from None

    def sizes(self, folder: str = "") -> dict[str, int]:
        """All files below a folder, by name, with their sizes."""
        if self.local:
            return dict(self._walk(folder))
        from pyarrow import fs

        found = self._fs.get_file_info(fs.FileSelector(self.path(folder), recursive=True, allow_not_found=True))
        cut = len(self.path("")) + 1
        return {each.path[cut:]: each.size for each in found if each.is_file}

    def _walk(self, folder: str) -> Iterator[tuple[str, int]]:
        for path, _, names in os.walk(self.path(folder)):
            for name in names:
                whole = f"{path}/{name}"
                try:
                    yield whole[len(self.root) + 1 :], os.stat(whole).st_size  # noqa: PTH116
                except FileNotFoundError:
                    continue

    # Writing

    def replace(self, name: str, data: bytes) -> None:
        """A small file, whole: after a crash the old or the new one is there."""
        temporary = f"{name}.{secrets.token_hex(4)}.tmp"
        with self.writing(temporary) as sink:
            sink.write(data)
        if not self.local and self.exists(name):
            self.remove([_old(name)])
            self.move(name, _old(name))
        self.move(temporary, name)
        if not self.local:
            self.remove([_old(name)])
        self.sync([name])

    @contextmanager
    def writing(self, name: str) -> Iterator[Any]:
        """A new file, on the disk when the block ends; removed when it fails."""
        import pyarrow

        path = self.path(name)
        try:
            if self.local:
                os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
                sink = pyarrow.OSFile(path, "wb")
            else:
                sink = self._fs.open_output_stream(path)
            try:
                with sink:
                    yield sink
            except BaseException:
                self.remove([name])
                raise
            if self.local:
                _sync(path, os.O_RDONLY)
        except OSError as error:
            raise StoreFailed(f"{path} cannot be written: {error}") from None

    def move(self, name: str, to: str) -> bool:
        """Rename, locally over an existing file; False if there is nothing to be renamed any more."""
        try:
            if self.local:
                os.makedirs(os.path.dirname(self.path(to)), exist_ok=True)  # noqa: PTH103, PTH120
                os.replace(self.path(name), self.path(to))  # noqa: PTH105
            else:
                self._fs.create_dir(self.path(to).rpartition("/")[0], recursive=True)
                self._fs.move(self.path(name), self.path(to))
        except OSError as error:
            if not self.exists(name):
                return False
            raise StoreFailed(f"{self.path(name)} cannot be renamed to {self.path(to)}: {error}") from None
        return True

    def exists(self, name: str) -> bool:
        if self.local:
            return os.path.exists(self.path(name))  # noqa: PTH110
        from pyarrow import fs

        return bool(self._fs.get_file_info(self.path(name)).type != fs.FileType.NotFound)

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                if self.local:
                    os.unlink(self.path(name))  # noqa: PTH108
                else:
                    self._fs.delete_file(self.path(name))
            except FileNotFoundError:
                continue
            except OSError as error:
                if self.exists(name):
                    raise StoreFailed(f"{self.path(name)} cannot be removed: {error}") from None

    def remove_folder(self, folder: str) -> None:
        assert folder, "the whole place is not ours to remove"
        if self.local:
            shutil.rmtree(self.path(folder), ignore_errors=True)
        elif self.exists(folder):
            self._fs.delete_dir(self.path(folder))

    def sync(self, names: Iterable[str]) -> None:
        """Make renames under these names outlast a power cut: sync all their folders."""
        if not self.local:
            return
        folders = set()
        for name in names:
            folder = os.path.dirname(self.path(name))  # noqa: PTH120
            while folder.startswith(self.root) and folder not in folders:
                folders.add(folder)
                folder = os.path.dirname(folder)  # noqa: PTH120
        for folder in folders:
            _sync(folder, os.O_RDONLY | os.O_DIRECTORY)

    # Locking

    @contextmanager
    def lock(self, name: str, what: str) -> Iterator[Callable[[], None]]:
        """Hold a lock, or raise `Conflict`. On a local disk it ends with its process; elsewhere it is a file that its
        holder renews by calling the function that this yields, and that is nobody's after `LEASE_S`."""
        if self.local:
            path = Path(self.path(name))
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                file = path.open("w")
            except OSError as error:
                raise StoreFailed(f"{self} cannot be written: {error.strerror}; give another folder") from None
            with file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    raise Conflict(f"{self}: another job {what}: wait until it ends, or stop it") from None
                yield lambda: None
            return
        me = f"{os.uname().nodename}/{os.getpid()}/{secrets.token_hex(4)}"
        found = self.read(name)
        if found is not None:
            held = msgspec.json.decode(found, type=_Owner)
            if time.time() - held.at_s < LEASE_S:
                raise Conflict(
                    f"{self}: another job ({held.owner}) {what}: stop it; if it is gone already, wait {LEASE_S:g} s"
                )

        def is_others() -> bool:
            held = self.read(name)
            return held is not None and msgspec.json.decode(held, type=_Owner).owner != me

        def renew() -> None:
            if is_others():
                raise Conflict(f"{self}: another job took over, because this one was silent for {LEASE_S:g} s")
            self.replace(name, msgspec.json.encode(_Owner(me, time.time())))

        self.replace(name, msgspec.json.encode(_Owner(me, time.time())))
        renew()  # of two that found it free, the later one has it
        try:
            yield renew
        finally:
            if not is_others():
                self.remove([name])


def _old(name: str) -> str:
    return f"{name}.old"


def _sync(path: str, flags: int) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
