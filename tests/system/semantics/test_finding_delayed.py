"""Messages that wait for their time are found by key and by id; in their lane, by key, or by the id they had before."""

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
        # It waits no more; in its lane it is found by its key, and by the id that it had.
        assert await do(mq.delayed(topic, id=later)) == []
        assert (await do(mq.message(later.id))).id == f"{topic}/high/0"
        assert {message.body for message in await do(mq.find(topic, key="a"))} == {b"now", b"later"}
        with pytest.raises(NotFound, match="never was"):
            await do(mq.delayed(topic, id=10**9))
        with pytest.raises(BadRequest, match="of which topic"):
            await do(mq.delayed(key="a"))


async def test_the_id_of_a_delayed_message_leads_to_its_lane(connect: Any, url: str, topic: str) -> None:
    """Each to the right one, whatever the order in which they came due; with its whole life."""
    async with entered(connect(url)) as mq:
        bodies = [f"{number}".encode() for number in range(20)]
        delays = [None if number % 5 == 4 else 0.02 + number * 7 % 10 * 0.03 for number in range(20)]
        receipts = list(await do(mq.send_many(topic, bodies, delays=delays)))
        receipts += [await do(mq.send(topic, b"20", priority="low", delay=0.05))]
        never = await do(mq.send(topic, b"never", delay=3_600))
        cancelled = await do(mq.send(topic, b"cancelled", delay=3_600))
        await do(mq.cancel(topic, cancelled))
        assert {receipt.lane for receipt in receipts} == {"delay"}
        async with entered(mq.consumer(topic, group="g")) as consumer:
            got: dict[bytes, str] = {}
            while len(got) < len(receipts):
                batch = await do(consumer.pull(wait=10))
                got |= {message.body: message.id for message in batch}
                await do(batch.ack())
        for number, receipt in enumerate(receipts):
            found = await do(mq.message(receipt.id))
            assert (found.body, found.id) == (f"{number}".encode(), got[f"{number}".encode()])
        trace = await do(mq.trace(receipts[-1].id))
        assert (trace.id, trace.delay_id) == (got[b"20"], receipts[-1].id)
        assert trace.message is not None
        assert trace.message.body == b"20"
        [life] = trace.groups
        assert (life.group, life.status) == ("g", "SUCCESS")
        assert [step.what for step in life.steps] == ["pulled", "acked"]
        assert (await do(mq.trace(got[b"3"]))).delay_id == ""
        with pytest.raises(NotFound, match="still waits for its time"):
            await do(mq.message(never.id))
        for ask in (mq.message, mq.trace):
            with pytest.raises(NotFound, match="was cancelled, or it was delivered longer ago"):
                await do(ask(cancelled.id))
            with pytest.raises(NotFound, match="never was"):
                await do(ask(f"{topic}/delay/{10**9}"))


async def test_the_id_leads_to_a_shard(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(topic, shards=4))
        keys = [f"k{number % 3}" for number in range(9)]
        sent = await do(mq.send_many(topic, [b"%d" % number for number in range(9)], keys=keys, delay=0.05))
        async with entered(mq.consumer(topic, group="g")) as consumer:
            got: set[bytes] = set()
            while len(got) < 9:
                batch = await do(consumer.pull(wait=10))
                got |= {message.body for message in batch}
                await do(batch.ack())
        for number, receipt in enumerate(sent):
            found = await do(mq.message(receipt.id))
            assert (found.body, found.key) == (b"%d" % number, keys[number])
            assert (await do(mq.trace(receipt.id))).groups[0].status == "SUCCESS"
