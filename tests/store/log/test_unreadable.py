"""A disk that does not read for a while: nothing is taken for damage, for nothing, or for the end."""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.inside.frame import encode
from tests.inside.store import Append, Chunk, LogStore, OfflineStreams, inspect, read_range
from tests.store.log.small_logs import (
    EVERYTHING,
    FastIo,
    FaultyIo,
    content_of,
    one,
    open_store,
    put,
    segments,
    unreadable,
)
from towline.errors import Unreadable

TORN = b"TWR1 torn"
PASSING = [errno.EIO, errno.EMFILE, errno.ENOMEM, errno.ENOENT, errno.EACCES]


async def written(path: Path, count: int = 40) -> LogStore:
    """A store with some sealed segments, opened anew, so that no file of it is open or mapped."""
    store = await open_store(path)
    for number in range(count):
        frame = encode([b"%d" % number + bytes(8_000)], keys=[f"k{number}"])
        await put(store, Append("a", frame, 1))
    await store.close()
    return await open_store(path)


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "log").iterdir())}


async def test_a_read_that_fails_in_passing_is_tried_again(tmp_path: Path) -> None:
    store = await written(tmp_path)
    # The cached read, the read of all, and the read of the first frame: twice.
    with unreadable("*.log", times=6) as asked:
        read = await store.read("a", 0, 1_000, EVERYTHING)
    assert len(asked) == 6
    assert (len(read.chunks), read.lost, read.next) == (40, [], 40)
    await store.close()


@pytest.mark.parametrize("names", ["*.log", "*.idx"])
@pytest.mark.parametrize("code", PASSING)
async def test_what_cannot_be_read_is_not_lost(tmp_path: Path, code: int, names: str) -> None:
    store = await written(tmp_path)
    with unreadable("*" if code == errno.ENOENT else names, code) as asked:
        with pytest.raises(Unreadable, match=rf"{tmp_path}/log/0+1\.(log|idx) cannot be read now: ") as caught:
            await store.read("a", 0, 1_000, EVERYTHING)
        assert len(asked) > 3, "it is tried again"
        with pytest.raises(Unreadable):
            await store.locate("a", 0, key=b"k39")
    assert "Nothing is taken for lost" in str(caught.value)
    content = await content_of(store)
    assert (len(content.bodies["a"]), content.lost["a"]) == (40, [])
    assert await store.locate("a", 0, key=b"k39") == 39
    await store.close()


async def test_nobody_else_waits_for_what_cannot_be_read(tmp_path: Path) -> None:
    store = await written(tmp_path)
    await put(store, one("b", b"other"))
    with unreadable(segments(tmp_path)[0].name):
        failing = asyncio.create_task(store.read("a", 0, 1, EVERYTHING))
        while not failing.done():
            assert len((await store.read("b", 0, 1, EVERYTHING)).chunks) == 1
            await asyncio.sleep(0)
        with pytest.raises(Unreadable):
            failing.result()
    await store.close()


async def test_what_comes_before_a_bad_sector_is_read(tmp_path: Path) -> None:
    class BadSectorIo(FaultyIo):
        bad = 3000

        def pread_cached(self, fd: int, buffer: memoryview, position: int) -> int:
            return 0

        def pread_into(self, fd: int, buffer: memoryview, position: int) -> int:
            if position <= self.bad < position + len(buffer):
                raise OSError(errno.EIO, "Input/output error")
            return super().pread_into(fd, buffer, position)

    io = BadSectorIo()
    store = await open_store(tmp_path, io=io)
    for index in range(20):
        await put(store, one("a", b"%d" % index, b"x" * 500))
    read = await store.read("a", 0, 1000, 1 << 20)
    assert ([chunk.first for chunk in read.chunks], read.lost, read.next) == ([0, 2, 4, 6], [], 8)
    with pytest.raises(Unreadable, match=rf"{segments(tmp_path)[0]} cannot be read now: Input/output error"):
        await store.read("a", 8, 1000, 1 << 20)
    assert (await store.read("a", 10, 1000, 1 << 20)).next == 40
    io.bad = 1 << 30
    assert (await store.read("a", 8, 1000, 1 << 20)).next == 40
    await store.close()


async def test_a_vanished_file_is_waited_for(tmp_path: Path) -> None:
    store = await written(tmp_path)
    path = segments(tmp_path)[3]
    path.rename(tmp_path / "away")
    with pytest.raises(Unreadable, match=rf"{path} cannot be read now: No such file.*put the file back"):
        await content_of(store)
    (tmp_path / "away").rename(path)
    assert (await content_of(store)).lost["a"] == []
    await store.close()


async def test_a_document_that_cannot_be_read_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    store = await open_store(tmp_path)
    await store.save("topics.json", b"{}")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fail)
        with pytest.raises(Unreadable, match=rf"{tmp_path}/config/topics.json cannot be read now"):
            await store.load("topics.json")
    assert await store.load("topics.json") == b"{}"
    await store.close()


@pytest.mark.parametrize("names", ["*.idx", "*.log"])
async def test_retention_drops_nothing_that_it_cannot_count(tmp_path: Path, names: str) -> None:
    await (await written(tmp_path)).close()
    store = await open_store(tmp_path, index_bytes=1)
    await store.trim("a", 1)
    await store.read("a", 10, 1, 1)  # no room is left for the index that the trim has read
    before, bounds = bytes_in(tmp_path), store.bounds("a")
    with unreadable(names, errno.EMFILE), pytest.raises(Unreadable):
        await store.retain(0, 100_000, {})
    assert bytes_in(tmp_path).keys() == before.keys()
    assert store.bounds("a") == bounds
    assert (await store.retain(0, 100_000, {})).bytes_freed > 0
    assert (await content_of(store)).lost["a"] == []
    await store.close()


# --- starting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EACCES])
@pytest.mark.parametrize("which", ["the last segment", "a segment without an index", "an index"])
async def test_a_start_on_a_disk_that_does_not_read_fails_and_changes_nothing(
    tmp_path: Path, which: str, code: int
) -> None:
    store = await written(tmp_path)
    await store.close()
    path = segments(tmp_path)[-1 if which == "the last segment" else 2]
    if which == "a segment without an index":
        path.with_suffix(".idx").unlink()
    elif which == "an index":
        path = path.with_suffix(".idx")
    before = bytes_in(tmp_path)
    with unreadable(path.name, code), pytest.raises(Unreadable, match=re.escape(str(path))):
        await open_store(tmp_path)
    assert bytes_in(tmp_path) == before
    store = await open_store(tmp_path)
    content = await content_of(store)
    assert (len(content.bodies["a"]), content.lost["a"]) == (40, [])
    await store.close()


async def test_a_torn_tail_that_cannot_be_copied_for_want_of_reading_is_not_cut(tmp_path: Path) -> None:
    class TornIo(FastIo):
        def pread(self, fd: int, length: int, position: int) -> bytes:
            if length == len(TORN):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().pread(fd, length, position)

    store = await written(tmp_path)
    await store.close()
    path = segments(tmp_path)[-1]
    with path.open("ab") as file:
        file.write(TORN)
    before = bytes_in(tmp_path)
    with pytest.raises(Unreadable, match=re.escape(str(path))):
        await open_store(tmp_path, io=TornIo())
    assert bytes_in(tmp_path) == before
    store = await open_store(tmp_path)
    assert [found.read_bytes() for found in (tmp_path / "torn").iterdir()] == [TORN]
    await store.close()


# --- from outside -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["*1.log", "*1.idx", "*3.log"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
def test_readers_from_outside_take_it_for_an_error_not_for_damage(tmp_path: Path, names: str, code: int) -> None:
    asyncio.run(closed(tmp_path))
    looks: dict[str, Callable[[], object]] = {
        "range": lambda: list(read_range(tmp_path, "a", 0, 40)),
        "streams": lambda: OfflineStreams(tmp_path, lambda _: True).look(),
        "verify": lambda: inspect.verify(tmp_path),
        "stat": lambda: inspect.stat(tmp_path),
        "dump": lambda: list(inspect.dump(tmp_path, "a")),
    }
    for name, look in looks.items():
        with unreadable(names, code) as asked:
            if name in {"streams", "stat"} and names.endswith(".log"):
                look()
                assert not asked, "the index knows it"
                continue
            with pytest.raises(Unreadable, match="cannot be read now"):
                look()
    assert all(isinstance(one, Chunk) for one in read_range(tmp_path, "a", 0, 40))
    assert inspect.verify(tmp_path).sound


async def closed(path: Path) -> None:
    await (await written(path)).close()
