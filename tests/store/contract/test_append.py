"""The contract of a store, `towline/store/spi.py`, sentence by sentence, on every store: appending, documents, closing.

Reading is in `test_store_reading`, trimming and retention are in `test_store_trimming`.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.inside.frame import Frame, encode_events
from tests.inside.ground import SECOND_US
from tests.inside.store import Append, Chunk, Store
from tests.store.contract.stores import (
    ALL,
    LIMIT_BYTES,
    SEGMENT_BYTES,
    Stores,
    all_bodies,
    bodies_of,
    fill,
    frame_of,
    put,
    read_on,
)
from towline.errors import Closed, QueueFull, TooLarge
from towline.model import Durability

# --- streams and numbers ----------------------------------------------------------------------------------------------


async def test_a_stream_comes_to_be_by_the_first_append_to_it(stores: Stores) -> None:
    async with stores.open() as store:
        assert store.streams() == []
        store.bounds("a")
        await store.read("a", 0, 1, 1)
        await store.locate("a", 0)
        await store.trim("a", 5)
        assert store.streams() == []
        await put(store, "a", frame_of(1)).done
        assert store.streams() == ["a"]


async def test_records_are_numbered_from_0_without_a_gap(stores: Stores) -> None:
    async with stores.open() as store:
        firsts = [put(store, "a", frame_of(count)).firsts for count in (1, 5, 2, 1)]
        assert firsts == [(0,), (1,), (6,), (8,)]


async def test_each_stream_has_numbers_of_its_own(stores: Stores) -> None:
    async with stores.open() as store:
        assert put(store, "a", frame_of(3)).firsts == (0,)
        assert put(store, "b", frame_of(2)).firsts == (0,)
        assert put(store, "a", frame_of(1)).firsts == (3,)


async def test_numbers_are_given_in_the_order_of_the_calls_whatever_the_durability(stores: Stores) -> None:
    async with stores.open() as store:
        asked = [Durability(index % 3) for index in range(30)]
        appended = [put(store, "a", frame_of(2, mark=str(index)), durability=how) for index, how in enumerate(asked)]
        assert [answer.firsts for answer in appended] == [(2 * index,) for index in range(30)]
        await store.append([], Durability.FSYNC).done
        bodies = await all_bodies(store, "a")
        assert [int(body.partition(b":")[0]) for body in bodies] == [index for index in range(30) for _ in "xx"]


async def test_a_unit_may_hold_frames_of_several_streams(stores: Stores) -> None:
    async with stores.open() as store:
        await fill(store, "b", 4)
        unit = [
            Append("a", frame_of(2, mark="1"), 2),
            Append("b", frame_of(3, mark="2"), 3),
            Append("c", frame_of(1, mark="3"), 1),
        ]
        appended = store.append(unit, Durability.FSYNC)
        assert appended.firsts == (0, 4, 0)
        await appended.done
        for append, first in zip(unit, appended.firsts, strict=True):
            read = await store.read(append.stream, first, ALL, ALL)
            assert bodies_of(read.chunks) == Frame(append.frame).bodies()


async def test_a_unit_may_hold_several_frames_of_one_stream(stores: Stores) -> None:
    async with stores.open() as store:
        appended = put(store, "a", frame_of(2, mark="1"), frame_of(1, mark="2"), frame_of(3, mark="3"))
        assert appended.firsts == (0, 2, 3)
        await appended.done
        assert store.bounds("a").end == 6
        assert [chunk.count for chunk in (await store.read("a", 0, ALL, ALL)).chunks] == [2, 1, 3]


async def test_a_frame_comes_back_byte_for_byte_with_its_time_and_source(stores: Stores) -> None:
    async with stores.open() as store:
        frame, source = frame_of(3), bytes(range(16))
        appended = store.append([Append("a", frame, 3, source)], Durability.OS)
        await appended.done
        assert appended.at_us == stores.clock.now_us()
        (chunk,) = (await store.read("a", 0, ALL, ALL)).chunks
        assert chunk == Chunk(0, 3, 0, bytes(chunk.frame), appended.at_us, source, chunk.serial)
        assert bytes(chunk.frame) == frame


@pytest.mark.parametrize("source", [b"", b"\x7f\x00\x00\x01", b"\0" * 4, b"\0" * 16, bytes(range(16))])
async def test_a_source_keeps_its_length(stores: Stores, source: bytes) -> None:
    async with stores.open() as store:
        await store.append([Append("a", frame_of(1), 1, source)], Durability.OS).done
        assert (await store.read("a", 0, 1, 1)).chunks[0].source == source


async def test_a_view_of_a_buffer_can_be_appended_and_the_buffer_used_again_when_done(stores: Stores) -> None:
    async with stores.open() as store:
        frame = frame_of(3)
        buffer = bytearray(b"before" + frame + b"behind")
        await store.append([Append("a", memoryview(buffer)[6:-6], 3)], Durability.OS).done
        buffer[:] = bytes(len(buffer))
        (chunk,) = (await store.read("a", 0, ALL, ALL)).chunks
        assert bytes(chunk.frame) == frame


async def test_control_frames_are_read_like_any_other(stores: Stores) -> None:
    async with stores.open() as store:
        await store.append([Append("pull/a/g", encode_events([b"pulled"]), 1, control=True)], Durability.OS).done
        assert await all_bodies(store, "pull/a/g") == [b"pulled"]


@pytest.mark.parametrize("name", ["a", "lane/orders/high", "pull/o.r_d-ers/~me", "x" * 120])
async def test_any_name_of_the_model_is_a_streams_name(stores: Stores, name: str) -> None:
    async with stores.open() as store:
        await put(store, name, frame_of(1)).done
        assert store.streams() == [name]
        assert store.bounds(name).end == 1


# --- durability -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", Durability)
async def test_done_resolves_and_then_the_unit_is_readable(stores: Stores, durability: Durability) -> None:
    async with stores.open() as store:
        await put(store, "a", frame_of(2), durability=durability).done
        # With RECEIVED the write follows by itself, so a barrier is needed to know that it did.
        await store.append([], durability).done
        await store.append([], Durability.OS).done
        assert store.bounds("a").end == 2
        assert len(await all_bodies(store, "a")) == 2


async def test_with_received_done_is_resolved_already(stores: Stores) -> None:
    async with stores.open() as store:
        assert put(store, "a", frame_of(1), durability=Durability.RECEIVED).done.done()


async def test_an_empty_unit_is_a_barrier_for_all_before_it(stores: Stores) -> None:
    async with stores.open() as store:
        before = [
            put(store, f"s{index % 3}", frame_of(1, 2000), durability=Durability(index % 3)) for index in range(60)
        ]
        barrier = store.append([], Durability.FSYNC)
        assert barrier.firsts == ()
        await barrier.done
        assert all(appended.done.done() for appended in before)
        assert [store.bounds(f"s{index}").end for index in range(3)] == [20, 20, 20]


async def test_a_barrier_on_an_empty_store_resolves(stores: Stores) -> None:
    async with stores.open() as store:
        for durability in Durability:
            await store.append([], durability).done
        assert store.streams() == []


@pytest.mark.parametrize("durability", Durability)
async def test_done_of_appends_to_a_stream_resolves_in_order(stores: Stores, durability: Durability) -> None:
    async with stores.open() as store:
        resolved: list[int] = []
        waiting = []
        for index in range(200):
            done = put(store, "a", frame_of(1, 1000), durability=durability).done
            done.add_done_callback(lambda _, index=index: resolved.append(index))  # type: ignore[misc]
            waiting.append(done)
        await asyncio.gather(*waiting)
        await asyncio.sleep(0)
        assert resolved == list(range(200))


async def test_what_is_not_yet_readable_is_not_counted_either(stores: Stores) -> None:
    async with stores.open() as store:
        for index in range(50):
            appended = put(store, "a", frame_of(3, mark=str(index)), durability=Durability.FSYNC)
            end = store.bounds("a").end
            assert end <= 3 * (index + 1)
            read = await store.read("a", 0, ALL, ALL)
            assert end <= read.next <= store.bounds("a").end, (
                "all that was counted is read, and no more than is counted"
            )
            await appended.done
            assert store.bounds("a").end == 3 * (index + 1)


async def test_reading_while_appending_gives_every_record_once_and_in_order(stores: Stores) -> None:
    async with stores.open() as store:
        total = 600

        async def write() -> None:
            for index in range(0, total, 3):
                appended = put(store, "a", frame_of(3, 300, str(index)), durability=Durability(index % 3))
                if index % 5 == 0:
                    await appended.done
                await put(store, "noise", frame_of(1, 500)).done

        async def follow() -> list[bytes]:
            bodies: list[bytes] = []
            while len(bodies) < total:
                read = await store.read("a", len(bodies), 7, 2000)
                assert read.next == len(bodies) + sum(chunk.count for chunk in read.chunks)
                bodies += bodies_of(read.chunks)
                await asyncio.sleep(0)
            return bodies

        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            followers = [tasks.create_task(follow()) for _ in range(3)]
        expected = [body for index in range(0, total, 3) for body in Frame(frame_of(3, 300, str(index))).bodies()]
        assert all(follower.result() == expected for follower in followers)


# --- no room ----------------------------------------------------------------------------------------------------------


async def test_a_unit_that_never_fits_is_too_large_and_takes_no_numbers(stores: Stores) -> None:
    async with stores.open() as store:
        large = frame_of(2, LIMIT_BYTES)
        with pytest.raises(TooLarge):
            store.append([Append("a", frame_of(1), 1), Append("b", large, 2)], Durability.OS)
        assert put(store, "a", frame_of(1)).firsts == (0,)
        assert store.streams("b") == []


async def test_a_frame_larger_than_a_segment_fits(stores: Stores) -> None:
    async with stores.open() as store:
        await put(store, "a", frame_of(1)).done
        await put(store, "a", frame_of(3, SEGMENT_BYTES)).done
        await put(store, "a", frame_of(1)).done
        assert [len(body) for body in await all_bodies(store, "a")] == [20, *[SEGMENT_BYTES] * 3, 20]


def fill_up(store: Store) -> None:
    """Append without waiting until the store has no room."""
    for _ in range(2 * LIMIT_BYTES // 10_000):
        try:
            put(store, "a", frame_of(1, 10_000), durability=Durability.FSYNC)
        except QueueFull:
            return
    pytest.fail("the store takes more than its limit")


async def test_a_full_store_refuses_before_it_numbers_and_recovers(stores: Stores) -> None:
    async with stores.open() as store:
        fill_up(store)
        await store.append([], Durability.FSYNC).done
        end = store.bounds("a").end
        # A log store is full only while writes wait; one in memory until something is trimmed.
        await store.trim("a", end)
        appended = put(store, "a", frame_of(1, 10_000))
        assert appended.firsts == (end,)
        await appended.done


async def test_control_frames_are_taken_when_the_store_is_full(stores: Stores) -> None:
    async with stores.open() as store:
        fill_up(store)
        ack = Append("pull/a/g", encode_events([b"acked"]), 1, control=True)
        appended = [store.append([ack], Durability.OS) for _ in range(10)]
        await asyncio.gather(*(answer.done for answer in appended))
        assert store.bounds("pull/a/g").end == 10


# --- documents --------------------------------------------------------------------------------------------------------


async def test_a_document_that_was_never_saved_is_none(stores: Stores) -> None:
    async with stores.open() as store:
        assert await store.load("topics.json") is None


@pytest.mark.parametrize("document", [b"", b"{}", bytes(range(256)) * 1000])
async def test_a_saved_document_is_loaded_as_it_was(stores: Stores, document: bytes) -> None:
    async with stores.open() as store:
        await store.save("topics.json", document)
        assert await store.load("topics.json") == document


async def test_saving_replaces_only_the_document_of_that_name(stores: Stores) -> None:
    async with stores.open() as store:
        names = ["topics.json", "consumerOffset.json", "a-b.c", "Z9"]
        for name in names:
            await store.save(name, f"old {name}".encode())
        await store.save("a-b.c", b"new")
        assert [await store.load(name) for name in names] == [
            b"old topics.json",
            b"old consumerOffset.json",
            b"new",
            b"old Z9",
        ]


async def test_documents_are_no_streams(stores: Stores) -> None:
    async with stores.open() as store:
        await store.save("a", b"document")
        assert store.streams() == []
        await put(store, "b", frame_of(1)).done
        assert await store.load("b") is None


# --- close and reopen -------------------------------------------------------------------------------------------------


async def test_a_second_close_does_nothing(stores: Stores) -> None:
    store = await stores.make()
    await put(store, "a", frame_of(1)).done
    await store.close()
    await store.close()


async def test_a_closed_store_takes_no_appends(stores: Stores) -> None:
    store = await stores.make()
    await store.close()
    with pytest.raises(Closed):
        put(store, "a", frame_of(1))


async def test_close_waits_for_all_that_was_appended(stores: Stores) -> None:
    store = await stores.make()
    appended = [put(store, "a", frame_of(1, 1000), durability=Durability(index % 3)) for index in range(100)]
    await store.close()
    assert all(answer.done.done() and answer.done.exception() is None for answer in appended)


async def test_all_that_was_appended_before_close_is_there_after_it(durable_stores: Stores) -> None:
    store = await durable_stores.make()
    frames = [frame_of(2, 1000, str(index)) for index in range(200)]
    for index, frame in enumerate(frames):
        put(store, "a", frame, durability=Durability(index % 3))
    await store.close()
    async with durable_stores.open() as store:
        assert await all_bodies(store, "a") == [body for frame in frames for body in Frame(frame).bodies()]


async def snapshot(store: Store, times: range) -> dict[str, object]:
    """All that can be asked of a store."""
    state: dict[str, object] = {"streams": store.streams(), "documents": [await store.load(name) for name in "xyz"]}
    for name in store.streams():
        chunks = [
            (c.first, c.count, c.start, bytes(c.frame), c.appended_at_us, c.source) for c in await read_on(store, name)
        ]
        state[name] = (store.bounds(name), chunks, [await store.locate(name, time) for time in times])
    return state


async def test_everything_is_equal_after_every_restart(durable_stores: Stores) -> None:
    begin = durable_stores.clock.now_us()
    times = range(begin, begin + 100 * SECOND_US, SECOND_US)
    async with durable_stores.open() as store:
        for index in range(90):
            durable_stores.clock.advance(1)
            unit = [
                Append(f"s{index % 7}", frame_of(1 + index % 4, 900, str(index)), 1 + index % 4, bytes([index] * 4)),
                Append(f"pull/{index % 3}", encode_events([b"event"]), 1, control=True),
            ]
            await store.append(unit, Durability(index % 3)).done
        await store.save("x", b"document")
        await store.trim("s3", 11)
        await store.trim("s4", 1 << 30)
        await store.append([], Durability.OS).done
        before = await snapshot(store, times)
    for _ in range(3):
        async with durable_stores.open() as store:
            assert await snapshot(store, times) == before


async def test_appending_goes_on_after_a_restart(durable_stores: Stores) -> None:
    bodies: list[bytes] = []
    for restart in range(6):
        async with durable_stores.open() as store:
            for index in range(10):
                frame = frame_of(3, 1000, f"{restart}-{index}")
                bodies += Frame(frame).bodies()
                await put(store, "a", frame, durability=Durability(index % 3)).done
            await store.append([], Durability.OS).done
            assert await all_bodies(store, "a") == bodies
