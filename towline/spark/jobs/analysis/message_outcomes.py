"""Outcomes of messages in a group, from its delivery events: by ranges, without a step for each message.

Events are about ranges, so all messages between two neighbouring bounds of ranges have the same outcome. `lives` cuts a
lane at these bounds, lays each event over the pieces it covers, and reduces each piece to one row: all of it with whole
columns. A million messages that were pulled by the hundred and acked at once are ten thousand pieces; acked one by one
they are a million.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["KINDS", "STATUSES", "Events", "MessageOutcomes", "Moves", "lives", "override"]

Ints = npt.NDArray[np.int64]

KINDS: Final = ("Pulled", "Acked", "Failed", "GaveUp", "Returned", "Released", "Buried", "Skipped", "Overrun")
"""The events that name the messages they move; a kind's number is its index here."""
PULLED, ACKED, FAILED, GAVE_UP, RETURNED, RELEASED, BURIED, SKIPPED, OVERRUN = range(len(KINDS))

STATUSES: Final = ("NEW", "RUNNING", "SUCCESS", "FAIL", "DEAD", "GONE", "BEFORE", "UNKNOWN")
"""As `towline trace` has them. BEFORE: the group began behind it, it is not for the group. UNKNOWN: it was delivered,
but the events about its outcome were dropped."""
NEW, RUNNING, SUCCESS, FAIL, DEAD, GONE, BEFORE, UNKNOWN = range(len(STATUSES))
_AFTER: Final = np.array([RUNNING, SUCCESS, FAIL, FAIL, FAIL, FAIL, DEAD, GONE, GONE], np.int64)
"""The status after each kind of event; a message that was given back in its first delivery is NEW again."""
_NEVER: Final = np.iinfo(np.int64).max


class Events(NamedTuple):
    """The events of one lane of a group in their order, one row for each range."""

    kind: Ints
    first: Ints
    end: Ints
    at_us: Ints
    order: Ints
    """The number of the event in its log."""
    consumer: Ints
    """Of Pulled: the number of the consumer; -1 elsewhere."""
    reason: Ints
    """Of failures: the number of the reason; -1 elsewhere."""
    attempt: Ints
    """The delivery that it is about: 1 is the first."""


class Moves(NamedTuple):
    """Facts of a lane as a whole."""

    started: int
    """The group began here; -1 if that was dropped."""
    position: int
    """The next message that it was not given."""
    moved_at: Ints
    """The numbers of the events by which it was moved …"""
    moved_to: Ints
    """… and the new positions."""


class MessageOutcomes(NamedTuple):
    """Pieces of a lane, in order, without gaps. A time of 0 is none."""

    first: Ints
    end: Ints
    status: Ints
    pulls: Ints
    failures: Ints
    acks: Ints
    first_pulled_us: Ints
    last_pulled_us: Ints
    settled_us: Ints
    """When it was acked, buried, or lost."""
    consumer: Ints
    """The last consumer."""
    reason: Ints
    """The reason of the last failure."""

    def at(self, seqs: Ints) -> Ints:
        """The piece of each of these messages."""
        return np.searchsorted(self.end, seqs, side="right")


def lives(events: Events, moves: Moves, low: int, high: int) -> MessageOutcomes:
    """The outcomes of messages `low` up to `high` of a lane."""
    chosen = (events.end > low) & (events.first < high)
    kind, first, end, at_us, order, consumer, reason, attempt = (column[chosen] for column in events)
    first, end = np.maximum(first, low), np.minimum(end, high)
    marks = [at for at in (low, high, moves.started, moves.position, *moves.moved_to.tolist()) if low <= at <= high]
    bounds = np.unique(np.concatenate([first, end, np.array(marks, np.int64)]))
    begin, stop = bounds[:-1], bounds[1:]
    pieces = len(begin)
    # Each event, once for every piece that it covers.
    from_piece = np.searchsorted(bounds, first)
    covered = np.searchsorted(bounds, end) - from_piece
    row = np.repeat(np.arange(len(first)), covered)
    within = np.arange(len(row)) - np.repeat(np.cumsum(covered) - covered, covered)
    piece = from_piece[row] + within
    by_piece = np.argsort(piece, kind="stable")
    row, piece = row[by_piece], piece[by_piece]
    touched, starts = np.unique(piece, return_index=True)

    def spread(values: Ints, nothing: int = 0) -> Ints:
        whole = np.full(pieces, nothing, np.int64)
        whole[touched] = values
        return whole

    def reduced(reduce: Any, values: Ints) -> Ints:
        result: Ints = reduce.reduceat(values, starts) if len(starts) else np.empty(0, np.int64)
        return result

    what = kind[row]
    place = np.arange(len(row))
    last = row[np.append(starts[1:], len(row)) - 1] if len(starts) else np.empty(0, np.int64)
    last_pull = reduced(np.maximum, np.where(what == PULLED, place, -1))
    last_fault = reduced(np.maximum, np.where(reason[row] >= 0, place, -1))
    failed = (what == FAILED) | (what == GAVE_UP) | (what == RELEASED)
    first_pulled = reduced(np.minimum, np.where(what == PULLED, at_us[row], _NEVER))
    status = np.where((kind[last] == RETURNED) & (attempt[last] <= 1), NEW, _AFTER[kind[last]])
    settled = (status == SUCCESS) | (status == DEAD) | (status == GONE)
    found = MessageOutcomes(
        begin,
        stop,
        spread(status, NEW),
        spread(reduced(np.add, (what == PULLED).astype(np.int64))),
        spread(reduced(np.add, failed.astype(np.int64))),
        spread(reduced(np.add, (what == ACKED).astype(np.int64))),
        spread(np.where(first_pulled == _NEVER, 0, first_pulled)),
        spread(np.where(last_pull >= 0, at_us[row[last_pull]] if len(row) else 0, 0)),
        spread(np.where(settled, at_us[last], 0)),
        spread(np.where(last_pull >= 0, consumer[row[last_pull]] if len(row) else -1, -1), -1),
        spread(np.where(last_fault >= 0, reason[row[last_fault]] if len(row) else -1, -1), -1),
    )
    _apply_moves(found, moves, spread(order[last], -1))
    return found


def _apply_moves(found: MessageOutcomes, moves: Moves, last_order: Ints) -> None:
    """Moves name no messages: they concern all before, and all behind a place."""
    status = found.status
    silent = last_order < 0
    status[silent & (found.first < moves.position)] = UNKNOWN
    for at, to in zip(moves.moved_at.tolist(), moves.moved_to.tolist(), strict=True):
        earlier = last_order < at
        unsettled = (status == NEW) | (status == RUNNING) | (status == FAIL) | (status == UNKNOWN) & silent
        behind = found.first >= to
        status[earlier & behind] = NEW
        found.settled_us[earlier & behind] = 0
        status[earlier & ~behind & unsettled] = GONE
    if moves.started > 0:
        status[silent & (found.first < moves.started) & (status != NEW)] = BEFORE


def override(found: MessageOutcomes, copies: MessageOutcomes, index: Ints, piece: Ints) -> MessageOutcomes:
    """The outcomes of single messages (`index` into `found`) whose dead letter was sent again: that of the copy
    (`piece` of `copies`, -1 where there is none)."""
    picked = MessageOutcomes(*(column[index] for column in found))
    sent_again = (piece >= 0) & (picked.status == DEAD)
    at = np.where(sent_again, piece, 0)
    if not len(copies.first) or not sent_again.any():
        return picked
    copy = MessageOutcomes(*(column[at] for column in copies))
    known = sent_again & (copy.status != UNKNOWN)
    pulled = known & (copy.pulls > 0)
    return picked._replace(
        status=np.where(known, copy.status, picked.status),
        pulls=picked.pulls + np.where(known, copy.pulls, 0),
        failures=picked.failures + np.where(known, copy.failures, 0),
        acks=picked.acks + np.where(known, copy.acks, 0),
        last_pulled_us=np.where(pulled, copy.last_pulled_us, picked.last_pulled_us),
        settled_us=np.where(known, copy.settled_us, picked.settled_us),
        consumer=np.where(pulled, copy.consumer, picked.consumer),
        reason=np.where(known & (copy.reason >= 0), copy.reason, picked.reason),
    )
