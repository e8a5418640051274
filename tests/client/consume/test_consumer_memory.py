"""What a consumer keeps in memory: a message may be as large as a frame, also if it came compressed in 2 kB."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.client.conftest import Served
from tests.client.either import do, each, entered
from tests.inside.client import MessageBlock
from towline.errors import LeaseLost

COUNT = 24
KEPT = 8
"""The one that is worked on, the next one, and those of whose acks the broker is being told."""


@pytest.fixture
def uncollected() -> Iterator[None]:
    """The garbage collector comes by when there are many new objects. Large messages are few."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def blocks() -> int:
    return sum(type(one) is MessageBlock for one in gc.get_objects())


@pytest.mark.parametrize("mode", ["at-least-once", "at-most-once"])
@pytest.mark.usefixtures("uncollected")
async def test_settled_messages_do_not_wait_for_the_garbage_collector(
    connect: Any, shared_broker: Served, topic: str, mode: str
) -> None:
    async with entered(connect(f"towline://{shared_broker.address}")) as mq:
        await do(mq.send_many(topic, [b"x"] * COUNT))
        before = blocks()
        for settle in ("ack", "nack", "dead") if mode == "at-least-once" else ("ack",):
            options = {"max_messages": 1, "mode": mode}
            async with entered(mq.consumer(topic, group=f"{settle}-all", **options)) as consumer:
                for _ in range(COUNT):
                    batch = await do(consumer.pull(wait=60))
                    if settle == "dead":
                        batch[0].dead()
                        await do(consumer.flush())
                    else:
                        await do(getattr(batch, settle)())
                    assert len(batch.bodies()) == 1
                    assert batch[0].settled
                    assert not batch[0].lost
                assert blocks() <= before + KEPT
            async with entered(mq.consumer(topic, group=settle, **options)) as consumer:
                left = COUNT
                async for message in each(consumer):
                    getattr(message, settle)()
                    left -= 1
                    if not left:
                        break
                assert blocks() <= before + KEPT


@pytest.mark.usefixtures("uncollected")
async def test_messages_that_were_taken_away_do_not_wait_for_it_either(
    connect: Any, shared_broker: Served, topic: str
) -> None:
    async with entered(connect(f"towline://{shared_broker.address}")) as mq:
        await do(mq.send(topic, b"x"))
        before = blocks()
        async with entered(mq.consumer(topic, group="g")) as consumer:
            for _ in range(COUNT):
                batch = await do(consumer.pull(1, wait=60))
                await do(mq.seek(topic, "g", "earliest"))
                with suppress(LeaseLost):  # what pytest keeps of an error holds the batch
                    await do(batch.ack())
                assert batch[0].lost
            assert blocks() <= before + KEPT
