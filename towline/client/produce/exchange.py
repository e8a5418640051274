"""What accumulators for several brokers give each other, sans I/O: parcels whose broker is away or serves their topic
no more, and those that were put into shards which their topic does not have."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from towline.client.produce.accumulator import Accumulator, Lane
from towline.client.produce.batch import Parcel
from towline.client.produce.sharding import not_ordered, shard_of
from towline.errors import TowlineError
from towline.model import LANES

__all__ = ["Exchange", "give_up", "rearrange"]

P = TypeVar("P")


class Exchange(Accumulator[P]):
    """An accumulator that parcels can be taken out of, and put into."""

    def evacuate(
        self, never_left: Callable[[Parcel], bool], moves: Callable[[str], bool] | None = None
    ) -> list[Parcel]:
        """Take out what may go to another broker: all that is not on its way, and what `never_left`. What is ordered,
        or has dedup ids, stays; unless it is said of which topics everything `moves`."""
        parcels: list[Parcel] = []
        for by_name in self._lanes:
            if by_name is self._of_shards and moves is None:
                continue
            for lane in list(by_name.values()):
                if moves is not None and not moves(lane.topic):
                    continue
                flying = lane.in_flight
                if flying is not None and (moves is not None or not flying.pinned) and never_left(flying):
                    self._end_flight(flying)
                    lane.full.appendleft(flying)
                elif flying is not None and moves is not None:
                    # What follows must not overtake it.
                    continue
                if lane.filling is not None:
                    lane.filling.count = len(lane.filling.bodies)
                    lane.full.append(lane.filling)
                    lane.filling = None
                leaving = [parcel for parcel in lane.full if moves is not None or not parcel.pinned]
                lane.full = deque(parcel for parcel in lane.full if parcel not in leaving)
                for parcel in leaving:
                    self._release(parcel)
                parcels += leaving
                if lane.empty and not lane.queued and not lane.retry_at:
                    del by_name[lane.name]
        return parcels

    def topics(self) -> set[str]:
        """What waits here, or is on its way."""
        return {lane.topic for lane in self._every_lane()}

    def adopt(self, parcel: Parcel) -> None:
        """Take on a parcel that could not be sent elsewhere."""
        parcel.refusal = None
        if parcel.shards:
            lane = self._shard_lane(parcel.topic, parcel.shards, parcel.lane, parcel.has_times)
        else:
            home = self._lanes[parcel.lane]
            lane = home.get(parcel.topic) or home.setdefault(parcel.topic, Lane(home, parcel.topic, parcel.lane))
        lane.full.append(parcel)
        self.messages += parcel.count
        self.bytes += parcel.size
        self._enqueue(lane)

    # A topic that has another number of shards

    def returned(self, parcel: Parcel) -> None:
        """It was refused, and waits in front of its lane, which is held."""
        lane = self._end_flight(parcel)
        parcel.refusal = None
        lane.full.appendleft(parcel)
        self.hold(parcel.topic)

    def hold(self, topic: str) -> None:
        """Send nothing of this topic for the moment."""
        if topic in self._held:
            return
        self._held |= {topic}
        self._ready = deque(lane for lane in self._ready if lane.topic != topic)
        self._retrying = [lane for lane in self._retrying if lane.topic != topic]
        for lane in self._every_lane():
            if lane.topic == topic:
                lane.queued, lane.retry_at = False, 0.0

    def let_go(self, topic: str) -> None:
        """Send it again."""
        if topic in self._held:
            self._held -= {topic}
            for lane in self._every_lane():
                if lane.topic == topic and not lane.empty:
                    self._enqueue(lane)

    def is_flying(self, topic: str, shards: int) -> bool:
        """Whether something of this topic is on its way by another number of shards."""
        return any(parcel.topic == topic and parcel.shards != shards for parcel in self._flying)

    def take_out(self, topic: str, shards: int) -> list[Parcel]:
        """All of this topic that waits here by another number of shards, lane by lane."""
        taken: list[Parcel] = []
        for lane in self._every_lane():
            count = 0 if isinstance(lane.name, str) else lane.name[1]
            if lane.topic == topic and count != shards:
                taken += [*lane.full, *([lane.filling] if lane.filling is not None else [])]
                lane.full.clear()
                lane.filling = None
                if lane.empty:
                    del lane.home[lane.name]
        for parcel in taken:
            parcel.count = parcel.count or len(parcel.bodies)
            self._release(parcel)
        return taken

    def _every_lane(self) -> list[Lane]:
        return [lane for by_name in self._lanes for lane in by_name.values()]


def rearrange(
    topic: str, shards: int, exchanges: Mapping[str, Exchange[P]], home: Callable[[int, bool], str]
) -> list[Parcel] | None:
    """Put all that waits for a topic where it belongs, now that it has so many shards. `home` says at which broker that
    is: of a shard, or where there are none, of a message that has a dedup id or not. Nothing is sent meanwhile, so that
    nothing overtakes what came before it: None, and all is held, while something is still on its way.

    The messages that belong nowhere fail, each as a parcel of its own; these come back. To be called with the locks of
    all of them held."""
    for one in exchanges.values():
        one.hold(topic)
    if any(one.is_flying(topic, shards) for one in exchanges.values()):
        return None
    taken = [parcel for one in exchanges.values() for parcel in one.take_out(topic, shards)]
    failed: list[Parcel] = []
    # By age: what could not be sent to one broker may have gone on at another.
    for parcel in sorted(taken, key=lambda one: one.opened_at):
        parcel.move([_placed(parcel, columns, shards, exchanges, home, failed) for columns in parcel.columns()])
    for one in exchanges.values():
        one.let_go(topic)
    return failed


def _placed(  # noqa: PLR0917
    parcel: Parcel,
    columns: tuple[Any, ...],
    shards: int,
    exchanges: Mapping[str, Exchange[P]],
    home: Callable[[int, bool], str],
    failed: list[Parcel],
) -> P:
    body, key, headers, at_us, dedup_id, shard_key, lives = columns
    topic, priority = parcel.topic, "middle" if parcel.shards else LANES[parcel.lane]
    try:
        if shard_key is not None and not shards:
            raise not_ordered(topic)
        shard = shard_of(topic, shards, key, shard_key, priority) if shards else 0
        target = exchanges[home(shard, dedup_id is not None)]
        placed = target.add(topic, body, key, priority, headers, at_us, dedup_id, shards, shard_key, lives)
    except TowlineError as error:
        lost = Parcel(topic, 0, parcel.opened_at, parcel.deadline)
        lost.count, lost.error = 1, error
        failed.append(lost)
        return next(iter(exchanges.values())).pending(lost, 0)
    new: Parcel = placed._parcel  # type: ignore[attr-defined]
    # Whoever is sent from one to the other is not sent for ever.
    new.deadline = min(new.deadline, parcel.deadline)
    return placed


def give_up(topic: str, error: TowlineError, exchanges: Mapping[str, Exchange[P]]) -> list[Parcel]:
    """Nobody can tell where the messages of a topic belong: all that wait fail. To be called with the locks held."""
    failed = [parcel for one in exchanges.values() for parcel in one.take_out(topic, -1)]
    for parcel in failed:
        parcel.error = error
    for one in exchanges.values():
        one.let_go(topic)
    return failed
