"""The life of a message, told from the pull log."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.conftest import ACK, DEAD, GIVE_BACK, NACK, Bench, World
from tests.eventually import eventually_done
from tests.inside.broker import trace as tracing
from tests.inside.protocol import Resend, Trace, Traced
from towline.errors import NotFound


async def trace(bench: Bench, seq: int, **fields: Any) -> Traced:
    """All pages as one."""
    answer = await bench.broker.browsing.trace(Trace("orders", "billing", 1, seq, **fields))
    steps = list(answer.steps)
    while answer.cursor is not None:
        answer = await bench.broker.browsing.trace(Trace("orders", "billing", 1, seq, cursor=answer.cursor, **fields))
        steps += answer.steps
    return Traced(answer.status, answer.attempt, answer.due_us, steps, answer.whole)


def what(traced: Traced) -> list[str]:
    return [step.what for step in traced.steps]


async def a_life(bench: Bench) -> None:
    """One of each: 0 acked, 1 retrying, 2 in flight, 3 dead, 4 dead and sent again, 5 waiting."""
    await bench.send("orders", *(b"%d" % n for n in range(6)))
    member = await bench.attach(delays_s=(3600.0,))
    got = await bench.pull(member, 5)
    await bench.act(member, ACK, got, (1, 0, 1))
    await bench.act(member, NACK, got, (1, 1, 1), reason="no such customer")
    await bench.act(member, DEAD, got, (1, 3, 2), reason="never")
    await eventually_done(lambda: bench.broker.group_state("orders", "billing").dead == 2)
    await bench.broker.dead_letters.resend(Resend("orders", "billing", [1]))
    await bench.flush()


def test_every_status_is_derived(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await a_life(bench)
        statuses = [(await trace(bench, seq)).status for seq in range(6)]
        assert statuses == ["SUCCESS", "FAIL", "RUNNING", "DEAD", "NEW", "NEW"]
        with pytest.raises(NotFound, match="orders/middle/6"):
            await trace(bench, 6)

    world.run(scenario)


def test_what_was_given_back_without_having_failed_is_new(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"0", b"1")
        member = await bench.attach(delays_s=(0.0,))
        got = await bench.pull(member, 2)
        await bench.act(member, NACK, got, (1, 1, 1), reason="no such customer")
        failed = await bench.pull(member, 1)
        assert failed.parts[0].first == 1
        await bench.act(member, GIVE_BACK, got, (1, 0, 1))
        await bench.act(member, GIVE_BACK, failed)
        fresh, again = await trace(bench, 0), await trace(bench, 1)
        assert (fresh.status, fresh.attempt, what(fresh)) == ("NEW", 1, ["pulled", "returned"])
        assert (again.status, again.attempt) == ("FAIL", 2)

    world.run(scenario)


def test_each_step_tells_who_when_and_why(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        sent = await bench.send("earlier", b"x")
        await a_life(bench)
        failed = await trace(bench, 1)
        assert what(failed) == ["pulled", "failed"]
        pulled, nacked = failed.steps
        assert (pulled.consumer, pulled.attempt, pulled.pull) == ("c1", 1, nacked.pull)
        assert pulled.at_us >= sent.appended_at_us
        assert nacked.reason == "no such customer"
        assert nacked.due_us == failed.due_us > nacked.at_us
        assert failed.attempt == 2
        dead = await trace(bench, 4)
        assert what(dead) == ["pulled", "gaveup", "buried", "resent"]
        assert [step.dead for step in dead.steps] == [-1, -1, 1, 1]
        assert dead.steps[1].reason == "never"

    world.run(scenario)


def test_a_message_sent_again_is_followed_on_its_own_lane(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await a_life(bench)
        member = await bench.attach(consumer="c2")
        got = await bench.pull(member, 1)
        assert got.bodies == [b"4"]
        assert (await trace(bench, 4)).status == "RUNNING"
        await bench.act(member, DEAD, got, reason="still not")
        await eventually_done(lambda: bench.broker.group_state("orders", "billing").dead == 2)
        await bench.broker.dead_letters.resend(Resend("orders", "billing", [2]))
        got = await bench.pull(member, 1)
        await bench.act(member, ACK, got)
        last = await trace(bench, 4)
        assert last.status == "SUCCESS"
        assert what(last)[4:] == ["pulled", "gaveup", "buried", "resent", "pulled", "acked"]
        assert [step.copy for step in last.steps] == [False] * 4 + [True] * 3 + [False, True, True]
        assert (await trace(bench, 3)).status == "DEAD"

    world.run(scenario)


def test_returned_and_released_messages_tell_so(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"0")
        member = await bench.attach()
        await bench.act(member, GIVE_BACK, await bench.pull(member))
        await bench.pull(member)
        await bench.broker.consumers.leave(member, vanished=True, reason="it was killed")
        other = await bench.attach(consumer="c2")
        await bench.act(other, ACK, await bench.pull(other))
        traced = await trace(bench, 0)
        assert what(traced) == ["pulled", "returned", "pulled", "released", "pulled", "acked"]
        assert traced.steps[3].reason == "it was killed"
        assert [step.attempt for step in traced.steps if step.what == "pulled"] == [1, 1, 2]

    world.run(scenario)


def test_a_message_before_the_group_began_is_not_for_it(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"0")
        await bench.attach(start="latest")
        assert (await trace(bench, 0)).status == "BEFORE"

    world.run(scenario)


def test_the_work_of_a_request_is_bounded_and_goes_on_by_the_cursor(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "SCAN_MAX", 1)
    monkeypatch.setattr(tracing, "READ_COUNT", 1)

    async def scenario(bench: Bench) -> None:
        await a_life(bench)
        first = await bench.broker.browsing.trace(Trace("orders", "billing", 1, 4))
        assert first.cursor is not None
        assert what(await trace(bench, 4)) == ["pulled", "gaveup", "buried", "resent"]
        assert (await trace(bench, 4)).status == "NEW"
        assert (await trace(bench, 0)).status == "SUCCESS"

    world.run(scenario)


async def test_it_is_told_after_a_restart_and_when_events_are_gone(disk: World) -> None:
    async with disk.open() as bench:
        await a_life(bench)
    async with disk.open() as bench:
        assert (await trace(bench, 3)).status == "DEAD"
        await bench.store.trim("pull/orders/billing", bench.store.bounds("pull/orders/billing").end)
        gone = await trace(bench, 0)
        assert (gone.status, gone.steps, gone.whole) == ("SUCCESS", [], False)
        assert (await trace(bench, 5)).status == "NEW"


def test_a_group_of_which_nothing_is_missing_is_told_whole_wherever_its_numbers_begin(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await a_life(bench)
        await bench.broker.groups.delete("orders", "billing")
        member = await bench.attach(start="earliest")
        got = await bench.pull(member, 2)
        await bench.act(member, ACK, got)
        await bench.flush()
        assert bench.store.bounds("pull/orders/billing").first > 0
        again = await trace(bench, 0)
        assert (again.status, again.whole) == ("SUCCESS", True)

    world.run(scenario)
