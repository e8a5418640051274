"""Topics and groups, as a blocking client makes, changes and moves them; at one broker, or at all of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from towline.client import flows, looking, sharding
from towline.client.cluster import Cluster
from towline.client.link import Link
from towline.client.receipts import Receipts
from towline.client.spreading import (
    Outcome,
    merge_groups,
    merge_outcomes,
    merge_purged,
    merge_sought,
    merge_topics,
)
from towline.client.steps import Flow
from towline.model import GroupConfig, TopicConfig
from towline.protocol.messages import GroupState, TopicState
from towline.protocol.ordering import Purged, Sought

__all__ = ["Administering"]

T = TypeVar("T")


class Administering:
    _cluster: Cluster | None
    _link: Link
    _shards: sharding.ShardMap

    # Topics and groups

    def create_topic(
        self,
        name: str,
        *,
        retention_s: float | None = None,
        shards: int = 0,
        business_line: str = "",
        author: str = "",
        alarm_emails: Sequence[str] = (),
    ) -> None:
        """Make a topic; `Conflict` if there is one already. (Most brokers make topics upon the first send.)

        With `shards` it is an ordered one: messages of one shard key are delivered in order, each shard to one consumer
        at a time. One shard is serial consumption. The business line and the author say whose it is; the e-mail
        addresses are told of alarms about it."""

        def create() -> Flow[None]:
            return flows.create_topic(
                name, retention_s, shards, business_line=business_line, author=author, alarm_emails=alarm_emails
            )

        self._tell(name, create, f"creating topic {name}", catch_up=True)
        self._shards.forget(name)

    def put_topic(self, config: TopicConfig, *, template: bool = False) -> None:
        """Change the settings of a topic, or with `template` those that topics made by the first send take over."""
        what = "changing the template" if template else f"changing topic {config.name}"
        self._tell(config.name, lambda: flows.put_topic(config, template=template), what)

    def template(self) -> TopicConfig:
        """The settings that a topic takes over when it is made by the first send to it."""
        return self._link.run(flows.template())

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages, groups and dead letters."""
        self._tell(name, lambda: flows.delete_topic(name), f"deleting topic {name}")

    def topics(self) -> list[TopicState]:
        return merge_topics(self._gather("", flows.topics))

    def topic(self, name: str) -> TopicState:
        states = self._gather(name, lambda: flows.topic(name))
        return merge_topics([[state] for state in states])[0]

    def groups(self, topic: str = "") -> list[GroupState]:
        """The groups of a topic, or of all topics."""
        return merge_groups(self._gather(topic, lambda: flows.groups(topic)))

    def group(self, topic: str, name: str) -> GroupState:
        states = self._gather(topic, lambda: flows.group(topic, name))
        return merge_groups([[state] for state in states])[0]

    def put_group(self, config: GroupConfig) -> None:
        """Make a group, or change its settings.

        mq.put_group(GroupConfig("orders", "billing", retry=RetryPolicy(max_attempts=3)))
        """
        what = f"changing group {config.name} of topic {config.topic}"
        self._tell(config.topic, lambda: flows.put_group(config), what, catch_up=True)

    def delete_group(self, topic: str, name: str) -> None:
        """Forget a group, its progress and its dead letters."""
        self._tell(topic, lambda: flows.delete_group(topic, name), f"deleting group {name} of topic {topic}")

    # Moving groups and emptying topics

    def seek(self, topic: str, group: str, to: flows.Target, *, dry_run: bool = False) -> Sought:
        """Let a group go on elsewhere: at the `"earliest"` message or behind the `"latest"`, at a time, or at sequence
        numbers by lane (`{"middle": 17}`; of an ordered topic `{3: 17}`), where lanes that are not named stay.

        Backwards, all from there on is delivered again. Forwards, all up to there is passed over, also what waits to be
        tried again. Consumers lose what they hold of these messages. A `dry_run` only says how many that would be."""
        what = f"moving group {group} of topic {topic}"
        return merge_sought(self._tell(topic, lambda: flows.seek(topic, group, to, dry_run=dry_run), what))

    def pause(self, topic: str, group: str, reason: str = "") -> None:
        """Let a group rest: its consumers get nothing until it is resumed, also after a restart of the broker."""
        what = f"pausing group {group} of topic {topic}"
        self._tell(topic, lambda: flows.pause(topic, group, paused=True, reason=reason), what)

    def resume(self, topic: str, group: str) -> None:
        what = f"resuming group {group} of topic {topic}"
        self._tell(topic, lambda: flows.pause(topic, group, paused=False, reason=""), what)

    def purge(self, topic: str, *, dry_run: bool = False) -> Purged:
        """Drop all messages of a topic; its groups go on with what comes then. Dead letters are kept."""
        what = f"purging topic {topic}"
        return merge_purged(self._tell(topic, lambda: flows.purge(topic, dry_run=dry_run), what))

    def edit_topic(self, name: str, *, retention_s: float | None) -> None:
        """Change how long a topic keeps its messages: 0 is for ever, None as the broker does."""
        self._tell(name, lambda: flows.edit_topic(name, retention_s), f"changing topic {name}")

    # One broker or many

    def _send(self, common: sharding.Common, topic: str, content: sharding.Content) -> Receipts:
        if self._cluster is None:
            return self._link.run(sharding.send_many(common, topic, content))
        return self._cluster.send_many(common, topic, content)

    def _run(self, topic: str, flow: Flow[T]) -> T:
        """At the broker that we are connected to; where brokers share a store, at the one that has the topic."""
        if self._cluster is None or not self._cluster.fleet.shared:
            return self._link.run(flow)
        return self._cluster.run(topic, flow)

    def _tell(self, topic: str, make_flow: Callable[[], Flow[T]], what: str, *, catch_up: bool = False) -> list[T]:
        """At all brokers that have messages of the topic."""
        if self._cluster is None or self._cluster.fleet.shared:
            return [self._run(topic, make_flow())]
        return self._cluster.everywhere(make_flow, what, catch_up=catch_up)

    def _gather(self, topic: str, make_flow: Callable[[], Flow[T]]) -> list[T]:
        """What all brokers say that are there."""
        if self._cluster is None or (self._cluster.fleet.shared and topic):
            return [self._run(topic, make_flow())]
        return merge_outcomes(self._cluster.outcomes(make_flow), "asking", catch_up=True)

    def separate_brokers(self) -> list[str]:
        """In a cluster whose brokers keep their own messages: what they are called, for `broker=…`. Else none."""
        cluster = self._cluster
        if cluster is None or cluster.fleet.shared:
            return []
        return sorted(cluster.fleet.label(one.id) for one in cluster.fleet.members)

    def _consult(self, topic: str, broker: str | None, make_flow: Callable[[str], Flow[T]], join: looking.Join[T]) -> T:
        """Where each broker keeps its own messages, ask one of them, or all. Elsewhere there is one to ask."""
        cluster = self._cluster
        if cluster is None or cluster.fleet.shared:
            return self._run(topic, make_flow(""))
        if not broker:
            return join(cluster.outcomes_by(make_flow), cluster.fleet.label)
        chosen = cluster.fleet.named(broker)
        state = cluster.fleet.get(chosen)
        assert state is not None, "it was found just now"
        result = cluster.run(topic, make_flow(chosen), at=chosen)
        return join([Outcome(state, result, None)], cluster.fleet.label)

    def _at_its_own(self, topic: str, broker: str, what: str, flow: Flow[T]) -> T:
        """What counts at one broker only. Where there are several, it must be known which."""
        cluster = self._cluster
        if cluster is None or cluster.fleet.shared:
            return self._run(topic, flow)
        if broker or len(cluster.fleet.members) > 1:
            if not broker:
                raise looking.unknown_broker(what)
            return cluster.run(topic, flow, at=cluster.fleet.named(broker))
        return self._run(topic, flow)
