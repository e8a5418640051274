"""The trace of a message in a group, read from the group's pull log.

Nothing is stored for it: the pull log is read from the time on at which the message was appended. A request reads a
bounded number of events and returns where to go on.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from towline.broker.consume.dead_letters import rank
from towline.delivery.group.events import (
    Acked,
    Buried,
    Event,
    Moved,
    Overrun,
    Part,
    Paused,
    Resent,
    Resumed,
    Skipped,
    Started,
    decode_event,
)
from towline.delivery.group.message_status import concerns, dead_number, standing, state_after
from towline.delivery.group.states import State
from towline.errors import BadRequest, NotFound
from towline.frame import Frame
from towline.model import DIED_ORIGIN, lane_name, message_id
from towline.protocol.messages import Trace, TraceCursor, Traced, TraceStep

if TYPE_CHECKING:
    from towline.broker.consume.dispatcher import Dispatcher
    from towline.store import Chunk

__all__ = ["trace"]

SCAN_MAX: Final = 100_000
"""Events that one request reads."""
STEPS_MAX: Final = 1_000
READ_COUNT: Final = 2_000
READ_BYTES: Final = 1 << 20
BEFORE: Final = "BEFORE"
"""The status of a message that was there before the group began, and is not for it."""


async def trace(dispatcher: Dispatcher, request: Trace) -> Traced:
    group = dispatcher.group
    if request.lane >= group.topic_lanes:
        raise BadRequest(f"topic {request.topic} has no lane {request.lane}, only 0 to {group.topic_lanes - 1}")
    lane = dispatcher.lanes[request.lane]
    if request.seq >= lane.end:
        raise NotFound(f"there is no message {_name(dispatcher, request)} yet: its lane ends at {lane.end}")
    scan = _Scan(dispatcher, request)
    if request.cursor is None:
        await scan.begin()
    else:
        scan.resume(request.cursor)
    more = await scan.run()
    return scan.answer(more=more)


def _name(dispatcher: Dispatcher, request: Trace) -> str:
    shards = dispatcher.group.shards
    lane = lane_name(request.lane, shards.count if shards is not None else 0)
    return message_id(request.topic, lane, request.seq)


class _Scan:
    def __init__(self, dispatcher: Dispatcher, request: Trace) -> None:
        self._dispatcher = dispatcher
        self._request = request
        self._id = _name(dispatcher, request)
        self._at = 0
        self._messages = {(request.lane, request.seq)}
        self._subject = (request.lane, request.seq)
        """The message itself, or its copy that was sent again last."""
        self._dead: set[int] = set()
        self._last = ""
        self._passed = False
        """The group was moved to behind it."""
        self._since_us = 0
        self._whole = True
        self._steps: list[TraceStep] = []

    async def begin(self) -> None:
        """Begin with the first event that may concern the message: none is older than the message itself."""
        store, stream = self._dispatcher.store, self._dispatcher.stream
        lane = self._dispatcher.lanes[self._request.lane].stream
        late = self._dispatcher.log.catch_up()
        if late is not None:
            await late.done
        read = await store.read(lane, self._request.seq, 1, 1)
        found = next((chunk for chunk in read.chunks if chunk.first == self._request.seq), None)
        self._since_us = found.appended_at_us if found else 0
        if self._since_us > self._dispatcher.clock.now_us():
            self._since_us = 0  # stamped by a clock that was wrong: events may have right stamps
        self._at = await store.locate(stream, self._since_us) if found else 0
        first = store.bounds(stream).first
        if self._at <= first:
            self._at, self._whole = first, not first

    def resume(self, cursor: TraceCursor) -> None:
        self._at = cursor.at
        self._messages |= set(cursor.copies)
        self._subject = cursor.copies[-1] if cursor.copies else self._subject
        self._dead = set(cursor.dead)
        self._last = cursor.last
        self._since_us = cursor.since_us
        self._whole = cursor.whole

    async def run(self) -> bool:
        """Read on; returns whether there is more to be read."""
        store, stream = self._dispatcher.store, self._dispatcher.stream
        end, stop = store.bounds(stream).end, self._at + SCAN_MAX
        while self._at < end:
            if self._at >= stop or len(self._steps) >= STEPS_MAX:
                return True
            read = await store.read(stream, self._at, READ_COUNT, READ_BYTES)
            self._whole = self._whole and not read.lost
            for chunk in read.chunks:
                if await self._look_through(chunk):
                    return False
            self._at = max(read.next, self._at + 1)
            await asyncio.sleep(0)
        return False

    async def _look_through(self, chunk: Chunk) -> bool:
        """Whether the trace is complete, as far as was asked."""
        for record in Frame(chunk.frame).bodies(chunk.start, chunk.start + chunk.count):
            try:
                event = decode_event(record)
            except msgspec.MsgspecError:
                self._whole = False
                continue
            if isinstance(event, (Paused, Resumed)):
                self._note_rest(event)
                continue
            if isinstance(event, Started):
                self._whole = True  # earlier events are of another group of this name
            part = concerns(event, self._messages, self._dead)
            if isinstance(event, Moved) and part is not None and self._is_left(event, part):
                continue
            if part is not None:
                await self._note(event, part, chunk.appended_at_us)
                if isinstance(event, Acked) and not self._request.whole:
                    return True
        return False

    def _is_left(self, event: Moved, part: Part) -> bool:
        """Whether the message is settled when the group is moved to behind it, and stays so."""
        kind = _EVENTS.get(self._last)
        return part.first < dict(event.moves)[part.lane] and kind in (Acked, Buried, Skipped, Overrun, Started, Moved)

    def _note_rest(self, event: Paused | Resumed) -> None:
        """The group is paused or resumed: that concerns messages that are not settled."""
        if self._passed or _EVENTS.get(self._last) in _ENDED:
            return
        if isinstance(event, Resumed) and event.since_us < self._since_us:
            # It was paused before the message came, and so before all that was read.
            self._steps.append(TraceStep(event.since_us, "paused", reason=event.reason))
        self._steps.append(TraceStep(event.at_us, type(event).__name__.lower(), reason=event.reason))

    async def _note(self, event: Event, part: Part, at_us: int) -> None:
        number = -1
        if isinstance(event, Buried):
            number = dead_number(event.parts, event.dead_first, part)
            self._dead.add(number)
        elif isinstance(event, Resent):
            number = part.first
            await self._follow_copy(at_us)
        self._last = type(event).__name__.lower()
        self._passed = isinstance(event, Moved) and part.first < dict(event.moves)[part.lane]
        deadline_us = getattr(event, "deadline_us", 0)
        step = TraceStep(
            event.at_us,
            self._last,
            getattr(event, "pull", 0),
            getattr(event, "consumer", ""),
            part.attempt,
            getattr(event, "reason", ""),
            getattr(event, "due_us", deadline_us),
            number,
            part.lane >= self._dispatcher.group.topic_lanes,
        )
        self._steps.append(step)

    async def _follow_copy(self, at_us: int) -> None:
        """A dead letter is sent again by a unit: its copy was appended to an own lane in the same moment as the event,
        and carries its origin."""
        number = self._dispatcher.group.topic_lanes + rank(self._dispatcher, self._request.lane)
        stream = self._dispatcher.lanes[number].stream
        at = await self._dispatcher.store.locate(stream, at_us)
        while True:
            read = await self._dispatcher.store.read(stream, at, READ_COUNT, READ_BYTES)
            chunks = [chunk for chunk in read.chunks if chunk.appended_at_us == at_us]
            for chunk in chunks:
                headers = Frame(chunk.frame).headers(chunk.start, chunk.start + chunk.count) or []
                for index, head in enumerate(headers):
                    if head.get(DIED_ORIGIN) == self._id and (number, chunk.first + index) not in self._messages:
                        self._subject = (number, chunk.first + index)
                        self._messages.add(self._subject)
                        return
            if not chunks or read.next <= at:
                return
            at = read.next

    def answer(self, *, more: bool) -> Traced:
        cursor = None
        if more:
            copies = sorted(self._messages - {self._subject, (self._request.lane, self._request.seq)})
            if self._subject != (self._request.lane, self._request.seq):
                copies.append(self._subject)
            cursor = TraceCursor(self._at, copies, sorted(self._dead), self._last, self._whole, self._since_us)
        now = standing(self._dispatcher.group, *self._subject)
        config = self._dispatcher.group.config
        if config.paused and config.paused_at_us < self._since_us and now is not None and not more:
            self._steps.append(TraceStep(config.paused_at_us, "paused", reason=config.pause_reason))
        if now is None:
            return Traced(self._settled_status(), 0, 0, self._steps, self._whole, cursor)
        due_us = self._dispatcher.time.on_clock(now.due_us)
        return Traced(now.status, now.attempt, due_us, self._steps, self._whole, cursor)

    def _settled_status(self) -> str:
        """The status of a message behind the group's position and in no list: by its last event."""
        if self._last == Started.__name__.lower():
            return BEFORE
        if self._last == Moved.__name__.lower():
            return State.GONE.status
        event = _EVENTS.get(self._last)
        state = state_after(event) if event is not None else None
        # A pull whose ack was dropped with the old part of the pull log, or of which nothing is left, was settled.
        return state.status if state in _FINAL else State.DONE.status


_ENDED: Final = (Acked, Buried, Skipped, Overrun, Started)
_FINAL: Final = (State.DONE, State.DEAD, State.GONE, State.WAITING)
_EVENTS: Final[dict[str, type[Event]]] = {kind.__name__.lower(): kind for kind in Event.__args__}
