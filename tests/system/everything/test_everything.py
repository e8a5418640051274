"""Everything at once, by chance: whatever happens to messages, consumers, the clock and the broker, in any order, it is
where a simple model says it is. None is lost, doubled, early or out of order, and transactions are whole."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.broker.conftest import ACK, NACK
from tests.inside.protocol import Act, CancelDelayed, Decide, EditTopic, MoveDelayed, Pause, Purge, Resend, Seek
from tests.store.sql.server import needs_mariadb
from tests.system.everything.crashable_broker import frames_of
from tests.system.everything.drawing import acts, pick, shares
from tests.system.everything.machine import CONSUMERS, PAT, Drawn
from tests.system.everything.model import RANKS, SETUPS, TOPICS, Key, Lane, Model
from tests.system.everything.names import SETUP, stream_of
from tests.system.everything.prefix_rules import PrefixRules
from tests.system.everything.zombie_rules import ZombieRules
from towline.errors import Conflict
from towline.model import Durability

keys = st.sampled_from([(one.topic, one.group) for one in SETUPS])
consumers = st.sampled_from(CONSUMERS)
lanes = st.tuples(st.sampled_from(sorted(TOPICS)), st.sampled_from([1, 1, 0, 2]))
messages = st.tuples(
    st.sampled_from([None, None, None, "a", "b", "c"]),
    st.sampled_from([None] * 6 + [0.001, 0.4, 5.0, 300.0, 90_000.0]),
    st.sampled_from([None] * 6 + [0.3, 2.0, 100.0]),
    st.sampled_from([None] * 4 + [0.3, 4.0]),
)
units = st.lists(st.tuples(lanes, st.lists(messages, min_size=1, max_size=4)), min_size=1, max_size=3)
durabilities = st.sampled_from([None, None, Durability.OS])
rounds = st.integers(0, 8)
cuts = st.booleans()


class Everything(PrefixRules, ZombieRules, RuleBasedStateMachine):
    @initialize(kind=st.sampled_from(["memory", "os", "fsync"]), seed=st.integers(0, 1 << 30))
    def start(self, kind: str, seed: int) -> None:
        self.do(self.begin(kind, seed))

    # Producers

    @rule(drawn=units, durability=durabilities)
    def send_a_unit(self, drawn: Drawn, durability: Durability | None) -> None:
        async def work() -> None:
            unit, seq = self.unit(drawn), self.seq
            self.seq += len(unit)
            sent = await self.send(unit, seq, durability)
            self.committed(unit, sent)
            self.model.last = unit, seq
            self.unsynced() if durability is Durability.OS else self.synced()

        self.step(work())

    @precondition(lambda self: self.model.last is not None)
    @rule()
    def send_it_again(self) -> None:
        async def work() -> None:
            assert self.model.last is not None
            unit, seq = self.model.last
            sent = await self.send(unit, seq)
            assert sent.duplicate or all(item.dedup for _, items in unit for item in items)

        self.step(work())

    @precondition(lambda self: len(self.model.prepared) < 3)
    @rule(drawn=units)
    def prepare(self, drawn: Drawn) -> None:
        async def work() -> None:
            unit, name = self.unit(drawn), f"t{self.bodies}"
            await self.plant.prepare(name, frames_of(unit))
            self.model.prepared[name] = unit
            self.synced()

        self.step(work())

    @precondition(lambda self: self.model.prepared)
    @rule(share=shares, commit=st.booleans())
    def decide(self, share: float, commit: bool) -> None:
        async def work() -> None:
            name = pick(sorted(self.model.prepared), share)
            await self.decide_one(name, commit)

        self.step(work())

    async def decide_one(self, name: str, commit: bool) -> None:
        answer = await self.plant.broker.transactions.decide(Decide(name, commit))
        self.decided(name, commit, answer)
        self.synced()

    def decided(self, name: str, commit: bool, answer: Any) -> None:
        unit = self.model.prepared.pop(name)
        if commit:
            self.committed(unit, answer)
        self.model.decided[name] = commit

    @precondition(lambda self: self.model.decided)
    @rule(share=shares, commit=st.booleans())
    def decide_again(self, share: float, commit: bool) -> None:
        async def work() -> None:
            name = pick(sorted(self.model.decided), share)
            try:
                answer = await self.plant.broker.transactions.decide(Decide(name, commit))
            except Conflict:
                assert commit != self.model.decided[name]
            else:
                assert answer.duplicate
                assert commit == self.model.decided[name]

        self.step(work())

    @precondition(lambda self: self.model.delayed)
    @rule(share=shares, delay_s=st.sampled_from([None, None, 0.3, 7.0, 4_000.0]))
    def cancel_or_move(self, share: float, delay_s: float | None) -> None:
        async def work() -> None:
            number = pick(sorted(self.model.delayed), share)
            one = self.model.delayed[number]
            if delay_s is None:
                answer: Any = await self.plant.broker.delayed.cancel(CancelDelayed(one.lane[0], [number]))
                del self.model.delayed[number]
            else:
                request = MoveDelayed(one.lane[0], [number], "", -round(delay_s * 1e6))
                answer = await self.plant.broker.delayed.move(request)
                one.due_us = self.now_us + round(delay_s * 1e6)
                one.not_before_us = self.now_us + 1
            assert answer.count == 1
            self.synced()

        self.step(work())

    # Consumers

    @rule(key=keys, consumer=consumers, hold=st.sampled_from(["none", "all", "some", "wrong"]))
    def attach_one(self, key: Key, consumer: str, hold: str) -> None:
        consumer = SETUP[key].alone or consumer
        held = self.model.ledgers[key].held_by(consumer)
        holding = {"none": [], "all": held, "some": held[::2], "wrong": [*held, 17, (1 << 40) + 1]}[hold]
        self.step(self.attach(key, consumer, holding))

    def member(self, share: float) -> tuple[Key, str]:
        found: tuple[Key, str] = pick(sorted(self.members), share)
        return found

    @precondition(lambda self: self.members)
    @rule(
        share=shares,
        count=st.sampled_from([1, 2, 5, 20]),
        max_bytes=st.sampled_from([1 << 20, 1 << 20, 1, 1_500]),
        drawn=st.none() | acts,
    )
    def pull_some(self, share: float, count: int, max_bytes: int, drawn: Any) -> None:
        key, consumer = self.member(share)
        chosen = [self.chosen(key, *drawn)] if drawn and self.model.ledgers[key].deliveries else []
        self.step(self.pull(key, consumer, count, max_bytes, chosen))

    def chosen(self, key: Key, what: int, share: float, subset: Any, up_to: bool, delay_s: float | None) -> Act:
        """An act about one of the pulls, rather one that is open, and some messages of it."""
        ledger = self.model.ledgers[key]
        pulls = [pull for who in CONSUMERS for pull in ledger.held_by(who)] if share < 0.9 else []
        pull = pick(sorted(pulls or ledger.deliveries), share * 997 % 1)
        one = ledger.deliveries[pull]
        names = (one.open if share < 0.6 else []) or list(one.outcomes)
        starts = [(pick(names, at), count if share > 0.5 else 1) for at, count in subset or ()]
        spans = [(lane, first, count) for (lane, first), count in starts]
        return Act(what, pull, spans, up_to and what == ACK, delay_s if what == NACK else None, f"why {share}")

    @precondition(lambda self: any(self.model.ledgers[key].deliveries for key, _ in self.members))
    @rule(share=shares, drawn=st.lists(acts, min_size=1, max_size=2), stranger=st.sampled_from([False] * 8 + [True]))
    def settle_some(self, share: float, drawn: list[Any], stranger: bool) -> None:
        found = self.settling(share, drawn, stranger)
        self.step(self.settle(*found))

    def settling(self, share: float, drawn: list[Any], stranger: bool) -> tuple[Key, str, list[Act]]:
        busy = sorted({key for key, _ in self.members if self.model.ledgers[key].deliveries})
        key = pick(busy, share)
        chosen = [self.chosen(key, *one) for one in drawn]
        here = sorted(consumer for one, consumer in self.members if one == key)
        owner = self.model.ledgers[key].deliveries[chosen[0].pull].consumer
        consumer = owner if owner in here and not stranger else here[0]
        return key, consumer, chosen

    @precondition(lambda self: self.members)
    @rule(share=shares, how=st.sampled_from(["in order", "vanished"]))
    def leave(self, share: float, how: str) -> None:
        key, consumer = self.member(share)
        member = self.members[key, consumer]

        async def work() -> None:
            if how == "vanished":
                self.plant.broker.consumers.disconnected(member)
                while not member.fenced:
                    await asyncio.sleep(0)
            else:
                await self.plant.broker.consumers.detach(member)
            self.gone(key, consumer, vanished=how == "vanished")

        self.step(work())

    # Administrators

    @rule(key=keys, paused=st.booleans())
    def pause(self, key: Key, paused: bool) -> None:
        async def work() -> None:
            await self.plant.broker.groups.pause(Pause(*key, paused))
            (self.paused.add if paused else self.paused.discard)(key)

        self.step(work())

    async def unpause(self, key: Key) -> None:
        await self.plant.broker.groups.pause(Pause(*key, False))
        self.paused.discard(key)

    @rule(key=keys, to=st.sampled_from(["", "", "earliest", "latest"]), lane=st.integers(0, RANKS - 1), share=shares)
    def seek(self, key: Key, to: str, lane: int, share: float) -> None:
        self.step(self.seek_to(key, to, lane, share))

    async def seek_to(self, key: Key, to: str, lane: int, share: float) -> None:
        ledger = self.model.ledgers[key]
        ledger.clock.append(self.now_us)
        positions = [] if to else [(lane, round(share * ledger.ends[lane]))]
        dry = await self.plant.broker.groups.seek(Seek(*key, to, positions, dry_run=True))
        sought = await self.plant.broker.groups.seek(Seek(*key, to, positions))
        assert dry == sought
        self.moved(key, to, positions, (sought.again, sought.passed))
        self.synced()

    def moved(self, key: Key, to: str, positions: list[tuple[int, int]], told: tuple[int, int]) -> None:
        ledger = self.model.ledgers[key]
        wanted = positions or [(one, (ledger.firsts if to == "earliest" else ledger.ends)[one]) for one in range(RANKS)]
        weights = [ledger.move(one, min(max(number, ledger.firsts[one]), ledger.ends[one])) for one, number in wanted]
        assert told == (sum(one[0] for one in weights), sum(one[1] for one in weights))

    @rule(topic=st.sampled_from(sorted(TOPICS)))
    def purge(self, topic: str) -> None:
        async def work() -> None:
            for _, ledger in self.model.groups_of(topic):
                ledger.clock.append(self.now_us)
            purged = await self.plant.broker.purge(Purge(topic))
            for group, ledger in sorted(self.model.groups_of(topic)):
                passed = sum(ledger.move(lane, ledger.ends[lane])[1] for lane in range(2 * RANKS))
                assert (group, passed) in purged.groups
                for lane in range(2 * RANKS):
                    ledger.trim(lane, ledger.ends[lane])
            for lane in range(RANKS):
                self.model.firsts[topic, lane] = len(self.model.lanes[topic, lane])
            # An id stands for a message that is gone.
            self.model.ids = {name: place for name, place in self.model.ids.items() if name[0] != topic}
            self.synced()

        self.step(work())

    @precondition(lambda self: any(self.model.letters.values()))
    @rule(share=shares, picks=st.lists(shares, max_size=3))
    def resend(self, share: float, picks: list[float]) -> None:
        async def work() -> None:
            key: Key = pick(sorted(key for key, letters in self.model.letters.items() if letters), share)
            dead = self.model.ledgers[key].dead
            numbers = sorted({pick(range(len(dead)), one) for one in picks})
            try:
                answer = await self.plant.broker.dead_letters.resend(Resend(*key, numbers))
            except Conflict:
                assert any(dead[number] for number in numbers)
                return
            wanted = numbers or [number for number, sent in enumerate(dead) if not sent]
            assert not any(dead[number] for number in wanted)
            assert answer.count == len(wanted)
            self.model.resend(key, wanted)
            if wanted:
                self.synced()

        self.step(work())

    @rule(topic=st.sampled_from(sorted(TOPICS)), age_s=st.sampled_from([None, None, 1.0, 100.0]))
    def maintain(self, topic: str, age_s: float | None) -> None:
        async def work() -> None:
            await self.plant.broker.topics.edit(EditTopic(topic, age_s))
            await self.plant.broker.maintain()
            await self.plant.broker.topics.edit(EditTopic(topic, None))
            before = dict(self.model.firsts)
            for lane, first in self.model.firsts.items():
                new = self.plant.store.bounds(stream_of(lane)).first
                before_us = self.now_us - round(age_s * 1e6) if age_s is not None and lane[0] == topic else 0
                for number in range(first, new):
                    self.check_dropped(lane, number, before_us)
                self.model.firsts[lane] = new
                for _, ledger in self.model.groups_of(lane[0]):
                    ledger.trim(lane[1], new)
            # What was dropped stays dropped, so all before it is on the disk as well.
            self.synced() if self.model.firsts != before else self.unsynced()

        self.step(work())

    def check_dropped(self, lane: Lane, number: int, before_us: int) -> None:
        states = [ledger.messages[lane[1], number].state for _, ledger in self.model.groups_of(lane[0])]
        assert not {"leased", "retrying", "dying"} & set(states), "dropped while somebody needs it"
        too_old = self.model.times[lane][number] < before_us
        consumed = self.plant.kind == "memory" and "waiting" not in states
        assert too_old or consumed, "dropped before its time"

    # Time

    @rule(
        seconds=st.sampled_from([0.3, 1.0, 1.0, 5.0, 20.0, 40.0, 1_000.0, 100_000.0, -0.5, -20.0]),
        beating=st.sampled_from([(), ("ann",), (PAT,), (*CONSUMERS, PAT), (*CONSUMERS, PAT)]),
    )
    def time_passes(self, seconds: float, beating: tuple[str, ...]) -> None:
        self.step(self.pass_time(seconds, beating))

    # Crashes

    def lives_on(self) -> bool:
        return hasattr(self, "plant") and self.plant.kind != "memory"

    @precondition(lives_on)
    @rule()
    def restart(self) -> None:
        async def work() -> None:
            await self.plant.reopen()
            await self.recognise([self.model])

        self.step(work())

    @precondition(lives_on)
    @rule(cut=cuts)
    def crash(self, cut: bool) -> None:
        async def work() -> None:
            cut_power = cut and self.plant.kind == "fsync"
            candidates = self.history if cut_power else [self.model]
            await self.plant.reopen(self.plant.copy(power_cut=cut_power))
            await self.recognise(candidates)

        self.step(work())

    async def crash_during(self, work: Coroutine[Any, Any, Any], rounds: int, cut: bool) -> tuple[Any, Path, bool]:
        """Begin something, and crash some turns of the loop later. Gives its answer, what is left, and whether it had
        been answered by then."""
        task = asyncio.ensure_future(work)
        for _ in range(rounds):
            await asyncio.sleep(0)
        answered = task.done()
        path = self.plant.copy(power_cut=cut and self.plant.kind == "fsync")
        return await task, path, answered

    async def after_crash(self, before: list[Model], path: Path, answered: bool) -> bool:
        """Go on with what is left. Whether what was under way happened."""
        after = self.model
        candidates = [after] if answered else [*before, after]
        await self.plant.reopen(path)
        await self.recognise(candidates)
        return answered or self.model.prepared.keys() == after.prepared.keys()

    def before(self) -> list[Model]:
        return [*self.history, copy.deepcopy(self.model)]

    @precondition(lives_on)
    @rule(drawn=units, rounds=rounds, cut=cuts)
    def crash_while_sending(self, drawn: Drawn, rounds: int, cut: bool) -> None:
        async def work() -> None:
            unit, seq, before = self.unit(drawn), self.seq, self.before()
            self.seq += len(unit)
            sent, path, answered = await self.crash_during(self.send(unit, seq), rounds, cut)
            self.committed(unit, sent)
            await self.after_crash(before, path, answered)
            # The producer had no answer, and sends it again: it is there once.
            known = {body for lane in self.model.lanes.values() for body in lane}
            known |= {one.body for one in self.model.delayed.values()}
            again = await self.send(unit, seq)
            bodies = {item.body for _, items in unit for item in items if not item.dedup}
            if bodies:
                assert again.duplicate == (bodies <= known), "there, and not known again; or known, and not there"
            if not again.duplicate:
                self.committed(unit, again)
            self.model.last = unit, seq
            self.synced()

        self.step(work())

    @precondition(lambda self: self.lives_on() and self.model.prepared)
    @rule(share=shares, commit=st.booleans(), rounds=rounds, cut=cuts)
    def crash_while_deciding(self, share: float, commit: bool, rounds: int, cut: bool) -> None:
        async def work() -> None:
            name, before = pick(sorted(self.model.prepared), share), self.before()
            deciding = self.plant.broker.transactions.decide(Decide(name, commit))
            answer, path, answered = await self.crash_during(deciding, rounds, cut)
            self.decided(name, commit, answer)
            await self.after_crash(before, path, answered)
            if name in self.model.prepared:
                await self.decide_one(name, commit)

        self.step(work())

    @precondition(lambda self: self.lives_on() and any(self.model.ledgers[key].deliveries for key, _ in self.members))
    @rule(share=shares, drawn=acts, rounds=rounds, cut=cuts)
    def crash_while_settling(self, share: float, drawn: Any, rounds: int, cut: bool) -> None:
        async def work() -> None:
            key, consumer, chosen = self.settling(share, [drawn], False)
            before = self.before()
            settling = self.plant.broker.consumers.settle(self.members[key, consumer], chosen)
            _, path, answered = await self.crash_during(settling, rounds, cut)
            _, changed = self.act(key, consumer, chosen[0])
            await self.after_crash(before, path, answered and changed)

        self.step(work())


@pytest.mark.timeout(900)
def test_everything_goes_as_the_model_says(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "towline")
    examples = max(request.config.getoption("--kills") * 2 // 5, 1)
    patient = settings(
        max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(Everything, settings=patient)


class OnADatabase(Everything):
    """A crash leaves what is committed."""

    @initialize(seed=st.integers(0, 1 << 30))
    def start(self, seed: int) -> None:
        self.do(self.begin("sql", seed))


@pytest.mark.timeout(900)
def test_everything_goes_as_the_model_says_on_a_database(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "towline")
    needs_mariadb()
    examples = max(request.config.getoption("--kills") // 25, 1)
    patient = settings(
        max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(OnADatabase, settings=patient)
