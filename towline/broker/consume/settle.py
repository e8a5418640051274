"""Settling: acks, nacks and give-backs of one request, in order; plain acks of several pulls in one append."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from towline.delivery import Ack, Command, Event, GiveBack, Nack, missing
from towline.errors import BadRequest, OwnershipLost, TowlineError
from towline.model import Durability, Span
from towline.protocol import messages as wire
from towline.protocol.consume import ACK, DEAD, GIVE_BACK, NACK

if TYPE_CHECKING:
    from towline.broker.consume.dispatcher import Dispatcher
    from towline.broker.consume.message_limits import MessageLimits

__all__ = ["NOTHING", "Settlement", "command_of"]


def command_of(consumer: str, act: wire.Act) -> Command:
    spans = tuple(Span(*span) for span in act.spans)
    if any(span.count < 1 or span.first < 0 for span in spans):
        raise BadRequest("a span has a first number of 0 or more and counts at least one message")
    if act.what == ACK:
        return Ack(consumer, act.pull, spans, act.up_to)
    if act.what == GIVE_BACK:
        return GiveBack(consumer, act.pull, spans)
    return Nack(consumer, act.pull, spans, act.reason, act.delay_s, act.what == DEAD)


NOTHING: Final = wire.Settled()
GATHER_MAX: Final = 256


class Settlement:
    """The acts of one request."""

    __slots__ = ("_consumer", "_dispatcher", "_done", "_durability", "_gathered", "_lost", "_refused")

    def __init__(self, dispatcher: Dispatcher, consumer: str, durability: Durability) -> None:
        self._dispatcher = dispatcher
        self._consumer = consumer
        self._durability = durability
        self._refused: list[tuple[int, str, str]] = []
        self._lost: list[wire.Lost] = []
        self._done: asyncio.Future[None] | None = None
        self._gathered: dict[int, tuple[int, wire.Act, list[Event]]] = {}
        """By pull, acks that are decided: one does not change the decision about another pull, so they are recorded
        together."""

    def act(self, acts: Sequence[wire.Act], limits: MessageLimits) -> tuple[wire.Settled, asyncio.Future[None] | None]:
        """Carry out acts; returns their answer, and when they are durable."""
        dispatcher = self._dispatcher
        several = len(acts) > 1
        only_acks = True
        for number, act in enumerate(acts):
            try:
                command = command_of(self._consumer, act)
                if several and act.what == ACK and not act.up_to:
                    if act.pull in self._gathered or len(self._gathered) == GATHER_MAX:
                        self._record()
                    events = dispatcher.group.decide(command, dispatcher.time.now_us())
                    self._gathered[act.pull] = number, act, events
                    continue
                self._record()
                only_acks = only_acks and act.what == ACK
                events, appended = dispatcher.run(command, self._durability)
            except OwnershipLost:
                raise
            except TowlineError as error:
                self._refused.append((number, error.code, str(error)))
                continue
            self._done = appended.done if appended else self._done
            self._carried_out(act, events)
        self._record()
        if limits:
            vain = {number for number, _, _ in self._refused}
            pulls = {act.pull for number, act in enumerate(acts) if number not in vain}
            limits.progress(pulls, dispatcher.time.now_us())
        # Acks make room, and free shards, but nothing becomes due by them.
        if not only_acks or dispatcher.group.deliverable(dispatcher.time.now_us()):
            dispatcher.wake()
        elif dispatcher.group.shards is not None:
            dispatcher.arm()  # a shard that is free now may have something that is due later
        return wire.Settled(self._refused, self._lost), self._done

    def _record(self) -> None:
        """Record the gathered acks; all of them, or none."""
        if not self._gathered:
            return
        gathered, self._gathered = self._gathered, {}
        try:
            appended = self._dispatcher.record(
                [event for _, _, events in gathered.values() for event in events], self._durability
            )
        except OwnershipLost:
            raise
        except TowlineError as error:
            self._refused += [(number, error.code, str(error)) for number, _, _ in gathered.values()]
            return
        self._done = appended.done if appended else self._done
        for _, act, events in gathered.values():
            self._carried_out(act, events)

    def _carried_out(self, act: wire.Act, events: Sequence[Event]) -> None:
        dispatcher = self._dispatcher
        if not act.spans and act.what != GIVE_BACK:
            gone = missing(dispatcher.group, self._consumer, act.pull, up_to=act.up_to)
            self._lost += [(pull, part.lane, part.first, part.count, why) for pull, part, why in gone]
        dispatcher.counts["acked" if act.what == ACK else "nacked"] += 1
        if act.what in (NACK, DEAD):
            dispatcher.count_failed(events)
