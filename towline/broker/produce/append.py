"""Appending frames: check, append as one unit, acknowledge when they are as durable as was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from towline.broker.produce.placement import Placed, place
from towline.broker.schedule.scheduler import Booking, Scheduler, delay_mark
from towline.broker.topics.shards import refuse_mixed
from towline.broker.topics.topic import Lane, Topic, advance_all, submit_all
from towline.delivery.dedup import Repeat, Screened, Seen, dedup_ids_of
from towline.errors import BadFrame, BadRequest, Refused, TooLarge, Unavailable
from towline.frame import EVENTS, Frame
from towline.frame.layout import DEDUP, DELIVER_AT, unpacked_bytes
from towline.frame.many import Bundle
from towline.model import Durability
from towline.protocol.messages import Sent
from towline.store import Append, Histogram, Store

if TYPE_CHECKING:
    from towline.clock import Clock, SteadyClock
    from towline.delivery import Dedup, Producers
    from towline.protocol.messages import FrameHead

__all__ = ["Appender", "Mark", "Outgoing"]

Outgoing = tuple[str, int, bytes | memoryview]
"""Topic, lane number, frame."""


class Mark(Protocol):
    """A record appended in one unit with frames, to mark that they are there."""

    def append(self, firsts: Sequence[int], repeats: Sequence[Repeat], delayed: Sequence[int]) -> Append:
        """The record, given the position of each frame, the repeats, and the frames that wait for their time."""

    def appended(self, sent: Sent, done: asyncio.Future[None]) -> None:
        """It is appended, and is durable when `done` is; called before anything else can happen."""


NOT_PLAIN: Final = DEDUP | DELIVER_AT
NOTHING: Final[Mapping[int, int]] = {}


class Appender:
    """The hot path: no single message of a frame is looked at."""

    def __init__(
        self,
        store: Store,
        producers: Producers,
        dedup: Dedup,
        find_topic: Callable[[str], Topic],
        *,
        durability: Durability,
        max_frame_bytes: int,
        max_message_bytes: int,
        clock: Clock,
        time: SteadyClock,
        scheduler: Scheduler,
    ) -> None:
        self._store = store
        self._producers = producers
        self._dedup = dedup
        self.clock = clock
        self._time = time
        self.scheduler = scheduler
        self.find_topic = find_topic
        self._durability = durability
        self._max_frame_bytes = max_frame_bytes
        self._max_message_bytes = max_message_bytes
        self._under_way: dict[tuple[int, int], asyncio.Future[Sent]] = {}
        self._refusals = 0
        """Units with dedup ids that were not stored after all."""
        self.messages = 0
        self.bytes = 0
        self.commit_times = Histogram()
        """From the arrival of a unit until it was as durable as was asked."""

    def send(
        self, outgoing: Sequence[Outgoing], durability: Durability | None, source: bytes, token: bytes
    ) -> asyncio.Future[Sent]:
        if len(outgoing) > 1:
            appended = self._append_bundle(outgoing, durability, source, token)
            if appended is not None:
                return appended
        frames = self.check_all([data for _, _, data in outgoing], token)
        known = self._known(outgoing, frames) if frames[0].producer_id else None
        if known is not None:
            return known
        if len(frames) == 1 and not frames[0].flags & NOT_PLAIN:
            return self._append_plain(outgoing[0], frames[0], durability, source, token)
        return self.append(outgoing, frames, durability, source)

    def _append_plain(
        self, outgoing: Outgoing, frame: Frame, durability: Durability | None, source: bytes, token: bytes
    ) -> asyncio.Future[Sent]:
        """`append` for one frame without special columns: nearly all there are."""
        wanted = self._durability if durability is None else durability
        topic = self.find_topic(outgoing[0])
        lane = topic.lane(outgoing[1])
        append = Append(lane.stream, frame.data, frame.count, source)
        begun_s = self.clock.steady_s()
        (first,), at_us, done = self._store.append((append,), wanted or Durability.OS)
        lane.submitted(first, append, at_us, done)
        self.messages += frame.count
        self.bytes += frame.length
        if frame.producer_id:
            self._producers.remember(frame.producer_id, frame.producer_seq, first, at_us, token)
        sent = Sent([first], at_us)
        if done.done() and done.exception() is None:
            lane.advance()
            # Consumers first: whoever waits for the message waits longer than its sender.
            topic.wake()
            self.commit_times.note(self.clock.steady_s() - begun_s)
            answer: asyncio.Future[Sent] = done.get_loop().create_future()
            answer.set_result(sent)
            return answer
        ids = ((frame.producer_id, frame.producer_seq),)
        sending = _Append(self, ids, (lane,), (topic,), sent=sent, begun_s=begun_s, loop=done.get_loop())
        if frame.producer_id:
            self._under_way[ids[0]] = sending.answer
        _when(done, sending.finish)
        return sending.answer

    def _append_bundle(
        self, outgoing: Sequence[Outgoing], durability: Durability | None, source: bytes, token: bytes
    ) -> asyncio.Future[Sent] | None:
        """`append` for the frames of one call to an ordered topic. None if they are anything else, or may have come
        before: nothing has happened then."""
        names, numbers, data = zip(*outgoing, strict=True)
        bundle = Bundle.verify(data, token) if len(set(names)) == 1 else None
        if bundle is None or bundle.flags & NOT_PLAIN:
            return None
        if max(bundle.lengths) > min(self._max_frame_bytes, self._max_message_bytes):
            return None
        producer_id, seqs = bundle.producer_id, bundle.producer_seqs
        if not producer_id or (producer_id, seqs[0]) in self._under_way:
            return None
        self._producers.check(producer_id, token)
        if not self._producers.all_new(producer_id, min(seqs)):
            return None
        wanted = self._durability if durability is None else durability
        topic = self.find_topic(names[0])
        lanes = topic.lanes_of(numbers)
        unit = [
            Append(lane.stream, frame, count, source)
            for lane, frame, count in zip(lanes, data, bundle.counts, strict=True)
        ]
        firsts, at_us, done = self._store.append(unit, wanted or Durability.OS)
        visible = _together(lanes, done)
        submit_all(lanes, firsts, unit, at_us, visible)
        self._producers.remember_all(producer_id, seqs, firsts, at_us, token)
        self.messages += sum(bundle.counts)
        self.bytes += sum(bundle.lengths)
        ids, sent = [(producer_id, seq) for seq in seqs], Sent(list(firsts), at_us)
        sending = _Append(self, ids, lanes, (topic,), sent=sent, loop=done.get_loop())
        return self._follow(sending, wanted, done, visible)

    def append(
        self,
        outgoing: Sequence[Outgoing],
        frames: Sequence[Frame],
        durability: Durability | None,
        source: bytes,
        mark: Mark | None = None,
    ) -> asyncio.Future[Sent]:
        """Append checked frames as one unit, without the messages whose dedup ids came before."""
        wanted = self._durability if durability is None else durability
        topics, lanes, flags = self._lanes(outgoing, frames)
        screened = self._screen(outgoing, frames) if flags & DEDUP or mark is not None else None
        stored: Sequence[Frame | None] = frames if screened is None else screened.frames
        booking = self._book(outgoing, stored, source) if flags & DELIVER_AT else None
        waiting: Mapping[int, int] = booking.firsts if booking is not None else NOTHING
        placed = None if screened is None else place(screened, lanes, [lane for _, lane, _ in outgoing], waiting)
        kept = [
            None if frame is None else Append(lane.stream, frame.data, frame.count, source)
            for lane, frame in zip(lanes, stored, strict=True)
        ]
        for number in waiting:
            kept[number] = None
        unit = [append for append in kept if append is not None]
        if mark is not None and placed is not None:
            unit.append(mark.append(placed.firsts, placed.settle(0)[1], sorted(waiting)))
        ahead = len(unit)
        if booking is not None:
            unit += booking.appends
        appended = self._store.append(unit, wanted or Durability.OS)
        done = appended.done
        if booking is not None:
            self.scheduler.booked(booking, appended, ahead)
        if placed is not None:
            sent = placed.sent(appended)
        elif booking is not None:
            sent = booking.sent(appended, len(frames))
        else:
            sent = Sent(list(appended.firsts), appended.at_us)
        visible = done if len(lanes) == 1 else _together(lanes, done)
        self._submit(lanes, kept, frames, sent, visible)
        if placed is not None:
            self._dedup.remember(placed.new, self._time.now_us())
            _when(done, partial(self._forget_refused, placed))
        if mark is not None:
            mark.appended(sent, appended.done)
        if sent.repeats:
            done = self._with_firsts(done, self._store.append([], wanted or Durability.OS).done)
        ids = [(frame.producer_id, frame.producer_seq) for frame in frames]
        sending = _Append(self, ids, lanes, topics, sent=sent, loop=done.get_loop())
        return self._follow(sending, wanted, done, visible)

    def _follow(
        self, sending: _Append, wanted: Durability, done: asyncio.Future[None], visible: asyncio.Future[None]
    ) -> asyncio.Future[Sent]:
        """Wait for an appended unit; its answer."""
        if wanted is Durability.RECEIVED:
            sending.answer.set_result(sending.sent)
        elif sending.ids[0][0]:
            self._under_way[sending.ids[0]] = sending.answer
        if visible is done:
            _when(done, sending.finish)
        else:
            _when(visible, sending.seen)
            _when(done, sending.stored)
        return sending.answer

    def _forget_refused(self, placed: Placed, done: asyncio.Future[None]) -> None:
        if placed.new and done.exception() is not None:
            self._dedup.forget(placed.new)
            self._refusals += 1

    def _with_firsts(self, own: asyncio.Future[None], barrier: asyncio.Future[None]) -> asyncio.Future[None]:
        """Done when a unit is stored and so are the first messages of its repeats: they may still be on their way to
        the disk, or be refused there."""
        refusals = self._refusals
        both: asyncio.Future[None] = barrier.get_loop().create_future()

        def finish(_: asyncio.Future[None]) -> None:
            error = (own.exception() if own.done() else None) or barrier.exception()
            if error is None and self._refusals != refusals:
                error = Unavailable("a message with a dedup id was refused while its repeat came: send it again")
            both.set_exception(error) if error is not None else both.set_result(None)

        _when(barrier, finish)
        return both

    def _lanes(self, outgoing: Sequence[Outgoing], frames: Sequence[Frame]) -> tuple[list[Topic], list[Lane], int]:
        """The topics, the lane of each frame, and the flags of all of them."""
        topics: list[Topic] = []
        lanes: list[Lane] = []
        flags, last, topic = 0, "", None
        for (name, number, _), frame in zip(outgoing, frames, strict=True):
            if topic is None or name != last:
                topic, last = self.find_topic(name), name
                topics.append(topic)
            if frame.flags & DELIVER_AT and topic.config.shards:
                refuse_mixed(name, frame)
            lanes.append(topic.lane(number))
            flags |= frame.flags
        return topics, lanes, flags

    def _book(self, outgoing: Sequence[Outgoing], frames: Sequence[Frame | None], source: bytes) -> Booking | None:
        """Delayed messages go to the schedule instead of their lanes, unless all of a frame is due by now."""
        delayed = [
            (number, topic, lane, frame)
            for number, ((topic, lane, _), frame) in enumerate(zip(outgoing, frames, strict=True))
            if frame is not None and frame.flags & DELIVER_AT
        ]
        return self.scheduler.book(delayed, source) if delayed else None

    def _screen(self, outgoing: Sequence[Outgoing], frames: Sequence[Frame]) -> Screened:
        """Take out duplicates by their dedup ids."""
        unit = [(topic, frame) for (topic, _, _), frame in zip(outgoing, frames, strict=True)]
        return self._dedup.screen(unit, self._time.now_us())

    def check_all(self, data: Sequence[bytes | memoryview], token: bytes) -> list[Frame]:
        """The frames of one request, which together unpack to no more than one alone may."""
        if len(data) > 1:
            self._check_size(sum(max(unpacked_bytes(one) - len(one), 0) for one in data), "frames that unpack to")
        return [self.check(one, token) for one in data]

    def check_later(self, heads: Sequence[FrameHead], data: Sequence[bytes | memoryview], token: bytes) -> list[Frame]:
        """Frames that are to be appended later. Raises what `append` would have against them."""
        frames = self.check_all(data, token)
        for head, frame in zip(heads, frames, strict=True):
            topic = self.find_topic(head.topic)
            topic.lane(head.lane)
            if topic.config.shards:
                refuse_mixed(head.topic, frame)
            if frame.flags & DEDUP:
                dedup_ids_of(head.topic, frame)
            if frame.flags & DELIVER_AT:
                self.scheduler.check(frame)
            frame.let_go()
        return frames

    def _check_size(self, size: int, what: str) -> None:
        if size > self._max_frame_bytes:
            raise TooLarge(
                f"{what} {size} bytes: that is over the broker's limit of {self._max_frame_bytes} (max_frame_bytes). "
                "Send fewer or smaller messages at a time"
            )

    def check(self, data: bytes | memoryview, token: bytes) -> Frame:
        self._check_size(len(data), "a frame of")
        # Before it is unpacked, and nothing unpacks to more than is stated.
        self._check_size(unpacked_bytes(data), "a frame that unpacks to")
        frame = Frame(data).verify_whole()
        if frame.flags & EVENTS:
            raise BadFrame("a producer sends messages, not delivery events")
        if frame.columns_length > self._max_message_bytes and frame.longest() > self._max_message_bytes:
            raise TooLarge(
                f"a message of {frame.longest()} bytes is over what the database takes of one, with room for why it "
                f"failed: {self._max_message_bytes}. Send smaller messages, or raise max_allowed_packet"
            )
        if frame.token != token:
            raise Refused("the frame carries another token than its connection")
        if frame.producer_id:
            self._producers.check(frame.producer_id, token)
        return frame

    def _known(self, outgoing: Sequence[Outgoing], frames: Sequence[Frame]) -> asyncio.Future[Sent] | None:
        """The answer to a unit that is here already or being written: it is stored whole, so one frame is enough to
        tell."""
        first = frames[0]
        under_way = self._under_way.get((first.producer_id, first.producer_seq))
        if under_way is not None:
            return _again(under_way)
        alone = len(frames) == 1
        lowest = first.producer_seq if alone else min(_seqs(frames))
        if self._producers.all_new(first.producer_id, lowest) and (alone or _one_producer(frames)):
            return None
        remembered = [self._producers.find(frame.producer_id, frame.producer_seq) for frame in frames]
        if not any(remembered):
            return None
        firsts: list[int] = []
        repeats: list[Repeat] = []
        at_us = next(one.at_us for one in remembered if one is not None)
        delayed: list[int] = []
        for n, ((topic, lane, _), frame, one) in enumerate(zip(outgoing, frames, remembered, strict=True)):
            told: list[Repeat] | None = [] if one is not None else None
            if frame.flags & DEDUP:
                at = None if one is None else Seen(lane, one.first, one.at_us)
                told = self._dedup.recall(n, topic, frame, at, self._time.now_us())
            if told is None:
                raise BadRequest(
                    f"producer {first.producer_id:x} sends frame {first.producer_seq} again with other frames"
                )
            repeats += told
            if one is not None and one.first < 0:
                delayed.append(n)
                firsts.append(delay_mark(one.first))
            else:
                firsts.append(one.first if one is not None else max(told[0].seq, 0))
        answer: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()
        answer.set_result(Sent(firsts, at_us, True, list(repeats), delayed))
        return answer

    def _submit(
        self,
        lanes: Sequence[Lane],
        kept: Sequence[Append | None],
        frames: Sequence[Frame],
        sent: Sent,
        visible: asyncio.Future[None],
    ) -> None:
        firsts: Sequence[int] = sent.firsts
        if sent.delayed:
            firsts = [delay_mark(first) if n in sent.delayed else first for n, first in enumerate(firsts)]
            self.messages += sum(frames[n].count for n in sent.delayed)
            self.bytes += sum(frames[n].length for n in sent.delayed)
        at_us, messages, size = sent.appended_at_us, 0, 0
        for lane, append, first in zip(lanes, kept, firsts, strict=True):
            if append is not None:
                lane.submitted(first, append, at_us, visible)
                messages += append.count
                size += len(append.frame)
        if _one_producer(frames):
            self._producers.remember_all(frames[0].producer_id, _seqs(frames), firsts, at_us, frames[0].token)
        else:
            for frame, first in zip(frames, firsts, strict=True):
                if frame.producer_id:
                    self._producers.remember(frame.producer_id, frame.producer_seq, first, at_us, frame.token)
        self.messages += messages
        self.bytes += size

    def settle(self, ids: Sequence[tuple[int, int]], *, stored: bool) -> None:
        """The frames are stored, or never will be."""
        if ids[0][0]:
            self._under_way.pop(ids[0], None)
        if stored:
            return
        for producer_id, seq in ids:
            if producer_id:
                self._producers.forget(producer_id, seq)


def _one_producer(frames: Sequence[Frame]) -> bool:
    """Whether all frames have numbers of the same producer, as those of a unit mostly have."""
    return frames[0].producer_id != 0 and (len(frames) == 1 or len({frame.producer_id for frame in frames}) == 1)


def _seqs(frames: Sequence[Frame]) -> list[int]:
    return [frame.producer_seq for frame in frames]


def _when(future: asyncio.Future[None], callback: Callable[[asyncio.Future[None]], None]) -> None:
    if future.done():
        callback(future)
    else:
        future.add_done_callback(callback)


class _Append:
    """A unit being written."""

    __slots__ = ("_begun_s", "_lanes", "_sender", "_topics", "answer", "ids", "sent")

    def __init__(
        self,
        sender: Appender,
        ids: Sequence[tuple[int, int]],
        lanes: Sequence[Lane],
        topics: Sequence[Topic],
        *,
        sent: Sent,
        begun_s: float | None = None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._sender = sender
        self.ids = ids
        """Producer and number of each frame; the producer is 0 where a frame has none."""
        self._lanes = lanes
        self._topics = topics
        self.sent = sent
        self._begun_s = sender.clock.steady_s() if begun_s is None else begun_s
        self.answer: asyncio.Future[Sent] = loop.create_future()

    def finish(self, done: asyncio.Future[None]) -> None:
        """It is stored, and may be visible."""
        advance_all(self._lanes)
        # Consumers first: whoever waits for the message waits longer than its sender.
        for topic in self._topics:
            topic.wake()
        self.stored(done)

    def stored(self, done: asyncio.Future[None]) -> None:
        error = done.exception()
        self._sender.commit_times.note(self._sender.clock.steady_s() - self._begun_s)
        self._sender.settle(self.ids, stored=error is None)
        if not self.answer.done():
            self.answer.set_exception(error) if error is not None else self.answer.set_result(self.sent)

    def seen(self, visible: asyncio.Future[None]) -> None:
        visible.exception()  # retrieved, because nobody else may
        advance_all(self._lanes)
        for topic in self._topics:
            topic.wake()


def _together(lanes: Sequence[Lane], done: asyncio.Future[None]) -> asyncio.Future[None]:
    """Done when all of a unit is visible: on one of its lanes something may go before it that takes longer."""
    waiting = {last for lane in lanes if (last := lane.last) is not None and not last.done()}
    if not waiting:
        return done
    visible: asyncio.Future[None] = done.get_loop().create_future()
    left = len(waiting) + 1

    def count(_: asyncio.Future[None]) -> None:
        nonlocal left
        left -= 1
        if left:
            return
        error = done.exception()
        visible.set_exception(error) if error is not None else visible.set_result(None)

    for future in [*waiting, done]:
        future.add_done_callback(count)
    return visible


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
            answer.set_result(Sent(sent.firsts, sent.appended_at_us, True, sent.repeats, sent.delayed))

    under_way.add_done_callback(finish)
    return answer
