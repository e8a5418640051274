"""A group with a clock and a pull log: what a broker does with it, in memory and in a few words."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from towline.delivery import (
    Ack,
    Command,
    Event,
    GiveBack,
    Group,
    Lapse,
    Leave,
    Nack,
    Part,
    Pull,
    decode_event,
    encode_event,
    restore,
    snapshot,
)
from towline.delivery.group.events import Pulled
from towline.model import LANES, GroupConfig, RetryPolicy, Span

HIGH, MIDDLE, LOW = range(len(LANES))
OWN_HIGH, OWN_MIDDLE, OWN_LOW = range(len(LANES), 2 * len(LANES))
SECOND = 1_000_000
NOON = 1_700_000_000 * SECOND

ANN, BOB = "ann", "bob"

T = TypeVar("T")


def whole(work: Generator[None, None, T]) -> T:
    """All steps of it at once."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


class Driver:
    def __init__(
        self, *, max_attempts: int = 16, delays_s: tuple[float, ...] = (10.0, 30.0), shards: int = 0, **settings: Any
    ) -> None:
        self.shards = shards
        self.config = GroupConfig("orders", "billing", retry=RetryPolicy(max_attempts, delays_s), **settings)
        self.group = Group(self.config, shards)
        self.now_us = NOON
        self.log: list[bytes] = []
        self.pulls = 0

    # The store

    def append(self, lane: int, count: int, size: int = 100) -> None:
        self.group.observe(lane, self.group.firsts[lane], self.group.ends[lane] + count, size)

    def trim(self, lane: int, first: int) -> None:
        self.group.observe(lane, first, self.group.ends[lane], self.group.mean_bytes[lane])

    def pass_time(self, seconds: float) -> None:
        self.now_us += round(seconds * SECOND)

    # The broker

    def do(self, command: Command) -> list[Event]:
        events = self.group.decide(command, self.now_us)
        for event in events:
            self.log.append(encode_event(event))
            self.group.apply(decode_event(self.log[-1]))
        return events

    def restart(self, *, from_snapshot: int | None = None) -> None:
        """Come back from the log alone, or from a snapshot taken now."""
        old = self.group
        if from_snapshot is None:
            self.group = Group(self.config, self.shards)
            for record in self.log:
                self.group.apply(decode_event(record))
        else:
            self.group = whole(restore(self.config, snapshot(old, from_snapshot), self.shards))
        for lane in range(len(old.ends)):
            self.group.observe(lane, old.firsts[lane], old.ends[lane], old.mean_bytes[lane])

    # Consumers

    def pull(
        self, consumer: str = ANN, count: int = 100, *, max_bytes: int = 1 << 30, min_messages: int = 1
    ) -> list[Part]:
        """The parts of the pull; its number is then in `pulls`."""
        self.pulls += 1
        events = self.do(Pull(consumer, self.pulls, count, max_bytes, min_messages))
        return [part for event in events if isinstance(event, Pulled) for part in event.parts]

    def ack(self, *spans: Span, pull: int = 0, consumer: str = ANN, up_to: bool = False) -> list[Event]:
        return self.do(Ack(consumer, pull or self.pulls, spans, up_to))

    def nack(
        self,
        *spans: Span,
        pull: int = 0,
        consumer: str = ANN,
        reason: str = "no stock",
        delay_s: float | None = None,
        dead: bool = False,
    ) -> list[Event]:
        return self.do(Nack(consumer, pull or self.pulls, spans, reason, delay_s, dead))

    def give_back(self, *spans: Span, pull: int = 0, consumer: str = ANN) -> list[Event]:
        return self.do(GiveBack(consumer, pull or self.pulls, spans))

    def leave(self, consumer: str = ANN) -> list[Event]:
        return self.do(Leave(consumer, vanished=False))

    def vanish(self, consumer: str = ANN) -> list[Event]:
        return self.do(Leave(consumer, vanished=True))

    def lapse(self, *overdue: tuple[int, tuple[Span, ...], str]) -> list[Event]:
        return self.do(Lapse(overdue))

    # What there is

    def retries(self) -> list[tuple[Part, int]]:
        return list(self.group.retries)

    def done(self) -> int:
        return snapshot(self.group, 0).counters["DONE"]
