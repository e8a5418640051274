"""A generated history: real frames and real delivery events in a log store's folder, and the truth about each message.

The truth is kept message by message, in plain dictionaries, by whoever makes up the events; the jobs have to find it
again from ranges.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.inside.delivery import (
    Acked,
    Buried,
    Event,
    Failed,
    GaveUp,
    Moved,
    Overrun,
    Part,
    Paused,
    Pulled,
    Released,
    Resumed,
    Returned,
    Skipped,
    Started,
    encode_event,
)
from tests.inside.frame import encode, encode_events
from tests.inside.ground import ManualClock
from tests.inside.store import Append, LogStore
from towline.model import LANES, Durability, lane_stream, pull_stream

SECOND = 1_000_000
NOON = 1_777_636_800 * SECOND
MIDDLE = LANES.index("middle")


@dataclass
class Life:
    """What became of one message in a group."""

    sent_us: int
    status: str = "NEW"
    pulls: int = 0
    failures: int = 0
    acks: int = 0
    first_pulled_us: int = 0
    last_pulled_us: int = 0
    settled_us: int = 0
    consumer: str | None = None
    reason: str | None = None


@dataclass
class Writer:
    """Appends to a store as a broker would."""

    path: Path
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOON))
    units: list[tuple[int, list[Append]]] = field(default_factory=list)

    def send(
        self,
        topic: str,
        lane: str,
        bodies: Sequence[bytes],
        keys: Sequence[str | None] | None = None,
        headers: Sequence[dict[str, str] | None] | None = None,
    ) -> None:
        frame = encode(
            list(bodies),
            keys=None if keys is None else list(keys),
            headers=None if headers is None else list(headers),
            produced_at_us=self.clock.value_us,
        )
        self.units.append((self.clock.value_us, [Append(lane_stream(topic, lane), frame, len(bodies))]))

    def tell(self, topic: str, group: str, *events: Event) -> None:
        frame = encode_events([encode_event(event) for event in events], produced_at_us=self.clock.value_us)
        self.units.append((self.clock.value_us, [Append(pull_stream(topic, group), frame, len(events), control=True)]))

    def write(self) -> None:
        asyncio.run(self._write())

    async def _write(self) -> None:
        store = await LogStore.open(self.path, clock=self.clock)
        for at_us, unit in self.units:
            self.clock.value_us = at_us
            store.append(unit, Durability.OS)
        await store.append([], Durability.OS).done
        await store.close()
        self.units.clear()


class Group:
    """A group of one lane whose consumers do whatever chance tells them; keeps the truth."""

    def __init__(self, writer: Writer, topic: str, name: str, chance: random.Random, start: int = 0) -> None:
        self.writer, self.topic, self.name, self.chance = writer, topic, name, chance
        self.lives: dict[int, Life] = {}
        self.next = start
        self.start = start
        self.pull = 0
        self.waiting: list[Part] = []
        """To be delivered again."""
        self.dead = 0
        writer.tell(topic, name, Started(writer.clock.value_us, (0, start, 0, 0, 0, 0)))

    @property
    def now(self) -> int:
        return self.writer.clock.value_us

    def saw(self, first: int, count: int) -> None:
        """These were sent just now."""
        for seq in range(max(first, self.start), first + count):
            self.lives[seq] = Life(self.now)

    def tell(self, *events: Event) -> None:
        self.writer.tell(self.topic, self.name, *events)

    def take(self, consumer: str, count: int) -> list[Part]:
        """Pull what is to be tried again, then what is new."""
        parts, self.waiting = self.waiting[:3], self.waiting[3:]
        fresh = min(count, max(self.lives, default=-1) + 1 - self.next)
        if fresh > 0:
            parts.append(Part(MIDDLE, self.next, fresh, 1))
            self.next += fresh
        if not parts:
            return []
        self.pull += 1
        self.tell(Pulled(self.now, self.pull, consumer, 0, tuple(parts)))
        for part in parts:
            for seq in range(part.first, part.end):
                life = self.lives[seq]
                life.status, life.consumer, life.last_pulled_us = "RUNNING", consumer, self.now
                life.pulls += 1
                life.first_pulled_us = life.first_pulled_us or self.now
        return parts

    def settle(self, part: Part) -> None:
        """Cut a part at chance, and let each piece end in its own way."""
        while part.count:
            piece = part._replace(count=self.chance.randint(1, part.count))
            part = part._replace(first=piece.end, count=part.count - piece.count)
            self._end(piece, self.chance.random())

    def _end(self, piece: Part, fate: float) -> None:
        lives = [self.lives[seq] for seq in range(piece.first, piece.end)]
        if fate < 0.7:
            self.tell(Acked(self.now, self.pull, (piece,)))
            for life in lives:
                life.status, life.settled_us = "SUCCESS", self.now
                life.acks += 1
        elif fate < 0.85:
            why = f"reason {self.chance.randint(1, 3)}"
            if fate < 0.78:
                self.tell(Released(self.now, self.pull, (piece,), why))
            else:
                self.tell(Failed(self.now, self.pull, (piece,), self.now + SECOND, why))
            for life in lives:
                life.status, life.reason = "FAIL", why
                life.failures += 1
            self.waiting.append(piece._replace(attempt=piece.attempt + 1))
        elif fate < 0.9:
            self.tell(Returned(self.now, self.pull, (piece,)))
            for life in lives:
                life.status = "FAIL" if piece.attempt > 1 else "NEW"
            self.waiting.append(piece)
        elif fate < 0.96:
            self.tell(GaveUp(self.now, self.pull, (piece,), "hopeless"), Buried(self.now, (piece,), self.dead))
            self.dead += piece.count
            for life in lives:
                life.status, life.reason, life.settled_us = "DEAD", "hopeless", self.now
                life.failures += 1
        elif fate < 0.98:
            self.tell(Skipped(self.now, self.pull, (piece,), "its bytes are damaged"))
            for life in lives:
                life.status, life.reason, life.settled_us = "GONE", "its bytes are damaged", self.now

    def overrun(self, count: int) -> None:
        """Retention drops the next ones before they are pulled."""
        self.tell(Overrun(self.now, (Part(MIDDLE, self.next, count, 1),)))
        for seq in range(self.next, self.next + count):
            self.lives[seq].status, self.lives[seq].settled_us = "GONE", self.now
        self.next += count

    def move(self, to: int) -> None:
        """The group is moved while it rests; nothing is leased meanwhile."""
        self.tell(Paused(self.now, "moving"))
        self.tell(Moved(self.now, ((MIDDLE, to),)))
        self.tell(Resumed(self.now, self.now, "moving"))
        for seq, life in self.lives.items():
            if seq >= to:
                life.status, life.settled_us = "NEW", 0
            elif life.status in ("NEW", "RUNNING", "FAIL"):
                life.status, life.settled_us = "GONE", 0
        self.waiting = []
        self.next = to


def play(writer: Writer, group: Group, rounds: int, *, moves: bool = True) -> None:
    """Send, pull, settle, now and then lose and move, for some rounds."""
    chance = group.chance
    sent = 0
    for _ in range(rounds):
        count = chance.randint(1, 40)
        numbers = range(sent, sent + count)
        writer.send(group.topic, "middle", [f"body {n}".encode() for n in numbers], [f"key-{n}" for n in numbers])
        group.saw(sent, count)
        sent += count
        writer.clock.value_us += chance.randint(1, 1000)
        parts = group.take(chance.choice(("ann", "bob", "cid")), chance.randint(1, 60))
        writer.clock.value_us += chance.randint(1, 1000)
        for part in parts:
            group.settle(part)
        if chance.random() < 0.05 and group.next + 3 < sent:
            group.overrun(3)
        if moves and chance.random() < 0.03:
            group.move(chance.randint(group.start, sent))
        writer.clock.value_us += chance.randint(1, 1000)
