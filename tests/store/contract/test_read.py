"""The contract of a store: what `read`, `bounds`, `locate` and `streams` answer, on every store."""

from __future__ import annotations

import pytest

from tests.inside.frame import Frame
from tests.inside.ground import SECOND_US
from tests.inside.store import Bounds, Read, Store
from tests.store.contract.stores import (
    ALL,
    OVERHEAD_BYTES,
    Stores,
    all_bodies,
    bodies_of,
    fill,
    frame_of,
    put,
    read_on,
)
from towline.model import Durability

# --- read -------------------------------------------------------------------------------------------------------------


async def test_read_gives_at_most_max_count_records(stores: Stores) -> None:
    async with stores.open() as store:
        bodies = await fill(store, "a", 10, count=5)
        for count in (1, 4, 5, 6, 10, 49, 50, 51):
            read = await store.read("a", 0, count, ALL)
            assert not read.lost
            assert bodies_of(read.chunks) == bodies[:count]
            assert read.next == min(count, 50)


async def test_read_begins_and_ends_within_frames(stores: Stores) -> None:
    async with stores.open() as store:
        bodies = await fill(store, "a", 3, count=5)
        read = await store.read("a", 3, 9, ALL)
        assert [(chunk.first, chunk.start, chunk.count) for chunk in read.chunks] == [(3, 3, 2), (5, 0, 5), (10, 0, 2)]
        assert bodies_of(read.chunks) == bodies[3:12]
        read = await store.read("a", 6, 2, ALL)
        assert [(chunk.first, chunk.start, chunk.count) for chunk in read.chunks] == [(6, 1, 2)]
        assert Frame(read.chunks[0].frame).verify().count == 5, "the frame is the whole frame"


@pytest.mark.parametrize("first", range(0, 15, 2))
@pytest.mark.parametrize("count", [1, 3, 20])
async def test_every_range_is_read_exactly(stores: Stores, first: int, count: int) -> None:
    async with stores.open() as store:
        bodies: list[bytes] = []
        for index, records in enumerate((1, 4, 2, 5, 3)):
            bodies += Frame(frame_of(records, mark=str(index))).bodies()
            await put(store, "a", frame_of(records, mark=str(index))).done
        read = await store.read("a", first, count, ALL)
        assert not read.lost
        assert bodies_of(read.chunks) == bodies[first : first + count]
        assert read.next == min(first + count, 15)


async def test_read_stops_at_max_bytes_of_whole_frames(stores: Stores) -> None:
    async with stores.open() as store:
        await fill(store, "a", 20, count=2, size=500)
        size = len(frame_of(2, 500))
        for limit in (2 * size, 2 * size + 1, 5 * size - 1, 5 * size):
            read = await store.read("a", 0, ALL, limit)
            total = sum(len(chunk.frame) for chunk in read.chunks)
            assert total <= limit < total + size
        read = await store.read("a", 1, ALL, 2 * size)
        assert [chunk.count for chunk in read.chunks] == [1, 2], "the first is counted whole, though only half is read"


async def test_read_gives_at_least_one_frame_however_large(stores: Stores) -> None:
    async with stores.open() as store:
        await fill(store, "a", 3, count=2, size=50_000)
        for limit in (0, 1, 50_000):
            read = await store.read("a", 0, ALL, limit)
            assert [chunk.count for chunk in read.chunks] == [2]
            assert read.next == 2


async def test_reading_below_the_bounds_begins_at_the_first_record(stores: Stores) -> None:
    async with stores.open() as store:
        bodies = await fill(store, "a", 4, count=5)
        await store.trim("a", 7)
        read = await store.read("a", 2, 6, ALL)
        assert read.chunks[0].first == 7
        assert bodies_of(read.chunks) == bodies[7:13]
        assert read.next == 13


async def test_reading_at_or_beyond_the_end_gives_nothing(stores: Stores) -> None:
    async with stores.open() as store:
        await fill(store, "a", 4)
        for first in (4, 5, 1000, 1 << 60):
            assert_empty(await store.read("a", first, ALL, ALL), first)
        assert_empty(await store.read("never", 3, ALL, ALL), 3)


def assert_empty(read: Read, following: int) -> None:
    assert not read.chunks
    assert not read.lost
    assert read.next == following


async def test_a_stream_with_nothing_left_reads_as_empty(stores: Stores) -> None:
    async with stores.open() as store:
        await fill(store, "a", 4)
        await store.trim("a", 4)
        assert_empty(await store.read("a", 1, ALL, ALL), 4)


async def test_a_stream_over_many_segments_is_read_in_any_steps(stores: Stores) -> None:
    async with stores.open() as store:
        bodies = await fill(store, "a", 150, count=4, size=1000)
        for max_count, max_bytes in ((3, ALL), (ALL, 10_000), (ALL, ALL), (50, 30_000)):
            chunks = await read_on(store, "a", max_count=max_count, max_bytes=max_bytes)
            assert bodies_of(chunks) == bodies


async def test_streams_do_not_mix(stores: Stores) -> None:
    async with stores.open() as store:
        names = [f"s{index}" for index in range(20)]
        expected: dict[str, list[bytes]] = {name: [] for name in names}
        for turn in range(20):
            for name in names:
                frame = frame_of(1 + turn % 3, mark=f"{name}-{turn}")
                expected[name] += Frame(frame).bodies()
                put(store, name, frame)
        await store.append([], Durability.OS).done
        for name in names:
            assert await all_bodies(store, name) == expected[name]


# --- bounds -----------------------------------------------------------------------------------------------------------


async def test_a_stream_never_appended_to_has_no_bounds(stores: Stores) -> None:
    async with stores.open() as store:
        assert store.bounds("never") == Bounds(0, 0, 0)


async def test_bounds_tell_the_records_and_about_their_bytes(stores: Stores) -> None:
    async with stores.open() as store:
        await fill(store, "a", 10, count=3, size=200)
        first, end, size_bytes = store.bounds("a")
        frames_bytes = 10 * len(frame_of(3, 200))
        assert (first, end) == (0, 30)
        assert frames_bytes <= size_bytes <= frames_bytes + 10 * OVERHEAD_BYTES
        await store.trim("a", 15)
        assert store.bounds("a").size_bytes < size_bytes


async def test_bounds_do_not_go_back_when_all_records_are_trimmed(stores: Stores) -> None:
    async with stores.open() as store:
        await fill(store, "a", 5)
        await store.trim("a", 5)
        assert store.bounds("a") == Bounds(5, 5, 0)
        assert put(store, "a", frame_of(2)).firsts == (5,)


async def test_bounds_do_not_go_back_through_a_restart(durable_stores: Stores) -> None:
    async with durable_stores.open() as store:
        await fill(store, "a", 5)
        await store.trim("a", 5)
        await fill(store, "b", 5)
        await store.trim("b", 2)
    for restart in range(3):
        async with durable_stores.open() as store:
            assert store.bounds("a") == Bounds(5, 5, 0)
            assert store.bounds("b")[:2] == (2, 5 + restart)
            assert put(store, "b", frame_of(1)).firsts == (5 + restart,)


async def test_bounds_do_not_go_back_when_everything_was_retained_away(durable_stores: Stores) -> None:
    async with durable_stores.open() as store:
        await fill(store, "a", 60, size=4000)
        durable_stores.clock.advance(100)
        await fill(store, "b", 60, size=4000)
        await store.trim("a", 60)
        await store.retain(50 * SECOND_US, 0, {})
        await store.retain(0, 1, {})
        assert store.bounds("a") == Bounds(60, 60, 0)
        b = store.bounds("b")
    async with durable_stores.open() as store:
        assert store.bounds("a") == Bounds(60, 60, 0)
        assert store.bounds("b") == b
        assert put(store, "a", frame_of(1)).firsts == (60,)


# --- locate -----------------------------------------------------------------------------------------------------------


async def fill_by_the_second(stores: Stores, store: Store, frames: int) -> list[int]:
    """Append frames of 3 records, one a second; gives their times."""
    times = []
    for _ in range(frames):
        stores.clock.advance(1)
        appended = put(store, "a", frame_of(3, 1000))
        await appended.done
        times.append(appended.at_us)
    return times


async def test_locate_finds_the_first_record_at_or_after_a_time(stores: Stores) -> None:
    async with stores.open() as store:
        times = await fill_by_the_second(stores, store, 60)
        assert await store.locate("a", 0) == 0
        for index, time in enumerate(times):
            assert await store.locate("a", time) == 3 * index
            assert await store.locate("a", time - 1) == 3 * index
            assert await store.locate("a", time + 1) == 3 * (index + 1)


async def test_locate_gives_the_end_if_nothing_is_that_young(stores: Stores) -> None:
    async with stores.open() as store:
        times = await fill_by_the_second(stores, store, 3)
        assert await store.locate("a", times[-1] + 1) == 9
        assert await store.locate("never", times[0]) == 0


async def test_locate_gives_the_first_of_records_of_equal_time(stores: Stores) -> None:
    async with stores.open() as store:
        await fill(store, "a", 5)
        stores.clock.advance(1)
        await fill(store, "a", 200, size=1000)
        assert await store.locate("a", stores.clock.now_us()) == 5


async def test_locate_gives_no_record_that_was_trimmed(stores: Stores) -> None:
    async with stores.open() as store:
        times = await fill_by_the_second(stores, store, 4)
        await store.trim("a", 4)
        assert await store.locate("a", 0) == 4
        assert await store.locate("a", times[1]) == 4
        assert await store.locate("a", times[2]) == 6
        await store.trim("a", 12)
        assert await store.locate("a", 0) == 12


async def test_locate_agrees_with_the_times_read_even_if_the_clock_is_set_back(stores: Stores) -> None:
    async with stores.open() as store:
        for step in (1, 1, -5, 1, 1, 1, 8, -2, 1):
            stores.clock.advance(step)
            await put(store, "a", frame_of(2)).done
        times = [(chunk.first, chunk.appended_at_us) for chunk in await read_on(store, "a")]
        for _, time in times:
            for asked in (time - 1, time, time + 1):
                expected = next((first for first, at in times if at >= asked), 18)
                assert await store.locate("a", asked) == expected


# --- streams ----------------------------------------------------------------------------------------------------------


async def test_streams_are_listed_by_prefix_and_sorted(stores: Stores) -> None:
    async with stores.open() as store:
        for name in ("lane/b/low", "pull/b/g", "lane/a/high", "lane/ab/high", "lane/a/low"):
            await put(store, name, frame_of(1)).done
        assert store.streams() == ["lane/a/high", "lane/a/low", "lane/ab/high", "lane/b/low", "pull/b/g"]
        assert store.streams("lane/a/") == ["lane/a/high", "lane/a/low"]
        assert store.streams("lane/a") == ["lane/a/high", "lane/a/low", "lane/ab/high"]
        assert store.streams("pull/b/g") == ["pull/b/g"]
        assert store.streams("x") == []


async def test_streams_with_no_record_left_are_listed_as_well(stores: Stores) -> None:
    async with stores.open() as store:
        await fill(store, "a", 3)
        await fill(store, "b", 3)
        await store.trim("a", 3)
        assert store.streams() == ["a", "b"]
