"""The table of permissions: what each request does to what. A request without an entry is never carried out.

A new request is added here with one of the makers (`topic`, `group`, `cluster`, …), and to `AUDITED` if it changes
something that an administrator answers for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from msgspec.structs import replace

from towline.broker.access.rules import May, Need
from towline.model import is_pattern
from towline.protocol.access import (
    AddRule,
    CreateToken,
    DeleteUser,
    DropRule,
    ListAudit,
    ListRules,
    ListTokens,
    ListUsers,
    Measure,
    Measured,
    PutUser,
    RevokeToken,
    WhoAmI,
)
from towline.protocol.backup import BeginBackup, HoldBackup
from towline.protocol.cluster import Brokers, Clients, ForgetBroker, HandBack, ListBrokers, ListClients, Meet
from towline.protocol.groups import Pause, Seek
from towline.protocol.messages import (
    Answer,
    Attach,
    Beat,
    Browse,
    CancelDelayed,
    CreateTopic,
    Delayed,
    DeleteGroup,
    DeleteTopic,
    Detach,
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
    Template,
    TopicInfo,
    Topics,
    TopicState,
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
from towline.protocol.publications import AskSink, MoveHold, Publish, Report, Stage, Unstage
from towline.protocol.scan import LocateIn, Scan, Survey
from towline.protocol.topics import EditTopic, Purge, Purged, ShardCount
from towline.protocol.transactions import AwaitChecks, Decide, ListTransactions, Prepare, Resolve

__all__ = [
    "AUDITED",
    "FILTERS",
    "PERMISSIONS",
    "Context",
    "figures_seen",
    "resources_of_stream",
    "target_of",
    "topic_of_stream",
]


class Context(Protocol):
    """What the table must know of the connection and the broker."""

    def subscribed(self, subscription: int) -> tuple[str, str] | None:
        """The topic and group of a subscription."""

    def has_topic(self, name: str) -> bool: ...

    def has_group(self, topic: str, group: str) -> bool: ...

    def topics_of(self, transaction: str) -> Sequence[str]:
        """Where the messages of a prepared transaction of the caller go."""

    def may_have_sink(self, name: str) -> bool:
        """Whether it is the caller's, or nobody's yet."""


Needs = Callable[[Any, Context], Sequence[Need]]
CLUSTER: Final = ""


def anyone(request: Any, context: Context) -> Sequence[Need]:
    """Whoever was let in; what it gets to see is its own, or filtered."""
    return ()


def topic(action: str) -> Needs:
    return lambda request, context: ((action, "topic", request.topic),)


def group(action: str) -> Needs:
    """The group, which implies that its topic may be seen."""
    return lambda request, context: ((action, "group", request.group), ("describe", "topic", request.topic))


def cluster(action: str) -> Needs:
    return lambda request, context: ((action, "cluster", CLUSTER),)


def _send(request: Any, context: Context) -> Sequence[Need]:
    frames = request.frames
    if len(frames) == 1:
        name = frames[0].topic
        needs: Sequence[Need] = (("send", "topic", name),)
        return needs if context.has_topic(name) else (*needs, ("create", "topic", name))
    names = {frame.topic for frame in frames}
    return [
        *(("send", "topic", name) for name in names),
        *(("create", "topic", name) for name in names if not context.has_topic(name)),
    ]


def _attach(request: Attach | HandBack, context: Context) -> Sequence[Need]:
    needs: list[Need] = [("consume", "topic", request.topic), ("consume", "group", request.group)]
    if not context.has_topic(request.topic) and not is_pattern(request.topic):
        needs.append(("create", "topic", request.topic))
    return needs


def _subscribed(request: Any, context: Context) -> Sequence[Need]:
    found = context.subscribed(request.subscription)
    return () if found is None else (("consume", "topic", found[0]), ("consume", "group", found[1]))


def _browse(request: Browse, context: Context) -> Sequence[Need]:
    """Bodies are read: that is consuming, whether or not the messages are taken."""
    needs: Sequence[Need] = (("consume", "topic", request.topic),)
    return (*needs, ("consume", "group", request.group)) if request.group else needs


def _put_group(request: PutGroup, context: Context) -> Sequence[Need]:
    """Who may not even see it is told so first: else the word would tell whether it is there."""
    config = request.config
    action = "alter" if context.has_group(config.topic, config.name) else "create"
    seen: Need = ("describe", "group", config.name)
    return (seen, (action, "group", config.name), ("describe", "topic", config.topic))


def _put_topic(request: PutTopic, context: Context) -> Sequence[Need]:
    return (("alter", "cluster", CLUSTER),) if request.template else (("alter", "topic", request.config.name),)


def _decide(request: Decide, context: Context) -> Sequence[Need]:
    """Only its own token may, as the transaction itself sees to; and it must still be allowed to send."""
    return [("send", "topic", name) for name in context.topics_of(request.transaction)] if request.commit else ()


def _sink(request: Publish | AskSink, context: Context) -> Sequence[Need]:
    """A sink is its token's: an epoch that somebody else makes up would count as published."""
    return () if context.may_have_sink(request.sink) else (("alter", "cluster", CLUSTER),)


def _all_or_topic(action: str) -> Needs:
    return lambda request, context: (
        ((action, "topic", request.topic),) if request.topic else ((action, "cluster", CLUSTER),)
    )


def _delayed(request: ListDelayed, context: Context) -> Sequence[Need]:
    """To look for a key is to learn that it is there, as whoever reads the topic does."""
    return _all_or_topic("consume" if request.key else "describe")(request, context)


def _undelay(request: CancelDelayed | MoveDelayed, context: Context) -> Sequence[Need]:
    """Who sends may take back by key what was sent; to only ask whether the key is there is to look for it."""
    needs: Sequence[Need] = (("send", "topic", request.topic),)
    return (*needs, ("consume", "topic", request.topic)) if request.key and request.dry_run else needs


def _clients(request: ListClients, context: Context) -> Sequence[Need]:
    return (
        group("describe")(request, context)
        if request.topic and request.group
        else _all_or_topic("describe")(request, context)
    )


def _pulse(request: Pulse, context: Context) -> Sequence[Need]:
    return group("describe")(request, context) if request.topic else (("describe", "cluster", CLUSTER),)


def _unless_dry(action: str) -> Needs:
    return lambda request, context: (("describe" if request.dry_run else action, "topic", request.topic),)


def _seek(request: Seek, context: Context) -> Sequence[Need]:
    action = "describe" if request.dry_run else "alter"
    return ((action, "group", request.group), ("describe", "topic", request.topic))


def _revise(request: ReviseDead, context: Context) -> Sequence[Need]:
    """Others are given something else to consume than was sent."""
    return (("alter", "group", request.group), ("send", "topic", request.topic))


def _stream(action: str) -> Needs:
    """A stream of a topic, and of one of its groups if it is one's; any other holds what concerns everyone."""

    def needs(request: Any, context: Context) -> Sequence[Need]:
        found = resources_of_stream(request.stream)
        return [(action, *one) for one in found] if found else (("admin", "cluster", CLUSTER),)

    return needs


def _survey(request: Survey, context: Context) -> Sequence[Need]:
    """The streams of one topic; or of all, of which everyone is told what they may see."""
    return (("describe", "topic", request.prefix.split("/")[1]),) if request.prefix.count("/") >= 2 else ()


def _groups_of(request: ListGroups, context: Context) -> Sequence[Need]:
    """The groups of one topic; or all that there is, of which everyone is told what they may see."""
    return (("describe", "topic", request.topic),) if request.topic else ()


def _page(request: ListPage, context: Context) -> Sequence[Need]:
    """The same, by pages."""
    return (("describe", "topic", request.topic),) if request.topic and request.of == "groups" else ()


PERMISSIONS: dict[int, Needs] = {
    Hello.kind: anyone,
    Beat.kind: anyone,
    Send.kind: _send,
    Attach.kind: _attach,
    Pull.kind: _subscribed,
    Settle.kind: _subscribed,
    Detach.kind: anyone,
    CreateTopic.kind: lambda request, context: (("create", "topic", request.config.name),),
    ListTopics.kind: anyone,
    TopicInfo.kind: topic("describe"),
    DeleteTopic.kind: topic("delete"),
    ListGroups.kind: _groups_of,
    GroupInfo.kind: group("describe"),
    PutGroup.kind: _put_group,
    DeleteGroup.kind: group("delete"),
    Browse.kind: _browse,
    Resend.kind: group("alter"),
    Locate.kind: topic("describe"),
    Stat.kind: cluster("describe"),
    ListDelayed.kind: _delayed,
    CancelDelayed.kind: _undelay,
    MoveDelayed.kind: _undelay,
    Prepare.kind: _send,
    Decide.kind: _decide,
    AwaitChecks.kind: anyone,
    ListTransactions.kind: cluster("describe"),
    Resolve.kind: cluster("alter"),
    PutTopic.kind: _put_topic,
    Template.kind: cluster("describe"),
    Find.kind: topic("consume"),
    ReviseDead.kind: _revise,
    PurgeDead.kind: group("delete"),
    Trace.kind: group("describe"),
    ShardCount.kind: topic("describe"),
    Seek.kind: _seek,
    Pause.kind: group("alter"),
    Purge.kind: _unless_dry("delete"),
    EditTopic.kind: topic("alter"),
    Scan.kind: _stream("consume"),
    Survey.kind: _survey,
    Report.kind: lambda request, context: (("consume", "topic", request.topic), ("consume", "group", request.group)),
    Stage.kind: _send,
    Publish.kind: _sink,  # what its own token has staged, for which it was allowed to send
    Unstage.kind: anyone,  # what its own token has staged
    AskSink.kind: _sink,
    MoveHold.kind: cluster("alter"),  # it lets retention drop what it held
    LocateIn.kind: _stream("describe"),
    WhoAmI.kind: anyone,
    ListUsers.kind: cluster("admin"),
    PutUser.kind: anyone,  # one's own password; all else asks for admin, see `accounts`
    DeleteUser.kind: cluster("admin"),
    ListTokens.kind: anyone,  # one's own
    CreateToken.kind: anyone,  # of one's own user
    RevokeToken.kind: anyone,  # of one's own user
    ListRules.kind: cluster("admin"),
    AddRule.kind: cluster("admin"),
    DropRule.kind: cluster("admin"),
    ListAudit.kind: cluster("admin"),
    Measure.kind: _all_or_topic("describe"),
    Meet.kind: cluster("admin"),
    ListBrokers.kind: anyone,
    ListClients.kind: _clients,
    ForgetBroker.kind: cluster("admin"),
    HandBack.kind: _attach,
    ListPage.kind: _page,
    Pulse.kind: _pulse,
    Storage.kind: cluster("describe"),
    ListAlarms.kind: cluster("describe"),
    PutAlarm.kind: cluster("alter"),
    DropAlarm.kind: cluster("alter"),
    SilenceAlarm.kind: cluster("alter"),
    TestAlarm.kind: cluster("alter"),
    AskAlarmBook.kind: cluster("admin"),  # it shows webhooks whole
    Kick.kind: group("alter"),
    BeginBackup.kind: cluster("admin"),
    HoldBackup.kind: cluster("admin"),
}

AUDITED: Final = frozenset(
    request.kind
    for request in (
        CreateTopic, DeleteTopic, PutTopic, EditTopic, Purge, PutGroup, DeleteGroup, Pause, Seek, Resend, ReviseDead,
        PurgeDead, CancelDelayed, MoveDelayed, Resolve, PutUser, DeleteUser, CreateToken, RevokeToken, AddRule,
        DropRule, ForgetBroker, PutAlarm, DropAlarm, SilenceAlarm, TestAlarm, Kick, BeginBackup,
    )
)  # fmt: skip
"""Requests that the audit log tells of, whatever came of them. Refusals of all others are told of as well."""


def _sees(may: May, topic: str, group: str) -> bool:
    return may("describe", "group", group) and may("describe", "topic", topic)


def _topic(answer: TopicState, may: May) -> TopicState:
    return replace(answer, groups=[name for name in answer.groups if may("describe", "group", name)])


def _topics(answer: Topics, may: May) -> Topics:
    return Topics([_topic(one, may) for one in answer.topics if may("describe", "topic", one.config.name)])


def _groups(answer: Groups, may: May) -> Groups:
    return Groups([one for one in answer.groups if _sees(may, one.config.topic, one.config.name)])


def _keys(answer: Delayed, may: May) -> Delayed:
    """A key is a part of the message: it is for those who may read the topic."""
    read = [one if may("consume", "topic", one.topic) else replace(one, key="") for one in answer.messages]
    return replace(answer, messages=read)


def _purged(answer: Purged, may: May) -> Purged:
    return replace(answer, groups=[one for one in answer.groups if may("describe", "group", one[0])])


def figures_seen(answer: Measured, may: May) -> Measured:
    return replace(
        answer,
        topics=[one for one in answer.topics if may("describe", "topic", one.topic)],
        groups=[one for one in answer.groups if _sees(may, one.topic, one.group)],
    )


def _consumers(answer: Clients, may: May) -> Clients:
    return Clients([one for one in answer.clients if not one.topic or _sees(may, one.topic, one.group)])


def _brokers(answer: Brokers, may: May) -> Brokers:
    """Where they are, for all who must find them; how much is on them, for those who look after them."""
    if may("describe", "cluster", CLUSTER):
        return answer
    return replace(answer, brokers=[replace(one, connections=0, topics=0) for one in answer.brokers])


FILTERS: Mapping[int, Callable[[Any, May], Answer]] = {
    ListTopics.kind: _topics,
    TopicInfo.kind: _topic,
    ListGroups.kind: _groups,
    ListDelayed.kind: _keys,
    Purge.kind: _purged,
    Measure.kind: figures_seen,
    ListClients.kind: _consumers,
    ListBrokers.kind: _brokers,
}
"""Answers hold of topics and groups what the one who asks may describe, and of messages what it may read. (Lists that
are cut into pages are made so, see `SEEN` in `requests`.)"""


def target_of(request: Any) -> str:  # noqa: PLR0911  # one for each kind of thing
    """What a request is about, in words, for the audit log."""
    config = getattr(request, "config", None)
    if config is not None:
        return f"group {config.name} of topic {config.topic}" if hasattr(config, "topic") else f"topic {config.name}"
    if getattr(request, "group", ""):
        return f"group {request.group} of topic {request.topic}"
    if hasattr(request, "topic"):
        return f"topic {request.topic}"
    if hasattr(request, "frames"):
        return "topic " + ", ".join(sorted({frame.topic for frame in request.frames})[:10])
    if isinstance(request, AddRule):
        rule = request.rule
        return f"{rule.effect} {rule.subject} {rule.action} {rule.resource} {rule.name}"
    if isinstance(request, PutUser | DeleteUser):
        return f"user {request.name}"
    if isinstance(request, SilenceAlarm):
        until = datetime.fromtimestamp(request.until_us // 1_000_000, UTC).isoformat()
        return f"alarm {request.name} until {until}: {request.reason}" if request.until_us else f"alarm {request.name}"
    if isinstance(request, PutAlarm | DropAlarm | TestAlarm):
        return f"alarm {request.rule.name if isinstance(request, PutAlarm) else request.name}"
    if isinstance(request, CreateToken | RevokeToken):
        return f"token {request.name}"
    if isinstance(request, BeginBackup):
        return "cluster"
    if isinstance(request, ForgetBroker):
        return f"broker {request.id}"
    field = "transaction" if hasattr(request, "transaction") else "id"
    return f"{'rule' if field == 'id' else field} {getattr(request, field, '')}".rstrip()


_OF_TOPICS = ("lane", "pull", "dead", "own")


def topic_of_stream(name: str) -> str:
    """The topic that a stream belongs to; empty if it is no topic's."""
    kind, _, rest = name.partition("/")
    return rest.partition("/")[0] if kind in _OF_TOPICS else ""


def resources_of_stream(name: str) -> list[tuple[str, str]]:
    """What one must be allowed to look at to read a stream: its topic, and its group if it is one's. Nothing, if it is
    no topic's."""
    topic = topic_of_stream(name)
    if not topic:
        return []
    kind, _, rest = name.partition("/")
    return [("topic", topic)] if kind == "lane" else [("topic", topic), ("group", f"{rest}/".split("/")[1])]
