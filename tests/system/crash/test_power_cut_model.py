"""A power cut at any moment of anything that documents speak of: what was answered is there, and nothing else is.

Topics and groups come, change, rest and go, messages with ids are sent and consumed, and all documents are saved
meanwhile, in small parts; then the power fails. What was under way may have come to be, or not.
"""

from __future__ import annotations

import asyncio
import copy
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.broker.conftest import ACK, Bench, Got
from tests.inside.broker import Broker, Member, snapshots, table_snapshot
from tests.inside.frame import Frame, encode
from tests.inside.ground import BrokerSettings
from tests.inside.protocol import Attach, Pause, Purge
from tests.inside.store import LogSettings, LogStore
from tests.store.log.test_power_cut import PowerCutIo
from towline.model import GroupConfig, RetryPolicy, TopicConfig

ROUNDS = 6
LIVES = 4
MOMENT_S = 0.4
TOPICS = ("a", "b", "c")
GROUPS = ("g", "h")
PATIENT = RetryPolicy(1_000, (0.001,))
"""Of what is taken from a consumer again and again, nothing dies."""


class Model:
    """What there is."""

    def __init__(self) -> None:
        self.topics: dict[str, str] = {}
        """Their authors."""
        self.groups: dict[tuple[str, str], tuple[float, bool]] = {}
        """How long a message may take, and whether they rest."""
        self.sent: dict[str, list[int]] = {}
        self.acked: dict[tuple[str, str], set[int]] = {}

    def drop(self, topic: str) -> None:
        self.topics.pop(topic)
        self.sent.pop(topic, None)
        for key in [key for key in self.groups if key[0] == topic]:
            self.drop_group(key)

    def drop_group(self, key: tuple[str, str]) -> None:
        self.groups.pop(key)
        self.acked.pop(key, None)


Change = Callable[[Model], object]


class Life:
    """One broker, and what it was told and has answered."""

    def __init__(self, bench: Bench, model: Model, rng: random.Random, numbers: Any) -> None:
        self.bench, self.model, self._rng, self._numbers = bench, model, rng, numbers
        self.pending: list[Change] = []
        """What is under way."""
        self.dropping = ""
        """A topic that is being deleted, which goes bit by bit."""

    async def go_on(self) -> None:
        steps = [self._topic, self._drop, self._group, self._drop_group, self._pause, self._purge]
        weights = [2, 1, 3, 1, 2, 1]
        while True:
            step = self._rng.choices([*steps, self._send, self._consume], [*weights, 10, 10])[0]
            await step()

    async def save(self) -> None:
        broker = self.bench.broker
        while True:
            for _ in range(self._rng.randrange(40)):
                await asyncio.sleep(0)
            work = self._rng.choice(
                [broker.maintain, broker._catalog.write, broker.group_expiry.save, broker.begin_backup]
            )
            await work()
            broker.backups._held.clear()

    async def _do(self, work: Any, change: Change) -> None:
        self.pending.append(change)
        await work
        self.pending.remove(change)
        change(self.model)

    def _any_topic(self) -> str:
        return self._rng.choice([*self.model.topics])

    async def _topic(self) -> None:
        name, author = self._rng.choice(TOPICS), f"n{next(self._numbers)}"
        if name not in self.model.topics:
            await self._do(
                self.bench.broker.topics.create(TopicConfig(name, author=author)),
                lambda model: (model.topics.update({name: author}), model.sent.update({name: []})),
            )

    async def _drop(self) -> None:
        if self.model.topics and self._rng.random() < 0.3:
            name = self._any_topic()
            self.dropping = name
            await self._do(self.bench.broker.delete_topic(name), lambda model: model.drop(name))
            self.dropping = ""

    async def _group(self) -> None:
        if not self.model.topics:
            return
        key, timeout_s = (self._any_topic(), self._rng.choice(GROUPS)), 100.0 + next(self._numbers)
        config = GroupConfig(*key, timeout_s=timeout_s, start="earliest", retry=PATIENT)
        paused = self.model.groups.get(key, (0.0, False))[1]
        put = self.bench.broker.groups.put(config)
        if key not in self.model.groups and self._rng.random() < 0.5:
            put.close()
            put = self.bench.broker.consumers.attach(Attach(*key, "c", config))  # type: ignore[assignment]
        await self._do(
            put, lambda model: (model.groups.update({key: (timeout_s, paused)}), model.acked.setdefault(key, set()))
        )

    async def _drop_group(self) -> None:
        if self.model.groups:
            key = self._rng.choice([*self.model.groups])
            await self._do(self.bench.broker.groups.delete(*key), lambda model: model.drop_group(key))

    async def _pause(self) -> None:
        if self.model.groups:
            key, paused = self._rng.choice([*self.model.groups]), self._rng.random() < 0.4
            timeout_s = self.model.groups[key][0]
            await self._do(
                self.bench.broker.groups.pause(Pause(*key, paused)),
                lambda model: model.groups.update({key: (timeout_s, paused)}),
            )

    async def _purge(self) -> None:
        if self.model.topics and self._rng.random() < 0.3:
            name = self._any_topic()
            await self._do(self.bench.broker.purge(Purge(name)), lambda model: model.sent.update({name: []}))

    async def _send(self) -> None:
        if not self.model.topics:
            return
        name, count = self._any_topic(), self._rng.randrange(1, 12)
        numbers = [next(self._numbers) for _ in range(count)]
        frame = encode([b"%d" % one for one in numbers], dedup_ids=[str(one) for one in numbers])
        await self._do(self.bench.broker.send([(name, 1, frame)]), lambda model: model.sent[name].extend(numbers))

    async def _consume(self) -> None:
        awake = [key for key, (_, paused) in self.model.groups.items() if not paused]
        if not awake:
            return
        key = self._rng.choice(awake)
        member = await self.bench.broker.consumers.attach(Attach(*key, "c", GroupConfig(*key)))
        member.broker = self.bench.broker
        got = await self.bench.pull(member, self._rng.randrange(1, 30))
        if not got.pull:
            return
        found = [int(body) for body in got.bodies]
        acked = self.model.acked[key]
        assert acked.isdisjoint(found), f"{key}: acked messages come again"
        at, spans, chosen = 0, [], set[int]()
        for part in got.parts:
            for seq in range(part.first, part.first + part.count):
                if self._rng.random() < 0.5:
                    spans.append((part.lane, seq, 1))
                    chosen.add(found[at])
                at += 1
        if spans:
            await self._do(
                self._ack(member, got, spans), lambda model: model.acked.setdefault(key, set()).update(chosen)
            )

    async def _ack(self, member: Member, got: Got, spans: list[tuple[int, int, int]]) -> None:
        assert not (await self.bench.act(member, ACK, got, *spans)).refused


async def opened(path: Path, io: PowerCutIo) -> Bench:
    settings = BrokerSettings(
        store=f"file:{path}", durability="fsync", maintenance_s=3600.0, min_free_bytes=0, heartbeat_s=3600.0,
        retention_bytes=64 << 10, segment_bytes=64 << 10,
    )  # fmt: skip
    io.trust(path)
    store = await LogStore.open(path, LogSettings(segment_bytes=64 << 10, min_free_bytes=0), io=io)
    return Bench(await Broker.open(store, settings), store)


def fits(bench: Bench, model: Model) -> bool:
    broker = bench.broker
    topics = {one.config.name: one.config.author for one in broker.topics.values()}
    found = {
        (one.config.topic, one.config.name): (one.config.timeout_s, one.config.paused)
        for one in (each.group for each in broker.topics.dispatchers())
    }
    return (topics, found) == (model.topics, model.groups)


async def check(bench: Bench, model: Model, pending: list[Change], dropping: str) -> Model:
    """What was answered is there; which of what was under way came to be."""
    if bench.broker.has_topic(dropping):
        await bench.broker.delete_topic(dropping)
    models = [model]
    for change in pending:
        after = copy.deepcopy(model)
        change(after)
        models.append(after)
    fitting = [one for one in models if fits(bench, one)]
    assert fitting, (
        [(one.topics, one.groups) for one in models],
        [one.config for one in bench.broker.topics.values()],
        [
            (one.config.topic, one.config.name, one.config.timeout_s, one.config.paused)
            for one in (each.group for each in bench.broker.topics.dispatchers())
        ],
    )
    last = fitting[-1]
    # An ack that was under way counts, or not.
    last.acked = {key: set(model.acked.get(key, ())) for key in last.groups}
    for topic in last.topics:
        sure = sorted(set(model.sent.get(topic, ())) & set(last.sent[topic]))
        stored = [int(body) for body in await _bodies(bench, topic)]
        assert len(stored) == len(set(stored)), topic
        lost = set(sure) - set(stored)
        assert not stored or max(lost, default=-1) < stored[0], f"{topic}: {sorted(lost)} are lost"
        for number in sure[:10] + sure[-10:]:
            again = await bench.broker.send([(topic, 1, encode([b"again"], dedup_ids=[str(number)]))])
            assert again.repeats, f"{topic}: message {number} is stored twice"
        last.sent[topic] = stored
    return last


async def _bodies(bench: Bench, topic: str) -> list[bytes]:
    stream, found = f"lane/{topic}/middle", list[bytes]()
    first, end, _ = bench.store.bounds(stream)
    while first < end:
        read = await bench.store.read(stream, first, 1_000, 1 << 20)
        for chunk in read.chunks:
            found += Frame(chunk.frame).bodies(chunk.start, chunk.start + chunk.count)
        assert read.next > first
        first = read.next
    return found


def _acked_maybe(model: Model, pending: list[Change]) -> set[int]:
    """What an ack was under way for."""
    found: set[int] = set()
    for change in pending:
        after = copy.deepcopy(model)
        change(after)
        for key, acked in after.acked.items():
            found |= acked - model.acked.get(key, set())
    return found


async def drained(bench: Bench, model: Model, maybe: set[int]) -> None:
    """Each group gets what was sent and not acked, and nothing that was."""
    for key, (_, paused) in model.groups.items():
        if paused:
            continue
        member = await bench.broker.consumers.attach(Attach(*key, "drain", GroupConfig(*key)))
        member.broker = bench.broker
        await bench.broker.groups.named(*key).drop("c", "it does not come back")
        found: set[int] = set()
        while (got := await bench.pull(member, 1_000)).pull:
            found |= {int(body) for body in got.bodies}
        acked = model.acked[key]
        assert acked.isdisjoint(found), f"{key}: {sorted(acked & found)} were acked"
        missing = set(model.sent[key[0]]) - acked - maybe - found
        assert not missing, f"{key}: {sorted(missing)} are not delivered"


@pytest.mark.timeout(600)
def test_what_was_answered_is_there_after_a_power_cut_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "EXCERPT", 4)
    monkeypatch.setattr(sys.modules["towline.delivery.group.snapshot"], "EXCERPT", 4)
    make = table_snapshot.TableSnapshot.__init__

    def small(self: Any, few: int, most: int, step: int, **given: Any) -> None:
        make(self, min(few, 5), min(most, 40), 3, **given)

    monkeypatch.setattr(table_snapshot.TableSnapshot, "__init__", small)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    for number in range(ROUNDS):
        asyncio.run(one_round(tmp_path / str(number), random.Random(seed + number)))


async def one_round(folder: Path, rng: random.Random) -> None:
    model, numbers, pending, dropping = Model(), iter(range(1 << 30)), list[Change](), ""
    maybe, path = set[int](), folder / "0"
    path.parent.mkdir()
    for life in range(1, LIVES + 1):
        io = PowerCutIo(rng)
        bench = await opened(path, io)
        if life > 1:
            await asyncio.sleep(0.05)
            maybe |= _acked_maybe(model, pending)
            model = await check(bench, model, pending, dropping)
            if life == LIVES:
                await drained(bench, model, maybe)
        at_work = Life(bench, model, rng, numbers)
        tasks = [asyncio.create_task(one) for one in (at_work.go_on(), at_work.save())]
        await asyncio.sleep(rng.random() * MOMENT_S)
        for _ in range(rng.randrange(100)):
            await asyncio.sleep(0)
        done = [task for task in tasks if task.done()]
        model, pending, dropping = copy.deepcopy(at_work.model), list(at_work.pending), at_work.dropping
        path = folder / str(life)
        io.cut(folder / str(life - 1), path)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()
        await bench.broker._stop()
        await bench.store.close()
