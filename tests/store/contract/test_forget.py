"""The contract of a store: streams that are forgotten, and the floor that keeps numbers from being given again."""

from __future__ import annotations

import asyncio

import pytest

from tests.inside.ground import SECOND_US
from tests.inside.store import Bounds
from tests.store.contract.stores import Stores, all_bodies, fill, frame_of, put
from towline.model import Durability

ALL = 1 << 40


async def test_a_forgotten_stream_is_there_no_more_and_its_bounds_do_not_go_back(stores: Stores) -> None:
    async with stores.open() as store:
        await fill(store, "pull/a/x", 6)
        await store.trim("pull/a/x", ALL, forget=True)
        assert store.streams() == []
        assert store.bounds("pull/a/x") == Bounds(6, 6, 0)
        assert (await store.read("pull/a/x", 0, 10, 1000)).next == 6
        assert await store.locate("pull/a/x", 0) == 6


async def test_streams_of_its_kind_begin_where_the_longest_forgotten_one_ended(stores: Stores) -> None:
    async with stores.open() as store:
        for name, frames in (("pull/a/x", 6), ("pull/a/y", 9), ("pull/a/z", 3), ("pull/a/there", 1)):
            await fill(store, name, frames)
        for name in ("pull/a/x", "pull/a/y", "pull/a/z"):
            await store.trim(name, ALL, forget=True)
        assert store.bounds("pull/b/never") == Bounds(9, 9, 0)
        bodies = await fill(store, "pull/a/x", 2, count=3)
        assert store.bounds("pull/a/x")[:2] == (9, 15)
        assert await all_bodies(store, "pull/a/x") == bodies
        assert store.streams("pull/") == ["pull/a/there", "pull/a/x"]


async def test_streams_of_other_kinds_and_those_that_are_there_stay_as_they_are(stores: Stores) -> None:
    async with stores.open() as store:
        await fill(store, "pull/a/x", 6)
        bodies = await fill(store, "pull/a/there", 2)
        await store.trim("pull/a/x", ALL, forget=True)
        assert store.bounds("lane/a/high") == Bounds(0, 0, 0)
        assert (await all_bodies(store, "pull/a/there")) == bodies
        assert put(store, "pull/a/there", frame_of(1)).firsts == (2,)
        assert put(store, "lane/a/high", frame_of(1)).firsts == (0,)


async def test_a_stream_with_records_left_or_without_a_kind_is_not_forgotten(stores: Stores) -> None:
    async with stores.open() as store:
        for name in ("pull/a/x", "plain"):
            await fill(store, name, 6)
        await store.trim("pull/a/x", 5, forget=True)
        await store.trim("plain", 6, forget=True)
        assert store.streams() == ["plain", "pull/a/x"]
        assert store.bounds("pull/a/x")[:2] == (5, 6)
        assert store.bounds("plain") == Bounds(6, 6, 0)
        assert store.bounds("pull/b/y") == Bounds(0, 0, 0)


async def test_what_is_on_its_way_keeps_a_stream(stores: Stores) -> None:
    async with stores.open() as store:
        await fill(store, "pull/a/x", 3)
        coming = put(store, "pull/a/x", frame_of(2))
        await store.trim("pull/a/x", 3, forget=True)
        await coming.done
        assert store.bounds("pull/a/x")[:2] == (3, 5)


async def test_what_is_appended_while_a_stream_is_forgotten_is_another_one(stores: Stores) -> None:
    async with stores.open() as store:
        await fill(store, "pull/a/x", 3)
        forgetting = asyncio.create_task(store.trim("pull/a/x", ALL, forget=True))
        await asyncio.sleep(0)
        assert put(store, "pull/a/x", frame_of(1, mark="new")).firsts == (3,)
        await store.append([], Durability.OS).done
        assert store.bounds("pull/a/x")[:2] == (3, 4)
        await forgetting


async def test_an_emptied_stream_is_forgotten_as_well_and_one_that_is_not_there_is_no_matter(stores: Stores) -> None:
    async with stores.open() as store:
        await fill(store, "pull/a/x", 4)
        await store.trim("pull/a/x", 4)
        assert store.streams() == ["pull/a/x"]
        for name in ("pull/a/x", "pull/a/x", "pull/a/never"):
            await store.trim(name, ALL, forget=True)
        assert store.streams() == []
        assert store.bounds("pull/a/never") == Bounds(4, 4, 0)


async def test_forgotten_streams_and_floors_are_so_after_restarts(durable_stores: Stores) -> None:
    async with durable_stores.open() as store:
        for name, frames in (("pull/a/x", 6), ("pull/a/y", 9), ("dead/a/x", 2), ("lane/a/low", 4)):
            await fill(store, name, frames)
        for name in ("pull/a/x", "pull/a/y", "dead/a/x"):
            await store.trim(name, ALL, forget=True)
        bodies = await fill(store, "pull/a/x", 2)
    for _ in range(3):
        async with durable_stores.open() as store:
            assert store.streams() == ["lane/a/low", "pull/a/x"]
            assert store.bounds("pull/a/x")[:2] == (9, 11)
            assert await all_bodies(store, "pull/a/x") == bodies
            assert store.bounds("pull/b/new") == Bounds(9, 9, 0)
            assert store.bounds("dead/b/new") == Bounds(2, 2, 0)
            assert store.bounds("lane/b/low") == Bounds(0, 0, 0)
    async with durable_stores.open() as store:
        await store.trim("pull/a/x", ALL, forget=True)
    async with durable_stores.open() as store:
        assert store.streams() == ["lane/a/low"]
        assert put(store, "pull/c/z", frame_of(1)).firsts == (11,)


@pytest.mark.parametrize("size", [20, 20_000], ids=["small", "over many files"])
async def test_a_stream_comes_and_goes_many_times_under_one_name(durable_stores: Stores, size: int) -> None:
    """Each time in a place of its own, with what was before it kept by another stream."""
    last: list[bytes] = []
    for turn in range(4):
        async with durable_stores.open() as store:
            for life in range(3):
                await fill(store, "lane/keeps/low", 2, size=size)
                if last:
                    await store.trim("pull/a/x", ALL, forget=True)
                last = await fill(store, "pull/a/x", 2, size=size)
                end = 2 * (3 * turn + life + 1)
                assert store.bounds("pull/a/x")[:2] == (end - 2, end)
                assert await all_bodies(store, "pull/a/x") == last
    async with durable_stores.open() as store:
        assert store.bounds("pull/a/x")[:2] == (22, 24)
        assert await all_bodies(store, "pull/a/x") == last
        durable_stores.clock.advance(100)
        await store.retain(SECOND_US, 0, {})
        assert store.bounds("pull/a/x").end == 24
