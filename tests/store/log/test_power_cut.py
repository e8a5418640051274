"""Power cuts, simulated: of what was not synced, any sectors may be missing. What was acknowledged is there, units are
whole or absent, and nothing comes back that was not sent."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.inside.store import DiskIo, LogStore
from tests.store.log.small_logs import SEGMENT_BYTES, content_of, one, open_store, put
from towline.model import Durability

SECTOR = 512


def copy_if_there(source: str, target: str) -> None:
    """Another thread may be replacing a small file; a crash would leave the old or the new one, not its forerunner."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


class PowerCutIo(DiskIo):
    """Remembers what of each file is safely on the disk, and which names of each folder are."""

    in_order = False
    """What was not synced arrives from the front, up to some byte. Else any sectors of it arrive."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._lock = threading.RLock()
        self._safe: dict[int, bytes] = {}
        self._names: dict[Path, dict[str, bytes]] = {}
        """By folder, the names that were there when it was last synced, and what was safe of each file then."""

    def pwritev(self, fd: int, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> int:
        with self._lock:
            return super().pwritev(fd, buffers, position)

    def fdatasync(self, fd: int) -> None:
        with self._lock:
            status = os.fstat(fd)
            self._safe[status.st_ino] = os.pread(fd, status.st_size, 0)

    def fsync(self, fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path.suffix == ".log":
            self.fdatasync(fd)
        elif path.is_file():
            with self._lock:
                self._safe[os.fstat(fd).st_ino] = path.read_bytes()

    def sync_folder(self, path: Path) -> None:
        with self._lock:
            super().sync_folder(path)
            names = self._names[path] = {}
            for found in path.iterdir():
                with suppress(FileNotFoundError):  # a cache that is renamed in this moment
                    names[found.name] = self._safe.get(found.stat().st_ino, b"")

    def has_name(self, path: Path) -> bool:
        """Whether a file or folder would be found under its name."""
        return path.name in self._names.get(path.parent, {})

    @contextmanager
    def still(self) -> Iterator[None]:
        """Nothing is written meanwhile."""
        with self._lock:
            yield

    def trust(self, path: Path) -> None:
        """What another life has left: the names are safe, and so are all files but segments without an index."""
        for found in path.rglob("*") if path.exists() else ():
            if found.is_file() and (found.suffix != ".log" or found.with_suffix(".idx").exists()):
                self._safe[found.stat().st_ino] = found.read_bytes()
            self._names.setdefault(found.parent, {})[found.name] = self._safe.get(found.stat().st_ino, b"")
            self._names.setdefault(path.parent, {})[path.name] = b""

    def cut(self, path: Path, to: Path) -> None:
        """Copy the folder as it would be found after a power cut now."""
        with self._lock:
            shutil.copytree(path, to, copy_function=copy_if_there)
            for log in (path / "log").glob("*.log"):
                safe = self._safe.get(log.stat().st_ino, b"")
                (to / "log" / log.name).write_bytes(self._torn(log.read_bytes(), safe))
            if not self.has_name(path):
                shutil.rmtree(to)
                to.mkdir()
            self._forget_names(path, to)

    def _forget_names(self, path: Path, to: Path) -> None:
        """Names that were made since their folder was synced are not there, and renamed files have the old content."""
        names = self._names.get(path, {})
        for found in to.iterdir():
            if found.is_dir() and found.name in names:
                self._forget_names(path / found.name, found)
            elif found.is_dir():
                shutil.rmtree(found)
            elif found.name not in names:
                found.unlink()
        for name, content in names.items():
            if not (path / name).is_dir() and not name.endswith(".log"):
                (to / name).write_bytes(content)  # also of one that was removed since

    def _torn(self, now: bytes, safe: bytes) -> bytes:
        safe = safe.ljust(len(now), b"\0")
        if self.in_order:
            unsafe = [at for at in range(len(now)) if now[at] != safe[at]] if now != safe else [0]
            end = self._rng.choice([unsafe[0], self._rng.randint(unsafe[0], unsafe[-1] + 1), unsafe[-1] + 1])
            return now[:end] + safe[end:]
        chance = self._rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        sectors = []
        for at in range(0, len(now), SECTOR):
            arrived = self._rng.random() < chance
            sectors.append((now if arrived else safe)[at : at + SECTOR])
        return b"".join(sectors)


class Sent(NamedTuple):
    bodies: dict[tuple[str, int], bytes]
    durability: Durability
    done: asyncio.Future[None]

    @property
    def safe(self) -> bool:
        return self.durability is Durability.FSYNC and self.done.done() and self.done.exception() is None


async def send_some(store: LogStore, rng: random.Random, units: int) -> list[Sent]:
    sent = []
    synced = rng.choice([0.0, 0.1, 0.5])
    for number in range(units):
        names = rng.choices("abcd", k=rng.choice([1, 1, 2, 3, 5]))
        bodies = [
            b"%d-%d-" % (number, index) + rng.randbytes(rng.choice([5, 400, 3000])) for index in range(len(names))
        ]
        durability = Durability.FSYNC if rng.random() < synced else Durability.OS
        appended = store.append([one(name, body) for name, body in zip(names, bodies, strict=True)], durability)
        places = dict(zip(zip(names, appended.firsts, strict=True), bodies, strict=True))
        sent.append(Sent(places, durability, appended.done))
        if rng.random() < 0.5:
            await appended.done
        elif rng.random() < 0.3:
            await asyncio.sleep(0)
    return sent


async def check(path: Path, sent: list[Sent], safe: list[bool]) -> None:
    store = await open_store(path)
    content = await content_of(store)
    there = {(name, seq): body for name, bodies in content.bodies.items() for seq, body in bodies.items()}
    known = {place: body for unit in sent for place, body in unit.bodies.items()}
    assert there.items() <= known.items(), "only what was sent comes back, and in its place"
    for unit, must_be_there in zip(sent, safe, strict=True):
        present = sum(place in there for place in unit.bodies)
        assert present in (0, len(unit.bodies)), "a unit is whole or absent"
        assert present or not must_be_there, "what was acknowledged is there"
    ends = {name: store.bounds(name).end for name in store.streams()}
    for name, end in ends.items():
        assert await put(store, one(name, b"new")) == (end,)
    await store.close()
    store = await open_store(path)
    after = await content_of(store)
    for name, end in ends.items():
        assert after.bodies[name] == content.bodies[name] | {end: b"new"}
    await store.close()


@pytest.mark.parametrize("seed", range(120))
async def test_a_power_cut_loses_nothing_acknowledged_and_tears_no_unit(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    io = PowerCutIo(rng)
    store = await open_store(tmp_path / "store", io=io, segment_bytes=SEGMENT_BYTES)
    sent = await send_some(store, rng, rng.choice([3, 20, 80]))
    safe = [unit.safe for unit in sent]
    io.cut(tmp_path / "store", tmp_path / "cut")
    await store.close()
    await check(tmp_path / "cut", sent, safe)


async def test_what_is_found_after_a_kill_outlives_a_power_cut(tmp_path: Path) -> None:
    """It was written, but not synced when the process was killed: what the next one finds, it may promise."""

    store = await open_store(tmp_path / "store", io=PowerCutIo(random.Random(1)), segment_bytes=SEGMENT_BYTES)
    # Enough for several segments: those that are full and not yet sealed must be synced as well.
    for number in range(100):
        await put(store, one("a", b"%d" % number + bytes(2_000)), durability=Durability.OS)
    left_out = shutil.ignore_patterns("lock", "*.idx")
    shutil.copytree(tmp_path / "store", tmp_path / "killed", copy_function=copy_if_there, ignore=left_out)
    await store.close()
    io = PowerCutIo(random.Random(2))
    io.trust(tmp_path / "killed")
    store = await open_store(tmp_path / "killed", io=io, segment_bytes=SEGMENT_BYTES)
    before = (await content_of(store)).bodies
    assert len(before["a"]) == 100
    io.cut(tmp_path / "killed", tmp_path / "cut")
    await store.close()
    store = await open_store(tmp_path / "cut")
    assert (await content_of(store)).bodies == before
    await store.close()


async def test_a_power_cut_right_after_a_document_was_saved_leaves_it_and_its_folder(tmp_path: Path) -> None:
    io = PowerCutIo(random.Random(3))
    store = await open_store(tmp_path / "made" / "store", io=io)
    await store.save("topics.json", b"old")
    await store.save("topics.json", b"new")
    io.cut(tmp_path / "made" / "store", tmp_path / "cut")
    await store.close()
    assert io.has_name(tmp_path / "made")
    assert (tmp_path / "cut" / "format").exists()
    store = await open_store(tmp_path / "cut")
    assert await store.load("topics.json") == b"new"
    await store.close()
