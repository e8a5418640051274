"""Closing, crashing and opening again: what was there is there, and the numbering goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.inside.ground import ManualClock
from tests.inside.store import Append, LogSettings, LogStore
from tests.store.log.small_logs import (
    SEGMENT_BYTES,
    content_of,
    copy_of,
    indexes,
    one,
    open_store,
    put,
    segments,
)
from towline.errors import BadName, Closed, StoreFailed, StoreLocked, TooLarge
from towline.model import Durability


async def test_a_killed_store_comes_back_as_it_was_at_every_moment(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = await open_store(path)
    for step in range(12):
        for index in range(7):
            names = [f"s{(step + index) % 5}", "pull/x"]
            await put(store, *(one(name, b"x" * 1500, b"%d" % step) for name in names), durability=Durability.OS)
        if step % 4 == 2:
            await store.trim("s1", step)
        content, sizes = await content_of(store), {name: store.bounds(name) for name in store.streams()}
        copy = copy_of(path, tmp_path / "copy")
        again = await open_store(copy)
        assert await content_of(again) == content
        assert {name: again.bounds(name) for name in again.streams()} == sizes
        await again.close()
    await store.close()


CHILD = """
import asyncio, os, sys
from pathlib import Path
from towline.frame import encode
from towline.model import Durability
from towline.store import Append
from towline.store.log import LogSettings, LogStore

async def main():
    store = await LogStore.open(Path(sys.argv[1]), LogSettings(segment_bytes=65536, min_free_bytes=0))
    number = 0
    while True:
        units = []
        for _ in range(20):
            frames = [encode([b"%d" % number]) for _ in range(3)]
            unit = [Append(name, frame, 1) for name, frame in zip("abc", frames)]
            units.append(store.append(unit, Durability(1 + number % 2)))
            number += 1
        for unit in units:
            await unit.done
        os.write(1, b"%d\\n" % number)

asyncio.run(main())
"""


@pytest.mark.service
@pytest.mark.parametrize("lines", [1, 20, 150])
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, lines: int) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    acknowledged = 0
    for _ in range(lines):
        acknowledged = int(child.stdout.readline())
    os.kill(child.pid, signal.SIGKILL)
    acknowledged = max([acknowledged, *map(int, child.stdout.read().split())])
    child.wait()
    child.stdout.close()

    async def check() -> None:
        store = await open_store(tmp_path)
        content = await content_of(store)
        ends = {end for _, end in content.bounds.values()}
        assert len(ends) == 1, "units are whole"
        assert ends.pop() >= acknowledged
        assert not any(content.lost.values())
        for bodies in content.bodies.values():
            assert [int(body) for body in bodies.values()] == list(range(len(bodies)))
        await store.close()

    asyncio.run(check())


async def test_numbering_survives_when_every_record_was_trimmed_and_deleted(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    for index in range(100):
        await put(store, one("a", b"x" * 3000), one("b", b"%d" % index), durability=Durability.OS)
    await store.trim("a", 100)
    await store.trim("b", 1 << 60)
    while len(segments(tmp_path)) > 2:
        await put(store, one("c", b"x" * 30_000))
        await store.retain(0, 1, {})
    await store.close()
    for _ in range(3):
        store = await open_store(tmp_path)
        assert store.bounds("a") == store.bounds("b") == (100, 100, 0)
        assert store.streams() == ["a", "b", "c"]
        await put(store, one("c", b"x" * 50_000))
        await store.retain(0, 1, {})
        await store.close()
    store = await open_store(tmp_path)
    assert await put(store, one("a", b"next")) == (100,)
    await store.close()


async def test_a_clean_close_leaves_files_as_long_as_their_content(tmp_path: Path) -> None:
    store = await open_store(tmp_path, segment_bytes=1 << 20)
    await put(store, one("a", b"x"))
    assert segments(tmp_path)[0].stat().st_size == 1 << 20
    await store.close()
    assert [log.stat().st_size for log in segments(tmp_path)] == [160]


async def test_a_sealed_segment_is_cut_to_its_content(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    for _ in range(4):
        await put(store, one("a", b"x" * 40_000))
    await store.retain(0, 0, {})
    assert [log.stat().st_size for log in segments(tmp_path)][:3] == [40_000 + 64 + 8 + 72 + 8] * 3
    await store.close()


async def test_many_entries_are_sealed_at_close_so_that_opening_reads_nothing(tmp_path: Path) -> None:
    store = await open_store(tmp_path, segment_bytes=16 << 20)
    for _ in range(25):
        store.append([one("a", b"x")] * 1000, Durability.RECEIVED)
    await store.close()
    assert len(indexes(tmp_path)) == 1
    store = await open_store(tmp_path, segment_bytes=16 << 20)
    assert store.bounds("a").end == 25_000
    assert await put(store, one("a", b"next")) == (25_000,)
    assert (await store.read("a", 24_999, 10, 1000)).next == 25_001
    await store.close()


@pytest.mark.slow
async def test_ten_thousand_streams_come_back(tmp_path: Path) -> None:
    store = await open_store(tmp_path, segment_bytes=1 << 20)
    for round_ in range(2):
        for begin in range(0, 10_000, 100):
            unit = [one(f"lane/t{index}/low", b"%d" % round_) for index in range(begin, begin + 100)]
            store.append(unit, Durability.OS)
            await asyncio.sleep(0)
    await store.append([], Durability.OS).done
    assert len(store.streams("lane/t99")) == 111
    await store.close()
    store = await open_store(tmp_path, segment_bytes=1 << 20)
    assert len(store.streams()) == 10_000
    for index in range(0, 10_000, 997):
        read = await store.read(f"lane/t{index}/low", 0, 10, 10_000)
        assert [chunk.first for chunk in read.chunks] == [0, 1]
    await store.close()


async def test_time_never_runs_backwards_not_even_through_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    store = await open_store(tmp_path, clock=clock)
    late = store.append([one("a", b"x")], Durability.FSYNC)
    await late.done
    await store.close()
    clock.advance(-3600)
    store = await open_store(tmp_path, clock=clock)
    assert store.append([one("a", b"x")], Durability.FSYNC).at_us == late.at_us
    await store.close()


async def test_a_second_open_names_the_folder_and_the_owner(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    with pytest.raises(StoreLocked, match=rf"{tmp_path}.*{os.getpid()}"):
        await open_store(tmp_path)
    await store.close()
    await (await open_store(tmp_path)).close()


@pytest.mark.parametrize("names", [["README", ".hidden.tmp"], ["log/app.log"], ["index.html", "config/.mine.tmp"]])
async def test_a_folder_of_another_program_is_left_alone(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreFailed, match="choose a new or empty folder"):
        await open_store(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


async def test_a_folder_in_which_a_first_start_was_cut_short_is_taken(tmp_path: Path) -> None:
    for name in ("log", "config", "lost+found"):
        (tmp_path / name).mkdir()
    (tmp_path / ".format.tmp").write_text("tow")
    await (await open_store(tmp_path)).close()
    assert not (tmp_path / ".format.tmp").exists()


_FORKS = """
import os, sys
from pathlib import Path
from towline.errors import StoreLocked
from towline.store.log.write.lock import FolderLock

def is_locked():
    try:
        FolderLock(folder).release()
    except StoreLocked:
        return True
    return False

folder = Path(sys.argv[1])
lock, here, there = FolderLock(folder), os.pipe(), os.pipe()
if not (child := os.fork()):
    lock.release() if sys.argv[2] == "lets go" else None
    os.write(there[1], b".")
    os.read(here[0], 1)
    os._exit(0)
os.read(there[0], 1)
before = is_locked()
lock.release()
after = is_locked()
os.write(here[1], b".")
os.waitpid(child, 0)
print(before, after)
"""


@pytest.mark.service
@pytest.mark.parametrize("child", ["lets go", "does nothing"])
def test_a_forked_process_neither_keeps_the_lock_nor_lets_go_of_it(tmp_path: Path, child: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORKS, str(tmp_path), child], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["True", "False"]


async def test_a_newer_format_and_a_foreign_folder_are_refused(tmp_path: Path) -> None:
    await (await open_store(tmp_path)).close()
    (tmp_path / "format").write_text("towline log 99\n")
    with pytest.raises(StoreFailed, match="format 99"):
        await open_store(tmp_path)
    (tmp_path / "format").write_text("something else")
    with pytest.raises(StoreFailed, match="does not say"):
        await open_store(tmp_path)


async def test_documents_survive_and_bad_names_are_refused(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    await asyncio.gather(*(store.save("topics.json", b"%d" % index) for index in range(20)))
    assert await store.load("topics.json") == b"19"
    for name in ("", ".hidden", "../escape", "a/b", "a b"):
        with pytest.raises(BadName):
            await store.save(name, b"")
    await store.close()
    assert (tmp_path / "config" / "topics.json").read_bytes() == b"19"
    assert [path.name for path in (tmp_path / "config").iterdir()] == ["topics.json"]


async def test_a_unit_larger_than_a_segment_gets_a_segment_of_its_size(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    bodies = [os.urandom(5 * SEGMENT_BYTES), b"small", os.urandom(SEGMENT_BYTES)]
    for body in bodies:
        await put(store, one("a", body), one("b", body))
    content = await content_of(store)
    assert list(content.bodies["a"].values()) == bodies
    copy = copy_of(tmp_path, tmp_path.with_name("copy"))
    await store.close()
    store = await open_store(copy)
    assert await content_of(store) == content
    await store.close()


async def test_limits_of_a_unit_are_stated(tmp_path: Path) -> None:
    store = await open_store(tmp_path, queue_bytes=1 << 20)
    with pytest.raises(TooLarge, match="1048576"):
        store.append([one("a", b"x" * (1 << 20))], Durability.OS)
    with pytest.raises(TooLarge, match="65535"):
        store.append([one("a", b"x")] * 65_536, Durability.OS)
    with pytest.raises(TooLarge, match="name of a stream"):
        store.append([one("a" * 2000, b"x")], Durability.OS)
    assert store.streams() == []
    await store.close()


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    await store.close()
    await store.close()
    with pytest.raises(Closed):
        store.append([Append("a", b"", 1)], Durability.OS)
    for call in (store.read("a", 0, 1, 1), store.locate("a", 0), store.trim("a", 0), store.retain(0, 0, {})):
        with pytest.raises(Closed):
            await call


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="segment_bytes"):
        LogSettings(segment_bytes=1000)
    with pytest.raises(ValueError, match="min_free_bytes"):
        LogSettings(min_free_bytes=-1)


def test_a_loop_closed_before_its_store_leaves_a_folder_that_opens(tmp_path: Path) -> None:
    async def forget() -> LogStore:
        store = await open_store(tmp_path)
        await put(store, one("a", b"x"))
        return store

    store = asyncio.run(forget())
    store._lock.release()

    async def look() -> None:
        again = await open_store(tmp_path)
        assert again.bounds("a").end == 1
        await again.close()

    asyncio.run(look())
