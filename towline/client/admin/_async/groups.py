"""Groups: make, change, list, move, pause, delete; and their consumers."""

from __future__ import annotations

from towline.client import requests
from towline.client.admin._async.router import Noun
from towline.client.cluster.routing import merge_groups, merge_sought
from towline.client.link.flow import ask
from towline.model import GroupConfig, check_group, check_topic
from towline.protocol.groups import Sought
from towline.protocol.messages import Done, GroupState
from towline.protocol.monitor import Kick

__all__ = ["Groups"]


class Groups(Noun):
    async def groups(self, topic: str = "") -> list[GroupState]:
        """The groups of a topic, or of all topics."""
        return merge_groups(await self._router.gather(topic, lambda: requests.groups(topic)))

    async def group(self, topic: str, name: str) -> GroupState:
        """A group as it is; in a cluster, with the figures of all brokers together."""
        states = await self._router.gather(topic, lambda: requests.group(topic, name))
        return merge_groups([[state] for state in states])[0]

    async def put_group(self, config: GroupConfig) -> None:
        """Make a group, or change its settings.

        mq.put_group(GroupConfig("orders", "billing", retry=RetryPolicy(max_attempts=3)))
        """
        what = f"changing group {config.name} of topic {config.topic}"
        await self._router.tell(config.topic, lambda: requests.put_group(config), what, catch_up=True)

    async def delete_group(self, topic: str, name: str) -> None:
        """Forget a group, its progress and its dead letters."""
        await self._router.tell(
            topic, lambda: requests.delete_group(topic, name), f"deleting group {name} of topic {topic}"
        )

    async def seek(self, topic: str, group: str, to: requests.Target, *, dry_run: bool = False) -> Sought:
        """Move a group: to the `"earliest"` message or behind the `"latest"`, to a time, or to sequence numbers by lane
        (`{"middle": 17}`; of an ordered topic `{3: 17}`), where lanes that are not named stay.

        Backwards, all from there on is delivered again. Forwards, all up to there is skipped, retries as well.
        Consumers lose what they hold of these messages. A `dry_run` only returns how many that would be.
        """
        what = f"moving group {group} of topic {topic}"
        return merge_sought(
            await self._router.tell(topic, lambda: requests.seek(topic, group, to, dry_run=dry_run), what)
        )

    async def pause(self, topic: str, group: str, reason: str = "") -> None:
        """Pause a group: its consumers get nothing until it is resumed, also after a restart of the broker."""
        what = f"pausing group {group} of topic {topic}"
        await self._router.tell(topic, lambda: requests.pause(topic, group, paused=True, reason=reason), what)

    async def resume(self, topic: str, group: str) -> None:
        """Let a group that was paused go on."""
        what = f"resuming group {group} of topic {topic}"
        await self._router.tell(topic, lambda: requests.pause(topic, group, paused=False, reason=""), what)

    async def kick(self, topic: str, group: str, consumer: str) -> None:
        """Take from a consumer what it holds, and let it begin anew: its messages go to the others of its group."""
        request = Kick(check_topic(topic), check_group(group), consumer[:100])
        await self._router.tell(topic, lambda: ask(request, Done), f"kicking out {consumer}")
