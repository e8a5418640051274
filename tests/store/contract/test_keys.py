"""Every store finds records by their key."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.inside.frame import encode
from tests.inside.store import Append, Store
from tests.store.contract.stores import Stores
from towline.model import Durability

KEYS = ["a", "aa", "aaa", "b", "ba", "ä", "long-" * 20, None]


async def put(store: Store, stream: str, keys: Sequence[str | None], *, compress: bool = False) -> None:
    # The bodies hold keys as well: only the column of the keys counts.
    bodies = [b"aa b ba" for _ in keys]
    frame = encode(bodies, keys=list(keys) if any(keys) else None, compress=compress)
    await store.append([Append(stream, frame, len(keys))], Durability.OS).done


@pytest.mark.parametrize("compress", [False, True])
async def test_the_first_record_with_a_key_is_located(stores: Stores, compress: bool) -> None:
    async with stores.open() as store:
        await put(store, "s", ["x", "aa", "a", "aa"], compress=compress)
        await put(store, "s", [None, None])
        await put(store, "t", ["a"])
        await put(store, "s", ["a", "é"], compress=compress)
        assert await store.locate("s", 0, 0, b"aa") == 1
        assert await store.locate("s", 0, 2, b"aa") == 3
        assert await store.locate("s", 0, 4, b"aa") == 8
        assert await store.locate("s", 0, 0, b"a") == 2
        assert await store.locate("s", 0, 3, b"a") == 6
        assert await store.locate("s", 0, 0, "é".encode()) == 7
        assert await store.locate("s", 0, 0, b"b") == 8
        assert await store.locate("s", 0, 100, b"a") == 8
        assert await store.locate("never", 0, 0, b"a") == 0
        assert await store.locate("s", 0, 5) == 5
        assert await store.locate("s", 0, 100) == 8
        await store.trim("s", 3)
        assert await store.locate("s", 0, 0, b"a") == 6


async def test_keys_are_located_from_a_time_on(stores: Stores) -> None:
    async with stores.open() as store:
        await put(store, "s", ["a"])
        stores.clock.advance(10)
        now_us = stores.clock.now_us()
        await put(store, "s", ["b", "a"])
        assert await store.locate("s", now_us, 0, b"a") == 2
        assert await store.locate("s", now_us + 1, 0, b"a") == 3


async def test_keys_are_located_as_by_reading_all(stores: Stores) -> None:
    chance = random.Random(7)
    async with stores.open() as store:
        written: dict[str, list[str | None]] = {"s": [], "t": []}
        for _ in range(300):
            name = chance.choice("st")
            keys = [chance.choice(KEYS) for _ in range(chance.randint(1, 20))]
            await put(store, name, keys, compress=chance.random() < 0.1)
            written[name] += keys
        for name, all_keys in written.items():
            for key in KEYS[:-1]:
                assert key is not None
                for first in (0, len(all_keys) // 3, len(all_keys) - 5):
                    expected = next((n for n in range(first, len(all_keys)) if all_keys[n] == key), len(all_keys))
                    assert await store.locate(name, 0, first, key.encode()) == expected, (name, key, first)
