"""The files in `config/`: readable, versioned, with a predecessor to fall back to; and the template for new topics."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.broker.conftest import ACK, Bench, World
from tests.inside.frame import encode
from tests.inside.ground import ManualClock
from tests.inside.protocol import CancelDelayed, PutTopic
from towline.errors import NotFound, StoreDamaged
from towline.model import GroupConfig, TopicConfig


def config(disk: World, name: str) -> Path:
    return Path(disk.store_url.removeprefix("file:")) / "config" / name


def document(disk: World, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(config(disk, name).read_text())
    return found


async def make(disk: World, *topics: str) -> None:
    async with disk.open() as bench:
        for topic in topics:
            await bench.send(topic, b"one", b"two")
            await bench.broker.groups.put(GroupConfig(topic, "billing"))


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def test_every_write_counts_in_the_data_version_and_keeps_the_file_before_it(disk: World) -> None:
    asyncio.run(make(disk, "orders"))
    before = document(disk, "topics.json")
    asyncio.run(make(disk, "stock"))
    after = document(disk, "topics.json")
    assert after["dataVersion"]["counter"] == before["dataVersion"]["counter"] + 1
    assert after["dataVersion"]["timestamp"] > 1_500_000_000_000
    assert document(disk, "topics.json.bak") == before
    assert [topic["name"] for topic in after["topics"]] == ["orders", "stock"]
    assert "\n  " in config(disk, "topics.json").read_text()
    assert document(disk, "subscriptionGroup.json")["groups"][0]["name"] == "billing"


@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json", "consumerOffset.json"])
def test_a_damaged_file_falls_back_to_its_predecessor_and_says_so(
    disk: World, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        await make(disk, "orders")
        await make(disk, "orders", "stock")
        damage(config(disk, name))
        async with disk.open() as bench:
            # What the older file does not know is found in the streams.
            assert [state.config.name for state in await bench.broker.topic_states()] == ["orders", "stock"]
            member = await bench.attach()
            assert (await bench.pull(member)).bodies == [b"one", b"two"] * 2

    with caplog.at_level(logging.ERROR, "towline.broker"):
        asyncio.run(main())
    said = [record.getMessage() for record in caplog.records if f"{name}.bak" in record.getMessage()]
    assert len(said) == 1
    assert f"config file {name} is not used: it cannot be read: " in said[0]


async def test_a_missing_file_falls_back_to_its_predecessor_and_what_changed_since(disk: World) -> None:
    await make(disk, "orders")
    async with disk.open() as bench:
        await bench.broker.put_topic(PutTopic(TopicConfig("orders", retention_s=60.0)))
        await bench.broker.put_topic(PutTopic(TopicConfig("orders", retention_s=90.0)))
    config(disk, "topics.json").unlink()
    async with disk.open() as bench:
        assert bench.broker.topic_state("orders").config.retention_s == 90.0


@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json"])
async def test_if_both_are_damaged_the_error_names_both_and_says_what_to_do(disk: World, name: str) -> None:
    await make(disk, "orders")
    await make(disk, "orders", "stock")
    damage(config(disk, name))
    damage(config(disk, f"{name}.bak"))
    with pytest.raises(StoreDamaged, match=rf"{name} .* {name}\.bak: .*Mend one of them.*remove both"):
        async with disk.open():
            pass


def test_if_both_offset_files_are_damaged_the_pull_logs_are_replayed(
    disk: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with disk.open() as bench:
            await bench.send("orders", b"one", b"two")
            member = await bench.attach()
            await bench.act(member, ACK, await bench.pull(member, 1))
            await bench.broker.maintain()
            await bench.act(member, ACK, await bench.pull(member, 1))
        damage(config(disk, "consumerOffset.json"))
        damage(config(disk, "consumerOffset.json.bak"))
        async with disk.open() as bench:
            assert bench.broker.group_state("orders", "billing").lag == 0

    asyncio.run(main())
    assert "consumerOffset.json.bak" in caplog.text
    assert "replayed" in caplog.text


async def test_events_behind_the_predecessor_of_the_last_snapshot_are_kept(disk: World) -> None:
    """Otherwise falling back to it would be of no use."""

    async with disk.open() as bench:
        await bench.send("orders", *(b"%d" % n for n in range(10)))
        member = await bench.attach()
        for _ in range(5):
            await bench.act(member, ACK, await bench.pull(member, 2))
            await bench.broker.maintain()
    damage(config(disk, "consumerOffset.json"))
    async with disk.open() as bench:
        assert bench.broker.group_state("orders", "billing").lag == 0


async def test_offsets_are_shown_by_the_names_of_lanes_and_read_in_both_forms(disk: World) -> None:
    async with disk.open() as bench:
        await bench.send("orders", b"one", b"two")
        member = await bench.attach()
        await bench.act(member, ACK, await bench.pull(member, 1))
        await bench.broker.topics.create(TopicConfig("ledger", shards=2))
        await bench.send("ledger", b"one", lane=1, shard_keys=["key"])
        await bench.attach("ledger")
    written = document(disk, "consumerOffset.json")
    offsets = {one["topic"]: one["offsets"] for one in written["groups"]}
    own = {"own-high": 0, "own-middle": 0, "own-low": 0}
    assert offsets == {
        "orders": {"high": 0, "middle": 1, "low": 0} | own,
        "ledger": {"0": 0, "1": 0} | own,
    }
    for one in written["groups"]:
        one["offsets"] = list(one["offsets"].values())  # as earlier versions wrote them
    config(disk, "consumerOffset.json").write_text(json.dumps(written))
    async with disk.open() as bench:
        assert bench.broker.group_state("orders", "billing").lag == 1
        assert bench.broker.group_state("ledger", "billing").lag == 1


def test_the_schedule_keeps_its_progress_in_a_file_with_a_version_and_a_predecessor(
    disk: World, caplog: pytest.LogCaptureFixture
) -> None:
    """What was cancelled stays so, and what was delivered is not delivered again, if only the older file is left."""

    async def main() -> None:
        clock = ManualClock()
        async with disk.open(clock) as bench:
            for seconds in (10, 20, 3_000, 4_000):
                await bench.send("orders", b"%d" % seconds, deliver_at_us=[-seconds * 1_000_000])
            await bench.broker.maintain()
            first = document(disk, "delayOffset.json")
            clock.advance(15)
            await bench.broker.scheduler.catch_up()
            await bench.broker.delayed.cancel(CancelDelayed("orders", [3]))
            await bench.broker.maintain()
            clock.advance(1)
            await bench.broker.maintain()
        second = document(disk, "delayOffset.json")
        assert second["dataVersion"]["counter"] > first["dataVersion"]["counter"]
        assert second["delayed"] == {"orders": 2}
        assert "\n " in config(disk, "delayOffset.json").read_text()
        assert document(disk, "delayOffset.json.bak")["dataVersion"]["counter"] <= second["dataVersion"]["counter"]
        damage(config(disk, "delayOffset.json"))
        async with disk.open(clock) as bench:
            clock.advance(5_000)
            await bench.broker.scheduler.catch_up()
            member = await bench.attach()
            assert (await bench.pull(member)).bodies == [b"10", b"20", b"4000"]

    with caplog.at_level(logging.ERROR, "towline.broker"):
        asyncio.run(main())
    assert "config file delayOffset.json is not used: it cannot be read: " in caplog.text


async def test_marks_behind_the_predecessor_of_the_last_schedule_are_kept(disk: World) -> None:
    """Otherwise falling back to it would bring back what was cancelled since."""

    clock = ManualClock()
    async with disk.open(clock) as bench:
        for number in range(6):
            await bench.send("orders", b"%d" % number, deliver_at_us=[-3_000_000_000])
        for number in range(4):
            await bench.broker.delayed.cancel(CancelDelayed("orders", [number + 1]))
            await bench.broker.maintain()
        older, newer = (document(disk, f"delayOffset.json{end}") for end in (".bak", ""))
        assert older["position"] < newer["position"]
    damage(config(disk, "delayOffset.json"))
    config(disk, "delayOffset.json.bak").write_text(json.dumps(older))
    async with disk.open(clock) as bench:
        clock.advance(3_600)
        await bench.broker.scheduler.catch_up()
        assert (await bench.pull(await bench.attach())).bodies == [b"4", b"5"]


# --- the template


def test_a_topic_made_by_the_first_send_takes_over_the_template(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.broker.put_topic(PutTopic(TopicConfig("any", retention_s=77.0), True))
        await bench.send("orders", b"x")
        assert bench.broker.topic_state("orders").config.retention_s == 77.0
        assert bench.broker.topic_state("orders").config.created_at_us > 0
        await bench.broker.topics.create(TopicConfig("made"))
        assert bench.broker.topic_state("made").config.retention_s is None
        assert bench.broker.template().config.retention_s == 77.0
        assert [state.config.name for state in await bench.broker.topic_states()] == ["made", "orders"]

    world.run(scenario)


async def test_template_and_edited_topics_survive_a_restart(disk: World) -> None:
    async with disk.open() as bench:
        await bench.broker.put_topic(PutTopic(TopicConfig("any", retention_s=77.0), True))
        await bench.send("orders", b"x")
        created_at_us = bench.broker.topic_state("orders").config.created_at_us
        await bench.broker.put_topic(PutTopic(TopicConfig("orders", retention_s=5.0)))
    async with disk.open() as bench:
        assert bench.broker.topic_state("orders").config == TopicConfig("orders", created_at_us, 5.0)
        assert bench.broker.template().config.retention_s == 77.0
        with pytest.raises(NotFound):
            await bench.broker.put_topic(PutTopic(TopicConfig("none")))


def test_topics_and_groups_are_switched_separately(world: World) -> None:
    async def no_topics(bench: Bench) -> None:
        with pytest.raises(NotFound, match="orders"):
            bench.broker.send([("orders", 1, encode([b"a"]))])
        await bench.broker.topics.create(TopicConfig("orders"))
        await bench.attach()

    async def no_groups(bench: Bench) -> None:
        await bench.send("stock", b"a")
        with pytest.raises(NotFound, match="billing"):
            await bench.attach("stock")

    world.run(no_topics, auto_create_topics=False)
    world.run(no_groups, auto_create_groups=False)
