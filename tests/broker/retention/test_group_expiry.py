"""Groups that nobody uses: they are removed after a time that is said beforehand, and never for a wrong reason."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.broker.conftest import ACK, DEAD, NACK, Bench, World
from tests.broker.schedule.test_clock import TwoClocks
from tests.broker.test_recovery import crash
from tests.inside.broker import Server, exposition, group_expiry
from tests.inside.protocol import Attach, Measure, Pause, Report, Resend, Seek
from towline.errors import NotFound
from towline.model import GroupConfig, pull_stream

DAY_S = 86400.0


async def pass_days(bench: Bench, clock: TwoClocks, days: float) -> None:
    """Let time go by with maintenance as it is done, a few times a day."""
    for _ in range(round(days * 4)):
        clock.advance(DAY_S / 4)
        await bench.broker.group_expiry.look()


def groups(bench: Bench) -> list[str]:
    return sorted(bench.broker.topics.named("orders").groups)


async def come_and_go(bench: Bench, group: str = "~pod", start: str = "latest") -> None:
    member = await bench.attach(group=group, start=start)
    await bench.broker.consumers.detach(member)


def test_a_broadcast_consumer_that_nobody_uses_is_removed_and_that_is_said_beforehand(
    disk: World, caplog: pytest.LogCaptureFixture
) -> None:
    clock = TwoClocks()

    async def main() -> None:
        async with disk.open(clock) as bench:
            await come_and_go(bench)
            await come_and_go(bench, "billing")
            await pass_days(bench, clock, 5.75)
            state = bench.broker.group_state("orders", "~pod")
            assert (round(state.unused_s / DAY_S, 2), round(state.expires_in_s / DAY_S, 2)) == (5.75, 1.25)
            assert bench.broker.group_state("orders", "billing").expires_in_s == group_expiry.NEVER
            assert "nobody uses" not in caplog.text
            await pass_days(bench, clock, 0.5)
            assert "nobody uses group ~pod on topic orders: removed in 86400 s, unless a consumer comes" in caplog.text
            measured = await bench.broker.measure(Measure())
            assert {one.group: one.expires_in_s for one in measured.groups} == {"~pod": 0.75 * DAY_S, "billing": -1.0}
            assert b"towline_groups_expiring 1\n" in await exposition(bench.broker)
            await pass_days(bench, clock, 0.75)
            assert groups(bench) == ["billing"]
            assert b"towline_groups_removed_total 1\n" in await exposition(bench.broker)
            assert "group ~pod on topic orders is removed: nobody has used it for 604800 s" in caplog.text
            assert caplog.text.count("unless a consumer comes") == 1
            await bench.send("orders", b"between")
            await come_and_go(bench)
            assert "group ~pod on topic orders was removed" in caplog.text
            assert bench.broker.group_state("orders", "~pod").lag == 0, "it begins where it says, as a new one"

    with caplog.at_level(logging.INFO):
        asyncio.run(main())


async def test_a_group_with_a_consumer_is_used_and_time_counts_from_when_it_left(disk: World) -> None:
    clock = TwoClocks()

    async with disk.open(clock) as bench:
        member = await bench.attach(group="~pod")
        for _ in range(60):
            clock.advance(DAY_S / 2)
            bench.broker.consumers.beat(member)
            await bench.broker.group_expiry.look()
        assert bench.broker.group_state("orders", "~pod").unused_s == 0
        await bench.broker.consumers.detach(member)
        await pass_days(bench, clock, 6.75)
        assert groups(bench) == ["~pod"]
        await pass_days(bench, clock, 0.25)
        assert groups(bench) == []


@pytest.mark.parametrize("kind", ["log", "sql"])
async def test_it_counts_across_restarts(kind: str, tmp_path: Path) -> None:
    clock, world = TwoClocks(), World(kind, tmp_path)

    for _ in range(6):
        async with world.open(clock) as bench:
            if "orders" not in bench.broker.topics:
                await come_and_go(bench)
            await pass_days(bench, clock, 1)
            assert groups(bench) == ["~pod"]
    async with world.open(clock) as bench:
        await pass_days(bench, clock, 1)
        assert groups(bench) == []
    async with world.open(clock) as bench:
        assert groups(bench) == []
        first, end, _ = bench.store.bounds(pull_stream("orders", "~pod"))
        assert first == end


async def test_after_a_crash_it_goes_on_from_what_was_noted(disk: World, tmp_path: Path) -> None:
    clock = TwoClocks()

    async with disk.open(clock) as bench:
        await come_and_go(bench)
        await pass_days(bench, clock, 3)
        clock.advance(1000)
        after = crash(disk, tmp_path / "crashed")
    async with after.open(clock) as bench:
        assert 3 * DAY_S <= bench.broker.group_state("orders", "~pod").unused_s <= 3 * DAY_S + 1000


async def test_a_crash_does_not_bring_back_that_nobody_used_it(disk: World, tmp_path: Path) -> None:
    clock = TwoClocks()

    async with disk.open(clock) as bench:
        await come_and_go(bench)
        await pass_days(bench, clock, 6.5)
        await come_and_go(bench)
        clock.advance(10)
        await bench.broker.group_expiry.look()
        after = crash(disk, tmp_path / "crashed")
    async with after.open(clock) as bench:
        assert bench.broker.group_state("orders", "~pod").unused_s <= 10


async def test_neither_a_month_without_a_broker_nor_a_clock_that_is_set_makes_a_group_older(disk: World) -> None:
    clock = TwoClocks()

    async with disk.open(clock) as bench:
        await come_and_go(bench)
        await pass_days(bench, clock, 5)
    clock.advance(30 * DAY_S)
    async with disk.open(clock) as bench:
        clock.set(20 * 365 * DAY_S)
        await bench.broker.maintain()
        await pass_days(bench, clock, 1)
        clock.set(-40 * 365 * DAY_S)
        await bench.broker.maintain()
        assert bench.broker.group_state("orders", "~pod").unused_s == 6 * DAY_S


async def test_after_a_start_consumers_have_an_hour_before_anything_is_removed(disk: World) -> None:
    clock = TwoClocks()

    async with disk.open(clock, group_expiry_s=0) as bench:
        await come_and_go(bench, "~old")
        await come_and_go(bench, "~back")
        await pass_days(bench, clock, 6)
    async with disk.open(clock, broadcast_expiry_s=5 * DAY_S) as bench:
        clock.advance(3599)
        await bench.broker.group_expiry.look()
        assert groups(bench) == ["~back", "~old"]
        await come_and_go(bench, "~back")
        clock.advance(1)
        await bench.broker.group_expiry.look()
        assert groups(bench) == ["~back"]


async def _put(bench: Bench) -> None:
    await bench.broker.groups.put(GroupConfig("orders", "billing", timeout_s=5))


async def _pause(bench: Bench) -> None:
    await bench.broker.groups.pause(Pause("orders", "billing", True, "for a while"))
    await bench.broker.groups.pause(Pause("orders", "billing", False))


async def _seek(bench: Bench) -> None:
    await bench.broker.groups.seek(Seek("orders", "billing", "latest"))


async def _resend(bench: Bench) -> None:
    await bench.broker.dead_letters.resend(Resend("orders", "billing"))


async def _report(bench: Bench) -> None:
    await bench.broker.groups.report(Report("orders", "billing", [(0, 0)]))


async def _attach(bench: Bench) -> None:
    member = await bench.broker.consumers.attach(Attach("orders", "billing", "c"), address="test")
    await bench.broker.consumers.detach(member)


@pytest.mark.parametrize("use", [_put, _pause, _seek, _resend, _report, _attach], ids=lambda use: use.__name__)
async def test_who_changes_a_group_uses_it_and_who_looks_at_it_does_not(
    disk: World, use: Callable[[Bench], Awaitable[None]]
) -> None:
    clock = TwoClocks()

    async with disk.open(clock, group_expiry_s=30 * DAY_S) as bench:
        await come_and_go(bench, "billing")
        clock.advance(DAY_S)
        await exposition(bench.broker)
        await bench.broker.groups.seek(Seek("orders", "billing", "latest", dry_run=True))
        assert bench.broker.group_state("orders", "billing").unused_s == DAY_S
        await use(bench)
        assert bench.broker.group_state("orders", "billing").unused_s == 0


async def test_a_paused_group_and_one_that_goes_with_its_consumer_are_not_counted(disk: World) -> None:
    clock = TwoClocks()

    async with disk.open(clock, group_expiry_s=DAY_S) as bench:
        await come_and_go(bench, "resting")
        await bench.broker.groups.pause(Pause("orders", "resting", True, "until summer"))
        await come_and_go(bench, "billing")
        await pass_days(bench, clock, 3)
        assert groups(bench) == ["resting"]


def test_a_group_goes_with_all_that_was_under_way_in_it(world: World, caplog: pytest.LogCaptureFixture) -> None:
    clock = TwoClocks()

    async def scenario(bench: Bench) -> None:
        await bench.send("orders", *(b"%d" % number for number in range(30)))
        member = await bench.attach(delays_s=(600.0,))
        await bench.act(member, DEAD, await bench.pull(member, 10))
        await bench.act(member, NACK, await bench.pull(member, 10))
        await bench.act(member, ACK, await bench.pull(member, 5))
        await bench.broker.groups.buried("orders", "billing")
        await bench.broker.consumers.detach(member)
        await pass_days(bench, clock, 1)
        assert groups(bench) == []
        assert "15 messages were to go" in caplog.text
        for stream in ("pull/orders/billing", "dead/orders/billing"):
            bounds = bench.store.bounds(stream)
            assert bounds.first == bounds.end, stream
        with pytest.raises(NotFound):
            bench.broker.group_state("orders", "billing")
        again = await bench.attach()
        assert len((await bench.pull(again)).bodies) == 30, "as a new group from the beginning"

    async def main() -> None:
        async with world.open(clock, group_expiry_s=DAY_S) as bench:
            await scenario(bench)

    asyncio.run(main())


async def test_many_are_removed_some_at_a_time_and_named_in_one_line(
    disk: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = TwoClocks()
    monkeypatch.setattr(group_expiry, "REMOVED_MAX", 10)

    async with disk.open(clock) as bench:
        for number in range(25):
            await come_and_go(bench, f"~pod-{number}")
        clock.advance(6.9 * DAY_S)
        await bench.broker.group_expiry.look()
        assert caplog.text.count("nobody uses group") == 1
        assert "and 20 more" in caplog.text
        clock.advance(DAY_S)
        left = []
        for _ in range(3):
            await bench.broker.group_expiry.look()
            left.append(len(groups(bench)))
        assert left == [15, 5, 0]


async def test_who_comes_while_it_is_removed_keeps_it(disk: World) -> None:
    clock = TwoClocks()

    async with disk.open(clock) as bench:
        await come_and_go(bench)
        clock.advance(8 * DAY_S)
        async with bench.broker.groups.making:  # somebody makes a group in this moment
            looking = asyncio.create_task(bench.broker.group_expiry.look())
            coming = asyncio.create_task(bench.attach(group="~pod"))
            await asyncio.sleep(0)
            bench.broker.topics["orders"].groups["~pod"].use()
        await asyncio.gather(looking, coming)
        assert groups(bench) == ["~pod"]


def test_a_group_that_is_used_at_another_broker_is_kept(disk: World, caplog: pytest.LogCaptureFixture) -> None:
    clock = TwoClocks()
    elsewhere: dict[str, float] | None = None

    async def main() -> None:
        async with disk.open(clock) as bench:
            nonlocal elsewhere

            async def ask(topic: str) -> dict[str, float] | None:
                return elsewhere

            bench.broker.group_expiry.ask_others = ask
            await come_and_go(bench)
            await pass_days(bench, clock, 8)
            assert groups(bench) == ["~pod"], "another one does not answer"
            assert "kept while a broker of the cluster is away" in caplog.text
            elsewhere = {"~pod": 3 * DAY_S}
            await bench.broker.group_expiry.look()
            assert bench.broker.group_state("orders", "~pod").unused_s == 3 * DAY_S
            await pass_days(bench, clock, 3)
            elsewhere = {"~other": 0.0}
            await pass_days(bench, clock, 1)
            assert groups(bench) == []

    asyncio.run(main())


@pytest.mark.service
def test_the_audit_log_tells_of_it(disk: World, tmp_path: Path) -> None:
    clock = TwoClocks()

    async def main() -> None:
        async with disk.open(clock, audit_file=str(tmp_path / "audit.jsonl")) as bench:
            server = await Server.start(bench.broker, "127.0.0.1", 0)
            await come_and_go(bench)
            await pass_days(bench, clock, 7)
            await server.drain_and_close()

    asyncio.run(main())
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(one["what"], one["target"]) for one in lines] == [("ExpireGroup", "group ~pod on topic orders")]


async def test_a_note_that_cannot_be_read_makes_no_group_older(disk: World, caplog: pytest.LogCaptureFixture) -> None:
    clock = TwoClocks()

    async with disk.open(clock) as bench:
        await come_and_go(bench)
        await pass_days(bench, clock, 5)
    (disk.folder / "data" / "config" / "unused.json").write_bytes(b'{"groups": 7')
    async with disk.open(clock) as bench:
        assert bench.broker.group_state("orders", "~pod").unused_s == 0
        assert "unused.json cannot be read" in caplog.text
