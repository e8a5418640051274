"""All requests and answers of the wire protocol; each noun has a file of its own.

Heads are MessagePack arrays: a field may be added at the end with a default, and older peers skip it; `versions` lists
since when each field exists. Frames travel behind the head as opaque attachments; the head states their lengths. An
answer has the kind of its request plus 128; `Failed` answers any request that went wrong.
"""

from __future__ import annotations

from towline.protocol.base import Answer, Request
from towline.protocol.browse import (
    Browse,
    Browsed,
    Find,
    Found,
    Locate,
    Located,
    Stat,
    Stated,
    Trace,
    TraceCursor,
    Traced,
    TraceStep,
)
from towline.protocol.consume import (
    Act,
    Attach,
    Attached,
    Detach,
    Held,
    Lost,
    Part,
    Place,
    Places,
    Pull,
    Pulled,
    Settle,
    Settled,
)
from towline.protocol.dead_letters import DeadPurged, PurgeDead, Resend, Resent, Revised, ReviseDead
from towline.protocol.delayed import (
    Arrived,
    CancelDelayed,
    Delayed,
    DelayedCancelled,
    DelayedMessage,
    DelayedMoved,
    ListDelayed,
    MoveDelayed,
)
from towline.protocol.groups import DeleteGroup, GroupInfo, Groups, GroupState, ListGroups, MemberState, PutGroup
from towline.protocol.hello import Beat, Done, Failed, Hello, Welcome
from towline.protocol.send import FrameHead, Send, Sent
from towline.protocol.topics import (
    CreateTopic,
    DeleteTopic,
    LaneState,
    ListTopics,
    PutTopic,
    Template,
    Templated,
    TopicInfo,
    Topics,
    TopicState,
)

__all__ = [
    "ANSWERS",
    "REQUESTS",
    "VERSION",
    "VERSION_MIN",
    "Act",
    "Answer",
    "Arrived",
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
    "Held",
    "Hello",
    "LaneState",
    "ListDelayed",
    "ListGroups",
    "ListTopics",
    "Locate",
    "Located",
    "Lost",
    "MemberState",
    "MoveDelayed",
    "Part",
    "Place",
    "Places",
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

VERSION = 2
VERSION_MIN = 1
"""Peers of versions before are turned away."""

REQUESTS: dict[int, type[Request]] = {cls.kind: cls for cls in Request.__subclasses__()}
ANSWERS: dict[int, type[Answer]] = {cls.kind: cls for cls in Answer.__subclasses__()}
