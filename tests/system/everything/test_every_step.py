"""A crash at every single step. One story has transactions, delayed messages and retries in it. Before each write and
in the middle of it, and before each sync, the broker is killed, and its power is cut. What is left is what was true
before the act under way, or after it: whole or absent, and everything once."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.broker.conftest import ACK, DEAD, NACK
from tests.inside.protocol import Act, CancelDelayed, Decide, MoveDelayed, Resend
from tests.store.log.test_power_cut import PowerCutIo
from tests.system.everything.crashable_broker import Plant, frames_of
from tests.system.everything.machine import Drawn, Machine
from tests.system.everything.model import Key, Model

MAIL: Key = ("orders", "mail")
TRAIL: Key = ("trail", "billing")
ONCE: Key = ("stock", "once")


class SteppingIo(PowerCutIo):
    """A disk that tells of everything that is about to happen to it, and tears every write in two."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.on_step: Callable[[], None] = lambda: None

    def pwritev(self, fd: int, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> int:
        self.on_step()
        whole = b"".join(buffers)
        if len(whole) > 1:
            super().pwritev(fd, [whole[: len(whole) // 2]], position)
            self.on_step()
        return super().pwritev(fd, buffers, position)

    def fdatasync(self, fd: int) -> None:
        self.on_step()
        super().fdatasync(fd)

    def fsync(self, fd: int) -> None:
        self.on_step()
        super().fsync(fd)


class Moment(NamedTuple):
    """What a crash left, when it was, and what may be true of it."""

    path: Path
    act: str
    clock_us: tuple[int, int, int]
    candidates: list[Model]


class Story(Machine):
    """Acts one after another; every step of each is a moment at which the world may end."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[Moment] = []
        self.seen: list[Model] = []
        """The model after everything that may have been written by itself."""

    async def begin(self, kind: str, seed: int) -> None:
        self.plant = Plant(kind, self.folder, random.Random(seed), SteppingIo)
        await self.plant.open()
        await self.plant.found()
        self.synced()

    def synced(self) -> None:
        super().synced()
        self.seen.append(copy.deepcopy(self.model))

    def unsynced(self) -> None:
        super().unsynced()
        self.seen.append(copy.deepcopy(self.model))

    async def act_out(self, name: str, act: Callable[[], Awaitable[None]]) -> None:
        io, clock = self.plant.io, self.plant.clock
        assert isinstance(io, SteppingIo)
        before = [*self.history, copy.deepcopy(self.model)]
        self.seen = []
        killed: list[tuple[Path, tuple[int, int, int]]] = []

        def note() -> None:
            times = clock.wall_us, clock.steady_us, clock.latest_us
            with io.still():
                killed.extend((self.plant.copy(power_cut=cut), times) for cut in (False, True))

        io.on_step = note
        await act()
        await self.compare()
        io.on_step = lambda: None
        candidates = [*before, *self.seen, copy.deepcopy(self.model)]
        self.moments += [Moment(path, name, times, candidates) for path, times in killed]

    # The acts

    async def send_unit(self, drawn: Drawn) -> None:
        unit, seq = self.unit(drawn), self.seq
        self.seq += len(unit)
        self.committed(unit, await self.send(unit, seq))
        self.synced()

    async def prepare(self, name: str, drawn: Drawn) -> None:
        unit = self.unit(drawn)
        await self.plant.prepare(name, frames_of(unit))
        self.model.prepared[name] = unit
        self.synced()

    async def decide(self, name: str, commit: bool) -> None:
        answer = await self.plant.broker.transactions.decide(Decide(name, commit))
        unit = self.model.prepared.pop(name)
        if commit:
            self.committed(unit, answer)
        self.synced()

    async def cancel(self, body: bytes) -> None:
        number = next(number for number, one in self.model.delayed.items() if one.body == body)
        one = self.model.delayed.pop(number)
        assert (await self.plant.broker.delayed.cancel(CancelDelayed(one.lane[0], [number]))).count == 1
        self.synced()

    async def move(self, body: bytes, delay_s: float) -> None:
        number, one = next((number, one) for number, one in self.model.delayed.items() if one.body == body)
        request = MoveDelayed(one.lane[0], [number], "", -round(delay_s * 1e6))
        assert (await self.plant.broker.delayed.move(request)).count == 1
        one.due_us = self.now_us + round(delay_s * 1e6)
        self.synced()

    async def settle_all(self, key: Key, what: int, delay_s: float | None = None) -> None:
        pulls = self.model.ledgers[key].held_by("ann")
        await self.settle(key, "ann", [Act(what, pull, delay_s=delay_s, reason="no") for pull in pulls])

    async def settle_first(self, key: Key, what: int) -> None:
        pull = self.model.ledgers[key].held_by("ann")[-1]
        lane, number = self.model.ledgers[key].deliveries[pull].open[0]
        await self.settle(key, "ann", [Act(what, pull, [(lane, number, 1)])])

    async def resend(self, key: Key) -> None:
        dead = self.model.ledgers[key].dead
        numbers = [number for number, again in enumerate(dead) if not again]
        await self.plant.broker.dead_letters.resend(Resend(*key, numbers))
        self.model.resend(key, numbers)
        self.synced()

    async def vanish(self, key: Key) -> None:
        member = self.members[key, "ann"]
        self.plant.broker.consumers.disconnected(member)
        while not member.fenced:
            await asyncio.sleep(0)
        self.gone(key, "ann", vanished=True)

    async def tell(self) -> None:
        await self.begin("fsync", 1)
        plain, later = (None, None, None, None), (None, 0.4, None, None)
        acts: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("a transaction", lambda: self.send_unit([(("orders", 0), [plain] * 2), (("stock", 1), [plain] * 3)])),
            ("prepare", lambda: self.prepare("t1", [(("orders", 1), [plain, plain]), (("stock", 0), [later])])),
            ("prepare another", lambda: self.prepare("t2", [(("orders", 1), [plain])])),
            ("commit", lambda: self.decide("t1", True)),
            ("roll back", lambda: self.decide("t2", False)),
            (
                "send for later",
                lambda: self.send_unit([(("orders", 2), [later, (None, 5.0, None, None), (None, 300.0, None, None)])]),
            ),
            ("snapshot", self.plant.broker.maintain),
            ("some are due", lambda: self.pass_time(1.0, ["ann"])),
            ("cancel", lambda: self.cancel(self.body_of_delayed(300))),
            ("move", lambda: self.move(self.body_of_delayed(5), 200.0)),
            ("years pass", lambda: self.pass_time(1_000.0, ["ann"])),
            ("attach", lambda: self.attach(MAIL, "ann", [])),
            ("pull", lambda: self.pull(MAIL, "ann", 4, 1 << 20)),
            ("fail", lambda: self.settle_all(MAIL, NACK, 0.5)),
            ("it is due again", lambda: self.pass_time(1.0, ["ann"])),
            ("pull again", lambda: self.pull(MAIL, "ann", 4, 1 << 20)),
            ("fail one for the last time", lambda: self.settle_first(MAIL, NACK)),
            ("give one up", lambda: self.settle_first(MAIL, DEAD)),
            ("snapshot again", self.plant.broker.maintain),
            ("ack one", lambda: self.settle_first(MAIL, ACK)),
            ("take too long", lambda: self.pass_time(10.0, ["ann"])),
            ("send the dead again", lambda: self.resend(MAIL)),
            ("pull the resent", lambda: self.pull(MAIL, "ann", 10, 1 << 20)),
            ("vanish", lambda: self.vanish(MAIL)),
            ("send in order", lambda: self.send_unit([(("trail", 0), [plain] * 3), (("trail", 1), [plain])])),
            (
                "prepare in order",
                lambda: self.prepare(
                    "t3", [(("trail", 0), [plain]), (("trail", 2), [plain, plain]), (("trail", 0), [later])]
                ),
            ),
            (
                "send for later in order",
                lambda: self.send_unit([(("trail", 0), [(None, 0.9, None, None), (None, 0.1, None, None)])]),
            ),
            ("commit in order", lambda: self.decide("t3", True)),
            ("some are due in order", lambda: self.pass_time(1.0, ["ann"])),
            ("attach in order", lambda: self.attach(TRAIL, "ann", [])),
            ("pull in order", lambda: self.pull(TRAIL, "ann", 10, 1 << 20)),
            ("fail in order", lambda: self.settle_first(TRAIL, NACK)),
            ("attach once", lambda: self.attach(ONCE, "ann", [])),
            ("pull once", lambda: self.pull(ONCE, "ann", 10, 1 << 20)),
        ]
        for name, act in acts:
            await self.act_out(name, act)

    def body_of_delayed(self, about_s: int) -> bytes:
        late = {one.due_us - self.now_us: one.body for one in self.model.delayed.values()}
        return late[min(late, key=lambda wait_us: abs(wait_us - about_s * 1_000_000))]


class Survivor(Machine):
    """A broker on what a crash left."""

    async def check(self, moment: Moment, *, to_the_end: bool) -> None:
        self.plant = Plant("fsync", self.folder, random.Random(1))
        self.plant.path = moment.path
        self.plant.clock.wall_us, self.plant.clock.steady_us, self.plant.clock.latest_us = moment.clock_us
        await self.plant.open()
        await self.plant.settle()
        await self.recognise(moment.candidates)
        if to_the_end:
            await self.drain()
        await self.plant.broker.close()


def test_a_crash_at_any_step_leaves_every_act_whole_or_absent() -> None:
    story = Story()
    try:
        story.do(story.tell())
        assert len(story.moments) > 200
        for number, moment in enumerate(story.moments):
            survivor = Survivor()
            try:
                survivor.do(survivor.check(moment, to_the_end=number % 10 == 0))
            except BaseException as error:
                error.add_note(f"crashed in moment {number}: {moment.act}, power cut: {number % 2 == 1}")
                raise
            finally:
                del survivor.plant
                survivor.teardown()
    finally:
        story.do(story.plant.broker.close())
        del story.plant
        story.teardown()
