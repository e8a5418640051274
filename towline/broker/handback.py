"""Taking in messages of another broker, which a consumer could not give back there: they go to the error log here."""

from __future__ import annotations

from towline.broker.dispatcher import Dispatcher
from towline.delivery import Nack, Part, Producers
from towline.delivery.handback import HANDED_BACK, take_back
from towline.errors import BadRequest
from towline.frame import Frame
from towline.frame.layout import attempts_in
from towline.model import Durability
from towline.protocol.cluster import HandBack, HandedBack
from towline.store import Append

__all__ = ["hand_back"]


async def hand_back(
    dispatcher: Dispatcher, request: HandBack, frame: Frame, producers: Producers, durability: Durability
) -> HandedBack:
    """Append them to the group's own lane; when that is durable, note them as failed, in one step with letting them be
    seen. A crash between the two leaves them as new ones: delivered again, only sooner."""
    group = dispatcher.group
    if group.shards is not None:
        raise BadRequest(f"topic {request.topic} is ordered: its messages go back to their own broker only")
    known = producers.find(frame.producer_id, frame.producer_seq)
    if known is not None:
        return HandedBack(known.first, True)
    number = group.topic_lanes + request.lane
    lane = dispatcher.lanes[number]
    one = Append(lane.stream, frame.data, frame.count)
    appended = dispatcher.store.append([one], durability)
    first = appended.firsts[0]
    lane.submitted(first, one, appended.at_us, appended.done)
    producers.remember(frame.producer_id, frame.producer_seq, first, appended.at_us)
    try:
        await appended.done
    except BaseException:
        producers.forget(frame.producer_id, frame.producer_seq)
        raise
    lane.advance()
    dispatcher.notice()
    nack = Nack(HANDED_BACK, dispatcher.next_pull(), (), request.reason, request.delay_s, request.dead)
    part = Part(number, first, frame.count, request.attempt)
    # All of a frame are of the same kind: consumers see to it.
    attempts = attempts_in((frame.limits() or [0])[0])
    events = take_back(group, part, nack, dispatcher.clock.now_us(), attempts)
    recorded = dispatcher.record(events, durability)
    dispatcher.arm()
    dispatcher.wake()
    if recorded is not None:
        await recorded.done
    return HandedBack(first)
