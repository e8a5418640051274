"""No number is given twice, whatever became of the record that held it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.inside.store import STAMP, Chunk, Lost, inspect, read_range
from tests.store.log.small_logs import content_of, copy_of, one, open_store, put, segments
from towline.model import Durability


async def last_damaged(path: Path, damage: bytes, *, at: int, closed: bool, behind: bool) -> Path:
    """A lane with records 0 to 4, the last of them overwritten from its byte `at` on; `behind` it others may follow."""
    store = await open_store(path)
    await put(store, one("idle", b"0", b"1"), durability=Durability.OS)
    for number in range(5):
        await put(store, one("lane", b"message %d" % number), durability=Durability.OS)
    begin = segments(path)[0].read_bytes().rindex(b"TWR1")
    if behind:
        await put(store, one("pull", b"event"), durability=Durability.OS)
    left = copy_of(path, path.with_name("killed"))
    await store.close()
    left = path if closed else left
    log = segments(left)[0]
    data = bytearray(log.read_bytes())
    data[begin + at : begin + at + len(damage)] = damage
    log.write_bytes(data)
    return left


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("closed", [True, False])
async def test_a_damaged_stamp_that_can_be_told_costs_its_own_number_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, closed: bool, behind: bool
) -> None:
    path = await last_damaged(tmp_path / "store", b"\xff", at=30, closed=closed, behind=behind)
    assert not inspect.verify(path).sound
    for _ in range(2):
        caplog.clear()
        store = await open_store(path)
        content = await content_of(store)
        assert ([(hole.first, hole.count) for hole in content.lost["lane"]], content.lost["idle"]) == ([(4, 1)], [])
        assert "damage may have swallowed the numbers 4 to 4 of lane: they are not given again" in caplog.text
        await store.close()
    store = await open_store(path)
    assert await put(store, one("lane", b"next")) == (5,)
    assert await put(store, one("idle", b"next")) == (2,)
    content = await content_of(store)
    seen = [(one.first, type(one)) for one in read_range(path, "lane", 0, 6)]
    assert seen == [(0, Chunk), (1, Chunk), (2, Chunk), (3, Chunk), (4, Lost), (5, Chunk)], "as others see it"
    await store.close()
    store = await open_store(path)
    assert await content_of(store) == content
    assert not list((path / "torn").iterdir()), "nothing was cut"
    await store.close()


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("closed", [True, False])
async def test_a_stamp_of_which_nothing_can_be_told_makes_all_go_on_behind_a_gap(
    tmp_path: Path, closed: bool, behind: bool
) -> None:
    """All streams but those with a later record: the frame says how many numbers, but nothing says whose."""
    damage = b"\xff" * (STAMP.size + 4 - 18)
    path = await last_damaged(tmp_path / "store", damage, at=18, closed=closed, behind=behind)
    store = await open_store(path)
    assert await put(store, one("lane", b"next")) == (5,)
    assert await put(store, one("idle", b"next")) == (3,)
    if behind:
        assert await put(store, one("pull", b"next")) == (1,)
    await store.close()


async def test_a_record_of_which_nothing_is_left_makes_all_go_on_behind_a_large_gap(tmp_path: Path) -> None:
    path = await last_damaged(tmp_path / "store", b"\xff" * 150, at=0, closed=False, behind=True)
    store = await open_store(path)
    assert (await put(store, one("lane", b"next")))[0] >= 5
    assert store.bounds("pull").end == 1
    content = await content_of(store)
    assert content.bodies["lane"].keys() >= {0, 1, 2, 3}
    await store.close()
    store = await open_store(path)
    assert await content_of(store) == content, "and no further one at the next start"
    await store.close()


async def test_the_gap_outlives_the_segment_with_the_damage(tmp_path: Path) -> None:
    path = await last_damaged(tmp_path / "store", b"\xff" * 50, at=18, closed=False, behind=True)
    store = await open_store(path)
    ends = {name: store.bounds(name).end for name in ("lane", "idle", "pull")}
    for _ in range(10):
        await put(store, one("more", b"x" * 30_000))
    await store.close()
    assert segments(path)[0].with_suffix(".idx").exists()
    store = await open_store(path)
    assert {name: store.bounds(name).end for name in ends} == ends
    await store.close()


async def test_a_gap_in_a_segment_that_was_never_sealed_is_not_forgotten_either(tmp_path: Path) -> None:
    """Its index is made at the start that found the damage; from the next start on only the index is read."""
    path = await last_damaged(tmp_path / "store", b"\xff" * 50, at=18, closed=False, behind=False)
    store = await open_store(path)
    await put(store, one("more", b"x" * 60_000))
    await put(store, one("more", b"x" * 60_000))
    left = copy_of(path, tmp_path / "left")
    ends = {name: store.bounds(name).end for name in store.streams()}
    await store.close()
    for index in (left / "log").glob("*.idx"):
        index.unlink()
    for _ in range(2):
        store = await open_store(left)
        assert {name: store.bounds(name).end for name in store.streams()} == ends
        await store.close()


@pytest.mark.parametrize("cut", [10, 30, 70, 100, 140])
async def test_numbers_of_a_torn_tail_are_given_again(tmp_path: Path, cut: int) -> None:
    """It was never acknowledged: streams are dense through any crash."""
    path = await last_damaged(tmp_path / "store", bytes(200), at=cut, closed=False, behind=False)
    store = await open_store(path)
    assert await put(store, one("lane", b"next")) == (4,)
    assert not any((await content_of(store)).lost.values())
    await store.close()
