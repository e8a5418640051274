"""Unnamed consumers of a cluster whose brokers keep their own messages: at each they have a place of their own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.broker.raw_client import RawClient
from tests.client.either import do, entered
from tests.system.cluster.conftest import Brokers, eventually
from towline.errors import Unavailable


def send(brokers: Brokers, number: int, *bodies: bytes) -> None:
    """To one broker and no other; again if it is just making the topic, as the consumer does."""

    def taken() -> bool:
        with RawClient.hello(brokers.ports[number]) as client, suppress(Unavailable):
            client.send("orders", bodies)
            return True
        return False

    eventually(taken)


async def messages(consumer: Any, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        batch = await do(consumer.pull(wait=60))
        assert batch, f"nothing came after {found}"
        found += batch.messages
    return sorted(found, key=lambda message: message.body)


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_one_of_two_brokers_is_restarted_under_an_unnamed_consumer(
    connect: Any, cluster_of: Callable[..., Brokers], start: str
) -> None:
    brokers = cluster_of(2).start().wait_for()
    for number in (0, 1):
        send(brokers, number, b"early")
    async with (
        entered(connect(brokers.url, timeout=60)) as mq,
        entered(mq.consumer("orders", start=start, max_messages=2)) as consumer,
    ):
        if start == "earliest":
            for message in await messages(consumer, 2):
                message.ack()
        send(brokers, 0, b"done 0", b"held 0")
        send(brokers, 1, b"done 1", b"held 1")
        *done, held, _ = await messages(consumer, 4)
        for message in done:
            message.ack()
        await do(consumer.flush())
        send(brokers, 1, b"waits 1")
        brokers.kill(1)
        send(brokers, 0, b"waits 0")
        brokers.start(1)
        send(brokers, 1, b"last 1")
        seen: list[bytes] = []
        while len(set(seen)) < 4:
            for message in await messages(consumer, 1):
                seen.append(message.body)
                message.ack()
        assert not held.lost
        held.ack()
        await do(consumer.flush())
        assert not await do(consumer.pull(wait=0.2))
        # One that was fetched before the broker died may be handed out before it is back, and come again then.
        if seen.count(b"waits 1") == 2:
            seen.remove(b"waits 1")
        assert sorted(seen) == [b"held 1", b"last 1", b"waits 0", b"waits 1"]


async def test_a_broker_that_comes_with_an_empty_disk_is_new_to_an_unnamed_consumer(
    connect: Any, cluster_of: Callable[..., Brokers]
) -> None:
    brokers = cluster_of(2).start().wait_for()
    async with (
        entered(connect(brokers.url, timeout=60)) as mq,
        entered(mq.consumer("orders", start="earliest")) as consumer,
    ):
        for number in (0, 1):
            send(brokers, number, b"before", b"before", b"before")
        for message in await messages(consumer, 6):
            message.ack()
        await do(consumer.flush())
        brokers.kill(1)
        shutil.rmtree(brokers.folder / "1")
        brokers.start(1)
        send(brokers, 1, b"0", b"1", b"2", b"3", b"4")
        brokers.wait_for()
        seen: set[bytes] = set()
        while len(seen) < 5:
            for message in await messages(consumer, 1):
                seen.add(message.body)
                message.ack()
        assert seen == {b"0", b"1", b"2", b"3", b"4"}
        eventually(lambda: len(brokers.alive(0)) == 2)


async def test_a_nack_that_another_broker_took_does_not_come_again_from_its_own(
    connect: Any, cluster_of: Callable[..., Brokers]
) -> None:
    brokers = cluster_of(2).start().wait_for()
    async with (
        entered(connect(brokers.url, timeout=60)) as mq,
        entered(mq.consumer("orders", start="latest")) as consumer,
    ):
        send(brokers, 1, b"failed", b"held")
        failed, _ = sorted(await messages(consumer, 2), key=lambda message: message.seq)
        brokers.kill(1)
        failed.nack("again", delay=0.0)
        [again] = await messages(consumer, 1)
        assert (again.body, again.attempt) == (b"failed", 2)
        again.ack()
        brokers.start(1)
        send(brokers, 1, b"last")
        assert [message.body for message in await messages(consumer, 2)] == [b"held", b"last"]
