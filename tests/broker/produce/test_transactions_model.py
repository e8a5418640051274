"""Anything may happen to transactions, dedup ids and the broker: each is whole or absent, and there once."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.broker.conftest import Bench, World
from tests.broker.test_recovery import crash
from tests.inside.broker import Broker, open_store
from tests.inside.frame import Frame, encode
from tests.inside.protocol import AwaitChecks, Decide, Decided, FrameHead, ListTransactions, Prepare
from towline.errors import Conflict

T = TypeVar("T")

TOPICS = ("orders", "stock")
Lane = tuple[str, int]
Unit = list[tuple[Lane, list[tuple[bytes, str | None]]]]
"""For each lane its messages: body and dedup id."""

UNITS = st.lists(
    st.tuples(
        st.tuples(st.sampled_from(TOPICS), st.integers(0, 2)),
        st.lists(st.sampled_from([None, None, "a", "b", "c"]), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=4,
)


class Anything(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.world = World("log", self.folder / "0")
        self.runner = asyncio.Runner()
        self.lives = 0
        self.bodies = 0
        self.seq = 0
        self.lanes: dict[Lane, list[bytes]] = {}
        self.ids: dict[tuple[str, str], tuple[int, int]] = {}
        self.prepared: dict[str, Unit] = {}
        self.decided: dict[str, tuple[bool, Any]] = {}
        self.last: tuple[list[tuple[str, int, bytes]], Any] | None = None

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @initialize()
    def start(self) -> None:
        self.do(self._open())

    async def _open(self) -> None:
        given = self.world.settings(tx_check_after_s=0.05)
        store = await open_store(given)
        self.bench = Bench(await Broker.open(store, given), store)

    def teardown(self) -> None:
        try:
            if hasattr(self, "bench"):
                self.do(self.bench.broker.close())
        finally:
            self.runner.close()
            shutil.rmtree(self.folder)

    # The model: what a committed unit does

    def _unit(self, drawn: list[tuple[Lane, list[str | None]]]) -> Unit:
        unit: Unit = []
        for lane, ids in drawn:
            messages = []
            for name in ids:
                self.bodies += 1
                messages.append((b"%d" % self.bodies, name))
            unit.append((lane, messages))
        return unit

    def _commit(self, unit: Unit) -> list[tuple[int, int]]:
        """Put it into the model; where each message is."""
        places = []
        for (topic, lane), messages in unit:
            stream = self.lanes.setdefault((topic, lane), [])
            for body, name in messages:
                known = self.ids.get((topic, name)) if name else None
                if known is None:
                    known = (lane, len(stream))
                    stream.append(body)
                    if name:
                        self.ids[topic, name] = known
                places.append(known)
        return places

    def _places(
        self, unit: Unit, firsts: list[int], repeats: list[tuple[int, int, int, int, int]]
    ) -> list[tuple[int, int]]:
        """Where the broker says each message is."""
        before = {(frame, index): (lane, seq) for frame, index, lane, seq, _ in repeats}
        places = []
        for frame, ((_, lane), messages) in enumerate(unit):
            seq = firsts[frame]
            for index in range(len(messages)):
                known = before.get((frame, index))
                places.append(known or (lane, seq))
                seq += known is None
        return places

    def _frames(self, unit: Unit, numbered: bool) -> list[tuple[str, int, bytes]]:
        frames = []
        for (topic, lane), messages in unit:
            self.seq += 1
            bodies, ids = [body for body, _ in messages], [name for _, name in messages]
            frame = encode(bodies, dedup_ids=ids, producer_id=7 * numbered, producer_seq=self.seq * numbered)
            frames.append((topic, lane, frame))
        return frames

    # What may happen

    @rule(drawn=UNITS)
    def send_a_unit(self, drawn: list[tuple[Lane, list[str | None]]]) -> None:
        unit = self._unit(drawn)
        frames = self._frames(unit, numbered=True)
        sent = self.do(self._send(frames))
        assert self._places(unit, sent.firsts, sent.repeats) == self._commit(unit)
        self.last = frames, sent

    async def _send(self, frames: list[tuple[str, int, bytes]]) -> Any:
        sent = await self.bench.broker.send(frames)
        await asyncio.sleep(0)
        return sent

    @precondition(lambda self: self.last is not None)
    @rule()
    def send_it_again(self) -> None:
        assert self.last is not None
        frames, first = self.last
        sent = self.do(self._send(frames))
        stored = set(range(len(frames))) - self._wholly_repeated(frames, first)
        assert [sent.firsts[frame] for frame in stored] == [first.firsts[frame] for frame in stored]
        assert sent.repeats == first.repeats

    def _wholly_repeated(self, frames: list[tuple[str, int, bytes]], sent: Any) -> set[int]:
        return {n for n, (_, _, data) in enumerate(frames) if sum(r[0] == n for r in sent.repeats) == Frame(data).count}

    @precondition(lambda self: len(self.prepared) < 4)
    @rule(drawn=UNITS)
    def prepare(self, drawn: list[tuple[Lane, list[str | None]]]) -> None:
        unit, name = self._unit(drawn), f"t{self.bodies}"
        self.prepared[name] = unit
        self.do(self._prepare(name))

    async def _prepare(self, name: str) -> None:
        frames = self._frames(self.prepared[name], numbered=False)
        heads = [FrameHead(topic, lane, len(frame)) for topic, lane, frame in frames]
        request = Prepare(name, "shop", name, heads)
        await self.bench.broker.transactions.prepare(request, [frame for _, _, frame in frames])

    async def _decide(self, name: str, commit: bool) -> Decided:
        return await self.bench.broker.transactions.decide(Decide(name, commit))

    @precondition(lambda self: self.prepared)
    @rule(data=st.data(), commit=st.booleans())
    def decide(self, data: st.DataObject, commit: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.prepared)))
        self._expect(name, commit, self.do(self._decide(name, commit)))

    def _expect(self, name: str, commit: bool, answer: Decided) -> None:
        unit = self.prepared.pop(name)
        if commit:
            assert self._places(unit, answer.firsts, answer.repeats) == self._commit(unit)
        self.decided[name] = (commit, (answer.firsts, answer.repeats))

    @precondition(lambda self: self.decided)
    @rule(data=st.data(), commit=st.booleans())
    def decide_again(self, data: st.DataObject, commit: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.decided)))
        before, told = self.decided[name]
        try:
            answer = self.do(self._decide(name, commit))
        except Conflict:
            assert commit != before
        else:
            assert (commit, answer.duplicate) == (before, True)
            assert (answer.firsts, answer.repeats) == told

    @rule()
    def ask(self) -> None:
        async def ask() -> set[str]:
            answer = await self.bench.broker.transactions.asking.wait(AwaitChecks("shop"))
            return {check.transaction for check in answer.checks}

        assert self.do(ask()) <= set(self.prepared)

    @rule()
    def maintain(self) -> None:
        self.do(self.bench.broker.maintain())

    # Crashes

    @rule()
    def crash(self) -> None:
        self._crash()

    def _crash(self) -> None:
        self.lives += 1
        self.world = crash(self.world, self.folder / str(self.lives))
        self.do(self.bench.broker.close())
        self.do(self._open())

    @precondition(lambda self: self.prepared)
    @rule(data=st.data(), commit=st.booleans(), rounds=st.integers(0, 6))
    def crash_while_deciding(self, data: st.DataObject, commit: bool, rounds: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.prepared)))

        async def begin() -> None:
            task = asyncio.ensure_future(self._decide(name, commit))
            for _ in range(rounds):
                await asyncio.sleep(0)
            self.world = crash(self.world, self.folder / str(self.lives + 1))
            await asyncio.wait([task])
            task.result()
            await self.bench.broker.close()

        self.do(begin())
        self.lives += 1
        self.do(self._open())
        self._check_states(maybe=name)
        self._expect(name, commit, self.do(self._decide(name, commit)))

    @rule(drawn=UNITS, rounds=st.integers(0, 6))
    def crash_while_sending_a_unit(self, drawn: list[tuple[Lane, list[str | None]]], rounds: int) -> None:
        unit = self._unit(drawn)
        frames = self._frames(unit, numbered=True)

        async def begin() -> None:
            future = self.bench.broker.send(frames)
            for _ in range(rounds):
                await asyncio.sleep(0)
            self.world = crash(self.world, self.folder / str(self.lives + 1))
            await future
            await self.bench.broker.close()

        self.do(begin())
        self.lives += 1
        self.do(self._open())
        sent = self.do(self._send(frames))
        places = self._commit(unit)
        told = self._places(unit, sent.firsts, sent.repeats)
        wholly = self._wholly_repeated(frames, sent)
        assert told == places or wholly
        self.last = frames, sent

    # What always holds

    @invariant()
    def lanes_are_as_the_model_says(self) -> None:
        if not hasattr(self, "bench"):
            return
        for (topic, lane), expected in self.lanes.items():
            found = self.do(self._read(f"lane/{topic}/{('high', 'middle', 'low')[lane]}"))
            assert found == expected, (topic, lane)
        self._check_states()

    async def _read(self, stream: str) -> list[bytes]:
        store, found, at = self.bench.store, list[bytes](), 0
        while at < store.bounds(stream).end:
            read = await store.read(stream, at, 1000, 1 << 20)
            for chunk in read.chunks:
                found += Frame(chunk.frame).bodies(chunk.start, chunk.start + chunk.count)
            at = read.next
        return found

    def _check_states(self, maybe: str = "") -> None:
        found = self.bench.broker.transactions.states(ListTransactions())
        waiting = {one.transaction for one in found.transactions}
        assert waiting | {maybe} == set(self.prepared) | {maybe}


TestAnything = Anything.TestCase
TestAnything.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
