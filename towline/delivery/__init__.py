"""Delivery: the states of messages within one group of one topic. Pure: no I/O, no clock, no randomness.

`Group.decide(command, now)` returns the events that a command causes, `Group.apply(event)` makes them true. The events
are the pull log; replaying them through the same `apply` is recovery. `states` holds the one table of transitions.

group/        pull, ack, nack, retry, leases, shards      schedule/        delayed messages
producers     frames that are sent again                  dedup            messages that are sent again
transactions  prepared, decided                           publications     epochs of sinks
catalog_changes   of topics and groups
"""

from towline.delivery.dedup import Dedup
from towline.delivery.group.commands import (
    Ack,
    Bury,
    Command,
    Expire,
    Forfeit,
    GiveBack,
    Lapse,
    Leave,
    Move,
    Nack,
    Pull,
    Resend,
    Skip,
    Start,
    Withdraw,
)
from towline.delivery.group.events import Event, Part, decode_event, encode_event
from towline.delivery.group.group import Group
from towline.delivery.group.lease import missing
from towline.delivery.group.snapshot import GroupSnapshot, mend, restore, snapshot
from towline.delivery.group.states import TRANSITIONS, State
from towline.delivery.producers import Producers

__all__ = [
    "TRANSITIONS",
    "Ack",
    "Bury",
    "Command",
    "Dedup",
    "Event",
    "Expire",
    "Forfeit",
    "GiveBack",
    "Group",
    "GroupSnapshot",
    "Lapse",
    "Leave",
    "Move",
    "Nack",
    "Part",
    "Producers",
    "Pull",
    "Resend",
    "Skip",
    "Start",
    "State",
    "Withdraw",
    "decode_event",
    "encode_event",
    "mend",
    "missing",
    "restore",
    "snapshot",
]
