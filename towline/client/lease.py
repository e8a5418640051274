"""What a consumer holds: one pull, the messages in it, and what became of them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, TypeVar

import msgspec

from towline.client.message import ACKED, NACKED, OPEN, RETURNED, TOLD, Message
from towline.client.section import Section
from towline.client.verdict import as_reason
from towline.errors import BadFrame, Closed, LeaseLost, TooLarge, TowlineError
from towline.protocol import messages
from towline.protocol.messages import Act

__all__ = [
    "ACK",
    "GIVE_BACK",
    "NACK",
    "Lease",
    "LostLease",
    "all_refused",
    "drained",
    "in_portions",
    "merged",
    "robbery",
]

T = TypeVar("T")

ACK: Final = 0
NACK: Final = 1
GIVE_BACK: Final = 3

_ACKED_RUNS: Final = re.compile(bytes([ACKED]) + b"+")
_ACKED_TO_TOLD: Final = bytes.maketrans(bytes([ACKED]), bytes([TOLD]))
_OPEN_TO_TOLD: Final = bytes.maketrans(bytes([OPEN, ACKED]), bytes([TOLD, TOLD]))
_OPEN_TO_ACKED: Final = bytes.maketrans(bytes([OPEN]), bytes([ACKED]))
_OPEN_TO_NACKED: Final = bytes.maketrans(bytes([OPEN]), bytes([NACKED]))
_OPEN_TO_RETURNED: Final = bytes.maketrans(bytes([OPEN]), bytes([RETURNED]))

_MAX_ACTS: Final = 5_000
_MAX_SPANS: Final = 2_000
_MAX_PORTION: Final = 48 << 10


class LostLease(msgspec.Struct, frozen=True):
    """Messages this consumer held and no longer does; what it did with them may be done by another as well."""

    topic: str
    group: str
    pull: int
    count: int
    reason: str


class Lease:
    """One pull. It comes as raw parts, noted when they arrive; `open` decodes them when their turn comes."""

    __slots__ = (
        "_dirty_leases",
        "_nacks",
        "_raw",
        "closed",
        "dirty",
        "ends_at",
        "in_tasks",
        "lost",
        "pull",
        "returned",
        "robbed",
        "sections",
        "shards",
        "topic",
        "unanswered",
        "why",
    )

    def __init__(
        self, pull: int, raw: list[tuple[messages.Part, memoryview]], nacks: deque[Act], dirty_leases: deque[Lease]
    ) -> None:
        self.pull = pull
        self.topic = ""
        self.shards = 0
        self.sections: list[Section] = []
        self.ends_at = 0.0
        """When the broker takes it away, by the steady clock; 0 is never."""
        self.in_tasks = False
        """It is worked on by coroutines, so that time limits cancel tasks rather than interrupt threads."""
        self.lost = False
        self.returned = False
        """Some messages are to be passed over: they come again behind one that is tried again."""
        self.closed = False
        """Its consumer was closed: what was not settled by then was given back."""
        self.dirty = False
        self.robbed = 0
        """Messages that were settled here when others had them already, …"""
        self.why = ""
        """… and why."""
        self.unanswered = 0
        """Acts on the way to the broker."""
        self._raw = raw
        self._nacks = nacks
        self._dirty_leases = dirty_leases

    @classmethod
    def none(cls) -> Lease:
        """One that holds nothing."""
        return cls(0, [], deque(), deque())

    def __repr__(self) -> str:
        return f"<Lease {self.pull} of {len(self)} messages{', lost' if self.lost else ''}>"

    def __len__(self) -> int:
        if self.sections:
            return sum([len(section.bodies) for section in self.sections])
        return sum([part.count for part, _ in self._raw])

    def open(self) -> None:
        """Decode. What cannot be decoded is nacked: it is tried again, and ends among the dead letters."""
        raw, self._raw = self._raw, []
        for part, data in raw:
            try:
                self.sections.append(Section(self.topic, part, data, self, self.shards))
            except (BadFrame, TooLarge) as error:
                span = (part.lane, part.first, part.count)
                self._nacks.append(Act(NACK, self.pull, [span], False, None, f"the client cannot decode it: {error}"))

    def messages(self) -> list[Message]:
        if len(self.sections) == 1:
            return self.sections[0].messages()
        return list(chain.from_iterable(map(Section.messages, self.sections)))

    def bodies(self) -> list[bytes]:
        if len(self.sections) == 1:
            return self.sections[0].bodies
        return list(chain.from_iterable([section.bodies for section in self.sections]))

    # What the user did

    def check_open(self) -> None:
        """Nobody tells the broker of what is settled when the consumer is closed."""
        if self.closed:
            raise Closed(
                f"the consumer of topic {self.topic} was closed before the message was settled: it was given back, and "
                "is delivered again. Settle messages before their consumer is closed"
            )

    def touch(self) -> None:
        self.dirty = True
        self._dirty_leases.append(self)

    def nack(self, act: Act) -> None:
        self._nacks.append(act)

    def nack_in_place(self, act: Act) -> None:
        """A message of a shard is to be tried again: what we hold of the shard behind it goes back with it. What was
        acked before must reach the broker before that."""
        [(lane, first, _)] = act.spans
        self._nacks.extend([*self.take_acks(), act])
        for section in self.sections:
            if section.lane == lane and section.first + len(section) > first:
                begin = max(first - section.first, 0)
                section.flags[begin:] = section.flags[begin:].translate(_OPEN_TO_RETURNED)
        self.returned = True

    def ack_all(self) -> None:
        """All that nothing was said about; the broker is told with the next pull."""
        self.check_open()
        for section in self.sections:
            section.flags[:] = section.flags.translate(_OPEN_TO_ACKED)
        if not self.dirty:
            self.touch()

    def nack_all(self, reason: str) -> None:
        self.check_open()
        # What was acked before must reach the broker before that.
        self._nacks.extend([*self.take_acks(), Act(NACK, self.pull, [], False, None, as_reason(reason))])
        self.settle_all(NACK)

    def settle_all(self, what: int) -> None:
        table = _OPEN_TO_TOLD if what == ACK else _OPEN_TO_NACKED
        for section in self.sections:
            section.flags[:] = section.flags.translate(table)

    def rob(self, lane: int, first: int, count: int, why: str) -> int:
        """Messages that were settled here had been taken away: how many of them are new to us."""
        found = 0
        for section in self.sections:
            begin, end = max(first - section.first, 0), min(first + count - section.first, len(section))
            if section.lane == lane and begin < end:
                before = section.flags[begin:end]
                found += end - begin - before.count(RETURNED)
                section.flags[begin:end] = bytes([RETURNED]) * (end - begin)
        self.robbed += found
        self.why = why or self.why or "they were taken away"
        return found

    def drop(self) -> None:
        """Nobody has seen these messages, and nobody will."""
        self._raw = []
        self.sections = []

    # What the broker is told

    @property
    def open_count(self) -> int:
        """Messages that nothing was said about yet."""
        if self._raw:
            return len(self)
        if len(self.sections) == 1:
            return self.sections[0].flags.count(OPEN)
        return sum([section.flags.count(OPEN) for section in self.sections])

    def take_acks(self) -> list[Act]:
        """The acks that the broker has not been told of; from now on they count as told."""
        self.dirty = False
        if len(self.sections) == 1:
            # All of it is acked, as a rule: then there are no runs to look for.
            flags = self.sections[0].flags
            if flags.count(ACKED) == len(flags):
                flags[:] = flags.translate(_ACKED_TO_TOLD)
                return [Act(ACK, self.pull)]
        spans: list[tuple[int, int, int]] = []
        for section in self.sections:
            flags, first, lane = section.flags, section.first, section.lane
            for run in _ACKED_RUNS.finditer(bytes(flags)):
                begin, end = run.span()
                flags[begin:end] = flags[begin:end].translate(_ACKED_TO_TOLD)
                spans.append((lane, first + begin, end - begin))
        if not spans:
            return []
        # Not `open_count == 0`: a nack made in another thread right now is not among the acts yet, and must come first.
        if all(section.flags.count(TOLD) == len(section.flags) for section in self.sections):
            return [Act(ACK, self.pull)]
        return [Act(ACK, self.pull, spans[at : at + _MAX_SPANS]) for at in range(0, len(spans), _MAX_SPANS)]

    @property
    def finished(self) -> bool:
        return not self.unanswered and not self.dirty and self.open_count == 0


def drained(queue: deque[T]) -> Iterator[T]:
    while queue:
        yield queue.popleft()


def all_refused(acts: list[Act], error: TowlineError) -> list[tuple[int, str, str]]:
    return [(index, error.code, str(error)) for index in range(len(acts))]


def merged(acts: Iterable[Act]) -> list[Act]:
    """Neighbouring messages that failed alike become one act."""
    out: list[Act] = []
    for act in acts:
        last = out[-1] if out else None
        if last is not None and _alike(last, act) and len(last.spans) == len(act.spans) == 1:
            (lane, first, count), (next_lane, next_first, next_count) = last.spans[0], act.spans[0]
            if lane == next_lane and first + count == next_first:
                out[-1] = msgspec.structs.replace(last, spans=[(lane, first, count + next_count)])
                continue
        out.append(act)
    return out


def _alike(one: Act, other: Act) -> bool:
    return (
        one.pull == other.pull
        and one.what == other.what
        and one.delay_s == other.delay_s
        and one.reason == other.reason
    )


def robbery(leases: Sequence[Lease]) -> LeaseLost | None:
    """What to raise when these were settled as a whole, and some of their messages had been taken away before."""
    robbed = [lease for lease in leases if lease.robbed]
    if not robbed:
        return None
    count, total = sum(lease.robbed for lease in robbed), sum(map(len, leases))
    return LeaseLost(
        f"{count} of {total} messages were taken away before they were settled, and go to another: {robbed[0].why}. "
        "The rest is settled; `message.lost` tells which are not"
    )


def in_portions(acts: list[Act]) -> list[list[Act]]:
    """Cut into requests of a bearable size."""
    if len(acts) == 1:
        return [acts]
    portions: list[list[Act]] = []
    room = 0
    for act in acts:
        weight = 40 + 16 * len(act.spans) + 4 * len(act.reason)
        if not portions or weight > room or len(portions[-1]) >= _MAX_ACTS:
            portions.append([])
            room = _MAX_PORTION
        portions[-1].append(act)
        room -= weight
    return portions
