"""What a consumer asks of a group that exists already: the group keeps its settings, and the user is told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.either import do, entered
from towline.model import GroupConfig, RetryPolicy


async def test_who_asks_for_other_settings_than_the_group_has_is_told_once(
    connect: Any, url: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(topic))
        await do(mq.put_group(GroupConfig(topic, "g", retry=RetryPolicy(5, (1.0, 2.0)), timeout_s=60.0)))
        grows = RetryPolicy(3, kind="exponential", first_s=1, factor=2, cap_s=60, jitter=0.1)
        for _ in range(3):
            async with entered(
                mq.consumer(topic, group="g", retry=grows, lease_timeout=30, mode="at-most-once", max_in_flight=100_000)
            ) as consumer:
                assert consumer.config.retry.max_attempts == 5
        # Nothing asked for, or just what it has: nothing to tell.
        async with entered(mq.consumer(topic, group="g")):
            pass
        async with entered(mq.consumer(topic, group="g", retry=RetryPolicy(5, (1.0, 2.0)), lease_timeout=60)):
            pass
        async with entered(mq.consumer(topic, group="new", retry=grows, mode="at-most-once")):
            pass
    told = [record.getMessage() for record in caplog.records if f"of topic {topic} exists" in record.getMessage()]
    assert told == [
        f"group g of topic {topic} exists already and keeps its settings: retry has 5 attempts, not 3, retry waits "
        "1s,2s, not 1s growing by 2 up to 60s, jitter 0.1, lease_timeout is 60 s, not 30 s, mode is at-least-once, not "
        f"at-most-once. To change them: towline group create {topic} g --max-attempts 3 --backoff 1s,2,60s,0.1 "
        "--timeout 30s --mode at-most-once"
    ]
