"""The subscriptions of a connection: its consumers by number, and the view of the connection for permissions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from towline.broker.broker import Broker
from towline.broker.consume.member import Member
from towline.broker.consume.prefix_subscription import PrefixSubscription
from towline.errors import NotFound, TooMany

__all__ = ["SUBSCRIPTIONS_MAX", "Subscriptions", "View"]

SUBSCRIPTIONS_MAX: Final = 1_000


class Subscriptions(dict[int, Member | PrefixSubscription]):
    """Subscriptions are numbered from 1 on, and no number is given twice."""

    def __init__(self) -> None:
        super().__init__()
        self._last = 0

    def numbered(self, subscription: int) -> Member | PrefixSubscription:
        member = self.get(subscription)
        if member is None:
            raise NotFound(f"there is no subscription {subscription} on this connection: attach first")
        return member

    def check_room(self) -> None:
        if len(self) >= SUBSCRIPTIONS_MAX:
            raise TooMany(f"a connection has at most {SUBSCRIPTIONS_MAX} subscriptions: open another one")

    def add(self, member: Member | PrefixSubscription) -> int:
        self._last += 1
        self[self._last] = member
        return self._last

    def in_flight(self) -> int:
        return sum(member.in_flight for member in self.values())


class View:
    """A connection as the table of permissions sees it."""

    def __init__(self, broker: Broker, members: Mapping[int, Member | PrefixSubscription], token: bytes) -> None:
        self._members = members
        self._token = token
        self.has_topic = broker.has_topic
        self.has_group = broker.has_group
        self._topics_of = broker.topics_of
        self._owners_of_sink = broker.owners_of_sink

    def subscribed(self, subscription: int) -> tuple[str, str] | None:
        member = self._members.get(subscription)
        return None if member is None else (member.resource, member.config.name)

    def topics_of(self, transaction: str) -> Sequence[str]:
        return self._topics_of(transaction, self._token)

    def may_have_sink(self, name: str) -> bool:
        return self._owners_of_sink(name) <= {b"", self._token}
