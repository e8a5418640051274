# Generated from towline/client/admin/_async/topics.py by scripts/unasync.py: change it there.
"""Topics: make, change, list, purge, delete."""

from __future__ import annotations

from collections.abc import Sequence

from towline.client import requests
from towline.client.admin._sync.router import Noun
from towline.client.cluster import merge
from towline.client.cluster.routing import merge_purged, merge_topics
from towline.client.link.flow import Flow
from towline.model import TopicConfig
from towline.protocol.messages import TopicState
from towline.protocol.topics import Purged

__all__ = ["Topics"]


class Topics(Noun):
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
        at a time. One shard is serial consumption. The business line and the author are for people; the e-mail
        addresses get notices of alarms about it.
        """

        def create() -> Flow[None]:
            return requests.create_topic(
                name, retention_s, shards, business_line=business_line, author=author, alarm_emails=alarm_emails
            )

        self._router.tell(name, create, f"creating topic {name}", catch_up=True)
        self._router.shards.forget(name)

    def put_topic(self, config: TopicConfig, *, template: bool = False) -> None:
        """Change the settings of a topic, or with `template` those of topics made by the first send."""
        what = "changing the template" if template else f"changing topic {config.name}"
        self._router.tell(config.name, lambda: requests.put_topic(config, template=template), what)

    def edit_topic(self, name: str, *, retention_s: float | None) -> None:
        """Change how long a topic keeps its messages: 0 is for ever, None is the broker's setting."""
        self._router.tell(name, lambda: requests.edit_topic(name, retention_s), f"changing topic {name}")

    def template(self, *, broker: str | None = None) -> TopicConfig:
        """The settings of topics made by the first send. Where each broker keeps its own messages: the template that
        all have (`Conflict` if they differ, because one was away when it was changed), or that of one `broker`."""
        if self._router.separate is None:
            return self._router.here(requests.template())
        return self._router.consult("", broker, lambda _: requests.template(), merge.join_templates)

    def topics(self) -> list[TopicState]:
        """All topics, by name; in a cluster, with the figures of all brokers together."""
        return merge_topics(self._router.gather("", requests.topics))

    def topic(self, name: str, *, broker: str | None = None) -> TopicState:
        """A topic; where each broker keeps its own messages, the sum of all, or as one `broker` has it."""
        if broker is not None:
            return self._router.at_its_own(name, broker, f"topic {name}", requests.topic(name))
        states = self._router.gather(name, lambda: requests.topic(name))
        return merge_topics([[state] for state in states])[0]

    def purge(self, topic: str, *, dry_run: bool = False) -> Purged:
        """Drop all messages of a topic; its groups continue with later ones. Dead letters are kept."""
        what = f"purging topic {topic}"
        return merge_purged(self._router.tell(topic, lambda: requests.purge(topic, dry_run=dry_run), what))

    def delete_topic(self, name: str, *, broker: str | None = None) -> None:
        """Delete a topic with its messages, groups and dead letters. Where each broker keeps its own messages: at all
        of them, or at one `broker` only, which then takes the topic over as the others have it, when it is needed."""
        if broker is not None:
            self._router.at_its_own(name, broker, f"topic {name}", requests.delete_topic(name))
        else:
            self._router.tell(name, lambda: requests.delete_topic(name), f"deleting topic {name}")
        self._router.shards.forget(name)
