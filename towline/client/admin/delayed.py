"""Delayed messages: times of delivery as users give them; list, cancel and reschedule."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, cast

from towline.client.link.connection import Call
from towline.client.link.flow import Flow
from towline.client.produce.encode import as_sought_key, as_time_us
from towline.errors import BadRequest, Conflict, NotFound, ProtocolError
from towline.model import DELAY, LANES, Priority, Receipt, check_topic, lane_name, message_id, parse_message_id
from towline.protocol.messages import (
    CancelDelayed,
    Delayed,
    DelayedCancelled,
    DelayedMessage,
    DelayedMoved,
    ListDelayed,
    MoveDelayed,
)

__all__ = [
    "DelayedEntry",
    "Time",
    "as_deliver_at",
    "as_deliver_at_each",
    "as_new_time",
    "cancel",
    "delayed",
    "reschedule",
    "settled_id",
]

Time = datetime | float
"""A time with its time zone, or seconds since 1970."""

DELAY_MAX_S: Final = 36_525 * 86_400
LEVEL_MAX: Final = 999
SHORTEST_US: Final = 1_000


def as_deliver_at(delay: float | None, deliver_at: Time | None, delay_level: int | None) -> int:
    """The value of a frame's deliver-at column: a time; or below 0, so that our clock does not matter, a delay."""
    if delay is None and deliver_at is None and delay_level is None:
        return 0
    if (delay is not None) + (deliver_at is not None) + (delay_level is not None) > 1:
        raise BadRequest("delay, deliver_at or delay_level: give one of them")
    if deliver_at is not None:
        return as_time_us(deliver_at)
    if delay_level is not None:
        if not 1 <= delay_level <= LEVEL_MAX:
            raise BadRequest(f"delay_level={delay_level}: levels are numbered from 1 on")
        return -int(delay_level)
    assert delay is not None, "one of them is given"
    if not isinstance(delay, int | float):
        raise TypeError(f"a delay is a number of seconds, not {type(delay).__name__}")
    if not 0 <= delay <= DELAY_MAX_S:
        raise BadRequest(f"delay={delay}: give seconds, from 0 to 100 years")
    return -max(round(delay * 1_000_000), SHORTEST_US) if delay else 0


def as_deliver_at_each(
    count: int,
    delay: float | None,
    deliver_at: Time | None,
    delay_level: int | None,
    delays: Sequence[float | datetime | None] | None,
) -> list[int] | None:
    """The column for many messages; None if none of them is delayed."""
    if delays is None:
        value = as_deliver_at(delay, deliver_at, delay_level)
        return [value] * count if value else None
    if delay is not None or deliver_at is not None or delay_level is not None:
        raise BadRequest("delays: give it instead of delay, deliver_at and delay_level")
    if len(delays) != count:
        raise BadRequest(f"{len(delays)} delays for {count} bodies")
    if set(map(type, delays)) <= {float, int}:
        numbers = cast("Sequence[float]", delays)
        if numbers and min(numbers) * 1_000_000 >= SHORTEST_US and max(numbers) <= DELAY_MAX_S:
            try:
                # No function of our own for each: this is where the time goes.
                return [-int(one * 1_000_000 + 0.5) for one in numbers]
            except ValueError:
                # One that is not a number raises below.
                pass
    return [
        as_time_us(one) if isinstance(one, datetime) else as_deliver_at(one, None, None) if one else 0 for one in delays
    ]


class DelayedEntry:
    """A delayed message."""

    __slots__ = ("_entry", "broker")

    def __init__(self, entry: DelayedMessage) -> None:
        self._entry = entry
        self.broker = ""
        """Its broker, in a cluster whose brokers keep their own messages."""

    def __repr__(self) -> str:
        return f"<DelayedEntry {self.id} due {self.deliver_at.isoformat()}>"

    @property
    def id(self) -> str:
        """Its id, for `cancel` and `reschedule`."""
        name = message_id(self._entry.topic, DELAY, self._entry.id)
        return f"{name}@{self.broker}" if self.broker else name

    @property
    def number(self) -> int:
        return self._entry.id

    @property
    def topic(self) -> str:
        return self._entry.topic

    @property
    def priority(self) -> Priority:
        """An ordered topic has none."""
        return "middle" if self._entry.shards else LANES[self._entry.lane]

    @property
    def lane(self) -> str:
        """Its destination: a priority, or the number of a shard."""
        return lane_name(self._entry.lane, self._entry.shards)

    @property
    def key(self) -> str | None:
        return self._entry.key or None

    @property
    def size_bytes(self) -> int:
        return self._entry.size_bytes

    @property
    def deliver_at_us(self) -> int:
        return self._entry.deliver_at_us

    @property
    def deliver_at(self) -> datetime:
        return datetime.fromtimestamp(self._entry.deliver_at_us / 1e6, UTC)

    @property
    def produced_at_us(self) -> int:
        return self._entry.produced_at_us


def delayed(
    topic: str | None,
    after: DelayedEntry | Time | None,
    max_messages: int,
    broker: str = "",
    *,
    key: str | None = None,
    message: Receipt | str | int | None = None,
) -> Flow[list[DelayedEntry]]:
    chosen: tuple[list[int], str] = ([], "")
    if key is not None or message is not None:
        if not topic:
            raise BadRequest("delayed messages by key or id: say of which topic")
        chosen = _which(topic, message, key)
    if isinstance(after, DelayedEntry):
        # Entries with the same time and number, at different brokers, are ordered by broker.
        after_us, after_id = after.deliver_at_us, after.number - (after.broker < broker)
    else:
        after_us, after_id = (0, 0) if after is None else (as_time_us(after), 0)
    ids, name = chosen
    call = Call(ListDelayed(check_topic(topic) if topic else "", after_us, after_id, max_messages, name, ids))
    answer = yield call
    if not isinstance(answer, Delayed):
        raise ProtocolError(f"ListDelayed was answered by {type(answer).__name__}")
    return [DelayedEntry(one) for one in answer.messages]


def settled_id(text: str) -> Flow[str]:
    """The id of a message in its lane: as it is, or of one that was delayed and is there by now."""
    topic, lane, number = parse_message_id(text)
    if lane != DELAY:
        return text
    answer = yield Call(ListDelayed(topic, ids=[number], arrived=True))
    if not isinstance(answer, Delayed):
        raise ProtocolError(f"ListDelayed was answered by {type(answer).__name__}")
    for waiting in answer.messages:
        due = DelayedEntry(waiting).deliver_at.isoformat(timespec="milliseconds")
        raise NotFound(f"{text} still waits for its time, {due}: it is in no lane yet. `towline delay ls` shows it")
    if not answer.arrived:
        raise NotFound(
            f"{text} does not wait any more, and where it went is not kept: it was cancelled, or it was delivered "
            "longer ago than the broker keeps messages"
        )
    came = answer.arrived[0]
    return message_id(topic, lane_name(came.lane, came.shards), came.seq)


def as_new_time(delay: float | None, deliver_at: Time | None, delay_level: int | None) -> int:
    if delay is None and deliver_at is None and delay_level is None:
        raise BadRequest("say when: delay, deliver_at or delay_level")
    return as_deliver_at(delay, deliver_at, delay_level)


def cancel(topic: str, message: Receipt | str | int | None, key: str | None, dry_run: bool) -> Flow[int]:
    ids, name = _which(topic, message, key)
    call = Call(CancelDelayed(topic, ids, name, dry_run))
    answer = yield call
    if not isinstance(answer, DelayedCancelled):
        raise ProtocolError(f"CancelDelayed was answered by {type(answer).__name__}")
    if not answer.count and answer.before and call.resent:
        # Sent twice because the connection broke: the first time was carried out.
        return answer.before
    if answer.gone:
        raise _gone(topic, answer.gone[0])
    return answer.count


def reschedule(
    topic: str, message: Receipt | str | int | None, key: str | None, deliver_at: int, dry_run: bool
) -> Flow[int]:
    ids, name = _which(topic, message, key)
    answer = yield Call(MoveDelayed(topic, ids, name, deliver_at, dry_run))
    if not isinstance(answer, DelayedMoved):
        raise ProtocolError(f"MoveDelayed was answered by {type(answer).__name__}")
    if answer.gone:
        raise _gone(topic, answer.gone[0])
    return answer.count


def _which(topic: str, message: Receipt | str | int | None, key: str | None) -> tuple[list[int], str]:
    check_topic(topic)
    if (message is None) == (key is None):
        raise BadRequest("give the id of the delayed message, or a key: one of them")
    if message is None:
        if not key:
            raise BadRequest("an empty key is no key")
        return [], as_sought_key(key)
    text = (message.id if isinstance(message, Receipt) else str(message)).partition("@")[0]
    where, _, number = text.rpartition("/")
    if where not in ("", DELAY, f"{topic}/{DELAY}") or not number.isascii() or not number.isdigit() or len(number) > 18:
        raise BadRequest(f"{text[:100]!r} is not the id of a delayed message of topic {topic}: {topic}/{DELAY}/number")
    return [int(number)], ""


def _gone(topic: str, number: int) -> Conflict:
    name = message_id(topic, DELAY, number)
    return Conflict(f"{name} does not wait any more: it was delivered, or cancelled")
