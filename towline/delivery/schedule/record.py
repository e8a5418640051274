"""Records of the schedule: each holds messages of one lane that wait in one slot, in the order of their times, as one
frame.

Splitting a producer's frame by slots, and joining what was split, run over whole columns.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain, groupby
from typing import Final, NamedTuple

import msgspec

from towline.clock import SECOND_US
from towline.delivery.schedule.wheel import Place, level_end_us, place_of, span_end_us
from towline.errors import BadRequest
from towline.frame import Frame, Piece, encode_events, gather, slice_frame
from towline.frame.layout import DEDUP

__all__ = [
    "OpenedRecord",
    "Origin",
    "ScheduleRecord",
    "counts_up",
    "decode_parcel",
    "encode_parcels",
    "join",
    "packed",
    "ready",
    "ready_in_order",
    "resolve_delay",
    "resolve_times",
    "split",
]

DELAY_MAX_US: Final = 36_525 * 86_400 * SECOND_US
LEVEL_MAX: Final = 999
TOGETHER: Final = 16
"""A producer's messages that would be fewer than this in their slot wait with others, in the slot of the first: a
record costs about as much as moving so many messages once more."""


class ScheduleRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Messages of one lane that wait in the same slot."""

    topic: str
    lane: int
    number: int
    """Of the slot, counted from 1970: the stream's name tells it only up to the size of the wheel."""
    first_us: int
    last_us: int
    first_id: int
    """The id of the first message of the frame that the producer sent."""
    count: int
    frame: bytes | memoryview
    ids: bytes = b""
    """The ids of the messages, as 64-bit numbers, where they do not simply count up from `first_id`."""
    source: bytes = b""
    moved: bool = False
    """It came from another slot, not from a producer."""
    low_id: int = -1
    """The lowest of the `ids`, …"""
    high_id: int = -1
    """… and the highest; -1 where it is not noted."""
    era: int = 0
    """How often the clock had been set back when it was written."""

    def id_range(self) -> tuple[int, int]:
        """The lowest and the highest id."""
        if self.high_id >= 0:
            return self.low_id, self.high_id
        if not self.ids:
            return self.first_id, self.first_id + self.count - 1
        ids = _unpacked(self.ids)
        return min(ids), max(ids)


class _Stored(ScheduleRecord, frozen=True, array_like=True, gc=False):
    frame: memoryview
    """A read frame need not be copied."""


_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODER: Final = msgspec.msgpack.Decoder(_Stored)


def encode_parcels(parcels: Sequence[ScheduleRecord]) -> bytes:
    return encode_events([_ENCODE(parcel) for parcel in parcels])


def decode_parcel(record: bytes) -> ScheduleRecord:
    """Raises `msgspec.MsgspecError` if it is none."""
    return _DECODER.decode(record)


class OpenedRecord:
    """A decoded record and its columns."""

    __slots__ = ("_ids", "frame", "parcel", "times")

    def __init__(self, parcel: ScheduleRecord) -> None:
        self.parcel = parcel
        self.frame = Frame(parcel.frame)
        self.times = _times(self.frame)
        self._ids = _unpacked(parcel.ids) if parcel.ids else None

    def ids(self, start: int, stop: int) -> Sequence[int]:
        if self._ids is None:
            return range(self.parcel.first_id + start, self.parcel.first_id + stop)
        return self._ids[start:stop]

    def origin(self) -> tuple[str, int, bytes, bytes]:
        """The properties that messages must share to be joined."""
        return self.parcel.topic, self.parcel.lane, self.parcel.source, self.frame.token

    def index_of(self, message_id: int) -> int | None:
        if self._ids is None:
            index = message_id - self.parcel.first_id
            return index if 0 <= index < self.parcel.count else None
        try:
            return self._ids.index(message_id)
        except ValueError:
            return None


def _times(frame: Frame) -> array[int]:
    """The due times of the messages."""
    times = array("q", frame.deliver_at_us() or ())
    assert len(times) == frame.count, "a parcel's frame has a time for each message"
    return times


def resolve_times(frame: Frame, now_us: int, levels_us: Sequence[int]) -> list[int]:
    """The due time of each message of a producer's frame; 0 is at once."""
    times = frame.deliver_at_us() or [0] * frame.count
    earliest, latest = min(times), max(times)
    if latest < -LEVEL_MAX:
        # All of them are delays, each maybe its own.
        times = [now_us - value for value in times]
        latest = now_us - earliest
    elif earliest < 0:
        delays = {value: _delay_us(value, levels_us) for value in set(times) if value < 0}
        times = [now_us + delays[value] if value < 0 else value for value in times]
        latest = max(times)
    if latest - now_us > DELAY_MAX_US:
        raise BadRequest("a message can be delayed by 100 years at most")
    return times


def resolve_delay(value: int, now_us: int, levels_us: Sequence[int]) -> int:
    """The due time for a value of the deliver-at column."""
    at_us = now_us + _delay_us(value, levels_us) if value < 0 else value
    if at_us - now_us > DELAY_MAX_US:
        raise BadRequest("a message can be delayed by 100 years at most")
    return at_us


def _delay_us(value: int, levels_us: Sequence[int]) -> int:
    if value < -LEVEL_MAX:
        return -value
    if -value > len(levels_us):
        raise BadRequest(f"there is no delay level {-value}: this broker has the levels 1 to {len(levels_us)}")
    return levels_us[-value - 1]


class Origin(NamedTuple):
    """The properties that all messages of a record share."""

    topic: str
    lane: int
    source: bytes


def split(
    frame: Frame, times: list[int], until_us: int, origin: Origin, first_id: int
) -> list[tuple[Place, ScheduleRecord]]:
    """A producer's frame as records, one for each slot that its messages wait in. Nothing is due before what has been
    delivered already: it would never be looked at."""
    floor_us = until_us + 1
    if min(times) < floor_us:
        times = [time if time > floor_us else floor_us for time in times]
    producer = frame.producer_id, frame.producer_seq
    data, times, order = _in_order([Piece(frame, 0, frame.count)], times, producer)
    ids = range(first_id, first_id + frame.count) if order is None else [first_id + index for index in order]
    return _by_slot(data, times, ids, until_us, origin=origin, first_id=first_id)


def join(
    pieces: Sequence[tuple[OpenedRecord, int, int]], until_us: int, at_us: int | None = None
) -> list[tuple[Place, ScheduleRecord]]:
    """Messages of records of the same origin and token, in as few records as possible: one for each slot. With `at_us`,
    they are due then instead."""
    head = pieces[0][0].parcel
    cuts = [Piece(one.frame, start, stop) for one, start, stop in pieces]
    times = list(chain.from_iterable(one.times[start:stop] for one, start, stop in pieces))
    if at_us is not None:
        times = [at_us] * len(times)
    data, times, order = _in_order(cuts, times, (0, 0))
    ids: Sequence[int] = list(chain.from_iterable(one.ids(start, stop) for one, start, stop in pieces))
    if order is not None:
        ids = [ids[index] for index in order]
    return _by_slot(data, times, ids, until_us, origin=Origin(head.topic, head.lane, head.source))


def ready(pieces: Sequence[tuple[OpenedRecord, int, int]]) -> tuple[bytes, Sequence[int]]:
    """Messages of records of the same origin and token as a frame for their lane, and their ids: in the order of their
    times, which it does not carry any more. Nor does it carry dedup ids: they are known from when the messages were
    sent."""
    order = None
    if len(pieces) == 1:
        [(one, start, stop)] = pieces
        ids = one.ids(start, stop)
    else:
        ids = list(chain.from_iterable(one.ids(start, stop) for one, start, stop in pieces))
        times = list(chain.from_iterable(one.times[start:stop] for one, start, stop in pieces))
        if times != sorted(times):
            order = sorted(range(len(times)), key=times.__getitem__)
            ids = [ids[index] for index in order]
    return gather([Piece(one.frame, start, stop) for one, start, stop in pieces], order=order, without=DEDUP), ids


def ready_in_order(pieces: Sequence[tuple[OpenedRecord, int, int]]) -> list[tuple[bytes, list[int], bytes]]:
    """Messages for one shard, maybe of several origins: frames, the ids of the messages of each, and its source. All in
    the order of their times, and where these are the same, in the order in which they were sent."""
    messages = [
        (time, number, piece, at)
        for piece, (one, start, stop) in enumerate(pieces)
        for at, (time, number) in enumerate(zip(one.times[start:stop], one.ids(start, stop), strict=True), start)
    ]
    messages.sort()
    frames = []
    for _, run in groupby(messages, key=lambda message: pieces[message[2]][0].origin()):
        cuts, ids = list[Piece](), list[int]()
        for _, message_id, number, at in run:
            ids.append(message_id)
            opened = pieces[number][0]
            if cuts and cuts[-1].frame is opened.frame and cuts[-1].stop == at:
                cuts[-1] = cuts[-1]._replace(stop=at + 1)
            else:
                cuts.append(Piece(opened.frame, at, at + 1))
        frames.append((gather(cuts, without=DEDUP), ids, opened.parcel.source))
    return frames


def _in_order(
    pieces: Sequence[Piece], times: list[int], producer: tuple[int, int]
) -> tuple[bytes, list[int], list[int] | None]:
    """The pieces as one frame in the order of their times, these times, and the former index of each message."""
    order: list[int] | None = sorted(range(len(times)), key=times.__getitem__)
    assert order is not None, "a list was made just now"
    ordered = [times[index] for index in order] if len(times) > 1 else times
    if times == ordered:
        # Sorting is stable: then nothing has moved.
        order = None
    return gather(pieces, order=order, deliver_at_us=ordered, producer=producer), ordered, order


def _by_slot(
    data: bytes, times: list[int], ids: Sequence[int], until_us: int, *, origin: Origin, first_id: int | None = None
) -> list[tuple[Place, ScheduleRecord]]:
    """A frame whose messages are in the order of their times, cut by slots; `first_id` is that of a producer's."""
    topic, lane, source = origin
    moved = first_id is None
    frame: Frame | None = None
    parcels, start = [], 0
    while start < len(times):
        place = place_of(times[start], until_us)
        stop = bisect_left(times, span_end_us(place, until_us), start)
        if not moved and place.level and stop - start < TOGETHER:
            stop = _together(times, start, stop, until_us, place.level)
        part, some = data, ids
        if stop - start < len(times):
            frame = frame or Frame(data)
            part = _sliced(frame, start, stop)
            some = ids[start:stop]
        first = some[0] if first_id is None else first_id
        about = (place.number, times[start], times[stop - 1], first, stop - start)
        if some[0] == first and counts_up(some):
            parcel = ScheduleRecord(topic, lane, *about, part, b"", source, moved)
        else:
            parcel = ScheduleRecord(topic, lane, *about, part, packed(some), source, moved, min(some), max(some))
        parcels.append((place, parcel))
        start = stop
    return parcels


def _together(times: list[int], start: int, stop: int, until_us: int, level: int) -> int:
    """The end of a record that begins at `start` and would have few messages: some more of the same level go with them,
    but slots are not torn apart."""
    last = min(start + TOGETHER, bisect_left(times, level_end_us(level, until_us), stop)) - 1
    if last < stop:
        return stop
    return bisect_left(times, span_end_us(place_of(times[last], until_us), until_us), last)


def _sliced(frame: Frame, start: int, stop: int) -> bytes:
    """A sub-range of a frame that has its times already."""
    if not frame.compressed:
        return b"".join(slice_frame(frame, start, stop))
    producer, times = (frame.producer_id, frame.producer_seq), frame.deliver_at_us(start, stop)
    return gather([Piece(frame, start, stop)], deliver_at_us=times, producer=producer)


def counts_up(ids: Sequence[int]) -> bool:
    """Whether the numbers count up by one."""
    return isinstance(ids, range) or list(ids) == list(range(ids[0], ids[0] + len(ids)))


def packed(ids: Sequence[int]) -> bytes:
    """Ids as 64-bit numbers, lowest byte first."""
    numbers = array("Q", ids)
    if sys.byteorder != "little":
        numbers.byteswap()
    return numbers.tobytes()


def _unpacked(ids: bytes) -> array[int]:
    numbers = array("Q", ids)
    if sys.byteorder != "little":
        numbers.byteswap()
    return numbers
