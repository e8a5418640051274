"""A lease: the messages of one pull, and the outcome of each."""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, TypeVar

import msgspec

from towline.client.consume.message import ACKED, NACKED, OPEN, RETURNED, TAKEN, TOLD, Message
from towline.client.consume.message_block import MessageBlock, cut
from towline.client.consume.outcome import as_reason
from towline.errors import BadFrame, Closed, LeaseLost, TooLarge, TowlineError
from towline.protocol import messages
from towline.protocol.consume import ACK, GIVE_BACK, NACK
from towline.protocol.messages import Act

__all__ = [
    "Lease",
    "LostLease",
    "LostMessages",
    "all_refused",
    "drained",
    "in_portions",
    "lost_parts",
    "merged",
]


T = TypeVar("T")


_ACKED_RUNS: Final = re.compile(bytes([ACKED]) + b"+")
_NACKED_RUNS: Final = re.compile(bytes([NACKED]) + b"+")
_OPEN_RUNS: Final = re.compile(bytes([OPEN]) + b"+")
_SETTLED_RUNS: Final = re.compile(b"[" + bytes([ACKED, TOLD]) + b"]+")
_ACKED_TO_TOLD: Final = bytes.maketrans(bytes([ACKED]), bytes([TOLD]))
_OPEN_TO_TOLD: Final = bytes.maketrans(bytes([OPEN, ACKED]), bytes([TOLD, TOLD]))
_OPEN_TO_ACKED: Final = bytes.maketrans(bytes([OPEN]), bytes([ACKED]))
_OPEN_TO_NACKED: Final = bytes.maketrans(bytes([OPEN]), bytes([NACKED]))
_OPEN_TO_TAKEN: Final = bytes.maketrans(bytes([OPEN]), bytes([TAKEN]))
_TO_TAKEN: Final = bytes.maketrans(bytes([OPEN, ACKED, TOLD, NACKED]), bytes([TAKEN] * 4))
_OPEN_TO_RETURNED: Final = bytes.maketrans(bytes([OPEN]), bytes([RETURNED]))

_MAX_ACTS: Final = 5_000
_MAX_SPANS: Final = 2_000
_MAX_PORTION: Final = 48 << 10


class LostLease(msgspec.Struct, frozen=True):
    """Messages this consumer held and no longer does; another may work on them as well."""

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
        "handed_out",
        "in_tasks",
        "lock",
        "lost",
        "lost_count",
        "pull",
        "returned",
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
        self.sections: list[MessageBlock] = []
        self.ends_at = 0.0
        """When the broker takes it away, by the steady clock; 0 is never."""
        self.in_tasks = False
        """Coroutines work on it, so that time limits cancel tasks rather than interrupt threads."""
        self.lost = False
        self.returned = False
        """Some messages are to be skipped: they come again behind one that is retried, or were taken away."""
        self.closed = False
        """Its consumer was closed: what was not settled by then was given back."""
        self.handed_out = False
        """The user was given it, or the first messages of it."""
        self.dirty = False
        self.lost_count = 0
        """Messages that are settled as a whole and were taken away before, …"""
        self.why = ""
        """… and the reason."""
        self.unanswered = 0
        """Acts on the way to the broker."""
        self.lock = threading.RLock()
        """Held to settle more than one message, or to nack one: no thread overwrites what another did. A single ack
        does without; see `_turn`."""
        self._raw = raw
        self._nacks = nacks
        self._dirty_leases = dirty_leases

    @classmethod
    def none(cls) -> Lease:
        """An empty lease."""
        return cls(0, [], deque(), deque())

    def __repr__(self) -> str:
        return f"<Lease {self.pull} of {len(self)} messages{', lost' if self.lost else ''}>"

    def __len__(self) -> int:
        if self.sections:
            return sum([len(section.bodies) for section in self.sections])
        return sum([part.count for part, _ in self._raw])

    def open(self) -> None:
        """Decode. Messages that cannot be decoded are nacked: they are retried, and end among the dead letters."""
        raw, self._raw = self._raw, []
        for part, data in raw:
            try:
                self.sections.append(MessageBlock(self.topic, part, data, self, self.shards))
            except (BadFrame, TooLarge) as error:
                span = (part.lane, part.first, part.count)
                self._nacks.append(Act(NACK, self.pull, [span], False, None, f"the client cannot decode it: {error}"))

    @property
    def size_bytes(self) -> int:
        return sum(section.size_bytes for section in self.sections)

    def messages(self) -> list[Message]:
        if len(self.sections) == 1:
            return self.sections[0].messages()
        return list(chain.from_iterable(map(MessageBlock.messages, self.sections)))

    def bodies(self) -> list[bytes]:
        if len(self.sections) == 1:
            return self.sections[0].bodies
        return list(chain.from_iterable([section.bodies for section in self.sections]))

    # Acts of the user

    def check_open(self) -> None:
        """Raises if the consumer is closed: acts of its messages would never be sent."""
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
        """A message of a shard is to be retried: the messages of the shard behind it that we hold go back with it. What
        was acked before must reach the broker before that."""
        [(lane, first, _)] = act.spans
        self._nacks.extend([*self.take_acks(), act])
        for section in self.sections:
            if section.lane == lane:
                _turn(section.flags, _OPEN_TO_RETURNED, section.places(first, first)[0])
        self.returned = True

    def ack_all(self) -> None:
        """Ack all open messages; the acks are sent with the next pull."""
        self.check_open()
        with self.lock:
            for section in self.sections:
                _turn(section.flags, _OPEN_TO_ACKED)
        if not self.dirty:
            self.touch()

    def nack_all(self, reason: str) -> None:
        self.check_open()
        with self.lock:
            # What is acked from now on is too late, and what was acked before must reach the broker before that.
            self.settle_all(NACK)
            self._nacks.extend([*self.take_acks(), Act(NACK, self.pull, [], False, None, as_reason(reason))])

    def nack_seen(self, unseen: int, reason: str) -> None:
        """Nack the open messages, but for the last so many, which nobody was given."""
        seen, spans = len(self) - unseen, list[tuple[int, int, int]]()
        with self.lock:
            for section in self.sections:
                spans += _turned(section, _OPEN_RUNS, _OPEN_TO_NACKED, 0, max(min(seen, len(section)), 0))
                seen -= len(section)
            if spans:
                self._nacks.extend([*self.take_acks(), *self._acts(NACK, spans, as_reason(reason))])

    def put_back_last(self, count: int) -> None:
        """Give back the last so many messages, which nobody was given."""
        if self.lost:
            return
        spans: list[tuple[int, int, int]] = []
        with self.lock:
            for section in reversed(self.sections):
                begin = max(len(section) - count, 0)
                count -= len(section) - begin
                spans += _turned(section, _OPEN_RUNS, _OPEN_TO_RETURNED, begin)
            self._nacks += self._acts(GIVE_BACK, spans)

    def settle_all(self, what: int) -> None:
        table = _OPEN_TO_TOLD if what == ACK else _OPEN_TO_NACKED
        with self.lock:
            for section in self.sections:
                _turn(section.flags, table)

    def lose_part(self, lane: int, first: int, count: int, why: str) -> int:
        """Messages were taken away by the broker; returns how many of them are new to us."""
        if self._raw:
            self.open()
        found = 0
        with self.lock:
            for section in self.sections:
                begin, end = section.places(first, first + count)
                if section.lane == lane and begin < end:
                    before = section.flags[begin:end]
                    found += end - begin - before.count(RETURNED) - before.count(TAKEN)
                    section.flags[begin:end] = before.translate(_TO_TAKEN)
        self.lost_count += found
        self._taken(why)
        return found

    def cut(self, count: int) -> Lease | None:
        """All but the first so many messages, as a lease of their own, if there are more. Before it is opened."""
        rest = Lease(self.pull, [], self._nacks, self._dirty_leases)
        rest.topic, rest.shards, rest.in_tasks = self.topic, self.shards, self.in_tasks
        raw, self._raw = self._raw, []
        for part, data in raw:
            mine = min(part.count, count)
            count -= mine
            left, right = cut(part, mine) if 0 < mine < part.count else (part, part)
            if mine:
                self._raw.append((left, data))
            if mine < part.count:
                rest._raw.append((right, data))
        return rest if rest._raw else None

    def forgo(self, why: str) -> list[Act]:
        """The open messages are ours no longer, as far as we can tell. Returns the acts that give them back, if the
        broker thinks otherwise: what was acked before must reach it before that."""
        whole = self.open_count == len(self)
        acts = [] if whole else self.take_acks()
        if self._raw:
            self.drop()
        with self.lock:
            spans = [span for section in self.sections for span in _turned(section, _OPEN_RUNS, _OPEN_TO_TAKEN)]
        self._taken(why)
        return [Act(GIVE_BACK, self.pull)] if whole else [*acts, *self._acts(GIVE_BACK, spans)]

    def _taken(self, why: str) -> None:
        self.returned = True
        self.why = why or self.why or "they were taken away"
        self.lost = self.lost or self.taken == len(self)

    @property
    def taken(self) -> int:
        """Messages that were taken away."""
        return sum([section.flags.count(TAKEN) for section in self.sections])

    def drop(self) -> None:
        """Nobody has seen these messages, and nobody will."""
        self._raw = []
        self.sections = []

    def let_go(self) -> None:
        """Nothing is sent of it any more: its messages forget it. As a cycle they would keep their bodies until the
        garbage collector runs, which counts objects and not bytes."""
        ended = _ENDED[self.in_tasks]
        if self.lost or self.ends_at:
            ended = Lease.none()
            ended.in_tasks, ended.lost, ended.ends_at = self.in_tasks, self.lost, self.ends_at
        for section in self.sections:
            section.lease = ended

    # Acts to send

    @property
    def open_count(self) -> int:
        """Messages that are not settled yet."""
        if self._raw:
            return len(self)
        if len(self.sections) == 1:
            return self.sections[0].flags.count(OPEN)
        return sum([section.flags.count(OPEN) for section in self.sections])

    def acked(self) -> list[tuple[int, int, int]]:
        """The messages that were acked, whether or not the acks were sent."""
        return self._runs(_SETTLED_RUNS)

    def nacked(self) -> list[tuple[int, int, int]]:
        return self._runs(_NACKED_RUNS)

    def _runs(self, runs: re.Pattern[bytes]) -> list[tuple[int, int, int]]:
        return [
            span
            for section in self.sections
            for run in runs.finditer(bytes(section.flags))
            for span in section.spans(*run.span())
        ]

    def take_acks(self) -> list[Act]:
        """The acks that were not sent yet; from now on they count as sent."""
        with self.lock:
            return self._take_acks()

    def _take_acks(self) -> list[Act]:
        self.dirty = False
        if len(self.sections) == 1:
            # All of it is acked, as a rule: then there are no runs to look for.
            flags = self.sections[0].flags
            if flags.count(ACKED) == len(flags):
                flags[:] = flags.translate(_ACKED_TO_TOLD)
                return [Act(ACK, self.pull)]
        spans: list[tuple[int, int, int]] = []
        for section in self.sections:
            spans += _turned(section, _ACKED_RUNS, _ACKED_TO_TOLD)
        if not spans:
            return []
        # Not `open_count == 0`: a nack made in another thread right now is not among the acts yet, and must come first.
        if all(section.flags.count(TOLD) == len(section.flags) for section in self.sections):
            return [Act(ACK, self.pull)]
        return self._acts(ACK, spans)

    def _acts(self, what: int, spans: list[tuple[int, int, int]], reason: str = "") -> list[Act]:
        return [
            Act(what, self.pull, spans[at : at + _MAX_SPANS], reason=reason) for at in range(0, len(spans), _MAX_SPANS)
        ]

    @property
    def finished(self) -> bool:
        return not self.unanswered and not self.dirty and self.open_count == 0


_ENDED: Final = {False: Lease.none(), True: Lease.none()}
"""By whether coroutines work on its messages."""
_ENDED[True].in_tasks = True


def _turned(
    section: MessageBlock, runs: re.Pattern[bytes], table: bytes, begin: int = 0, end: int | None = None
) -> list[tuple[int, int, int]]:
    """The spans of messages in one state, which is changed by the table."""
    flags, spans = section.flags, list[tuple[int, int, int]]()
    for run in runs.finditer(bytes(flags), begin, len(flags) if end is None else end):
        first, behind = run.span()
        flags[first:behind] = flags[first:behind].translate(table)
        spans += section.spans(first, behind)
    return spans


def _turn(flags: bytearray, table: bytes, begin: int = 0) -> None:
    """Translate flags from an index on, in one step of the interpreter: an ack that another thread notes meanwhile
    would be overwritten."""
    behind = slice(begin, None)
    turned = map(bytearray.translate, map(flags.__getitem__, (behind,)), (table,))
    deque(map(flags.__setitem__, (behind,), turned), maxlen=0)


def drained(queue: deque[T]) -> Iterator[T]:
    while queue:
        yield queue.popleft()


def all_refused(acts: list[Act], error: TowlineError) -> list[tuple[int, str, str]]:
    return [(index, error.code, str(error)) for index in range(len(acts))]


def merged(acts: Iterable[Act]) -> list[Act]:
    """Neighbouring messages with the same outcome become one act."""
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


def lost_parts(leases: Sequence[Lease]) -> LeaseLost | None:
    """The error when these were settled as a whole, and some of their messages had been taken away before."""
    lossy = [lease for lease in leases if lease.lost_count]
    if not lossy:
        return None
    count, total = sum(lease.lost_count for lease in lossy), sum(map(len, leases))
    return LeaseLost(
        f"{count} of {total} messages were taken away before they were settled, and go to another: {lossy[0].why}. "
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


log = logging.getLogger("towline.client")


class LostMessages:
    def __init__(self, topic: str, group: str, on_lost: Callable[[LostLease], None] | None) -> None:
        self.messages = 0
        """The number of messages in all."""
        self._topic = topic
        self._group = group
        self._on_lost = on_lost
        self._unreported: deque[LostLease] = deque()

    def note(self, pull: int, count: int, reason: str) -> None:
        if count:
            self.messages += count
            self._unreported.append(LostLease(self._topic, self._group, pull, count, reason))

    def report(self) -> None:
        """Report to the user. Drivers call this where the user's code may do anything: under no lock."""
        while self._unreported:
            lost = self._unreported.popleft()
            log.warning("%s, group %s: %d messages lost: %s", lost.topic, lost.group, lost.count, lost.reason)
            if self._on_lost is not None:
                self._on_lost(lost)
