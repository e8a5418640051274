"""Who waits for room among the answers that clients have not taken: by turns, and however many wait, each costs the
same."""

from __future__ import annotations

import asyncio
import time
from itertools import permutations

import pytest

from tests.eventually import eventually_done
from tests.inside.broker import LISTS, LOOKUPS, READS_MAX, SHARE_BYTES, AnswerBudget, AnswerShare
from towline.errors import Stopping

BUDGET = 256 << 20
SLOTS = READS_MAX[LOOKUPS]


def share(budget: AnswerBudget, most_bytes: int = SHARE_BYTES) -> AnswerShare:
    return budget.share(lambda: 0, str, most_bytes)


def occupied(budget: AnswerBudget) -> list[tuple[AnswerShare, int]]:
    """As many reads under way as there may be."""
    shares = [share(budget) for _ in range(SLOTS)]
    return [(one, one.set_aside(SHARE_BYTES, LOOKUPS)) for one in shares]


async def line_up(shares: list[AnswerShare], each: int) -> list[asyncio.Task[int]]:
    tasks = [asyncio.ensure_future(one.wait(SHARE_BYTES, LOOKUPS)) for one in shares for _ in range(each)]
    await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize("each", [1, 100])
async def test_who_waits_is_asked_about_as_often_as_somebody_is_served(
    each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = AnswerBudget(BUDGET)
    hogs = occupied(budget)
    shares = [share(budget) for _ in range(40)]
    tasks = await line_up(shares, each)
    asked, set_aside = 0, AnswerShare.set_aside

    def count(one: AnswerShare, size: int, kind: int = 0) -> int:
        nonlocal asked
        asked += 1
        return set_aside(one, size, kind)

    monkeypatch.setattr(AnswerShare, "set_aside", count)
    for _ in range(1_000):
        budget.freed()
        await asyncio.sleep(0)
    assert asked == 0, "no read can begin"
    for hog, room in hogs:
        hog.read(room, 0, LOOKUPS)
    served = 0
    while served < len(tasks):
        await asyncio.sleep(0)
        done = [(number, task) for number, task in enumerate(tasks) if task.done()]
        for number, task in done:
            shares[number // each].read(task.result(), 0, LOOKUPS)
            tasks[number] = asyncio.get_running_loop().create_future()  # type: ignore[call-overload]
        served += len(done)
    assert asked <= 4 * served
    assert budget.used_bytes == 0


async def test_a_connection_that_goes_costs_no_more_where_many_others_wait() -> None:
    async def cost_s(others: int) -> float:
        budget = AnswerBudget(BUDGET)
        occupied(budget)
        waiting = await line_up([share(budget) for _ in range(others)], 100)
        costs_s = []
        for _ in range(5):
            going = share(budget)
            tasks = await line_up([going], 100)
            begun_s = time.process_time()
            going.close()
            await asyncio.wait(tasks)
            costs_s.append(time.process_time() - begun_s)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        return min(costs_s)

    assert await cost_s(100) < 10 * await cost_s(1)


async def test_connections_take_turns_and_one_that_has_no_room_holds_nobody_up() -> None:
    budget = AnswerBudget(BUDGET)
    hogs = occupied(budget)
    greedy, modest = share(budget), share(budget)
    tasks = await line_up([greedy, modest], 2)
    for hog, room in hogs:
        hog.read(room, 0, LOOKUPS)
    await eventually_done(lambda: tasks[0].done() and tasks[2].done())
    assert not any(task.done() for task in tasks[1::2]), "one at a time, until it has shown that it reads"
    modest.read(await tasks[2], 0, LOOKUPS)
    modest.read(await tasks[3], 0, LOOKUPS)
    assert not tasks[1].done()
    greedy.read(await tasks[0], 0, LOOKUPS)
    greedy.read(await tasks[1], 0, LOOKUPS)
    assert (budget.used_bytes, budget.reads[LOOKUPS]) == (0, 0)


async def test_nobody_waits_for_reads_of_another_kind() -> None:
    budget = AnswerBudget(BUDGET)
    occupied(budget)
    one, other = share(budget), share(budget)
    [lookup] = await line_up([one], 1)
    assert other.set_aside(SHARE_BYTES, LISTS)
    listing = asyncio.ensure_future(other.wait(SHARE_BYTES, LISTS))
    await asyncio.sleep(0)
    other.read(SHARE_BYTES, 0, LISTS)
    assert await listing
    assert not lookup.done()
    lookup.cancel()


async def test_one_who_gives_up_or_is_refused_leaves_nothing_behind() -> None:
    budget = AnswerBudget(BUDGET)
    hogs = occupied(budget)
    one, other = share(budget), share(budget)
    served, given_up, refused = *(await line_up([one], 2)), *(await line_up([other], 1))
    other.end(Stopping("the broker stops"))
    given_up.cancel()
    with pytest.raises(Stopping):
        await refused
    for hog, room in hogs:
        hog.read(room, 0, LOOKUPS)
    await asyncio.sleep(0)
    assert budget.used_bytes, "it was given room, and gives up before it knows"
    served.cancel()
    await asyncio.wait([served, given_up])
    assert (budget.used_bytes, budget.reads[LOOKUPS]) == (0, 0)
    assert one.set_aside(SHARE_BYTES, LOOKUPS)


@pytest.mark.parametrize("order", list(permutations([(300, 24.0), (200, 0.0), (400, 20.0)])))
async def test_who_has_left_most_for_longest_is_cut_first_and_nobody_once_half_is_free(
    order: tuple[tuple[int, float], ...],
) -> None:
    budget, cut = AnswerBudget(800), []

    def closed(left: int) -> str:
        cut.append(left)
        return "somebody"

    shares = [budget.share(lambda left=left: left, lambda left=left: closed(left), left) for left, _ in order]  # type: ignore[misc]
    for one, (left, since_s) in zip(shares, order, strict=True):
        one.wrote(left)
        one.look(since_s)
    budget.sweep(30.0)
    assert cut == [200, 400]
    assert (budget.used_bytes, budget.cut) == (300, 2)
