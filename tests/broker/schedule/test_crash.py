"""A crash at any step of a delayed message's life neither loses nor doubles it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.broker.conftest import Bench, World
from tests.broker.schedule.test_model import lanes
from tests.broker.test_recovery import crash
from tests.inside.broker import producers
from tests.inside.frame import encode
from tests.inside.ground import SECOND_US, ManualClock
from tests.inside.protocol import CancelDelayed, MoveDelayed
from tests.inside.store import Append, Appended
from towline.model import Durability

HOUR_S = 3600.0
YEAR_S = 400 * 86400.0


class Moment(NamedTuple):
    """What a crash left, and what clients had been told by then."""

    world: World
    now_us: int
    acknowledged: frozenset[bytes]
    cancelled: frozenset[bytes]
    cancelling: frozenset[bytes]


class Story:
    """A life of delayed messages, with a copy of the folder made after everything that was written."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.folder = folder
        self.clock = ManualClock()
        self.moments: list[Moment] = []
        self.sent: set[bytes] = set()
        self.acknowledged: set[bytes] = set()
        self.cancelling: set[bytes] = set()
        self.cancelled: set[bytes] = set()

    def watch(self, bench: Bench) -> None:
        append = bench.store.append

        def watched(unit: Sequence[Append], durability: Durability) -> Appended:
            appended = append(unit, durability)
            appended.done.add_done_callback(lambda _: self.copy())
            return appended

        bench.store.append = watched  # type: ignore[method-assign]

    def copy(self) -> None:
        world = crash(self.world, self.folder / str(len(self.moments)))
        told = frozenset(self.acknowledged), frozenset(self.cancelled), frozenset(self.cancelling)
        self.moments.append(Moment(world, self.clock.now_us(), *told))

    async def send(self, bench: Bench, name: str, *delays_s: float, seq: int = 0) -> int:
        bodies = [f"{name}-{number}".encode() for number in range(len(delays_s))]
        self.sent |= set(bodies)
        times = [-round(delay_s * 1_000_000) for delay_s in delays_s]
        frame = encode(
            bodies, keys=[name] * len(bodies), deliver_at_us=times, producer_id=9 if seq else 0, producer_seq=seq
        )
        sent = await bench.broker.send([("orders", 0, frame)])
        self.acknowledged |= set(bodies)
        return sent.firsts[0]

    async def cancel(self, bench: Bench, number: int, body: bytes) -> None:
        self.cancelling.add(body)
        assert (await bench.broker.delayed.cancel(CancelDelayed("orders", [number]))).count == 1
        self.cancelled.add(body)

    async def pass_time(self, bench: Bench, *steps_s: float) -> None:
        for step_s in steps_s:
            self.clock.advance(step_s)
            await bench.broker.scheduler.catch_up()


async def _tell(story: Story) -> None:
    async with story.world.open(story.clock) as bench:
        story.watch(bench)
        first = await story.send(bench, "mixed", 0.5, 30, 600, HOUR_S, 30 * HOUR_S, YEAR_S, 10 * YEAR_S, seq=1)
        second = await story.send(bench, "hours", 5 * HOUR_S, 5 * HOUR_S, 5 * HOUR_S + 1, seq=2)
        await story.pass_time(bench, 1, 30)
        await story.cancel(bench, first + 2, b"mixed-2")
        await bench.broker.maintain()
        await story.pass_time(bench, 600, HOUR_S)
        await story.cancel(bench, second, b"hours-0")
        assert (await bench.broker.delayed.move(MoveDelayed("orders", [second + 1], "", -90_000_000))).count == 1
        await story.pass_time(bench, 80, 20)
        await story.send(bench, "late", 0.01, 0.02, 1.5, seq=3)
        await bench.broker.maintain()
        await story.pass_time(bench, 0.5, 3, 4 * HOUR_S, 40 * HOUR_S)
        bench.broker.scheduler.rewrite_older(1 << 62)
        await story.pass_time(bench, 1, 200 * HOUR_S, YEAR_S, YEAR_S)
        await bench.broker.maintain()
        await story.pass_time(bench, 9 * YEAR_S)
        seen = await lanes(bench)
    assert seen.keys() == story.sent - story.cancelled


def test_a_crash_after_any_write_neither_loses_nor_doubles_a_delayed_message(
    disk: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "SILENT_US", 100 * round(YEAR_S) * SECOND_US)  # the story lasts for years
    story = Story(disk, tmp_path)

    async def resume(moment: Moment) -> None:
        clock = ManualClock(moment.now_us)
        async with moment.world.open(clock) as bench:
            for step_s in (0.0, 100.0, 10 * HOUR_S, 10 * HOUR_S, YEAR_S, 11 * YEAR_S):
                clock.advance(step_s)
                await bench.broker.scheduler.catch_up()
                seen = (await lanes(bench)).keys()
            assert moment.acknowledged - moment.cancelling <= seen, "lost"
            assert seen <= story.sent, "invented"
            assert not moment.cancelled & seen, "cancelled and delivered"
            # Sent again after the crash, because the answer was lost: known again if it was there.
            for name, seq, count in (("mixed", 1, 7), ("hours", 2, 3), ("late", 3, 3)):
                if f"{name}-0".encode() in moment.acknowledged:
                    bodies = [f"{name}-{number}".encode() for number in range(count)]
                    frame = encode(bodies, deliver_at_us=[-1_000_000] * count, producer_id=9, producer_seq=seq)
                    again = await bench.broker.send([("orders", 0, frame)])
                    assert again.duplicate
                    assert again.delayed == [0]

    async def main() -> None:
        await _tell(story)
        assert len(story.moments) > 40
        for moment in story.moments:
            await resume(moment)

    asyncio.run(main())


async def test_without_its_document_the_schedule_comes_back_from_its_streams(disk: World, tmp_path: Path) -> None:
    clock = ManualClock()
    async with disk.open(clock) as bench:
        for delay_s in (1, 50, 5_000, 500_000):
            body = b"%d" % delay_s
            await bench.send("orders", body, deliver_at_us=[-delay_s * 1_000_000])
        clock.advance(60)
        await bench.broker.scheduler.catch_up()
        await bench.broker.maintain()
        clock.advance(5_000)
        await bench.broker.scheduler.catch_up()
        await bench.broker.maintain()
    folder = Path(disk.store_url.removeprefix("file:")) / "config"
    for document in folder.glob("delayOffset*"):
        document.unlink()
    async with disk.open(clock) as bench:
        await bench.broker.scheduler.catch_up()
        assert (await lanes(bench)).keys() == {b"1", b"50", b"5000"}
        clock.advance(500_000)
        await bench.broker.scheduler.catch_up()
        assert (await lanes(bench)).keys() == {b"1", b"50", b"5000", b"500000"}
