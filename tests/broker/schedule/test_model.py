"""Delayed messages against a model: never early, none lost, none doubled, whatever the clock and the broker do."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.broker.conftest import Bench, World
from tests.broker.test_recovery import crash
from tests.inside.broker import FIND_MAX
from tests.inside.frame import Frame
from tests.inside.ground import SECOND_US, ManualClock
from tests.inside.protocol import Browse, CancelDelayed, ListDelayed, MoveDelayed
from towline.model import LANES

SCALES_S = (0.01, 1, 10, 100, 300, 5_000, 100_000, 3e6, 1e8)
TOPICS = ("orders", "stock")


async def lanes(bench: Bench) -> dict[bytes, tuple[str, int, int]]:
    """Everything that is in the lanes: topic, lane and number; a message that is there twice is a fault."""
    seen: dict[bytes, tuple[str, int, int]] = {}
    for state in await bench.broker.topic_states():
        for lane in range(len(LANES)):
            at = 0
            while True:
                answer, buffers = await bench.broker.browsing.browse(
                    Browse(state.config.name, lane, "", at, 10_000, 1 << 30)
                )
                data, begin = b"".join(buffers), 0
                for part in answer.parts:
                    frame = Frame(data[begin : begin + part.length]).verify()
                    begin += part.length
                    for seq, body in enumerate(frame.bodies(part.start, part.start + part.count), part.first):
                        assert body not in seen, (body, "was delivered twice")
                        seen[body] = (state.config.name, lane, seq)
                if answer.next <= at:
                    break
                at = answer.next
    return seen


class Model:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.clock = ManualClock()
        self.due_us: dict[bytes, int] = {}
        """What waits or was delivered, and the earliest time for that."""
        self.sent_us: dict[bytes, int] = {}
        """Or moved: what is due by then is so at the next microsecond."""
        self.latest_of_us: dict[bytes, int] = {}
        """The latest time that the clock showed since."""
        self.where: dict[bytes, tuple[str, int]] = {}
        self.ids: dict[bytes, int] = {}
        self.delivered: set[bytes] = set()
        self.cancelled: set[bytes] = set()
        self.latest_us = self.clock.value_us
        self.sent = 0

    def waiting(self) -> list[bytes]:
        return [body for body in self.due_us if body not in self.delivered and body not in self.cancelled]

    async def send(self, bench: Bench) -> None:
        chance, count = self.chance, self.chance.choice((1, 1, 2, 5, 40))
        topic, lane, scale_s = chance.choice(TOPICS), chance.randrange(3), chance.choice(SCALES_S)
        bodies = [b"%d" % number for number in range(self.sent, self.sent + count)]
        self.sent += count
        now_us = self.clock.now_us()
        times = []
        for body in bodies:
            delay_us = 1_000 + round(chance.random() * scale_s * SECOND_US)
            how = chance.random()
            if how < 0.4:
                times.append(-delay_us)
                self.due_us[body] = now_us + delay_us
            elif how < 0.5:
                times.append(-1)
                self.due_us[body] = now_us + SECOND_US
            elif how < 0.6:
                times.append(chance.choice((0, 5, now_us)))
                self.due_us[body] = 0
            else:
                times.append(now_us + delay_us)
                self.due_us[body] = now_us + delay_us
            self.where[body] = topic, lane
            self.sent_us[body] = self.latest_of_us[body] = now_us
        keys = [body.decode() if chance.random() < 0.5 else None for body in bodies]
        sent = await bench.send(topic, *bodies, lane=lane, deliver_at_us=times, keys=keys, compress=count > 20)
        if sent.delayed:
            self.ids |= dict(zip(bodies, range(sent.firsts[0], sent.firsts[0] + count), strict=True))

    async def cancel(self, bench: Bench) -> None:
        body = self._some()
        if body is None:
            return
        topic, _ = self.where[body]
        by_key = self.chance.random() < 0.3
        request = CancelDelayed(topic, [], body.decode()) if by_key else CancelDelayed(topic, [self.ids[body]])
        answer = await bench.broker.delayed.cancel(request)
        if answer.count:
            assert answer.count == 1
            assert body not in self.delivered
            assert body not in self.cancelled
            self.cancelled.add(body)
        elif not by_key:
            await self.look(bench)
            assert body in self.delivered or body in self.cancelled, (body, "should have been there")
            assert answer.gone == [self.ids[body]]

    async def move(self, bench: Bench) -> None:
        body = self._some()
        if body is None:
            return
        delay_us = 1_000 + round(self.chance.random() * self.chance.choice(SCALES_S) * SECOND_US)
        request = MoveDelayed(self.where[body][0], [self.ids[body]], "", -delay_us)
        answer = await bench.broker.delayed.move(request)
        if answer.count:
            assert body not in self.delivered
            assert body not in self.cancelled
            self.due_us[body] = self.clock.now_us() + delay_us
            self.sent_us[body] = self.latest_of_us[body] = self.clock.now_us()
        else:
            await self.look(bench)
            assert body in self.delivered or body in self.cancelled

    def _some(self) -> bytes | None:
        return self.chance.choice(list(self.ids)) if self.ids else None

    async def step_clock(self, bench: Bench, seconds: float) -> None:
        self.clock.advance(seconds)
        self.latest_us = max(self.latest_us, self.clock.now_us())
        self.latest_of_us |= {one: max(self.latest_of_us[one], self.clock.now_us()) for one in self.waiting()}
        await self.look(bench)

    async def look(self, bench: Bench) -> None:
        await bench.broker.scheduler.catch_up()
        seen = await lanes(bench)
        assert self.delivered <= seen.keys(), "a message that was delivered is gone"
        for body in seen.keys() - self.delivered:
            assert body not in self.cancelled, (body, "was cancelled")
            assert self.due_us[body] <= self.latest_of_us[body], (body, "is early")
            assert seen[body][:2] == self.where[body], "topic or priority changed"
        self.delivered = set(seen)
        now_us = self.clock.now_us()
        overdue = [body for body in self.waiting() if max(self.due_us[body], self.sent_us[body] + 1) <= now_us]
        assert not overdue, (overdue, "should have been delivered")
        counts = Counter(self.where[body][0] for body in self.waiting())
        for topic in (state.config.name for state in await bench.broker.topic_states()):
            assert bench.broker.topic_state(topic).delayed == counts[topic]

    async def compare_list(self, bench: Bench) -> None:
        await self.look(bench)
        listed, after = [], (0, 0)
        while page := (await bench.broker.delayed.list(ListDelayed("", *after, 7))).messages:
            listed += page
            after = page[-1].deliver_at_us, page[-1].id
        assert [(one.deliver_at_us, one.id) for one in listed] == sorted((one.deliver_at_us, one.id) for one in listed)
        assert sorted(one.id for one in listed) == sorted(self.ids[body] for body in self.waiting())

    async def compare_arrivals(self, bench: Bench) -> None:
        """The id that each message had while it waited leads to where it is."""
        await self.look(bench)
        seen = await lanes(bench)
        for topic in {where for where, _ in self.where.values()}:
            ids = {number: body for body, number in self.ids.items() if self.where[body][0] == topic}
            sought = sorted(ids)
            found: dict[bytes, tuple[str, int, int]] = {}
            for at in range(0, len(sought), FIND_MAX):
                ask = ListDelayed(topic, max_messages=1, ids=sought[at : at + FIND_MAX], arrived=True)
                answer = await bench.broker.delayed.list(ask)
                found |= {ids[one.id]: (topic, one.lane, one.seq) for one in answer.arrived}
            assert found == {body: seen[body] for body in ids.values() if body in self.delivered}


async def _history(world: World, tmp_path: Path, seed: int, steps: int) -> None:
    model = Model(random.Random(seed))
    chance = model.chance
    async with AsyncExitStack() as stack:
        bench = await stack.enter_async_context(world.open(model.clock))
        for number in range(steps):
            match chance.choice(("send", "send", "send", "clock", "clock", "clock", "cancel", "move", "again", "tidy")):
                case "send":
                    await model.send(bench)
                case "clock":
                    back = -1 if chance.random() < 0.2 else 1
                    await model.step_clock(bench, back * chance.random() * chance.choice(SCALES_S))
                case "cancel":
                    await model.cancel(bench)
                case "move":
                    await model.move(bench)
                case "tidy":
                    await bench.broker.maintain()
                    if chance.random() < 0.3:
                        bench.broker.scheduler.rewrite_older(1 << 62)
                case "again" if world.kind == "log":
                    if chance.random() < 0.5:
                        after = crash(world, tmp_path / f"crash-{number}")
                        await stack.aclose()
                        world = after
                    await stack.aclose()
                    bench = await stack.enter_async_context(world.open(model.clock))
            if chance.random() < 0.2:
                await model.compare_list(bench)
            if chance.random() < 0.1:
                await model.compare_arrivals(bench)
        for _ in range(10):
            await model.step_clock(bench, max(SCALES_S) / 5)
        if model.clock.now_us() < model.latest_us:
            await model.step_clock(bench, (model.latest_us - model.clock.now_us()) / SECOND_US + 1)
        await model.look(bench)
        assert all(model.due_us[body] > model.clock.now_us() for body in model.waiting())
        await model.compare_arrivals(bench)


SEEDS = {"memory": 3, "log": 8, "sql": 3}
"""A crash loses what is in memory, a database is slower, and the contract of stores is tested elsewhere."""


@pytest.mark.parametrize(
    ("world", "seed"), [(kind, seed) for kind, count in SEEDS.items() for seed in range(count)], indirect=["world"]
)
def test_delayed_messages_follow_the_model(world: World, tmp_path: Path, seed: int) -> None:
    asyncio.run(_history(world, tmp_path, seed, 120))
