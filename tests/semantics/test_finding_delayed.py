"""Messages that wait for their time are found by key and by id; when they are delivered, by key in their lane."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.either import do, entered
from towline.errors import BadRequest, NotFound


async def test_what_is_delayed_is_found_by_key_and_id(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        late = await do(mq.send(topic, b"late", key="a", delay=3_600))
        later = await do(mq.send(topic, b"later", key="a", delay=7_200, priority="high"))
        await do(mq.send(topic, b"other", key="b", delay=3_600))
        await do(mq.send_many(topic, [b"x"] * 5, keys=["c", "a", "c", "c", None], delay=10_800))
        await do(mq.send(topic, b"now", key="a"))
        found = await do(mq.delayed(topic, key="a"))
        assert [one.id for one in found][:2] == [late.id, later.id]
        assert [(one.key, one.lane) for one in found] == [("a", "middle"), ("a", "high"), ("a", "middle")]
        [second] = await do(mq.delayed(topic, key="a", after=found[0], max_messages=1))
        assert second.id == later.id
        [one] = await do(mq.delayed(topic, id=late.id))
        assert (one.id, one.size_bytes) == (late.id, 4)
        assert await do(mq.delayed(topic, key="none")) == []
        await do(mq.cancel(topic, late))
        assert await do(mq.delayed(topic, id=late)) == []
        assert len(await do(mq.delayed(topic, key="a"))) == 2
        await do(mq.reschedule(topic, later, delay=0.01))
        async with entered(mq.consumer(topic, group="g")) as consumer:
            got: set[bytes] = set()
            while got != {b"now", b"later"}:
                got |= {message.body for message in await do(consumer.pull(wait=5))}
        # It waits no more; in its lane it is found by its key.
        assert await do(mq.delayed(topic, id=later)) == []
        assert {message.body for message in await do(mq.find(topic, key="a"))} == {b"now", b"later"}
        with pytest.raises(NotFound, match="never was"):
            await do(mq.delayed(topic, id=10**9))
        with pytest.raises(BadRequest, match="of which topic"):
            await do(mq.delayed(key="a"))
