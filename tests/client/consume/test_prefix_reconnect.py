"""A consumer by prefix holds messages of several topics when its connection breaks, or its broker dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.client.breaking_proxy import RoughRoad
from tests.client.conftest import Served
from tests.client.either import do, each, entered
from towline.model import RetryPolicy

TOPICS = ("shop.a", "shop.b", "shop.c")
PATIENT = ("--durability", "os", "--reconnect-grace-s", "60", "--heartbeat-s", "60")


class Broken:
    """A broker that is killed and started again, or the connection to it that is cut."""

    def __init__(self, serve: Callable[..., Served], folder: Path, how: str) -> None:
        self._serve, self._how = serve, how
        self._flags = ("--store", f"file:{folder / 'data'}", *PATIENT)
        self._broker = serve(*self._flags)
        self.road = RoughRoad(self._broker.port, 0)
        self.road.mend()

    @property
    def url(self) -> str:
        return self.road.url if self._how == "cut" else f"towline://{self._broker.address}"

    def strike(self) -> None:
        if self._how == "cut":
            self.road.cut()
        else:
            self._broker.stop(kill=True)
            self._broker = self._serve(*self._flags, port=self._broker.port)


@pytest.fixture(params=["cut", "killed"])
def broken(request: pytest.FixtureRequest, serve: Callable[..., Served], tmp_path: Path) -> Any:
    made = Broken(serve, tmp_path, request.param)
    yield made
    made.road.close()


async def lags(mq: Any) -> dict[str, int]:
    return {group.config.topic: group.lag for group in await do(mq.groups("shop.*"))}


async def test_leases_of_all_topics_are_resumed_and_acks_find_theirs(connect: Any, broken: Broken) -> None:
    async with entered(connect(broken.url)) as mq:
        for topic in TOPICS:
            await do(mq.send_many(topic, [b"%d" % number for number in range(10)]))
        retry = RetryPolicy(5, (0.0,))
        async with entered(mq.consumer("shop.*", group="g", name="one", retry=retry, max_messages=4)) as consumer:
            batches = [await do(consumer.pull(4, wait=30)) for _ in range(6)]
            assert Counter(batch[0].topic for batch in batches) == Counter(dict.fromkeys(TOPICS, 2))
            for batch in batches:
                batch[0].ack()
            # What follows the pulls of each topic is durable, so they are.
            await do(consumer.flush())
            broken.strike()
            for batch in batches[:3]:
                batch[1].nack("again", delay=0.0)
                await do(batch.ack())
            for batch in batches[3:]:
                for message in batch:
                    message.ack()
            await do(consumer.flush())
            assert consumer.lost == 0
            assert consumer.in_flight == 0
            assert await lags(mq) == dict.fromkeys(TOPICS, 3), "two that were not pulled, and one that failed"
            rest: list[tuple[str, bytes, int]] = []
            while len(rest) < 9:
                batch = await do(consumer.pull(wait=30))
                rest += [(message.topic, message.body, message.attempt) for message in batch]
                await do(batch.ack())
            assert sorted((topic, attempt) for topic, _, attempt in rest) == sorted(
                (topic, attempt) for topic in TOPICS for attempt in (1, 1, 2)
            )
        assert await lags(mq) == dict.fromkeys(TOPICS, 0)


async def test_nothing_is_lost_or_doubled_however_often_it_breaks(connect: Any, broken: Broken) -> None:
    async with entered(connect(broken.url)) as mq:
        for topic in TOPICS:
            await do(mq.send_many(topic, [b"%s %d" % (topic.encode(), number) for number in range(60)]))
        seen: Counter[bytes] = Counter()
        options = {"name": "one", "max_messages": 10, "idle_timeout": 60.0}
        async with entered(mq.consumer("shop.*", group="g", **options)) as consumer:
            async for message in each(consumer):
                with message:
                    seen[message.body] += 1
                    assert message.body.startswith(message.topic.encode())
                if sum(seen.values()) in (25, 120):
                    await do(consumer.flush())
                    broken.strike()
                if len(seen) == 180:
                    break
            await do(consumer.flush())
            lost = consumer.lost
        assert len(seen) == 180
        # A pull is not durable before something follows it: a broker that is killed may forget what it gave out last.
        assert sum(seen.values()) <= 180 + lost
        assert await lags(mq) == dict.fromkeys(TOPICS, 0)
