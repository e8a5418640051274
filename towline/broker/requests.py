"""Which request needs which permission, and which method of the broker carries it out.

Requests that belong to a consumer on a connection (attach, pull, settle, detach) and `Send` are the session's own,
and so are those of prepared transactions that depend on who asks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from towline.broker.broker import Broker
from towline.broker.scanning import resources_of_prefix, resources_of_stream
from towline.protocol.messages import (
    Answer,
    Attach,
    Beat,
    Browse,
    CancelDelayed,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    Detach,
    Done,
    Find,
    GroupInfo,
    Groups,
    Hello,
    ListDelayed,
    ListGroups,
    ListTopics,
    Locate,
    MoveDelayed,
    Pull,
    PurgeDead,
    PutGroup,
    PutTopic,
    Resend,
    ReviseDead,
    Send,
    Settle,
    Stat,
    Stated,
    Template,
    TopicInfo,
    Topics,
    Trace,
)
from towline.protocol.ordering import EditTopic, Pause, Purge, Seek, ShardCount, Sharded
from towline.protocol.scanning import LocateIn, Scan, Survey
from towline.protocol.transactions import AwaitChecks, Decide, ListTransactions, Prepare, Resolve

__all__ = ["LATER", "NOW", "PERMISSIONS", "Buffers"]

Buffers = Sequence[bytes | memoryview]


def _topic(request: Any) -> Sequence[str]:
    return (request.topic,)


def _everything(request: Any) -> Sequence[str]:
    return ("*",)


def _nothing(request: Any) -> Sequence[str]:
    """What a consumer does on its subscription was permitted when it attached; what becomes of a transaction, when it
    was prepared, and only to its own token."""
    return ()


PERMISSIONS: dict[int, tuple[str, Callable[[Any], Sequence[str]]]] = {
    Hello.kind: ("connect", _nothing),
    Beat.kind: ("connect", _nothing),
    Send.kind: ("send", lambda request: [frame.topic for frame in request.frames]),
    Attach.kind: ("consume", _topic),
    Pull.kind: ("consume", _nothing),
    Settle.kind: ("consume", _nothing),
    Detach.kind: ("consume", _nothing),
    CreateTopic.kind: ("administer", lambda request: (request.config.name,)),
    ListTopics.kind: ("look", _everything),
    TopicInfo.kind: ("look", _topic),
    DeleteTopic.kind: ("administer", _topic),
    ListGroups.kind: ("look", lambda request: (request.topic or "*",)),
    GroupInfo.kind: ("look", _topic),
    PutGroup.kind: ("administer", lambda request: (request.config.topic,)),
    DeleteGroup.kind: ("administer", _topic),
    Browse.kind: ("look", _topic),
    Resend.kind: ("administer", _topic),
    Locate.kind: ("look", _topic),
    Stat.kind: ("look", _everything),
    ListDelayed.kind: ("look", lambda request: (request.topic or "*",)),
    CancelDelayed.kind: ("send", _topic),
    MoveDelayed.kind: ("send", _topic),
    Prepare.kind: ("send", lambda request: [frame.topic for frame in request.frames]),
    Decide.kind: ("send", _nothing),
    AwaitChecks.kind: ("send", _nothing),
    ListTransactions.kind: ("look", _everything),
    Resolve.kind: ("administer", _everything),
    PutTopic.kind: ("administer", lambda request: ("*" if request.template else request.config.name,)),
    Template.kind: ("look", _everything),
    Find.kind: ("look", _topic),
    ReviseDead.kind: ("administer", _topic),
    PurgeDead.kind: ("administer", _topic),
    Trace.kind: ("look", _topic),
    ShardCount.kind: ("send", _topic),
    Seek.kind: ("administer", _topic),
    Pause.kind: ("administer", _topic),
    Purge.kind: ("administer", _topic),
    EditTopic.kind: ("administer", _topic),
    Scan.kind: ("look", lambda request: resources_of_stream(request.stream)),
    Survey.kind: ("look", lambda request: resources_of_prefix(request.prefix)),
    LocateIn.kind: ("look", lambda request: resources_of_stream(request.stream)),
}
"""The action that a request is, and the resources it touches. A request without an entry is never carried out."""


NOW: dict[int, Callable[[Broker, Any], Answer]] = {
    Beat.kind: lambda broker, request: Done(),
    ListTopics.kind: lambda broker, request: Topics(broker.topic_states()),
    TopicInfo.kind: lambda broker, request: broker.topic_state(request.topic),
    ListGroups.kind: lambda broker, request: Groups(broker.group_states(request.topic)),
    GroupInfo.kind: lambda broker, request: broker.group_state(request.topic, request.group),
    Stat.kind: lambda broker, request: Stated(broker.figures()),
    ListTransactions.kind: lambda broker, request: broker.transactions.states(request),
    Template.kind: lambda broker, request: broker.template(),
    ShardCount.kind: lambda broker, request: Sharded(broker.shard_count(request.topic)),
    Survey.kind: lambda broker, request: broker.survey(request),
}
"""Answered at once, without waiting for anything."""


async def _done(work: Awaitable[None]) -> tuple[Answer, Buffers]:
    await work
    return Done(), ()


async def _plain(work: Awaitable[Answer]) -> tuple[Answer, Buffers]:
    return await work, ()


async def _with_frames(work: Awaitable[tuple[Answer, Buffers]]) -> tuple[Answer, Buffers]:
    return await work


LATER: dict[int, Callable[[Broker, Any], Awaitable[tuple[Answer, Buffers]]]] = {
    CreateTopic.kind: lambda broker, request: _done(broker.create_topic(request.config)),
    DeleteTopic.kind: lambda broker, request: _done(broker.delete_topic(request.topic)),
    PutGroup.kind: lambda broker, request: _done(broker.put_group(request.config)),
    DeleteGroup.kind: lambda broker, request: _done(broker.delete_group(request.topic, request.group)),
    Browse.kind: lambda broker, request: _with_frames(broker.browse(request)),
    Resend.kind: lambda broker, request: _plain(broker.resend(request)),
    Locate.kind: lambda broker, request: _plain(broker.locate(request)),
    ListDelayed.kind: lambda broker, request: _plain(broker.delayed(request)),
    CancelDelayed.kind: lambda broker, request: _plain(broker.cancel_delayed(request)),
    MoveDelayed.kind: lambda broker, request: _plain(broker.move_delayed(request)),
    Resolve.kind: lambda broker, request: _done(broker.transactions.resolve(request)),
    PutTopic.kind: lambda broker, request: _done(broker.put_topic(request)),
    ReviseDead.kind: lambda broker, request: _plain(broker.revise_dead(request)),
    PurgeDead.kind: lambda broker, request: _plain(broker.purge_dead(request)),
    Find.kind: lambda broker, request: _with_frames(broker.find(request)),
    Trace.kind: lambda broker, request: _plain(broker.trace(request)),
    Seek.kind: lambda broker, request: _plain(broker.seek(request)),
    Pause.kind: lambda broker, request: _done(broker.pause(request)),
    Purge.kind: lambda broker, request: _plain(broker.purge(request)),
    EditTopic.kind: lambda broker, request: _done(broker.edit_topic(request)),
    Scan.kind: lambda broker, request: _with_frames(broker.scan(request)),
    LocateIn.kind: lambda broker, request: _plain(broker.locate_in(request)),
}
"""Answered when the work is done, with the frames that go behind the answer."""
