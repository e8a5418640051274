"""Every request and answer of the wire protocol, version 1.

Heads are MessagePack arrays: a field may be added at the end with a default, and older peers pass over it. Frames
travel behind the head as opaque attachments; the head states their lengths. An answer has the kind of its request plus
128; `Failed` answers any request that went wrong.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from towline.model import MAX_SHARDS, GroupConfig, TopicConfig

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
    "DeadPurged",
    "Delayed",
    "DelayedCancelled",
    "DelayedMessage",
    "DelayedMoved",
    "DeleteGroup",
    "DeleteTopic",
    "Detach",
    "Done",
    "Failed",
    "Find",
    "Found",
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
    "PurgeDead",
    "PutGroup",
    "PutTopic",
    "Request",
    "Resend",
    "Resent",
    "ReviseDead",
    "Revised",
    "Send",
    "Sent",
    "Settle",
    "Settled",
    "Stat",
    "Stated",
    "Template",
    "Templated",
    "TopicInfo",
    "TopicState",
    "Topics",
    "Trace",
    "TraceCursor",
    "TraceStep",
    "Traced",
    "Welcome",
]

VERSION = 1

_Name = Annotated[str, msgspec.Meta(max_length=100)]
_Text = Annotated[str, msgspec.Meta(max_length=8192)]
_Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Lane = Annotated[int, msgspec.Meta(ge=0, le=MAX_SHARDS - 1)]
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
    lane: _Lane
    """0 high, 1 middle, 2 low; of an ordered topic the shard."""
    length: _Natural
    shards: Annotated[int, msgspec.Meta(ge=0, le=MAX_SHARDS)] = 0
    """How many shards the sender takes the topic to have; refused with `wrong-shard` if it has another number."""


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
    repeats: list[tuple[int, int, int, int, int]] = []
    """Messages whose dedup id came before, and which were not stored again: (number of the frame, number of the message
    in it, lane, sequence number and time of the first one). The others are numbered on from `firsts`."""
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
    shards: int = 0
    """The shards of the topic, if it is an ordered one: lanes from there on are the group's own."""


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
    topic: str = ""
    """Of a subscription by prefix: where the messages are from, …"""
    shards: int = 0
    """… and how many shards that has."""


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
    lane: _Lane = 0
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
    lane: _Lane
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


class PutTopic(Request, frozen=True, array_like=True):
    """Change the settings of a topic, or with `template` those that topics made by themselves take over. Answered by
    `Done`."""

    kind = 50
    config: TopicConfig
    template: bool = False


class Template(Request, frozen=True, array_like=True):
    """What are the settings that topics made by themselves take over?"""

    kind = 51


class Templated(Answer, frozen=True, array_like=True):
    kind = 179
    config: TopicConfig


class Find(Request, frozen=True, array_like=True):
    """Messages of a lane from number `first` on: with this key (if one is given), appended at `since_us` or later and
    before `until_us` (if it is given)."""

    kind = 52
    topic: _Name
    lane: Annotated[int, msgspec.Meta(ge=0, le=2)]
    key: _Text = ""
    first: _Natural = 0
    since_us: _Natural = 0
    until_us: _Natural = 0
    max_messages: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 100
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)] = 1 << 20


class Found(Answer, frozen=True, array_like=True):
    """If `next` is before `end`, there may be more from there on."""

    kind = 180
    parts: list[Part]
    next: int
    end: int


class TraceCursor(msgspec.Struct, frozen=True, array_like=True):
    """How far a trace has come: the next event, copies of the message sent again as (lane, number), the message's dead
    letters, its last event, and whether nothing was missing so far."""

    at: _Natural
    copies: Annotated[list[tuple[Annotated[int, msgspec.Meta(ge=0, le=5)], _Natural]], msgspec.Meta(max_length=_Many)]
    dead: Annotated[list[_Natural], msgspec.Meta(max_length=_Many)]
    last: _Name
    whole: bool


class TraceStep(msgspec.Struct, frozen=True, array_like=True):
    """One event in the life of a message: pulled, acked, failed, gaveup, returned, released, buried, skipped, overrun,
    resent; or started: the group began behind it."""

    at_us: int
    what: str
    pull: int = 0
    consumer: str = ""
    attempt: int = 0
    reason: str = ""
    due_us: int = 0
    """When it is tried again, or when the pull is taken away; 0 is none."""
    dead: int = -1
    """The number of the dead letter that it became, or that was sent again."""
    copy: bool = False
    """It was the copy that was sent again, on the group's own lane."""


class Trace(Request, frozen=True, array_like=True):
    """What became of a message in a group. Asked again with the answer's cursor, as long as there is one. A trace ends
    with the ack, unless the `whole` pull log is to be read: a group that was set back may have consumed it again."""

    kind = 53
    topic: _Name
    group: _Name
    lane: Annotated[int, msgspec.Meta(ge=0, le=2)]
    seq: _Natural
    whole: bool = False
    cursor: TraceCursor | None = None


class Traced(Answer, frozen=True, array_like=True):
    """`status` is NEW, RUNNING, SUCCESS, FAIL, DEAD, GONE, or BEFORE (the group began behind it), as of now; it counts
    once there is no cursor. `whole` is false if events are missing because retention dropped them."""

    kind = 181
    status: str
    attempt: int
    due_us: int
    steps: list[TraceStep]
    whole: bool
    cursor: TraceCursor | None = None


class ReviseDead(Request, frozen=True, array_like=True):
    """Deliver one dead letter to its group again, changed: what is nil stays as it is; an empty key removes it. The
    letter itself is not changed. Answered by `Revised`."""

    kind = 55
    topic: _Name
    group: _Name
    number: _Natural
    body: bytes | None = None
    key: _Text | None = None
    headers: Annotated[dict[str, str], msgspec.Meta(max_length=_Many)] | None = None


class Revised(Answer, frozen=True, array_like=True):
    kind = 183
    count: int


class PurgeDead(Request, frozen=True, array_like=True):
    """Drop the dead letters before this number."""

    kind = 56
    topic: _Name
    group: _Name
    before: _Natural


class DeadPurged(Answer, frozen=True, array_like=True):
    kind = 184
    count: int


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
