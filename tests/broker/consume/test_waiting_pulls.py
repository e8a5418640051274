"""What a waiting consumer is given at once, before the one who waits for it in the broker has woken up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.broker.conftest import ACK, Bench, Got, World
from tests.eventually import eventually_done
from tests.inside.broker import Buffers, Member
from tests.inside.protocol import Act, Pull, Pulled


class Hand:
    """Takes what is handed over, and notes it."""

    def __init__(
        self, bench: Bench, member: Member, *acts: Act, give_up: bool = False, answers: int = 1, wait_ms: int = 60_000
    ) -> None:
        self.given: list[Got] = []
        self.answers = answers
        self.ending = False
        self._give_up = give_up
        request = Pull(0, 10, 1 << 20, wait_ms, acts=list(acts), answers=answers)
        self.task = asyncio.ensure_future(bench.broker.consumers.pull(member, request, self))

    @property
    def stands(self) -> bool:
        return self.answers > 1

    def take(self, pulled: Pulled, buffers: Buffers) -> None:
        self.answers -= 1
        self.given.append(Got(pulled, b"".join(buffers)))
        if self._give_up:
            self.task.cancel()

    def set_aside(self, size: int) -> int:
        return size

    async def wait_for_room(self, size: int, within_s: float) -> bool:
        return True

    def read(self, room: int, size: int) -> None:
        """Nothing is counted here."""

    def let_go(self) -> None:
        """Nor here."""

    async def got(self) -> Got:
        pulled, buffers = await self.task
        return Got(pulled, b"".join(buffers))


async def until_waiting(member: Member) -> None:
    await eventually_done(lambda: member.waiting)


def test_a_waiting_consumer_is_handed_what_came_and_it_is_the_answer_too(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach()
        hand = Hand(bench, member)
        await until_waiting(member)
        await bench.send("orders", b"a", b"b")
        got = await hand.got()
        assert [one.bodies for one in hand.given] == [[b"a", b"b"]]
        assert (got.pull, got.bodies) == (hand.given[0].pull, [b"a", b"b"])
        assert not (await bench.act(member, ACK, got)).refused
        assert member.in_flight == 0

    world.run(scenario)


def test_one_who_gives_up_waiting_keeps_what_it_was_handed(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach()
        hand = Hand(bench, member, give_up=True)
        await until_waiting(member)
        await bench.send("orders", b"a")
        with pytest.raises(asyncio.CancelledError):
            await hand.task
        assert [one.bodies for one in hand.given] == [[b"a"]]
        assert member.in_flight == 1
        assert not (await bench.act(member, ACK, hand.given[0])).refused

    disk.run(scenario)


async def _large(bench: Bench) -> None:
    await bench.send("orders", bytes(5_000))


async def _timed(bench: Bench) -> None:
    await bench.send("orders", b"a", limits=[60_000_000])


@pytest.mark.parametrize("send", [_large, _timed])
def test_what_has_to_be_read_or_looked_at_is_not_handed_over(
    disk: World, send: Callable[[Bench], Awaitable[None]]
) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach()
        hand = Hand(bench, member)
        await until_waiting(member)
        await send(bench)
        got = await hand.got()
        assert not hand.given
        assert len(got.bodies) == 1

    disk.run(scenario)


def test_nothing_is_handed_over_to_at_most_once_groups_nor_with_refused_acts(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        once = await bench.attach(group="once", mode="at-most-once")
        lying = await bench.attach(group="billing")
        hands = [Hand(bench, once), Hand(bench, lying, Act(ACK, 4711))]
        await until_waiting(once)
        await until_waiting(lying)
        await bench.send("orders", b"a")
        gots = [await hand.got() for hand in hands]
        assert [one.bodies for one in gots] == [[b"a"], [b"a"]]
        assert [code for _, code, _ in gots[1].answer.refused] == ["lease-lost"]
        assert not any(hand.given for hand in hands)

    disk.run(scenario)
