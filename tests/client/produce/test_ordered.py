"""Ordered topics, through the clients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from crc32c import crc32c

from tests.client.either import do, each, entered
from tests.eventually import eventually_done
from tests.inside.client import Common, Content, FrameEncoder, KnownKeys, ShardMap, _Batch, shard_of
from tests.inside.frame import Frame
from towline.errors import BadRequest, LeaseLost


async def test_messages_of_a_key_stay_in_order(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(topic, shards=8))
        for number in range(60):
            receipt = await do(mq.send(topic, b"%d" % number, key=f"k{number % 7}"))
            assert receipt.lane == str(crc32c(f"k{number % 7}".encode()) % 8)
        bodies = [b"%d" % number for number in range(60, 300)]
        receipts = await do(mq.send_many(topic, bodies, keys=[f"k{number % 7}" for number in range(60, 300)]))
        assert [receipt.lane for receipt in receipts][:7] == [
            str(crc32c(f"k{number % 7}".encode()) % 8) for number in range(60, 67)
        ]
        async with entered(mq.producer()) as producer:
            for number in range(300, 400):
                await do(producer.send(topic, b"%d" % number, key=f"k{number % 7}"))
        seen: dict[str, list[int]] = defaultdict(list)
        async with entered(mq.consumer(topic, group="g", idle_timeout=0.3)) as consumer:
            while sum(map(len, seen.values())) < 400:
                batch = await do(consumer.pull(50, wait=60))
                for message in batch:
                    assert message.shard_key == message.key
                    seen[message.key].append(int(message.body))
                await do(batch.ack())
        assert all(numbers == sorted(numbers) for numbers in seen.values())
        assert sorted(number for numbers in seen.values() for number in numbers) == list(range(400))


async def test_a_shard_key_goes_before_the_key(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(topic, shards=16))
        one = await do(mq.send(topic, b"a", key="k1", shard_key="customer-7"))
        [two] = await do(mq.send_many(topic, [b"b"], keys=["k2"], shard_keys=["customer-7"]))
        async with entered(mq.producer()) as producer:
            await do(producer.send(topic, b"c", shard_key="customer-7"))
        assert one.lane == two.lane
        page = await do(mq.browse(topic, int(one.lane)))
        assert [(message.body, message.shard_key, message.lane) for message in page] == [
            (body, "customer-7", one.lane) for body in (b"a", b"b", b"c")
        ]


async def test_what_cannot_be_put_in_order_is_refused(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(topic, shards=2))
        with pytest.raises(BadRequest, match=f"{topic} is ordered.*give a shard_key"):
            await do(mq.send(topic, b"a"))
        with pytest.raises(BadRequest, match="no priority"):
            await do(mq.send(topic, b"a", key="k", priority="high"))
        await do(mq.send(f"{topic}-shared", b"a", key="k"))
        with pytest.raises(BadRequest, match="not an ordered one"):
            await do(mq.send(f"{topic}-shared", b"a", shard_key="k"))


async def test_a_topic_made_anew_with_other_shards_is_looked_up_again(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq, entered(connect(url)) as other:
        await do(mq.create_topic(topic, shards=2))
        await do(mq.send(topic, b"a", key="k"))
        for shards in (64, 0, 7):
            await do(other.delete_topic(topic))
            await do(other.create_topic(topic, shards=shards))
            receipt = await do(mq.send(topic, b"b", key="k"))
            assert receipt.lane == (str(crc32c(b"k") % shards) if shards else "middle")


async def test_iteration_passes_over_what_comes_again_behind_a_failure(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(topic, shards=1))
        await do(mq.send_many(topic, [b"%d" % number for number in range(6)], keys=["k"] * 6))
        seen = []
        async with entered(mq.consumer(topic, group="g", idle_timeout=60)) as consumer:
            async for message in each(consumer):
                seen.append((int(message.body), message.attempt))
                if message.body == b"2" and message.attempt == 1:
                    message.retry(0.0)
                else:
                    message.ack()
                if message.body == b"5":
                    break
        assert seen == [(0, 1), (1, 1), (2, 1), (2, 2), (3, 1), (4, 1), (5, 1)]


async def test_a_batch_tells_which_of_its_messages_are_not_its_own_any_more(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(topic, shards=1))
        await do(mq.send_many(topic, [b"0", b"1", b"2"], keys=["k"] * 3))
        async with entered(mq.consumer(topic, group="g")) as consumer:
            zero, one, two = list(await do(consumer.pull(wait=60)))
            zero.ack()
            one.nack(delay=0.0)
            assert (zero.lost, one.lost, two.lost) == (False, False, True)
            with pytest.raises(LeaseLost):
                two.ack()
            again = await do(consumer.pull(wait=60))
            assert again.bodies() == [b"1", b"2"]
            await do(again.ack())
            assert consumer.lost == 0


async def test_a_dead_letter_sent_again_says_where_it_is(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(f"{topic}-ordered", shards=4))
        for name, priority in ((topic, "low"), (f"{topic}-ordered", "middle")):
            await do(mq.send(name, b"a", key="k", priority=priority))
            async with entered(mq.consumer(name, group="g")) as consumer:
                [message] = await do(consumer.pull(wait=60))
                message.dead("no use")
                await do(consumer.flush())
                await eventually_done(partial(lambda name: do(mq.resend(name, "g")), name))
                [again] = await do(consumer.pull(wait=60))
                assert (again.body, again.lane, again.priority) == (b"a", f"own-{priority}", priority)
                assert again.id == message.id
                assert again.headers["towline-origin"] == message.id
                again.ack()


async def test_a_producer_finds_out_about_shards_by_itself(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq, entered(connect(url)) as other:
        await do(other.create_topic(topic, shards=3))
        for shards in (3, 0, 5):
            if shards != 3:
                await do(other.delete_topic(topic))
                await do(other.create_topic(topic, shards=shards))
            async with entered(mq.producer(max_batch_messages=7)) as producer:
                pending = [await do(producer.send(topic, b"%d" % n, key=f"k{n % 4}")) for n in range(50)]
                await do(producer.flush(timeout=30))
            receipts = [one.result() for one in pending]
            for n, receipt in enumerate(receipts):
                lane = int(receipt.lane) if shards else receipt.lane
                assert lane == (crc32c(f"k{n % 4}".encode()) % shards if shards else "middle")
                page = await do(mq.browse(topic, lane, first=receipt.seq, max_messages=1))
                assert page[0].body == b"%d" % n
            for key in range(4):
                mine = [receipt.seq for n, receipt in enumerate(receipts) if n % 4 == key]
                assert mine == sorted(mine)


async def test_a_producer_tells_which_messages_cannot_be_put_in_order(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(topic, shards=3))
        producer = mq.producer()
        good = await do(producer.send(topic, b"a", key="k"))
        bad = await do(producer.send(topic, b"b"))
        with pytest.raises(BadRequest, match="give a shard_key"):
            await do(producer.flush(timeout=30))
        assert good.result().seq == 0
        assert isinstance(bad.exception(), BadRequest)
        await do(producer.close())


class Name(str):
    """Equal to a key, but not one."""


def test_keys_that_come_again_are_looked_up_and_others_hashed() -> None:
    def hashed(keys: list[str], shards: int) -> list[int]:
        return [crc32c(key.encode()) % shards for key in keys]

    known = KnownKeys()
    often = [f"key-{number % 50}" for number in range(500)]
    assert known.look_up(often) is None
    assert known.shards_of(often, 64) == hashed(often, 64)
    assert known.look_up(often) == known.shards_of(often, 64) == hashed(often, 64)
    strange: list[Any] = [[*often, Name("key-1")], [*often, ["key-1"]], iter(often), dict.fromkeys(often)]
    for unknown in (["new", *often], [*often, None], [*often, ""], ["key-1"], *strange):
        assert known.look_up(unknown) is None
    for keys in (
        [f"once-{number}" for number in range(100)],
        ["x" * 300] * 10,
        ["new", "new", "new", "key-1", "ä", "ä", "ä"],
        [f"many-{number % 9_990}" for number in range(20_000)],
        often,
    ):
        assert known.shards_of(keys, 64) == hashed(keys, 64)


async def test_many_small_frames_of_a_call_arrive_as_they_were(connect: Any, url: str, topic: str) -> None:
    """Whatever columns there are: bodies, keys, headers, lifetimes and shard keys."""
    bodies = [b"%d" % number for number in range(300)]
    keys = [f"kä-{number % 17}" if number % 3 else None for number in range(300)]
    headers = [{"n": str(number)} if number % 2 else None for number in range(300)]
    shard_keys = [f"s-{number % 11}" for number in range(300)]
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(topic, shards=8))
        receipts = await do(
            mq.send_many(topic, bodies, keys=keys, headers=headers, shard_keys=shard_keys, ttl=3600, timeout=30)
        )
        assert [receipt.lane for receipt in receipts] == [str(crc32c(key.encode()) % 8) for key in shard_keys]
        found: dict[bytes, Any] = {}
        for lane in range(8):
            page = await do(mq.browse(topic, lane, max_messages=300))
            assert [message.seq for message in page] == list(range(len(page)))
            assert [int(message.body) for message in page] == sorted(int(message.body) for message in page)
            found |= {message.body: message for message in page}
    for body, key, header, receipt in zip(bodies, keys, headers, receipts, strict=True):
        message = found[body]
        assert (message.key, message.headers, message.lane, message.seq) == (
            key, header or {}, receipt.lane, receipt.seq
        )  # fmt: skip


def unit_of(shards: int, keys: Sequence[str], times: Sequence[int] | None = None) -> Any:
    """What a call with these keys is sent as, and its frames by lane."""
    common = Common(FrameEncoder(), ShardMap(), "middle", -1, False, 1 << 20)
    content = Content([b"body %d" % number for number in range(len(keys))], keys, deliver_at_us=times)
    (unit,) = _Batch(common, "orders", shards, content).units()
    whole, at, frames = b"".join(unit.frames), 0, []
    for lane, length in zip(unit.lanes, unit.lengths, strict=True):
        frames.append((lane, Frame(whole[at : at + length]).verify()))
        at += length
    return unit, frames


@pytest.mark.parametrize("shards", [1, 7, 64, 1000])
@pytest.mark.parametrize("times", [None, [0, 5] * 40], ids=["now", "some later"])
def test_each_message_goes_to_the_shard_of_its_key_in_order(shards: int, times: list[int] | None) -> None:
    keys = [f"key-{number % 30}" for number in range(80)]
    unit, frames = unit_of(shards, keys, times)
    assert sorted(number for numbers in unit.numbers for number in numbers) == list(range(80))
    for numbers, (lane, frame) in zip(unit.numbers, frames, strict=True):
        assert numbers == sorted(numbers)
        assert {shard_of("orders", shards, keys[number], None, "middle") for number in numbers} == {lane}
        assert frame.bodies() == [b"body %d" % number for number in numbers]
        assert frame.keys() == [keys[number] for number in numbers]
        assert frame.deliver_at_us() == ([5] * len(numbers) if times and times[numbers[0]] else None)
