"""Finding messages, through both clients and every kind of broker."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.either import do, entered
from towline.errors import BadRequest, NotFound


async def test_messages_are_found_by_id_key_and_time(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        bodies = [b"%d" % n for n in range(3000)]
        receipts = await do(mq.send_many(topic, bodies, keys=[f"k{n % 1000}" for n in range(3000)]))
        await do(mq.send(topic, b"urgent", key="k7", priority="high"))
        assert (await do(mq.message(receipts[42].id))).body == b"42"
        found = await do(mq.find(topic, key="k7"))
        assert [message.body for message in found] == [b"7", b"1007", b"2007", b"urgent"]
        assert {message.key for message in found} == {"k7"}
        assert [m.body for m in await do(mq.find(topic, key="k7", priority="high"))] == [b"urgent"]
        assert [m.body for m in await do(mq.find(topic, key="k7", limit=2))] == [b"7", b"1007"]
        assert await do(mq.find(topic, key="k")) == []
        sent_s = receipts[0].appended_at_us / 1e6
        assert await do(mq.find(topic, key="k7", until=sent_s)) == []
        assert await do(mq.find(topic, key="k7", since=sent_s + 3600)) == []
        assert len(await do(mq.find(topic, since=sent_s - 1, limit=5000))) == 3001
        with pytest.raises(NotFound, match="not there yet"):
            await do(mq.message(f"{topic}/low/0"))
        with pytest.raises(BadRequest):
            await do(mq.find(topic, limit=0))
