"""Nacks whose broker is away, handed to another one with the whole messages; sans I/O.

At its own broker the messages are still leased to us, so each nack becomes an ack there, to be told when that broker is
back. A nack that was on its way may have arrived there all the same: then its message comes twice, which is better than
not until that broker returns.

A message goes as it is: key, headers, shard key and dedup id, lifetime, limits, and when it was produced. Messages of
ordered topics wait for their own broker, or they would lose their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

import msgspec

from towline.client.connection import Call, Connection
from towline.client.lease import ACK, GIVE_BACK, drained
from towline.client.message import NACKED, Message
from towline.client.outgoing import FRAME_BYTES, FRAME_MESSAGES, Sender
from towline.client.section import Section
from towline.client.steps import Flow
from towline.client.subscription import Subscription
from towline.errors import ProtocolError
from towline.frame.encode import packed_headers
from towline.frame.layout import BODY, DEDUP, EXPIRES_AT, HEADERS, KEY, LIMIT, PRODUCED_AT, SHARD_KEY
from towline.model import LANES
from towline.protocol.cluster import HandBack, HandedBack
from towline.protocol.messages import Act, Pull, Settled

__all__ = ["Handover", "whole_frame"]

_DEAD: Final = 2
_ORIGIN: Final = "towline-origin"


class Handover:
    """The nacks of a subscription that were not answered. Made, `done` and `undone` under the lock of its link, if it
    has one; `flow` runs on a link to another broker."""

    def __init__(self, subscription: Subscription, connection: Connection) -> None:
        self._subscription = subscription
        self._calls: list[Call] = []
        self._acts: list[Act] = []
        for call in subscription.unanswered():
            acts: list[Act] = call.request.acts  # type: ignore[attr-defined]
            if call.done or not any(map(_is_nack, acts)) or any(map(self._is_ordered, acts)):
                continue
            self._acts += acts
            if isinstance(call.request, Pull):
                call.request = msgspec.structs.replace(call.request, acts=[])
                subscription.untold(acts)
            else:
                connection.abandon(call)
                self._calls.append(call)
        self._acts += self._take_waiting()
        self._messages = {id(act): _messages(subscription, act) for act in self._acts if _is_nack(act)}

    def _take_waiting(self) -> list[Act]:
        """What is to be told and not on its way yet, if there is a nack among it that may go elsewhere."""
        nacks = self._subscription.nacks
        if not any(_is_nack(act) and not self._is_ordered(act) for act in list(nacks)):
            return []
        # One by one: messages add to them from any thread.
        going: list[Act] = []
        staying: list[Act] = []
        for act in drained(nacks):
            (staying if self._is_ordered(act) else going).append(act)
        nacks.extendleft(reversed(staying))
        return going

    def _is_ordered(self, act: Act) -> bool:
        lease = self._subscription.lease(act.pull)
        return lease is not None and lease.shards > 0

    def __len__(self) -> int:
        """How many nacks it holds."""
        return sum(map(_is_nack, self._acts))

    def flow(self, sender: Sender) -> Flow[None]:
        """Tell another broker."""
        subscription = self._subscription
        for act in self._acts:
            for (lane, attempt, _), messages in _portions(self._messages.get(id(act), ())):
                frame = whole_frame(sender, messages)
                topic = messages[0].topic
                request = HandBack(
                    topic,
                    subscription.group,
                    msgspec.structs.replace(subscription.terms.of(topic), topic=topic),
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
                self._subscription.settled_elsewhere(act.pull, spans)
        for call in self._calls:
            # What it carried is told by others now. Until it was, the pulls count as held: a broker that returns takes
            # back whatever we do not hold.
            acts: list[Act] = call.request.acts  # type: ignore[attr-defined]
            self._subscription.untold(acts)
            acts.clear()
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


def _portions(messages: Iterable[Message]) -> Iterator[tuple[tuple[int, int, int], list[Message]]]:
    """Those of one kind together, as many as a frame is filled with."""
    for kind, some in groupby(messages, key=_kind):
        portion: list[Message] = []
        size = 0
        for message in some:
            if portion and (size + len(message.body) > FRAME_BYTES or len(portion) == FRAME_MESSAGES):
                yield kind, portion
                portion, size = [], 0
            portion.append(message)
            size += len(message.body)
        yield kind, portion


def whole_frame(sender: Sender, messages: Sequence[Message]) -> bytes:
    """The messages as they were sent, each with the id that it has."""
    places = [(message._section, message._index) for message in messages]
    texts: dict[int, list[bytes]] = {
        flag: [section.text(flag, index) for section, index in places] for flag in (KEY, DEDUP, SHARD_KEY)
    }
    texts[BODY] = [message.body for message in messages]
    texts[HEADERS] = packed_headers([{**message.headers, _ORIGIN: message.id} for message in messages])
    produced_us = [message.produced_at_us for message in messages]
    numbers: dict[int, list[int]] = {
        EXPIRES_AT: [section.expires_at_us(index) for section, index in places],
        LIMIT: [section.limit(index) for section, index in places],
    }
    if len(set(produced_us)) > 1:
        numbers[PRODUCED_AT] = produced_us
    return sender.frame_again(texts, numbers, max(produced_us))


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
