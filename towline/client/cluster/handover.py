"""Nacks whose broker is away, handed to another one with the whole messages; sans I/O.

At its own broker the messages are still leased to us, so each nack becomes an ack there, to be sent when that broker is
back. A nack that was under way may have arrived there all the same: then its message comes twice, which is better than
not until that broker returns.

A message goes as it is: key, headers, shard key and dedup id, lifetime, limits, and when it was produced. Messages of
ordered topics wait for their own broker, or they would lose their order. So do those that are too large for all others;
these are asked again, but ever more rarely.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

import msgspec

from towline.client.consume.lease import drained
from towline.client.consume.message import NACKED, Message
from towline.client.consume.message_block import MessageBlock
from towline.client.consume.subscription import Subscription
from towline.client.link.connection import Call, Connection
from towline.client.link.flow import Flow
from towline.client.produce.encode import FRAME_BYTES, FRAME_MESSAGES, FrameEncoder
from towline.errors import ProtocolError, TooLarge
from towline.frame.encode import packed_headers
from towline.frame.layout import BODY, DEDUP, EXPIRES_AT, HEADERS, KEY, LIMIT, PRODUCED_AT, SHARD_KEY
from towline.model import DIED_ORIGIN, LANES
from towline.protocol.cluster import HandBack, HandedBack
from towline.protocol.consume import ACK, DEAD, GIVE_BACK
from towline.protocol.messages import Act, Pull, Settled

__all__ = ["Handover", "Pace", "whole_frame"]

_AFTER_S: Final = 1.0
"""Nacks do not wait for a broker that is away for so long."""
_PAUSE_MAX_S: Final = 60.0


class Pace:
    """The pace at which the nacks of a broker that is away are handed over."""

    def __init__(self) -> None:
        self._due_s = 0.0
        self._pause_s = _AFTER_S

    def is_due(self, now_s: float) -> bool:
        self._due_s = self._due_s or now_s + _AFTER_S
        return now_s > self._due_s

    def in_vain(self, now_s: float) -> None:
        """Some were too large."""
        self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)
        self._due_s = now_s + self._pause_s

    def back(self) -> None:
        """The broker is there."""
        self._due_s, self._pause_s = 0.0, _AFTER_S


class Handover:
    """The unanswered nacks of a subscription. Made, `done` and `undone` under the lock of its link, if it has one;
    `flow` runs on a link to another broker."""

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
                subscription.withdraw(acts)
            else:
                connection.abandon(call)
                self._calls.append(call)
        self._acts += self._take_waiting()
        self._messages = {id(act): _messages(subscription, act) for act in self._acts if _is_nack(act)}
        self._handed: set[int] = set()
        """The ids, as objects, of messages that another broker has."""
        self.refused: TooLarge | None = None
        """Set if some are too large for another broker."""

    def _take_waiting(self) -> list[Act]:
        """The acts that are not under way yet, if there is a nack among them that may go elsewhere."""
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

    def flow(self, sender: FrameEncoder) -> Flow[None]:
        """Send another broker what none has yet. Raises if some of it is too large there, once all else is sent."""
        self.refused = None
        for act in self._acts:
            for kind, messages in _portions(self._left(act)):
                yield from self._hand(sender, act, kind, messages)
        if self.refused is not None:
            raise self.refused

    def _hand(
        self, sender: FrameEncoder, act: Act, kind: tuple[int, int, int], messages: Sequence[Message]
    ) -> Flow[None]:
        subscription, topic = self._subscription, messages[0].topic
        lane, attempt, _ = kind
        request = HandBack(
            topic,
            subscription.group,
            msgspec.structs.replace(subscription.terms.of(topic), topic=topic),
            lane,
            attempt,
            act.reason,
            act.delay_s,
            act.what == DEAD,
        )
        try:
            answer = yield Call(request, [whole_frame(sender, messages)])
        except TooLarge as error:
            half = len(messages) // 2
            if not half:
                self.refused = error
                return
            yield from self._hand(sender, act, kind, messages[:half])
            yield from self._hand(sender, act, kind, messages[half:])
            return
        if not isinstance(answer, HandedBack):
            raise ProtocolError(f"a hand-over was answered by {type(answer).__name__}")
        self._handed.update(map(id, messages))

    def _left(self, act: Act) -> list[Message]:
        return [message for message in self._messages.get(id(act), ()) if id(message) not in self._handed]

    def done(self) -> None:
        """Others have them: their own broker still gets acks for them."""
        self._handed.update(id(message) for messages in self._messages.values() for message in messages)
        self._tell_own()

    def _tell_own(self) -> None:
        """Send their own broker the acks, and the nacks of what no other took."""
        for act in self._acts:
            if not _is_nack(act):
                self._subscription.nacks.append(act)
                continue
            left = self._left(act)
            handed = [message for message in self._messages[id(act)] if id(message) in self._handed]
            if handed:
                spans = _spans(handed)
                self._subscription.nacks.append(Act(ACK, act.pull, spans))
                self._subscription.settled_elsewhere(act.pull, spans)
            if left:
                self._subscription.nacks.append(msgspec.structs.replace(act, spans=_spans(left)))
        for call in self._calls:
            # Its acts were sent elsewhere now. Until then, the pulls count as held: a broker that returns takes back
            # whatever we do not hold.
            acts: list[Act] = call.request.acts  # type: ignore[attr-defined]
            self._subscription.withdraw(acts)
            acts.clear()
            call.finish(Settled([]), memoryview(b""))

    def undone(self) -> list[Call]:
        """Nobody took them, or not all of them. What nobody took is as before: the calls that are returned are to be
        started again."""
        if self._handed:
            self._tell_own()
            return []
        of_calls = {id(act) for call in self._calls for act in call.request.acts}  # type: ignore[attr-defined]
        self._subscription.nacks.extend(act for act in self._acts if id(act) not in of_calls)
        for call in self._calls:
            call.number = -1
        return self._calls


def _is_nack(act: Act) -> bool:
    return act.what not in (ACK, GIVE_BACK)


def _spans(messages: Iterable[Message]) -> list[tuple[int, int, int]]:
    return [(message._section.lane, message.seq, 1) for message in messages]


def _kind(message: Message) -> tuple[int, int, int]:
    return LANES.index(message.priority), message.attempt, message._section.limit(message._index)


def _portions(messages: Iterable[Message]) -> Iterator[tuple[tuple[int, int, int], list[Message]]]:
    """Those of one kind together, as many as fill a frame."""
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


def whole_frame(sender: FrameEncoder, messages: Sequence[Message]) -> bytes:
    """The messages as they were sent, each with the id that it has."""
    places = [(message._section, message._index) for message in messages]
    texts: dict[int, list[bytes]] = {
        flag: [section.text(flag, index) for section, index in places] for flag in (KEY, DEDUP, SHARD_KEY)
    }
    texts[BODY] = [message.body for message in messages]
    texts[HEADERS] = packed_headers([{**message.headers, DIED_ORIGIN: message.id} for message in messages])
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


def _of(section: MessageBlock, act: Act) -> Iterator[Message]:
    for index, flag in enumerate(section.flags):
        seq = section.seq(index)
        within = not act.spans or any(
            lane == section.lane and first <= seq < first + count for lane, first, count in act.spans
        )
        if flag == NACKED and within:
            yield Message(section.bodies[index], index, section)
