"""A broker beside its model: every act is done to both, and compared."""

from __future__ import annotations

import asyncio
import copy
import random
import shutil
import tempfile
import traceback
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.broker.conftest import ACK, DEAD, GIVE_BACK, NACK, Got
from tests.inside.broker import Member, PrefixSubscription
from tests.inside.delivery import Pulled, snapshot
from tests.inside.protocol import Act, Decided, ListDelayed, ListTransactions, Sent
from tests.system.everything.crashable_broker import HEARTBEAT_S, Plant, frames_of
from tests.system.everything.model import RANKS, TOPICS, Item, Key, Lane, Model, Unit
from tests.system.everything.names import SETUP, Ended, expected_states, names_in, names_of, stream_of
from tests.unit.delivery.ledger import Name
from towline.model import LANES, Durability

T = TypeVar("T")

Drawn = Sequence[tuple[Lane, Sequence[tuple[str | None, float | None, float | None, float | None]]]]
"""Frames: a lane, and for each message a dedup id, a delay, a lifetime and a timeout."""
CONSUMERS = ("ann", "bob")
PAT = "pat"
"""Consumes by prefix."""
ACTS = {ACK: "acked", NACK: "nacked", DEAD: "nacked", GIVE_BACK: "given back"}


class Machine:
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="everything-"))
        self.runner = asyncio.Runner()
        self.model = Model.new()
        self.history: list[Model] = []
        """What a power cut may go back to: the model as it was when all was synced last, and after every step since."""
        self.members: dict[tuple[Key, str], Member] = {}
        self.fenced: list[Member] = []
        self.fan: PrefixSubscription | None = None
        """What pat has instead of members."""
        self.orphans: dict[tuple[Key, str], float] = {}
        self.paused: set[Key] = set()
        self.failed = False
        self.bodies = 0
        self.seq = 1
        self.plant: Plant

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        before, self.failed = self.failed, True
        result = self.runner.run(work)
        self.failed = before
        return result

    async def begin(self, kind: str, seed: int) -> None:
        self.plant = Plant(kind, self.folder, random.Random(seed))
        await self.plant.open()
        await self.plant.found()
        self.synced()

    def teardown(self) -> None:
        try:
            if hasattr(self, "plant"):
                if not self.failed:
                    self.do(self.drain())
                self.do(self.plant.broker.close())
        finally:
            self.runner.close()
            shutil.rmtree(self.folder)

    @property
    def now_us(self) -> int:
        return self.plant.clock.now_us()

    def synced(self) -> None:
        self.history = [copy.deepcopy(self.model)] if self.plant.kind == "fsync" else []

    def unsynced(self) -> None:
        if self.plant.kind == "fsync":
            self.history.append(copy.deepcopy(self.model))

    # Comparing

    async def compare(self) -> None:
        """Let the broker come to rest, and see that it is where the model is."""
        await self.plant.settle()
        await self.discover(self.model)
        different = await self.difference(self.model)
        assert not different, different

    async def discover(self, model: Model) -> None:
        """Take over in which order the dying were buried and the delayed delivered, if that was right."""
        for key, letters in model.letters.items():
            stream = f"dead/{key[0]}/{key[1]}"
            bodies = await self.plant.read(stream, len(letters))
            if bodies:
                model.bury(key, bodies)
            assert not model.ledgers[key].named("dying"), "not buried"
        due = model.due(self.plant.clock.latest_us)
        for lane, known in model.lanes.items():
            bodies = await self.plant.read(stream_of(lane), len(known))
            if bodies:
                assert set(bodies) <= due.get(lane, set()), (lane, bodies, "early, or not known")
                assert len(set(bodies)) == len(bodies)
                if TOPICS[lane[0]]:
                    model.check_order_of_times(bodies)
                model.deliver_delayed(lane, bodies, self.now_us)
        assert not model.overdue(self.now_us), (model.overdue(self.now_us), "overdue")

    async def difference(self, model: Model) -> str:
        """What is not as the model says; empty if all is."""
        for lane, bodies in model.lanes.items():
            found = await self.plant.read(stream_of(lane))
            if found != bodies[model.firsts[lane] :]:
                return f"lane {lane}: {found} instead of {bodies[model.firsts[lane] :]}"
        for key, ledger in model.ledgers.items():
            actual, expected = self.plant.states(key), expected_states(ledger)
            if actual != expected:
                return f"group {key}: {sorted(actual.items() ^ expected.items(), key=str)} (model: {expected})"
            counters = snapshot(self.plant.dispatcher(key).group, 0).counters
            wanted = {"DONE": ledger.done, "DEAD": ledger.dead.count(False), "GONE": ledger.gone}
            if counters != wanted:
                return f"group {key}: {counters} instead of {wanted}"
            for rank, name in enumerate(LANES):
                first = ledger.firsts[RANKS + rank]
                found = await self.plant.read(f"own/{key[0]}/{key[1]}/{name}")
                if found != model.owns[key[0], key[1], rank][first:]:
                    return f"group {key}, own {name}: {found}"
            letters = await self.plant.read(f"dead/{key[0]}/{key[1]}")
            if letters != [body for body, _ in model.letters[key]]:
                return f"group {key}: dead letters {letters}"
        waiting = {one.transaction for one in self.plant.broker.transactions.states(ListTransactions()).transactions}
        if waiting != set(model.prepared):
            return f"prepared are {waiting}, not {set(model.prepared)}"
        listed = (await self.plant.broker.delayed.list(ListDelayed("", 0, 0, 1_000))).messages
        delayed = {one.id: one.deliver_at_us for one in listed}
        if delayed.keys() != model.delayed.keys() or any(
            not one.due_us <= delayed[number] <= max(one.due_us, one.not_before_us)
            for number, one in model.delayed.items()
        ):
            return f"delayed are {delayed}, not {model.delayed}"
        return ""

    # Sending

    def unit(self, drawn: Drawn) -> Unit:
        """A unit from what was drawn. Of a frame either all is delayed or nothing is."""
        unit: Unit = []
        for lane, messages in drawn:
            delayed = any(delay_s is not None for _, delay_s, _, _ in messages)
            items = []
            for dedup, delay_s, ttl_s, timeout_s in messages:
                timeout_us = round((timeout_s or 0) * 1e6)
                expires_us = self.now_us + round(ttl_s * 1e6) if ttl_s else 0
                self.bodies += 1
                body = (b"%d" % self.bodies).ljust(2_000 if self.bodies % 7 == 0 else 1)
                if delayed:
                    items.append(Item(body, None, delay_s or 0.001, expires_us, timeout_us))
                else:
                    items.append(Item(body, dedup, None, expires_us, timeout_us))
            unit.append((lane, items))
        return unit

    async def send(self, unit: Unit, seq: int, durability: Durability | None = None) -> Sent:
        return await self.plant.broker.send(frames_of(unit, seq), durability)

    def committed(self, unit: Unit, answer: Sent | Decided) -> None:
        """The broker says that it stored a unit: so does the model, at the same places."""
        ids = {number: answer.firsts[number] for number in answer.delayed}
        at_us = answer.appended_at_us if isinstance(answer, Sent) else answer.decided_at_us
        assert set(ids) == {n for n, (_, items) in enumerate(unit) if items[0].delay_s is not None}
        places = self.model.commit(unit, self.now_us, at_us, ids)
        before = {(frame, index): (lane, seq) for frame, index, lane, seq, _ in answer.repeats}
        for frame, ((_, lane), items) in enumerate(unit):
            if frame in ids:
                continue
            seq = answer.firsts[frame]
            for index in range(len(items)):
                told = before.get((frame, index)) or (lane, seq)
                assert told == places[frame][index], (unit, answer, places)
                seq += (frame, index) not in before
        assert at_us >= self.now_us

    # Pulling

    async def pull(self, key: Key, consumer: str, count: int, max_bytes: int, acts: Sequence[Act] = ()) -> None:
        position = self.plant.dispatcher(key).position
        member = self.members[key, consumer]
        for act in acts:
            self.act(key, consumer, act)
        self.model.ledgers[key].clock.append(self.now_us)
        got = await self.plant.pull(member, count, max_bytes, acts)
        await self.took(key, consumer, count, max_bytes, got, position)
        if not got.pull:
            self.nothing_due(key, consumer, count)

    async def took(self, key: Key, consumer: str, count: int, max_bytes: int, got: Got, position: int) -> None:
        """A pull has been answered: see what it took from this group, whose pull log was at `position` before."""
        if key in self.paused:
            assert not got.bodies, "a paused group got something"
            return
        events = await self.plant.events(key, position)
        small, granted = max_bytes < 1 << 20, [event for event in events if isinstance(event, Pulled)]
        assert [event.pull for event in granted][-1:] == [got.pull] or not got.pull
        for event in granted:
            # One of which nothing is left is followed by another; the consumer gets the last.
            names = names_of(got) if event.pull == got.pull else {}
            self.pulled(key, consumer, event, names, Ended.of(events, event.pull), count, small=small)
            for name, body in zip(names, got.bodies if names else (), strict=True):
                assert body == self.model.body(key, name), "another message than was sent"

    def nothing_due(self, key: Key, consumer: str, count: int) -> None:
        if key not in self.paused:
            ledger = self.model.ledgers[key]
            ledger.overrun()
            must = ledger.due(self.now_us)
            assert must != ledger.ever_due() or not self.fill(key, consumer, must, [], count), "there, and not given"

    def fill(self, key: Key, consumer: str, due: set[Name], shards: list[int], count: int) -> list[Name]:
        ledger = self.model.ledgers[key]
        room = min(count, ledger.max_in_flight - ledger.in_flight(consumer))
        shards = [*shards, *(shard for shard in range(TOPICS[key[0]]) if shard not in shards)]
        return ledger.fill(ledger.order(due, shards), room, 1 << 40, 1, [1] * 2 * RANKS)

    def pulled(
        self, key: Key, consumer: str, event: Pulled, names: dict[Name, int], ended: Ended, count: int, *, small: bool
    ) -> None:
        """A pull was granted some messages, and handed over those of `names`."""
        model, ledger, setup = self.model, self.model.ledgers[key], SETUP[key]
        ledger.overrun()
        granted = names_in(event.parts)
        must, may = ledger.due(self.now_us), ledger.ever_due()
        shards = list(dict.fromkeys([lane for lane, _ in granted if lane < TOPICS[key[0]]]))
        for shard in shards:
            mine = [name for name in granted if name[0] == shard]
            assert mine == ledger.of_shard(shard, may, set(ledger.waiting()))[: len(mine)], "overtaken in a shard"
        if must != may:
            served = [name for name in ledger.order(may, shards) if name in granted]
            assert list(granted) == served, "not in order of priority, or before it was due"
        elif setup.share and not setup.once:
            every = self.fill(key, consumer, must, shards, 1 << 30)
            full = self.fill(key, consumer, must, shards, count)
            assert list(granted) == [name for name in every if name in granted] or len(granted) < len(every)
            assert small or len(granted) == len(full), "less than there is"
        else:
            full = self.fill(key, consumer, must, shards, count)
            wanted = full[: len(granted)] if small else full
            assert list(granted) == wanted, f"{key}: {granted} instead of {wanted}"
        expired = {name for name in granted if model.is_expired(key, name, self.now_us)}
        assert set(ended.expired) <= expired, "dropped before its time"
        assert not expired & set(names), "delivered after its time"
        assert [*granted] == sorted([*names, *ended.expired, *ended.returned], key=list(granted).index)
        assert small or not ended.returned
        assert all(granted[name] == attempt for name, attempt in names.items())
        ledger.deliver(event.pull, consumer, granted, self.now_us)
        self.unsynced()
        if ended.expired:
            (ledger.expire if setup.expired_to_dead else ledger.skip)(event.pull, set(ended.expired))
            self.unsynced()
        if ended.returned:
            ledger.give_back(event.pull, ended.returned)
            self.unsynced()
        if setup.once and names:
            ledger.ack(event.pull, list(names))
            self.synced()
        elif names:
            limits_us = {name: model.timeouts_us.get(model.body(key, name), 0) for name in names}
            ledger.limit(event.pull, {name: limit_us for name, limit_us in limits_us.items() if limit_us}, self.now_us)

    # Settling

    def act(self, key: Key, consumer: str, act: Act) -> tuple[set[str], bool]:
        """The model carries out an act: the codes with which it may be refused, and whether it changed anything."""
        ledger = self.model.ledgers[key]
        ledger.clock.append(self.now_us)
        if SETUP[key].once:
            return set(), False
        chosen: set[Name] | None = None
        if act.spans:
            chosen = {(lane, n) for lane, first, count in act.spans for n in range(first, first + count)}
        names, refusals = ledger.choose(consumer, act.pull, chosen, ACTS[act.what])
        if refusals:
            return refusals, False
        changes = bool(names)
        ledger.deliveries[act.pull].since_us = self.now_us
        if act.what == ACK:
            ledger.ack(act.pull, names)
            if act.up_to:
                changes |= any(pull < act.pull for pull in ledger.held_by(consumer))
                ledger.ack_earlier(consumer, act.pull)
        elif act.what == GIVE_BACK:
            ledger.give_back(act.pull, names)
        else:
            ledger.nack(act.pull, names, self.now_us, act.delay_s, dead=act.what == DEAD)
        return set(), changes

    async def settle(self, key: Key, consumer: str, acts: Sequence[Act]) -> None:
        """Carry out acts; the broker refuses exactly those that the model does."""
        settled = await self.plant.broker.consumers.settle(self.members[key, consumer], acts)
        refused = {number: code for number, code, _ in settled.refused}
        changes, lost = False, set[tuple[int, Name]]()
        for number, act in enumerate(acts):
            refusals, changed = self.act(key, consumer, act)
            assert refused.get(number, "") in (refusals or {""}), (act, settled.refused, refusals)
            changes |= changed
            if not refusals and not act.spans and act.what != GIVE_BACK and not SETUP[key].once:
                lost |= self.model.ledgers[key].taken_from(consumer, act.pull, up_to=act.up_to)
        told = {(pull, (lane, n)) for pull, lane, first, count, _ in settled.lost for n in range(first, first + count)}
        assert told == lost, (told, lost)
        self.synced() if changes else self.unsynced()

    # Coming and going

    async def attach(self, key: Key, consumer: str, holding: list[int]) -> None:
        ledger = self.model.ledgers[key]
        held = ledger.held_by(consumer)
        old = self.members.pop((key, consumer), None)
        if old is not None:
            self.fenced.append(old)
        member = await self.plant.attach(key, consumer, holding)
        assert member.held == sorted(set(holding) & set(held))
        self.members[key, consumer] = member
        self.orphans.pop((key, consumer), None)
        for pull in held:
            if pull not in holding:
                ledger.give_back(pull, ledger.deliveries[pull].open)
                self.unsynced()

    def gone(self, key: Key, consumer: str, *, vanished: bool) -> None:
        """A consumer is not there any more: what it held goes to others."""
        member = self.members.pop((key, consumer), None)
        if member is not None:
            self.fenced.append(member)
        if consumer == PAT:
            self.fan = None
        ledger = self.model.ledgers[key]
        for pull in ledger.held_by(consumer):
            if vanished:
                ledger.take_away(pull)
            else:
                ledger.give_back(pull, ledger.deliveries[pull].open, "taken")
        self.unsynced()

    # Time

    async def pass_time(self, seconds: float, beating: Sequence[str]) -> None:
        self.plant.clock.advance(seconds)
        broker = self.plant.broker
        for key, ledger in self.model.ledgers.items():
            ledger.clock.append(self.now_us)
            late, overdue = ledger.late(self.now_us), ledger.overdue(self.now_us)
            self.plant.dispatcher(key)._on_time()
            for pull in late:
                ledger.take_away(pull)
            for pull, names in overdue.items():
                if pull not in late:
                    ledger.take_overdue(pull, names)
            self.unsynced()
        now_s = self.plant.clock.steady_s()
        for (_, consumer), member in self.members.items():
            if consumer in beating:
                broker.consumers.beat(member)
        if self.fan is not None and PAT in beating:
            broker.consumers.beat(self.fan)
        silent = [
            (key, consumer)
            for dispatcher in broker.topics.dispatchers()
            for key in [(dispatcher.group.config.topic, dispatcher.group.config.name)]
            for consumer, member in dispatcher.members.items()
            if now_s - member.last_seen_s > HEARTBEAT_S
        ]
        lost = [name for name, deadline_s in self.orphans.items() if now_s > deadline_s]
        await broker._watch()
        for key, consumer in [*silent, *lost]:
            self.orphans.pop((key, consumer), None)
            self.gone(key, consumer, vanished=True)

    # Dying and coming back

    def restarted(self) -> None:
        """All connections are gone; what consumers hold is kept for a while."""
        self.members.clear()
        self.fenced.clear()
        self.fan = None
        for ledger in self.model.ledgers.values():
            ledger.begin_anew(self.now_us)
        deadline_s = self.plant.clock.steady_s() + HEARTBEAT_S
        self.orphans = {
            (key, consumer): deadline_s
            for key, ledger in self.model.ledgers.items()
            for consumer in (*CONSUMERS, PAT)
            if ledger.in_flight(consumer)
        }

    async def recognise(self, candidates: Sequence[Model]) -> None:
        """After a crash the broker is where one of these models was. From now on that one is the model."""
        found = []
        for candidate in reversed(candidates):
            model = copy.deepcopy(candidate)
            try:
                await self.discover(model)
                different = await self.difference(model)
            except (AssertionError, KeyError) as error:
                different = "".join(traceback.format_exception(error)[-2:])
            if not different:
                self.model = model
                self.restarted()
                self.synced()
                return
            found.append(different)
        raise AssertionError("after a crash all is whole or absent, but: " + "\n or ".join(found))

    async def drain(self) -> None:
        """To the end: every message comes to every group, unless it is done, dead or gone."""
        for key in list(self.paused):
            await self.unpause(key)
        for key in self.model.ledgers:
            await self.attach(key, "ann", [])
            self.members.pop((key, "bob"), None)
        self.fan = None
        await self.pass_time(HEARTBEAT_S * 2, ["ann"])
        await self.compare()
        for _ in range(20):
            await self.pass_time(100.0, ["ann"])
            await self.compare()
            for key, ledger in self.model.ledgers.items():
                while ledger.due(self.now_us) or ledger.waiting():
                    before = len(ledger.named("done"))
                    await self.pull(key, "ann", 100, 1 << 20)
                    for pull in ledger.held_by("ann"):
                        await self.settle(key, "ann", [Act(ACK, pull)])
                    if len(ledger.named("done")) == before:
                        break
            if not any(ledger.lag() for ledger in self.model.ledgers.values()):
                break
        left = {key: ledger.lag() for key, ledger in self.model.ledgers.items() if ledger.lag()}
        assert not left, f"never delivered: {left}"

    async def unpause(self, key: Key) -> None:
        raise NotImplementedError
