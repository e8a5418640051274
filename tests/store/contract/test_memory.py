"""What only the store in memory does: it is full until something is trimmed."""

from __future__ import annotations

import pytest

from tests.inside.frame import encode_events
from tests.inside.ground import ManualClock
from tests.inside.store import Append, MemoryStore
from tests.store.contract.stores import frame_of, put
from towline.errors import QueueFull, TooLarge
from towline.model import Durability


async def test_a_store_in_memory_names_stream_and_capacity_when_it_is_full() -> None:
    store = MemoryStore(capacity_messages=10, clock=ManualClock())
    await put(store, "lane/a/high", frame_of(10)).done
    with pytest.raises(QueueFull, match=r"lane/b/low.*10 messages.*raise the capacity"):
        put(store, "lane/b/low", frame_of(1))
    with pytest.raises(TooLarge, match="10 messages"):
        put(store, "lane/b/low", frame_of(11))
    await store.trim("lane/a/high", 9)
    with pytest.raises(QueueFull):
        put(store, "lane/b/low", frame_of(1))
    await store.trim("lane/a/high", 10)
    assert put(store, "lane/b/low", frame_of(10)).firsts == (0,)


async def test_the_reserve_of_a_store_in_memory_ends_too() -> None:
    store = MemoryStore(capacity_bytes=8000, clock=ManualClock())
    put(store, "a", frame_of(1, 7500))
    event = Append("pull", encode_events([b"x" * 400]), 1, control=True)
    for _ in range(2):
        store.append([event], Durability.OS)
    with pytest.raises(QueueFull):
        store.append([event, event], Durability.OS)
    assert 8000 < store.bounds("a").size_bytes + store.bounds("pull").size_bytes <= 9000
    await store.retain(0, 4000, {})
    put(store, "a", frame_of(1, 3000))


async def test_control_records_do_not_count_as_messages() -> None:
    store = MemoryStore(capacity_messages=1, clock=ManualClock())
    for _ in range(5):
        store.append([Append("pull", encode_events([b"x", b"y"]), 2, control=True)], Durability.OS)
    put(store, "a", frame_of(1))
    with pytest.raises(QueueFull):
        put(store, "a", frame_of(1))


async def test_a_unit_over_capacity_and_reserve_never_fits() -> None:
    store = MemoryStore(capacity_bytes=8000, clock=ManualClock())
    events = Append("pull", encode_events([b"x" * 4600]), 1, control=True)
    store.append([events], Durability.OS)
    with pytest.raises(TooLarge):
        store.append([events, events], Durability.OS)


async def test_what_a_pin_holds_is_no_matter_if_others_make_enough_room() -> None:
    store = MemoryStore(clock=ManualClock())
    for name in "ab":
        put(store, name, frame_of(1, 1000))
    limit = store.bounds("a").size_bytes
    assert (await store.retain(0, limit, {"a": 0}))[:2] == (limit, "")
    assert (store.bounds("a").first, store.bounds("b").first) == (0, 1)
    trimmed = await store.retain(0, 1, {"a": 0})
    assert trimmed == (0, "record 0 of stream a is still needed", ("a",), limit - 1)
