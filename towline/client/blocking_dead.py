"""Dead letters, as a blocking client looks at them, sends them again or drops them. Its twin is `aio_dead`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from towline.client import dead, flows
from towline.client.message import DeadLetter, Page
from towline.client.outgoing import Body
from towline.client.steps import Flow

__all__ = ["Reviving"]

T = TypeVar("T")


class Reviving:
    def _run(self, topic: str, flow: Flow[T]) -> T:
        raise NotImplementedError

    def dead_letters(
        self, topic: str, group: str, *, first: int = 0, max_messages: int = 100, max_bytes: int = 4 << 20
    ) -> Page[DeadLetter]:
        """The messages that a group gave up."""
        return self._run(topic, flows.dead_letters(topic, group, first, max_messages, max_bytes))

    def dead_letter(self, topic: str, group: str, number: int) -> DeadLetter:
        """One dead letter of a group, by its number."""
        return self._run(topic, dead.letter(topic, group, number))

    def find_dead(
        self,
        topic: str,
        group: str,
        *,
        reason: str = "",
        key: str | None = None,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        resent: bool = False,
        first: int = 0,
        limit: int = 1000,
    ) -> list[DeadLetter]:
        """Dead letters whose reason contains `reason`, with this key, that died since one time and before another;
        those that were sent again only with `resent`. The oldest `limit` of them, from number `first` on."""
        found = dead.find(
            topic, group, reason=reason, key=key, since=since, until=until, resent=resent, first=first, limit=limit
        )
        return self._run(topic, found)

    def resend(self, topic: str, group: str, dead: Sequence[int] | None = None) -> int:
        """Deliver dead letters to their group again: those with these numbers, or all. How many it were."""
        return self._run(topic, flows.resend(topic, group, dead))

    def revise(
        self,
        topic: str,
        group: str,
        number: int,
        *,
        body: Body | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Deliver one dead letter to its group again, with another body, key or headers; what is None stays."""
        self._run(topic, dead.revise(topic, group, number, body=body, key=key, headers=headers))

    def purge_dead(self, topic: str, group: str, before: int) -> int:
        """Drop the dead letters before this number for good. How many of them had not been sent again."""
        return self._run(topic, dead.purge(topic, group, before))
