"""Trim and retention: what goes, what stays, and what holds it back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.inside.ground import SECOND_US, ManualClock
from tests.inside.store import LogStore
from tests.store.log.small_logs import content_of, copy_of, indexes, one, open_store, put, segments
from towline.model import Durability


async def fill_hours(path: Path, hours: int = 10) -> tuple[LogStore, ManualClock]:
    """One segment an hour: a frame of `a`, and a small one of a stream of that hour."""
    clock = ManualClock()
    store = await open_store(path, clock=clock)
    for hour in range(hours):
        await put(store, one("a", b"x" * 60_000), one(f"h{hour}", b"1", b"2"))
        clock.advance(3600)
    await store.retain(0, 0, {})
    return store, clock


async def test_segments_older_than_the_limit_go(tmp_path: Path) -> None:
    store, _ = await fill_hours(tmp_path)
    trimmed = await store.retain(int(4.5 * 3600 * SECOND_US), 0, {})
    assert trimmed.bytes_freed > 6 * 60_000
    assert trimmed.held_back == ""
    assert store.bounds("a")[:2] == (6, 10)
    assert [store.bounds(f"h{hour}")[:2] for hour in range(10)] == [(2, 2)] * 6 + [(0, 2)] * 4
    assert [store.bounds(f"h{hour}").size_bytes for hour in (5, 6)] == [0, 96]
    assert store.bounds("a").size_bytes == 4 * 60_080
    await store.close()


async def test_the_bounds_are_the_same_after_a_restart(tmp_path: Path) -> None:
    store, _ = await fill_hours(tmp_path / "store")
    await store.retain(int(4.5 * 3600 * SECOND_US), 0, {})
    before = {name: store.bounds(name) for name in store.streams()}
    for copy in (copy_of(tmp_path / "store", tmp_path / "copy"),):
        again = await open_store(copy)
        assert {name: again.bounds(name) for name in again.streams()} == before
        await again.close()
        again = await open_store(copy)
        assert {name: again.bounds(name) for name in again.streams()} == before
        await again.close()
    await store.close()


async def test_the_segment_being_written_goes_too_when_all_of_it_is_too_old(tmp_path: Path) -> None:
    store, clock = await fill_hours(tmp_path)
    clock.advance(24 * 3600)
    await store.retain(3600 * SECOND_US, 0, {})
    assert {name: store.bounds(name)[:2] for name in store.streams()} == {
        "a": (10, 10),
        **{f"h{hour}": (2, 2) for hour in range(10)},
    }
    assert len(indexes(tmp_path)) == 1, "the newest index stays: it knows the numbering"
    await put(store, one("b", b"x"))
    await store.close()
    store = await open_store(tmp_path, clock=clock)
    assert store.bounds("a")[:2] == (10, 10)
    assert await put(store, one("a", b"x")) == (10,)
    await store.close()


async def test_the_store_shrinks_to_the_size_asked_for_and_no_further(tmp_path: Path) -> None:
    store, _ = await fill_hours(tmp_path)
    await store.retain(0, 400_000, {})
    total = sum(log.stat().st_size for log in segments(tmp_path)[:-1])
    assert 400_000 - 2 * 65_536 < total <= 400_000
    assert store.bounds("a").first == 4
    assert (await store.retain(0, 400_000, {})).bytes_freed == 0
    await store.close()


async def test_a_pin_holds_its_segment_and_all_behind_it(tmp_path: Path) -> None:
    store, _ = await fill_hours(tmp_path)
    trimmed = await store.retain(0, 1, {"h3": 1, "a": 8, "nobody": 0})
    assert store.bounds("a").first == 3
    assert "record 1 of h3" in trimmed.held_back
    assert trimmed.holders == ("h3",)
    first, second = [(await store.retain(0, 1, pins)).holders for pins in ({"h3": 1, "a": 3}, {"a": 3, "h3": 1})]
    assert (first, second) == (("h3",), ("a",)), "of two with the same file, the one that comes first in the pins"
    trimmed = await store.retain(0, 1, {"h3": 2, "a": 8})
    assert store.bounds("a").first == 8
    assert "record 8 of a" in trimmed.held_back
    trimmed = await store.retain(0, 1, {"a": 10})
    assert trimmed.held_back == ""
    await store.close()


async def test_segments_in_which_all_is_trimmed_go_without_a_limit(tmp_path: Path) -> None:
    store, _ = await fill_hours(tmp_path)
    await store.trim("a", 5)
    assert (await store.retain(0, 0, {})).bytes_freed == 0
    for hour in range(4):
        await store.trim(f"h{hour}", 2)
    assert (await store.retain(0, 0, {"a": 2})).bytes_freed > 4 * 60_000
    assert segments(tmp_path)[0].name == "00000000000000000005.log"
    await store.close()


async def test_a_trim_within_a_frame_is_exact_and_durable(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "store")
    await put(store, one("a", b"0", b"1", b"2"))
    await put(store, one("a", b"3", b"4", b"5"))
    await store.trim("a", 4)
    copy = await open_store(copy_of(tmp_path / "store", tmp_path / "copy"))
    for reader in (store, copy):
        assert reader.bounds("a")[:2] == (4, 6)
        assert (await content_of(reader)).bodies["a"] == {4: b"4", 5: b"5"}
        assert reader.bounds("a").size_bytes == (await reader.read("a", 4, 1, 1)).chunks[0].frame.__len__()
        await reader.trim("a", 2)
        assert reader.bounds("a").first == 4
        await reader.trim("a", 10**18)
        assert reader.bounds("a") == (6, 6, 0)
        await reader.close()


async def test_a_trim_waits_for_what_was_appended_before_it(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    store.append([one("a", b"x" * 200_000)] * 3, Durability.OS)
    await store.trim("a", 3)
    assert store.bounds("a") == (3, 3, 0)
    await store.close()


async def test_what_is_being_read_while_it_is_deleted_is_read_whole(tmp_path: Path) -> None:
    store, _ = await fill_hours(tmp_path, 30)
    for number in range(30):
        reading = [asyncio.create_task(store.read("a", seq, 3, 1 << 20)) for seq in range(number, 30, 4)]
        await asyncio.sleep(0)
        retaining = asyncio.create_task(store.retain(0, (30 - number) * 60_000, {}))
        more = [asyncio.create_task(store.read("a", seq, 3, 1 << 20)) for seq in range(number, 30, 4)]
        for answer in await asyncio.gather(*reading, *more):
            assert not answer.lost
            assert all(len(chunk.frame) > 60_000 for chunk in answer.chunks)
        await retaining
    await store.close()


async def test_two_retains_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    store, _ = await fill_hours(tmp_path)
    freed = await asyncio.gather(*(store.retain(0, 300_000, {}) for _ in range(5)))
    assert [bool(answer.bytes_freed) for answer in freed] == [True, False, False, False, False]
    await store.close()


@pytest.mark.parametrize("seq", [0, 3, 9])
async def test_locate_finds_the_first_record_at_a_time_in_any_segment(tmp_path: Path, seq: int) -> None:
    store, _ = await fill_hours(tmp_path)
    begin = ManualClock().now_us()
    for _ in range(2):
        at_us = begin + seq * 3600 * SECOND_US
        assert await store.locate("a", at_us) == seq
        assert await store.locate("a", at_us + 1) == seq + 1
        assert await store.locate(f"h{seq}", at_us) == 0
        assert await store.locate(f"h{seq}", at_us + 1) == 2
        assert await store.locate("nobody", at_us) == 0
        await store.close()
        store = await open_store(tmp_path)
    await store.trim("a", seq + 1)
    assert await store.locate("a", 0) == seq + 1
    await store.close()
