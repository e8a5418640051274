"""A disk that fails or is full: nothing is acknowledged that is not stored, and a full disk recovers by itself."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import disks
from tests.inside.ground import ManualClock
from tests.inside.store import LogStore
from tests.store.log.small_logs import (
    SEGMENT_BYTES,
    FastIo,
    FaultyIo,
    content_of,
    copy_of,
    indexes,
    one,
    open_store,
    put,
    segments,
)
from towline.errors import DiskFull, QueueFull, StoreFailed
from towline.model import Durability

# --- errors are final -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "durability"), [("fdatasync", 2), ("pwritev", 2), ("pwritev", 1)])
async def test_after_an_error_nothing_is_acknowledged_any_more(tmp_path: Path, call: str, durability: int) -> None:
    io = FaultyIo()
    store = await open_store(tmp_path, io=io)
    await put(store, one("a", b"good"))
    io.fail[call] = errno.EIO
    unit = [one("a", b"bad"), one("a", b"worse")]  # it waits for the others of its turn, as a single one may not
    appended = [store.append(unit, Durability(durability)) for _ in range(3)]
    for answer in appended:
        with pytest.raises(StoreFailed, match=rf"{segments(tmp_path)[0]}.*errno {errno.EIO}"):
            await answer.done
    io.clear()
    calls = dict(io.calls)
    refusals = []
    for _ in range(2):
        with pytest.raises(StoreFailed) as caught:
            store.append([one("a", b"again")], Durability.OS)
        refusals.append(caught.value)
    assert refusals[0] is not refusals[1]
    with pytest.raises(StoreFailed, match="takes no more writes"):
        store.append([one("a", b"later")], Durability.OS)
    with pytest.raises(StoreFailed):
        await store.trim("a", 1)
    assert io.calls == calls, "nothing is tried again"
    assert (await content_of(store)).bodies["a"][0] == b"good", "reading goes on"
    await store.close()


async def test_a_single_frame_that_is_written_at_once_fails_as_well(tmp_path: Path) -> None:
    io = FaultyIo()
    store = await open_store(tmp_path, io=io)
    io.fail["pwritev"] = errno.EIO
    answer = store.append([one("a", b"bad")], Durability.OS)
    with pytest.raises(StoreFailed, match=f"errno {errno.EIO}"):
        await answer.done
    with pytest.raises(StoreFailed, match="takes no more writes"):
        store.append([one("a", b"later")], Durability.OS)
    assert store.bounds("a").end == 0
    await store.close()


async def test_an_os_append_in_the_group_of_a_failed_fsync_was_written(tmp_path: Path) -> None:
    io = FaultyIo()
    store = await open_store(tmp_path, io=io)
    io.fail["fdatasync"] = errno.EIO
    written = store.append([one("a", b"os")], Durability.OS)
    synced = store.append([one("b", b"fsync")], Durability.FSYNC)
    with pytest.raises(StoreFailed):
        await synced.done
    await asyncio.wait([written.done])
    await store.close()
    store = await open_store(tmp_path)
    assert (await content_of(store)).bodies["a"] == {0: b"os"}
    await store.close()


async def test_an_fsync_is_acknowledged_only_after_the_segment_before_is_synced(tmp_path: Path) -> None:
    io = FaultyIo()
    store = await open_store(tmp_path, io=io)
    await put(store, one("a", b"x" * 40_000), durability=Durability.OS)
    io.fail["fdatasync"] = errno.EIO
    with pytest.raises(StoreFailed, match=str(segments(tmp_path)[0])):
        await put(store, one("a", b"x" * 40_000))
    await store.close()


async def test_a_received_append_that_cannot_be_written_poisons_the_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    io = FaultyIo()
    store = await open_store(tmp_path, io=io)
    io.fail["pwritev"] = errno.EIO
    assert store.append([one("a", b"x")], Durability.RECEIVED).done.done()
    await asyncio.sleep(0)
    with pytest.raises(StoreFailed):
        store.append([one("a", b"x")], Durability.RECEIVED)
    assert "takes no more writes" in caplog.text
    await store.close()


@pytest.mark.parametrize("write_max", [1, 7, 64, 1000])
async def test_short_writes_are_continued(tmp_path: Path, write_max: int) -> None:
    io = FaultyIo()
    store = await open_store(tmp_path / "store", io=io)
    io.write_max = write_max
    for durability in (Durability.OS, Durability.FSYNC):
        unit = [one("a", b"x" * 300, b"y"), one("b", b"z")]
        await asyncio.gather(*(store.append(unit, durability).done for _ in range(3)))
    content = await content_of(store)
    assert len(content.bodies["a"]) == 12
    again = await open_store(copy_of(tmp_path / "store", tmp_path / "copy"))
    assert await content_of(again) == content
    await again.close()
    await store.close()


async def test_more_buffers_than_one_call_takes_are_written(tmp_path: Path) -> None:
    store = await open_store(tmp_path, segment_bytes=1 << 20)
    await put(store, *[one("a", b"%d" % index) for index in range(3000)])
    bodies = (await content_of(store)).bodies["a"]
    assert [int(body) for body in bodies.values()] == list(range(3000))
    await store.close()


# --- no room ----------------------------------------------------------------------------------------------------------


async def fill_until_refused(store: LogStore, control: bool = False) -> int:
    for index in range(10_000):
        try:
            await put(store, one("pull" if control else "a", b"x" * 500, control=control), durability=Durability.OS)
        except DiskFull:
            return index
    pytest.fail("the disk never fills")


async def test_a_full_disk_refuses_messages_and_lets_control_records_use_the_reserve(tmp_path: Path) -> None:
    io, clock = FaultyIo(), ManualClock()
    store = await open_store(tmp_path, io=io, clock=clock)
    await put(store, one("a", b"first"))
    io.fill_up()
    messages = await fill_until_refused(store)
    end = store.bounds("a").end
    with pytest.raises(DiskFull, match=rf"{tmp_path}.* 0 bytes are free"):
        store.append([one("a", b"x" * 500), one("pull", b"x", control=True)], Durability.OS)
    assert store.bounds("a").end == end, "nothing was numbered"
    assert SEGMENT_BYTES * 0.7 < messages * 664 < SEGMENT_BYTES * 0.75
    controls = await fill_until_refused(store, control=True)
    assert SEGMENT_BYTES * 0.22 < controls * 664 < SEGMENT_BYTES * 0.26
    assert len(segments(tmp_path)) == 1, "no half-made segment is left behind"

    io.clear()
    with pytest.raises(DiskFull):
        store.append([one("a", b"x" * 500)], Durability.OS)
    clock.advance(0.25)
    assert await put(store, one("a", b"again")) == (end,)
    assert len((await content_of(store)).bodies["pull"]) == controls
    await store.close()


async def test_a_full_disk_is_not_asked_more_than_every_fifth_of_a_second(tmp_path: Path) -> None:
    io, clock = FaultyIo(), ManualClock()
    store = await open_store(tmp_path, io=io, clock=clock)
    io.fail["fallocate"] = errno.ENOSPC
    await fill_until_refused(store)
    asked = io.calls["fallocate"]
    for _ in range(100):
        clock.advance(0.01)
        with pytest.raises(DiskFull):
            store.append([one("a", b"x" * 500)], Durability.OS)
    assert 4 <= io.calls["fallocate"] - asked <= 6
    await store.close()


async def test_too_little_free_space_counts_as_full(tmp_path: Path) -> None:
    io = FaultyIo()
    store = await open_store(tmp_path, io=io, min_free_bytes=1 << 20)
    io.free = (1 << 20) + SEGMENT_BYTES - 1
    await fill_until_refused(store)
    io.free += 1
    await store.retain(0, 0, {})
    await put(store, one("a", b"x" * 50_000))
    await store.close()


async def test_retention_makes_room_on_a_full_disk(tmp_path: Path) -> None:
    io = FaultyIo()
    store = await open_store(tmp_path, io=io)
    for _ in range(10):
        await put(store, one("a", b"x" * 40_000))
    io.fill_up()
    await fill_until_refused(store)
    freed = await store.retain(0, 100_000, {})
    assert freed.bytes_freed >= 5 * 40_000
    io.clear()
    await store.retain(0, 100_000, {})
    await put(store, one("a", b"x" * 50_000))
    await store.close()


async def test_a_unit_too_large_for_the_disk_leaves_everything_as_it_was(tmp_path: Path) -> None:
    io = FaultyIo()
    store = await open_store(tmp_path, io=io)
    await put(store, one("a", b"first"))
    io.free = 200_000
    with pytest.raises(DiskFull, match="300"):
        store.append([one("a", b"x" * 300_000)], Durability.OS)
    io.free = None
    assert await put(store, one("a", b"x" * 300_000)) == (1,)
    await store.close()


async def test_an_index_that_finds_no_room_is_written_later(tmp_path: Path) -> None:
    io = FaultyIo()
    store = await open_store(tmp_path, io=io)
    io.fail["replace"] = errno.ENOSPC
    for index in range(20):
        await put(store, one("a", b"%d" % index, b"x" * 20_000))
    await store.retain(0, 0, {})
    assert indexes(tmp_path) == []
    content = await content_of(store)
    io.clear()
    await store.retain(0, 0, {})
    assert len(indexes(tmp_path)) >= 5
    assert await content_of(store) == content
    await store.close()


async def test_a_document_that_finds_no_room_keeps_the_old_one(tmp_path: Path) -> None:
    io = FaultyIo()
    store = await open_store(tmp_path, io=io)
    await store.save("x", b"old")
    io.fail["replace"] = errno.ENOSPC
    with pytest.raises(DiskFull):
        await store.save("x", b"new")
    io.fail["replace"] = errno.EIO
    with pytest.raises(StoreFailed):
        await store.save("x", b"new")
    assert await store.load("x") == b"old"
    await store.close()


async def test_a_store_opens_on_a_full_disk_and_control_records_go_on(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    await put(store, one("a", b"x" * 30_000))
    await store.close()
    io = FaultyIo()
    io.fill_up()
    store = await open_store(tmp_path, io=io)
    with pytest.raises(DiskFull):
        store.append([one("a", b"x")], Durability.OS)
    assert len((await content_of(store)).bodies["a"]) == 1
    await store.close()


async def test_more_bytes_than_may_wait_are_refused(tmp_path: Path) -> None:
    store = await open_store(tmp_path, queue_bytes=256 << 10)
    taken = [store.append([one("a", b"x" * 50_000)], Durability.FSYNC) for _ in range(5)]
    with pytest.raises(QueueFull, match="wait to be written"):
        store.append([one("a", b"x" * 50_000)], Durability.FSYNC)
    await taken[-1].done
    await put(store, one("a", b"x" * 50_000))
    await store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 4 MiB."""
    with disks.small_disk(tmp_path / "disk", "4m") as folder:
        yield folder


@pytest.mark.service
async def test_a_really_full_disk_refuses_recovers_and_loses_nothing(small_disk: Path) -> None:
    store = await open_store(small_disk / "store", segment_bytes=256 << 10)
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (2 << 20))
    await fill_until_refused(store)
    await put(store, one("pull", b"event", control=True))
    end = store.bounds("a").end
    ballast.unlink()
    await store.retain(0, 0, {})
    assert await put(store, one("a", b"x" * 500)) == (end,)
    await fill_until_refused(store)
    await put(store, one("pull", b"event", control=True))
    content = await content_of(store)
    await store.close()
    store = await open_store(small_disk / "store", segment_bytes=256 << 10)
    assert await content_of(store) == content
    assert not any(content.lost.values())
    await store.close()


async def test_a_close_that_fails_lets_go_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store(tmp_path)
    await put(store, one("a", b"x"))

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(FastIo, "ftruncate", fail, raising=False)
        with pytest.raises(StoreFailed, match=r"closing .* failed"):
            await store.close()
    store = await open_store(tmp_path)
    assert (await content_of(store)).bodies["a"] == {0: b"x"}
    await store.close()
