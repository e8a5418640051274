"""What a consumer does with messages that it was given, as a command for delivery."""

from __future__ import annotations

from towline.delivery import Ack, Command, GiveBack, Nack
from towline.errors import BadRequest
from towline.model import Span
from towline.protocol import messages as wire

__all__ = ["ACK", "DEAD", "GIVE_BACK", "NACK", "command_of"]

ACK, NACK, DEAD, GIVE_BACK = range(4)


def command_of(consumer: str, act: wire.Act) -> Command:
    spans = tuple(Span(*span) for span in act.spans)
    if any(span.count < 1 or span.first < 0 for span in spans):
        raise BadRequest("a span has a first number of 0 or more and counts at least one message")
    if act.what == ACK:
        return Ack(consumer, act.pull, spans, act.up_to)
    if act.what == GIVE_BACK:
        return GiveBack(consumer, act.pull, spans)
    return Nack(consumer, act.pull, spans, act.reason, act.delay_s, act.what == DEAD)
