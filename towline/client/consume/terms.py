"""The terms on which a consumer is given messages: what it asked for, and what groups have that were there before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from towline.client.consume.group_settings import Wishes
from towline.model import AT_MOST_ONCE, GroupConfig
from towline.protocol.messages import Attached

__all__ = ["Terms"]

_TOPICS_MAX: Final = 100_000


class Terms:
    def __init__(self, config: GroupConfig, wishes: Wishes, prefetch: int) -> None:
        self.config = config
        """As the broker has it, once we are attached; of a subscription by prefix, as we asked for it."""
        self.prefetch = prefetch
        """Of groups that deliver at most once nothing is fetched ahead: what waits here would be lost with us."""
        self.at_most_once = False
        """Some group of ours delivers at most once."""
        self._wishes = wishes
        self._others: dict[str, GroupConfig] = {}
        """By topic, the groups of a subscription by prefix that are not as we asked for."""

    def attached(self, answer: Attached) -> None:
        self.config = answer.config
        self._mind_mode(answer.config)
        self._wishes.compare([answer.config])
        self._others.clear()
        self.learn(answer.groups)

    def learn(self, groups: Sequence[GroupConfig]) -> None:
        for config in groups:
            if len(self._others) < _TOPICS_MAX:
                self._others[config.topic] = config
            self._mind_mode(config)
        self._wishes.compare(groups)

    def _mind_mode(self, config: GroupConfig) -> None:
        if config.mode == AT_MOST_ONCE:
            self.prefetch = 0
            self.at_most_once = True

    def of(self, topic: str) -> GroupConfig:
        """The settings of our group on a topic."""
        return self._others.get(topic, self.config) if self._others else self.config
