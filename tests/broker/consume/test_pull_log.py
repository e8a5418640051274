"""A pull is in its log a moment after its answer, in order, or nothing more is granted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.broker.conftest import ACK, World
from tests.inside.broker import LATE_S, PullLog
from tests.inside.delivery import Acked, Event, Part, Pulled, decode_event
from tests.inside.frame import BODY, Frame
from tests.inside.ground import SYSTEM, SteadyClock
from tests.inside.store import MemoryStore
from towline.errors import DiskFull
from towline.model import Durability


def _pulled(number: int) -> Pulled:
    return Pulled(1, number, "c", 0, (Part(0, number, 1, 1),))


async def test_a_late_pull_is_written_by_itself_and_before_what_follows() -> None:
    applied: list[Event] = []
    log = PullLog(MemoryStore(), "pull/t/g", SteadyClock(SYSTEM), applied.append)
    log.append_soon(_pulled(1))
    while not log._store.bounds("pull/t/g").end:
        await asyncio.sleep(0)
    log.append_soon(_pulled(2))
    appended = log.append([Acked(2, 2, (Part(0, 2, 1, 1),))], Durability.OS)
    assert appended.firsts == (1,)
    assert log.position == 3
    (chunk,) = (await log._store.read("pull/t/g", 1, 10, 1 << 20)).chunks
    events = [decode_event(body) for body in Frame(chunk.frame).texts(BODY) or ()]
    assert [type(event) for event in events] == [Pulled, Acked], "in the order in which they were applied"
    assert [_pulled(1), *events] == applied, "each once"


async def test_nothing_more_is_granted_while_pulls_cannot_be_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    applied: list[Event] = []
    log = PullLog(store, "pull/t/g", SteadyClock(SYSTEM), applied.append)

    def refuse(*_: object) -> None:
        raise DiskFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(store, "append", refuse)
        log.append_soon(_pulled(1))
        while not log._failed:
            await asyncio.sleep(0)
        with pytest.raises(DiskFull):
            log.append_soon(_pulled(2))
    log.append_soon(_pulled(3))
    assert log.position == 2, "the first and the third, and the second was not granted"
    assert applied == [_pulled(1), _pulled(3)]


async def test_a_deleted_group_leaves_no_late_events_behind(tmp_path: Path) -> None:
    async with World("log", tmp_path).open() as bench:
        await bench.send("orders", b"a", b"b")
        member = await bench.attach()
        await bench.act(member, ACK, await bench.pull(member, 1))
        await bench.pull(member, 1)
        await bench.broker.groups.delete("orders", "billing")
        await asyncio.sleep(2 * LATE_S)
        first, end, _ = bench.store.bounds("pull/orders/billing")
        assert first == end
