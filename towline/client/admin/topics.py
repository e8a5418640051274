"""Topics and groups: make, change, seek, delete; at one broker, or at all of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from towline.client import requests
from towline.client.cluster import ids, merge, routing
from towline.client.cluster.brokers import ClusterBrokers
from towline.client.cluster.drift import Disagreement, disagreements, settings
from towline.client.cluster.routing import (
    Outcome,
    merge_groups,
    merge_outcomes,
    merge_purged,
    merge_sought,
    merge_topics,
)
from towline.client.link.flow import Flow
from towline.client.operation import Errand, Everywhere, Here, There, offered
from towline.client.produce import sharding
from towline.client.produce.receipts import Receipts
from towline.model import GroupConfig, TopicConfig
from towline.protocol.groups import Sought
from towline.protocol.messages import GroupState, TopicState
from towline.protocol.topics import Purged

__all__ = ["TopicsAndGroups"]

T = TypeVar("T")


class TopicsAndGroups:
    _shards: sharding.ShardMap

    @property
    def _fleet(self) -> ClusterBrokers | None:
        """The brokers, where there are many."""
        raise NotImplementedError

    # Topics and groups

    @offered
    def create_topic(
        self,
        name: str,
        *,
        retention_s: float | None = None,
        shards: int = 0,
        business_line: str = "",
        author: str = "",
        alarm_emails: Sequence[str] = (),
    ) -> Errand[None]:
        """Make a topic; `Conflict` if there is one already. (Most brokers make topics upon the first send.)

        With `shards` it is an ordered one: messages of one shard key are delivered in order, each shard to one consumer
        at a time. One shard is serial consumption. The business line and the author are for people; the e-mail
        addresses get notices of alarms about it.
        """

        def create() -> Flow[None]:
            return requests.create_topic(
                name, retention_s, shards, business_line=business_line, author=author, alarm_emails=alarm_emails
            )

        yield from self._tell(name, create, f"creating topic {name}", catch_up=True)
        self._shards.forget(name)

    @offered
    def put_topic(self, config: TopicConfig, *, template: bool = False) -> Errand[None]:
        """Change the settings of a topic, or with `template` those of topics made by the first send."""
        what = "changing the template" if template else f"changing topic {config.name}"
        yield from self._tell(config.name, lambda: requests.put_topic(config, template=template), what)

    @offered
    def template(self, *, broker: str | None = None) -> Errand[TopicConfig]:
        """The settings of topics made by the first send. Where each broker keeps its own messages: the template that
        all have (`Conflict` if they differ, because one was away when it was changed), or that of one `broker`."""
        if self._fleet is None or self._fleet.shared:
            return self._here(requests.template())
        return self._consult("", broker, lambda _: requests.template(), merge.join_templates)

    @offered
    def delete_topic(self, name: str, *, broker: str | None = None) -> Errand[None]:
        """Delete a topic with its messages, groups and dead letters. Where each broker keeps its own messages: at all
        of them, or at one `broker` only, which then takes the topic over as the others have it, when it is needed."""
        if broker is not None:
            yield from self._at_its_own(name, broker, f"topic {name}", requests.delete_topic(name))
        else:
            yield from self._tell(name, lambda: requests.delete_topic(name), f"deleting topic {name}")
        self._shards.forget(name)

    @offered
    def disagreements(self) -> Errand[list[Disagreement]]:
        """Settings of topics and groups in which the brokers of a cluster differ that keep their own messages: of those
        that can be reached. Elsewhere there are none."""
        fleet = self._fleet
        if fleet is None or fleet.shared:
            return []
        return disagreements((yield from self._outcomes(settings)), fleet.label)

    @offered
    def topics(self) -> Errand[list[TopicState]]:
        return merge_topics((yield from self._gather("", requests.topics)))

    @offered
    def topic(self, name: str, *, broker: str | None = None) -> Errand[TopicState]:
        """A topic; where each broker keeps its own messages, the sum of all, or as one `broker` has it."""
        if broker is not None:
            return (yield from self._at_its_own(name, broker, f"topic {name}", requests.topic(name)))
        states = yield from self._gather(name, lambda: requests.topic(name))
        return merge_topics([[state] for state in states])[0]

    @offered
    def groups(self, topic: str = "") -> Errand[list[GroupState]]:
        """The groups of a topic, or of all topics."""
        return merge_groups((yield from self._gather(topic, lambda: requests.groups(topic))))

    @offered
    def group(self, topic: str, name: str) -> Errand[GroupState]:
        states = yield from self._gather(topic, lambda: requests.group(topic, name))
        return merge_groups([[state] for state in states])[0]

    @offered
    def put_group(self, config: GroupConfig) -> Errand[None]:
        """Make a group, or change its settings.

        mq.put_group(GroupConfig("orders", "billing", retry=RetryPolicy(max_attempts=3)))
        """
        what = f"changing group {config.name} of topic {config.topic}"
        yield from self._tell(config.topic, lambda: requests.put_group(config), what, catch_up=True)

    @offered
    def delete_group(self, topic: str, name: str) -> Errand[None]:
        """Forget a group, its progress and its dead letters."""
        yield from self._tell(
            topic, lambda: requests.delete_group(topic, name), f"deleting group {name} of topic {topic}"
        )

    # Seek, pause, purge

    @offered
    def seek(self, topic: str, group: str, to: requests.Target, *, dry_run: bool = False) -> Errand[Sought]:
        """Move a group: to the `"earliest"` message or behind the `"latest"`, to a time, or to sequence numbers by lane
        (`{"middle": 17}`; of an ordered topic `{3: 17}`), where lanes that are not named stay.

        Backwards, all from there on is delivered again. Forwards, all up to there is skipped, retries as well.
        Consumers lose what they hold of these messages. A `dry_run` only returns how many that would be.
        """
        what = f"moving group {group} of topic {topic}"
        return merge_sought(
            (yield from self._tell(topic, lambda: requests.seek(topic, group, to, dry_run=dry_run), what))
        )

    @offered
    def pause(self, topic: str, group: str, reason: str = "") -> Errand[None]:
        """Pause a group: its consumers get nothing until it is resumed, also after a restart of the broker."""
        what = f"pausing group {group} of topic {topic}"
        yield from self._tell(topic, lambda: requests.pause(topic, group, paused=True, reason=reason), what)

    @offered
    def resume(self, topic: str, group: str) -> Errand[None]:
        what = f"resuming group {group} of topic {topic}"
        yield from self._tell(topic, lambda: requests.pause(topic, group, paused=False, reason=""), what)

    @offered
    def purge(self, topic: str, *, dry_run: bool = False) -> Errand[Purged]:
        """Drop all messages of a topic; its groups continue with later ones. Dead letters are kept."""
        what = f"purging topic {topic}"
        return merge_purged((yield from self._tell(topic, lambda: requests.purge(topic, dry_run=dry_run), what)))

    @offered
    def edit_topic(self, name: str, *, retention_s: float | None) -> Errand[None]:
        """Change how long a topic keeps its messages: 0 is for ever, None is the broker's setting."""
        yield from self._tell(name, lambda: requests.edit_topic(name, retention_s), f"changing topic {name}")

    # One broker or many

    def separate_brokers(self) -> list[str]:
        """The names of the brokers for `broker=…`, in a cluster whose brokers keep their own messages. Else none."""
        fleet = self._fleet
        return [] if fleet is None or fleet.shared else sorted(fleet.label(one.id) for one in fleet.members)

    @offered
    def _send(self, common: sharding.Common, topic: str, content: sharding.Content) -> Errand[Receipts]:
        if self._fleet is None:
            return self._here(sharding.send_many(common, topic, content))
        return routing.send_many(self._fleet, common, topic, content)

    def _here(self, flow: Flow[T]) -> Errand[T]:
        """Run at the broker that we are connected to."""
        result: T = yield Here(flow)
        return result

    def _run(self, topic: str, flow: Flow[T]) -> Errand[T]:
        """Run at the broker that we are connected to; where brokers share a store, at the one that has the topic."""
        alone = self._fleet is None or not self._fleet.shared
        result: T = yield Here(flow) if alone else There(topic, flow)
        return result

    def _tell(
        self, topic: str, make_flow: Callable[[], Flow[T]], what: str, *, catch_up: bool = False
    ) -> Errand[list[T]]:
        """Run at all brokers that have messages of the topic. `catch_up`: one that is away gets it when it returns."""
        if self._fleet is None or self._fleet.shared:
            return [(yield from self._run(topic, make_flow()))]
        return merge_outcomes((yield from self._outcomes(make_flow)), what, catch_up=catch_up)

    def _gather(self, topic: str, make_flow: Callable[[], Flow[T]]) -> Errand[list[T]]:
        """The outcomes at all brokers that are there."""
        if self._fleet is None or (self._fleet.shared and topic):
            return [(yield from self._run(topic, make_flow()))]
        return merge_outcomes((yield from self._outcomes(make_flow)), "asking", catch_up=True)

    def _outcomes(self, make_flow: Callable[[], Flow[T]]) -> Errand[list[Outcome[T]]]:
        found: list[Outcome[T]] = yield Everywhere(lambda _: make_flow())
        return found

    def _consult(
        self, topic: str, broker: str | None, make_flow: Callable[[str], Flow[T]], join: ids.Join[T]
    ) -> Errand[T]:
        """Where each broker keeps its own messages, ask one of them, or all. Elsewhere there is one to ask."""
        fleet = self._fleet
        if fleet is None or fleet.shared:
            return (yield from self._run(topic, make_flow("")))
        if not broker:
            return join((yield Everywhere(make_flow)), fleet.label)
        chosen = fleet.named(broker)
        state = fleet.get(chosen)
        assert state is not None, "it was found just now"
        result = yield There(topic, make_flow(chosen), chosen)
        return join([Outcome(state, result, None)], fleet.label)

    def _at_its_own(self, topic: str, broker: str, what: str, flow: Flow[T]) -> Errand[T]:
        """Run where it counts at one broker only. Where there are several, it must be known which."""
        fleet = self._fleet
        if fleet is None or fleet.shared:
            return (yield from self._run(topic, flow))
        if broker:
            result: T = yield There(topic, flow, fleet.named(broker))
            return result
        if len(fleet.members) > 1:
            raise ids.unknown_broker(what)
        return (yield from self._run(topic, flow))
