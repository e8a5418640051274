"""Damage to a log store's files: it always opens, loses only what was damaged, and says so."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.inside.store import REAL, Append, Known, Record, Scanner, Segment, absorb, read_segment, write_index
from tests.store.log.small_logs import (
    Content,
    content_of,
    copy_of,
    frame_of,
    indexes,
    one,
    open_store,
    put,
    segments,
)
from towline.model import Durability


class SmallLog(NamedTuple):
    """A log that was not closed, its records, and what a reader saw of it."""

    path: Path
    data: bytes
    records: list[Record]
    content: Content

    def lost_with(self, records: list[Record]) -> set[tuple[str, int]]:
        return {(r.stream, seq) for r in records for seq in range(r.base, r.base + r.count)}

    @property
    def all(self) -> set[tuple[str, int]]:
        return {(name, seq) for name, bodies in self.content.bodies.items() for seq in bodies}

    @property
    def last_unit(self) -> list[Record]:
        return self.records[-self.records[-1].unit_size :]

    def unit_of(self, record: Record) -> list[Record]:
        at = self.records.index(record) - record.unit_index
        return self.records[at : at + record.unit_size]


async def make_small_log(path: Path, durability: Durability) -> SmallLog:
    store = await open_store(path)
    await put(store, one("a", b"1"), durability=durability)
    await put(store, one("a", b"2"), one("b", b"3", b"4"), one("c", b"5"), durability=durability)
    await put(store, one("b", b"6"), durability=durability)
    await put(store, one("a", b"7"), durability=durability)
    content = await content_of(store)
    crashed = copy_of(path, path.with_name("crashed"))
    await store.close()
    data = segments(path)[0].read_bytes()
    with segments(path)[0].open("rb") as file:
        found = list(Scanner(REAL, file.fileno(), 1, len(data)).records())
    records = [record for record in found if isinstance(record, Record)]
    assert len(records) == len(found) == 6
    return SmallLog(crashed, data, records, content)


@pytest.fixture(params=[Durability.OS, Durability.FSYNC])
def small_log(request: pytest.FixtureRequest, tmp_path: Path) -> SmallLog:
    return asyncio.run(make_small_log(tmp_path / "store", request.param))


async def what_is_left(
    path: Path, go_on: bool, given: dict[str, tuple[int, int]] | None = None
) -> set[tuple[str, int]]:
    """Open and look. To go on is to append to every stream and open again, checking that all of it stays. Numbers that
    were `given` are not given again."""
    store = await open_store(path)
    before = await content_of(store)
    left = {(name, seq) for name, bodies in before.bodies.items() for seq in bodies}
    for name, (_, end) in (given or {}).items():
        assert store.bounds(name).end >= end, name
    if not go_on:
        await store.close()
        return left
    for name in ("a", "b", "c"):
        await put(store, one(name, b"new", b"er"))
    after = await content_of(store)
    await store.close()
    store = await open_store(path)
    assert await content_of(store) == after
    await store.close()
    for name, bodies in before.bodies.items():
        assert {seq: body for seq, body in after.bodies[name].items() if body not in (b"new", b"er")} == bodies
    assert all(list(after.bodies[name].values())[-2:] == [b"new", b"er"] for name in "abc")
    return left


async def test_a_log_cut_at_any_byte_opens_with_all_whole_units_before_the_cut(small_log: SmallLog) -> None:
    # A cut file ends there; after a power cut it is as long as it was made, with zeros where nothing arrived.
    zeros = 4096 if small_log.records[-1].synced else 0

    log = segments(small_log.path)[0]
    for cut in range(len(small_log.data)):
        log.write_bytes(small_log.data[:cut] + bytes(zeros))
        whole = [r for r in small_log.records if all(u.position + u.length <= cut for u in small_log.unit_of(r))]
        # What is cut off a frame's padding is not missed when zeros follow.
        left = await what_is_left(small_log.path, go_on=cut % 11 == 0)
        assert left >= small_log.lost_with(whole), cut
        assert len(left) <= len(small_log.all)
        rest = left - small_log.lost_with(whole)
        assert not rest or zeros, cut
        assert all(small_log.lost_with(small_log.unit_of(r)) <= left for r in small_log.records if _any(r, left))


def _any(record: Record, left: set[tuple[str, int]]) -> bool:
    return (record.stream, record.base) in left


@pytest.mark.slow
async def test_a_flipped_byte_anywhere_costs_only_what_it_damaged_and_is_reported(
    small_log: SmallLog, caplog: pytest.LogCaptureFixture
) -> None:
    log = segments(small_log.path)[0]
    for at in range(len(small_log.data)):
        damaged = bytearray(small_log.data)
        damaged[at] ^= 1 << at % 8
        log.write_bytes(bytes(damaged) + bytes(1024))
        caplog.clear()
        left = await what_is_left(small_log.path, go_on=at % 11 == 0, given=small_log.content.bounds)
        assert left <= small_log.all
        gone = small_log.all - left
        (hit,) = [r for r in small_log.records if r.position <= at < r.position + r.length]
        assert gone in (set(), small_log.lost_with([hit])), at
        assert not gone or any(message.levelno >= logging.WARNING for message in caplog.records), at
        padding = damaged[at] in {1 << bit for bit in range(8)} and small_log.data[at] == 0
        assert gone or padding, f"byte {at} is checked by nothing"


async def test_a_torn_tail_is_kept_in_a_copy_and_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    small_log = await make_small_log(tmp_path / "store", Durability.OS)
    last = small_log.records[-1]
    segments(small_log.path)[0].write_bytes(small_log.data[:-20] + bytes(512))
    store = await open_store(small_log.path)
    (copy,) = (small_log.path / "torn").iterdir()
    assert copy.read_bytes() == small_log.data[last.position : -20].ljust(last.length, b"\0")
    assert copy.name.startswith(f"00000000000000000001-{last.position}-")
    assert f"a torn tail of {last.length} bytes at {last.position} was cut" in caplog.text
    assert await put(store, one("a", b"again")) == (2,)
    await store.close()
    assert segments(small_log.path)[0].stat().st_size == len(small_log.data)


async def test_records_behind_damage_survive_and_the_damaged_are_lost(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = await open_store(path)
    for index in range(50):
        await put(store, one("a", b"%d" % index), one("b", b"x", b"y"))
    copy = copy_of(path, tmp_path / "copy")
    await store.close()
    data = bytearray(segments(copy)[0].read_bytes())
    data[5000:5400] = b"\xff" * 400
    segments(copy)[0].write_bytes(data)
    store = await open_store(copy)
    content = await content_of(store)
    assert content.bounds == {"a": (0, 50), "b": (0, 100)}
    gone = {name: [hole.count for hole in holes] for name, holes in content.lost.items()}
    assert 1 <= sum(gone["a"]) <= 3
    assert sum(gone["b"]) % 2 == 0
    for name, holes in content.lost.items():
        missing = {seq for hole in holes for seq in range(hole.first, hole.first + hole.count)}
        assert missing | content.bodies[name].keys() == set(range(content.bounds[name][1]))
    assert await put(store, one("a", b"next")) == (50,)
    await store.close()


async def fill_segments(path: Path, count: int = 200) -> tuple[Content, list[str]]:
    """Several sealed segments and an active one; gives what a reader sees and the names of the sealed."""
    store = await open_store(path)
    for index in range(count):
        await put(store, one(f"s{index % 3}", b"x" * 2000, b"%d" % index), durability=Durability.OS)
    await store.trim("s1", 20)
    content = await content_of(store)
    await store.close()
    assert len(indexes(path)) >= 5
    return content, [file.name for file in indexes(path)]


async def test_missing_indexes_are_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content, names = await fill_segments(tmp_path)
    before = {file.name: file.read_bytes() for file in indexes(tmp_path)}
    for file in indexes(tmp_path):
        file.unlink()
    store = await open_store(tmp_path)
    assert await content_of(store) == content
    assert "has no good index" in caplog.text
    await store.close()
    assert {file.name: file.read_bytes() for file in indexes(tmp_path)} == before
    assert sorted(before) == names


async def test_an_index_cut_or_flipped_at_any_place_is_made_again(tmp_path: Path) -> None:
    content, _ = await fill_segments(tmp_path)
    for number in (0, 2, -1):
        index = indexes(tmp_path)[number]
        good = index.read_bytes()
        for at in range(0, len(good), 31):
            damaged = bytearray(good)
            damaged[at] ^= 0x10
            for bad in (good[:at], bytes(damaged)):
                index.write_bytes(bad)
                store = await open_store(tmp_path)
                assert await content_of(store) == content, (number, at)
                await store.close()


async def test_an_index_that_rots_while_the_store_is_open_costs_nothing(tmp_path: Path) -> None:
    content, _ = await fill_segments(tmp_path)
    store = await open_store(tmp_path)
    for index in indexes(tmp_path):
        damaged = bytearray(index.read_bytes())
        damaged[-20] ^= 1
        index.write_bytes(damaged)
    assert await content_of(store) == content
    await store.close()


async def test_a_sealed_segment_that_was_cut_loses_its_end_and_keeps_the_numbering(tmp_path: Path) -> None:
    content, _ = await fill_segments(tmp_path)
    for number in (-2, 1):
        log = segments(tmp_path)[number]
        log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    store = await open_store(tmp_path)
    after = await content_of(store)
    assert after.bounds["s0"][0] == 0
    for name, bodies in after.bodies.items():
        assert bodies.items() <= content.bodies[name].items()
        assert (
            sum(hole.count for hole in after.lost[name]) + len(bodies) == after.bounds[name][1] - after.bounds[name][0]
        )
    await store.close()


async def test_damage_in_a_sealed_segment_is_found_by_the_reader(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content, _ = await fill_segments(tmp_path)
    log = segments(tmp_path)[1]
    data = bytearray(log.read_bytes())
    data[30_000] ^= 4
    log.write_bytes(data)
    store = await open_store(tmp_path)
    after = await content_of(store)
    lost = {name: holes for name, holes in after.lost.items() if holes}
    assert [[hole.count for hole in holes] for holes in lost.values()] == [[2]]
    assert sum(map(len, after.bodies.values())) == sum(map(len, content.bodies.values())) - 2
    assert "are lost: the frame in segment 2 at" in caplog.text
    assert store.stats.lost_ranges == 1
    await content_of(store)
    assert store.stats.lost_ranges == 1, "it is said once"
    await store.close()


async def test_a_missing_segment_is_a_hole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content, _ = await fill_segments(tmp_path)
    segments(tmp_path)[2].unlink()
    store = await open_store(tmp_path)
    after = await content_of(store)
    assert after.bounds == content.bounds
    assert any(after.lost.values())
    assert "3 to 3 are missing" in caplog.text
    await store.close()


async def test_foreign_and_empty_files_are_ignored_and_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content, _ = await fill_segments(tmp_path)
    (tmp_path / "log" / "notes.txt").write_text("mine")
    (tmp_path / "log" / "00000000000000000099.log").touch()
    (tmp_path / "log" / ".00000000000000000001.idx.tmp").write_text("half")
    store = await open_store(tmp_path)
    assert await content_of(store) == content
    assert "notes.txt is not part of the log" in caplog.text
    assert (tmp_path / "log" / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "log" / ".00000000000000000001.idx.tmp").exists()
    await put(store, one("s0", b"new"))
    await store.close()


async def test_an_empty_segment_in_the_middle_is_only_a_hole(tmp_path: Path) -> None:
    content, _ = await fill_segments(tmp_path)
    segments(tmp_path)[2].write_bytes(b"")
    store = await open_store(tmp_path)
    after = await content_of(store)
    assert after.bounds == content.bounds
    assert any(after.lost.values())
    await store.close()


async def test_a_record_inside_a_message_is_never_taken_for_a_record(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = await open_store(path)
    await put(store, one("secret", b"original"))
    record = copy_of(path, tmp_path / "first")
    stolen = segments(record)[0].read_bytes()[:256]
    await put(store, one("a", stolen * 4))
    await put(store, one("a", b"behind"))
    copy = copy_of(path, tmp_path / "copy")
    await store.close()
    data = bytearray(segments(copy)[0].read_bytes())
    begin = data.index(b"TWR1", 8)
    data[begin : begin + 4] = b"\0\0\0\0"
    segments(copy)[0].write_bytes(data)
    store = await open_store(copy)
    content = await content_of(store)
    assert content.bodies == {"secret": {0: b"original"}, "a": {1: b"behind"}}
    assert [(hole.first, hole.count) for hole in content.lost["a"]] == [(0, 1)]
    await store.close()


async def test_a_unit_that_may_be_torn_is_dropped_and_one_that_is_damaged_loses_one_frame(tmp_path: Path) -> None:
    others = {"a": {0: b"1"}, "c": {0: b"3"}}
    for durability, damage, left in (
        (Durability.FSYNC, b"damaged!!", others),
        (Durability.FSYNC, bytes(9), others),
        (Durability.OS, b"damaged!!", others),
        (Durability.OS, bytes(9), dict[str, dict[int, bytes]]()),
    ):
        path = tmp_path / f"{durability.name}{damage[0]}"
        store = await open_store(path)
        await put(store, one("a", b"1"), one("b", b"damage me"), one("c", b"3"), durability=durability)
        await put(store, one("d", b"4"), durability=durability)
        copy = copy_of(path, tmp_path / f"copy-{path.name}")
        await store.close()
        data = segments(copy)[0].read_bytes()
        segments(copy)[0].write_bytes(data.replace(b"damage me", damage))
        for _ in range(2):
            store = await open_store(copy)
            bodies = {name: found for name, found in (await content_of(store)).bodies.items() if found}
            assert bodies == left | {"d": {0: b"4"}}
            await store.close()


async def test_numbers_given_again_after_a_drop_belong_to_the_later_record(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = await open_store(path)
    await put(store, one("a", b"torn"), one("b", b"damage me"), durability=Durability.OS)
    await put(store, one("c", b"behind"), durability=Durability.OS)
    copy = copy_of(path, tmp_path / "copy")
    await store.close()
    data = segments(copy)[0].read_bytes()
    segments(copy)[0].write_bytes(data.replace(b"damage me", bytes(9)))
    store = await open_store(copy)
    assert await put(store, one("a", b"kept")) == (0,)
    again = copy_of(copy, tmp_path / "again")
    await store.close()
    store = await open_store(again)
    assert (await content_of(store)).bodies["a"] == {0: b"kept"}
    await store.close()


async def test_a_frame_that_is_none_is_lost_not_delivered(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    frame = bytearray(frame_of(b"body"))
    frame[-1] ^= 1
    await put(store, Append("a", bytes(frame), 1), durability=Durability.OS)
    read = await store.read("a", 0, 10, 1000)
    assert (read.chunks, [(hole.first, hole.count) for hole in read.lost], read.next) == ([], [(0, 1)], 1)
    await store.close()


async def test_an_index_counts_only_if_the_log_has_the_length_that_it_speaks_of(tmp_path: Path) -> None:
    """As a copy has it that was made while the broker ran: the index of an earlier moment than the log."""
    store = await open_store(tmp_path)
    for number in range(3):
        await put(store, one("a", b"%d" % number))
    await store.close()
    path = segments(tmp_path)[0]
    with path.open("rb") as file:
        size = path.stat().st_size * 2 // 3
        early = Segment(1, path, file.fileno(), size)
        early.used = read_segment(early, REAL, size).good_end
    known: dict[str, Known] = {}
    absorb(known, early)
    write_index(REAL, path.with_suffix(".idx"), early, known)
    assert known["a"].end == 2
    store = await open_store(tmp_path)
    assert (await content_of(store)).bodies["a"] == {0: b"0", 1: b"1", 2: b"2"}
    assert await put(store, one("a", b"next")) == (3,)
    await store.close()


async def test_of_torn_tails_only_the_last_copies_are_kept(tmp_path: Path) -> None:
    """A broker that crashes again and again does not fill the disk with them."""
    small_log = await make_small_log(tmp_path / "store", Durability.OS)
    last, folder = small_log.records[-1], small_log.path / "torn"
    (folder / "of-others.txt").write_bytes(b"kept")
    seen: list[Path] = []
    for _ in range(14):
        segments(small_log.path)[0].write_bytes(small_log.data[:-20] + bytes(512))
        for path in small_log.path.glob("log/*.idx"):
            path.unlink()
        await (await open_store(small_log.path)).close()
        seen += [path for path in folder.glob("*.bin") if path not in seen]
    assert len(seen) == 14
    assert sorted(folder.glob("*.bin")) == sorted(seen[-10:])
    assert all(path.stat().st_size == last.length for path in seen[-10:])
    assert (folder / "of-others.txt").exists()
