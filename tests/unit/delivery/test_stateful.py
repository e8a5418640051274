"""Random commands by several consumers, with the clock going forward and back, retention and restarts, against a ledger
that keeps a record of every message."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.delivery.driver import whole
from tests.unit.delivery.ledger import Ledger, Name
from towline.delivery import (
    Ack,
    Bury,
    Command,
    Event,
    Expire,
    GiveBack,
    Group,
    GroupSnapshot,
    Lapse,
    Leave,
    Move,
    Nack,
    Part,
    Pull,
    Resend,
    Skip,
    Withdraw,
    decode_event,
    encode_event,
    restore,
    snapshot,
)
from towline.delivery.group import ranges
from towline.delivery.group import snapshot as snapshots
from towline.delivery.group.events import Pulled
from towline.delivery.group.ranges import BLOCK
from towline.delivery.group.seek import pulls_in_the_way, weigh, within_bounds
from towline.delivery.group.snapshot import EXCERPT, OpenState, excerpt, rest_in
from towline.errors import TowlineError
from towline.model import GroupConfig, RetryPolicy, Span

CONSUMERS = ("ann", "bob", "cid")
LANES = range(6)
SHARDS = 3
"""As many as there are priorities, so that the group's own lanes have the same numbers."""

consumers = st.sampled_from(CONSUMERS)
lanes = st.sampled_from([1, 1, 1, 0, 2, 3, 4, 5])
arrivals = st.lists(st.tuples(lanes, st.integers(1, 10)), max_size=3)
shares = st.floats(0, 1)
subsets = st.none() | st.lists(st.tuples(shares, st.integers(1, 4)), min_size=1, max_size=4)
"""Messages of a pull, by where they begin in it and how many they are; None is the whole pull."""
passing = st.sampled_from([0, 0, 0.000001, 0.3, 1.0, 5.0, 40.0, -0.5, -20.0])
strangers = st.sampled_from([None] * 12 + list(CONSUMERS))
delays = st.sampled_from([None, None, 0.0, 0.4, 3.21])


def names_of(parts: list[Part] | tuple[Part, ...]) -> dict[Name, int]:
    """Each message of the parts, with its attempt."""
    found = {(part.lane, number): part.attempt for part in parts for number in range(part.first, part.end)}
    assert len(found) == sum(part.count for part in parts), "a message is there twice"
    return found


def spanned(spans: tuple[Span, ...]) -> set[Name]:
    return {(span.lane, number) for span in spans for number in range(span.first, span.end)}


class Reading(NamedTuple):
    """The open state of a group while it is read out, beside what it is to come to."""

    state: OpenState
    pieces: Iterator[bytes]
    read: list[bytes]
    shown: GroupSnapshot
    expected: GroupSnapshot
    config: GroupConfig


class Delivery(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        ranges.BLOCK = 3  # type: ignore[misc]
        snapshots.EXCERPT = 2  # type: ignore[misc]
        self.reading: Reading | None = None
        self.now_us = 1_000_000_000
        self.pulls = 0
        self.log: list[bytes] = []
        self.mean_bytes = [100] * len(LANES)

    @initialize(
        max_attempts=st.sampled_from([1, 2, 3, 16]),
        delays_s=st.sampled_from([(0.0,), (0.5, 2.0), (10.0, 30.0)]),
        timeout_s=st.sampled_from([0, 0, 3.0]),
        max_in_flight=st.sampled_from([3, 10, 1000]),
        shards=st.sampled_from([0, 0, SHARDS]),
        share=st.sampled_from([(), (), (3, 2, 1), (90, 9, 1)]),
    )
    def begin(
        self,
        max_attempts: int,
        delays_s: tuple[float, ...],
        timeout_s: float,
        max_in_flight: int,
        shards: int,
        share: tuple[int, ...],
    ) -> None:
        self.shards = shards
        self.config = GroupConfig(
            "t",
            "g",
            retry=RetryPolicy(max_attempts, delays_s),
            timeout_s=timeout_s,
            max_in_flight=max_in_flight,
            share=share,
        )
        self.group = Group(self.config, shards)
        self.ledger = Ledger(max_attempts, delays_s, timeout_s, max_in_flight, ordered=bool(shards))

    def do(self, command: Command) -> tuple[list[Event], str]:
        """The events of a command, or the code of the error."""
        self.ledger.clock.append(self.now_us)
        before = snapshot(self.group, 0)
        try:
            events = self.group.decide(command, self.now_us)
        except TowlineError as error:
            assert snapshot(self.group, 0) == before, "a refused command has changed something"
            return [], error.code
        assert snapshot(self.group, 0) == before, "deciding has changed something"
        for event in events:
            self.log.append(encode_event(event))
            self.group.apply(decode_event(self.log[-1]))
        return events, ""

    # The world

    @rule(lane=lanes, mean=st.integers(1, 300), share=st.sampled_from([0, 0.1, 0.3, 0.6, 0.9, 1]))
    def trim(self, lane: int, mean: int, share: float) -> None:
        self.ledger.trim(lane, round(self.ledger.ends[lane] * share))
        self.mean_bytes[lane] = mean
        self.observe(lane)

    def append(self, lane: int, count: int) -> None:
        self.ledger.append(lane, count)
        self.observe(lane)

    def observe(self, lane: int) -> None:
        self.group.observe(lane, self.ledger.firsts[lane], self.ledger.ends[lane], self.mean_bytes[lane])

    def pass_time(self, seconds: float) -> None:
        self.now_us += round(seconds * 1e6)
        late = self.ledger.late(self.now_us)
        self.do(Lapse())
        for pull in late:
            self.ledger.take_away(pull)

    @rule(from_snapshot=st.booleans())
    def restart(self, from_snapshot: bool) -> None:
        before = snapshot(self.group, len(self.log))
        if from_snapshot:
            document = msgspec.json.decode(msgspec.json.encode(before), type=GroupSnapshot)
            self.group = whole(restore(self.config, document, self.shards))
        else:
            self.group = self.replayed()
        assert snapshot(self.group, len(self.log)) == before
        for lane in LANES:
            self.observe(lane)

    @precondition(lambda self: self.reading is None)
    @rule()
    def begin_reading(self) -> None:
        shown, expected, state = excerpt(self.group, 7), snapshot(self.group, 7), OpenState(self.group)
        self.reading = Reading(state, state.pieces(), [], shown, expected, self.config)

    @precondition(lambda self: self.reading is not None)
    @rule(count=st.sampled_from([1, 2, 5, 1_000]))
    def read_on(self, count: int) -> None:
        """The group went on meanwhile."""
        reading = self.reading
        assert reading is not None
        some = list(islice(reading.pieces, count))
        reading.read.extend(some)
        if len(some) < count:
            reading.state.close()
            self.reading = None
            rest = whole(rest_in(b"".join(reading.read)))
            group = whole(restore(reading.config, reading.shown, self.shards, rest))
            assert snapshot(group, 7) == reading.expected

    def replayed(self) -> Group:
        group = Group(self.config, self.shards)
        for record in self.log:
            group.apply(decode_event(record))
        return group

    @rule(lane=lanes, share=shares, end=st.sampled_from([None, None, 0, 1]), bit_by_bit=st.booleans())
    def seek(self, lane: int, share: float, end: int | None, bit_by_bit: bool) -> None:
        ledger = self.ledger
        wanted = round((share if end is None else end) * ledger.ends[lane])
        to = min(max(wanted, ledger.firsts[lane]), ledger.ends[lane])
        weight = weigh(self.group, within_bounds(self.group, ((lane, wanted),)))
        pulls = pulls_in_the_way(self.group, ((lane, to),)) if bit_by_bit else []
        while pulls := [pull for pull in pulls if pull in self.group.leases]:
            self.do(Withdraw(tuple(pulls)))
        self.do(Move(((lane, wanted),), "why not"))
        assert weight == ledger.move(lane, to)

    @rule(paused=st.sampled_from([False, False, False, True]))
    def pause(self, paused: bool) -> None:
        self.config = self.group.config = msgspec.structs.replace(self.config, paused=paused)

    # Consumers

    @rule(
        seconds=passing,
        arriving=arrivals,
        consumer=consumers,
        count=st.sampled_from([1, 2, 5, 20]),
        max_bytes=st.sampled_from([0, 150, 1_000, 100_000, 100_000]),
        least=st.sampled_from([1, 1, 1, 4]),
    )
    def pull(
        self,
        seconds: float,
        arriving: list[tuple[int, int]],
        consumer: str,
        count: int,
        max_bytes: int,
        least: int,
    ) -> None:
        self.pass_time(seconds)
        for lane, many in arriving:
            self.append(lane, many)
        self.pulls += 1
        ledger = self.ledger
        room = min(count, ledger.max_in_flight - ledger.in_flight(consumer))
        events, error = self.do(Pull(consumer, self.pulls, count, max_bytes, least))
        assert not error
        if self.config.paused:
            assert not events
            assert not self.group.deliverable(self.now_us)
            return
        ledger.overrun()
        must, may = ledger.due(self.now_us), ledger.ever_due()
        pulled = [event for event in events if isinstance(event, Pulled)]
        got = names_of(pulled[0].parts) if pulled else {}
        # Which shard comes first is the group's affair.
        shards = list(dict.fromkeys([lane for lane, _ in got if lane < self.shards])) if self.shards else []
        shards += [shard for shard in range(self.shards) if shard not in shards]
        for shard in shards:
            mine = [name for name in got if name[0] == shard]
            assert mine == ledger.of_shard(shard, may, set(ledger.waiting()))[: len(mine)], "overtaken in a shard"
        if not self.shards and must == may:
            self.check_share(list(got), ledger.order(must, []), must, room, max_bytes, least)
        elif must == may:
            assert list(got) == ledger.fill(ledger.order(must, shards), room, max_bytes, least, self.mean_bytes)
        else:
            served = [name for name in ledger.order(may, shards) if name in got]
            assert list(got) == served, "not in order of priority, or before it was due"
            assert len(got) <= room
        if got:
            assert pulled[0].parts
            ledger.deliver(self.pulls, consumer, got, self.now_us)

    def check_share(
        self, got: list[Name], order: list[Name], again: set[Name], room: int, max_bytes: int, least: int
    ) -> None:
        """A share changes how much a full batch has of each priority, and of what is new; not its order, nor a batch
        that holds all."""
        strict = self.ledger.fill(order, room, max_bytes, least, self.mean_bytes)
        assert got == [name for name in order if name in got]
        for one in {(lane, new) for lane in LANES for new in (False, True)}:
            alike = [name for name in order if (name[0], name not in again) == one]
            mine = [name for name in got if name in alike]
            assert mine == alike[: len(mine)]
        kinds = {(name[0] % SHARDS, name not in again) for name in order}
        if len(strict) == len(order) or not strict or len(kinds) == 1:
            assert got == strict
        elif not self.config.share:
            rank = strict[-1][0] % SHARDS
            assert {name[0] % SHARDS for name in got} <= set(range(rank + 1)), "before one of a higher priority"
        assert bool(got) == bool(strict)
        assert len(got) <= room

    def pick(self, share: float, subset: list[tuple[float, int]] | None) -> tuple[int, tuple[Span, ...]]:
        """One of the pulls, rather one that is open, and some messages of it."""
        pulls = [pull for who in CONSUMERS for pull in self.ledger.held_by(who)] if share < 0.8 else []
        pulls = sorted(pulls or self.ledger.deliveries)
        pull = pulls[int(share * 997) % len(pulls)]
        names = (self.ledger.deliveries[pull].open if share < 0.5 else []) or list(
            self.ledger.deliveries[pull].outcomes
        )
        starts = [(names[int(at * (len(names) - 1))], count) for at, count in subset or ()]
        return pull, tuple(Span(lane, first, count if share > 0.4 else 1) for (lane, first), count in starts)

    @precondition(lambda self: self.ledger.deliveries)
    @rule(share=shares, subset=subsets, stranger=strangers, up_to=st.booleans())
    def ack(self, share: float, subset: list[tuple[float, int]] | None, stranger: str | None, up_to: bool) -> None:
        pull, spans = self.pick(share, subset)
        consumer = stranger or self.ledger.deliveries[pull].consumer
        chosen = self.settle(Ack(consumer, pull, spans, up_to), "acked")
        if chosen is not None:
            self.ledger.ack(pull, chosen)
            if up_to:
                self.ledger.ack_earlier(consumer, pull)

    @precondition(lambda self: self.ledger.deliveries)
    @rule(share=shares, subset=subsets, stranger=strangers, delay_s=delays, dead=st.sampled_from([False, False, True]))
    def nack(
        self,
        share: float,
        subset: list[tuple[float, int]] | None,
        stranger: str | None,
        delay_s: float | None,
        dead: bool,
    ) -> None:
        pull, spans = self.pick(share, subset)
        consumer = stranger or self.ledger.deliveries[pull].consumer
        chosen = self.settle(Nack(consumer, pull, spans, f"why {share}", delay_s, dead), "nacked")
        if chosen is not None:
            self.ledger.nack(pull, chosen, self.now_us, delay_s, dead=dead)

    @precondition(lambda self: self.ledger.deliveries)
    @rule(share=shares, subset=subsets, stranger=strangers)
    def give_back(self, share: float, subset: list[tuple[float, int]] | None, stranger: str | None) -> None:
        pull, spans = self.pick(share, subset)
        consumer = stranger or self.ledger.deliveries[pull].consumer
        chosen = self.settle(GiveBack(consumer, pull, spans), "given back")
        if chosen is not None:
            self.ledger.give_back(pull, chosen)

    def settle(self, command: Ack | Nack | GiveBack, act: str) -> list[Name] | None:
        """The messages that the command is about; None if it is refused, and rightly so."""
        names = spanned(command.spans) if command.spans else None
        expected, refusals = self.ledger.choose(command.consumer, command.pull, names, act)
        _, error = self.do(command)
        assert error in (refusals or {""})
        return None if refusals else expected

    @precondition(lambda self: self.group.leases)
    @rule(consumer=consumers, vanished=st.booleans())
    def leave(self, consumer: str, vanished: bool) -> None:
        held = self.ledger.held_by(consumer)
        self.do(Leave(consumer, vanished))
        for pull in held:
            if vanished:
                self.ledger.take_away(pull)
            else:
                self.ledger.give_back(pull, self.ledger.deliveries[pull].open, "taken")

    # The broker

    @precondition(lambda self: self.group.leases)
    @rule(share=shares, subset=subsets)
    def skip(self, share: float, subset: list[tuple[float, int]] | None) -> None:
        pull, spans = self.pick(share, subset)
        self.do(Skip(pull, spans, "damaged"))
        self.ledger.skip(pull, spanned(spans))

    @precondition(lambda self: self.group.leases)
    @rule(share=shares, subset=subsets, to_dead=st.booleans())
    def expire(self, share: float, subset: list[tuple[float, int]] | None, to_dead: bool) -> None:
        pull, spans = self.pick(share, subset)
        self.config = self.group.config = msgspec.structs.replace(self.config, expired_to_dead=to_dead)
        self.do(Expire(pull, spans))
        if to_dead:
            self.ledger.expire(pull, spanned(spans))
        else:
            self.ledger.skip(pull, spanned(spans))

    @precondition(lambda self: self.group.dying)
    @rule(share=shares, count=st.integers(1, 3))
    def skip_dying(self, share: float, count: int) -> None:
        names = sorted(self.ledger.named("dying"))
        lane, first = names[int(share * (len(names) - 1))]
        self.do(Skip(0, (Span(lane, first, count),), "damaged"))
        self.ledger.skip(0, spanned((Span(lane, first, count),)))

    @precondition(lambda self: self.group.dying)
    @rule(data=st.data())
    def bury(self, data: st.DataObject) -> None:
        part = data.draw(st.sampled_from(list(self.group.dying)))
        first = data.draw(st.integers(part.first, part.end - 1))
        piece = Part(part.lane, first, data.draw(st.integers(1, part.end - first)), part.attempt)
        self.do(Bury((piece,), len(self.ledger.dead)))
        self.ledger.bury(list(names_of([piece])))

    @precondition(lambda self: self.ledger.dead)
    @rule(data=st.data())
    def resend(self, data: st.DataObject) -> None:
        dead = self.ledger.dead
        numbers = data.draw(st.sets(st.integers(0, len(dead) - 1), min_size=1, max_size=4))
        _, error = self.do(Resend(tuple(numbers)))
        assert error == ("conflict" if any(dead[number] for number in numbers) else "")
        if not error:
            for number in numbers:
                dead[number] = True
            self.append(4, len(numbers))

    # What must be true

    @invariant()
    def every_message_is_in_one_state_and_it_is_the_right_one(self) -> None:
        group, ledger = self.group, self.ledger
        actual: dict[Name, tuple[object, ...]] = {}
        total = 0
        for lane in LANES:
            numbers = range(group.next[lane], ledger.ends[lane])
            actual |= {(lane, number): ("waiting", 1) for number in numbers}
            total += len(numbers)
        for part, due_us in group.retries:
            actual |= {name: ("retrying", attempt, due_us) for name, attempt in names_of([part]).items()}
            total += part.count
        for lease in group.leases.values():
            held = names_of(list(lease.open))
            actual |= {name: ("leased", attempt, lease.pull) for name, attempt in held.items()}
            total += len(held)
        for part in group.dying:
            actual |= {name: ("dying", attempt) for name, attempt in names_of([part]).items()}
            total += part.count
        assert len(actual) == total, "a message is in two states"
        assert actual == self.expected()

    def expected(self) -> dict[Name, tuple[object, ...]]:
        ledger = self.ledger
        holders = {name: pull for pull, one in ledger.deliveries.items() for name in one.open}
        return {
            name: (
                message.state,
                message.attempt,
                *([message.due_us] if message.state == "retrying" else []),
                *([holders[name]] if message.state == "leased" else []),
            )
            for name, message in ledger.messages.items()
            if message.state not in ("done", "dead", "gone")
        }

    @invariant()
    def figures_are_right(self) -> None:
        group, ledger = self.group, self.ledger
        assert group.lag() == ledger.lag()
        assert group.backlog() == len(ledger.waiting())
        assert group.in_flight == {who: count for who in CONSUMERS if (count := ledger.in_flight(who))}
        assert group.leased() == len(ledger.named("leased"))
        assert group.retries.messages == len(ledger.named("retrying"))
        assert group.pins() == ledger.pins()
        assert snapshot(group, 0).counters == {
            "DONE": ledger.done,
            "DEAD": ledger.dead.count(False),
            "GONE": ledger.gone,
        }

    @invariant()
    def the_next_wake_is_not_too_late(self) -> None:
        deadlines = [one.deadline_us for one in self.ledger.deliveries.values() if one.open and one.deadline_us]
        retrying = self.ledger.named("retrying")
        out = {lane for lane, _ in self.ledger.named("leased")}
        # A shard wakes for the first of its messages, once nothing of it is out.
        heads = {lane: (lane, seq) for lane, seq in sorted(retrying, reverse=True)}
        waking = [
            name for name in retrying if name[0] >= self.shards or (name == heads[name[0]] and name[0] not in out)
        ]
        dues = [self.ledger.messages[name].due_us for name in waking]
        later = [time for time in (*deadlines, *dues) if time > max(self.ledger.clock, default=0)]
        wake_us = self.group.next_wake_us()
        if later:
            assert wake_us is not None
            assert wake_us <= min(later)
        assert wake_us is None or wake_us in (*deadlines, *dues)

    def teardown(self) -> None:
        ranges.BLOCK = BLOCK  # type: ignore[misc]
        snapshots.EXCERPT = EXCERPT  # type: ignore[misc]
        if hasattr(self, "group"):
            assert snapshot(self.replayed(), 0) == snapshot(self.group, 0)


TestDelivery = Delivery.TestCase
TestDelivery.settings = settings(max_examples=500, stateful_step_count=50)
