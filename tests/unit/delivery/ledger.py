"""Delivery, message by message: a slow and simple model that the real one is compared with.

It shares no code with `towline.delivery`, and keeps what that avoids to keep: a record of every message.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Name = tuple[int, int]
"""A message: lane and sequence number."""

RANKS = 3
STEPS_US = [times * 10**power for power in range(4, 13) for times in (1, 2, 5)]


@dataclass
class Message:
    state: str = "waiting"
    attempt: int = 1
    due_us: int = 0
    """When it may be delivered again; 0 is at once."""
    failed_at: int = 0
    """The tick of the ledger at which it began to wait for that."""
    deliveries: int = 0
    ends: int = 0
    """How often its delivery came to an end other than by an ack: only then may it be delivered again."""


@dataclass
class Delivery:
    """A pull: who holds it, and what became of each of its messages (None: nothing yet)."""

    consumer: str
    deadline_us: int
    outcomes: dict[Name, str | None]
    limits_us: dict[Name, int] = field(default_factory=dict)
    """How long each message may be worked on, as far as its sender said so, …"""
    since_us: int = 0
    """… from here on."""

    @property
    def open(self) -> list[Name]:
        return [name for name, outcome in self.outcomes.items() if outcome is None]


@dataclass
class Ledger:
    max_attempts: int
    delays_s: tuple[float, ...]
    timeout_s: float
    max_in_flight: int
    messages: dict[Name, Message] = field(default_factory=dict)
    deliveries: dict[int, Delivery] = field(default_factory=dict)
    firsts: list[int] = field(default_factory=lambda: [0] * 2 * RANKS)
    ends: list[int] = field(default_factory=lambda: [0] * 2 * RANKS)
    dead: list[bool] = field(default_factory=list)
    """By number of the dead letter: whether it was sent again."""
    clock: list[int] = field(default_factory=list)
    """All the times at which anything was asked."""
    done: int = 0
    gone: int = 0
    """How often a message was acked, and how often one was given up without having been delivered to the end."""
    ordered: bool = False
    """The topic's lanes are shards, not priorities."""

    # The store

    def append(self, lane: int, count: int) -> None:
        for number in range(self.ends[lane], self.ends[lane] + count):
            self.messages[lane, number] = Message()
        self.ends[lane] += count

    def trim(self, lane: int, first: int) -> None:
        self.firsts[lane] = max(first, self.firsts[lane])

    # Figures

    def named(self, state: str) -> list[Name]:
        return [name for name, message in self.messages.items() if message.state == state]

    def waiting(self) -> list[Name]:
        return [(lane, number) for lane, number in self.named("waiting") if number >= self.firsts[lane]]

    def lag(self) -> int:
        return len(self.waiting()) + sum(len(self.named(state)) for state in ("leased", "retrying", "dying"))

    def in_flight(self, consumer: str) -> int:
        return sum(len(one.open) for one in self.deliveries.values() if one.consumer == consumer)

    def pins(self) -> dict[int, int]:
        pinned = [name for state in ("leased", "retrying", "dying") for name in self.named(state)]
        return {lane: min(number for other, number in pinned if other == lane) for lane, _ in pinned}

    # Pulling

    def due(self, now_us: int) -> set[Name]:
        """The retries that must be delivered now."""
        return {name for name in self.named("retrying") if self.messages[name].due_us <= now_us}

    def ever_due(self) -> set[Name]:
        """The retries that may be delivered: due at some time since they failed, if the clock was set back after."""
        return {
            name
            for name in self.named("retrying")
            if self.messages[name].due_us <= max(self.clock[self.messages[name].failed_at :], default=0)
        }

    def order(self, retries: set[Name], shards: list[int]) -> list[Name]:
        """What is there to deliver, first things first; of the shards in this order."""
        fresh = set(self.waiting())
        by_priority = [
            name
            for rank in range(RANKS)
            for names in (retries, fresh)
            for lane in ((rank + RANKS,) if self.ordered else (rank + RANKS, rank))
            for name in sorted(one for one in names if one[0] == lane)
        ]
        return by_priority + [name for shard in shards for name in self.of_shard(shard, retries, fresh)]

    def of_shard(self, shard: int, retries: set[Name], fresh: set[Name]) -> list[Name]:
        """What of a shard may be delivered in one pull: nothing while anything is out, and nothing overtakes."""
        here = sorted(name for name in self.messages if name[0] == shard)
        if any(self.messages[name].state == "leased" for name in here):
            return []
        chosen = []
        for name in here:
            if name in retries or name in fresh:
                chosen.append(name)
            elif self.messages[name].state == "retrying":
                break
        return chosen

    def behind(self, pull: int, names: list[Name]) -> list[Name]:
        """What goes back together with `names`: all of their shards that the consumer holds behind the first."""
        if not self.ordered:
            return []
        return [
            one
            for one in self.deliveries[pull].open
            if one[0] < RANKS and any(name[0] == one[0] and name < one for name in names)
        ]

    def fill(self, names: list[Name], room: int, max_bytes: int, least: int, mean_bytes: list[int]) -> list[Name]:
        """Those of `names` that a pull gets."""
        chosen: list[Name] = []
        full = False
        for name in names:
            size = mean_bytes[name[0]]
            full = len(chosen) >= room or (size > max_bytes and bool(chosen))
            if full:
                break
            chosen.append(name)
            max_bytes -= size
        full = full or len(chosen) == room
        return chosen if full or len(chosen) >= least else []

    def overrun(self) -> None:
        for name in set(self.named("waiting")) - set(self.waiting()):
            self.messages[name].state = "gone"
            self.gone += 1

    def deliver(self, pull: int, consumer: str, names: dict[Name, int], now_us: int) -> None:
        """A pull got these messages, with these attempts."""
        assert pull not in self.deliveries
        for name, attempt in names.items():
            message = self.messages[name]
            assert message.state in ("waiting", "retrying"), (name, message)
            assert message.deliveries == message.ends, (name, message)
            assert message.attempt == attempt, (name, message, attempt)
            message.state = "leased"
            message.deliveries += 1
        deadline_us = now_us + round(self.timeout_s * 1e6) if self.timeout_s else 0
        self.deliveries[pull] = Delivery(consumer, deadline_us, dict.fromkeys(names))

    # Settling

    def choose(self, consumer: str, pull: int, names: set[Name] | None, act: str) -> tuple[list[Name], set[str]]:
        """The messages that an act is about, or the reasons for which it may be refused."""
        one = self.deliveries.get(pull)
        if one is None or one.consumer != consumer:
            return [], {"lease-lost"}
        outcomes = set(one.outcomes.values())
        if names is None:
            if one.open or (outcomes & {act, "skipped"} and "taken" not in outcomes):
                return one.open, set()
            return [], {"lease-lost" if "taken" in outcomes else "conflict"}
        refusals = {
            "conflict" if outcome in ("acked", "nacked", "given back") else "lease-lost" if taken else "bad-request"
            for taken in ["taken" in outcomes]
            for outcome in (one.outcomes.get(name, "foreign") for name in names)
            if outcome not in (None, act, "skipped")
        }
        return ([] if refusals else [name for name in one.open if name in names]), refusals

    def _end(self, pull: int, name: Name, outcome: str, state: str) -> Message:
        message = self.messages[name]
        assert message.state == "leased"
        assert self.deliveries[pull].outcomes[name] is None
        self.deliveries[pull].outcomes[name] = outcome
        message.state = state
        message.failed_at = len(self.clock)
        message.due_us = 0
        message.ends += 1
        return message

    def ack(self, pull: int, names: list[Name]) -> None:
        for name in names:
            self._end(pull, name, "acked", "done")
            self.done += 1

    def ack_earlier(self, consumer: str, pull: int) -> None:
        for earlier, one in self.deliveries.items():
            if earlier < pull and one.consumer == consumer:
                self.ack(earlier, one.open)

    def nack(self, pull: int, names: list[Name], now_us: int, delay_s: float | None, *, dead: bool) -> None:
        for name in names:
            attempt = self.messages[name].attempt
            if dead or attempt >= self.max_attempts:
                self._end(pull, name, "nacked", "dying")
                continue
            wait_s = self.delays_s[min(attempt, len(self.delays_s)) - 1] if delay_s is None else delay_s
            message = self._end(pull, name, "nacked", "retrying")
            message.attempt += 1
            wait_us = round(wait_s * 1e6)
            least_us = 10_000 if wait_us < 100_000 else 50_000 if wait_us < 1_000_000 else 100_000
            step_us = max(step_us for step_us in STEPS_US if step_us <= max(least_us, wait_us / 64))
            message.due_us = now_us + wait_us
            message.due_us += -message.due_us % step_us if wait_us else -(message.due_us % step_us)
        if not dead:
            self.give_back(pull, self.behind(pull, names), "taken")

    def give_back(self, pull: int, names: list[Name], outcome: str = "given back") -> None:
        for name in names:
            self._end(pull, name, outcome, "retrying")
        for name in self.behind(pull, names):
            self._end(pull, name, "taken", "retrying")

    def take_away(self, pull: int) -> None:
        """A consumer vanished or was too slow."""
        for name in self.deliveries[pull].open:
            if self.messages[name].attempt >= self.max_attempts:
                self._end(pull, name, "taken", "dying")
            else:
                self._end(pull, name, "taken", "retrying").attempt += 1

    def limit(self, pull: int, limits_us: dict[Name, int], now_us: int) -> None:
        self.deliveries[pull].limits_us = limits_us
        self.deliveries[pull].since_us = now_us

    def begin_anew(self, now_us: int) -> None:
        """Nobody knows what was done with the messages meanwhile: the time for each begins again."""
        for one in self.deliveries.values():
            one.since_us = now_us

    def overdue(self, now_us: int) -> dict[int, list[Name]]:
        """By pull, the messages that were worked on for too long, and a second more."""
        found = {
            pull: [
                name
                for name in one.open
                if name in one.limits_us and one.since_us + one.limits_us[name] + 1_000_000 <= now_us
            ]
            for pull, one in self.deliveries.items()
        }
        return {pull: names for pull, names in found.items() if names}

    def take_overdue(self, pull: int, names: list[Name]) -> None:
        for name in names:
            if self.messages[name].attempt >= self.max_attempts:
                self._end(pull, name, "taken", "dying")
            else:
                self._end(pull, name, "taken", "retrying").attempt += 1
        for name in self.behind(pull, names):
            self._end(pull, name, "taken", "retrying")

    def late(self, now_us: int) -> list[int]:
        return [pull for pull, one in self.deliveries.items() if one.open and 0 < one.deadline_us <= now_us]

    def held_by(self, consumer: str) -> list[int]:
        return [pull for pull, one in self.deliveries.items() if one.open and one.consumer == consumer]

    def taken_from(self, consumer: str, pull: int, *, up_to: bool) -> set[tuple[int, Name]]:
        """The messages of a pull, or also of those before it, that were taken away from the consumer."""
        return {
            (number, name)
            for number, one in self.deliveries.items()
            if one.consumer == consumer and (number == pull or (up_to and number < pull))
            for name, outcome in one.outcomes.items()
            if outcome == "taken"
        }

    # The end of it

    def skip(self, pull: int, names: set[Name]) -> None:
        if pull:
            one = self.deliveries.get(pull)
            for name in [name for name in one.open if name in names] if one else []:
                self._end(pull, name, "skipped", "gone")
                self.gone += 1
        else:
            for name in names & set(self.named("dying")):
                self.messages[name].state = "gone"
                self.gone += 1

    def expire(self, pull: int, names: set[Name]) -> None:
        one = self.deliveries[pull]
        for name in [name for name in one.open if name in names]:
            self._end(pull, name, "nacked", "dying")

    def position(self, lane: int) -> int:
        return min((number for other, number in self.named("waiting") if other == lane), default=self.ends[lane])

    def move(self, lane: int, to: int) -> tuple[int, int]:
        """Go on at `to`; how many messages come again, and how many do not come any more."""
        back = to < self.position(lane)
        holders = {name: one for one in self.deliveries.values() for name in one.open}
        pending = ("waiting", "leased", "retrying", "dying")
        moved = [
            name
            for name, message in self.messages.items()
            if name[0] == lane and ((name[1] >= to) if back else (name[1] < to and message.state in pending))
        ]
        seen = [name for name in moved if self.messages[name].state != "waiting" or not back]
        passed = [name for name in moved if self.messages[name].state != "waiting" or name[1] >= self.firsts[lane]]
        touched = [one for one in self.deliveries.values() if set(one.open) & set(moved)]
        beside = [name for one in touched for name in one.open if name not in moved]
        for name in seen:
            message = self.messages[name]
            if message.state == "leased":
                holders[name].outcomes[name] = "taken"
                message.ends += 1
            message.state, message.attempt, message.due_us = ("waiting", 1, 0) if back else ("gone", message.attempt, 0)
        for name in beside:
            message = self.messages[name]
            holders[name].outcomes[name] = "taken"
            message.state, message.due_us, message.failed_at = "retrying", 0, len(self.clock)
            message.ends += 1
        self.gone += 0 if back else len(moved)
        return (len(seen), 0) if back else (0, len(passed))

    def bury(self, names: list[Name]) -> None:
        for name in names:
            assert self.messages[name].state == "dying"
            self.messages[name].state = "dead"
            self.dead.append(False)
