"""The table of requests: the method of the broker that carries out each. The permissions are in `permissions`.

Requests that belong to a consumer on a connection (attach, pull, settle, detach) and `Send` are the session's own,
and so are those of prepared transactions that depend on who asks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from towline.broker.access.accounts import READING
from towline.broker.access.authorization import Guard
from towline.broker.access.rules import May
from towline.broker.broker import Broker
from towline.protocol.access import Measure
from towline.protocol.backup import BeginBackup, HoldBackup
from towline.protocol.cluster import Clients, ForgetBroker, ListBrokers, ListClients, Meet, Met
from towline.protocol.groups import Pause, Seek
from towline.protocol.messages import (
    Answer,
    Beat,
    Browse,
    CancelDelayed,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    Done,
    Find,
    GroupInfo,
    Groups,
    ListDelayed,
    ListGroups,
    ListTopics,
    Locate,
    MoveDelayed,
    PurgeDead,
    PutGroup,
    PutTopic,
    Request,
    Resend,
    ReviseDead,
    Stat,
    Stated,
    Template,
    TopicInfo,
    Topics,
    Trace,
)
from towline.protocol.monitor import (
    AskAlarmBook,
    DropAlarm,
    Kick,
    ListAlarms,
    ListPage,
    Pulse,
    PutAlarm,
    SilenceAlarm,
    Storage,
    TestAlarm,
)
from towline.protocol.publications import AskSink, MoveHold, Report
from towline.protocol.scan import LocateIn, Scan, Survey
from towline.protocol.topics import EditTopic, Purge, ShardCount, Sharded
from towline.protocol.transactions import ListTransactions, Resolve

__all__ = ["LATER", "NOW", "READS", "SEEN", "Buffers", "later"]

Buffers = Sequence[bytes | memoryview]


def _meet(broker: Broker, request: Meet) -> Answer:
    broker.registry.heard(request.me)
    broker.registry.told(request.known)
    me, *known = broker.registry.states()
    if broker.registry.shared:
        return Met(me, known)
    return Met(me, known, broker.outlook.alarms.digest, broker.homes.backlog_for(request.me.id))


NOW: dict[int, Callable[[Broker, Any], Answer]] = {
    Beat.kind: lambda broker, request: Done(),
    TopicInfo.kind: lambda broker, request: broker.topic_state(request.topic),
    GroupInfo.kind: lambda broker, request: broker.group_state(request.topic, request.group),
    Template.kind: lambda broker, request: broker.template(),
    ShardCount.kind: lambda broker, request: Sharded(broker.shard_count(request.topic), request.topic in broker.topics),
    Meet.kind: _meet,
    ListClients.kind: lambda broker, request: Clients(broker.registry.clients(request)),
    AskAlarmBook.kind: lambda broker, request: broker.outlook.alarms.told_to_others(request),
    AskSink.kind: lambda broker, request: broker.staging.sink(request),
}
"""Answered at once, without waiting for anything. The audit log tells of none of them."""


async def _simply(work: Awaitable[None]) -> Answer:
    await work
    return Done()


async def _done(work: Awaitable[None]) -> tuple[Answer, Buffers]:
    await work
    return Done(), ()


async def _plain(work: Awaitable[Answer]) -> tuple[Answer, Buffers]:
    return await work, ()


async def _with_frames(work: Awaitable[tuple[Answer, Buffers]]) -> tuple[Answer, Buffers]:
    return await work


async def _forget(broker: Broker, request: ForgetBroker) -> tuple[Answer, Buffers]:
    broker.registry.forget(request.id)
    return Done(), ()


async def _topics(broker: Broker) -> tuple[Answer, Buffers]:
    return Topics(await broker.topic_states()), ()


async def _groups(broker: Broker, request: ListGroups) -> tuple[Answer, Buffers]:
    return Groups(await broker.group_states(request.topic)), ()


async def _stat(broker: Broker) -> tuple[Answer, Buffers]:
    return Stated(await broker.stat()), ()


LATER: dict[int, Callable[[Broker, Any], Awaitable[tuple[Answer, Buffers]]]] = {
    ForgetBroker.kind: _forget,
    ListBrokers.kind: lambda broker, request: _plain(broker.brokers(request)),
    ListTopics.kind: lambda broker, request: _topics(broker),
    ListGroups.kind: _groups,
    Stat.kind: lambda broker, request: _stat(broker),
    CreateTopic.kind: lambda broker, request: _done(broker.create_topic(request.config)),
    DeleteTopic.kind: lambda broker, request: _done(broker.delete_topic(request.topic)),
    PutGroup.kind: lambda broker, request: _done(broker.put_group(request.config)),
    DeleteGroup.kind: lambda broker, request: _done(broker.delete_group(request.topic, request.group)),
    Browse.kind: lambda broker, request: _with_frames(broker.browse(request)),
    Resend.kind: lambda broker, request: _plain(broker.resend(request)),
    Locate.kind: lambda broker, request: _plain(broker.locate(request)),
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
    Report.kind: lambda broker, request: _done(broker.report(request)),
    MoveHold.kind: lambda broker, request: _done(broker.holds.move(request.name, request.positions)),
    Scan.kind: lambda broker, request: _with_frames(broker.scanning.scan(request)),
    LocateIn.kind: lambda broker, request: _plain(broker.scanning.locate_in(request)),
    Measure.kind: lambda broker, request: _plain(broker.measure(request)),
    Pulse.kind: lambda broker, request: _plain(broker.outlook.surveyor.pulse(request, broker.stat)),
    Storage.kind: lambda broker, request: _plain(broker.outlook.storage()),
    Kick.kind: lambda broker, request: _done(broker.kick(request.topic, request.group, request.consumer)),
    BeginBackup.kind: lambda broker, request: _plain(broker.begin_backup()),
    HoldBackup.kind: lambda broker, request: _plain(broker.backups.hold(request)),
}
"""Answered when the work is done, with the frames that go behind the answer."""


SEEN: dict[int, Callable[[Broker, Any, May | None], Awaitable[Answer]]] = {
    Survey.kind: lambda broker, request, may: broker.scanning.survey(request, may),
    ListPage.kind: lambda broker, request, may: broker.outlook.surveyor.survey(request, may),
    ListDelayed.kind: lambda broker, request, may: broker.delayed(request, may),
    ListTransactions.kind: lambda broker, request, may: broker.transactions.told(request, may),
    ListAlarms.kind: lambda broker, request, may: broker.outlook.alarms.told(may),
    PutAlarm.kind: lambda broker, request, may: _simply(broker.outlook.alarms.put(request.rule, may)),
    DropAlarm.kind: lambda broker, request, may: _simply(broker.outlook.alarms.drop(request.name, may)),
    SilenceAlarm.kind: lambda broker, request, may: _simply(
        broker.outlook.alarms.silence(request.name, request.until_us, request.reason, may)
    ),
    TestAlarm.kind: lambda broker, request, may: _simply(broker.outlook.alarms.test(request.name, may)),
}
"""Lists that end somewhere, and sums: of what there is, those who ask get to see what they may describe. Alarm rules
are made for that as well."""


READS = frozenset(
    {
        Browse.kind,
        Find.kind,
        Scan.kind,
        Survey.kind,
        ListPage.kind,
        Measure.kind,
        Pulse.kind,
        Trace.kind,
        ListDelayed.kind,
        ListTransactions.kind,
        Storage.kind,
        ListAlarms.kind,
        ListTopics.kind,
        ListGroups.kind,
        Stat.kind,
        *READING,
    }
)
"""Of all these, and of those about accounts, the ones that only read and may have long answers."""


async def later(broker: Broker, request: Request, guard: Guard | None) -> tuple[Answer, Buffers]:
    """The answer, when the work is done, and the frames that go behind it."""
    buffers: Buffers = ()
    if request.kind in SEEN:
        answer = await SEEN[request.kind](broker, request, guard.sight() if guard is not None else None)
    else:
        answer, buffers = await LATER[request.kind](broker, request)
    return answer if guard is None else guard.filter(request.kind, answer), buffers
