"""The rows of this broker and of its consumers in the database's table `mq_registry`.

People and programs read it with SQL. All beats of a broker are one statement, every ten seconds; changes are there two
seconds later. Rows of brokers that died are dropped by those that live.
"""

from __future__ import annotations

import asyncio
import logging
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from towline.errors import TowlineError
from towline.format import FORMAT
from towline.store.sql import BROKER, CONSUMER, Entry, Roster
from towline.version import __version__

if TYPE_CHECKING:
    from towline.broker.broker import Broker
    from towline.protocol.cluster import ClientState

__all__ = ["RegistryTable"]

log = logging.getLogger("towline.cluster")

LOOK_S: Final = 2.0
BEAT_S: Final = 10.0
GONE_S: Final = 60.0
NAME_MAX: Final = 200


class _Broker(msgspec.Struct):
    name: str
    epoch: int
    realms: list[str]
    format: int
    towline: str


class _Consumer(msgspec.Struct):
    broker: str
    topic: str
    group: str
    consumer: str
    rank: int
    total: int
    token: str


class RegistryTable:
    def __init__(self, broker: Broker, roster: Roster, *, itself: bool) -> None:
        self._broker = broker
        self._registry = broker.registry
        self._roster = roster
        self._itself = itself
        """Whether the broker's own row is ours to write."""
        self._written: dict[str, Entry] = {}
        """Our rows in the table."""
        self._there: dict[str, str] = {}
        """The kinds of all rows that may be in it by their names: also of those whose writing had no answer."""
        self._beat_s = -BEAT_S
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(
            self._broker.lag.timed("writing who is here", self._work()), name="towline-roll"
        )

    async def stop(self) -> None:
        """Remove all our rows."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        try:
            await self._roster.leave_all([(kind, name) for name, kind in self._there.items()])
        except TowlineError as error:
            log.debug("the rows of this broker in mq_registry are left to expire: %s", error)

    async def _work(self) -> None:
        while True:
            try:
                await self._tell()
            except TowlineError as error:
                log.debug("mq_registry could not be written: %s", error)
            except Exception:
                log.exception("writing mq_registry failed")
            await asyncio.sleep(LOOK_S)

    async def _tell(self) -> None:
        entries = {entry.name: entry for entry in self._entries()}
        now_s = asyncio.get_running_loop().time()
        due = now_s - self._beat_s >= BEAT_S
        news = [entry for name, entry in entries.items() if due or self._written.get(name) != entry]
        if news:
            self._there.update((entry.name, entry.kind) for entry in news)
            await self._roster.beat_all(news)
            self._written.update((entry.name, entry) for entry in news)
        gone = [name for name in self._there if name not in entries]
        if gone:
            await self._roster.leave_all([(self._there[name], name) for name in gone])
            for name in gone:
                del self._there[name]
                self._written.pop(name, None)
        if due:
            self._beat_s = now_s
            await self._roster.drop_silent(CONSUMER, GONE_S)
            await self._roster.drop_silent(BROKER, GONE_S)

    def _entries(self) -> list[Entry]:
        registry = self._registry
        mine = []
        if self._itself:
            me = registry.me()
            realms = sorted(self._broker.realms.owned) if self._broker.realms is not None else []
            data = _Broker(me.name, me.epoch, realms, FORMAT, __version__)
            mine.append(Entry(BROKER, registry.id, registry.address, msgspec.to_builtins(data)))
        states = [one for visitor in list(registry.visitors) for one in visitor.describe() if one.consumer]
        return [*mine, *(self._entry(one) for one in states)]

    def _entry(self, one: ClientState) -> Entry:
        name = "/".join((self._registry.id, one.topic, one.group, one.consumer))
        if len(name) > NAME_MAX:
            name = name[: NAME_MAX - 17] + "~" + blake2b(name.encode(), digest_size=8).hexdigest()
        place = (one.topic, one.group, one.consumer, one.rank, one.total)
        data = _Consumer(self._broker.settings.name, *place, one.token)
        return Entry(CONSUMER, name, one.address, msgspec.to_builtins(data))
