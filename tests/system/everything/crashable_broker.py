"""A broker that can be looked into, killed and robbed of its power, with a clock that goes as the test wants."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.broker.conftest import Got
from tests.inside.broker import Broker, Dispatcher, Member, PrefixSubscription
from tests.inside.delivery import Event, decode_event
from tests.inside.frame import Frame, encode
from tests.inside.ground import SECOND_US, BrokerSettings
from tests.inside.protocol import Act, Attach, FrameHead, Prepare, Pull
from tests.inside.sql import open_sql
from tests.inside.store import LogSettings, LogStore, MemoryStore, Store
from tests.store.log.test_power_cut import PowerCutIo, copy_if_there
from tests.store.sql.server import copied_database, drop_database, mariadb, new_database, sql_settings
from tests.system.everything.model import SETUPS, TOPICS, Item, Key, Lane, Unit
from tests.unit.delivery.ledger import Name
from towline.model import Durability, GroupConfig, RetryPolicy, TopicConfig

HEARTBEAT_S = 30.0


class TwoClocks:
    """The time of day, which may be set, and the steady one."""

    def __init__(self) -> None:
        self.wall_us = 1_700_000_000 * SECOND_US
        self.steady_us = 0
        self.latest_us = self.wall_us

    def now_us(self) -> int:
        return self.wall_us

    def steady_s(self) -> float:
        return self.steady_us / SECOND_US

    def advance(self, seconds: float) -> None:
        """Time passes; a negative amount is a clock that is set back while nothing passes."""
        self.wall_us += round(seconds * SECOND_US)
        self.steady_us += max(round(seconds * SECOND_US), 0)
        self.latest_us = max(self.latest_us, self.wall_us)


class Plant:
    """`kind` is memory, os (survives a kill), fsync (survives a power cut) or sql (as a kill leaves a database)."""

    def __init__(self, kind: str, folder: Path, chance: random.Random, io: type[PowerCutIo] = PowerCutIo) -> None:
        self.kind = kind
        self._make_io = io
        self.clock = TwoClocks()
        self._folder = folder
        self._chance = chance
        self._lives = 0
        self.path = Path(new_database().rpartition("/")[2]) if kind == "sql" else folder / "0"
        self.io = io(chance)
        self.broker: Broker
        self.store: Store

    # Life and death

    async def open(self) -> None:
        url = "memory:" if self.kind == "memory" else f"file:{self.path}"
        if self.kind == "sql":
            url = mariadb().url(str(self.path))
        settings = BrokerSettings(
            store=url,
            durability="fsync" if self.kind == "fsync" else "os",
            min_free_bytes=0,
            maintenance_s=3600.0,
            heartbeat_s=HEARTBEAT_S,
            reconnect_grace_s=0.0,
            dedup_window_s=86400.0,
            tx_check_after_s=60.0,
        )
        if self.kind == "memory":
            self.store = MemoryStore(clock=self.clock)
        elif self.kind == "sql":
            self.store = await open_sql(sql_settings(url), owner="plant", clock=self.clock)
        else:
            self.io = self._make_io(self._chance)
            self.io.in_order = True
            self.io.trust(self.path)
            limits = LogSettings(segment_bytes=64 << 10, min_free_bytes=0)
            self.store = await LogStore.open(self.path, limits, clock=self.clock, io=self.io)
        self.broker = await Broker.open(self.store, settings, clock=self.clock)

    async def found(self) -> None:
        """Make the topics and groups."""
        for topic, shards in TOPICS.items():
            await self.broker.topics.create(TopicConfig(topic, shards=shards))
        for one in SETUPS:
            await self.broker.groups.put(
                GroupConfig(
                    one.topic,
                    one.group,
                    retry=RetryPolicy(one.max_attempts, one.delays_s),
                    timeout_s=one.timeout_s,
                    max_in_flight=one.max_in_flight,
                    share=one.share,
                    mode="at-most-once" if one.once else "at-least-once",
                    expired_to_dead=one.expired_to_dead,
                )
            )

    def copy(self, *, power_cut: bool) -> Path:
        """The folder as a kill or a power cut would leave it now."""
        if self.kind == "sql":
            return Path(copied_database(mariadb().url(str(self.path))).rpartition("/")[2])
        self._lives += 1
        to = self._folder / str(self._lives)
        if power_cut:
            self.io.cut(self.path, to)
        else:
            shutil.copytree(self.path, to, copy_function=copy_if_there)
        (to / "lock").unlink(missing_ok=True)
        return to

    async def reopen(self, path: Path | None = None) -> None:
        """End this broker, and start one on its folder or on a copy."""
        await self.broker.close()
        old, self.path = self.path, path or self.path
        if old != self.path:
            drop_database(f"/{old}") if self.kind == "sql" else shutil.rmtree(old)
        await self.open()
        await self.settle()

    # Looking

    def dispatcher(self, key: Key) -> Dispatcher:
        return self.broker.topics[key[0]].groups[key[1]]

    def states(self, key: Key) -> dict[Name, tuple[object, ...]]:
        """Every message that is not over and done with in this group; none may be in two states."""
        group = self.dispatcher(key).group
        found: dict[Name, tuple[object, ...]] = {}
        total = 0

        def note(lane: int, first: int, count: int, *state: object) -> None:
            nonlocal total
            total += count
            found.update({(lane, number): state for number in range(first, first + count)})

        for lane, at in enumerate(group.next):
            end = self.dispatcher(key).lanes[lane].end
            note(lane, at, max(end - at, 0), "waiting", 1)
        for part, due_us in group.retries:
            note(part.lane, part.first, part.count, "retrying", part.attempt, due_us)
        for lease in group.leases.values():
            for part in lease.open:
                note(part.lane, part.first, part.count, "leased", part.attempt, lease.pull)
        for part in group.dying:
            note(part.lane, part.first, part.count, "dying", part.attempt)
        assert len(found) == total, "a message is in two states"
        return found

    async def read(self, stream: str, at: int = 0) -> list[bytes]:
        found: list[bytes] = []
        at = max(at, self.store.bounds(stream).first)
        while at < self.store.bounds(stream).end:
            read = await self.store.read(stream, at, 1000, 1 << 20)
            assert not read.lost
            for chunk in read.chunks:
                found += Frame(chunk.frame).bodies(chunk.start, chunk.start + chunk.count)
            at = read.next
        return found

    async def events(self, key: Key, position: int) -> list[Event]:
        """What happened in a group, from event number `position` on."""
        self.dispatcher(key).log.catch_up()
        await self.store.append([], Durability.OS).done
        return [decode_event(record) for record in await self.read(f"pull/{key[0]}/{key[1]}", position)]

    # Doing

    async def settle(self) -> None:
        """Let all that goes on by itself come to its end."""
        async with asyncio.timeout(60):
            await asyncio.sleep(0)
            while self.broker.groups.burying or any(one.group.dying for one in self.broker.topics.dispatchers()):
                await asyncio.sleep(0)
        await self.broker.scheduler.catch_up()
        for dispatcher in self.broker.topics.dispatchers():
            dispatcher.log.catch_up()
        await self.store.append([], Durability.OS).done
        for _ in range(3):
            await asyncio.sleep(0)

    async def attach(self, key: Key, consumer: str, holding: Sequence[int] = ()) -> Member:
        return await self.broker.consumers.attach(Attach(*key, consumer, None, list(holding)), address="test")

    async def attach_by_prefix(self, group: str, consumer: str, holding: Sequence[int] = ()) -> PrefixSubscription:
        request = Attach("*", group, consumer, None, list(holding))
        fan = await self.broker.consumers.fan(request, address="test", may=lambda _: True)
        fan.broker = self.broker
        return fan

    async def pull(
        self, member: Member | PrefixSubscription, count: int, max_bytes: int, acts: Sequence[Act] = ()
    ) -> Got:
        answer, buffers = await self.broker.consumers.pull(member, Pull(0, count, max_bytes, acts=list(acts)))
        return Got(answer, b"".join(buffers))

    async def prepare(self, name: str, frames: Sequence[tuple[str, int, bytes]]) -> None:
        heads = [FrameHead(topic, lane, len(frame), TOPICS[topic]) for topic, lane, frame in frames]
        request = Prepare(name, "shop", name, heads)
        await self.broker.transactions.prepare(request, [frame for _, _, frame in frames])


def frames_of(unit: Unit, seq: int = 0) -> list[tuple[str, int, bytes]]:
    """A unit as it goes to the broker; numbered if `seq` is given."""
    frames = []
    for number, ((topic, lane), items) in enumerate(unit):
        columns: dict[str, Any] = {"producer_id": 7, "producer_seq": seq + number} if seq else {}
        if any(item.dedup for item in items):
            columns["dedup_ids"] = [item.dedup for item in items]
        if any(item.delay_s is not None for item in items):
            # Below 0 it is a delay.
            columns["deliver_at_us"] = [-round((item.delay_s or 0) * SECOND_US) for item in items]
        if any(item.expires_us for item in items):
            columns["expires_at_us"] = [item.expires_us for item in items]
        if any(item.timeout_us for item in items):
            columns["limits"] = [item.timeout_us for item in items]
        frames.append((topic, lane, encode([item.body for item in items], **columns)))
    return frames


__all__ = ["HEARTBEAT_S", "Item", "Lane", "Plant", "TwoClocks", "frames_of"]
