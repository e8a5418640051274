"""The `.key` files of sealed segments: made in the background, and never needed."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import eventually_done
from tests.inside.frame import encode
from tests.inside.store import Append, Breaks, KeySearch, LogSettings, LogStore
from tests.store.log.small_logs import SEGMENT_BYTES, FastIo
from towline.model import Durability


async def filled(path: Path, frames: int = 300) -> LogStore:
    """Several segments: stream `s` with a key in every frame, stream `t` without any."""
    store = await LogStore.open(path, LogSettings(segment_bytes=SEGMENT_BYTES, min_free_bytes=0), io=FastIo())
    for n in range(frames):
        keyed = encode([bytes(500), bytes(500)], keys=[f"key-{n}", None])
        plain = encode([bytes(100)])
        await store.append([Append("s", keyed, 2), Append("t", plain, 1)], Durability.OS).done
    await store._sealer.drain()
    await store.append([], Durability.OS).done
    await store._keys.drain()
    return store


def key_files(path: Path) -> list[Path]:
    return sorted((path / "log").glob("*.key"))


async def test_sealed_segments_get_their_keys_and_are_searched_by_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await filled(tmp_path)
    assert len(key_files(tmp_path)) == len(list((tmp_path / "log").glob("*.idx"))) > 3
    scanned = []
    scan = KeySearch._scan

    def counting(self: KeySearch, place: object, first: int, key: bytes) -> int | None:
        scanned.append(place)
        return scan(self, place, first, key)  # type: ignore[arg-type]

    monkeypatch.setattr(KeySearch, "_scan", counting)
    assert await store.locate("s", 0, 0, b"key-3") == 6
    assert scanned == []
    for n in (0, 100, 299):
        assert await store.locate("s", 0, 0, b"key-%d" % n) == 2 * n
    assert await store.locate("s", 0, 0, b"key-300") == 600
    assert await store.locate("t", 0, 0, b"key-3") == 300
    assert len(scanned) == 3, "only the segment that is being written has no hashes"
    await store.close()


async def test_damaged_and_missing_key_files_are_searched_around_and_made_anew(tmp_path: Path) -> None:
    await (await filled(tmp_path)).close()
    files = key_files(tmp_path)
    files[0].unlink()
    raw = bytearray(files[1].read_bytes())
    raw[-2] ^= 1
    files[1].write_bytes(raw)
    files[2].write_bytes(files[2].read_bytes()[:5])
    store = await LogStore.open(tmp_path, LogSettings(segment_bytes=SEGMENT_BYTES), io=FastIo())
    for n in range(0, 300, 7):
        assert await store.locate("s", 0, 0, b"key-%d" % n) == 2 * n
    await store._keys.drain()
    assert files[0].exists()
    await store.close()


async def test_key_files_go_with_their_segments(tmp_path: Path) -> None:
    store = await filled(tmp_path)
    before = len(key_files(tmp_path))
    await store.retain(0, 2 * SEGMENT_BYTES, {})
    assert 0 < len(key_files(tmp_path)) < before
    assert await store.locate("s", 0, 0, b"key-3") == 600
    assert await store.locate("s", 0, 0, b"key-299") == 598
    await store.close()


@pytest.mark.parametrize(("others", "longer"), [(0.0, 1), (0.25, 10), (0.5, 19), (1.0, 19)])
def test_who_indexes_keys_takes_long_breaks_only_where_others_are_at_work(others: float, longer: float) -> None:
    """Each piece of work takes 1 ms; the other threads use this share of a processor all the time."""
    now, mine, pauses = 0.0, 0.0, list[float]()

    def pause(seconds: float) -> None:
        nonlocal now
        pauses.append(seconds)
        now += seconds

    breaks = Breaks(pause, wall=lambda: now, mine=lambda: mine, all_threads=lambda: mine + others * now)
    for _ in range(5):
        now += 0.001
        mine += 0.001
        breaks.take()
    assert pauses[0] == pytest.approx(0.019), "nothing is known of the others yet"
    assert pauses[1:] == pytest.approx([0.001 * longer] * 4)


@pytest.mark.parametrize("meanwhile", ["sealed", "deleted"])
async def test_a_search_goes_on_rightly_while_segments_are_sealed_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    store = await filled(tmp_path)
    await store.append([Append("s", encode([b"here"], keys=["wanted"]), 1)], Durability.OS).done
    searching, go_on = threading.Event(), threading.Event()
    search = KeySearch._search_sealed

    def slowly(self: KeySearch, place: Any, first: int, key: bytes) -> int | None:
        searching.set()
        assert go_on.wait(60)
        return search(self, place, first, key)

    monkeypatch.setattr(KeySearch, "_search_sealed", slowly)
    found = asyncio.create_task(store.locate("s", 0, 0, b"wanted"))
    await eventually_done(searching.is_set)
    if meanwhile == "sealed":
        before = len(store._sealed.sealed)
        while len(store._sealed.sealed) < before + 2:
            await store.append([Append("s", encode([bytes(5_000)]), 1)], Durability.OS).done
            await store._sealer.drain()
    else:
        await store.retain(0, 2 * SEGMENT_BYTES, {})
        assert store.bounds("s").first > 200
    go_on.set()
    assert await found == 600
    await store.close()
