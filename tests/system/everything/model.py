"""What a broker holds, message by message: topics, groups, what waits for its time or for a decision.

It shares no code with what it is compared with. A group is a `Ledger`; this adds what goes on around groups. It can be
copied whole, so that a broker that lost the end of its log is compared with what was true a moment before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tests.unit.delivery.ledger import Ledger, Name

MIDDLE = 1
WINDOW_US = 86400 * 1_000_000
"""How long dedup ids are known."""
RANKS = 3


class Setup(NamedTuple):
    """How a group of the test is made."""

    topic: str
    group: str
    max_attempts: int = 3
    delays_s: tuple[float, ...] = (0.5, 2.0)
    timeout_s: float = 0.0
    max_in_flight: int = 1000
    share: tuple[int, ...] = ()
    once: bool = False
    """At most once."""
    expired_to_dead: bool = False

    @property
    def alone(self) -> str:
        """The one consumer of a group that is nobody else's: a broadcast consumer."""
        return self.group[1:] if self.group.startswith("~") else ""


TOPICS = {"orders": 0, "stock": 0, "trail": RANKS}
"""Shared topics, and one with shards: as many as there are priorities, which is what a ledger reckons with."""
SETUPS = (
    Setup("orders", "billing"),
    Setup("orders", "mail", 2, (0.0,), 3.0, 10, expired_to_dead=True),
    Setup("orders", "fair", share=(90, 9, 1), max_in_flight=5),
    Setup("stock", "billing", 16, (10.0, 30.0), 0.0, 3),
    Setup("stock", "once", once=True),
    Setup("trail", "billing"),
    Setup("trail", "mail", 2, (0.0, 40.0), 3.0, 10),
    Setup("trail", "once", once=True),
    Setup("orders", "~ann", max_in_flight=4),
    Setup("trail", "~ann", 4, (0.0,)),
)

Key = tuple[str, str]
"""Topic and group."""
Lane = tuple[str, int]


class Item(NamedTuple):
    """A message that is to be sent."""

    body: bytes
    dedup: str | None = None
    delay_s: float | None = None
    expires_us: int = 0
    timeout_us: int = 0


Unit = list[tuple[Lane, list[Item]]]
"""Frames that are sent together. All items of a frame have a delay, or none."""


@dataclass
class Delayed:
    body: bytes
    lane: Lane
    due_us: int
    not_before_us: int
    """What is due when it is sent is so at the next microsecond."""


@dataclass
class Model:
    ledgers: dict[Key, Ledger]
    lanes: dict[Lane, list[bytes]] = field(default_factory=dict)
    times: dict[Lane, list[int]] = field(default_factory=dict)
    """When each message was appended."""
    firsts: dict[Lane, int] = field(default_factory=dict)
    owns: dict[tuple[str, str, int], list[bytes]] = field(default_factory=dict)
    letters: dict[Key, list[tuple[bytes, int]]] = field(default_factory=dict)
    """Dead letters: body and the own lane that it goes to when it is sent again."""
    delayed: dict[int, Delayed] = field(default_factory=dict)
    ids: dict[tuple[str, str], tuple[int, int, int]] = field(default_factory=dict)
    """Where the first message with a dedup id is, and since when."""
    expires_us: dict[bytes, int] = field(default_factory=dict)
    timeouts_us: dict[bytes, int] = field(default_factory=dict)
    prepared: dict[str, Unit] = field(default_factory=dict)
    decided: dict[str, bool] = field(default_factory=dict)
    last: tuple[Unit, int] | None = None
    """The unit that was sent last, and its number."""

    @classmethod
    def new(cls) -> Model:
        ledgers = {
            (one.topic, one.group): Ledger(
                one.max_attempts, one.delays_s, one.timeout_s, one.max_in_flight, ordered=TOPICS[one.topic] > 0
            )
            for one in SETUPS
        }
        model = cls(ledgers)
        for topic in TOPICS:
            for lane in range(RANKS):
                model.lanes[topic, lane], model.times[topic, lane], model.firsts[topic, lane] = [], [], 0
        for topic, group in ledgers:
            model.letters[topic, group] = []
            for rank in range(RANKS):
                model.owns[topic, group, rank] = []
        return model

    def groups_of(self, topic: str) -> list[tuple[str, Ledger]]:
        return [(group, ledger) for (name, group), ledger in self.ledgers.items() if name == topic]

    def body(self, key: Key, name: Name) -> bytes:
        lane, number = name
        if lane < RANKS:
            return self.lanes[key[0], lane][number]
        return self.owns[key[0], key[1], lane - RANKS][number]

    def is_expired(self, key: Key, name: Name, now_us: int) -> bool:
        """A copy on a group's own lane lives on."""
        return name[0] < RANKS and 0 < self.expires_us.get(self.body(key, name), 0) <= now_us

    # Sending

    def append(self, lane: Lane, bodies: list[bytes], at_us: int) -> int:
        first = len(self.lanes[lane])
        self.lanes[lane] += bodies
        self.times[lane] += [at_us] * len(bodies)
        for _, ledger in self.groups_of(lane[0]):
            ledger.append(lane[1], len(bodies))
        return first

    def commit(self, unit: Unit, now_us: int, at_us: int, ids: dict[int, int]) -> list[list[tuple[int, int] | None]]:
        """A unit is stored, at `at_us` by the store. `ids` are the numbers of its delayed frames. Gives the lane and
        number of each message."""
        places: list[list[tuple[int, int] | None]] = []
        self.expires_us |= {item.body: item.expires_us for _, items in unit for item in items}
        self.timeouts_us |= {item.body: item.timeout_us for _, items in unit for item in items if item.timeout_us}
        for number, (lane, items) in enumerate(unit):
            if number in ids:
                for index, item in enumerate(items):
                    assert item.delay_s is not None
                    due_us = now_us + round(item.delay_s * 1e6)
                    self.delayed[ids[number] + index] = Delayed(item.body, lane, due_us, now_us + 1)
                places.append([None] * len(items))
                continue
            row: list[tuple[int, int] | None] = []
            for item in items:
                known = self.ids.get((lane[0], item.dedup)) if item.dedup else None
                if known is None or known[2] <= now_us - WINDOW_US:
                    known = lane[1], self.append(lane, [item.body], at_us), at_us
                    if item.dedup:
                        self.ids[lane[0], item.dedup] = known
                row.append(known[:2])
            places.append(row)
        return places

    # Time

    def due(self, latest_us: int) -> dict[Lane, set[bytes]]:
        """What may be delivered: its time has been."""
        found: dict[Lane, set[bytes]] = {}
        for one in self.delayed.values():
            if one.due_us <= latest_us:
                found.setdefault(one.lane, set()).add(one.body)
        return found

    def overdue(self, now_us: int) -> list[bytes]:
        return [one.body for one in self.delayed.values() if max(one.due_us, one.not_before_us) <= now_us]

    def check_order_of_times(self, bodies: list[bytes]) -> None:
        """Into a shard, what was delayed comes in the order of its times; of some the time is known up to a bound."""
        known = {one.body: one for one in self.delayed.values()}
        latest_us = 0
        for body in bodies:
            one = known[body]
            assert max(one.due_us, one.not_before_us) >= latest_us, "overtaken by what was due later"
            latest_us = max(latest_us, one.due_us)

    def deliver_delayed(self, lane: Lane, bodies: list[bytes], at_us: int) -> None:
        self.append(lane, bodies, at_us)
        self.delayed = {number: one for number, one in self.delayed.items() if one.body not in bodies}

    # Dying

    def bury(self, key: Key, bodies: list[bytes]) -> None:
        """The dead letters with these bodies were written, in this order."""
        ledger = self.ledgers[key]
        names = {self.body(key, name): name for name in ledger.named("dying")}
        for body in bodies:
            lane = names[body][0]
            rank = lane - RANKS if lane >= RANKS else MIDDLE if ledger.ordered else lane
            self.letters[key].append((body, rank))
        ledger.bury([names[body] for body in bodies])

    def resend(self, key: Key, numbers: list[int]) -> None:
        ledger = self.ledgers[key]
        for number in numbers:
            body, rank = self.letters[key][number]
            ledger.dead[number] = True
            ledger.append(RANKS + rank, 1)
            self.owns[key[0], key[1], rank].append(body)
