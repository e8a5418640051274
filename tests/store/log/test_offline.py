"""Looking into a folder from outside: counting, verifying and dumping, also while a broker writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.inside.frame import Frame
from tests.inside.store import LogStore, OfflineStreams, dump, inspect, stat, verify
from tests.store.log.small_logs import content_of, copy_of, indexes, one, open_store, put, segments
from towline.errors import NotFound
from towline.model import Durability


async def fill(path: Path) -> LogStore:
    store = await open_store(path)
    for index in range(60):
        await put(store, one("a", b"%d" % index, b"x" * 3000), one("b", b"%d" % index), durability=Durability.OS)
    await store.trim("b", 10)
    await store.retain(0, 0, {})
    return store


async def test_stat_tells_what_the_broker_would(tmp_path: Path) -> None:
    store = await fill(tmp_path)
    await store.retain(0, 150_000, {})
    for live in (True, False):
        if not live:
            await store.close()
        found = stat(tmp_path)
        assert [stream.name for stream in found.streams] == ["a", "b"]
        for stream in found.streams:
            assert (stream.first, stream.end) == store.bounds(stream.name)[:2]
        assert found.streams[0].frame_bytes == store.bounds("a").size_bytes
        assert found.streams[0].first_at_us <= found.streams[0].last_at_us
        assert sum(segment.frames for segment in found.segments) == sum(stream.frames for stream in found.streams)
        assert [segment.sealed for segment in found.segments][:3] == [True, True, False]


async def test_stat_does_without_indexes(tmp_path: Path) -> None:
    store = await fill(tmp_path)
    await store.close()
    before = stat(tmp_path).streams
    for index in indexes(tmp_path):
        index.unlink()
    assert stat(tmp_path).streams == before


async def test_verify_finds_nothing_wrong_with_a_good_log(tmp_path: Path) -> None:
    store = await fill(tmp_path)
    for live in (True, False):
        if not live:
            await store.close()
        told: list[tuple[int, int]] = []
        report = verify(tmp_path, lambda done, total, told=told: told.append((done, total)))  # type: ignore[misc]
        assert report.sound
        assert (report.frames, report.messages, report.records) == (120, 180, 121)
        assert report.torn_tail is None
        assert report.unindexed == []
        assert told[-1][0] == told[-1][1]


async def test_verify_names_file_place_and_reason(tmp_path: Path) -> None:
    store = await fill(tmp_path)
    await store.close()
    second, third, last = segments(tmp_path)[1], segments(tmp_path)[2], segments(tmp_path)[-1]
    data = bytearray(second.read_bytes())
    hit = data.index(b"x" * 100)
    data[hit] ^= 1
    second.write_bytes(data)
    data = bytearray(third.read_bytes())
    data[0] ^= 1
    third.write_bytes(data)
    last.write_bytes(last.read_bytes() + b"half a record")
    indexes(tmp_path)[0].unlink()
    report = verify(tmp_path)
    assert not report.sound
    first, *rest = report.damages
    assert (first.path, "fails its checksum" in first.reason) == (second, True)
    assert first.position <= hit < first.position + first.length
    assert any(
        (damage.path, damage.position, damage.reason) == (third, 0, "these bytes are no record") for damage in rest
    )
    assert report.torn_tail is not None
    assert (report.torn_tail.path, report.torn_tail.length) == (last, 13)
    assert [path.name for path in report.unindexed] == ["00000000000000000001.idx"]


async def test_dump_gives_frames_in_order_and_can_begin_anywhere(tmp_path: Path) -> None:
    store = await fill(tmp_path)
    content = await content_of(store)
    for live in (True, False):
        if not live:
            await store.close()
        everything = list(dump(tmp_path))
        assert [frame.stream for frame in everything] == ["a", "b"] * 60
        assert [frame.appended_at_us for frame in everything] == sorted(frame.appended_at_us for frame in everything)
        only = list(dump(tmp_path, "a", first=51, limit=5))
        assert [(frame.first, frame.count) for frame in only] == [(50 + 2 * index, 2) for index in range(5)]
        assert Frame(only[0].frame).verify().bodies() == [content.bodies["a"][50], content.bodies["a"][51]]
        assert only[0].source == b"\x7f\0\0\1"
        assert len(list(dump(tmp_path, limit=7))) == 7
        assert list(dump(tmp_path, "nobody")) == []


async def test_the_tools_follow_a_broker_that_writes(tmp_path: Path) -> None:
    store = await open_store(tmp_path)

    async def write_during(look: Callable[[], None]) -> None:
        looking = asyncio.create_task(asyncio.to_thread(look))
        for _ in range(60):
            for _ in range(20):
                store.append([one("a", b"x" * 900), one("b", b"y"), one("c", b"z" * 100)], Durability.OS)
            await store.append([], Durability.OS).done
            if looking.done():
                break
        await looking

    def look() -> None:
        assert verify(tmp_path).damages == []
        seen = [frame.first for frame in dump(tmp_path)]
        assert seen == [index // 3 for index in range(len(seen))]

    def look_while_segments_go() -> None:
        assert verify(tmp_path).damages == []
        assert [stream.name for stream in stat(tmp_path).streams] == ["a", "b", "c"]
        assert all(frame.stream == "b" for frame in dump(tmp_path, "b", limit=100))

    for _ in range(8):
        await write_during(look)
    for _ in range(8):
        await asyncio.gather(write_during(look_while_segments_go), store.retain(0, 200_000, {}))
    await store.close()


@pytest.mark.parametrize("look", ["dump", "outside"])
def test_what_is_written_while_going_on_to_the_next_segment_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """The broker fills the segment and goes on in the next, after we saw that nothing is in that."""

    async def write() -> None:
        store = await open_store(tmp_path)
        while len(segments(tmp_path)) < 3:
            await put(store, one("a", b"x" * 900), durability=Durability.OS)
        await store.close()

    asyncio.run(write())
    for index in indexes(tmp_path):
        index.unlink()
    later = segments(tmp_path)[:2]
    frames = [frame for frame in dump(tmp_path) if frame.segment == 1]
    whole = [path.read_bytes() for path in later]
    cut = frames[-10].position
    later[0].write_bytes(whole[0][:cut] + bytes(len(whole[0]) - cut))
    for path in segments(tmp_path)[1:]:
        path.write_bytes(bytes(path.stat().st_size))
    really_left = inspect._is_left
    asked = 0

    def is_left(folder: Path, number: int) -> bool:
        nonlocal asked
        asked += 1
        left = really_left(folder, number)
        if asked == 2:
            for path, data in zip(later, whole, strict=True):
                path.write_bytes(data)
        return left

    monkeypatch.setattr(inspect, "_is_left", is_left)
    if look == "dump":
        seen = [frame.first for frame in dump(tmp_path)]
        assert seen == list(range(len(frames) - 10))
        assert len(list(dump(tmp_path))) > len(frames)
    else:
        outside = OfflineStreams(tmp_path, lambda _: True)
        assert outside.look()["a"].end == len(frames) - 10
        assert outside.look()["a"].end > len(frames)


async def test_a_unit_that_is_not_whole_is_not_dumped(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "store")
    await put(store, one("a", b"1"))
    await put(store, one("a", b"2"), one("a", b"3"))
    copy = copy_of(tmp_path / "store", tmp_path / "copy")
    await store.close()
    log = segments(copy)[0]
    log.write_bytes(log.read_bytes()[:400])
    assert [frame.first for frame in dump(copy)] == [0]
    report = verify(copy)
    assert report.sound
    assert report.torn_tail is not None


def test_another_folder_is_refused(tmp_path: Path) -> None:
    for look in (stat, verify, lambda path: list(dump(path))):
        with pytest.raises(NotFound, match="is not the folder of a log store"):
            look(tmp_path)
