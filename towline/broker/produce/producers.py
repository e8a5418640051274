"""Producers and dedup ids: for how long they are remembered, and their recovery from frames."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from towline.broker.journal import chunks, replayed, unsaid
from towline.broker.schedule.scheduler import delay_mark
from towline.clock import SECOND_US, SteadyClock, TimeSlice, in_slices, in_steps
from towline.delivery import Dedup, Producers
from towline.delivery.dedup import Seen
from towline.delivery.schedule.record import OpenedRecord, ScheduleRecord, decode_parcel
from towline.frame import Frame
from towline.frame.decode import understood
from towline.frame.layout import DEDUP

if TYPE_CHECKING:
    from towline.broker.produce.producers_file import ProducersFile
    from towline.store import Store

__all__ = ["Remembered", "recover_producers"]

log = logging.getLogger("towline.broker")

SILENT_US: Final = 7 * 86_400 * SECOND_US
"""Producers that were silent for this long are forgotten."""
TIDY_AT_ONCE: Final = 500


class Remembered:
    """Producers and dedup ids are forgotten in slices, with time. Where there are too many, they are forgotten early,
    and that is logged."""

    def __init__(self, producers: Producers, dedup: Dedup, time: SteadyClock) -> None:
        self._producers = producers
        self._dedup = dedup
        self._time = time
        self._early = 0
        self.short = False
        """Whether dedup ids were forgotten early of late."""

    def figures(self) -> dict[str, object]:
        dedup = self._dedup
        kept_us = dedup.kept_us(self._time.now_us()) if self.short else dedup.window_us
        return {
            "dedup_ids": len(dedup),
            "dedup_max_ids": dedup.max_ids,
            "dedup_forgotten_early": dedup.early,
            "dedup_kept_s": round(kept_us / SECOND_US, 3),
            "dedup_window_s": dedup.window_us / SECOND_US,
            "remembered_producers": len(self._producers),
            "remembered_frames": self._producers.total,
        }

    async def tidy(self, now_us: int) -> None:
        """The time is the one by which messages are stamped."""
        part = TimeSlice()
        while self._dedup.tidy(self._time.now_us(), TIDY_AT_ONCE):
            await part.rest()
        while self._producers.forget_silent(SILENT_US, now_us, TIDY_AT_ONCE):
            await part.rest()
        early, self._early = self._dedup.early - self._early, self._dedup.early
        if early and not self.short:
            self._tell()
        self.short = early > 0

    def _tell(self) -> None:
        dedup = self._dedup
        kept_s = max(dedup.kept_us(self._time.now_us()) / SECOND_US, 0.001)
        log.warning(
            "dedup ids are forgotten after %.3g s instead of %.3g: %.0f come a second, most of them on topic %s, and "
            "%d are remembered. A message that is sent again later than that is stored again: raise --dedup-max-ids, "
            "each takes some 180 bytes and its own length of memory, or make --dedup-window-s shorter",
            *(kept_s, dedup.window_us / SECOND_US, len(dedup) / kept_s, dedup.topics_of_late()[0], dedup.max_ids),
        )


async def recover_producers(  # noqa: PLR0917 all of it is what they have sent
    store: Store,
    file: ProducersFile,
    lanes: Mapping[str, tuple[str, int]],
    slots: Sequence[str],
    producers: Producers,
    dedup: Dedup,
    now_us: int,
    part: TimeSlice,
) -> None:
    """Recover producers and dedup ids: from the snapshot, then from later frames. `lanes` are the topic and number of
    each lane, by stream; `slots` the streams of delayed messages."""
    ends = await file.load([*lanes, *slots], producers, dedup, now_us, part)
    async for stream, (topic, lane) in in_slices(lanes.items(), part):
        async for chunk in chunks(store, stream, ends.get(stream, 0), part, lost=unsaid):
            if chunk.start:
                continue  # it began before that
            frame = understood(Frame(chunk.frame), stream, chunk.first)
            if frame.producer_id:
                producers.remember(
                    frame.producer_id, frame.producer_seq, chunk.first, chunk.appended_at_us, frame.token
                )
            dedup.replay(topic, frame, Seen(lane, chunk.first, chunk.appended_at_us), now_us)
    for stream in slots:
        async for _, parcel, at_us in replayed(store, stream, ends.get(stream, 0), decode_parcel, part):
            _remember_parcel(parcel, at_us, producers, dedup, now_us)
    await in_steps(dedup.replayed(now_us), part)


def _remember_parcel(parcel: ScheduleRecord, at_us: int, producers: Producers, dedup: Dedup, now_us: int) -> None:
    """A frame that went to the schedule, or its part in one slot."""
    frame = Frame(parcel.frame)
    if frame.producer_id:
        producers.remember(frame.producer_id, frame.producer_seq, delay_mark(parcel.first_id), at_us, frame.token)
    if frame.flags & DEDUP and not parcel.moved:
        ids = OpenedRecord(parcel).ids(0, parcel.count)
        dedup.replay_delayed(parcel.topic, frame, (Seen(parcel.lane, delay_mark(one), at_us) for one in ids), now_us)
