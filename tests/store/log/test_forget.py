"""Forgotten streams of a log: wherever a crash falls, no number is given twice, and no name comes back for good."""

from __future__ import annotations

import random
from itertools import combinations
from pathlib import Path

import pytest

from tests.inside.store import Bounds, LogStore, OfflineStreams, inspect, load_directory
from tests.store.log.small_logs import EVERYTHING, content_of, copy_of, one, open_store, put, segments
from tests.store.log.test_power_cut import PowerCutIo
from towline.model import Durability

X, Y = "pull/a/x", "pull/a/y"


async def roll(store: LogStore) -> None:
    store._tail.roll()
    await put(store, one("lane/a/low", b"next"))
    await store.end()


async def test_a_torn_tail_leaves_a_stream_or_its_floor(tmp_path: Path) -> None:
    """Cut at every byte from before the trim to behind the stream that came after."""
    store = await open_store(tmp_path / "store")
    await put(store, one(X, *[b"event"] * 9))
    begin = store._tail.position
    await store.trim(X, 7)
    await store.trim(X, 9, forget=True)
    await put(store, one(Y, b"first"))
    end = store._tail.position
    left = copy_of(tmp_path / "store", tmp_path / "left")
    await store.close()
    seen = set()
    for at in [*range(begin, end, 3), end]:
        path = copy_of(left, tmp_path / "cut")
        with segments(path)[0].open("r+b") as file:
            file.truncate(at)
        for _ in range(2):
            store = await open_store(path)
            names = tuple(store.streams("pull/"))
            seen.add(names)
            assert store.bounds(X).end == 9
            assert store.bounds(Y).first == (0 if names == (X,) else 9)
            await store.close()
        store = await open_store(path)
        assert await put(store, one(X, b"new")) == (9,)
        assert store.bounds(X)[:2] == (max(store.bounds(X).first, 0), 10)
        await store.close()
    assert seen == {(X,), (), (Y,)}


async def test_indexes_that_are_lost_bring_nothing_back(tmp_path: Path) -> None:
    """Any of them; what is made anew from the segments is as it was."""
    store = await open_store(tmp_path / "store")
    await put(store, one(X, *[b"event"] * 9), one(Y, b"1", b"2"))
    await roll(store)
    await store.trim(X, EVERYTHING, forget=True)
    await roll(store)
    await store.trim(Y, EVERYTHING, forget=True)
    await put(store, one(X, b"again"))
    await roll(store)
    await put(store, one(X, b"more"))
    expected = await content_of(store)
    assert expected.bounds[X] == (9, 11)
    assert Y not in expected.bounds
    left = copy_of(tmp_path / "store", tmp_path / "left")
    await store.close()
    indexes = sorted(path.name for path in (left / "log").glob("*.idx"))
    assert len(indexes) == 3
    for count in range(len(indexes) + 1):
        for lost in combinations(indexes, count):
            path = copy_of(left, tmp_path / "again")
            for name in lost:
                (path / "log" / name).unlink()
            assert {one.name for one in inspect.stat(path).streams} == {"lane/a/low", X}, lost
            for _ in range(2):
                store = await open_store(path)
                assert await content_of(store) == expected, lost
                assert store.bounds(Y) == Bounds(9, 9, 0)
                await store.close()


async def test_the_floor_outlives_all_segments_and_the_name_none_of_them(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = await open_store(path)
    await put(store, one(X, *[b"event"] * 9))
    await roll(store)
    await store.trim(X, EVERYTHING, forget=True)
    await roll(store)
    await store.retain(0, 1, {})
    await store.close()
    for _ in range(2):
        store = await open_store(path)
        assert store.bounds(X) == Bounds(9, 9, 0)
        assert X not in store._streams
        await roll(store)
        await store.retain(0, 1, {})
        await store.close()
    directory = load_directory(max((path / "log").glob("*.idx")))
    assert directory is not None
    assert set(directory.names) == {"pull/", "lane/a/low"}


async def test_a_damaged_mark_gives_no_number_twice(tmp_path: Path) -> None:
    """The stream is there again, emptied as it was or not, until it is forgotten once more."""
    store = await open_store(tmp_path / "store")
    await put(store, one(X, *[b"event"] * 9))
    begin = store._tail.position
    await store.trim(X, EVERYTHING, forget=True)
    await put(store, one(Y, b"first"))
    left = copy_of(tmp_path / "store", tmp_path / "left")
    await store.close()
    log = segments(left)[0]
    data = bytearray(log.read_bytes())
    data[begin + 40] ^= 0xFF
    log.write_bytes(data)
    store = await open_store(left)
    assert (store.bounds(X).end, store.bounds(Y).end) == (9, 10)
    await store.trim(X, EVERYTHING, forget=True)
    await store.close()
    store = await open_store(left)
    assert store.streams() == [Y]
    assert store.bounds(X)[:2] == (9, 9)
    await store.close()


async def test_readers_outside_see_no_forgotten_stream(tmp_path: Path) -> None:
    """Neither in what grows nor once it is sealed, with what they had seen before or anew."""
    path = tmp_path / "store"
    store = await open_store(path)
    follower = OfflineStreams(path, lambda _: True)
    await put(store, one(X, *[b"event"] * 9), one(Y, b"1"))
    assert set(follower.look()) == {X, Y}
    await store.trim(X, EVERYTHING, forget=True)
    for _ in range(2):
        for outside in (follower, OfflineStreams(path, lambda _: True)):
            assert set(outside.look()) - {"lane/a/low"} == {Y}
        assert {one.name for one in inspect.stat(path).streams} - {"lane/a/low"} == {Y}
        await roll(store)
    await put(store, one(X, b"again", b"more"))
    for _ in range(2):
        for outside in (follower, OfflineStreams(path, lambda _: True)):
            seen = outside.look()[X]
            assert (seen.first, seen.end) == (9, 11)
        await roll(store)
    await store.close()


async def test_readers_outside_keep_a_stream_that_came_to_be_behind_what_is_sealed_late(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = await open_store(path)
    await put(store, one(X, b"1"))
    await roll(store)
    await put(store, one(Y, b"1", b"2"))
    index, aside = path / "log" / f"{1:020}.idx", tmp_path / "aside"
    index.rename(aside)
    outside = OfflineStreams(path, lambda name: name.startswith("pull/"))
    assert set(outside.look()) == {X, Y}
    aside.rename(index)
    for _ in range(2):
        assert {name: (seen.first, seen.end) for name, seen in outside.look().items()} == {X: (0, 1), Y: (0, 2)}
    await store.close()


@pytest.mark.parametrize("seed", range(15))
async def test_power_cuts_never_give_an_acknowledged_number_again(tmp_path: Path, seed: int) -> None:
    rng, path = random.Random(seed), tmp_path / "store"
    names = [f"pull/a/{name}" for name in "uvwx"]
    given = dict.fromkeys(names, 0)
    for life in range(3):
        io = PowerCutIo(rng)
        io.trust(path)
        store = await open_store(path, io=io)
        for name in names:
            assert store.bounds(name).end >= given[name], "what was acknowledged is known"
        for _ in range(rng.randint(5, 30)):
            name = rng.choice(names)
            if rng.random() < 0.35:
                await store.trim(name, EVERYTHING, forget=True)
            else:
                [first] = await put(store, one(name, *[rng.randbytes(800)] * rng.randint(1, 20)))
                assert first >= given[name]
                given[name] = store.bounds(name).end
        for name in names:
            store.append([one(name, b"on its way")], Durability.OS)
        cut = tmp_path / f"cut{life}"
        io.cut(path, cut)
        await store.close()
        path = cut
