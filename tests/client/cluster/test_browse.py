"""Looking at messages where brokers keep their own: all are asked, and what is found says where it is."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import towline
from tests.client.either import do, entered
from tests.inside.console import LetterPages, name_of, number_of
from tests.system.cluster.conftest import ROOT, Brokers
from towline import GroupConfig, RetryPolicy
from towline.errors import BadRequest, Conflict, NotFound, Partly
from towline.model import TopicConfig

ALL = ["b0", "b1", "b2"]


def _at_each(brokers: Brokers, topic: str, count: int) -> None:
    """So many messages at each broker, with their keys; producers choose different ones, so several are asked."""
    with towline.connect(brokers.url, timeout=20) as mq:
        mq.create_topic(topic)
        mq.put_group(GroupConfig(topic, "g", retry=RetryPolicy(max_attempts=1), start="earliest"))
    full: dict[str, int] = dict.fromkeys(ALL, 0)
    number = 0
    while min(full.values()) < count:
        with towline.connect(brokers.url, timeout=20) as mq:
            receipts = mq.send_many(topic, [b"m%d" % number], keys=["same"])
            label = receipts[0].broker
            for more in range(count - 1 if not full[label] else 0):
                mq.send(topic, b"m%d-%d" % (number, more), key="same")
            full[label] += 1 if full[label] else count
        number += 1
        assert number < 500, full


def towline_cli(brokers: Brokers, *arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "towline", *arguments, "-u", brokers.url, "-o", "json", "--patience", "20s"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


async def test_messages_are_found_wherever_they_are(connect: Any, brokers: Brokers, topic: str) -> None:
    _at_each(brokers, topic, 3)
    async with entered(connect(brokers.url, timeout=20)) as mq:
        assert mq.separate_brokers() == ALL
        total = sum(lane.end for lane in (await do(mq.topic(topic))).lanes)
        found = await do(mq.find(topic, key="same", limit=1_000))
        assert len(found) == total
        assert {one.id.partition("@")[2] for one in found} == set(ALL)
        assert len({one.id for one in found}) == total
        times = [one.appended_at_us for one in found]
        assert times == sorted(times)
        # By pages, each goes on where it ended.
        seen: list[str] = []
        first: Any = 0
        while True:
            page = await do(mq.browse(topic, first=first, max_messages=2))
            seen += [one.id for one in page]
            if page.next >= page.end:
                break
            first = page.next
        assert sorted(seen) == sorted(one.id for one in found)
        assert len(await do(mq.browse(topic, broker="b1", max_messages=100))) == sum(
            one.endswith("@b1") for one in seen
        )
        # An id says where.
        for one in found:
            assert (await do(mq.message(one.id))).body == one.body
            trace = await do(mq.trace(one.id))
            assert trace.id == one.id
            assert [(group.group, group.status) for group in trace.groups] == [("g", "NEW")]
        with pytest.raises(Conflict, match="@b1"):
            await do(mq.message(f"{topic}/middle/0"))
        with pytest.raises(NotFound, match="no broker elsewhere"):
            await do(mq.message(f"{topic}/middle/0@elsewhere"))
        with pytest.raises(NotFound):
            await do(mq.message(f"{topic}/middle/999999"))


async def test_dead_letters_are_those_of_all_and_know_where_they_are(
    connect: Any, brokers: Brokers, topic: str
) -> None:
    _at_each(brokers, topic, 2)
    async with entered(connect(brokers.url, timeout=20)) as mq:
        total = sum(lane.end for lane in (await do(mq.topic(topic))).lanes)
        async with entered(mq.consumer(topic, "g")) as consumer:
            done = 0
            while done < total:
                batch = await do(consumer.pull(wait=60))
                for message in batch:
                    message.nack("broken")
                done += len(batch)
            await do(consumer.flush())
        letters: list[Any] = []
        while len(letters) < total:
            letters = await do(mq.find_dead(topic, "g"))
        assert {one.broker for one in letters} == set(ALL)
        page = await do(mq.dead_letters(topic, "g", max_messages=1_000))
        assert len(page) == total
        await _look_at_the_newest(brokers, topic, {f"{one.number}@{one.broker}" for one in letters})
        with pytest.raises(BadRequest, match="broker"):
            await do(mq.resend(topic, "g", [0]))
        one = next(letter for letter in letters if letter.broker == "b2")
        assert (await do(mq.dead_letter(topic, "g", one.number))).origin == one.origin
        assert await do(mq.resend(topic, "g", [one.number])) == 1
        other = next(letter for letter in letters if letter is not one)
        assert await do(mq.resend(topic, "g", [int(other.number)], broker=other.broker)) == 1
        assert await do(mq.resend(topic, "g")) > 0
        page = await do(mq.dead_letters(topic, "g", max_messages=1))
        await do(mq.purge_dead(topic, "g", page.end))
        assert not await do(mq.find_dead(topic, "g", resent=True))


async def _look_at_the_newest(brokers: Brokers, topic: str, names: set[str]) -> None:
    """As the console does, page by page."""
    async with towline.aio.connect(brokers.url, timeout=20) as mq:
        newest, seen = LetterPages(mq, topic, "g"), list[Any]()
        while some := await newest.page(len(seen), 3):
            seen += some
        assert newest.total == len(seen)
        assert {name_of(one) for one in seen} == names
        times = [one.died_at_us for one in seen]
        assert times == sorted(times, reverse=True)
        # Also without having turned the pages before it.
        last = await LetterPages(mq, topic, "g").page(len(seen) - 2, 5)
        assert [name_of(one) for one in last] == [name_of(one) for one in seen[-2:]]
        assert (await mq.dead_letter(topic, "g", number_of(name_of(last[0])))).origin == last[0].origin


async def test_the_template_and_the_storage_are_those_of_all(connect: Any, brokers: Brokers, topic: str) -> None:
    async with entered(connect(brokers.url, timeout=20)) as mq:
        await do(mq.put_topic(TopicConfig("template", retention_s=777.0), template=True))
        assert (await do(mq.template())).retention_s == 777.0
        whole = await do(mq.storage())
        parts = [await do(mq.storage(broker=name)) for name in ALL]
        assert len(whole.segments) == sum(len(one.segments) for one in parts)
        assert {one.name.partition("@")[2] for one in whole.segments} == set(ALL)
        assert whole.total_bytes >= max(one.total_bytes for one in parts)
        assert whole.settings["name"] == "b0: b0, b1: b1, b2: b2"
        brokers.kill(1)
        with pytest.raises(Partly):
            await do(mq.put_topic(TopicConfig("template", retention_s=888.0), template=True))
        brokers.start(1)
        brokers.wait_for()
    async with entered(connect(brokers.url, timeout=20)) as mq:
        with pytest.raises(Conflict, match="b1: retention_s 777"):
            await do(mq.template())
        assert (await do(mq.template(broker="b1"))).retention_s == 777.0
    [shown] = towline_cli(brokers, "topic", "edit", "--template", "--retention", "999")
    assert shown["retention_s"] == 999.0
    async with entered(connect(brokers.url, timeout=20)) as mq:
        assert (await do(mq.template())).retention_s == 999.0


async def test_delayed_messages_are_cancelled_where_they_wait(connect: Any, brokers: Brokers, topic: str) -> None:
    receipts = []
    for _ in range(8):
        async with entered(connect(brokers.url, timeout=20)) as mq:
            receipts.append(await do(mq.send(topic, b"later", delay=3600, key="k")))
    async with entered(connect(brokers.url, timeout=20)) as mq:
        waiting = await do(mq.delayed(topic))
        assert len(waiting) == 8
        pages: list[Any] = []
        while some := await do(mq.delayed(topic, after=pages[-1] if pages else None, max_messages=3)):
            pages += some
        assert [one.id for one in pages] == [one.id for one in waiting]
        assert await do(mq.cancel(topic, receipts[0])) == 1
        left = await do(mq.delayed(topic))
        assert len(left) == 7
        assert await do(mq.reschedule(topic, left[0].id, delay=7200)) == 1
        with pytest.raises(BadRequest, match="broker"):
            await do(mq.cancel(topic, f"{topic}/delay/1"))
        assert await do(mq.cancel(topic, key="k")) == 7


async def test_figures_are_those_of_all(connect: Any, brokers: Brokers, topic: str) -> None:
    _at_each(brokers, topic, 2)
    async with entered(connect(f"towline://{brokers.address(2)}", timeout=20)) as mq:
        total = sum(lane.end for lane in (await do(mq.topic(topic))).lanes)
        [row] = (await do(mq.survey("topics", search=topic))).topics
        assert (row.config.name, row.messages, row.groups, row.lag) == (topic, total, 1, total)
        [group] = (await do(mq.survey("groups", topic=topic))).groups
        assert (group.group, group.lag) == ("g", total)
        measured = await do(mq.measure(topic))
        assert [one.backlog for one in measured.groups if one.group == "g"] == [total]
        assert (await do(mq.pulse())).now["backlog"] >= total
        async with entered(mq.consumer(topic, "h", name="ann")) as consumer:
            await do(consumer.pull(wait=60))
            shown = [one for one in await do(mq.clients(topic, "h")) if one.consumer == "ann"]
            assert [one.broker for one in shown] == ALL


def test_the_command_line_names_the_broker(brokers: Brokers, topic: str) -> None:
    _at_each(brokers, topic, 1)
    found = towline_cli(brokers, "find", topic, "--key", "same")
    assert {one["id"].partition("@")[2] for one in found} == set(ALL)
    [one] = towline_cli(brokers, "trace", found[0]["id"])
    assert one["id"] == found[0]["id"]
    [one] = towline_cli(brokers, "find", topic, "--id", found[-1]["id"])
    assert one["id"] == found[-1]["id"]
