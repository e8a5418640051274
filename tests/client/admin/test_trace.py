"""The life of a message, through both clients and every kind of broker."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.either import do, entered
from towline.errors import BadRequest, NotFound
from towline.model import GroupConfig, RetryPolicy


async def test_a_trace_tells_the_life_of_a_message_in_every_group(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url, token="app-7")) as mq:
        await do(mq.send(topic, b"hello", key="k1"))
        await do(mq.put_group(GroupConfig(topic, "failing", retry=RetryPolicy(3, (3600.0,)))))
        async with entered(mq.consumer(topic, group="done", name="anna")) as consumer:
            await do((await do(consumer.pull(wait=60))).ack())
        async with entered(mq.consumer(topic, group="failing", name="bert")) as consumer:
            (message,) = await do(consumer.pull(wait=60))
            message.nack("no such customer")
            await do(consumer.flush())
        found = await do(mq.trace(f"{topic}/middle/0"))
        assert (found.message.body, found.message.key, found.message.token) == (b"hello", "k1", "app-7")
        done, failing = found.groups
        assert (done.group, done.status, [step.what for step in done.steps]) == ("done", "SUCCESS", ["pulled", "acked"])
        assert {step.consumer for step in done.steps} == {"anna"}
        assert (failing.status, failing.attempt, failing.complete) == ("FAIL", 2, True)
        assert [(step.what, step.consumer, step.reason) for step in failing.steps] == [
            ("pulled", "bert", ""),
            ("failed", "bert", "no such customer"),
        ]
        assert failing.steps[0].at_us >= found.message.appended_at_us
        only = await do(mq.trace(f"{topic}/middle/0", group="done"))
        assert [group.group for group in only.groups] == ["done"]
        with pytest.raises(NotFound):
            await do(mq.trace(f"{topic}/middle/1"))
        with pytest.raises(BadRequest):
            await do(mq.trace("nonsense"))


async def test_a_trace_tells_when_the_group_rested(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send(topic, b"early"))
        async with entered(mq.consumer(topic, group="g")) as consumer:
            batch = await do(consumer.pull(wait=60))
            await do(mq.pause(topic, "g", reason="deploying"))
            await do(mq.send(topic, b"late"))
            # Of a message that came while the group rested, …
            (life,) = (await do(mq.trace(f"{topic}/middle/1"))).groups
            assert [(step.what, step.reason) for step in life.steps] == [("paused", "deploying")]
            await do(mq.resume(topic, "g"))
            await do(batch.ack())
            late = await do(consumer.pull(wait=60))
            await do(mq.pause(topic, "g"))
            await do(late.ack())
            await do(mq.resume(topic, "g"))
        early, late = [(await do(mq.trace(f"{topic}/middle/{n}"))).groups[0] for n in range(2)]
        assert [step.what for step in early.steps] == ["pulled", "paused", "resumed", "acked"]
        assert [step.what for step in late.steps] == ["paused", "resumed", "pulled", "paused", "acked"]
        message = (await do(mq.trace(f"{topic}/middle/1"))).message
        # … the rest began before it; and what is done with is not concerned.
        assert late.steps[0].at_us < message.appended_at_us < late.steps[1].at_us
        assert {step.reason for step in late.steps[:2]} == {"deploying"}
        assert (early.status, late.status) == ("SUCCESS", "SUCCESS")
