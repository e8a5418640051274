"""Ids and cursors of messages over many brokers, and the merging of answers that hold them; sans I/O.

Numbers and ids count at one broker only. So an answer from such a cluster names its broker: a message's id ends in `@`
and the broker (`orders/middle/42@b2`), and numbers (`Numbered`, `Cursor`) know their broker, so that they can be given
back as they came.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from towline.client.cluster.routing import Outcome, merge_outcomes
from towline.client.consume.message import DeadLetter, Message
from towline.client.results import Page
from towline.errors import BadRequest, Conflict, NotFound
from towline.model import Receipt

if TYPE_CHECKING:
    from towline.client.admin.delayed import DelayedEntry
    from towline.client.admin.trace import Trace

__all__ = [
    "Cursor",
    "Join",
    "Label",
    "Numbered",
    "by_broker",
    "join_counts",
    "join_dead",
    "join_dead_found",
    "join_delayed",
    "join_found",
    "join_letter",
    "join_message",
    "join_messages",
    "join_places",
    "join_trace",
    "number_at",
    "split_broker",
    "unknown_broker",
    "whose",
]

Label = Callable[[str], str]
"""The name of a broker for people, by its id."""
T = TypeVar("T")
Join = Callable[[Sequence[Outcome[T]], Label], T]
"""Makes one answer of the brokers' answers."""
Item = TypeVar("Item", Message, DeadLetter)
AT: Final = "@"


class Numbered(int):
    """The number of something at one broker."""

    broker: str

    def __new__(cls, number: int, broker: str) -> Numbered:
        made = super().__new__(cls, number)
        made.broker = broker
        return made


class Cursor(int):
    """A position at each broker; as a number, the sum."""

    numbers: dict[str, int]

    def __new__(cls, numbers: dict[str, int]) -> Cursor:
        made = super().__new__(cls, sum(numbers.values()))
        made.numbers = numbers
        return made


def number_at(place: int, broker: str) -> int:
    """The position at a broker. A plain number counts at each; one that knows its broker counts there."""
    return place.numbers.get(broker, 0) if isinstance(place, Cursor) else int(place)


def split_broker(name: str) -> tuple[str, str]:
    """The id of a message, and the broker behind it, if one is named."""
    plain, at, broker = name.rpartition(AT)
    return (plain, broker) if at else (name, "")


def whose(number: object, broker: str | None) -> str:
    """The broker that something belongs to: as given, or as it knows itself."""
    if broker:
        return broker
    if isinstance(number, Numbered | Receipt):
        return number.broker
    return split_broker(number)[1] if isinstance(number, str) else ""


def by_broker(numbers: Iterable[int], broker: str | None) -> dict[str, list[int]]:
    """Numbers by the broker that each belongs to; that of plain ones is not known."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for number in numbers:
        found[whose(number, broker)].append(int(number))
    return dict(found)


def unknown_broker(what: str) -> BadRequest:
    return BadRequest(
        f"{what}: each broker of this cluster counts for itself, so say which one is meant (broker=…, on the command "
        "line --broker), or give it as it was listed"
    )


def _done(outcomes: Sequence[Outcome[T]]) -> list[tuple[str, T]]:
    """The answers of the brokers that could be asked; raises if none could, or all refuse."""
    merge_outcomes(outcomes, "asking", catch_up=True)
    return [(one.broker.id, one.result) for one in outcomes if one.error is None]  # type: ignore[misc]


# Messages


def _mark(message: Message, broker: str) -> Message:
    message._section.broker = broker
    return message


def join_messages(count: int) -> Callable[[Sequence[Outcome[Page[Message]]], Label], Page[Message]]:
    return lambda outcomes, label: _join_pages(
        _done(outcomes),
        count,
        lambda one: one.appended_at_us,
        lambda one: one.seq,
        lambda one, at: _mark(one, label(at)),
    )


def _join_pages(
    found: Sequence[tuple[str, Page[Item]]],
    count: int,
    time: Callable[[Item], int],
    number: Callable[[Item], int],
    mark: Callable[[Item, str], Item],
) -> Page[Item]:
    """The oldest of all; each broker continues at its first message that is not among them."""
    rows = heapq.merge(*([(time(one), at, one) for one in page] for at, page in found), key=lambda row: row[:2])
    chosen = [row for row, _ in zip(rows, range(count), strict=False)]
    taken: defaultdict[str, int] = defaultdict(int)
    for _, at, _ in chosen:
        taken[at] += 1
    nexts = {at: page.next if taken[at] == len(page) else number(page[taken[at]]) for at, page in found}
    return Page(
        [mark(one, at) for _, at, one in chosen],
        next_seq=Cursor(nexts),
        start=Cursor({at: page.start for at, page in found}),
        end=Cursor({at: page.end for at, page in found}),
    )


def join_found(limit: int) -> Callable[[Sequence[Outcome[list[Message]]], Label], list[Message]]:
    def join(outcomes: Sequence[Outcome[list[Message]]], label: Label) -> list[Message]:
        found = [_mark(one, label(at)) for at, some in _done(outcomes) for one in some]
        return sorted(found, key=lambda one: one.appended_at_us)[:limit]

    return join


def _only(name: str, outcomes: Sequence[Outcome[T]], label: Label) -> tuple[str, T]:
    """The one broker that has it."""
    absent = [one for one in outcomes if isinstance(one.error, NotFound)]
    if len(absent) == len(outcomes) and absent[0].error is not None:
        raise absent[0].error
    found = _done(outcomes)
    if len(found) > 1:
        names = ", ".join(f"{name}{AT}{label(at)}" for at, _ in found)
        raise Conflict(f"several brokers have a message {name}, each its own: {names}. Ask for one of them")
    return found[0]


def join_message(name: str) -> Callable[[Sequence[Outcome[Message]], Label], Message]:
    def join(outcomes: Sequence[Outcome[Message]], label: Label) -> Message:
        at, message = _only(name, outcomes, label)
        return _mark(message, label(at))

    return join


def join_trace(name: str) -> Callable[[Sequence[Outcome[Trace]], Label], Trace]:
    def join(outcomes: Sequence[Outcome[Trace]], label: Label) -> Trace:
        at, trace = _only(name, outcomes, label)
        message = None if trace.message is None else _mark(trace.message, label(at))
        asked = f"{trace.delay_id}{AT}{label(at)}" if trace.delay_id else ""
        return trace._replace(id=f"{trace.id}{AT}{label(at)}", message=message, delay_id=asked)

    return join


def join_places(outcomes: Sequence[Outcome[int]], label: Label) -> int:
    return Cursor(dict(_done(outcomes)))


# Dead letters


def _mark_dead(letter: DeadLetter, broker: str) -> DeadLetter:
    letter.number = Numbered(letter.number, broker)
    letter.broker = broker
    return letter


def join_dead(count: int) -> Callable[[Sequence[Outcome[Page[DeadLetter]]], Label], Page[DeadLetter]]:
    return lambda outcomes, label: _join_pages(
        _done(outcomes),
        count,
        lambda one: one.died_at_us,
        lambda one: int(one.number),
        lambda one, at: _mark_dead(one, label(at)),
    )


def join_dead_found(limit: int) -> Callable[[Sequence[Outcome[list[DeadLetter]]], Label], list[DeadLetter]]:
    def join(outcomes: Sequence[Outcome[list[DeadLetter]]], label: Label) -> list[DeadLetter]:
        found = [_mark_dead(one, label(at)) for at, some in _done(outcomes) for one in some]
        return sorted(found, key=lambda one: one.died_at_us)[:limit]

    return join


def join_letter(outcomes: Sequence[Outcome[DeadLetter]], label: Label) -> DeadLetter:
    [(at, letter)] = _done(outcomes)
    return _mark_dead(letter, label(at))


# Delayed messages, and counts


def join_delayed(
    count: int, *, mark: bool = True
) -> Callable[[Sequence[Outcome[list[DelayedEntry]]], Label], list[DelayedEntry]]:
    def join(outcomes: Sequence[Outcome[list[DelayedEntry]]], label: Label) -> list[DelayedEntry]:
        found = []
        for at, some in _done(outcomes):
            for entry in some:
                entry.broker = label(at) if mark else ""
                found.append(entry)
        return sorted(found, key=lambda one: (one.deliver_at_us, one.number, one.broker))[:count]

    return join


def join_counts(outcomes: Sequence[Outcome[int]], label: Any = None) -> int:
    """The sum over all brokers; `Partly` if some could not be asked."""
    return sum(merge_outcomes(outcomes, "this"))
