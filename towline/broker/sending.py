"""The way in: frames are checked, appended as one unit, and acknowledged when they are as durable as was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from towline.broker.lane import Lane
from towline.broker.scheduling import Booking, Scheduler, delay_mark
from towline.broker.topic import Topic
from towline.delivery import Producers
from towline.errors import BadFrame, BadRequest, Refused, TooLarge
from towline.frame import EVENTS, Frame
from towline.frame.layout import DEDUP, DELIVER_AT, EXPIRES_AT, SHARD_KEY, TIMEOUT
from towline.model import Durability
from towline.protocol.messages import Sent
from towline.store import Append, Appended, Store

__all__ = ["Outgoing", "Sender"]

Outgoing = tuple[str, int, bytes | memoryview]
"""Topic, lane number, frame."""

NOT_YET: Final = DEDUP | EXPIRES_AT | SHARD_KEY | TIMEOUT


class Sender:
    """The hot path: nothing here looks at a single message of a frame."""

    def __init__(
        self,
        store: Store,
        producers: Producers,
        find_topic: Callable[[str], Topic],
        durability: Durability,
        max_frame_bytes: int,
        *,
        scheduler: Scheduler,
    ) -> None:
        self._store = store
        self._producers = producers
        self._find_topic = find_topic
        self._durability = durability
        self._max_frame_bytes = max_frame_bytes
        self._scheduler = scheduler
        self._under_way: dict[tuple[int, int], asyncio.Future[Sent]] = {}
        self.messages = 0
        self.bytes = 0

    def send(
        self, outgoing: Sequence[Outgoing], durability: Durability | None, source: bytes, token: bytes
    ) -> asyncio.Future[Sent]:
        frames = [self._check(data, token) for _, _, data in outgoing]
        known = self._known(frames)
        if known is not None:
            return known
        topics = [self._find_topic(topic) for topic, _, _ in outgoing]
        lanes = [topic.lanes[lane] for topic, (_, lane, _) in zip(topics, outgoing, strict=True)]
        unit = [Append(lane.stream, frame.data, frame.count, source) for lane, frame in zip(lanes, frames, strict=True)]
        booking = None
        for frame in frames:
            if frame.flags & DELIVER_AT:
                booking = self._book(outgoing, frames, source)
                break
        wanted = self._durability if durability is None else durability
        if booking is None:
            appended = self._store.append(unit, max(wanted, Durability.OS))
            sent = Sent(list(appended.firsts), appended.at_us)
        else:
            appended, sent = self._append_booked(unit, booking, max(wanted, Durability.OS))
        self._submit(lanes, frames, sent, appended.done)
        answer: asyncio.Future[Sent] = appended.done.get_loop().create_future()
        if wanted is Durability.RECEIVED:
            answer.set_result(sent)
        else:
            self._track(frames, answer)
        waking = set(topics)

        def finish(done: asyncio.Future[None]) -> None:
            for lane in lanes:
                lane.advance()
            error = done.exception()
            if error is not None:
                self._forget(frames)
            if not answer.done():
                answer.set_exception(error) if error is not None else answer.set_result(sent)
            for topic in waking:
                topic.wake()

        if appended.done.done():
            finish(appended.done)
        else:
            appended.done.add_done_callback(finish)
        return answer

    def _check(self, data: bytes | memoryview, token: bytes) -> Frame:
        if len(data) > self._max_frame_bytes:
            raise TooLarge(
                f"a frame of {len(data)} bytes is over the broker's limit of {self._max_frame_bytes}: "
                "send fewer or smaller messages at a time"
            )
        frame = Frame(data).verify().verify_columns()
        if frame.flags & EVENTS:
            raise BadFrame("a producer sends messages, not delivery events")
        if frame.flags & NOT_YET:
            raise BadRequest(f"this broker does not know what the frame asks for (flags {frame.flags & NOT_YET:#x})")
        if frame.token != token:
            raise Refused("the frame carries another token than its connection")
        return frame

    def _known(self, frames: Sequence[Frame]) -> asyncio.Future[Sent] | None:
        """The answer to a unit that is here already or under way: its frames are numbered one after another, so the
        first one tells."""
        first = frames[0]
        if not first.producer_id:
            return None
        under_way = self._under_way.get((first.producer_id, first.producer_seq))
        if under_way is not None:
            return _again(under_way)
        remembered = [self._producers.find(frame.producer_id, frame.producer_seq) for frame in frames]
        if remembered[0] is None:
            return None
        found = [one for one in remembered if one is not None]
        if len(found) != len(frames):
            raise BadRequest(f"producer {first.producer_id:x} sends frame {first.producer_seq} again with other frames")
        answer: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()
        waiting = [number for number, one in enumerate(found) if one.first < 0]
        firsts = [delay_mark(one.first) if one.first < 0 else one.first for one in found]
        answer.set_result(Sent(firsts, found[0].at_us, True, waiting))
        return answer

    def _book(self, outgoing: Sequence[Outgoing], frames: Sequence[Frame], source: bytes) -> Booking | None:
        """Delayed messages go to the schedule instead of their lanes, unless all of a frame is due by now."""
        delayed = [
            (number, topic, lane, frame)
            for number, ((topic, lane, _), frame) in enumerate(zip(outgoing, frames, strict=True))
            if frame.flags & DELIVER_AT
        ]
        return self._scheduler.book(delayed, source)

    def _append_booked(self, unit: Sequence[Append], booking: Booking, durability: Durability) -> tuple[Appended, Sent]:
        now = [append for number, append in enumerate(unit) if number not in booking.firsts]
        appended = self._store.append([*now, *booking.appends], durability)
        self._scheduler.booked(booking, appended, len(now))
        return appended, booking.sent(appended, len(unit))

    def _submit(self, lanes: Sequence[Lane], frames: Sequence[Frame], sent: Sent, done: asyncio.Future[None]) -> None:
        waiting = {id(frames[number]) for number in sent.delayed} if sent.delayed else ()
        for lane, frame, first in zip(lanes, frames, sent.firsts, strict=True):
            if waiting and id(frame) in waiting:
                first = delay_mark(first)  # noqa: PLW2901 - how it is remembered
            else:
                lane.submitted(first + frame.count, done)
            if frame.producer_id:
                self._producers.remember(frame.producer_id, frame.producer_seq, first, sent.appended_at_us)
            self.messages += frame.count
            self.bytes += frame.length

    def _track(self, frames: Sequence[Frame], answer: asyncio.Future[Sent]) -> None:
        first = frames[0]
        if first.producer_id:
            name = (first.producer_id, first.producer_seq)
            self._under_way[name] = answer
            answer.add_done_callback(lambda _: self._under_way.pop(name, None))

    def _forget(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            if frame.producer_id:
                self._producers.forget(frame.producer_id, frame.producer_seq)


def _again(under_way: asyncio.Future[Sent]) -> asyncio.Future[Sent]:
    """The same answer, marked as a duplicate; cancelling it does not harm the first one."""
    answer: asyncio.Future[Sent] = under_way.get_loop().create_future()

    def finish(first: asyncio.Future[Sent]) -> None:
        if answer.done():
            return
        error = first.exception()
        if error is not None:
            answer.set_exception(error)
        else:
            sent = first.result()
            answer.set_result(Sent(sent.firsts, sent.appended_at_us, True, sent.delayed))

    under_way.add_done_callback(finish)
    return answer
