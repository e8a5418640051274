"""The times of a consumer's heartbeats."""

from __future__ import annotations

import time
from typing import Final, Protocol

from towline.client.consume.subscription import Subscription
from towline.client.link.connection import Call, Connection

__all__ = ["HeartbeatTimer"]


_WATCH_S: Final = 0.1
"""A broker keeps a consumer's leases for half a second after the connection broke."""
_BUSY_S: Final = 2.0


class _Link(Protocol):
    connection: Connection
    last_sent: float
    last_received: float

    def give_up(self, error: Exception) -> None: ...


class HeartbeatTimer:
    """Both drivers look every `tick_s` seconds whether a beat is due."""

    def __init__(self, link: _Link, subscription: Subscription) -> None:
        self._link = link
        self._subscription = subscription
        self._beat: Call | None = None
        """The oldest that is not answered yet."""
        self._beaten_at = 0.0
        self._asked_at = 0.0
        """When the last beat was due."""
        self._contact_at = time.monotonic()
        """The broker has heard of us at least until then."""
        self._busy_until = 0.0
        self.watch_s = min(subscription.ack_interval_s, _WATCH_S)
        """How soon a broken connection must be noticed, and acks be sent."""

    @property
    def beat_s(self) -> float:
        welcome = self._link.connection.welcome
        return welcome.heartbeat_s / 3 if welcome is not None else 1.0

    @property
    def tick_s(self) -> float:
        """Short while there are leases, or were a moment ago; else just often enough to beat."""
        busy = self._subscription.holds or time.monotonic() < self._busy_until
        return min(self.watch_s, self.beat_s / 2) if busy else self.beat_s / 2

    def stir(self) -> float:
        """Messages came: returns until when looking after them may wait."""
        now = time.monotonic()
        self._busy_until = now + _BUSY_S
        return now + self.watch_s

    def judge(self, now: float) -> None:
        """Drop the leases that the broker must have taken away by now."""
        connection = self._link.connection
        if connection.ready:
            self._contact_at = max(self._contact_at, min(self._link.last_sent, self._link.last_received))
        silent_s = now - self._contact_at
        gone = connection.welcome is not None and silent_s > connection.welcome.heartbeat_s
        self._subscription.judge(now, silent_s if gone else 0.0)

    def due(self, now: float) -> Call | None:
        """A beat to send now: if nothing else was sent lately, or to learn whether our leases still stand. A connection
        that does not answer beats is given up."""
        link, beat = self._link, self._beat
        if not link.connection.ready:
            self._beat = None
            return None
        if beat is not None and beat.done:
            self._beat = beat = None
        if beat is not None and now - max(self._beaten_at, link.last_received) > 2 * self.beat_s:
            # Alive brokers answer. This one, or the network between, is gone without a word.
            self._beat = None
            link.give_up(TimeoutError("the broker does not answer the heartbeat"))
            return None
        asks = self._subscription.holds and now - self._asked_at >= self.beat_s
        if now - link.last_sent < self.beat_s / 2 and not asks:
            return None
        self._asked_at = now
        call = self._subscription.beat()
        if beat is None:
            self._beat, self._beaten_at = call, now
        return call
