"""Needs and filters of requests: the words of the table in `server/requests.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from msgspec.structs import replace

from towline.broker.access.rules import May, Need
from towline.model import is_pattern
from towline.protocol.access import Measured
from towline.protocol.cluster import Brokers, Clients, HandBack, ListClients
from towline.protocol.groups import Seek
from towline.protocol.messages import (
    Answer,
    Attach,
    Browse,
    CancelDelayed,
    CreateTopic,
    Delayed,
    Groups,
    ListDelayed,
    ListGroups,
    MoveDelayed,
    PutGroup,
    PutTopic,
    ReviseDead,
    Topics,
    TopicState,
)
from towline.protocol.monitor import ListPage, Pulse
from towline.protocol.publications import AskSink, Publish
from towline.protocol.scan import Survey
from towline.protocol.topics import Purged
from towline.protocol.transactions import Decide

__all__ = ["Context", "Permission", "figures_seen", "resources_of_stream", "target_of", "topic_of_stream"]


class Context(Protocol):
    """What must be known of the connection and the broker."""

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


def target_of(request: Any) -> str:
    """What a request is about, in words, for the audit log."""
    config = getattr(request, "config", None)
    if config is not None:
        return f"group {config.name} of topic {config.topic}" if hasattr(config, "topic") else f"topic {config.name}"
    if getattr(request, "group", ""):
        return f"group {request.group} of topic {request.topic}"
    if getattr(request, "topic", ""):
        return f"topic {request.topic}"
    if hasattr(request, "frames"):
        return "topic " + ", ".join(sorted({frame.topic for frame in request.frames})[:10])
    return f"transaction {request.transaction}" if hasattr(request, "transaction") else "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """A kind of request, as access sees it."""

    needs: Needs
    filter: Callable[[Any, May], Answer] | None = None
    """Leaves out of the answer what the principal must not see."""
    audited: bool = False
    """The audit log tells of it, whatever came of it. Refusals of all others are told of as well."""
    target: Callable[[Any], str] = target_of


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


def send(request: Any, context: Context) -> Sequence[Need]:
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


def attach(request: Attach | HandBack, context: Context) -> Sequence[Need]:
    needs: list[Need] = [("consume", "topic", request.topic), ("consume", "group", request.group)]
    if not context.has_topic(request.topic) and not is_pattern(request.topic):
        needs.append(("create", "topic", request.topic))
    return needs


def subscribed(request: Any, context: Context) -> Sequence[Need]:
    found = context.subscribed(request.subscription)
    return () if found is None else (("consume", "topic", found[0]), ("consume", "group", found[1]))


def browse(request: Browse, context: Context) -> Sequence[Need]:
    """Bodies are read: that is consuming, whether or not the messages are taken."""
    needs: Sequence[Need] = (("consume", "topic", request.topic),)
    return (*needs, ("consume", "group", request.group)) if request.group else needs


def create_topic(request: CreateTopic, context: Context) -> Sequence[Need]:
    return (("create", "topic", request.config.name),)


def put_group(request: PutGroup, context: Context) -> Sequence[Need]:
    """Who may not even see it is told so first: else the word would tell whether it is there."""
    config = request.config
    action = "alter" if context.has_group(config.topic, config.name) else "create"
    seen: Need = ("describe", "group", config.name)
    return (seen, (action, "group", config.name), ("describe", "topic", config.topic))


def put_topic(request: PutTopic, context: Context) -> Sequence[Need]:
    return (("alter", "cluster", CLUSTER),) if request.template else (("alter", "topic", request.config.name),)


def decide(request: Decide, context: Context) -> Sequence[Need]:
    """Only its own token may, as the transaction itself sees to; and it must still be allowed to send."""
    return [("send", "topic", name) for name in context.topics_of(request.transaction)] if request.commit else ()


def sink(request: Publish | AskSink, context: Context) -> Sequence[Need]:
    """A sink is its token's: an epoch that somebody else makes up would count as published."""
    return () if context.may_have_sink(request.sink) else (("alter", "cluster", CLUSTER),)


def topic_or_cluster(action: str) -> Needs:
    return lambda request, context: (
        ((action, "topic", request.topic),) if request.topic else ((action, "cluster", CLUSTER),)
    )


def delayed(request: ListDelayed, context: Context) -> Sequence[Need]:
    """To look for a key is to learn that it is there, as whoever reads the topic does."""
    return topic_or_cluster("consume" if request.key else "describe")(request, context)


def undelay(request: CancelDelayed | MoveDelayed, context: Context) -> Sequence[Need]:
    """Who sends may take back by key what was sent; to only ask whether the key is there is to look for it."""
    needs: Sequence[Need] = (("send", "topic", request.topic),)
    return (*needs, ("consume", "topic", request.topic)) if request.key and request.dry_run else needs


def clients(request: ListClients, context: Context) -> Sequence[Need]:
    return (
        group("describe")(request, context)
        if request.topic and request.group
        else topic_or_cluster("describe")(request, context)
    )


def pulse(request: Pulse, context: Context) -> Sequence[Need]:
    return group("describe")(request, context) if request.topic else (("describe", "cluster", CLUSTER),)


def unless_dry(action: str) -> Needs:
    return lambda request, context: (("describe" if request.dry_run else action, "topic", request.topic),)


def seek(request: Seek, context: Context) -> Sequence[Need]:
    action = "describe" if request.dry_run else "alter"
    return ((action, "group", request.group), ("describe", "topic", request.topic))


def revise(request: ReviseDead, context: Context) -> Sequence[Need]:
    """Others are given something else to consume than was sent."""
    return (("alter", "group", request.group), ("send", "topic", request.topic))


def stream(action: str) -> Needs:
    """A stream of a topic, and of one of its groups if it is one's; any other holds what concerns everyone."""

    def needs(request: Any, context: Context) -> Sequence[Need]:
        found = resources_of_stream(request.stream)
        return [(action, *one) for one in found] if found else (("admin", "cluster", CLUSTER),)

    return needs


def survey(request: Survey, context: Context) -> Sequence[Need]:
    """The streams of one topic; or of all, of which everyone is told what they may see."""
    return (("describe", "topic", request.prefix.split("/")[1]),) if request.prefix.count("/") >= 2 else ()


def groups_of(request: ListGroups, context: Context) -> Sequence[Need]:
    """The groups of one topic; or all that there is, of which everyone is told what they may see."""
    return (("describe", "topic", request.topic),) if request.topic else ()


def page(request: ListPage, context: Context) -> Sequence[Need]:
    """The same, by pages."""
    return (("describe", "topic", request.topic),) if request.topic and request.of == "groups" else ()


def _sees(may: May, topic: str, group: str) -> bool:
    return may("describe", "group", group) and may("describe", "topic", topic)


def topic_seen(answer: TopicState, may: May) -> TopicState:
    return replace(answer, groups=[name for name in answer.groups if may("describe", "group", name)])


def topics_seen(answer: Topics, may: May) -> Topics:
    return Topics([topic_seen(one, may) for one in answer.topics if may("describe", "topic", one.config.name)])


def groups_seen(answer: Groups, may: May) -> Groups:
    return Groups([one for one in answer.groups if _sees(may, one.config.topic, one.config.name)])


def keys_seen(answer: Delayed, may: May) -> Delayed:
    """A key is a part of the message: it is for those who may read the topic."""
    read = [one if may("consume", "topic", one.topic) else replace(one, key="") for one in answer.messages]
    return replace(answer, messages=read)


def purged_seen(answer: Purged, may: May) -> Purged:
    return replace(answer, groups=[one for one in answer.groups if may("describe", "group", one[0])])


def figures_seen(answer: Measured, may: May) -> Measured:
    return replace(
        answer,
        topics=[one for one in answer.topics if may("describe", "topic", one.topic)],
        groups=[one for one in answer.groups if _sees(may, one.topic, one.group)],
    )


def consumers_seen(answer: Clients, may: May) -> Clients:
    return Clients([one for one in answer.clients if not one.topic or _sees(may, one.topic, one.group)])


def brokers_seen(answer: Brokers, may: May) -> Brokers:
    """Where they are, for all who must find them; how much is on them, for those who look after them."""
    if may("describe", "cluster", CLUSTER):
        return answer
    return replace(answer, brokers=[replace(one, connections=0, topics=0) for one in answer.brokers])


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
