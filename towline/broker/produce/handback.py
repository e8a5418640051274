"""Handed-back messages: a consumer could not give them back to the broker they came from; they are retried here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from towline.delivery import Nack, Part, Producers
from towline.delivery.group.group import HANDED_BACK, take_back
from towline.errors import BadRequest
from towline.frame.layout import attempts_in
from towline.protocol.cluster import HandBack, HandedBack
from towline.store import Append

if TYPE_CHECKING:
    from towline.broker.consume.dispatcher import Dispatcher
    from towline.frame import Frame
    from towline.model import Durability

__all__ = ["Handbacks"]


class Handbacks:
    """Handbacks that are done and under way."""

    def __init__(self, producers: Producers, durability: Durability) -> None:
        self._producers = producers
        self._durability = durability
        self._under_way: dict[tuple[int, int], asyncio.Future[HandedBack]] = {}

    async def take(self, dispatcher: Dispatcher, request: HandBack, frame: Frame) -> HandedBack:
        """One that is sent again while the first is not durable yet has its outcome, and its error."""
        key = frame.producer_id, frame.producer_seq
        under_way = self._under_way.get(key)
        if under_way is not None:
            return HandedBack((await asyncio.shield(under_way)).first, True)
        work = _hand_back(dispatcher, request, frame, self._producers, self._durability)
        # A task of its own: it runs to its end, whoever stops waiting for it.
        task = asyncio.get_running_loop().create_task(work)
        if frame.producer_id:
            self._under_way[key] = task
            task.add_done_callback(lambda done: self._end(key, done))
        return await asyncio.shield(task)

    def _end(self, key: tuple[int, int], task: asyncio.Task[HandedBack]) -> None:
        del self._under_way[key]
        if not task.cancelled():
            task.exception()  # retrieved, also if nobody waits any more


async def _hand_back(
    dispatcher: Dispatcher, request: HandBack, frame: Frame, producers: Producers, durability: Durability
) -> HandedBack:
    """Append them to the group's own lane; when that is durable, note them as failed, in one step with making them
    visible. A crash between the two leaves them as new ones: delivered again, only sooner."""
    group = dispatcher.group
    if group.shards is not None:
        raise BadRequest(f"topic {request.topic} is ordered: its messages go back to their own broker only")
    known = producers.find(frame.producer_id, frame.producer_seq)
    if known is not None:
        return HandedBack(known.first, True)
    number = group.topic_lanes + request.lane
    lane = dispatcher.lanes[number]
    # All of a frame are of the same kind: consumers see to it.
    attempts = attempts_in((frame.limits() or [0])[0])
    frame.let_go()
    one = Append(lane.stream, frame.data, frame.count)
    appended = dispatcher.store.append([one], durability)
    first = appended.firsts[0]
    lane.submitted(first, one, appended.at_us, appended.done)
    producers.remember(frame.producer_id, frame.producer_seq, first, appended.at_us, frame.token)
    try:
        await appended.done
    except BaseException:
        producers.forget(frame.producer_id, frame.producer_seq)
        raise
    lane.advance()
    dispatcher.notice()
    nack = Nack(HANDED_BACK, dispatcher.next_pull(), (), request.reason, request.delay_s, request.dead)
    part = Part(number, first, frame.count, request.attempt)
    events = take_back(group, part, nack, dispatcher.time.now_us(), attempts)
    recorded = dispatcher.record(events, durability)
    dispatcher.arm()
    dispatcher.wake()
    if recorded is not None:
        await recorded.done
    return HandedBack(first)
