"""Consuming: attach, pull, settle, detach."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from towline.model import MAX_SHARDS, MAX_TOPICS, GroupConfig
from towline.protocol.base import MANY, Answer, AnyLane, Name, Natural, Newer, Request, Text

__all__ = [
    "ACK",
    "DEAD",
    "GIVE_BACK",
    "NACK",
    "Act",
    "Attach",
    "Attached",
    "Detach",
    "Held",
    "Lost",
    "Part",
    "Place",
    "Places",
    "Pull",
    "Pulled",
    "Settle",
    "Settled",
]

_Count = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
_Attempt = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class Place(msgspec.Struct, frozen=True, array_like=True):
    """The position of a consumer without a group in a topic."""

    topic: Name
    shards: Annotated[int, msgspec.Meta(ge=0, le=MAX_SHARDS)] = 0
    """Shards of the topic, if it is an ordered one: a topic with another number is another topic."""
    lanes: Annotated[list[tuple[AnyLane, Natural]], msgspec.Meta(max_length=MAX_SHARDS + 3)] = []
    """(lane, number) of the next message that it was not given; in other lanes that is the first."""
    open: Annotated[list[tuple[AnyLane, Natural, _Count, _Attempt]], msgspec.Meta(max_length=MANY)] = []
    """(lane, first, count, attempt) of earlier messages that it was given and has not settled: they come again."""


class Places(msgspec.Struct, frozen=True, array_like=True):
    """The positions of a consumer without a group."""

    store: Natural
    """The store that these numbers belong to: one that was set up anew has others."""
    topics: Annotated[list[Place], msgspec.Meta(max_length=MAX_TOPICS)] = []
    """A topic that is not named is new to the consumer, all of it."""


class Attach(Request, frozen=True, array_like=True):
    """Become a consumer of a group of a topic; or come back as one, keeping its leases."""

    kind = 4
    topic: Name
    group: Name
    """`~name` for a consumer without a group."""
    consumer: Name
    config: GroupConfig | None = None
    """Settings of the group if it does not exist yet."""
    holding: Annotated[list[int], msgspec.Meta(max_length=MANY)] = []  # noqa: RUF012 - a Struct copies it
    """The pulls that the consumer is working on. Others that it had been given go back to the group."""
    places: Places | None = None
    """Positions of an ephemeral group that does not exist any more; without them, it begins as its settings say."""


class Attached(Answer, frozen=True, array_like=True):
    kind = 132
    subscription: int
    """The number of this consumer on this connection."""
    held: list[int]
    """The pulls that this consumer still holds."""
    config: GroupConfig
    shards: int = 0
    """The shards of the topic, if it is an ordered one: lanes from there on are the group's own."""
    groups: list[GroupConfig] = []  # noqa: RUF012 - a Struct copies it
    """Of a subscription by prefix: groups that existed, with other settings than were asked for; not all, if there are
    many."""
    places: Places | None = None
    """Of a consumer without a group: its positions in the topics of which its group has been given nothing yet."""


ACK: Final = 0
NACK: Final = 1
DEAD: Final = 2
GIVE_BACK: Final = 3


class Act(msgspec.Struct, frozen=True, array_like=True):
    """Settle messages of one pull."""

    what: Annotated[int, msgspec.Meta(ge=0, le=3)]
    """`ACK`; `NACK`: retry later; `DEAD`: straight to the dead letters; `GIVE_BACK` untouched."""
    pull: Natural
    spans: Annotated[list[tuple[int, int, int]], msgspec.Meta(max_length=MANY)] = []
    """(lane, first, count) of the messages; empty means all of the pull that are not settled yet."""
    up_to: bool = False
    """Also all older pulls of this consumer, whole (ack only)."""
    delay_s: Annotated[float, msgspec.Meta(ge=0, le=366 * 86400)] | None = None
    """The back-off, instead of the group's policy (`NACK` only)."""
    reason: Text = ""


class Pull(Request, frozen=True, array_like=True):
    """Pull messages; `acts` are carried out first.

    It is answered once, or is a standing pull: with `answers` above 1 it may be answered so often, as messages come,
    and every answer but the last says that there are more to come. Another pull of the same subscription ends it.
    """

    kind = 5
    subscription: Natural
    max_messages: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=300_000)] = 0
    min_messages: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    acts: Annotated[list[Act], msgspec.Meta(max_length=MANY)] = []  # noqa: RUF012 - a Struct copies it
    answers: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 1
    scattered: bool = False
    """Parts may have `runs`."""


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Messages `start` to `start + count` of the attached frame: `count` messages of a lane from `first` on. Or those
    of its `runs`, if it has some."""

    lane: int
    first: int
    count: int
    start: int
    length: int
    attempt: int
    appended_at_us: int
    source: bytes
    runs: tuple[tuple[int, int, int], ...] = ()
    """Messages with others between them that are not among them: (index in the frame, first, count) of each run of
    neighbours, in order; only if the pull allowed it."""


Lost = tuple[int, int, int, int, str]
"""Messages that were taken away: pull, lane, first, count, reason."""


class Held(Answer, frozen=True, array_like=True):
    """The messages that a consumer still holds of the pulls that its beat named."""

    kind = 130
    newer = Newer(2)
    held: list[int]
    lost: list[Lost] = []  # noqa: RUF012 - a Struct copies it
    """Messages of those pulls that were taken away; not all of them, if there are many ranges."""


class Pulled(Answer, frozen=True, array_like=True):
    """`pull` is 0 and there are no parts when nothing came in time. `refused` and `lost` answer the acts, as in
    `Settled`."""

    kind = 133
    pull: int
    parts: list[Part]
    refused: list[tuple[int, str, str]] = []  # noqa: RUF012 - a Struct copies it
    topic: str = ""
    """Of a subscription by prefix: the topic of the messages, …"""
    shards: int = 0
    """… and its number of shards."""
    lost: list[Lost] = []  # noqa: RUF012 - a Struct copies it
    groups: list[GroupConfig] = []  # noqa: RUF012 - a Struct copies it
    """Of a subscription by prefix: more such groups as in `Attached`; that of the messages is among them the first
    time."""
    more: bool = False
    """The pull still stands: other answers follow under the same number."""


class Settle(Request, frozen=True, array_like=True):
    kind = 6
    subscription: Natural
    acts: Annotated[list[Act], msgspec.Meta(min_length=1, max_length=MANY)]


class Settled(Answer, frozen=True, array_like=True):
    """Durable. `refused` lists the acts that were not carried out: (number of the act, error code, message). `lost`
    lists messages of pulls that were settled as a whole, but had been taken away before."""

    kind = 134
    refused: list[tuple[int, str, str]] = []  # noqa: RUF012 - a Struct copies it
    lost: list[Lost] = []  # noqa: RUF012 - a Struct copies it


class Detach(Request, frozen=True, array_like=True):
    """Leave: what is still held is given back at once. Answered by `Done`."""

    kind = 7
    subscription: Natural
