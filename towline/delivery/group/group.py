"""The state machine of one group of one topic: pulls, leases, retries, dying messages."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice
from operator import lt, ne
from typing import Final

from towline.delivery.group.commands import (
    Ack,
    Bury,
    Command,
    Expire,
    Forfeit,
    GiveBack,
    Lapse,
    Leave,
    Move,
    Nack,
    Pull,
    Resend,
    Skip,
    Start,
    Withdraw,
)
from towline.delivery.group.events import (
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
    Resent,
    Resumed,
    Returned,
    Skipped,
    Started,
)
from towline.delivery.group.lease import Act, Lease, SettledPulls, lost
from towline.delivery.group.parts import (
    Dying,
    add_interval,
    cut_before,
    disjoint,
    in_intervals,
    messages_in,
    remove_interval,
)
from towline.delivery.group.retry import AT_ONCE, RetryQueue, due_after, wait_of
from towline.delivery.group.seek import apply_moved, within_bounds
from towline.delivery.group.selection import fill
from towline.delivery.group.shards import Shards, behind
from towline.delivery.group.states import RULES, State
from towline.errors import BadRequest, Conflict
from towline.model import LANES, GroupConfig, Span

__all__ = ["HANDED_BACK", "TAKE_MAX", "Group", "take_back"]


DELAY_MAX_S: Final = 366 * 86400
REASON_MAX: Final = 1_000
EXPIRED: Final = "expired"
RETENTION: Final = "~retention"
"""The name under which retrying messages are leased when retention drops them; no consumer has such a name."""
TAKE_MAX: Final = 500
"""Parts that one command takes from consumers, or gives up."""

_ACTS: dict[type[Event], Act] = {
    Acked: "acked",
    Failed: "nacked",
    GaveUp: "nacked",
    Returned: "given back",
    Skipped: "skipped",
}

Moving = Pulled | Acked | Failed | GaveUp | Returned | Released | Buried | Skipped | Overrun
"""Events that move messages of the group's lanes from state to state."""


class Group:
    """State and rules of a group. `decide` only looks; `apply` is the one way in which anything changes.

    Its lanes are the topic's (one for each priority, or the shards of an ordered topic), then the group's own: for each
    priority a lane of messages that are for this group alone.
    """

    def __init__(self, config: GroupConfig, shards: int = 0) -> None:
        self.config = config
        self.topic_lanes = shards or len(LANES)
        count = self.topic_lanes + len(LANES)
        self.next = [0] * count
        self.firsts = [0] * count
        """The oldest message in the store, by lane."""
        self.ends = [0] * count
        """The end of the deliverable messages, by lane."""
        self.mean_bytes = [1] * count
        self.leases: dict[int, Lease] = {}
        self.settled = SettledPulls()
        self.retries = RetryQueue(shards)
        self.shards = Shards(shards, self.retries) if shards else None
        self.dying = Dying()
        self.resent: list[tuple[int, int]] = []
        """Dead letters that were sent again and are still there, as (first, count)."""
        self.resent_count = 0
        self.in_flight: dict[str, int] = {}
        self.turns = 0
        """Pulls granted so far."""
        self.counters = dict.fromkeys((State.DONE, State.DEAD, State.GONE), 0)
        self.on_lease_change: Callable[[Lease], None] | None = None
        """Told of a lease before it changes, while somebody reads out what is open."""
        self._deadlines: list[tuple[int, int]] = []
        owns = range(self.topic_lanes, count)
        self.ranks = tuple((own,) if shards else (own, rank) for rank, own in enumerate(owns))
        """From high to low, the lanes that are served by priority …"""
        self.lower = tuple([lane for lanes in self.ranks[rank + 1 :] for lane in lanes] for rank in range(len(LANES)))
        """… and for each of them, those below it."""

    # Lanes in the store

    def observe(self, lane: int, first: int, end: int, mean_bytes: int) -> None:
        """The lane now reaches from `first` to `end`, with messages of about this size."""
        self.firsts[lane] = max(first, self.firsts[lane])
        self.ends[lane] = max(end, self.ends[lane])
        self.mean_bytes[lane] = max(mean_bytes, 1)
        if self.shards is not None and self.next[lane] < end:
            self.shards.grow(lane)

    def refresh(self, lane: int) -> None:
        """A lane was changed: update whether a pull may take from it, if it is a shard."""
        if self.shards is not None:
            self.shards.refresh(lane, fresh=max(self.next[lane], self.firsts[lane]) < self.ends[lane])

    def bar(self, shards: frozenset[int]) -> bool:
        """Deliver nothing of these shards for the moment; of all others again. True if that changed."""
        if self.shards is None or self.shards.barred == shards:
            return False
        changed = self.shards.barred ^ shards
        self.shards.barred = shards
        for lane in changed:
            self.refresh(lane)
        return True

    # Figures

    def lag(self) -> int:
        return self.backlog() + self.leased() + self.retries.messages + self.dying.messages

    def backlog(self) -> int:
        return sum(
            max(end - max(at, first), 0) for at, first, end in zip(self.next, self.firsts, self.ends, strict=True)
        )

    def deliverable(self, now_us: int) -> bool:
        """Whether a pull could take anything now."""
        if self.config.paused:
            return False
        if self.shards is not None or not self.retries.has_ready():
            self.retries.ripen(now_us)
        if self.shards is None:
            return self.retries.has_ready() or any(map(lt, self.next, self.ends))
        self.shards.ripen(now_us)
        owns = range(self.topic_lanes, len(self.next))
        return bool(self.shards.waiting) or any(
            self.retries.is_ready(lane) or self.next[lane] < self.ends[lane] for lane in owns
        )

    def leased(self) -> int:
        return sum(self.in_flight.values())

    def next_wake_us(self) -> int | None:
        """The next time at which time alone makes a difference: a retry becomes due, or a pull's deadline passes."""
        if not self._deadlines and not self.retries.size and self.shards is None:
            return None
        while self._deadlines and self._deadlines[0][1] not in self.leases:
            heapq.heappop(self._deadlines)
        times = [self.next_retry_us(), self._deadlines[0][0] if self._deadlines else None]
        return min((time for time in times if time is not None), default=None)

    def next_retry_us(self) -> int | None:
        """The due time of the next retry."""
        due_us = self.retries.next_due_us()
        of_shard = self.shards.next_due_us() if self.shards is not None else None
        return due_us if of_shard is None else of_shard if due_us is None else min(due_us, of_shard)

    def pins(self) -> dict[int, int]:
        """By lane, the oldest message that must not be dropped: leased, retrying or dying."""
        lowest = self.retries.lowest()
        for found in (*(lease.open.lowest() for lease in self.leases.values()), self.dying.lowest()):
            for lane, first in found.items():
                lowest[lane] = min(first, lowest.get(lane, first))
        return lowest

    # Deciding

    def decide(self, command: Command, now_us: int) -> list[Event]:  # noqa: PLR0911  # one for each command
        match command:
            case Pull():
                return self._decide_pull(command, now_us)
            case Ack():
                return self._decide_ack(command, now_us)
            case Nack():
                return self._decide_nack(command, now_us)
            case GiveBack():
                lease = self._lease(command.consumer, command.pull)
                parts = lease.choose(command.spans, "given back")
                events: list[Event] = [Returned(now_us, command.pull, tuple(parts))] if parts else []
                return events + self._return_behind(lease, parts, now_us)
            case Leave():
                return self._decide_leave(command, now_us)
            case Lapse():
                return self._decide_lapse(command, now_us)
            case Start():
                return [Started(now_us, command.positions, command.open)]
            case Bury():
                return [Buried(now_us, command.parts, command.dead_first)]
            case Skip():
                parts = self._open_within(command.pull, command.spans)
                return [Skipped(now_us, command.pull, tuple(parts), command.reason)] if parts else []
            case Expire():
                return self._decide_expire(command, now_us)
            case Forfeit():
                return self._decide_forfeit(command, now_us)
            case Resend():
                return self._decide_resend(command, now_us)
            case Withdraw():
                held = (self.leases[pull] for pull in command.pulls if pull in self.leases)
                return [Returned(now_us, one.pull, tuple(parts), taken=True) for one, parts in _first_few(held)]
            case Move():
                moves = within_bounds(self, command.moves)
                return [Moved(now_us, moves, command.reason)] if moves else []

    def _decide_pull(self, command: Pull, now_us: int) -> list[Event]:
        if self.config.paused:
            return []
        self.retries.ripen(now_us, max(command.max_messages, 1))
        if self.shards is not None:
            self.shards.ripen(now_us)
        events: list[Event] = self._overrun(now_us) if any(map(lt, self.next, self.firsts)) else []
        room = min(command.max_messages, self.config.max_in_flight - self.in_flight.get(command.consumer, 0))
        parts, full = fill(self, room, command.max_bytes, now_us)
        if parts and (full or messages_in(parts) >= command.min_messages):
            deadline_us = now_us + round(self.config.timeout_s * 1_000_000) if self.config.timeout_s else 0
            events.append(Pulled(now_us, command.pull, command.consumer, deadline_us, tuple(parts)))
        return events

    def _overrun(self, now_us: int) -> list[Event]:
        positions = enumerate(zip(self.next, self.firsts, strict=True))
        return [Overrun(now_us, tuple(Part(lane, at, first - at, 1) for lane, (at, first) in positions if at < first))]

    def _decide_ack(self, command: Ack, now_us: int) -> list[Event]:
        chosen = {command.pull: self._lease(command.consumer, command.pull).choose(command.spans, "acked")}
        if command.up_to:
            chosen |= {
                earlier.pull: list(earlier.open)
                for earlier in self.leases.values()
                if earlier.consumer == command.consumer and earlier.pull < command.pull
            }
        return [Acked(now_us, pull, tuple(parts)) for pull, parts in sorted(chosen.items()) if parts]

    def _decide_nack(self, command: Nack, now_us: int) -> list[Event]:
        delay_s, reason = command.delay_s, command.reason[:REASON_MAX]
        if delay_s is not None and not 0 <= delay_s <= DELAY_MAX_S:
            raise BadRequest(f"a delay of {delay_s:g} s: give between 0 seconds and a year")
        lease = self._lease(command.consumer, command.pull)
        parts = lease.choose(command.spans, "nacked")
        again, last = ([], parts) if command.dead else self._by_attempt(lease, parts)
        by_due: dict[int, list[Part]] = {}
        for part in again:
            wait_s = delay_s
            if wait_s is None:
                wait_s = self.config.retry.delay_s(part.attempt, (command.pull, part.first))
            by_due.setdefault(due_after(now_us, wait_s), []).append(part)
        events: list[Event] = [
            Failed(now_us, command.pull, tuple(some), due, reason) for due, some in sorted(by_due.items())
        ]
        if last:
            events.append(GaveUp(now_us, command.pull, tuple(last), reason))
        if self.shards is not None and not command.dead:
            events += self._return_behind(lease, parts, now_us)
        return events

    def _behind(self, lease: Lease, chosen: Iterable[Part]) -> list[Part]:
        """In a shard nothing overtakes a retry: the messages that its consumer holds behind it are taken away."""
        return behind(lease.open, chosen, self.shards.count) if self.shards is not None else []

    def _return_behind(self, lease: Lease, chosen: Iterable[Part], now_us: int) -> list[Event]:
        rest = self._behind(lease, chosen)
        return [Returned(now_us, lease.pull, tuple(rest), taken=True)] if rest else []

    def _decide_leave(self, command: Leave, now_us: int) -> list[Event]:
        held = (lease for lease in self.leases.values() if lease.consumer == command.consumer)
        reason = command.reason or f"consumer {command.consumer} vanished"
        events: list[Event] = []
        for lease, parts in _first_few(held):
            if command.vanished:
                events += self._release_parts(lease, parts, now_us, reason)
            else:
                events.append(Returned(now_us, lease.pull, tuple(parts), taken=True))
        return events

    def _decide_lapse(self, command: Lapse, now_us: int) -> list[Event]:
        late = sorted(lease.pull for lease in self.leases.values() if 0 < lease.deadline_us <= now_us)
        if late:
            reason = f"timeout: not settled within {self.config.timeout_s:g} s"
            few = _first_few(self.leases[pull] for pull in late)
            return [event for lease, parts in few for event in self._release_parts(lease, parts, now_us, reason)]
        overdue: dict[int, list[tuple[list[Part], str]]] = {}
        for pull, spans, why in command.overdue:
            if pull in self.leases:
                parts = [part for span in disjoint(spans) for part in self.leases[pull].open.within(span)]
                overdue.setdefault(pull, []).append((parts, why))
        events: list[Event] = []
        room = TAKE_MAX
        for pull, found in overdue.items():
            lease = self.leases[pull]
            # First what goes back with them: once they are taken themselves, their followers are unknown.
            back = self._behind(lease, [part for parts, _ in found for part in parts])[:room]
            room -= len(back)
            if back:
                events.append(Returned(now_us, pull, tuple(back), taken=True))
            for parts, why in found:
                events += self._release_parts(lease, parts[:room], now_us, why)
                room -= len(parts[:room])
        return events

    def _decide_expire(self, command: Expire, now_us: int) -> list[Event]:
        parts = self._open_within(command.pull, command.spans)
        if not parts:
            return []
        if self.config.expired_to_dead:
            return [GaveUp(now_us, command.pull, tuple(parts), EXPIRED)]
        return [Skipped(now_us, command.pull, tuple(parts), EXPIRED)]

    def _decide_forfeit(self, command: Forfeit, now_us: int) -> list[Event]:
        """Give up the open messages before these numbers: a first few of them. They die, and go to the dead letters if
        the group keeps expired messages, or else away. Only events of format 1 are used, so that an earlier broker
        reads them."""
        spans = [Span(lane, 0, before) for lane, before in command.before]
        events: list[Event] = []
        room = TAKE_MAX
        for lease in self.leases.values():
            if not room:
                break
            parts = [part for span in spans for part in lease.open.within(span, room)][:room]
            if parts:
                events.append(GaveUp(now_us, lease.pull, tuple(parts), command.reason, taken=True))
                room -= len(parts)
        found = [part for lane, before in command.before for part in self.retries.before(lane, before, room)]
        again = tuple(found[:room])
        if again:
            events.append(Pulled(now_us, command.pull, RETENTION, 0, again))
            events.append(GaveUp(now_us, command.pull, again, command.reason, taken=True))
        if not self.config.expired_to_dead:
            given_up = [event for event in events if isinstance(event, GaveUp)]
            events += [Skipped(now_us, 0, event.parts, command.reason) for event in given_up]
        return events

    def _open_within(self, pull: int, spans: Iterable[Span]) -> list[Part]:
        """The open or dying parts of a pull within spans."""
        lease = self.leases.get(pull)
        if pull and lease is None:
            return []
        parts = self.dying if lease is None else lease.open
        return [piece for span in disjoint(spans) for piece in parts.within(span)]

    def _decide_resend(self, command: Resend, now_us: int) -> list[Event]:
        chosen: list[tuple[int, int]] = []
        for number in sorted(set(command.dead)):
            if in_intervals(self.resent, number):
                raise Conflict(f"dead letter {number} was sent again already")
            add_interval(chosen, number, 1)
        return [Resent(now_us, tuple(chosen))] if chosen else []

    def _lease(self, consumer: str, pull: int) -> Lease:
        lease = self.leases.get(pull) or self.settled.get(pull)
        if lease is None or lease.consumer != consumer:
            raise lost(pull, consumer)
        return lease

    def _release_parts(self, lease: Lease, parts: Iterable[Part], now_us: int, reason: str) -> list[Event]:
        again, last = self._by_attempt(lease, parts)
        events: list[Event] = [Released(now_us, lease.pull, tuple(again), reason)] if again else []
        return [*events, GaveUp(now_us, lease.pull, tuple(last), reason, taken=True)] if last else events

    def _by_attempt(self, lease: Lease, parts: Iterable[Part]) -> tuple[list[Part], list[Part]]:
        """The parts that may be retried, and those that may not."""
        return lease.by_attempt(parts, self.config.retry.max_attempts)

    # Applying

    def apply(self, event: Event) -> None:
        """Make an event true. The same in service and in recovery."""
        if isinstance(event, Pulled):
            if event.consumer == RETENTION:
                self.retries.expose(event.parts)
            self._move(event)
            self.grant(event)
            self.turns += 1
        elif isinstance(event, Started):
            assert len(event.positions) == len(self.next), event
            self.next = list(event.positions)
            for part in event.open:
                self.retries.add(part, AT_ONCE)
        elif isinstance(event, Resent):
            self._apply_resent(event)
        elif isinstance(event, Moved):
            apply_moved(self, event)
        elif isinstance(event, (Paused, Resumed)):
            return
        else:
            self._move(event)
            if not isinstance(event, (Buried, Overrun)):
                self.close_if_settled(event.pull)
        if self.shards is not None:
            self._refresh_after(event)

    def _refresh_after(self, event: Moving | Started | Moved | Resent) -> None:
        everywhere = range(self.topic_lanes)
        for lane in everywhere if isinstance(event, (Started, Moved, Resent)) else {part.lane for part in event.parts}:
            self.refresh(lane)

    def _move(self, event: Moving) -> None:
        """Move the messages from their present state to the one in the table."""
        rule = RULES[type(event)]
        if isinstance(event, Acked) and len(event.parts) > 1 and self._acks_all(event):
            return
        for part in event.parts:
            source = rule.sources[0] if len(rule.sources) == 1 else self._source(event, part)
            assert source in rule.sources, (event, part, source)
            self._leave(source, part, event)
            self._enter(rule.target, part, event)

    def _acks_all(self, event: Acked) -> bool:
        """Settle a pull of many parts at once if all of its open messages are acked."""
        lease = self.leases.get(event.pull)
        if lease is None or len(event.parts) != len(lease.open) or any(map(ne, event.parts, lease.open)):
            return False
        if self.on_lease_change is not None:
            self.on_lease_change(lease)
        count, by_lane = lease.open.messages, lease.open.counts()
        lease.settle_all("acked")
        self._count_in_flight(lease.consumer, -count)
        self.counters[RULES[Acked].target] += count
        if self.shards is not None:
            for lane, many in by_lane.items():
                self.shards.lease(lane, -many)
        return True

    def _source(self, event: Moving, part: Part) -> State:
        """Where the table leaves a choice: the present state of the messages of a part; it is one for all of them."""
        if isinstance(event, Skipped):
            return State.LEASED if event.pull else State.DYING
        return State.WAITING if part.first >= self.next[part.lane] else State.RETRYING

    def _leave(self, state: State, part: Part, event: Moving) -> None:
        if state is State.WAITING:
            assert part.first == self.next[part.lane], (event, self.next)
            self.next[part.lane] = part.end
        elif state is State.RETRYING:
            self.retries.remove(part)
        elif state is State.DYING:
            self.dying.remove(part)
        else:
            assert not isinstance(event, (Pulled, Buried, Overrun)), event
            lease = self.leases.get(event.pull)
            assert lease is not None, event
            if self.on_lease_change is not None:
                self.on_lease_change(lease)
            if isinstance(event, Released) or (isinstance(event, (GaveUp, Returned)) and event.taken):
                lease.take(part, "" if isinstance(event, Returned) else event.reason)
            else:
                lease.settle(part, _ACTS[type(event)])
            self._ended(lease, part)

    def take_from(self, lease: Lease, part: Part) -> None:
        """A consumer does not hold these messages any more, and cannot settle them."""
        if self.on_lease_change is not None:
            self.on_lease_change(lease)
        lease.take(part)
        self._ended(lease, part)

    def _ended(self, lease: Lease, part: Part) -> None:
        self._count_in_flight(lease.consumer, -part.count)
        if self.shards is not None:
            self.shards.lease(part.lane, -part.count)

    def _enter(self, state: State, part: Part, event: Moving) -> None:
        if state is State.RETRYING:
            again = part if isinstance(event, Returned) else Part(part.lane, part.first, part.count, part.attempt + 1)
            if isinstance(event, Failed):
                self.retries.add(again, event.due_us, wait_of(event))
            else:
                self.retries.add(again, AT_ONCE)
        elif state is State.DYING:
            assert isinstance(event, GaveUp), event
            self.dying.add(part, event.reason)
        elif state is not State.LEASED:
            self.counters[state] += part.count

    def _apply_resent(self, event: Resent) -> None:
        for first, count in event.dead:
            assert not in_intervals(self.resent, first), (event, self.resent)
            add_interval(self.resent, first, count)
            self.resent_count += count
            self.counters[State.DEAD] -= count

    def forget_resent(self, before: int) -> None:
        """The dead letters before this number are gone."""
        if self.resent and self.resent[0][0] < before:
            self.resent_count -= cut_before(self.resent, before)

    def take_back(self, event: Buried | Resent, reasons: Sequence[str]) -> None:
        """Undo an event that was applied and not stored, because the copies of its messages were refused. Of a burial,
        the reasons are those of its parts."""
        if isinstance(event, Resent):
            for first, count in event.dead:
                if in_intervals(self.resent, first):
                    remove_interval(self.resent, first, count)
                    self.resent_count -= count
                self.counters[State.DEAD] += count
            return
        for part, reason in zip(event.parts, reasons, strict=True):
            self.dying.add(part, reason)
            self.counters[State.DEAD] -= part.count

    def grant(self, event: Pulled) -> None:
        """Give the consumer its lease: of a pull just applied, or one from a snapshot."""
        assert event.pull not in self.leases, event
        timeout_us = event.deadline_us and event.deadline_us - event.at_us
        self.leases[event.pull] = Lease(event.pull, event.consumer, event.deadline_us, event.parts, timeout_us)
        self._count_in_flight(event.consumer, messages_in(event.parts))
        if self.shards is not None:
            for part in event.parts:
                self.shards.lease(part.lane, part.count)
        if event.deadline_us:
            heapq.heappush(self._deadlines, (event.deadline_us, event.pull))
            if len(self._deadlines) > 2 * len(self.leases) + 64:
                self._deadlines = [one for one in self._deadlines if one[1] in self.leases]
                heapq.heapify(self._deadlines)

    def extend_leases(self, until_us: int) -> None:
        """No pull's deadline passes before this time. It is not recorded: recovery calls this again."""
        for lease in self.leases.values():
            if 0 < lease.deadline_us < until_us:
                lease.deadline_us = until_us
        self._sort_deadlines()

    def cap_waits(self, now_us: int) -> Generator[None, None, int]:
        """After replay, maybe by a clock that is behind the one of the events: no back-off or timeout lasts longer from
        now on than as a whole. It is not recorded: recovery calls this again. Returns by how much one ends sooner, at
        most."""
        sooner_us = yield from self.retries.cap_waits(now_us)
        for lease in self.leases.values():
            yield
            if lease.timeout_us:
                latest_us = now_us + lease.timeout_us
                sooner_us = max(lease.deadline_us - latest_us, sooner_us)
                lease.deadline_us = min(lease.deadline_us, latest_us)
        self._sort_deadlines()
        for lane in range(self.topic_lanes):
            yield
            self.refresh(lane)
        return sooner_us

    def _sort_deadlines(self) -> None:
        self._deadlines = [(lease.deadline_us, lease.pull) for lease in self.leases.values() if lease.deadline_us]
        heapq.heapify(self._deadlines)

    def close_if_settled(self, pull: int) -> None:
        lease = self.leases.get(pull)
        if lease is not None and not lease.open:
            self.settled.remember(self.leases.pop(pull))

    def _count_in_flight(self, consumer: str, change: int) -> None:
        count = self.in_flight.get(consumer, 0) + change
        if count:
            self.in_flight[consumer] = count
        else:
            self.in_flight.pop(consumer, None)

    def set_apart(self, part: Part) -> None:
        """Cut out a part of a dying range, or all of it, as a range of its own. No event says so."""
        whole = self.dying.find(part.lane, part.first)
        assert whole is not None, (part, self.dying)
        reason = self.dying[whole]
        self.dying.remove(part)
        self.dying.add(part, reason)


def _first_few(leases: Iterable[Lease]) -> Iterator[tuple[Lease, list[Part]]]:
    """The first open parts among these, as many as one command takes."""
    room = TAKE_MAX
    for lease in leases:
        few = list(islice(lease.open, room))
        yield lease, few
        room -= len(few)
        if not room:
            return


HANDED_BACK: Final = "~handed-back"
"""The consumer of handed-back messages; no consumer can have this name."""


def take_back(group: Group, part: Part, nack: Nack, now_us: int, attempts: int = 0) -> list[Event]:
    """Events by which messages that were just appended to a lane of the group's own count as pulled and failed:
    `nack.pull` is a number never used before. Messages that wait before them on that lane count as pulled and given
    back. No events if they were delivered already. `attempts` is their limit, if their sender set one."""
    if nack.delay_s is not None and not 0 <= nack.delay_s <= DELAY_MAX_S:
        raise BadRequest(f"a delay of {nack.delay_s:g} s: give between 0 seconds and a year")
    at = max(group.next[part.lane], group.firsts[part.lane])
    if at > part.first:
        return []
    waiting = (Part(part.lane, at, part.first - at, 1),) if at < part.first else ()
    events: list[Event] = [Pulled(now_us, nack.pull, HANDED_BACK, 0, (*waiting, part))]
    if waiting:
        events.append(Returned(now_us, nack.pull, waiting))
    reason = nack.reason[:REASON_MAX]
    if nack.dead or part.attempt >= (attempts or group.config.retry.max_attempts):
        events.append(GaveUp(now_us, nack.pull, (part,), reason))
    else:
        wait_s = group.config.retry.delay_s(part.attempt) if nack.delay_s is None else nack.delay_s
        events.append(Failed(now_us, nack.pull, (part,), due_after(now_us, wait_s), reason))
    return events
