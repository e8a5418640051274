"""However much there is, the collector of garbage looks through little at a time."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from towline.broker.process.garbage_collector import ROUNDS, YOUNG, GarbageCollector


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds, callbacks = gc.get_threshold(), gc.callbacks[:]
    yield
    gc.callbacks[:] = callbacks
    gc.set_threshold(*thresholds)
    gc.unfreeze()


class Node:
    def __init__(self) -> None:
        self.me: Node | None = self


def test_what_is_looked_through_at_once_does_not_grow_with_what_there_is() -> None:
    looked: list[int] = []

    def on_collection(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            looked.append(len(gc.get_objects()))

    GarbageCollector(lambda: 1).settle()
    gc.callbacks.append(on_collection)
    kept = [[number] for number in range(40 * YOUNG)]
    assert len(looked) > 20
    assert max(looked) < (ROUNDS + 3) * YOUNG
    assert len(kept) == 40 * YOUNG


def test_cycles_that_come_and_go_are_found() -> None:
    GarbageCollector(lambda: 1).settle()
    left = weakref.WeakSet[Node]()
    kept = []
    for number in range(10 * YOUNG):
        left.add(Node())
        if number % 10 == 0:
            kept.append([number])
    assert len(left) < (ROUNDS + 3) * YOUNG


def test_cycles_that_were_set_aside_are_found_when_nobody_is_connected() -> None:
    connections = 1
    garbage = GarbageCollector(lambda: connections)
    garbage.settle()
    node = Node()
    left = weakref.ref(node)
    kept = [[number] for number in range(10 * YOUNG)]
    del node

    async def looks() -> bool:
        await garbage.look()
        return left() is None

    assert not asyncio.run(looks())
    connections = 0
    # Whoever comes and goes is not in the way of it.
    assert not asyncio.run(looks())
    assert asyncio.run(looks())
    assert len(kept) == 10 * YOUNG
