"""What connections, groups and topics leave behind: nothing that only the collector of garbage finds."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest

from tests.eventually import eventually_done
from tests.inside.broker import Broker, Dispatcher, Server, Session, Topic, open_store
from tests.inside.ground import BrokerSettings
from towline.aio import Client, connect
from towline.model import RetryPolicy


async def sends(mq: Client) -> None:
    await mq.send("orders", b"x")


async def produces(mq: Client) -> None:
    async with mq.producer() as producer:
        await (await producer.send("orders", b"x"))


async def consumes(mq: Client) -> None:
    await mq.send("orders", b"x")
    async with mq.consumer("orders", "billing") as consumer:
        await (await consumer.pull(max_messages=1, wait=60)).ack()


async def waits(mq: Client) -> None:
    """The consumer leaves while its pull waits."""
    async with mq.consumer("empty", "billing") as consumer:
        pulling = asyncio.create_task(consumer.pull(wait=60))
        await eventually_done(lambda: mq.group("empty", "billing"), holds=lambda group: group.members[0].waiting)
        pulling.cancel()


async def subscribes(mq: Client) -> None:
    await mq.send("orders.eu", b"x")
    async with mq.consumer("orders.*", "billing") as consumer:
        await (await consumer.pull(max_messages=1, wait=60)).ack()


@pytest.mark.parametrize("use", [sends, produces, consumes, waits, subscribes])
async def test_a_connection_that_is_gone_is_no_garbage(use: Callable[[Client], Awaitable[None]]) -> None:
    settings = BrokerSettings(store="memory:", reconnect_grace_s=0.01)
    broker = await Broker.open(await open_store(settings), settings)
    server = await Server.start(broker, "127.0.0.1", 0, None)
    others = of_tests_before(Session)
    gc.disable()
    try:
        for _ in range(4):
            async with connect(f"towline://127.0.0.1:{server.port}") as mq:
                await use(mq)
        await eventually_done(lambda: server.connections, holds=lambda count: count == 0)
        # Who was heard last is looked after until another one is heard.
        await eventually_done(lambda: left_behind(others, Session), holds=lambda left: left <= 1)
    finally:
        gc.enable()
        await server.drain_and_close()
        await broker.close()


async def deletes_group(mq: Client) -> None:
    await consumes(mq)
    await mq.delete_group("orders", "billing")


async def deletes_topic(mq: Client) -> None:
    await fails(mq)
    await mq.delete_topic("orders")


async def deletes_subscribed(mq: Client) -> None:
    await subscribes(mq)
    await mq.delete_topic("orders.eu")


async def fails(mq: Client) -> None:
    """A message is delayed, one is a dead letter, one is held."""
    await mq.send("orders", b"x", delay=600)
    await mq.send("orders", b"x")
    async with mq.consumer("orders", "billing", retry=RetryPolicy(max_attempts=1)) as consumer:
        await (await consumer.pull(max_messages=1, wait=60)).nack("it always fails")
        await mq.send("orders", b"x")
        await consumer.pull(max_messages=1, wait=60)


@pytest.mark.parametrize("use", [deletes_group, deletes_topic, deletes_subscribed])
async def test_groups_and_topics_that_are_gone_are_no_garbage(use: Callable[[Client], Awaitable[None]]) -> None:
    settings = BrokerSettings(store="memory:", reconnect_grace_s=0.01)
    broker = await Broker.open(await open_store(settings), settings)
    server = await Server.start(broker, "127.0.0.1", 0, None)
    others = of_tests_before(Topic, Dispatcher)
    gc.disable()
    try:
        for _ in range(4):
            async with connect(f"towline://127.0.0.1:{server.port}") as mq:
                await use(mq)
            await broker.maintain()
            await broker.outlook.census._walk()
        others += [*broker.topics.values(), *broker.topics.dispatchers()]
        await eventually_done(lambda: left_behind(others, Topic, Dispatcher), holds=lambda left: left <= 2)
    finally:
        gc.enable()
        await server.drain_and_close()
        await broker.close()


def of_tests_before(*kinds: type) -> list[object]:
    """What other tests of this process have left: held, so that nothing new gets their place in memory."""
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, kinds)]


def left_behind(others: list[object], *kinds: type) -> int:
    """How many there are besides the others."""
    known = set(map(id, others))
    return sum(isinstance(one, kinds) and id(one) not in known for one in gc.get_objects())
