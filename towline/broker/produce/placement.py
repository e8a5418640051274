"""Placement of a unit's frames after duplicates were taken out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from towline.protocol.messages import Sent

if TYPE_CHECKING:
    from towline.broker.topics.topic import Lane
    from towline.delivery.dedup import Repeat, Screened, Seen
    from towline.store import Appended

__all__ = ["Placed", "place"]


class Placed:
    """A unit after duplicates were taken out: its stored part, and the positions of all its messages."""

    __slots__ = ("_delayed", "_lanes", "_screened", "firsts", "frames", "new")

    def __init__(self, screened: Screened, firsts: Sequence[int], lanes: Sequence[int], delayed: Sequence[int]) -> None:
        self._screened = screened
        self._lanes = lanes
        self._delayed = delayed
        self.frames = screened.frames
        self.firsts = firsts
        self.new: dict[tuple[str, bytes], Seen] = {}
        """Once it is appended: the new ids, and the positions of their messages."""

    def settle(self, at_us: int) -> tuple[dict[tuple[str, bytes], Seen], list[Repeat]]:
        return self._screened.placed(self.firsts, self._lanes, at_us, self._delayed)

    def sent(self, appended: Appended) -> Sent:
        foretold = [
            first
            for number, (first, frame) in enumerate(zip(self.firsts, self.frames, strict=True))
            if frame is not None and number not in self._delayed
        ]
        assert foretold == list(appended.firsts[: len(foretold)]), "only the broker appends to lanes"
        self.new, repeats = self.settle(appended.at_us)
        return Sent(list(self.firsts), appended.at_us, False, list(repeats), list(self._delayed))


def place(screened: Screened, lanes: Sequence[Lane], numbers: Sequence[int], waiting: Mapping[int, int]) -> Placed:
    """Compute the positions of the stored part in advance: only the broker appends to lanes. `waiting` are the frames
    that go to the schedule, and the ids of their first messages."""
    next_of = {lane.stream: lane.next for lane in lanes}
    firsts = []
    for number, (lane, frame) in enumerate(zip(lanes, screened.frames, strict=True)):
        if number in waiting:
            firsts.append(waiting[number])
            continue
        firsts.append(next_of[lane.stream])
        next_of[lane.stream] += frame.count if frame is not None else 0
    return Placed(screened, firsts, numbers, sorted(waiting))
