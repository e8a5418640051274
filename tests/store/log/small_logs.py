"""What the tests of the log store share: a disk that does not wait, a disk that fails, and small logs."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.inside.frame import Frame, encode
from tests.inside.ground import SYSTEM, Clock
from tests.inside.store import Append, DiskIo, LogSettings, LogStore, Lost
from towline.model import Durability

SEGMENT_BYTES = 64 << 10
EVERYTHING = 1 << 40


class FastIo(DiskIo):
    """A disk that does not sync: these tests do not cut the power, and there are thousands of opens in them."""

    def fdatasync(self, fd: int) -> None:
        pass

    def fsync(self, fd: int) -> None:
        pass


class FaultyIo(FastIo):
    """A disk on which any call can be made to fail: `fail["fdatasync"] = errno.EIO`."""

    def __init__(self) -> None:
        self.fail: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self.free: int | None = None
        self.write_max: int | None = None

    def _call(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        number = self.fail.get(name)
        if number:
            raise OSError(number, os.strerror(number))

    def pwritev(self, fd: int, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> int:
        self._call("pwritev")
        if self.write_max is None:
            return super().pwritev(fd, buffers, position)
        return os.pwrite(fd, b"".join(buffers)[: self.write_max], position)

    def fdatasync(self, fd: int) -> None:
        self._call("fdatasync")

    def fallocate(self, fd: int, length: int) -> None:
        self._call("fallocate")
        super().fallocate(fd, length)

    def pread_cached(self, fd: int, buffer: memoryview, position: int) -> int:
        self._call("pread_cached")
        return super().pread_cached(fd, buffer, position)

    def pread_into(self, fd: int, buffer: memoryview, position: int) -> int:
        self._call("pread_into")
        return super().pread_into(fd, buffer, position)

    def replace(self, path: Path, parts: Sequence[bytes | memoryview], *, secret: bool = False) -> None:
        self._call("replace")
        super().replace(path, parts, secret=secret)

    def free_bytes(self, path: Path) -> int:
        return super().free_bytes(path) if self.free is None else self.free

    def fill_up(self) -> None:
        self.free = 0
        self.fail["fallocate"] = errno.ENOSPC

    def clear(self) -> None:
        self.free = None
        self.fail.clear()


@contextmanager
def unreadable(names: str, code: int = errno.EIO, times: int = 1 << 30) -> Iterator[list[str]]:
    """Files of these names (`*.log`) cannot be read, by whomever, for so many calls; gives those that were asked for.
    Errors such as too many open files come from opening one, others from reading it."""
    asked: list[str] = []
    calls = {name: getattr(os, name) for name in ("open", "pread", "preadv")}

    def fail(path: str) -> None:
        if fnmatch(Path(path).name, names) and len(asked) < times:
            asked.append(path)
            raise OSError(code, os.strerror(code))

    def opening(path: Any, flags: int, *rest: Any, **named: Any) -> Any:
        fail(str(path))
        return calls["open"](path, flags, *rest, **named)

    def fetching(name: str) -> Callable[..., Any]:
        def call(fd: int, *rest: Any) -> Any:
            fail(str(Path(f"/proc/self/fd/{fd}").readlink()))
            return calls[name](fd, *rest)

        return call

    with pytest.MonkeyPatch.context() as patch:
        if code in {errno.EMFILE, errno.ENOENT, errno.EACCES}:
            patch.setattr(os, "open", opening)
        else:
            patch.setattr(os, "pread", fetching("pread"))
            patch.setattr(os, "preadv", fetching("preadv"))
        yield asked


async def open_store(path: Path, *, io: DiskIo | None = None, clock: Clock = SYSTEM, **settings: int) -> LogStore:
    chosen = LogSettings(**{"segment_bytes": SEGMENT_BYTES, "min_free_bytes": 0, **settings})
    return await LogStore.open(path, chosen, clock=clock, io=io or FastIo())


def frame_of(*bodies: bytes) -> bytes:
    return encode(bodies)


def one(stream: str, *bodies: bytes, control: bool = False) -> Append:
    return Append(stream, encode(bodies), len(bodies), b"\x7f\0\0\1", control)


async def put(store: LogStore, *unit: Append, durability: Durability = Durability.FSYNC) -> tuple[int, ...]:
    appended = store.append(unit, durability)
    await appended.done
    return appended.firsts


class Content(NamedTuple):
    """Everything a reader sees of a store."""

    bodies: dict[str, dict[int, bytes]]
    """By stream and sequence number."""
    lost: dict[str, list[Lost]]
    bounds: dict[str, tuple[int, int]]


async def content_of(store: LogStore, step: int = 1000) -> Content:
    bodies: dict[str, dict[int, bytes]] = {}
    lost: dict[str, list[Lost]] = {}
    bounds: dict[str, tuple[int, int]] = {}
    for name in store.streams():
        first, end, _ = store.bounds(name)
        bounds[name], bodies[name], lost[name] = (first, end), {}, []
        position = first
        while position < end:
            read = await store.read(name, position, step, 1 << 20)
            assert read.next > position
            covered = sorted(
                [(c.first, c.count) for c in read.chunks] + [(hole.first, hole.count) for hole in read.lost]
            )
            for begin, count in covered:
                assert begin == position, "answers join without a gap"
                position += count
            assert read.next == position
            for chunk in read.chunks:
                found = Frame(chunk.frame).verify().bodies(chunk.start, chunk.start + chunk.count)
                bodies[name].update(enumerate(found, chunk.first))
            lost[name] += read.lost
    return Content(bodies, lost, bounds)


def copy_of(path: Path, to: Path) -> Path:
    """The folder as a kill -9 at this moment would leave it."""
    if to.exists():
        shutil.rmtree(to)
    shutil.copytree(path, to, copy_function=_copy)
    return to


def _copy(source: str, to: str) -> str:
    """What is being made under another name may have got its own by now."""
    try:
        shutil.copy2(source, to)
    except FileNotFoundError:
        assert source.endswith(".tmp"), source
    return to


def segments(path: Path) -> list[Path]:
    return sorted((path / "log").glob("*.log"))


def indexes(path: Path) -> list[Path]:
    return sorted((path / "log").glob("*.idx"))
