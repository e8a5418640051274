"""Every request and answer of the wire protocol, version 1.

Heads are MessagePack arrays: a field may be added at the end with a default, and older peers pass over it. Frames
travel behind the head as opaque attachments; the head states their lengths. An answer has the kind of its request plus
128; `Failed` answers any request that went wrong.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from towline.model import GroupConfig, TopicConfig

__all__ = [
    "ANSWERS",
    "REQUESTS",
    "VERSION",
    "Act",
    "Answer",
    "Attach",
    "Attached",
    "Beat",
    "Browse",
    "Browsed",
    "CancelDelayed",
    "CreateTopic",
    "Delayed",
    "DelayedCancelled",
    "DelayedMessage",
    "DelayedMoved",
    "DeleteGroup",
    "DeleteTopic",
    "Detach",
    "Done",
    "Failed",
    "FrameHead",
    "GroupInfo",
    "GroupState",
    "Groups",
    "Hello",
    "LaneState",
    "ListDelayed",
    "ListGroups",
    "ListTopics",
    "Locate",
    "Located",
    "MemberState",
    "MoveDelayed",
    "Part",
    "Pull",
    "Pulled",
    "PutGroup",
    "Request",
    "Resend",
    "Resent",
    "Send",
    "Sent",
    "Settle",
    "Settled",
    "Stat",
    "Stated",
    "TopicInfo",
    "TopicState",
    "Topics",
    "Welcome",
]

VERSION = 1

_Name = Annotated[str, msgspec.Meta(max_length=100)]
_Text = Annotated[str, msgspec.Meta(max_length=8192)]
_Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Many = 10_000


class Request(msgspec.Struct, frozen=True, array_like=True):
    kind: ClassVar[int] = 0


class Answer(msgspec.Struct, frozen=True, array_like=True):
    kind: ClassVar[int] = 0


# Opening a connection


class Hello(Request, frozen=True, array_like=True):
    """The first request on every connection."""

    kind = 1
    version_min: int
    version_max: int
    token: Annotated[str, msgspec.Meta(max_length=64)]
    """Who is calling, as kept beside each message it sends: for example `appid-340101;sid-p0912`."""
    secret: Annotated[str, msgspec.Meta(max_length=512)] = ""
    """Proves who is calling, where the broker asks for it."""
    software: _Name = ""


class Welcome(Answer, frozen=True, array_like=True):
    kind = 129
    version: int
    broker: str
    epoch: int
    """Grows with every start of the broker: tells a client whether it met the same broker process again."""
    max_request_bytes: int
    heartbeat_s: float
    """A consumer that is not heard of for this long loses what it holds; beat three times as often."""


class Failed(Answer, frozen=True, array_like=True):
    kind = 255
    code: str
    message: str


class Done(Answer, frozen=True, array_like=True):
    """It was done, and there is nothing more to say."""

    kind = 254


class Beat(Request, frozen=True, array_like=True):
    """I am alive. Answered by `Done`."""

    kind = 2


# Sending


class FrameHead(msgspec.Struct, frozen=True, array_like=True):
    topic: _Name
    lane: Annotated[int, msgspec.Meta(ge=0, le=2)]
    length: _Natural


class Send(Request, frozen=True, array_like=True):
    """Append frames as one unit: all or none. The frames follow as attachments."""

    kind = 3
    frames: Annotated[list[FrameHead], msgspec.Meta(min_length=1, max_length=_Many)]
    durability: Annotated[int, msgspec.Meta(ge=-1, le=2)] = -1
    """0 received, 1 os, 2 fsync, -1 the broker's default."""


class Sent(Answer, frozen=True, array_like=True):
    """The sequence number of the first message of each frame. `duplicate`: it was here already, and was not stored
    twice."""

    kind = 131
    firsts: list[int]
    appended_at_us: int
    duplicate: bool = False
    delayed: list[int] = []
    """The places of the frames that wait for their time: `firsts` has the ids of their first messages."""


# Consuming


class Attach(Request, frozen=True, array_like=True):
    """Become a consumer of a group of a topic; or come back as one, keeping what was held."""

    kind = 4
    topic: _Name
    group: _Name
    """`~name` for a consumer without a group."""
    consumer: _Name
    config: GroupConfig | None = None
    """How the group is made if it does not exist yet."""
    holding: Annotated[list[int], msgspec.Meta(max_length=_Many)] = []
    """The pulls that the consumer is working on. Others that it had been given go back to the group."""


class Attached(Answer, frozen=True, array_like=True):
    kind = 132
    subscription: int
    """Names this consumer on this connection."""
    held: list[int]
    """The pulls that this consumer still holds."""
    config: GroupConfig


class Act(msgspec.Struct, frozen=True, array_like=True):
    """Settle messages of one pull."""

    what: Annotated[int, msgspec.Meta(ge=0, le=3)]
    """0 ack; 1 nack: try again later; 2 nack: straight to the dead letters; 3 give back untouched."""
    pull: _Natural
    spans: Annotated[list[tuple[int, int, int]], msgspec.Meta(max_length=_Many)] = []
    """(lane, first, count) of the messages; empty means all of the pull that are not settled yet."""
    up_to: bool = False
    """Also all older pulls of this consumer, whole (ack only)."""
    delay_s: Annotated[float, msgspec.Meta(ge=0, le=366 * 86400)] | None = None
    """When to try again, instead of the group's policy (1 only)."""
    reason: _Text = ""


class Pull(Request, frozen=True, array_like=True):
    """Ask for messages; `acts` are carried out first."""

    kind = 5
    subscription: _Natural
    max_messages: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=300_000)] = 0
    min_messages: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    acts: Annotated[list[Act], msgspec.Meta(max_length=_Many)] = []


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Messages `start` to `start + count` of the attached frame: `count` messages of a lane from `first` on."""

    lane: int
    first: int
    count: int
    start: int
    length: int
    attempt: int
    appended_at_us: int
    source: bytes


class Pulled(Answer, frozen=True, array_like=True):
    """`pull` is 0 and there are no parts when nothing came in time. `refused` answers the acts, as in `Settled`."""

    kind = 133
    pull: int
    parts: list[Part]
    refused: list[tuple[int, str, str]] = []


class Settle(Request, frozen=True, array_like=True):
    kind = 6
    subscription: _Natural
    acts: Annotated[list[Act], msgspec.Meta(min_length=1, max_length=_Many)]


class Settled(Answer, frozen=True, array_like=True):
    """Durable. `refused` lists the acts that were not carried out: (number of the act, error code, message)."""

    kind = 134
    refused: list[tuple[int, str, str]] = []


class Detach(Request, frozen=True, array_like=True):
    """Leave: what is still held is given back at once. Answered by `Done`."""

    kind = 7
    subscription: _Natural


# Looking and administering


class LaneState(msgspec.Struct, frozen=True, array_like=True):
    lane: str
    first: int
    end: int
    size_bytes: int


class TopicState(Answer, frozen=True, array_like=True):
    kind = 138
    config: TopicConfig
    lanes: list[LaneState]
    groups: list[str]
    delayed: int = 0
    """Messages that wait for their time."""


class CreateTopic(Request, frozen=True, array_like=True):
    """Answered by `Done`; `Failed` with `conflict` if it exists."""

    kind = 8
    config: TopicConfig


class ListTopics(Request, frozen=True, array_like=True):
    kind = 9


class Topics(Answer, frozen=True, array_like=True):
    kind = 137
    topics: list[TopicState]


class TopicInfo(Request, frozen=True, array_like=True):
    kind = 10
    topic: _Name


class DeleteTopic(Request, frozen=True, array_like=True):
    """Delete a topic with its messages, groups and dead letters. Answered by `Done`."""

    kind = 11
    topic: _Name


class MemberState(msgspec.Struct, frozen=True, array_like=True):
    consumer: str
    address: str
    in_flight: int
    waiting: bool
    last_seen_s: float


class GroupState(Answer, frozen=True, array_like=True):
    kind = 141
    config: GroupConfig
    positions: list[tuple[str, int, int]]
    """(lane, next sequence number to deliver, end of the lane)."""
    lag: int
    """Messages neither consumed nor dead: waiting, in flight and retrying."""
    in_flight: int
    retrying: int
    next_retry_at_us: int
    dying: int
    dead: int
    members: list[MemberState]


class ListGroups(Request, frozen=True, array_like=True):
    """The groups of a topic, or of all topics when it is empty."""

    kind = 12
    topic: _Name = ""


class Groups(Answer, frozen=True, array_like=True):
    kind = 140
    groups: list[GroupState]


class GroupInfo(Request, frozen=True, array_like=True):
    kind = 13
    topic: _Name
    group: _Name


class PutGroup(Request, frozen=True, array_like=True):
    """Make a group, or change its settings. Answered by `Done`."""

    kind = 14
    config: GroupConfig


class DeleteGroup(Request, frozen=True, array_like=True):
    """Forget a group, its progress and its dead letters. Answered by `Done`."""

    kind = 15
    topic: _Name
    group: _Name


class Browse(Request, frozen=True, array_like=True):
    """Read messages without consuming them: of a lane (`group` empty), or the dead letters of a group."""

    kind = 16
    topic: _Name
    lane: Annotated[int, msgspec.Meta(ge=0, le=2)] = 0
    group: _Name = ""
    first: _Natural = 0
    max_messages: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 100
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)] = 1 << 20


class Browsed(Answer, frozen=True, array_like=True):
    """What is there, what of it was re-sent already (dead letters only: (first, count) ranges), and where to go on."""

    kind = 144
    parts: list[Part]
    next: int
    first: int
    end: int
    settled: list[tuple[int, int]] = []


class Resend(Request, frozen=True, array_like=True):
    """Deliver dead letters to their group again: those numbered in `dead`, or all (the oldest `limit` of them)."""

    kind = 17
    topic: _Name
    group: _Name
    dead: Annotated[list[int], msgspec.Meta(max_length=_Many)] = []
    limit: Annotated[int, msgspec.Meta(ge=1, le=_Many)] = _Many


class Resent(Answer, frozen=True, array_like=True):
    kind = 145
    count: int
    left: int


class Locate(Request, frozen=True, array_like=True):
    """The sequence number of the first message of a lane that was appended at this time or later."""

    kind = 18
    topic: _Name
    lane: Annotated[int, msgspec.Meta(ge=0, le=2)]
    time_us: _Natural


class Located(Answer, frozen=True, array_like=True):
    kind = 146
    seq: int


class Stat(Request, frozen=True, array_like=True):
    kind = 19


class Stated(Answer, frozen=True, array_like=True):
    """Figures of the broker, by name."""

    kind = 147
    figures: dict[str, Any]


# Delayed messages


class DelayedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    id: int
    topic: str
    lane: int
    deliver_at_us: int
    produced_at_us: int
    key: str
    size_bytes: int


class ListDelayed(Request, frozen=True, array_like=True):
    """Messages that wait for their time, of a topic or (when it is empty) of all, soonest first: those behind the
    message `after_id` that is due at `after_us`."""

    kind = 20
    topic: _Name = ""
    after_us: _Natural = 0
    after_id: _Natural = 0
    max_messages: Annotated[int, msgspec.Meta(ge=1, le=_Many)] = 100


class Delayed(Answer, frozen=True, array_like=True):
    """`count` is how many wait in all."""

    kind = 148
    messages: list[DelayedMessage]
    count: int


class CancelDelayed(Request, frozen=True, array_like=True):
    """Messages of a topic, by their ids or with this key, are not to be delivered."""

    kind = 21
    topic: _Name
    ids: Annotated[list[_Natural], msgspec.Meta(max_length=_Many)] = []
    key: _Text = ""
    dry_run: bool = False


class DelayedCancelled(Answer, frozen=True, array_like=True):
    """Durable. `gone` lists the ids that do not wait any more: delivered, or cancelled before. `before` is how many the
    same request cancelled when it was carried out last, if that is remembered."""

    kind = 149
    count: int
    gone: list[int] = []
    before: int = 0


class MoveDelayed(Request, frozen=True, array_like=True):
    """Messages of a topic, by their ids or with this key, are to be delivered at another time."""

    kind = 22
    topic: _Name
    ids: Annotated[list[_Natural], msgspec.Meta(max_length=_Many)]
    key: _Text
    deliver_at_us: int
    """As in a frame's deliver-at column: a time, or a level or delay from now on."""
    dry_run: bool = False


class DelayedMoved(Answer, frozen=True, array_like=True):
    kind = 150
    count: int
    gone: list[int]
    deliver_at_us: int
    """When they are due now."""


REQUESTS: dict[int, type[Request]] = {cls.kind: cls for cls in Request.__subclasses__()}
ANSWERS: dict[int, type[Answer]] = {cls.kind: cls for cls in Answer.__subclasses__()}
