"""Messages that are settled after their consumer was closed: they were given back, and whoever settles is told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.either import do, entered
from towline.errors import Closed


async def test_what_is_settled_after_its_consumer_was_closed_is_an_error(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"%d" % n for n in range(6)]))
        messages: list[Any] = []
        async with entered(mq.consumer(topic, group="g")) as consumer:
            while len(messages) < 6:
                messages += (await do(consumer.pull(max_messages=6 - len(messages), wait=5))).messages
            messages[0].ack()
        messages[0].ack()  # settled before: this says nothing new
        late = f"the consumer of topic {topic} was closed before the message was settled"
        for _ in range(2):
            with pytest.raises(Closed, match=late):
                messages[1].ack()
        for wrong in (messages[2].nack, messages[3].dead):
            with pytest.raises(Closed, match=late):
                wrong("no")
        with pytest.raises(Closed, match=late), messages[4]:
            pass
        assert not messages[4].settled
        again: list[bytes] = []
        async with entered(mq.consumer(topic, group="g")) as consumer:
            while len(again) < 5:
                batch = await do(consumer.pull(wait=5))
                again += batch.bodies()
                assert {message.attempt for message in batch} <= {1}
                await do(batch.ack())
        assert sorted(again) == [b"1", b"2", b"3", b"4", b"5"]
        with pytest.raises(Closed):
            await do(batch.ack())
