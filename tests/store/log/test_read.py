"""Reading from a log store: from memory, from the disk, in any steps, while others write."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import random
from pathlib import Path

import pytest

from tests.inside.frame import Frame
from tests.store.log.small_logs import FaultyIo, content_of, one, open_store, put
from towline.model import Durability


class CountingIo(FaultyIo):
    """Notes the extents that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.extents: list[int] = []

    def pread_cached(self, fd: int, buffer: memoryview, position: int) -> int:
        self.extents.append(len(buffer))
        return super().pread_cached(fd, buffer, position)


async def test_neighbouring_frames_are_read_with_one_call(tmp_path: Path) -> None:
    io = CountingIo()
    store = await open_store(tmp_path, io=io, segment_bytes=4 << 20)
    for _ in range(100):
        store.append([one("a", b"x" * 1000)], Durability.OS)
    await put(store, one("b", b"x"))
    read = await store.read("a", 0, 1000, 1 << 20)
    assert len(read.chunks) == 100
    assert len(io.extents) == 1
    await store.close()


async def test_frames_far_apart_are_read_one_by_one(tmp_path: Path) -> None:
    io = CountingIo()
    store = await open_store(tmp_path, io=io, segment_bytes=4 << 20)
    for _ in range(5):
        await put(store, one("a", b"x"), one("b", b"x" * 100_000))
    assert len((await store.read("a", 0, 1000, 1 << 20)).chunks) == 5
    assert io.extents == [160] * 5
    await store.close()


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EOPNOTSUPP, errno.EIO])
async def test_what_is_not_in_memory_is_read_by_a_thread(tmp_path: Path, code: int) -> None:
    class ColdIo(FaultyIo):
        def pread_cached(self, fd: int, buffer: memoryview, position: int) -> int:
            if code == errno.EIO:
                raise OSError(code, os.strerror(code))
            return 0

    store = await open_store(tmp_path, io=ColdIo())
    for index in range(100):
        await put(store, one("a", b"%d" % index, b"x" * 2000), durability=Durability.OS)
    content = await content_of(store, step=13)
    assert len(content.bodies["a"]) == 200
    assert store.stats.slow_reads > 0
    await store.close()


def can_read_without_waiting(path: Path) -> bool:
    """Not every file system can: a tmpfs of an older kernel refuses."""
    path.write_bytes(b"x")
    with path.open("rb") as file:
        try:
            return os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) == 1
        except OSError:
            return False


async def test_the_real_page_cache_answers_without_a_thread(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    await put(store, one("a", b"x"))
    assert (await content_of(store)).bodies["a"] == {0: b"x"}
    assert (store.stats.slow_reads == 0) == can_read_without_waiting(tmp_path / "probe")
    await store.close()


async def test_a_part_in_memory_is_read_whole(tmp_path: Path) -> None:
    class HalfIo(FaultyIo):
        def pread_cached(self, fd: int, buffer: memoryview, position: int) -> int:
            return os.preadv(fd, [buffer[: len(buffer) // 2]], position)

    store = await open_store(tmp_path, io=HalfIo())
    await put(store, one("a", b"x" * 5000))
    assert (await content_of(store)).bodies["a"] == {0: b"x" * 5000}
    await store.close()


async def test_limits_of_a_read_count_records_and_bytes_of_frames(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    for _ in range(10):
        await put(store, one("a", *[b"x" * 92] * 10))
    size = len((await store.read("a", 0, 1, 1)).chunks[0].frame)
    assert (await store.read("a", 5, 12, 1 << 20)).next == 17
    assert (await store.read("a", 5, 1000, 0)).next == 10
    assert (await store.read("a", 5, 1000, 2 * size)).next == 20
    assert (await store.read("a", 5, 1000, 3 * size - 1)).next == 20
    chunk = (await store.read("a", 47, 2, 1 << 20)).chunks[0]
    assert (chunk.first, chunk.count, chunk.start, chunk.source) == (47, 2, 7, b"\x7f\0\0\1")
    assert (await store.read("a", 100, 10, 10)).next == 100
    assert (await store.read("a", 500, 10, 10)).next == 500
    assert (await store.read("nobody", 5, 10, 10)).next == 5
    await store.close()


async def test_random_reads_agree_with_what_was_written_over_many_segments(tmp_path: Path) -> None:
    rng = random.Random(7)
    store = await open_store(tmp_path, open_segments=4)
    written: dict[str, list[bytes]] = {f"s{index}": [] for index in range(5)}
    for _ in range(600):
        unit = []
        for name in rng.sample(sorted(written), rng.randint(1, 3)):
            bodies = [rng.randbytes(rng.choice([1, 10, 1000])) for _ in range(rng.randint(1, 5))]
            written[name] += bodies
            unit.append(one(name, *bodies))
        await put(store, *unit, durability=Durability.OS)
    for restart in range(2):
        for _ in range(300):
            name = rng.choice(sorted(written))
            first, count = rng.randrange(len(written[name])), rng.randint(1, 50)
            read = await store.read(name, first, count, rng.choice([1, 5000, 1 << 20]))
            bodies = [b for c in read.chunks for b in Frame(c.frame).bodies(c.start, c.start + c.count)]
            assert bodies == written[name][first : read.next]
        if not restart:
            await store.close()
            store = await open_store(tmp_path, open_segments=4)
    await store.close()


async def test_readers_see_every_record_once_while_writers_write(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    total = 3000

    async def write() -> None:
        for number in range(total):
            appended = store.append([one("a", b"%d" % number), one("b", b"x" * 300)], Durability(number % 3))
            if number % 10 == 0:
                await appended.done

    async def follow() -> None:
        seen = 0
        while seen < total:
            read = await store.read("a", seen, 100, 10_000)
            assert not read.lost
            for chunk in read.chunks:
                assert [int(body) for body in Frame(chunk.frame).bodies()] == [seen]
                seen += 1
            await asyncio.sleep(0)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        for _ in range(3):
            tasks.create_task(follow())
    assert store.stats.inline_groups < store.stats.groups
    await store.close()


async def test_small_groups_are_written_by_the_loop_and_others_by_the_thread(tmp_path: Path) -> None:
    store = await open_store(tmp_path, segment_bytes=4 << 20)
    await put(store, one("a", b"x"), durability=Durability.OS)
    assert (store.stats.groups, store.stats.inline_groups, store.stats.fsyncs) == (1, 1, 0)
    await put(store, one("a", b"x"), durability=Durability.FSYNC)
    assert (store.stats.groups, store.stats.inline_groups, store.stats.fsyncs) == (2, 1, 1)
    await put(store, one("a", b"x" * 600_000), durability=Durability.OS)
    assert (store.stats.groups, store.stats.inline_groups, store.stats.fsyncs) == (3, 1, 1)
    await store.close()


async def test_after_a_slow_write_of_the_loop_the_thread_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.inside.store.writer._SLOW_S", 0.0)
    monkeypatch.setattr("tests.inside.store.writer._WARY_S", 1e9)
    store = await open_store(tmp_path)
    for seq, count in enumerate((1, 2, 3)):
        await put(store, *(one("a", b"x") for _ in range(count)), durability=Durability.OS)
        assert (store.stats.groups, store.stats.inline_groups) == (seq + 1, 1)
    assert list((await content_of(store)).bodies["a"]) == list(range(6))
    await store.close()


async def test_appends_of_one_turn_are_one_group_with_one_fsync(tmp_path: Path) -> None:
    store = await open_store(tmp_path, segment_bytes=4 << 20)
    await asyncio.gather(*(store.append([one("a", b"x")], Durability(index % 3)).done for index in range(300)))
    await store.append([], Durability.OS).done
    assert store.stats.fsyncs == 1
    assert store.stats.groups <= 2
    await store.close()


async def test_a_reader_that_gives_up_disturbs_nobody(tmp_path: Path) -> None:
    class ColdIo(FaultyIo):
        def pread_cached(self, fd: int, buffer: memoryview, position: int) -> int:
            return 0

    store = await open_store(tmp_path, io=ColdIo(), open_segments=4)
    for _ in range(30):
        await put(store, one("a", b"x" * 40_000), durability=Durability.OS)
    for seq in range(30):
        reading = asyncio.create_task(store.read("a", seq, 5, 1 << 20))
        await asyncio.sleep(0)
        reading.cancel()
    assert len((await content_of(store)).bodies["a"]) == 30
    await store.close()


@pytest.mark.parametrize("cold", [False, True])
async def test_what_was_read_stays_as_it_is_while_somebody_has_it(tmp_path: Path, cold: bool) -> None:
    """Large reads go into memory that is used again: not before it is let go."""

    class Io(FaultyIo):
        def pread_cached(self, fd: int, buffer: memoryview, position: int) -> int:
            return 0 if cold else super().pread_cached(fd, buffer, position)

    store = await open_store(tmp_path, io=Io(), segment_bytes=64 << 20)
    bodies = [bytes([number]) * 300_000 for number in range(30)]
    for body in bodies:
        await put(store, one("a", body), durability=Durability.OS)
    held = [(await store.read("a", number, 1, 1 << 20)).chunks[0] for number in range(30)]
    again = [(await store.read("a", number, 1, 1 << 20)).chunks[0] for number in reversed(range(30))]
    assert type(memoryview(held[0].frame).obj) is type(io.BytesIO().getbuffer().obj), "it is such memory"
    assert [Frame(chunk.frame).verify().bodies()[0] for chunk in held] == bodies
    assert [Frame(chunk.frame).verify().bodies()[0] for chunk in reversed(again)] == bodies
    await store.close()
