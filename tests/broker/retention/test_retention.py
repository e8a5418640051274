"""What retention leaves alone: what recovery may begin with, and what consumers still have to do with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.broker.conftest import ACK, GIVE_BACK, NACK, Bench, World
from tests.inside.broker import snapshots
from tests.inside.ground import SYSTEM, ManualClock
from tests.inside.protocol import EditTopic
from towline.model import TopicConfig

SMALL: dict[str, Any] = {"segment_bytes": 64 << 10, "retention_bytes": 64 << 10}


async def press(bench: Bench) -> None:
    """So much of another topic that retention would drop all that it may."""
    for _ in range(8):
        await bench.send("other", bytes(50_000))


async def test_retention_keeps_the_events_that_the_snapshot_before_the_last_one_needs(disk: World) -> None:
    config = disk.folder / "data" / "config"
    names = ("consumerOffset.json", "consumerOffset.json.bak")
    async with disk.open(**SMALL) as bench:
        member = await bench.attach()
        await bench.send("orders", b"held")
        await bench.send("other", b"made")  # now: the list of topics is kept back to the one before the last, too
        got = await bench.pull(member)
        await bench.flush()
        await bench.broker.maintain()
        await press(bench)
        assert (await bench.act(member, ACK, got)).refused == []
        await press(bench)
        await bench.broker.maintain()  # its snapshot has the ack; the one before, which is the .bak now, has not
        kept = {name: (config / name).read_bytes() for name in names}
        assert bench.store.bounds("pull/orders/billing").first > 0, "retention has dropped events"
    # A crash right then, and damage to the newer one.
    for name in names:
        (config / name).write_bytes(kept[name])
    (config / names[0]).write_bytes(b"damaged")
    async with disk.open(**SMALL) as bench:
        state = bench.broker.group_state("orders", "billing")
        assert (state.lag, state.in_flight) == (0, 0), "the ack is not forgotten"


@pytest.mark.parametrize("kind", ["log", "sql"])
async def test_retention_keeps_the_events_of_a_group_that_no_snapshot_speaks_of_yet(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file is written again after a while only."""

    async with (world := World(kind, tmp_path)).open(**SMALL) as bench:
        await bench.attach(group="first")
        await bench.attach(group="passing")
        for _ in range(2):
            await bench.broker.maintain()
        await bench.broker.groups.delete("orders", "passing")
        monkeypatch.setattr(snapshots, "LARGE_BYTES", 1)
        monkeypatch.setattr(snapshots, "BYTES_PER_S", 1e-6)
        await bench.broker.maintain()
        await press(bench)
        member = await bench.attach(group="second")
        begin = bench.store.bounds("pull/orders/second").first
        await bench.send("orders", b"done")
        await bench.act(member, ACK, await bench.pull(member))
        for _ in range(3):
            await press(bench)
            await bench.broker.maintain()
        assert bench.store.bounds("lane/other/middle").first, "retention was at work"
        assert bench.store.bounds("pull/orders/second").first == begin
        await bench.flush()
        # It ends at once, without another snapshot.
        await bench.broker._stop()
        await bench.store.close()
    async with world.open(**SMALL) as bench:
        assert bench.broker.groups.named("orders", "second").group.next[1] == 1, "the ack is not forgotten"


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("state", ["leased", "retrying"])
async def test_retention_spares_what_is_leased_or_will_be_tried_again(disk: World, state: str, own: bool) -> None:
    """By the age of a topic of its own, and by the size of the store."""

    clock = ManualClock(SYSTEM.now_us())
    # Nobody is taken for silent when the clock is set forward.
    async with disk.open(clock, heartbeat_s=1e6, **SMALL) as bench:
        await bench.broker.topics.create(TopicConfig("orders", retention_s=600.0 if own else None))
        member = await bench.attach(delays_s=(86400.0,))
        await bench.send("orders", b"old")
        await bench.send("orders", b"held")
        await bench.act(member, ACK, await bench.pull(member, 1))
        got = await bench.pull(member, 1)
        if state == "retrying":
            await bench.act(member, NACK, got)
        await press(bench)
        clock.advance(3600)
        for _ in range(3):
            await bench.broker.maintain()  # until both snapshots have what came before
        assert bench.store.bounds("lane/orders/middle").first == (1 if own else 0)
        if state == "leased":
            await bench.act(member, GIVE_BACK, got)
        else:
            clock.advance(86400)
        assert (await bench.pull(member, wait_ms=60_000)).bodies == [b"held"]


@pytest.mark.parametrize("kind", ["log", "sql"])
@pytest.mark.parametrize("longest_s", [0.0, 30 * 86400.0])
async def test_one_topic_that_is_kept_for_longer_does_not_keep_the_others(
    tmp_path: Path, kind: str, longest_s: float
) -> None:
    world = World(kind, tmp_path)
    clock = ManualClock(SYSTEM.now_us())
    world.store_clock = clock
    async with world.open(clock, retention_s=600.0, heartbeat_s=1e6) as bench:
        await bench.broker.topics.create(TopicConfig("archive", retention_s=longest_s))
        await bench.broker.topics.create(TopicConfig("fleeting", retention_s=60.0))
        member = await bench.attach(delays_s=(86400.0,))
        for topic in ("archive", "orders", "fleeting"):
            await bench.send(topic, b"old")
        clock.advance(120)
        await bench.send("orders", b"open")
        await bench.act(member, ACK, await bench.pull(member, 1))
        await bench.act(member, NACK, await bench.pull(member, 1))
        await bench.broker.maintain()
        assert firsts(bench) == (0, 0, 1)
        clock.advance(500)
        await bench.broker.maintain()
        assert firsts(bench) == (0, 1, 1)
        clock.advance(600)
        await bench.send("orders", b"new")
        await bench.broker.maintain()
        assert firsts(bench) == (0, 1, 1), "it is open"
        assert bench.broker.figures()["retention_held_s"] > 0
        clock.advance(86400)
        await bench.broker.maintain()
        await bench.broker.maintain()
        assert firsts(bench) == (0, 3, 1)


def firsts(bench: Bench) -> tuple[int, ...]:
    return tuple(bench.store.bounds(f"lane/{topic}/middle").first for topic in ("archive", "orders", "fleeting"))


async def test_a_new_retention_of_a_topic_counts_at_once(disk: World) -> None:
    """Those with a long one are looked at every few minutes only."""

    clock = ManualClock(SYSTEM.now_us())
    disk.store_clock = clock
    async with disk.open(clock, retention_s=0.0, heartbeat_s=1e6) as bench:
        await bench.broker.topics.create(TopicConfig("orders", retention_s=86400.0))
        await bench.send("orders", b"old")
        clock.advance(86300)
        await bench.broker.maintain()
        clock.advance(200)
        await bench.broker.maintain()
        assert bench.store.bounds("lane/orders/middle").first == 0
        clock.advance(600)
        await bench.broker.maintain()
        assert bench.store.bounds("lane/orders/middle").first == 1
        await bench.send("orders", b"young")
        clock.advance(60)
        await bench.broker.topics.edit(EditTopic("orders", 30.0))
        await bench.broker.maintain()
        assert bench.store.bounds("lane/orders/middle").first == 2
