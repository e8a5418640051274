"""A broker in this process, on either store, with a few short words to drive it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.inside.broker import Broker, Member, PrefixSubscription, open_store
from tests.inside.frame import Frame, encode
from tests.inside.ground import SYSTEM, BrokerSettings, Clock
from tests.inside.protocol import Act, Attach, Part, Pull, Pulled, Sent, Settled
from tests.inside.store import Store
from tests.store.sql.server import new_database
from towline.model import Durability, GroupConfig, RetryPolicy

ACK, NACK, DEAD, GIVE_BACK = range(4)

Scenario = Callable[["Bench"], Awaitable[None]]


class Bench:
    """One broker under test."""

    def __init__(self, broker: Broker, store: Store) -> None:
        self.broker = broker
        self.store = store

    async def send(self, topic: str, *bodies: bytes, lane: int = 1, **columns: Any) -> Sent:
        return await self.broker.send([(topic, lane, encode(list(bodies), **columns))])

    async def attach(
        self,
        topic: str = "orders",
        group: str = "billing",
        consumer: str = "c1",
        holding: tuple[int, ...] = (),
        delays_s: tuple[float, ...] = (0.02,),
        max_attempts: int = 3,
        **config: Any,
    ) -> Member:
        policy = RetryPolicy(max_attempts, delays_s)
        settings = GroupConfig(topic, group, retry=policy, **config)
        return await self.broker.consumers.attach(
            Attach(topic, group, consumer, settings, list(holding)), address="test"
        )

    async def pull(self, member: Member | PrefixSubscription, count: int = 100, wait_ms: int = 0, **fields: Any) -> Got:
        request = Pull(0, count, fields.pop("max_bytes", 1 << 20), wait_ms, **fields)
        answer, buffers = await self.broker.consumers.pull(member, request)
        return Got(answer, b"".join(buffers))

    async def flush(self) -> None:
        """A pull is answered before its event is written; wait until it is."""
        for dispatcher in self.broker.topics.dispatchers():
            dispatcher.log.catch_up()
        await self.store.append([], Durability.OS).done

    async def act(self, member: Member, what: int, got: Got, *spans: tuple[int, int, int], **fields: Any) -> Settled:
        return await self.broker.consumers.settle(member, [Act(what, got.pull, list(spans), **fields)])


class Got:
    """A pull's answer, with the bodies cut out of its frames."""

    def __init__(self, answer: Pulled, data: bytes) -> None:
        self.answer = answer
        self.pull = answer.pull
        self.parts: list[Part] = answer.parts
        self.bodies: list[bytes] = []
        self.attempts: list[int] = []
        at = 0
        for part in answer.parts:
            frame = Frame(data[at : at + part.length]).verify()
            at += part.length
            self.bodies += frame.bodies(part.start, part.start + part.count)
            self.attempts += [part.attempt] * part.count
        assert at == len(data)


class World:
    """Opens brokers on one kind of store; a second one on the same folder is a restart."""

    store_clock: Clock = SYSTEM

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        if kind == "sql":
            self.store_url = new_database()
        else:
            self.store_url = "memory:" if kind == "memory" else f"file:{folder / 'data'}"

    def settings(self, **given: Any) -> BrokerSettings:
        fields: dict[str, Any] = {
            "durability": "os",
            "segment_bytes": 1 << 20,
            "min_free_bytes": 0,
            "maintenance_s": 3600.0,
            "store_password_file": os.environ.get("TOWLINE_STORE_PASSWORD_FILE", ""),
        }
        fields |= given
        return BrokerSettings(store=self.store_url, **fields)

    @asynccontextmanager
    async def open(self, clock: Clock = SYSTEM, **given: Any) -> AsyncIterator[Bench]:
        settings = self.settings(**given)
        store = await open_store(settings, clock=self.store_clock)
        broker = await Broker.open(store, settings, clock=clock)
        try:
            yield Bench(broker, store)
        finally:
            await broker.close()

    def run(self, scenario: Scenario, **given: Any) -> None:
        async def main() -> None:
            async with self.open(**given) as bench:
                await asyncio.wait_for(scenario(bench), 120)

        asyncio.run(main())


@pytest.fixture(params=["memory", "log", "sql"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(request.param, tmp_path)


@pytest.fixture
def disk(tmp_path: Path) -> World:
    return World("log", tmp_path)
