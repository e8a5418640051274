"""The table of requests: handler, permission, scope, audit and filter of each.

A new request is a struct in `protocol/` and a row here. A handler takes the broker, the request and the session.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from towline.broker.access import accounts, permissions
from towline.broker.access.permissions import Permission, anyone, cluster, group, topic
from towline.broker.access.rules import Need
from towline.broker.answer_budget import ANSWER_BYTES, LISTS, LOOKUPS
from towline.broker.cluster.routing import HERE, HERE_OR_TOPIC, SUBSCRIPTION, TOPIC, Scope, whole
from towline.broker.server.connection import Buffers
from towline.broker.server.session import Session
from towline.errors import BadRequest, NotFound, TowlineError, Unavailable
from towline.protocol import access, backup, monitor, publications, scan
from towline.protocol import cluster as clusters
from towline.protocol import messages as m
from towline.protocol import transactions as tx
from towline.protocol.envelope import split_attachments
from towline.protocol.groups import Pause, Seek
from towline.protocol.topics import EditTopic, Purge, ShardCount, Sharded

if TYPE_CHECKING:
    from towline.broker.broker import Broker

__all__ = ["TABLE", "AnyRow", "AtOnce", "Framed", "Later", "Own", "Row"]

Handler = Callable[[Any, Any, Session], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Permission):
    scope: Scope = TOPIC
    makes_topics: bool = False
    """A missing topic is made for it."""
    has_frames: bool = False
    """Frames follow it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Own(Row):
    """The session sees to it."""

    begin: Callable[[Session, Any, int, Any, memoryview], None] = field(kw_only=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOnce(Row):
    """Answered at once, without waiting."""

    handler: Handler = field(kw_only=False)

    def begin(self, session: Session, broker: Any, number: int, request: Any, frames: memoryview) -> None:
        answer = self.handler(broker, request, session)
        session.answer(number, answer if session.guard is None else session.guard.filter(request, answer))


@dataclass(frozen=True, slots=True, kw_only=True)
class Framed(Row):
    """Answered when its frames are stored; the handler takes them as well."""

    handler: Callable[[Any, Any, Session, memoryview], Coroutine[Any, Any, m.Answer]] = field(kw_only=False)
    has_frames: bool = True

    def begin(self, session: Session, broker: Any, number: int, request: Any, frames: memoryview) -> None:
        session.expect(number, len(frames), self.handler(broker, request, session, frames))


@dataclass(frozen=True, slots=True, kw_only=True)
class Later(Row):
    """Answered when the handler returns: an answer, an answer with the frames behind it, or None for `Done`."""

    handler: Handler = field(kw_only=False)
    reads: int | None = None
    """LISTS or LOOKUPS, for requests that only read: they wait until the budget has room for their answer."""

    def begin(self, session: Session, broker: Any, number: int, request: Any, frames: memoryview) -> None:
        session.start(self._run(session, broker, number, request))

    async def _run(self, session: Session, broker: Any, number: int, request: Any) -> None:
        outcome = "done"
        try:
            carry_out = self._carry_out if self.reads is None else self._read
            answer, buffers = await carry_out(session, broker, request)
            session.answer(number, answer, buffers, more=session.running > 1)
        except Exception as error:
            outcome = error.code if isinstance(error, TowlineError) else TowlineError.code
            session.fail(number, error, request.kind)
        if self.audited and not getattr(request, "dry_run", False):
            session.note(type(request).__name__, self.target(request), outcome)

    async def _carry_out(self, session: Session, broker: Any, request: Any) -> tuple[m.Answer, Buffers]:
        guard = session.guard
        done = await self.handler(broker, request, session)
        answer, buffers = done if isinstance(done, tuple) else (done or m.Done(), ())
        return answer if guard is None else guard.filter(request, answer), buffers

    async def _read(self, session: Session, broker: Any, request: Any) -> tuple[m.Answer, Buffers]:
        """Carry it out once the budget has room for the answer."""
        assert self.reads is not None, "it reads"
        share, size = session.share, request.max_bytes if self.reads == LOOKUPS else ANSWER_BYTES
        room = share.set_aside(size, self.reads) or await share.wait(size, self.reads)
        if self.reads == LOOKUPS:
            request = replace(request, max_bytes=min(room, size))
        kept = 0
        try:
            answer, buffers = await self._carry_out(session, broker, request)
            kept = sum(map(len, buffers))
            return answer, buffers
        finally:
            share.read(room, kept, self.reads)
            share.free(kept)  # it is written in this very moment, and counts as unread then


AnyRow = Own | AtOnce | Framed | Later


# Handlers and targets of more than a line


def _prepare(
    broker: Broker, request: tx.Prepare, session: Session, frames: memoryview
) -> Coroutine[Any, Any, m.Answer]:
    return broker.transactions.prepare(request, _cut(broker, request, frames), **session.sender)


def _stage(
    broker: Broker, request: publications.Stage, session: Session, frames: memoryview
) -> Coroutine[Any, Any, m.Answer]:
    return broker.staging.stage(request, _cut(broker, request, frames), **session.sender)


def _cut(broker: Broker, request: tx.Prepare | publications.Stage, frames: memoryview) -> list[memoryview]:
    broker.topics.expect_all(request.frames)
    return split_attachments(frames, [head.length for head in request.frames])


def _hello(broker: Broker, request: m.Hello, session: Session) -> m.Answer:
    raise BadRequest("Hello was said already")


def _meet(broker: Broker, request: clusters.Meet, session: Session) -> m.Answer:
    broker.registry.heard(request.me)
    broker.registry.told(request.known)
    me, *known = broker.registry.states()
    if broker.registry.shared:
        return clusters.Met(me, known)
    return clusters.Met(me, known, broker.outlook.alarms.digest, broker.homes.backlog_for(request.me.id))


async def _forget(broker: Broker, request: clusters.ForgetBroker, session: Session) -> None:
    broker.registry.forget(request.id)


async def _close_connection(broker: Broker, request: clusters.CloseConnection, session: Session) -> None:
    """Its running requests are still answered, within `LINGER_S`."""
    found = [one for one in session.server.connections if one.peer.address == request.address]
    if not found:
        raise NotFound(f"nobody is connected to this broker from {request.address}")
    for one in found:
        one.end(Unavailable(f"{session.name or 'an administrator'} has closed this connection"))


async def _list_brokers(broker: Broker, request: clusters.ListBrokers, session: Session) -> m.Answer:
    """One such request of a connection may wait for news; others are answered at once meanwhile."""
    if session.waits_for_news or not request.wait_ms:
        return await broker.brokers(replace(request, wait_ms=0))
    session.waits_for_news = True
    try:
        return await broker.brokers(request)
    finally:
        session.waits_for_news = False


async def _topics(broker: Broker, request: m.ListTopics, session: Session) -> m.Answer:
    return m.Topics(await broker.topic_states())


async def _groups(broker: Broker, request: m.ListGroups, session: Session) -> m.Answer:
    return m.Groups(await broker.group_states(request.topic))


async def _stat(broker: Broker, request: m.Stat, session: Session) -> m.Answer:
    return m.Stated(await broker.stat())


def _listed(way: accounts.Way) -> Callable[..., Awaitable[m.Answer]]:
    return lambda _, request, session: accounts.read(way, session.access, session.guard, request)


def _changed(way: accounts.Way) -> Callable[..., Awaitable[m.Answer]]:
    return lambda _, request, session: accounts.change(way, session.access, session.guard, request)


def _consume(request: publications.Report, context: permissions.Context) -> Sequence[Need]:
    return (("consume", "topic", request.topic), ("consume", "group", request.group))


def _rule(request: access.AddRule) -> str:
    rule = request.rule
    return f"{rule.effect} {rule.subject} {rule.action} {rule.resource} {rule.name}"


def _silence(request: monitor.SilenceAlarm) -> str:
    if not request.until_us:
        return _alarm(request)
    until = datetime.fromtimestamp(request.until_us // 1_000_000, UTC).isoformat()
    return f"alarm {request.name} until {until}: {request.reason}"


def _alarm(request: monitor.DropAlarm | monitor.TestAlarm | monitor.SilenceAlarm) -> str:
    return f"alarm {request.name}"


def _user(request: access.PutUser | access.DeleteUser) -> str:
    return f"user {request.name}"


def _token(request: access.CreateToken | access.RevokeToken) -> str:
    return f"token {request.name}"


_SINK: Final = whole("a sink for any topic needs", topic=True)

TABLE: Final[dict[type[m.Request], AnyRow]] = {
    # The connection
    m.Hello: AtOnce(_hello, needs=anyone),
    m.Beat: AtOnce(lambda _, request, session: session.held(request) or m.Done(), needs=anyone, scope=SUBSCRIPTION),
    access.WhoAmI: Later(lambda _, request, session: accounts.who(session.access, session.guard, request, session.name),
        needs=anyone, scope=HERE),
    # Sending
    m.Send: Own(Session.send, needs=permissions.send, makes_topics=True, has_frames=True),
    tx.Prepare: Framed(_prepare, needs=permissions.send, scope=whole("prepared transactions need"), makes_topics=True),
    tx.Decide: Later(lambda broker, request, session: broker.transactions.decide(request, token=session.token),
        needs=permissions.decide),
    tx.AwaitChecks: Own(Session.await_checks, needs=anyone),
    tx.ListTransactions: Later(lambda broker, request, session: broker.transactions.told(request, session.sight()),
        needs=cluster("describe"), reads=LISTS),
    tx.Resolve: Later(lambda broker, request, _: broker.transactions.resolve(request), needs=cluster("alter"),
        audited=True),
    publications.Stage: Framed(_stage, needs=permissions.send, makes_topics=True),
    publications.Publish: Later(lambda broker, request, session: broker.staging.publish(request, token=session.token),
        needs=permissions.sink, scope=_SINK),  # what its own token has staged, for which it was allowed to send
    publications.Unstage: Later(lambda broker, request, session: broker.staging.unstage(request, token=session.token),
        needs=anyone, scope=_SINK),  # what its own token has staged
    publications.AskSink: AtOnce(lambda broker, request, _: broker.staging.sink(request), needs=permissions.sink,
        scope=_SINK),
    # Consuming
    m.Attach: Later(lambda broker, request, session: session.attach(broker, request), needs=permissions.attach,
        makes_topics=True),
    m.Pull: Own(Session.pull, needs=permissions.subscribed, scope=SUBSCRIPTION),
    m.Settle: Later(lambda broker, request, session: broker.consumers.settle(session.subscribed(request), request.acts),
        needs=permissions.subscribed, scope=SUBSCRIPTION),
    m.Detach: Later(lambda _, request, session: session.detach(request), needs=anyone, scope=SUBSCRIPTION),
    clusters.HandBack: Framed(
        lambda broker, request, session, frame: broker.hand_back(request, frame, token=session.token),
        needs=permissions.attach, makes_topics=True),
    publications.Report: Later(lambda broker, request, _: broker.groups.report(request), needs=_consume),
    publications.MoveHold: Later(lambda broker, request, _: broker.holds.move(request.name, request.positions),
        needs=cluster("alter"), scope=whole("a hold on retention needs")),  # it lets retention drop what it held
    # Topics
    m.CreateTopic: Later(lambda broker, request, _: broker.topics.create(request.config),
        needs=permissions.create_topic, audited=True),
    m.ListTopics: Later(_topics, needs=anyone, scope=HERE, filter=permissions.topics_seen, reads=LISTS),
    m.TopicInfo: AtOnce(lambda broker, request, _: broker.topic_state(request.topic), needs=topic("describe"),
        filter=permissions.topic_seen),
    m.PutTopic: Later(lambda broker, request, _: broker.put_topic(request), needs=permissions.put_topic,
        scope=HERE_OR_TOPIC, audited=True),
    m.Template: AtOnce(lambda broker, _, __: broker.template(), needs=cluster("describe"), scope=HERE),
    EditTopic: Later(lambda broker, request, _: broker.topics.edit(request), needs=topic("alter"), audited=True),
    ShardCount: AtOnce(
        lambda broker, request, _: Sharded(broker.topics.shard_count(request.topic), request.topic in broker.topics),
        needs=topic("describe")),
    Purge: Later(lambda broker, request, _: broker.purge(request), needs=permissions.unless_dry("delete"),
        audited=True, filter=permissions.purged_seen),
    m.DeleteTopic: Later(lambda broker, request, _: broker.delete_topic(request.topic), needs=topic("delete"),
        audited=True),
    # Groups
    m.PutGroup: Later(lambda broker, request, _: broker.groups.put(request.config), needs=permissions.put_group,
        audited=True),
    m.ListGroups: Later(_groups, needs=permissions.groups_of, scope=HERE_OR_TOPIC, filter=permissions.groups_seen,
        reads=LISTS),
    m.GroupInfo: AtOnce(lambda broker, request, _: broker.group_state(request.topic, request.group),
        needs=group("describe")),
    Pause: Later(lambda broker, request, _: broker.groups.pause(request), needs=group("alter"), audited=True),
    Seek: Later(lambda broker, request, _: broker.groups.seek(request), needs=permissions.seek, audited=True),
    monitor.Kick: Later(
        lambda broker, request, _: broker.consumers.kick(request.topic, request.group, request.consumer),
        needs=group("alter"), audited=True),
    m.DeleteGroup: Later(lambda broker, request, _: broker.groups.delete(request.topic, request.group),
        needs=group("delete"), audited=True),
    # Dead letters
    m.Resend: Later(lambda broker, request, _: broker.dead_letters.resend(request), needs=group("alter"), audited=True),
    m.ReviseDead: Later(lambda broker, request, _: broker.dead_letters.revise(request), needs=permissions.revise,
        audited=True),
    m.PurgeDead: Later(lambda broker, request, _: broker.dead_letters.purge(request), needs=group("delete"),
        audited=True),
    # Delayed messages
    m.ListDelayed: Later(lambda broker, request, session: broker.delayed.list(request, session.sight()),
        needs=permissions.delayed, scope=HERE_OR_TOPIC, filter=permissions.keys_seen, reads=LISTS),
    m.CancelDelayed: Later(lambda broker, request, _: broker.delayed.cancel(request), needs=permissions.undelay,
        audited=True),
    m.MoveDelayed: Later(lambda broker, request, _: broker.delayed.move(request), needs=permissions.undelay,
        audited=True),
    # Looking around
    m.Browse: Later(lambda broker, request, _: broker.browsing.browse(request), needs=permissions.browse,
        reads=LOOKUPS),
    m.Find: Later(lambda broker, request, _: broker.browsing.find(request), needs=topic("consume"), reads=LOOKUPS),
    m.Locate: Later(lambda broker, request, _: broker.browsing.locate(request), needs=topic("describe")),
    m.Trace: Later(lambda broker, request, _: broker.browsing.trace(request), needs=group("describe"), reads=LISTS),
    scan.Scan: Later(lambda broker, request, _: broker.scanning.scan(request), needs=permissions.stream("consume"),
        reads=LOOKUPS),
    scan.Survey: Later(lambda broker, request, session: broker.scanning.survey(request, session.sight()),
        needs=permissions.survey, scope=HERE_OR_TOPIC, reads=LISTS),
    scan.LocateIn: Later(lambda broker, request, _: broker.scanning.locate_in(request),
        needs=permissions.stream("describe")),
    # Monitoring
    m.Stat: Later(_stat, needs=cluster("describe"), scope=HERE, reads=LISTS),
    access.Measure: Later(lambda broker, request, _: broker.measure(request),
        needs=permissions.topic_or_cluster("describe"), scope=HERE_OR_TOPIC, filter=permissions.figures_seen,
        reads=LISTS),
    monitor.ListPage: Later(lambda broker, request, session: broker.outlook.surveyor.survey(request, session.sight()),
        needs=permissions.page, scope=HERE_OR_TOPIC, reads=LISTS),
    monitor.Pulse: Later(lambda broker, request, _: broker.outlook.surveyor.pulse(request, broker.stat),
        needs=permissions.pulse, scope=HERE_OR_TOPIC, reads=LISTS),
    monitor.Storage: Later(lambda broker, _, __: broker.outlook.storage(), needs=cluster("describe"), scope=HERE,
        reads=LISTS),
    monitor.ListAlarms: Later(lambda broker, _, session: broker.outlook.alarms.told(session.sight()),
        needs=cluster("describe"), scope=HERE, reads=LISTS),
    monitor.PutAlarm: Later(lambda broker, request, session: broker.outlook.alarms.put(request.rule, session.sight()),
        needs=cluster("alter"), scope=HERE, audited=True, target=lambda request: f"alarm {request.rule.name}"),
    monitor.DropAlarm: Later(lambda broker, request, session: broker.outlook.alarms.drop(request.name, session.sight()),
        needs=cluster("alter"), scope=HERE, audited=True, target=_alarm),
    monitor.SilenceAlarm: Later(
        lambda broker, request, session: broker.outlook.alarms.silence(
            request.name, request.until_us, request.reason, session.sight()
        ),
        needs=cluster("alter"),
        scope=HERE,
        audited=True,
        target=_silence,
    ),
    monitor.TestAlarm: Later(lambda broker, request, session: broker.outlook.alarms.test(request.name, session.sight()),
        needs=cluster("alter"), scope=HERE, audited=True, target=_alarm),
    monitor.AskAlarmBook: AtOnce(lambda broker, request, _: broker.outlook.alarms.told_to_others(request),
        needs=cluster("admin"), scope=HERE),  # it shows webhooks whole
    # The cluster
    clusters.Meet: AtOnce(_meet, needs=cluster("admin"), scope=HERE),
    clusters.ListBrokers: Later(_list_brokers, needs=anyone, scope=HERE, filter=permissions.brokers_seen),
    clusters.ForgetBroker: Later(_forget, needs=cluster("admin"), scope=HERE, audited=True,
        target=lambda request: f"broker {request.id}"),
    clusters.ListClients: AtOnce(lambda broker, request, _: clusters.Clients(broker.registry.clients(request)),
        needs=permissions.clients, scope=HERE, filter=permissions.consumers_seen),
    clusters.CloseConnection: Later(_close_connection, needs=cluster("admin"), scope=HERE, audited=True,
        target=lambda request: f"connection {request.address}"),
    backup.BeginBackup: Later(lambda broker, _, __: broker.begin_backup(), needs=cluster("admin"), scope=HERE,
        audited=True),
    backup.HoldBackup: Later(lambda broker, request, _: broker.backups.hold(request), needs=cluster("admin"),
        scope=HERE),
    # Access
    access.ListUsers: Later(_listed(accounts.list_users), needs=cluster("admin"), scope=HERE, reads=LISTS),
    # one's own password; all else asks for admin, see `accounts`
    access.PutUser: Later(lambda _, request, session: accounts.put_user(session.access, session.guard, request),
        needs=anyone, scope=HERE, audited=True, target=_user),
    access.DeleteUser: Later(_changed(accounts.delete_user), needs=cluster("admin"), scope=HERE, audited=True,
        target=_user),
    access.ListTokens: Later(_listed(accounts.list_tokens), needs=anyone, scope=HERE, reads=LISTS),  # one's own
    # of one's own user
    access.CreateToken: Later(_changed(accounts.create_token), needs=anyone, scope=HERE, audited=True, target=_token),
    # of one's own user
    access.RevokeToken: Later(_changed(accounts.revoke_token), needs=anyone, scope=HERE, audited=True, target=_token),
    access.ListRules: Later(_listed(accounts.list_rules), needs=cluster("admin"), scope=HERE, reads=LISTS),
    access.AddRule: Later(_changed(accounts.add_rule), needs=cluster("admin"), scope=HERE, audited=True, target=_rule),
    access.DropRule: Later(_changed(accounts.drop_rule), needs=cluster("admin"), scope=HERE, audited=True,
        target=lambda request: f"rule {request.id}"),
    access.ListAudit: Later(_listed(accounts.list_audit), needs=cluster("admin"), scope=HERE, reads=LISTS),
}  # fmt: skip
