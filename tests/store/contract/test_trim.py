"""The contract of a store: what `trim` and `retain` let go of, and what they never do, on every store."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.inside.frame import Frame
from tests.inside.ground import SECOND_US, ManualClock
from tests.inside.store import Bounds, Store
from tests.store.contract.stores import (
    OVERHEAD_BYTES,
    Stores,
    all_bodies,
    fill,
    frame_of,
    put,
)

# --- trim -------------------------------------------------------------------------------------------------------------


async def test_trimmed_records_are_unreadable_to_the_very_record(stores: Stores) -> None:
    async with stores.open() as store:
        bodies = await fill(store, "a", 6, count=5)
        for before in (1, 4, 5, 6, 12, 25):
            await store.trim("a", before)
            assert store.bounds("a")[:2] == (before, 30)
            assert await all_bodies(store, "a") == bodies[before:]


async def test_trimming_beyond_the_end_means_the_end(stores: Stores) -> None:
    async with stores.open() as store:
        await fill(store, "a", 6)
        await store.trim("a", 1 << 40)
        assert store.bounds("a") == Bounds(6, 6, 0)
        await fill(store, "a", 2)
        assert store.bounds("a")[:2] == (6, 8)


async def test_trimming_what_is_trimmed_already_changes_nothing(stores: Stores) -> None:
    async with stores.open() as store:
        await fill(store, "a", 6)
        await store.trim("a", 4)
        for before in (0, 3, 4):
            await store.trim("a", before)
            assert store.bounds("a")[:2] == (4, 6)


async def test_trimming_one_stream_leaves_the_others(stores: Stores) -> None:
    async with stores.open() as store:
        bodies = await fill(store, "a", 60, size=2000)
        await fill(store, "b", 60, size=2000)
        await store.trim("b", 60)
        assert await all_bodies(store, "a") == bodies


# --- retain -----------------------------------------------------------------------------------------------------------

FRAME_BYTES = 4000
OLD, NEW = 60, 60


@dataclass(frozen=True)
class Aged:
    """A store with two streams whose first `OLD` frames are a hundred seconds older than the `NEW` ones."""

    store: Store
    clock: ManualClock
    bodies: dict[str, list[bytes]]

    def size_bytes(self) -> int:
        return sum(self.store.bounds(name).size_bytes for name in self.bodies)

    def first(self, name: str) -> int:
        return self.store.bounds(name).first

    async def check_readable(self) -> None:
        """What is within the bounds is as it was."""
        for name, bodies in self.bodies.items():
            assert self.store.bounds(name).end == OLD + NEW
            assert await all_bodies(self.store, name) == bodies[self.first(name) :]


async def aged(stores: Stores, store: Store) -> Aged:
    bodies: dict[str, list[bytes]] = {"a": [], "b": []}
    for count in (OLD, NEW):
        stores.clock.advance(100)
        for index in range(count):
            for name in bodies:
                frame = frame_of(1, FRAME_BYTES, f"{name}{count}{index}")
                bodies[name] += Frame(frame).bodies()
                await put(store, name, frame).done
    return Aged(store, stores.clock, bodies)


def slack(stores: Stores) -> int:
    """How many frames of a stream may be kept or freed because of the store's coarseness."""
    return stores.coarseness_bytes // FRAME_BYTES


async def test_retain_without_limits_frees_nothing(stores: Stores) -> None:
    async with stores.open() as store:
        kept = await aged(stores, store)
        assert (await store.retain(0, 0, {}))[:2] == (0, "")
        assert kept.first("a") == kept.first("b") == 0
        await kept.check_readable()


async def test_retain_frees_what_is_older_and_no_more(stores: Stores) -> None:
    async with stores.open() as store:
        kept = await aged(stores, store)
        before = kept.size_bytes()
        trimmed = await store.retain(50 * SECOND_US, 0, {})
        for name in kept.bodies:
            assert OLD - slack(stores) <= kept.first(name) <= OLD
        assert trimmed.held_back == ""
        assert trimmed.bytes_freed >= before - kept.size_bytes() > 0
        await kept.check_readable()


async def test_a_record_exactly_as_old_as_the_limit_stays(stores: Stores) -> None:
    async with stores.open() as store:
        kept = await aged(stores, store)
        await store.retain(100 * SECOND_US, 0, {})
        assert kept.first("a") == kept.first("b") == 0
        await store.retain(100 * SECOND_US - 1, 0, {})
        assert OLD - slack(stores) <= kept.first("a") <= OLD


async def test_retain_frees_the_oldest_down_to_the_size_and_no_more(stores: Stores) -> None:
    async with stores.open() as store:
        kept = await aged(stores, store)
        limit = kept.size_bytes() // 2
        trimmed = await store.retain(0, limit, {})
        assert trimmed.held_back == ""
        assert limit - FRAME_BYTES - OVERHEAD_BYTES - stores.coarseness_bytes <= kept.size_bytes()
        assert kept.size_bytes() <= limit + stores.coarseness_bytes
        assert abs(kept.first("a") - kept.first("b")) <= 1, "the oldest go first, of whichever stream"
        await kept.check_readable()


async def test_retain_with_a_size_that_is_not_reached_frees_nothing(stores: Stores) -> None:
    async with stores.open() as store:
        kept = await aged(stores, store)
        assert (await store.retain(0, 2 * kept.size_bytes() + stores.coarseness_bytes, {}))[:2] == (0, "")
        assert kept.first("a") == 0


@pytest.mark.parametrize(("max_age_us", "max_bytes"), [(50 * SECOND_US, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("pin", [0, 1, 30, 60, 119])
async def test_retain_never_frees_a_record_at_or_behind_a_pin(
    stores: Stores, max_age_us: int, max_bytes: int, pin: int
) -> None:
    async with stores.open() as store:
        kept = await aged(stores, store)
        trimmed = await store.retain(max_age_us, max_bytes, {"a": pin})
        asked = OLD if max_age_us > 1 else OLD + NEW
        assert min(pin, asked) - slack(stores) <= kept.first("a") <= min(pin, asked)
        if pin < asked - slack(stores):
            assert "a" in trimmed.held_back
            assert trimmed.holders == ("a",)
            assert (trimmed.surplus_bytes > 0) == (max_bytes > 0)
        await kept.check_readable()


async def test_pins_of_streams_that_are_not_there_hold_nothing(stores: Stores) -> None:
    async with stores.open() as store:
        kept = await aged(stores, store)
        trimmed = await store.retain(50 * SECOND_US, 0, {"never": 0, "a": 1 << 40})
        assert trimmed.held_back == ""
        assert OLD - slack(stores) <= kept.first("a") <= OLD


async def test_a_pin_within_a_frame_keeps_the_frame(stores: Stores) -> None:
    async with stores.open() as store:
        bodies = await fill(store, "a", 100, count=4, size=1000)
        stores.clock.advance(100)
        await store.retain(1, 1, {"a": 201})
        first = store.bounds("a").first
        assert first <= 201
        assert first % 4 == 0
        assert await all_bodies(store, "a") == bodies[first:]


async def test_numbers_go_on_after_retain(stores: Stores) -> None:
    async with stores.open() as store:
        await aged(stores, store)
        stores.clock.advance(100)
        await store.retain(1, 0, {})
        assert put(store, "a", frame_of(1)).firsts == (OLD + NEW,)


async def test_what_retain_left_is_there_after_a_restart(durable_stores: Stores) -> None:
    async with durable_stores.open() as store:
        kept = await aged(durable_stores, store)
        await store.retain(50 * SECOND_US, 0, {"b": 10})
        bounds = [store.bounds(name) for name in kept.bodies]
    async with durable_stores.open() as store:
        assert [store.bounds(name) for name in kept.bodies] == bounds
        await Aged(store, kept.clock, kept.bodies).check_readable()
