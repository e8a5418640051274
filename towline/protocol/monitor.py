"""Requests and answers for monitoring: lists by pages, figures over time, storage, alarms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from towline.alarms.book import Changed
from towline.alarms.rule import REASON_MAX, AlarmRule, Until
from towline.alarms.watch import Alarm
from towline.model import TopicConfig
from towline.protocol.messages import ANSWERS, REQUESTS, Answer, Request

__all__ = [
    "BOOK_PART",
    "GROUP_ORDERS",
    "TOPIC_ORDERS",
    "AlarmBook",
    "Alarms",
    "AskAlarmBook",
    "DropAlarm",
    "GroupRow",
    "Kick",
    "ListAlarms",
    "ListPage",
    "PageListed",
    "Pulse",
    "Pulsed",
    "PutAlarm",
    "SegmentState",
    "SilenceAlarm",
    "Storage",
    "Stored",
    "TestAlarm",
    "Told",
    "TopicRow",
]

BOOK_PART: Final = 200
"""Alarm rules in one part of the exchange between brokers."""

_Name = Annotated[str, msgspec.Meta(max_length=100)]


class TopicRow(msgspec.Struct, frozen=True, array_like=True):
    config: TopicConfig
    messages: int
    size_bytes: int
    groups: int
    members: int
    lag: int
    """Of its groups together."""
    dead: int
    delayed: int
    in_per_s: float
    out_per_s: float

    @property
    def group_count(self) -> int:
        return self.groups


class GroupRow(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    group: str
    paused: bool
    members: int
    lag: int
    oldest_us: int
    """When the oldest message that waits was appended; 0 if none does."""
    in_flight: int
    retrying: int
    dead: int
    out_per_s: float
    failed: int
    """Failed deliveries in the last five minutes."""
    alone_since_us: int
    """Since when it has no consumer; 0 if it has one."""


TOPIC_ORDERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "name": lambda one: one.config.name,
    "messages": lambda one: one.messages,
    "size": lambda one: one.size_bytes,
    "groups": lambda one: one.group_count,
    "lag": lambda one: one.lag,
    "dead": lambda one: one.dead,
    "delayed": lambda one: one.delayed,
    "in": lambda one: one.in_per_s,
    "out": lambda one: one.out_per_s,
    "line": lambda one: one.config.business_line,
    "author": lambda one: one.config.author,
    "created": lambda one: one.config.created_at_us,
}
"""The sort keys of a list of topics; for a `TopicRow`, and for the broker's figures that one is made of."""
GROUP_ORDERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "name": lambda one: (one.group, one.topic),
    "topic": lambda one: (one.topic, one.group),
    "lag": lambda one: one.lag,
    "oldest": lambda one: -one.oldest_us if one.oldest_us else -(1 << 62),
    "members": lambda one: one.members,
    "in_flight": lambda one: one.in_flight,
    "retrying": lambda one: one.retrying,
    "dead": lambda one: one.dead,
    "out": lambda one: one.out_per_s,
    "failed": lambda one: one.failed,
}


class ListPage(Request, frozen=True, array_like=True):
    """A page of the list of topics or groups: those whose name contains `search`, of a business line, sorted. The
    figures are some seconds old at most, more where there are thousands of topics."""

    kind = 120
    of: Literal["topics", "groups"]
    search: _Name = ""
    topic: _Name = ""
    """Groups of this topic only."""
    line: _Name = ""
    """Topics of this business line only."""
    sort: _Name = "name"
    descending: bool = False
    first: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 50


class PageListed(Answer, frozen=True, array_like=True):
    kind = 248
    total: int
    """The whole number, of which this is a page."""
    topics: list[TopicRow]
    groups: list[GroupRow]
    lines: list[str]
    """All business lines."""


class Pulse(Request, frozen=True, array_like=True):
    """Present and recent figures: of the broker, or of one group of a topic."""

    kind = 121
    topic: _Name = ""
    group: _Name = ""


class Pulsed(Answer, frozen=True, array_like=True):
    kind = 249
    now: dict[str, Any]
    at_us: list[int]
    """The times of the figures."""
    series: dict[str, list[float]]


class SegmentState(msgspec.Struct, frozen=True, array_like=True):
    name: str
    size_bytes: int
    last_at_us: int
    """When the last record in it was appended."""
    sealed: bool


class Storage(Request, frozen=True, array_like=True):
    """Segments of the store, and the settings of the broker."""

    kind = 122


class Stored(Answer, frozen=True, array_like=True):
    kind = 250
    store: str
    size_bytes: int
    free_bytes: int
    total_bytes: int
    segments: list[SegmentState]
    settings: dict[str, Any]


class Told(msgspec.Struct, frozen=True, array_like=True):
    """A notice that was sent, or could not be."""

    at_us: int
    subject: str
    to: list[str]
    error: str = ""


class ListAlarms(Request, frozen=True, array_like=True):
    kind = 123


class Alarms(Answer, frozen=True, array_like=True):
    """The rules; the present alarms; the last notices. Of webhooks only the host is shown."""

    kind = 251
    rules: list[AlarmRule]
    active: list[Alarm]
    told: list[Told]
    mail: bool
    """Whether the broker knows a mail server."""


class PutAlarm(Request, frozen=True, array_like=True):
    """Make a rule, or change it. A webhook that is given as it was listed stays as it is. Answered by `Done`."""

    kind = 124
    rule: AlarmRule


class DropAlarm(Request, frozen=True, array_like=True):
    """Answered by `Done`."""

    kind = 125
    name: _Name


class TestAlarm(Request, frozen=True, array_like=True):
    """Send a test notice to all that a rule names. Answered by `Done` once it was taken, else by `Failed`."""

    __test__ = False
    kind = 126
    name: _Name


class SilenceAlarm(Request, frozen=True, array_like=True):
    """Send no notices of a rule until a time, in microseconds since 1970; 0 ends its silence. Answered by `Done`."""

    kind = 119
    name: _Name
    until_us: Until
    reason: Annotated[str, msgspec.Meta(max_length=REASON_MAX)] = ""


class AskAlarmBook(Request, frozen=True, array_like=True):
    """From broker to broker: the other's alarm rules and the times of their changes. In parts, by name."""

    kind = 118
    after: _Name = ""


class AlarmBook(Answer, frozen=True, array_like=True):
    """The next rules by name, whole, and the time of each change; of dropped rules, only the time."""

    kind = 246
    rules: Annotated[list[AlarmRule], msgspec.Meta(max_length=BOOK_PART)]
    changes: Annotated[dict[_Name, Changed], msgspec.Meta(max_length=BOOK_PART)]
    more: bool = False


class Kick(Request, frozen=True, array_like=True):
    """Take from a consumer what it holds, and let it begin anew. Answered by `Done`."""

    kind = 127
    topic: _Name
    group: _Name
    consumer: _Name


REQUESTS.update(
    {
        cls.kind: cls
        for cls in (
            ListPage,
            Pulse,
            Storage,
            ListAlarms,
            PutAlarm,
            DropAlarm,
            TestAlarm,
            SilenceAlarm,
            AskAlarmBook,
            Kick,
        )
    }
)
ANSWERS.update({cls.kind: cls for cls in (PageListed, Pulsed, Stored, Alarms, AlarmBook)})
