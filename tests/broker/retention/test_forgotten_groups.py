"""Groups that come and go leave nothing behind in the store: no name, no record, nothing in the index of a segment."""

from __future__ import annotations

from pathlib import Path

from tests.broker.conftest import ACK, DEAD, Bench, World
from tests.broker.test_recovery import crash
from tests.eventually import eventually_done
from tests.inside.store import LogStore, load_directory
from towline.model import GroupConfig, dead_stream, pull_stream

MANY = 60
THOUSANDS = 2_000
EVERYTHING = 1 << 40


async def come_and_go(bench: Bench, number: int) -> None:
    """A consumer without a group and a group that is deleted; each takes a message and gives it up."""
    for group, ephemeral in ((f"~g{number}", True), (f"g{number}", False)):
        member = await bench.attach(group=group, consumer="c", ephemeral=ephemeral, start="earliest")
        got = await bench.pull(member, 2)
        await bench.act(member, DEAD, got, reason="no")
        await eventually_done(lambda group=group: bench.store.bounds(dead_stream("orders", group)).size_bytes > 0)  # type: ignore[misc]
        await bench.broker.consumers.detach(member)
        if not ephemeral:
            await bench.broker.groups.delete("orders", group)


def names(bench: Bench) -> list[str]:
    """Dead letters of a group with a name may be looked for by their numbers."""
    return [*bench.store.streams("pull/"), *bench.store.streams("dead/orders/~")]


async def test_groups_that_come_and_go_leave_no_names(world: World) -> None:
    async with world.open() as bench:
        await bench.send("orders", *(b"%d" % number for number in range(5)))
        for number in range(MANY if world.kind == "memory" else MANY // 6):
            await come_and_go(bench, number)
        await eventually_done(lambda: not bench.broker.topics["orders"].groups)
        await eventually_done(lambda: not names(bench))
    if world.kind != "memory":
        async with world.open() as bench:
            assert not names(bench)
            assert bench.broker.topics["orders"].groups == {}


async def test_thousands_of_consumers_leave_neither_memory_nor_bytes_in_indexes(disk: World) -> None:
    async with disk.open() as bench:
        await bench.send("orders", b"1")
        for number in range(THOUSANDS):
            member = await bench.attach(group=f"~g{number}", consumer="c", ephemeral=True, start="latest")
            await bench.broker.consumers.detach(member)
        await eventually_done(lambda: not bench.broker.topics["orders"].groups)
        await eventually_done(lambda: not names(bench))
        store = bench.store
        assert isinstance(store, LogStore)
        assert len(store._streams) < 20
        assert len(store._tail.active.runs) < 20
        store._tail.roll()
        await bench.send("orders", b"2")
        await store.end()
        assert len(store._sealer._known) < 20
        indexes = sorted((disk.folder / "data/log").glob("*.idx"))
        directory = load_directory(indexes[-1])
        assert directory is not None
        assert len(directory.names) < 20
    async with disk.open() as bench:
        assert isinstance(bench.store, LogStore)
        assert len(bench.store._streams) < 20


async def test_a_group_made_anew_is_whole_after_a_crash_whatever_its_forerunner_left(
    disk: World, tmp_path: Path
) -> None:
    """The snapshot speaks of the forerunner, which had far more events than the group has now."""

    async with disk.open() as bench:
        await bench.send("orders", *(b"%d" % n for n in range(40)))
        old = await bench.attach()
        for _ in range(20):
            await bench.act(old, ACK, await bench.pull(old, 1))
        await bench.broker.maintain()
        spoken = bench.store.bounds(pull_stream("orders", "billing")).end
        await bench.broker.groups.delete("orders", "billing")
        new = await bench.attach(consumer="new")
        first, end, _ = bench.store.bounds(pull_stream("orders", "billing"))
        assert spoken <= first < end
        await bench.act(new, ACK, await bench.pull(new, 3))
        await bench.flush()
        after = crash(disk, tmp_path / "crashed")
    async with after.open() as bench:
        again = await bench.attach(consumer="again")
        assert (await bench.pull(again, 100)).bodies == [b"%d" % n for n in range(3, 40)]


async def test_a_start_forgets_what_was_left(disk: World) -> None:
    """As a broker does that was killed between two steps, and as versions before did always."""

    async with disk.open() as bench:
        await bench.send("orders", b"1")
        stays = await bench.attach(group="stays")
        await bench.pull(stays)
        for group in ("~passing", "deleted"):
            await bench.broker.groups.put(GroupConfig("orders", group))
            dispatcher = bench.broker.groups.named("orders", group)
            dispatcher.close()
            bench.broker.topics["orders"].groups.pop(group)
            bench.broker._catalog.drop_group("orders", group)
            await bench.store.append([], bench.broker._durability).done
            if group == "deleted":
                await bench.store.trim(pull_stream("orders", group), EVERYTHING)
        await bench.broker._catalog.save()
        assert len(names(bench)) == 3
    async with disk.open() as bench:
        await eventually_done(lambda: names(bench) == [pull_stream("orders", "stays")])
        assert list(bench.broker.topics["orders"].groups) == ["stays"]
