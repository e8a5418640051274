"""The frames of one call to an ordered topic go in together: all of them, once, or none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.broker.conftest import Bench, World
from tests.eventually import eventually_done
from tests.inside.frame import encode
from towline.errors import BadFrame, BadRequest, Refused, TooLarge
from towline.model import Durability, TopicConfig

SHARDS = 4


def unit(*lanes: int, first_seq: int = 1, size: int = 3, **columns: Any) -> list[tuple[str, int, bytes]]:
    """A frame of two messages for each of these lanes."""
    columns.setdefault("producer_id", 9)
    return [
        (
            "orders",
            lane,
            encode([b"a" * size, b"b" * size], keys=["k", "k"], producer_seq=first_seq + number, **columns),
        )
        for number, lane in enumerate(lanes)
    ]


async def ends(mq: Bench) -> list[int]:
    return [lane.end for lane in mq.broker.topics["orders"].lanes]


async def make(mq: Bench) -> None:
    await mq.broker.topics.create(TopicConfig("orders", shards=SHARDS))


@pytest.mark.parametrize("durability", [Durability.RECEIVED, Durability.OS, Durability.FSYNC])
def test_all_frames_get_their_numbers_and_are_delivered(world: World, durability: Durability) -> None:
    async def scenario(mq: Bench) -> None:
        await make(mq)
        sent = await mq.broker.send(unit(2, 0, 2), durability)
        assert (sent.firsts, sent.duplicate) == ([0, 0, 2], False)
        sent = await mq.broker.send(unit(0, 3, first_seq=4, size=5000), durability)
        assert sent.firsts == [2, 0]
        await mq.broker.send(unit(1, 1, first_seq=6), Durability.FSYNC)
        assert await ends(mq) == [4, 4, 4, 2]
        one = await mq.attach()
        bodies = [body for _ in range(SHARDS) for body in (await mq.pull(one)).bodies]
        assert sorted(bodies) == sorted([b"aaa", b"bbb"] * 5 + [b"a" * 5000, b"b" * 5000] * 2)

    world.run(scenario)


def test_a_unit_that_comes_again_is_answered_as_before(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        await make(mq)
        first = await mq.broker.send(unit(0, 1, 2))
        again = await mq.broker.send(unit(0, 1, 2))
        assert (again.firsts, again.appended_at_us, again.duplicate) == (first.firsts, first.appended_at_us, True)
        both = [mq.broker.send(unit(3, 1, first_seq=7)) for _ in range(2)]
        assert [sent.duplicate for sent in await asyncio.gather(*both)] == [False, True]
        with pytest.raises(BadRequest, match="again with other frames"):
            await mq.broker.send(unit(0, 3, first_seq=8))
        assert await ends(mq) == [2, 4, 2, 2]

    world.run(scenario)


def test_one_broken_frame_keeps_all_of_them_out(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        await make(mq)
        sound = unit(0, 1)
        topic, lane, frame = sound[1]
        with pytest.raises(BadFrame):
            await mq.broker.send([sound[0], (topic, lane, frame[:-1] + b"!")])
        with pytest.raises(BadRequest, match="no lane 4"):
            await mq.broker.send(unit(0, SHARDS))
        with pytest.raises(Refused, match="another token"):
            await mq.broker.send(sound, token=b"who")
        with pytest.raises(TooLarge, match="over the broker's limit"):
            await mq.broker.send(unit(0, 1, size=mq.broker.settings.max_frame_bytes // 2))
        assert await ends(mq) == [0] * SHARDS
        assert (await mq.broker.send(sound)).duplicate is False

    world.run(scenario)


def test_frames_without_a_producer_are_stored_each_time(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        await make(mq)
        for _ in range(2):
            assert (await mq.broker.send(unit(0, 1, producer_id=0))).duplicate is False
        assert await ends(mq) == [4, 4, 0, 0]

    world.run(scenario)


def test_a_watching_group_is_told_of_all_lanes(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        await make(mq)
        one = await mq.attach()
        waiting = asyncio.ensure_future(mq.pull(one, wait_ms=5000))
        await eventually_done(lambda: one.waiting)
        await mq.broker.send(unit(3, 1))
        got = [*(await waiting).bodies, *(await mq.pull(one)).bodies]
        assert len(got) == 4

    world.run(scenario)
