"""What a consumer asks of a group that exists already: the group keeps its settings, and the user is told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.either import do, entered
from tests.eventually import eventually_done
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


async def test_who_subscribes_by_prefix_is_told_of_groups_with_other_settings(
    connect: Any, url: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked = RetryPolicy(3, (1.0,))
    async with entered(connect(url)) as mq:
        for name in "abcde":
            await do(mq.create_topic(f"{topic}.{name}"))
            await do(mq.put_group(GroupConfig(f"{topic}.{name}", "g", retry=RetryPolicy(5, (1.0,)))))
        await do(mq.create_topic(f"{topic}.limited"))
        await do(mq.put_group(GroupConfig(f"{topic}.limited", "g", retry=asked, timeout_s=600.0)))
        await do(mq.create_topic(f"{topic}.without"))
        await do(mq.create_topic(f"{topic}.fitting"))
        await do(mq.put_group(GroupConfig(f"{topic}.fitting", "g", retry=asked, timeout_s=60.0)))
        for _ in range(3):
            async with entered(mq.consumer(f"{topic}.*", group="g", retry=asked, lease_timeout=60)):
                pass
        # Of one that is made later, whoever comes first makes the group.
        async with (
            entered(mq.consumer(f"{topic}.*", group="g", retry=asked, lease_timeout=60)) as consumer,
            entered(connect(url)) as other,
        ):
            await do(other.create_topic(f"{topic}-else"))
            await do(mq.delete_group(f"{topic}.without", "g"))
            await do(mq.put_group(GroupConfig(f"{topic}.without", "g", retry=asked, timeout_s=90.0)))
            await do(mq.send(f"{topic}.without", b"x"))
            await eventually_done(lambda: _pulled(consumer), holds=lambda bodies: b"x" in bodies)
    told = sorted(record.getMessage() for record in caplog.records if f"{topic}." in record.getMessage())
    names = sorted(f"{topic}.{name}" for name in "abcde")
    assert len(told) == 3
    of_five = told.pop(next(n for n, text in enumerate(told) if "of topics" in text))
    assert "and 2 more exists already and keeps its settings: retry has 5 attempts, not 3, lease_timeout" in of_five
    assert sum(name in of_five for name in names) == 3
    assert of_five.endswith("g --max-attempts 3 --timeout 60s, and so on")
    assert told == [
        f"group g of topic {topic}.limited exists already and keeps its settings: lease_timeout is 600 s, not 60 s. To "
        f"change them: towline group create {topic}.limited g --timeout 60s",
        f"group g of topic {topic}.without exists already and keeps its settings: lease_timeout is 90 s, not 60 s. To "
        f"change them: towline group create {topic}.without g --timeout 60s",
    ]


async def _pulled(consumer: Any) -> list[bytes]:
    batch = await do(consumer.pull(wait=0.5))
    return [message.body for message in batch]


async def test_each_group_of_a_prefix_delivers_in_its_own_mode(connect: Any, url: str, topic: str) -> None:
    """What a consumer does not ack is acked by the broker, and the other way round."""
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(f"{topic}.most"))
        await do(mq.put_group(GroupConfig(f"{topic}.most", "g", mode="at-most-once")))
        await do(mq.create_topic(f"{topic}.least"))
        await do(mq.put_group(GroupConfig(f"{topic}.least", "g", mode="at-least-once")))
        for mode in ("at-least-once", "at-most-once"):
            for name in ("most", "least"):
                await do(mq.send(f"{topic}.{name}", mode.encode()))
            seen: list[str] = []
            async with entered(mq.consumer(f"{topic}.*", group="g", mode=mode, lease_timeout=600)) as consumer:
                while len(seen) < 2:
                    for message in await do(consumer.pull(wait=60)):
                        assert message.body == mode.encode()
                        assert message.settled == message.topic.endswith(".most")
                        seen.append(message.topic)
                        message.ack()
                assert sorted(seen) == [f"{topic}.least", f"{topic}.most"]
            assert {state.lag for state in await do(mq.groups(f"{topic}.*"))} == {0}
            assert {state.in_flight for state in await do(mq.groups(f"{topic}.*"))} == {0}
