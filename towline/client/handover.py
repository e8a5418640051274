"""Nacks whose broker is away, handed to another one with the whole messages; sans I/O.

At its own broker the messages are still leased to us, so each nack becomes an ack there, to be told when that broker is
back. A nack that was on its way may have arrived there all the same: then its message comes twice, which is better than
not until that broker returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

import msgspec

from towline.client.connection import Call, Connection
from towline.client.lease import ACK, GIVE_BACK
from towline.client.message import NACKED, Message, Section
from towline.client.outgoing import Sender
from towline.client.steps import Flow
from towline.client.subscription import Subscription
from towline.errors import ProtocolError
from towline.model import LANES
from towline.protocol.cluster import HandBack, HandedBack
from towline.protocol.messages import Act, Pull, Settled

__all__ = ["Handover"]

_DEAD: Final = 2
_ORIGIN: Final = "towline-origin"


class Handover:
    """The nacks of a subscription that were not answered. Made, `done` and `undone` under the lock of its link, if it
    has one; `flow` runs on a link to another broker."""

    def __init__(self, subscription: Subscription, connection: Connection) -> None:
        self._subscription = subscription
        self._calls: list[Call] = []
        self._acts: list[Act] = []
        if subscription.shards:
            # In order, or not at all.
            return
        for call in subscription.unanswered():
            acts: list[Act] = call.request.acts  # type: ignore[attr-defined]
            if call.done or not any(map(_is_nack, acts)):
                continue
            self._acts += acts
            if isinstance(call.request, Pull):
                call.request = msgspec.structs.replace(call.request, acts=[])
                subscription.untold(acts)
            else:
                connection.abandon(call)
                self._calls.append(call)
        if any(map(_is_nack, subscription.nacks)):
            self._acts += subscription.nacks
            subscription.nacks.clear()
        self._messages = {id(act): _messages(subscription, act) for act in self._acts if _is_nack(act)}

    def __len__(self) -> int:
        """How many nacks it holds."""
        return sum(map(_is_nack, self._acts))

    def flow(self, sender: Sender) -> Flow[None]:
        """Tell another broker."""
        subscription = self._subscription
        for act in self._acts:
            for (lane, attempt, limit), some in groupby(self._messages.get(id(act), ()), key=_kind):
                messages = list(some)
                frame = sender.frame(
                    [message.body for message in messages],
                    [message.key for message in messages],
                    [{**message.headers, _ORIGIN: message.id} for message in messages],
                    limits=[limit] * len(messages),
                )
                topic = messages[0].topic
                request = HandBack(
                    topic,
                    subscription.group,
                    msgspec.structs.replace(subscription.config, topic=topic),
                    lane,
                    attempt,
                    act.reason,
                    act.delay_s,
                    act.what == _DEAD,
                )
                answer = yield Call(request, [frame])
                if not isinstance(answer, HandedBack):
                    raise ProtocolError(f"a hand-over was answered by {type(answer).__name__}")

    def done(self) -> None:
        """Another broker has them: what is left to tell their own are acks."""
        for act in self._acts:
            messages = self._messages.get(id(act), ())
            if not _is_nack(act):
                self._subscription.nacks.append(act)
            elif messages:
                spans = [(message._section.lane, message.seq, 1) for message in messages]
                self._subscription.nacks.append(Act(ACK, act.pull, spans))
        for call in self._calls:
            call.finish(Settled([]), memoryview(b""))

    def undone(self) -> list[Call]:
        """Nobody took them: all is as before. The calls are to be started again."""
        of_calls = {id(act) for call in self._calls for act in call.request.acts}  # type: ignore[attr-defined]
        self._subscription.nacks.extend(act for act in self._acts if id(act) not in of_calls)
        for call in self._calls:
            call.number = -1
        return self._calls


def _is_nack(act: Act) -> bool:
    return act.what not in (ACK, GIVE_BACK)


def _kind(message: Message) -> tuple[int, int, int]:
    return LANES.index(message.priority), message.attempt, message._section.limit(message._index)


def _messages(subscription: Subscription, act: Act) -> list[Message]:
    lease = subscription.lease(act.pull)
    return [] if lease is None else [message for section in lease.sections for message in _of(section, act)]


def _of(section: Section, act: Act) -> Iterator[Message]:
    for index, flag in enumerate(section.flags):
        seq = section.first + index
        within = not act.spans or any(
            lane == section.lane and first <= seq < first + count for lane, first, count in act.spans
        )
        if flag == NACKED and within:
            yield Message(section.bodies[index], index, section)
