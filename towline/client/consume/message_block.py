"""Messages of one part, decoded a column at a time and on demand."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, repeat
from typing import TYPE_CHECKING

import msgspec

from towline.client.consume.message import NACKED, OPEN, RETURNED, TAKEN, Message
from towline.client.consume.outcome import as_reason, check_delay
from towline.client.consume.time_limit import HandlerTimeout, TimeLimit, begin_limit
from towline.errors import BadRequest, Conflict, LeaseLost
from towline.frame import Frame, decode_headers, pick
from towline.frame.layout import BESIDE_BODIES, EXPIRES_AT, HEADERS, KEY, LIMIT, PRODUCED_AT, SHARD_KEY, timeout_us_in
from towline.protocol import messages
from towline.protocol.consume import NACK
from towline.protocol.messages import Part

if TYPE_CHECKING:
    from towline.client.consume.lease import Lease

__all__ = ["MessageBlock", "MessageRuns", "cut", "indexes_of", "runs_of"]


Span = tuple[int, int, int]
"""Lane, first, count."""


class MessageRuns:
    """Numbers of messages by their index, and back."""

    __slots__ = ("_begins", "_firsts", "_lane", "count")

    def __init__(self, part: Part) -> None:
        self._lane = part.lane
        self.count = part.count
        self._firsts = [first for _, first, _ in part.runs]
        self._begins = list(accumulate([count for _, _, count in part.runs], initial=0))

    def seq(self, index: int) -> int:
        at = bisect_right(self._begins, index) - 1
        return self._firsts[at] + index - self._begins[at]

    def spans(self, begin: int, end: int) -> Iterator[Span]:
        """The numbers of the messages from one index up to another."""
        at = bisect_right(self._begins, begin) - 1
        while begin < end:
            stop = min(end, self._begins[at + 1])
            yield self._lane, self._firsts[at] + begin - self._begins[at], stop - begin
            begin, at = stop, at + 1

    def places(self, first: int, end: int) -> tuple[int, int]:
        """The indices of the messages with numbers from `first` to `end`."""
        return self._place(first), self._place(end)

    def _place(self, number: int) -> int:
        """The index of the first message that has this number or a later one."""
        at = bisect_right(self._firsts, number) - 1
        return min(self._begins[at] + number - self._firsts[at], self._begins[at + 1]) if at >= 0 else 0


def runs_of(part: Part) -> Iterator[tuple[int, int]]:
    """The numbers of the messages of a part: first and end of each run."""
    if not part.runs:
        return iter(((part.first, part.first + part.count),))
    return ((first, first + count) for _, first, count in part.runs)


def indexes_of(part: Part) -> list[int] | None:
    """The indices of the messages of a part in its frame; None if they lie side by side from its start on."""
    at = part.start
    for place, _, count in part.runs:
        if place != at:
            return [index for place, _, count in part.runs for index in range(place, place + count)]
        at += count
    return None


def cut(part: Part, count: int) -> tuple[Part, Part]:
    """The first so many messages of a part, and the rest of it, which is not empty."""
    if not part.runs:
        first, start = part.first + count, part.start + count
        rest = msgspec.structs.replace(part, first=first, count=part.count - count, start=start)
        return msgspec.structs.replace(part, count=count), rest
    left, right, room = list[Span](), list[Span](), count
    for place, first, many in part.runs:
        mine = min(many, room)
        room -= mine
        if mine:
            left.append((place, first, mine))
        if mine < many:
            right.append((place + mine, first + mine, many - mine))
    start, first, _ = right[0]
    return (
        msgspec.structs.replace(part, count=count, runs=tuple(left)),
        msgspec.structs.replace(part, first=first, start=start, count=part.count - count, runs=tuple(right)),
    )


class MessageBlock:
    """Messages of one lane that came together: their shared properties, and the state of each."""

    __slots__ = (
        "_frame",
        "_headers",
        "_keys",
        "_produced_at_us",
        "_runs",
        "_shard_keys",
        "_time_limits",
        "_token",
        "appended_at_us",
        "attempt",
        "bodies",
        "broker",
        "first",
        "flags",
        "lane",
        "lease",
        "shards",
        "source",
        "start",
        "timed",
        "topic",
    )

    def __init__(
        self, topic: str, part: messages.Part, data: memoryview, lease: Lease | None = None, shards: int = 0
    ) -> None:
        frame, start = Frame(data), part.start
        if part.runs and (indexes := indexes_of(part)) is not None:
            frame, start = Frame(pick(frame.verify(), indexes, compress=False)), 0
        self.bodies = frame.verify_bodies(start, start + part.count)
        self.topic = topic
        self.broker = ""
        self.lane = part.lane
        self.first = part.first
        self.start = start
        self._runs = MessageRuns(part) if part.runs else None
        self.attempt = part.attempt
        self.appended_at_us = part.appended_at_us
        self.source = part.source
        self.lease = lease
        self.shards = shards
        self.flags = bytearray(part.count)
        self._frame = frame if frame.flags & BESIDE_BODIES else None
        """Only if it has more columns: its memory is needed for the next one."""
        self._produced_at_us = frame.produced_at_us
        self._token = frame.token
        self._keys: list[bytes] | None = None
        self._headers: list[bytes] | None = None
        self._shard_keys: list[bytes] | None = None
        self.timed = bool(frame.flags & LIMIT) or (lease is not None and lease.ends_at > 0)
        """Working on some of them has a time limit."""
        self._time_limits: dict[int, TimeLimit] = {}

    def __len__(self) -> int:
        return len(self.bodies)

    @property
    def size_bytes(self) -> int:
        """What is kept here, each byte counted once: of a frame that came compressed that is all, unpacked, however few
        of its messages are asked for."""
        return sum(map(len, self.bodies)) if self._frame is None else self._frame.columns_length

    def messages(self) -> list[Message]:
        if len(self.bodies) == 1:
            return [Message(self.bodies[0], 0, self)]
        # No loop of our own: this is where a consumer's time goes.
        return list(map(Message, self.bodies, range(len(self.bodies)), repeat(self)))

    def seq(self, index: int) -> int:
        return self.first + index if self._runs is None else self._runs.seq(index)

    def spans(self, begin: int, end: int) -> Iterable[tuple[int, int, int]]:
        """Lane, first and count of the messages from one index up to another."""
        if self._runs is None:
            return ((self.lane, self.first + begin, end - begin),)
        return self._runs.spans(begin, end)

    def places(self, first: int, end: int) -> tuple[int, int]:
        """The indices of the messages with numbers from `first` to `end`."""
        if self._runs is None:
            return max(first - self.first, 0), min(end - self.first, len(self.bodies))
        return self._runs.places(first, end)

    def key(self, index: int) -> str | None:
        if self._keys is None:
            self._keys = self._column(KEY)
        value = self._keys[index] if self._keys else b""
        return value.decode("utf-8", "replace") if value else None

    def shard_key(self, index: int) -> str | None:
        if self._shard_keys is None:
            self._shard_keys = self._column(SHARD_KEY)
        value = self._shard_keys[index] if self._shard_keys else b""
        return value.decode("utf-8", "replace") if value else self.key(index)

    def headers(self, index: int) -> dict[str, str]:
        if self._headers is None:
            self._headers = self._column(HEADERS)
        return decode_headers(self._headers[index]) if self._headers else {}

    def _column(self, flag: int) -> list[bytes]:
        if self._frame is None:
            return []
        return self._frame.texts(flag, self.start, self.start + len(self.bodies)) or []

    def text(self, flag: int, index: int) -> bytes:
        """The value of a text column for one message, as it was sent."""
        if self._frame is None:
            return b""
        found = self._frame.texts(flag, self.start + index, self.start + index + 1)
        return found[0] if found else b""

    def _number(self, flag: int, index: int) -> int:
        if self._frame is None:
            return 0
        found = self._frame.numbers(flag, self.start + index, self.start + index + 1)
        return found[0] if found else 0

    def expires_at_us(self, index: int) -> int:
        return self._number(EXPIRES_AT, index)

    def limit(self, index: int) -> int:
        return self._number(LIMIT, index)

    def timeout_s(self, index: int) -> float | None:
        return timeout_us_in(self.limit(index)) / 1e6 or None

    def time_left_s(self, index: int) -> float | None:
        """How long work on a message that begins now may take; None is without limit."""
        own_s, left_s = self.timeout_s(index), self.lease_left_s()
        return own_s if left_s is None else left_s if own_s is None else min(own_s, left_s)

    def lease_left_s(self) -> float | None:
        """The rest of their lease, if that has an end."""
        lease = self.lease
        return None if lease is None or not lease.ends_at else max(lease.ends_at - time.monotonic(), 0.0)

    def begin(self, index: int) -> None:
        left_s = self.time_left_s(index)
        if left_s is not None:
            in_tasks = self.lease is not None and self.lease.in_tasks
            self._time_limits[index] = begin_limit(left_s, in_tasks=in_tasks)

    def end(self, index: int, error: BaseException | None) -> HandlerTimeout | None:
        """The error that ended the work on a message, if it was its time limit; it is nacked then."""
        limit = self._time_limits.get(index)
        if limit is None:
            return None
        raised = limit.end(error)
        del self._time_limits[index]
        if limit.fired and self.flags[index] == OPEN:
            self.nack(index, NACK, f"timeout: not done within {limit.seconds:g} s", None)
        return raised

    def produced_at_us(self, index: int) -> int:
        own = self._frame is not None and self._frame.flags & PRODUCED_AT
        return self._number(PRODUCED_AT, index) if own else self._produced_at_us

    @property
    def token(self) -> str:
        return self._token.decode("utf-8", "replace")

    # Settling: only marked here, and sent to the broker by the consumer

    def check_acked(self, index: int) -> None:
        """A second ack changes nothing; one after a nack is wrong."""
        if self.lease is None:
            raise _looked_at()
        if self.flags[index] == NACKED:
            raise Conflict("the message was nacked already: it cannot be acked any more")
        if self.flags[index] == RETURNED:
            raise LeaseLost("a message before it in its shard is tried again: this one comes again after it")

    def nack(self, index: int, what: int, reason: str, delay_s: float | None) -> None:
        if self.lease is None:
            raise _looked_at()
        check_delay(delay_s)
        with self.lease.lock:
            if self.flags[index] == TAKEN:
                return
            if self.flags[index] != OPEN:
                raise Conflict("the message was acked or nacked already")
            self.lease.check_open()
            span = (self.lane, self.seq(index), 1)
            act = messages.Act(what, self.lease.pull, [span], False, delay_s, as_reason(reason))
            self.flags[index] = NACKED
            if what == NACK and self.lane < self.shards:
                self.lease.nack_in_place(act)
            else:
                self.lease.nack(act)


def _looked_at() -> BadRequest:
    return BadRequest("the message was looked at, not pulled: there is nothing to ack or nack")
