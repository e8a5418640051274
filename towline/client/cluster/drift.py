"""Drift of settings: topics and groups that brokers with their own disks have set differently; sans I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from towline.client import requests
from towline.client.cluster.ids import Label
from towline.client.cluster.routing import Outcome
from towline.client.link.flow import Flow
from towline.errors import Unavailable
from towline.model import PRIVATE, GroupConfig, TopicConfig

__all__ = ["Disagreement", "disagreements", "settings"]

Settings = tuple[list[TopicConfig], list[GroupConfig]]

_OWN: Final = ("name", "topic", "created_at_us", "paused_at_us")
"""Fields that may differ, or are no setting."""


class Disagreement(msgspec.Struct, frozen=True):
    """A setting that brokers of a cluster have with different values."""

    topic: str
    group: str
    """Empty if it is a setting of the topic itself."""
    setting: str
    values: dict[str, Any]
    """By broker; those that do not have the topic or group are left out."""
    remedy: str
    """What to do about it."""


def settings() -> Flow[Settings]:
    """All topics and groups of a broker."""
    topics = yield from requests.topics()
    groups = yield from requests.groups("")
    return [one.config for one in topics], [one.config for one in groups]


def disagreements(outcomes: Sequence[Outcome[Settings]], label: Label) -> list[Disagreement]:
    """The differences among the brokers that can be reached."""
    topics: defaultdict[tuple[str, str], dict[str, TopicConfig]] = defaultdict(dict)
    groups: defaultdict[tuple[str, str], dict[str, GroupConfig]] = defaultdict(dict)
    for one in outcomes:
        if one.error is not None and not isinstance(one.error, Unavailable):
            raise one.error
        here = label(one.broker.id)
        for topic in one.result[0] if one.result is not None else ():
            topics[topic.name, ""][here] = topic
        for group in one.result[1] if one.result is not None else ():
            if not group.ephemeral and not group.name.startswith(PRIVATE):
                groups[group.topic, group.name][here] = group
    return sorted([*_compared(topics), *_compared(groups)], key=lambda one: (one.topic, one.group, one.setting))


def _compared(configs: Mapping[tuple[str, str], Mapping[str, Any]]) -> Iterable[Disagreement]:
    for (topic, group), by_broker in configs.items():
        if len(by_broker) < 2:
            continue
        for name in next(iter(by_broker.values())).__struct_fields__:
            values = {broker: getattr(config, name) for broker, config in sorted(by_broker.items())}
            first, *others = values.values()
            if name not in _OWN and any(other != first for other in others):
                yield Disagreement(topic, group, name, values, _remedy(topic, group, name))


def _remedy(topic: str, group: str, name: str) -> str:
    if name == "shards":
        return (
            "decide which is right; at each of the others let consumers take what it has, then "
            f"`towline topic rm {topic} --broker NAME`: it takes the topic over as the others have it"
        )
    if name in ("paused", "pause_reason"):
        return f"`towline group pause {topic} {group}`, or `resume`: it reaches all brokers"
    command = "topic edit" if not group else "group create"
    return f"set it once more, with `towline {command} {topic} {group}`".rstrip("` ") + " …`: it reaches all brokers"
