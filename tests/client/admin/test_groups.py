"""Moving groups, letting them rest and emptying topics, through the clients."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.client.either import do, entered
from towline.errors import BadRequest, LeaseLost


async def test_a_group_is_moved(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"0", b"1", b"2"]))
        async with entered(mq.consumer(topic, group="g")) as consumer:
            batch = await do(consumer.pull(wait=60))
            assert (await do(mq.seek(topic, "g", "earliest", dry_run=True))).again == 3
            await do(mq.seek(topic, "g", {"middle": 1}))
            with pytest.raises(LeaseLost):
                await do(batch.ack())
            again = await do(consumer.pull(wait=60))
            assert again.bodies() == [b"0", b"1", b"2"], "the first was not settled, either"
            assert (await do(mq.seek(topic, "g", datetime.now(UTC)))).passed == 3
            for wrong in ("yesterday", {}, {"middle": -1}, {"purple": 1}):
                with pytest.raises(BadRequest):
                    await do(mq.seek(topic, "g", wrong))


async def test_a_group_rests_and_a_topic_is_emptied(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"0", b"1", b"2"]))
        async with entered(mq.consumer(topic, group="g")) as consumer:
            await do(mq.pause(topic, "g", "deploying"))
            assert not await do(consumer.pull(wait=0))
            assert (await do(mq.group(topic, "g"))).config.pause_reason == "deploying"
            await do(mq.resume(topic, "g"))
            assert len(await do(consumer.pull(1, wait=60))) == 1
            assert (await do(mq.purge(topic, dry_run=True))).messages == 3
            assert (await do(mq.purge(topic))).groups == [("g", 3)]
            assert not await do(consumer.pull(wait=0))
        await do(mq.edit_topic(topic, retention_s=60))
        assert (await do(mq.topic(topic))).config.retention_s == 60
