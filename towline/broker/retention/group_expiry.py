"""Expiry of unused groups: when, with which notice beforehand, and their removal.

A group is used while a consumer is attached; when one comes or goes, when a job or another broker reports for it, and
when an administrator changes, pauses or moves it or handles its dead letters. To look at it is no use of it. What
counts is how long a broker has run since: neither a clock that is set nor a month without a broker makes a group any
older. It is noted once an hour, and when one is used again: a crash makes groups younger by an hour at most, and none
older.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from towline.clock import Clock, TimeSlice, in_slices
from towline.format import decode_document
from towline.model import PRIVATE, GroupConfig

if TYPE_CHECKING:
    from towline.broker.consume.dispatcher import Dispatcher
    from towline.broker.consume.groups import Groups
    from towline.broker.topics.topics import Topics
    from towline.settings import BrokerSettings
    from towline.store import Store

__all__ = ["NEVER", "GroupExpiry"]

log = logging.getLogger("towline.broker")

DOCUMENT: Final = "unused.json"
NEVER: Final = -1.0
NOTICE_PART: Final = 7
"""The notice is given for this part of the time …"""
NOTICE_MAX_S: Final = 7 * 86400.0
"""… and no longer."""
GRACE_S: Final = 3600.0
"""After a start nothing is removed before that, or before the notice is over: consumers have to come back first."""
NOTE_S: Final = 3600.0
NOTE_PART: Final = 20
REMOVED_MAX: Final = 100
"""Groups that are removed in one round of maintenance."""
REMEMBERED_MAX: Final = 1_000
NAMED_MAX: Final = 5
TURN: Final = 500


class _Removed(msgspec.Struct, frozen=True):
    topic: str
    group: str
    at_us: int


class _Unused(msgspec.Struct):
    groups: dict[str, dict[str, float]] = {}
    """By topic and group, for how many seconds of running brokers nobody has used it."""
    removed: list[_Removed] = []
    """The last ones, for an error to consumers that come back."""


class GroupExpiry:
    def __init__(self, store: Store, clock: Clock, settings: BrokerSettings, topics: Topics, groups: Groups) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._opened_s = clock.steady_s()
        self._noted_s = self._opened_s
        self._written = b""
        self._noted: dict[str, dict[str, float]] = {}
        """By topic and group, the times in the note on file."""
        self._told: set[tuple[str, str]] = set()
        self._removed: dict[tuple[str, str], int] = {}
        self._remind_s = 0.0
        self.soon = 0
        """Groups that are removed soon, as of the last look."""
        self.removed = 0
        """Groups that were removed since the start."""
        self.on_removed: Callable[[str, str, str], None] = lambda topic, group, why: None
        """Called with each removed group, and the reason."""
        self.ask_others: Callable[[str], Awaitable[Mapping[str, float] | None]] | None = None
        """In a cluster whose brokers keep their own messages: for how long the others have not seen the groups of a
        topic used; None if one of them does not answer."""
        groups.on_made = self._made

    async def load(self, part: TimeSlice) -> None:
        """Load the times of the last broker on this store."""
        document = await self._store.load(DOCUMENT)
        if document is None:
            return
        try:
            known = decode_document(DOCUMENT, document, _Unused)
        except msgspec.MsgspecError as error:
            log.error("%s cannot be read (%s): no group counts as unused before this start", DOCUMENT, error)
            return
        self._written, self._noted = document, known.groups
        self._removed = {(one.topic, one.group): one.at_us for one in known.removed[-REMEMBERED_MAX:]}
        async for topic, groups in in_slices(known.groups.items(), part):
            for name, unused_s in groups.items():
                if topic in self._topics and name in self._topics[topic].groups:
                    self._topics[topic].groups[name].use(before_s=max(unused_s, 0.0))

    # Times

    def expiry_s(self, config: GroupConfig) -> float:
        """After how long an unused group is removed; 0 is never. A paused one waits for somebody."""
        if config.ephemeral or config.paused:
            return 0.0
        settings = self._settings
        return settings.broadcast_expiry_s if config.name.startswith(PRIVATE) else settings.group_expiry_s

    def left_s(self, dispatcher: Dispatcher) -> float:
        """The time until a group is removed if nobody uses it; `NEVER` if it is not."""
        expiry_s = self.expiry_s(dispatcher.group.config)
        if not expiry_s:
            return NEVER
        grace_s = min(GRACE_S, notice_s(expiry_s)) - (self._clock.steady_s() - self._opened_s)
        return max(expiry_s - dispatcher.unused_s, grace_s, 0.0)

    def notice(self, dispatcher: Dispatcher) -> float:
        """`left_s`, if notice is to be given by now; else `NEVER`."""
        left_s = self.left_s(dispatcher)
        is_soon = not dispatcher.members and left_s <= notice_s(self.expiry_s(dispatcher.group.config))
        return left_s if is_soon else NEVER

    def figures(self) -> dict[str, object]:
        return {"groups_expiring": self.soon, "groups_removed": self.removed}

    # Removal

    async def look(self) -> None:
        """Log groups that are to go soon, and remove those whose time is over: some at a time."""
        if not (self._settings.group_expiry_s or self._settings.broadcast_expiry_s):
            return
        soon: list[tuple[float, Dispatcher]] = []
        used = False
        for number, dispatcher in enumerate(list(self._topics.dispatchers())):
            if number % TURN == TURN - 1:
                await asyncio.sleep(0)
            if (left_s := self.notice(dispatcher)) != NEVER:
                soon.append((left_s, dispatcher))
            used = used or self._is_used_since(dispatcher)
        self.soon = len(soon)
        self._tell(soon)
        due = [dispatcher for left_s, dispatcher in soon if not left_s]
        await self._remove(due[:REMOVED_MAX])
        shortest_s = min(filter(None, (self._settings.group_expiry_s, self._settings.broadcast_expiry_s)))
        if used or self._clock.steady_s() - self._noted_s >= min(NOTE_S, shortest_s / NOTE_PART):
            await self.save()

    def _is_used_since(self, dispatcher: Dispatcher) -> bool:
        """Whether the note on file makes a group older than it is: a crash must not bring that back."""
        topic, name = _name(dispatcher)
        noted_s = self._noted.get(topic, {}).get(name, 0.0)
        return noted_s > dispatcher.unused_s + 1

    def _tell(self, soon: Iterable[tuple[float, Dispatcher]]) -> None:
        by_name = {_name(dispatcher): (left_s, dispatcher) for left_s, dispatcher in soon}
        news = sorted((by_name[name] for name in by_name.keys() - self._told), key=lambda one: one[0])
        self._told = set(by_name)
        if news:
            named = ", ".join(dispatcher.label for _, dispatcher in news[:NAMED_MAX])
            more = f" and {len(news) - NAMED_MAX} more" if len(news) > NAMED_MAX else ""
            log.warning(
                "nobody uses %s%s: removed in %.0f s, unless a consumer comes (group_expiry_s, broadcast_expiry_s)",
                *(named, more, news[0][0]),
            )

    async def _remove(self, due: Iterable[Dispatcher]) -> None:
        elsewhere: dict[str, Mapping[str, float] | None] = {}
        for dispatcher in due:
            topic, name = _name(dispatcher)
            expiry_s = self.expiry_s(dispatcher.group.config)
            if self.ask_others is not None:
                if topic not in elsewhere:
                    elsewhere[topic] = await self.ask_others(topic)
                if (others := elsewhere[topic]) is None:
                    self._wait_for_others()
                    continue
                if (theirs_s := others.get(name, expiry_s)) < expiry_s:
                    dispatcher.use(before_s=theirs_s)
                    continue
            lag, unused_s = dispatcher.group.lag(), dispatcher.unused_s
            if not expiry_s or not await self._groups.delete_unused(dispatcher, expiry_s):
                continue
            self.removed += 1
            why = f"nobody has used it for {unused_s:.0f} s of {expiry_s:.0f}; {lag} messages were to go"
            log.warning("%s is removed: %s", dispatcher.label, why)
            self._removed.pop((topic, name), None)
            self._removed[topic, name] = self._clock.now_us()
            while len(self._removed) > REMEMBERED_MAX:
                del self._removed[next(iter(self._removed))]
            self.on_removed(topic, name, why)
            await asyncio.sleep(0)

    def _wait_for_others(self) -> None:
        now_s = self._clock.steady_s()
        if now_s >= self._remind_s:
            self._remind_s = now_s + NOTE_S
            log.warning(
                "groups that nobody uses are kept while a broker of the cluster is away: they may be used there. One "
                "that does not come back is dropped with `towline cluster forget`"
            )

    def _made(self, config: GroupConfig) -> None:
        removed_us = self._removed.pop((config.topic, config.name), 0)
        if removed_us:
            log.warning(
                "group %s on topic %s was removed %.0f s ago, because nobody used it: it is a new one, from %s on",
                *(config.name, config.topic, (self._clock.now_us() - removed_us) / 1e6, config.start),
            )

    async def save(self) -> None:
        """Note for how long each has not been used."""
        self._noted_s = self._clock.steady_s()
        unused: dict[str, dict[str, float]] = {}
        for number, dispatcher in enumerate(list(self._topics.dispatchers())):
            if number % TURN == TURN - 1:
                await asyncio.sleep(0)
            if dispatcher.unused_s and self.expiry_s(dispatcher.group.config):
                topic, name = _name(dispatcher)
                unused.setdefault(topic, {})[name] = round(dispatcher.unused_s, 1)
        removed = [_Removed(*name, at_us) for name, at_us in self._removed.items()]
        document = msgspec.json.encode(_Unused(unused, removed))
        if document != self._written and (unused or removed or self._written):
            await self._store.save(DOCUMENT, document)
            self._written, self._noted = document, unused


def notice_s(expiry_s: float) -> float:
    return min(expiry_s / NOTICE_PART, NOTICE_MAX_S)


def _name(dispatcher: Dispatcher) -> tuple[str, str]:
    return dispatcher.group.config.topic, dispatcher.group.config.name
