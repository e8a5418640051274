"""Messages that a consumer hands to this broker because the one they came from is away."""

from __future__ import annotations

from typing import Final

from towline.delivery.group.commands import Nack
from towline.delivery.group.events import Event, Failed, GaveUp, Part, Pulled, Returned
from towline.delivery.group.group import DELAY_MAX_S, REASON_MAX, Group
from towline.delivery.group.retry import due_after
from towline.errors import BadRequest

__all__ = ["HANDED_BACK", "take_back"]

HANDED_BACK: Final = "~handed-back"
"""The consumer that a group remembers for these messages; no consumer can have this name."""


def take_back(group: Group, part: Part, nack: Nack, now_us: int, attempts: int = 0) -> list[Event]:
    """The events by which messages that were just appended to a lane of the group's own count as pulled and failed:
    `nack.pull` is a number never used before. What waits before them on that lane counts as pulled and given back. No
    events if they were delivered already. `attempts` is how often they are tried, if their sender said so."""
    if nack.delay_s is not None and not 0 <= nack.delay_s <= DELAY_MAX_S:
        raise BadRequest(f"a delay of {nack.delay_s:g} s: give between 0 seconds and a year")
    at = max(group.next[part.lane], group.firsts[part.lane])
    if at > part.first:
        return []
    waiting = (Part(part.lane, at, part.first - at, 1),) if at < part.first else ()
    events: list[Event] = [Pulled(now_us, nack.pull, HANDED_BACK, 0, (*waiting, part))]
    if waiting:
        events.append(Returned(now_us, nack.pull, waiting))
    reason = nack.reason[:REASON_MAX]
    if nack.dead or part.attempt >= (attempts or group.config.retry.max_attempts):
        events.append(GaveUp(now_us, nack.pull, (part,), reason))
    else:
        wait_s = group.config.retry.delay_s(part.attempt) if nack.delay_s is None else nack.delay_s
        events.append(Failed(now_us, nack.pull, (part,), due_after(now_us, wait_s), reason))
    return events
