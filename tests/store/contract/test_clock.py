"""A clock that is wrong for a while: what was appended then goes when it is old, and not before."""

from __future__ import annotations

import pytest

from tests.inside.ground import SECOND_US
from tests.inside.store import Store
from tests.store.contract.stores import Stores, frame_of, put

YEARS_S = 20 * 365 * 86_400
HOUR_US = 3600 * SECOND_US


async def put_one(store: Store, stream: str = "a") -> int:
    appended = put(store, stream, frame_of(1, 40))
    await appended.done
    return appended.at_us


async def test_one_append_far_ahead_does_not_stop_retention(stores: Stores, caplog: pytest.LogCaptureFixture) -> None:
    async with stores.open() as store:
        await put_one(store)
        stores.clock.advance(YEARS_S)
        await put_one(store)
        stores.clock.advance(-YEARS_S)
        assert await put_one(store) == stores.clock.now_us()
        assert "the clock was wrong then, or it is now" in caplog.text
        stores.clock.advance(1800)
        await put_one(store)
        await store.retain(HOUR_US, 0, {})
        assert store.bounds("a").first == 0
        stores.clock.advance(1801)
        await put_one(store)
        await store.retain(HOUR_US, 0, {})
        assert store.bounds("a").first in {2, 3}  # a log goes by whole segments


async def test_what_was_stamped_ahead_goes_when_it_is_old_though_nothing_follows(stores: Stores) -> None:
    async with stores.open() as store:
        await put_one(store)
        stores.clock.advance(YEARS_S)
        await put_one(store)
        stores.clock.advance(-YEARS_S)
        await store.retain(HOUR_US, 0, {})
        assert store.bounds("a").end == 2
        stores.clock.advance(3601)
        await store.retain(HOUR_US, 0, {})
        assert store.bounds("a")[:2] == (2, 2)


async def test_what_an_older_version_stamped_ahead_goes_after_a_restart(durable_stores: Stores) -> None:
    clock = durable_stores.clock
    clock.advance(YEARS_S)
    async with durable_stores.open() as store:
        await put_one(store)
        await put_one(store, "b")
    clock.advance(-YEARS_S)
    async with durable_stores.open() as store:
        assert await put_one(store) == clock.now_us()
    clock.advance(3601)
    async with durable_stores.open() as store:
        assert await put_one(store) == clock.now_us()
        assert await store.locate("a", clock.now_us() - HOUR_US) == 2
        assert await store.locate("b", clock.now_us() - HOUR_US) == 1
        await store.retain(HOUR_US, 0, {})
        assert store.bounds("a").first in {1, 2}  # a log goes by whole segments
        assert store.bounds("b").first == 1


async def test_one_append_far_behind_is_not_taken_for_old(stores: Stores) -> None:
    async with stores.open() as store:
        await put_one(store)
        stores.clock.advance(-YEARS_S)
        await put_one(store)
        await put_one(store, "b")
        stores.clock.advance(YEARS_S + 1800)
        begin = await put_one(store)
        stores.clock.advance(1801)
        assert await store.locate("a", begin) == 1
        assert await store.locate("b", begin) == 0
        await store.retain(HOUR_US, 0, {})
        assert (store.bounds("a").first, store.bounds("b").first) == (1, 0)


async def test_a_stream_of_nothing_but_wrong_stamps_is_as_young_as_what_follows(stores: Stores) -> None:
    async with stores.open() as store:
        await put_one(store)
        stores.clock.advance(YEARS_S)
        await put_one(store, "b")
        stores.clock.advance(5 - YEARS_S)
        at_us = await put_one(store)
        assert await store.locate("b", at_us) == 0
        stores.clock.advance(10)
        assert await store.locate("b", at_us + 1) == 1
        assert await store.locate("a", at_us) == 1
        assert await store.locate("a", stores.clock.now_us() + 1) == 2


async def test_what_is_read_tells_when_it_was_appended(stores: Stores) -> None:
    async with stores.open() as store:
        begin_us = await put_one(store)
        times_us = []
        for off_s in (YEARS_S, -YEARS_S):
            stores.clock.advance(off_s)
            assert await put_one(store) == stores.clock.now_us()
            stores.clock.advance(60 - off_s)
            times_us.append(await put_one(store))
        chunks = [chunk for at in range(5) for chunk in (await store.read("a", at, 1, 1 << 20)).chunks]
        stamps = [store.times.time_of(chunk.serial, chunk.appended_at_us) for chunk in chunks]
        assert stamps == [begin_us, times_us[0], times_us[0], times_us[1], times_us[1]]
