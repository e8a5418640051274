"""Scopes of requests: the broker of a node that each is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from towline.broker.access.permissions import topic_of_stream

__all__ = ["HERE", "HERE_OR_TOPIC", "SUBSCRIPTION", "TOPIC", "Scope", "topics_of", "whole"]


@dataclass(frozen=True, slots=True)
class Scope:
    here: bool = False
    """Answered by any node, for itself or for all, unless it names a `topic` or a `subscription`."""
    topic: bool = False
    """For the broker of its topic; of the first realm, if it names none."""
    subscription: bool = False
    whole: str = ""
    """Why it needs a node with one realm: it concerns one, and does not name it."""


HERE: Final = Scope(here=True)
TOPIC: Final = Scope(topic=True)
HERE_OR_TOPIC: Final = Scope(here=True, topic=True)
SUBSCRIPTION: Final = Scope(here=True, subscription=True)


def whole(what: str, *, topic: bool = False) -> Scope:
    """With `topic`, unless it names one."""
    return Scope(topic=topic, whole=what)


def topics_of(request: Any) -> set[str]:
    """The topics of a request; none if it is about everything."""
    frames = getattr(request, "frames", None)
    if frames:
        return {frame.topic for frame in frames}
    config = getattr(request, "config", None)
    topic = getattr(request, "topic", "")
    if not topic and config is not None and not getattr(request, "template", False):
        topic = getattr(config, "topic", "") or config.name
    if not topic:
        stream = getattr(request, "stream", "") or getattr(request, "prefix", "") + "*"
        topic = topic_of_stream(stream) if stream.count("/") >= 2 else ""
    return {topic} if topic else set()
