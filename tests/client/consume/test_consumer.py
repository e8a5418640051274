"""Consuming, on both clients and every broker."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest

from tests.client.either import do, each, entered
from tests.eventually import eventually_done
from tests.inside.client import LostLease, Reject, Retry, describe
from tests.inside.delivery import REASON_MAX
from towline.errors import BadRequest, Closed, Conflict, LeaseLost
from towline.model import GroupConfig, RetryPolicy

AT_ONCE = RetryPolicy(max_attempts=3, delays_s=(0,))


async def test_a_batch_is_pulled_and_acked(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"a", b"b", b"c"], keys=["1", None, "3"]))
        async with entered(mq.consumer(topic, group="g")) as consumer:
            batch = await do(consumer.pull(max_messages=2))
            assert batch
            assert len(batch) == 2
            assert batch.bodies() == [b"a", b"b"]
            assert [message.key for message in batch] == ["1", None]
            assert [message.seq for message in batch.messages] == [0, 1]
            assert {message.attempt for message in batch} == {1}
            await do(batch.ack())
            batch = await do(consumer.pull())
            assert batch.bodies() == [b"c"]
            await do(batch.ack())
            await do(batch.ack())
            empty = await do(consumer.pull(wait=0))
            assert not empty
            await do(empty.ack())
        assert (await do(mq.group(topic, "g"))).lag == 0


async def test_what_one_worker_has_not_begun_another_one_gets(connect: Any, url: str, topic: str) -> None:
    """Nobody said how many to pull, and nobody knows yet how quick they are."""
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"%d" % number for number in range(300)]))
        async with (
            entered(mq.consumer(topic, group="g")) as first,
            entered(mq.consumer(topic, group="g")) as second,
        ):
            theirs = [await do(consumer.pull(wait=30)) for consumer in (first, second)]
            assert [len(batch) for batch in theirs] == [128, 128]
            assert len(await do(first.pull(5000, wait=30))) == 44, "who says how many gets as many"


async def test_a_pull_waits_for_messages(connect: Any, url: str, topic: str) -> None:
    async with (
        entered(connect(url)) as mq,
        entered(connect(url)) as other,
        entered(mq.consumer(topic, group="g")) as consumer,
    ):
        assert not await do(consumer.pull(wait=0.01))
        await do(other.send(topic, b"late"))
        assert (await do(consumer.pull(wait=60))).bodies() == [b"late"]


async def test_high_goes_before_low(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        for priority in ("low", "middle", "high"):
            await do(mq.send(topic, priority.encode(), priority=priority))
        async with entered(mq.consumer(topic, group="g")) as consumer:
            batch = await do(consumer.pull(wait=60, min_messages=3))
            assert batch.bodies() == [b"high", b"middle", b"low"]
            assert [message.lane for message in batch] == ["high", "middle", "low"]
            await do(batch.ack())


async def test_iteration_ends_when_idle_and_all_is_acked(connect: Any, url: str, topic: str) -> None:
    bodies = [b"%d" % number for number in range(5000)]
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, bodies))
        async with entered(mq.consumer(topic, group="g", idle_timeout=0.05, max_messages=700)) as consumer:
            seen = []
            async for message in each(consumer):
                with message:
                    seen.append(message.body)
            assert seen == bodies
            await do(consumer.flush())
            state = await do(mq.group(topic, "g"))
            assert (state.lag, state.in_flight) == (0, 0)


async def test_a_loop_that_was_left_is_taken_up_again(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"%d" % number for number in range(10)]))
        async with entered(mq.consumer(topic, group="g", idle_timeout=0.05)) as consumer:
            async for message in each(consumer):
                message.ack()
                if message.seq == 4:
                    break
            rest = [message.seq async for message in each(consumer)]
            assert rest == [5, 6, 7, 8, 9]


async def test_what_was_not_settled_comes_again_after_the_consumer_has_left(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"%d" % number for number in range(10)]))
        async with entered(mq.consumer(topic, group="g", max_messages=5)) as consumer:
            async for message in each(consumer):
                if message.seq == 2:
                    break
                message.ack()
        async with entered(mq.consumer(topic, group="g", idle_timeout=60)) as consumer:
            seen = []
            async for message in each(consumer):
                seen.append(message.seq)
                message.ack()
                if len(seen) == 8:
                    break
            assert sorted(seen) == [2, 3, 4, 5, 6, 7, 8, 9]


async def test_a_block_may_ask_for_another_try_or_give_its_message_up(connect: Any, url: str, topic: str) -> None:
    slow = RetryPolicy(max_attempts=3, delays_s=(600,))
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"later", b"never"]))
        async with entered(mq.consumer(topic, group="g", retry=slow, idle_timeout=20)) as consumer:
            seen = []
            async for message in each(consumer):
                seen.append((message.body, message.attempt))
                if message.attempt == 2:
                    message.ack()
                    break
                error = Reject("no such customer") if message.body == b"never" else Retry("not yet", delay=0.05)
                with pytest.raises((Reject, Retry)), message:
                    raise error
            assert seen == [(b"later", 1), (b"never", 1), (b"later", 2)]
            await do(consumer.flush())
            dead = await eventually_done(lambda: do(mq.dead_letters(topic, "g")))
            (letter,) = dead
            assert (letter.body, letter.attempt, letter.reason) == (b"never", 1, "no such customer")


@pytest.mark.parametrize(
    ("option", "choices"),
    [
        ({"mode": "once"}, "'at-least-once' or 'at-most-once'"),
        ({"start": "middle"}, "'earliest' or 'latest'"),
    ],
)
async def test_a_consumer_is_told_what_it_may_choose(connect: Any, option: dict[str, Any], choices: str) -> None:
    async with entered(connect("memory:")) as mq:
        with pytest.raises(BadRequest, match=choices):
            async with entered(mq.consumer("orders", group="g", **option)):
                pass


def test_a_reason_is_no_longer_than_brokers_keep_and_ends_with_the_innermost_frame() -> None:
    def deep(level: int) -> None:
        if not level:
            raise ValueError("x" * 10_000)
        deep(
            level - 1
        )  # a line that is long enough for six of them to fill the room that a reason has, and more than it

    with pytest.raises(ValueError, match="xxx") as caught:
        deep(10)
    reason = describe(caught.value)
    assert len(reason) <= REASON_MAX
    assert reason.endswith('deep: raise ValueError("x" * 10_000)')


@pytest.mark.parametrize("delay", [-1, float("nan"), 1e9, "5"])
def test_a_delay_that_makes_no_sense_is_an_error_where_it_is_asked_for(delay: Any) -> None:
    with pytest.raises(BadRequest, match="between 0 and a year"):
        Retry(delay=delay)


async def test_a_failed_message_is_tried_again_and_dies_in_the_end(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send(topic, b"poison", key="k"))
        async with entered(mq.consumer(topic, group="g", retry=AT_ONCE, idle_timeout=60)) as consumer:
            attempts = []
            async for message in each(consumer):
                attempts.append(message.attempt)
                with pytest.raises(ZeroDivisionError, match="no way"), message:
                    raise ZeroDivisionError("no way")
                if len(attempts) == 3:
                    break
            assert attempts == [1, 2, 3]
            await do(consumer.flush())
            dead = await eventually_done(lambda: do(mq.dead_letters(topic, "g")))
            (letter,) = dead
            assert (letter.body, letter.key, letter.attempt) == (b"poison", "k", 3)
            assert letter.origin == f"{topic}/middle/0"
            first, *stack = letter.reason.splitlines()
            assert first == "ZeroDivisionError: no way"
            assert "test_consumer.py" in stack[-1]
            assert letter.died_at_us > 0
            assert not letter.resent

            assert await do(mq.resend(topic, "g", [letter.number])) == 1
            (again,) = await do(consumer.pull(wait=60))
            assert (again.body, again.key, again.attempt) == (b"poison", "k", 1)
            again.ack()
            await do(consumer.flush())
            assert (await do(mq.dead_letters(topic, "g")))[0].resent


async def test_a_message_can_be_put_off_or_given_up(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"later", b"never", b"whole"]))
        async with entered(mq.consumer(topic, group="g", retry=AT_ONCE)) as consumer:
            later, never = await do(consumer.pull(2))
            later.retry(0.5)
            never.dead("hopeless")
            with pytest.raises(Conflict):
                later.ack()
            with pytest.raises(Conflict):
                never.nack("again")
            with pytest.raises(BadRequest, match="delay"):
                later.retry(-1)
            await do(consumer.flush())
            batch = await do(consumer.pull(10, wait=60))
            assert batch.bodies() == [b"whole"]
            await do(batch.nack("all of them", delay=0))
            seen: list[tuple[bytes, int]] = []
            while len(seen) < 2:
                for message in await do(consumer.pull(wait=60)):
                    seen.append((message.body, message.attempt))
                    message.ack()
            assert sorted(seen) == [(b"later", 2), (b"whole", 2)]
            dead = await eventually_done(lambda: do(mq.dead_letters(topic, "g")))
            assert [letter.reason for letter in dead] == ["hopeless"]


async def test_single_acks_are_told_by_themselves(connect: Any, url: str, topic: str) -> None:
    """Nothing is called any more after the ack: only time passes."""
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"a", b"b", b"c"]))
        async with entered(mq.consumer(topic, group="g", ack_interval=0.01)) as consumer:
            first, _, third = await do(consumer.pull())
            first.ack()
            third.ack()
            await eventually_done(lambda: do(mq.group(topic, "g")), holds=lambda group: group.in_flight == 1)
            assert consumer.in_flight == 1


async def test_acking_up_to_a_batch_acks_the_older_ones(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"%d" % number for number in range(6)]))
        async with entered(mq.consumer(topic, group="g")) as consumer:
            await do(consumer.pull(2))
            second = await do(consumer.pull(2))
            third = await do(consumer.pull(2))
            await do(second.ack(up_to=True))
            state = await do(mq.group(topic, "g"))
            assert (state.in_flight, consumer.in_flight) == (2, 2)
            await do(third.ack())


async def test_consumers_without_a_group_see_everything(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        async with entered(mq.consumer(topic)) as one, entered(mq.consumer(topic, name="two")) as two:
            assert one.group.startswith("~")
            assert (two.group, one.config.ephemeral, two.config.ephemeral) == ("~two", True, False)
            await do(mq.send(topic, b"to all"))
            for consumer in (one, two):
                batch = await do(consumer.pull(wait=60))
                assert batch.bodies() == [b"to all"]
                await do(batch.ack())
        # The one with a name goes on where it was, and the other is forgotten.
        await do(mq.send(topic, b"more"))
        async with entered(mq.consumer(topic, name="two")) as two:
            assert (await do(two.pull(wait=60))).bodies() == [b"more"]
        await eventually_done(
            lambda: do(mq.groups(topic)), holds=lambda states: [state.config.name for state in states] == ["~two"]
        )


async def test_a_group_may_begin_at_the_end(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send(topic, b"old"))
        async with entered(mq.consumer(topic, group="g", start="latest")) as consumer:
            await do(mq.send(topic, b"new"))
            assert (await do(consumer.pull(wait=60))).bodies() == [b"new"]


async def test_two_consumers_share_the_work(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"%d" % number for number in range(100)]))
        async with entered(mq.consumer(topic, group="g")) as one, entered(mq.consumer(topic, group="g")) as two:
            first = await do(one.pull(50))
            second = await do(two.pull(50))
            assert sorted(first.bodies() + second.bodies(), key=int) == [b"%d" % number for number in range(100)]


async def test_a_consumer_that_was_taken_over_loses_its_messages(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"a", b"b"]))
        async with entered(mq.consumer(topic, group="g", name="same", ack_interval=60)) as old:
            batch = await do(old.pull())
            async with entered(mq.consumer(topic, group="g", name="same")) as new:
                with pytest.raises(LeaseLost):
                    await do(batch.ack())
                assert batch.lost
                assert all(message.lost for message in batch)
                with pytest.raises(LeaseLost):
                    await do(batch.ack())
                assert sorted((await do(new.pull(wait=60))).bodies()) == [b"a", b"b"]


async def test_a_lost_lease_is_reported(connect: Any, url: str, topic: str) -> None:
    lost: list[LostLease] = []
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"a", b"b"]))
        opening = mq.consumer(topic, group="g", lease_timeout=0.05, retry=AT_ONCE, ack_interval=60, on_lost=lost.append)
        async with entered(opening) as consumer:
            first, _ = await do(consumer.pull())
            async with entered(mq.consumer(topic, group="g")) as other:
                assert sorted((await do(other.pull(wait=60))).bodies()) == [b"a", b"b"]
            first.ack()
            await do(consumer.flush())
            assert consumer.lost >= 1
            assert (lost[0].topic, lost[0].group, lost[0].count) == (topic, "g", 1)
            assert first.lost


async def test_browsed_messages_cannot_be_settled(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send(topic, b"x"))
        (message,) = await do(mq.browse(topic))
        with pytest.raises(BadRequest, match="looked at, not pulled"):
            message.ack()
        with pytest.raises(BadRequest, match="looked at, not pulled"):
            message.nack()


async def test_what_is_closed_says_so(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        async with entered(mq.consumer(topic, group="g")) as consumer:
            pass
        with pytest.raises(Closed, match="consumer was closed"):
            await do(consumer.pull())
        await do(consumer.close())
    with pytest.raises(Closed):
        await do(mq.send(topic, b"x"))
    await do(mq.close())


async def test_topics_and_groups_can_be_administered(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(topic, retention_s=60.0))
        with pytest.raises(Conflict):
            await do(mq.create_topic(topic))
        state = await do(mq.topic(topic))
        assert state.config.retention_s == 60.0
        assert [lane.lane for lane in state.lanes] == ["high", "middle", "low"]
        assert topic in [known.config.name for known in await do(mq.topics())]

        await do(mq.put_group(GroupConfig(topic, "g", retry=AT_ONCE)))
        assert (await do(mq.group(topic, "g"))).config.retry == AT_ONCE
        receipt = await do(mq.send(topic, b"x"))
        assert await do(mq.locate(topic, "middle", receipt.appended_at_us / 1e6 - 1)) == 0
        assert await do(mq.locate(topic, "middle", receipt.appended_at_us / 1e6 + 1)) == 1
        await do(mq.delete_group(topic, "g"))
        assert await do(mq.groups(topic)) == []
        await do(mq.delete_topic(topic))
        assert topic not in [known.config.name for known in await do(mq.topics())]
        assert (await do(mq.stat()))["epoch"] >= 1


async def first_of(consumer: Any, way: str) -> Any:
    """The first message, however it is come by."""
    if way == "pull":
        return (await do(consumer.pull(1, wait=60))).messages[0]
    if way == "batches":
        return (await anext(each(consumer.batches())))[0]
    return await anext(each(consumer))


@pytest.mark.parametrize("left", ["consumer", "client"])
@pytest.mark.parametrize("way", ["loop", "pull", "batches"])
async def test_a_message_that_its_consumer_dies_of_ends_among_the_dead_letters(
    connect: Any, url: str, topic: str, way: str, left: str
) -> None:
    attempts = []
    options = {"group": "g", "retry": AT_ONCE, "max_messages": 1 if way == "batches" else 2}
    # One at a time is what is due again and what is new by turns: then the next one comes later.
    bodies, later = ([b"poison"], [b"next"]) if way == "pull" else ([b"poison", b"next"], [])
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, bodies))

        async def fail(consumer: Any) -> None:
            message = await first_of(consumer, way)
            attempts.append(message.attempt)
            raise ZeroDivisionError(message.body)

        async def die() -> None:
            async with entered(connect(url)) as other:
                if left == "client":
                    await fail(await do(other.consumer(topic, **options)))
                async with entered(other.consumer(topic, **options)) as consumer:
                    await fail(consumer)

        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await die()
        assert attempts == [1, 2, 3]
        [dead] = await eventually_done(lambda: do(mq.dead_letters(topic, "g")), holds=lambda found: len(found) == 1)
        assert (dead.body, dead.attempt, dead.reason.partition("\n")[0]) == (
            b"poison",
            3,
            "ZeroDivisionError: b'poison'",
        )
        await do(mq.send_many(topic, later))
        async with entered(mq.consumer(topic, group="g")) as consumer:
            message = await first_of(consumer, "pull")
            assert (message.body, message.attempt) == (b"next", 1), "it was only fetched ahead"


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, SystemExit, asyncio.CancelledError], ids=str)
async def test_messages_are_given_back_by_a_consumer_that_leaves_in_order_or_is_interrupted(
    connect: Any, url: str, topic: str, error: type[BaseException] | None
) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"a", b"b"]))
        with nullcontext() if error is None else pytest.raises(error):
            async with entered(mq.consumer(topic, group="g", retry=AT_ONCE)) as consumer:
                await first_of(consumer, "loop")
                if error is not None:
                    raise error
        async with entered(mq.consumer(topic, group="g")) as consumer:
            batch = await do(consumer.pull(wait=60, min_messages=2))
            assert [(message.body, message.attempt) for message in batch] == [(b"a", 1), (b"b", 1)]


async def test_in_order_a_message_that_its_consumer_dies_of_is_tried_again_before_those_behind_it(
    connect: Any, url: str, topic: str
) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(topic, shards=1))
        await do(mq.send_many(topic, [b"a", b"b", b"c", b"d"], keys=["k"] * 4))

        async def die() -> None:
            async with entered(mq.consumer(topic, group="g", retry=AT_ONCE)) as consumer:
                async for message in each(consumer):
                    if message.body == b"a":
                        message.ack()
                    if message.body == b"c":
                        raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await die()
        async with entered(mq.consumer(topic, group="g", idle_timeout=60)) as consumer:
            seen = []
            async for message in each(consumer):
                seen.append((message.body, message.attempt))
                message.ack()
                if len(seen) == 3:
                    break
        assert [body for body, _ in seen] == [b"b", b"c", b"d"]
        assert (seen[0][1], seen[2][1]) == (2, 1), "the last was only fetched ahead"


@pytest.mark.parametrize("way", ["pull", "batches"])
async def test_what_a_loop_over_messages_left_comes_with_the_next_pull(
    connect: Any, url: str, topic: str, way: str
) -> None:
    bodies = [b"%d" % number for number in range(40)]
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, bodies))
        async with entered(mq.consumer(topic, group="g", idle_timeout=60)) as consumer:
            seen: list[bytes] = []
            async for message in each(consumer):
                seen.append(message.body)
                message.ack()
                if len(seen) == 10:
                    break
            assert consumer.in_flight == 30, "they are here, and nobody has them"
            batch = await do(consumer.pull(2, wait=60)) if way == "pull" else await anext(each(consumer.batches()))
            assert batch
            seen += batch.bodies()
            await do(batch.ack())
            while len(seen) < 40:
                batch = await do(consumer.pull(wait=60))
                assert batch
                seen += batch.bodies()
                await do(batch.ack())
            assert consumer.lost == 0
        state = await do(mq.group(topic, "g"))
        assert (state.lag, state.in_flight, state.retrying) == (0, 0, 0)
    assert seen == bodies, "nothing is lost, doubled or out of order"


async def test_a_pull_within_a_loop_takes_what_the_loop_would_have_seen_next(
    connect: Any, url: str, topic: str
) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"%d" % number for number in range(5)]))
        async with entered(mq.consumer(topic, group="g", idle_timeout=60)) as consumer:
            seen: list[bytes] = []
            async for message in each(consumer):
                batch = await do(consumer.pull(2, wait=60)) if not seen else ()
                seen += [one.body for one in (message, *batch)]
                for one in (message, *batch):
                    one.ack()
                if len(seen) == 5:
                    break
    assert sorted(seen) == [b"%d" % number for number in range(5)]
