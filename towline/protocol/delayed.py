"""Requests about delayed messages: list, cancel and reschedule them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from towline.protocol.base import MANY, Answer, Name, Natural, Request, Text

__all__ = [
    "Arrived",
    "CancelDelayed",
    "Delayed",
    "DelayedCancelled",
    "DelayedMessage",
    "DelayedMoved",
    "ListDelayed",
    "MoveDelayed",
]


class DelayedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    id: int
    topic: str
    lane: int
    deliver_at_us: int
    produced_at_us: int
    key: str
    size_bytes: int
    shards: int = 0
    """Of the topic, if it is an ordered one."""


class Arrived(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message that was delayed, and its place in its lane."""

    id: int
    """Its id while it waited."""
    lane: int
    seq: int
    at_us: int
    shards: int = 0


class ListDelayed(Request, frozen=True, array_like=True):
    """List delayed messages, of a topic or (when it is empty) of all, soonest first: those behind the message
    `after_id` that is due at `after_us`. Of a topic, only those with this key or with these ids, if some are given.
    With `arrived`, also the places of those of the ids that do not wait any more: 100 of them at most."""

    kind = 20
    topic: Name = ""
    after_us: Natural = 0
    after_id: Natural = 0
    max_messages: Annotated[int, msgspec.Meta(ge=1, le=MANY)] = 100
    key: Text = ""
    ids: Annotated[list[Natural], msgspec.Meta(max_length=MANY)] = []  # noqa: RUF012 - a Struct copies it
    arrived: bool = False


class Delayed(Answer, frozen=True, array_like=True):
    """`count` is how many wait in all; with the key, if one was given."""

    kind = 148
    messages: list[DelayedMessage]
    count: int
    arrived: list[Arrived] = []  # noqa: RUF012 - a Struct copies it


class CancelDelayed(Request, frozen=True, array_like=True):
    """Cancel delayed messages of a topic, by their ids or with this key."""

    kind = 21
    topic: Name
    ids: Annotated[list[Natural], msgspec.Meta(max_length=MANY)] = []  # noqa: RUF012 - a Struct copies it
    key: Text = ""
    dry_run: bool = False


class DelayedCancelled(Answer, frozen=True, array_like=True):
    """Durable. `gone` lists the ids that do not wait any more: delivered, or cancelled before. `before` is how many the
    same request cancelled when it was carried out last, if that is remembered."""

    kind = 149
    count: int
    gone: list[int] = []  # noqa: RUF012 - a Struct copies it
    before: int = 0


class MoveDelayed(Request, frozen=True, array_like=True):
    """Reschedule delayed messages of a topic, by their ids or with this key."""

    kind = 22
    topic: Name
    ids: Annotated[list[Natural], msgspec.Meta(max_length=MANY)]
    key: Text
    deliver_at_us: int
    """As in a frame's deliver-at column: a time, or a level or delay from now on."""
    dry_run: bool = False


class DelayedMoved(Answer, frozen=True, array_like=True):
    kind = 150
    count: int
    gone: list[int]
    deliver_at_us: int
    """Their new due time."""
