"""Lists by pages, figures over time, and consumers that are kicked out."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

import pytest

import towline
from tests.eventually import eventually_done
from tests.inside.broker import GROUPS_MAX, POINTS, GroupFacts, TimeSeries
from tests.inside.client import _ordered
from tests.system.cluster.conftest import Brokers
from towline.aio import Client, connect
from towline.model import RetryPolicy


async def test_topics_and_groups_come_by_pages_sorted_and_searched() -> None:
    async with connect("memory:") as mq:
        for n in range(30):
            await mq.create_topic(f"t{n:02}", business_line="shop" if n % 2 else "bank")
            await mq.send_many(f"t{n:02}", [b"x"] * n)
        async with mq.consumer("t29", "billing") as consumer:
            batch = await consumer.pull(max_messages=9, wait=60)
            await batch.ack()
        page = await mq.survey("topics", sort="messages", descending=True, first=1, limit=3)
        assert page.total == 30
        assert [row.config.name for row in page.topics] == ["t28", "t27", "t26"]
        assert page.lines == ["bank", "shop"]
        assert [row.config.name for row in (await mq.survey("topics", search="T1", line="shop")).topics] == [
            f"t{n}" for n in (11, 13, 15, 17, 19)
        ]
        (group,) = (await mq.survey("groups", sort="lag", descending=True)).groups
        assert (group.topic, group.group, group.lag, group.dead) == ("t29", "billing", 20, 0)
        assert group.oldest_us > 0
        assert group.alone_since_us > 0
        assert (await mq.survey("groups", topic="t01")).total == 0
        with pytest.raises(towline.BadRequest, match="cannot be sorted by 'beauty'"):
            await mq.survey("topics", sort="beauty")


async def test_figures_over_time_and_the_store(tmp_path: Path) -> None:
    async with connect(f"file:{tmp_path}/data") as mq:
        await mq.send_many("orders", [b"x"] * 100)
        async with mq.consumer("orders", "billing", retry=RetryPolicy(1, (0,))) as consumer:
            for message in await consumer.pull(max_messages=40, wait=60):
                message.dead("no such customer")
            await consumer.flush()
        await eventually_done(lambda: mq.group("orders", "billing"), holds=lambda group: group.dead == 40)
        pulse = await eventually_done(mq.pulse, holds=lambda pulse: pulse.now["dead"] == 40)
        assert pulse.now["backlog"] == 60
        assert pulse.now["failed"] == 40
        assert len(pulse.at_us) == len(pulse.series["backlog"]) >= 1
        assert (await mq.pulse("orders", "billing")).series["lag"][-1] == 60
        stored = await mq.storage()
        assert stored.size_bytes > 0
        assert 0 < stored.free_bytes <= stored.total_bytes
        assert [one.sealed for one in stored.segments][-1] is False
        assert stored.settings["durability"] == "fsync"


async def test_a_consumer_that_is_kicked_out_loses_what_it_holds_and_may_begin_anew() -> None:
    async with connect("memory:") as mq:
        await mq.send_many("orders", [b"x"] * 10)
        async with mq.consumer("orders", "billing", name="c1") as first:
            held = await first.pull(max_messages=10, wait=60)
            with pytest.raises(towline.NotFound, match="has no consumer 'c2'"):
                await mq.kick("orders", "billing", "c2")
            await mq.kick("orders", "billing", "c1")
            async with mq.consumer("orders", "billing", name="c2") as second:
                batch = await second.pull(max_messages=10, wait=60)
                assert [message.attempt for message in batch] == [1] * 10, "it was no fault of theirs"
                await batch.ack()
            with pytest.raises(towline.LeaseLost):
                await held.ack()
        assert (await mq.group("orders", "billing")).lag == 0


def test_business_lines_are_shown_in_the_order_that_was_set(tmp_path: Path) -> None:
    async def lines(mq: Client, *, descending: bool = False) -> tuple[list[str], list[str]]:
        page = await mq.survey("topics", sort="line", descending=descending)
        return [row.config.name for row in page.topics], page.lines

    async def run(brokers: Brokers) -> None:
        async with connect(brokers.url) as mq:
            for name, line in (("t1", "attic"), ("t2", "shop"), ("t3", "zoo"), ("t4", ""), ("t5", "bank")):
                await mq.create_topic(name, business_line=line)
            names, shown = await eventually_done(lambda: lines(mq), holds=lambda found: len(found[0]) == 5)
            assert shown == ["zoo", "shop", "attic", "bank"], "those without a place follow by name"
            assert names == ["t4", "t3", "t2", "t1", "t5"]
            assert (await lines(mq, descending=True))[0] == names[::-1]

    for count in (1, 2):
        folder = tmp_path / str(count)
        folder.mkdir()
        brokers = Brokers(folder, count, "--business-lines", "zoo, shop,zoo")
        try:
            asyncio.run(run(brokers.start().wait_for()))
        finally:
            brokers.close()


def test_business_lines_of_brokers_that_differ_are_put_together() -> None:
    assert _ordered([["a", "c"], ["b"]]) == ["a", "b", "c"]
    assert _ordered([["zoo", "shop"], ["zoo", "attic", "shop"], []]) == ["zoo", "attic", "shop"]


def facts(group: str) -> GroupFacts:
    one = GroupFacts("orders", group, 0, 0.0)
    one.lag = 7
    return one


def test_with_more_busy_groups_than_places_those_that_have_one_keep_their_figures() -> None:
    history = TimeSeries()
    for minute in range(5):
        for number in range(GROUPS_MAX + 50):
            history.note_group(minute * 60_000_000, facts(f"group-{number}"))
    lengths = [len(history.of_group("orders", f"group-{number}")[0]) for number in range(GROUPS_MAX + 50)]
    assert lengths == [5] * GROUPS_MAX + [0] * 50
    # Whoever was idle long enough makes room.
    for minute in range(5, 8):
        for number in range(1, GROUPS_MAX + 50):
            history.note_group(minute * 60_000_000, facts(f"group-{number}"))
    assert history.of_group("orders", "group-0")[0] == []
    assert history.of_group("orders", f"group-{GROUPS_MAX}")[1]["lag"] == [7, 7, 7]


def test_figures_over_time_go_on_when_a_clock_that_was_ahead_is_set_right() -> None:
    history = TimeSeries()
    for now_s in (0, 5, 9_000, 10, 15, 20):
        for number in range(GROUPS_MAX):
            history.note_group(now_s * 1_000_000, facts(f"group-{number}"))
    assert history.of_group("orders", "group-0")[0] == [0, 5_000_000, 10_000_000, 15_000_000, 20_000_000]
    history.note_group(9_000_000_000, facts("group-0"))
    for now_s in (25, 90):
        for number in range(1, GROUPS_MAX + 1):
            history.note_group(now_s * 1_000_000, facts(f"group-{number}"))
    assert history.of_group("orders", f"group-{GROUPS_MAX}")[0] == [25_000_000, 90_000_000]


def test_figures_over_time_take_no_more_than_a_few_megabytes() -> None:
    tracemalloc.start()
    try:
        history = TimeSeries()
        for turn in range(POINTS + 100):
            for number in range(GROUPS_MAX):
                history.note_group(turn * 5_000_000, facts(f"group-{number}"))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(history.of_group("orders", "group-0")[0]) == POINTS
    assert taken < 5 << 20
