"""A consumer that is, or was a moment ago, connected."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from towline.broker.broker import Broker
    from towline.broker.consume.dispatcher import Dispatcher
    from towline.broker.consume.prefix_subscription import PrefixSubscription
    from towline.model import GroupConfig
    from towline.protocol.cluster import ClientState

__all__ = ["KEEPS_UP_S", "Member"]

KEEPS_UP_S: Final = 0.05
"""A consumer that holds something, and settled nothing for longer, may be stuck: nothing is pushed to it, others may be
quicker."""


class Member:
    """One consumer of one group. A second one under the same name takes over, and fences this one."""

    __slots__ = (
        "address",
        "broker",
        "consumer",
        "dispatcher",
        "fenced",
        "going",
        "grace",
        "held",
        "last_seen_s",
        "parting",
        "settled_s",
        "subscription",
        "waiting",
    )

    def __init__(self, broker: Broker, dispatcher: Dispatcher, consumer: str, address: str, now_s: float) -> None:
        self.broker = broker
        self.dispatcher = dispatcher
        self.consumer = consumer
        self.address = address
        self.last_seen_s = now_s
        self.settled_s = now_s
        """When it settled something last, or held nothing yet."""
        self.held: list[int] = []
        self.fenced = False
        self.waiting = False
        self.subscription: PrefixSubscription | None = None
        """The subscription by prefix that it is a part of."""
        self.parting: tuple[bool, str] | None = None
        """How it left, if that is not recorded yet: whether it vanished, and the reason."""
        self.going = False
        """Its messages are being taken back: a consumer that comes under its name keeps none of them."""
        self.grace: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """Whether a pull waits for messages of this topic, alone or with all others of its subscription."""
        return self.waiting or (self.subscription is not None and self.subscription.waiting)

    @property
    def config(self) -> GroupConfig:
        return self.dispatcher.group.config

    def take_news(self) -> list[GroupConfig]:
        """Of one topic, `config` tells all."""
        return []

    @property
    def shards(self) -> int:
        shards = self.dispatcher.group.shards
        return shards.count if shards is not None else 0

    @property
    def resource(self) -> str:
        """The name of the resource for permissions."""
        return self.config.topic

    @property
    def in_flight(self) -> int:
        return self.dispatcher.group.in_flight.get(self.consumer, 0)

    def keeps_up(self, granted: int, now_s: float) -> bool:
        """Whether it settles what it is given. It was granted so many messages just now."""
        if self.in_flight == granted:
            self.settled_s = now_s
        return now_s - self.settled_s < KEEPS_UP_S

    @property
    def members(self) -> list[Member]:
        return [self]

    def describe(self, about: ClientState) -> ClientState:
        """The state of this consumer for the membership; `about` is its connection."""
        group, names = self.dispatcher.group, sorted(self.dispatcher.members)
        return msgspec.structs.replace(
            about,
            role="consumer",
            topic=group.config.topic,
            group=group.config.name,
            consumer=self.consumer,
            rank=names.index(self.consumer) if self.consumer in names else -1,
            total=len(names),
            in_flight=group.in_flight.get(self.consumer, 0),
            waiting=self.waits,
        )

    def end_waiting(self) -> None:
        """A waiting pull of it is answered with nothing."""
        self.dispatcher.release(self)

    def cancel_grace(self) -> None:
        if self.grace is not None:
            self.grace.cancel()
            self.grace = None
