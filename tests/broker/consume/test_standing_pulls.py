"""Pulls that stand, in the dispatcher: who is served, how often, and what ends it."""

from __future__ import annotations

from tests.broker.conftest import ACK, NACK, Bench, World
from tests.broker.consume.test_waiting_pulls import Hand, until_waiting
from tests.eventually import eventually_done
from tests.inside.broker import KEEPS_UP_S, Member
from tests.inside.ground import ManualClock
from tests.inside.protocol import Act, Pause, Purge, Seek
from towline.model import TopicConfig


def bodies(hand: Hand) -> list[list[bytes]]:
    return [one.bodies for one in hand.given]


async def stand(bench: Bench, member: Member, answers: int = 10) -> Hand:
    hand = Hand(bench, member, answers=answers)
    await until_waiting(member)
    return hand


def test_it_is_answered_again_and_again_until_its_answers_are_used_up(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach()
        hand = await stand(bench, member, answers=3)
        for body in (b"a", b"b", b"c", b"d"):
            await bench.send("orders", body)
        last = await hand.got()
        assert bodies(hand) == [[b"a"], [b"b"], [b"c"]]
        assert [one.answer.more for one in hand.given] == [True, True, False]
        assert last.pull == hand.given[-1].pull, "the last one is the answer, too"
        assert not member.waiting
        assert member.in_flight == 3
        assert (await bench.pull(member)).bodies == [b"d"]

    world.run(scenario)


def test_what_waits_beyond_the_limit_in_flight_is_given_when_an_ack_makes_room(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach(max_in_flight=1)
        hand = await stand(bench, member)
        for body in (b"a", b"b", b"c"):
            await bench.send("orders", body)
        assert bodies(hand) == [[b"a"]], "it may hold one"
        assert not (await bench.act(member, ACK, hand.given[0])).refused
        assert bodies(hand) == [[b"a"], [b"b"]], "an ack makes room, and what waits is served by it"
        await bench.act(member, ACK, hand.given[1])
        await bench.act(member, ACK, hand.given[2])
        assert bodies(hand) == [[b"a"], [b"b"], [b"c"]]
        await bench.send("orders", b"d")
        assert bodies(hand)[-1] == [b"d"]

    disk.run(scenario)


def test_acks_of_another_consumer_do_not_leave_it_waiting(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        one, two = await bench.attach(consumer="c1", max_in_flight=1), await bench.attach(consumer="c2")
        first, second = await stand(bench, one), await stand(bench, two)
        for body in (b"a", b"b", b"c"):
            await bench.send("orders", body)
        assert (bodies(first), bodies(second)) == ([[b"a"]], [[b"b"]])
        settled = await bench.broker.consumers.settle(two, [Act(ACK, second.given[0].pull)])
        assert not settled.refused
        assert bodies(second)[1:] == [[b"c"]]

    disk.run(scenario)


def test_one_that_has_nothing_to_do_comes_before_one_that_has(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        busy, idle = await bench.attach(consumer="c1"), await bench.attach(consumer="c2")
        first = await stand(bench, busy)
        await bench.send("orders", b"a")
        second = await stand(bench, idle)
        await bench.send("orders", b"b")
        assert (bodies(first), bodies(second)) == ([[b"a"]], [[b"b"]])

    disk.run(scenario)


async def test_a_consumer_that_settles_nothing_gets_one_answer_more(disk: World) -> None:
    clock = ManualClock()

    async with disk.open(clock) as bench:
        stuck = await bench.attach()
        hand = await stand(bench, stuck)
        await bench.send("orders", b"a")
        clock.advance(KEEPS_UP_S * 0.9)
        await bench.send("orders", b"b")
        await bench.act(stuck, ACK, hand.given[0])
        clock.advance(KEEPS_UP_S * 0.9)
        await bench.send("orders", b"c")
        assert [one.answer.more for one in hand.given] == [True, True, True]
        clock.advance(KEEPS_UP_S * 0.2)
        await bench.send("orders", b"d")
        assert (await hand.got()).bodies == [b"d"]
        assert [one.answer.more for one in hand.given] == [True, True, True, False]
        for one in hand.given:
            await bench.act(stuck, ACK, one)
        hand = await stand(bench, stuck)
        clock.advance(KEEPS_UP_S * 2)
        await bench.send("orders", b"e")
        assert [one.answer.more for one in hand.given] == [True], "it held nothing, so it owes nothing"


def test_a_paused_group_gives_nothing_and_goes_on_when_it_is_resumed(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach()
        hand = await stand(bench, member)
        await bench.send("orders", b"a")
        await bench.broker.groups.pause(Pause("orders", "billing", True))
        await bench.send("orders", b"b")
        await bench.act(member, ACK, hand.given[0])
        assert bodies(hand) == [[b"a"]]
        await bench.broker.groups.pause(Pause("orders", "billing", False))
        assert bodies(hand) == [[b"a"], [b"b"]]

    disk.run(scenario)


def test_what_fails_or_times_out_comes_again_under_the_same_pull(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach(delays_s=(0.01,), timeout_s=0.2)
        hand = await stand(bench, member)
        await bench.send("orders", b"a")
        await bench.act(member, NACK, hand.given[0])
        await eventually_done(lambda: len(hand.given) == 2)
        await eventually_done(lambda: len(hand.given) == 3)
        assert bodies(hand) == [[b"a"]] * 3
        assert [one.attempts for one in hand.given] == [[1], [2], [3]]
        assert [one.answer.more for one in hand.given[:2]] == [True, True]

    disk.run(scenario)


def test_one_who_leaves_ends_it_and_holds_nothing_any_more(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        member, other = await bench.attach(consumer="c1"), await bench.attach(consumer="c2")
        hand = await stand(bench, member)
        await bench.send("orders", b"a")
        await bench.broker.consumers.detach(member)
        assert (await hand.got()).pull == 0
        assert (await bench.pull(other)).bodies == [b"a"]

    disk.run(scenario)


def test_a_deleted_group_ends_it(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        hand = await stand(bench, await bench.attach())
        await bench.send("orders", b"a")
        await bench.broker.groups.delete("orders", "billing")
        assert (await hand.got()).pull == 0

    disk.run(scenario)


def test_a_retry_behind_an_acked_message_of_its_shard_is_not_forgotten(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.broker.topics.create(TopicConfig("orders", shards=1))
        one, two = await bench.attach(consumer="c1"), await bench.attach(consumer="c2")
        await bench.send("orders", b"a", b"b", lane=0)
        got = await bench.pull(one)
        hand = await stand(bench, two)
        await bench.act(one, NACK, got, (0, 1, 1), delay_s=0.1)
        await bench.act(one, ACK, got, (0, 0, 1))
        await eventually_done(lambda: hand.given, 10)
        assert bodies(hand) == [[b"b"]]

    world.run(scenario)


def test_a_group_that_is_moved_goes_on_there(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach()
        hand = await stand(bench, member)
        for body in (b"a", b"b"):
            await bench.send("orders", body)
        await bench.act(member, ACK, hand.given[0])
        await bench.broker.groups.seek(Seek("orders", "billing", "earliest"))
        again = await hand.got()
        assert again.bodies == [b"a", b"b"], "both come again, and end the pull"
        assert bodies(hand) == [[b"a"], [b"b"]]
        assert (await bench.act(member, ACK, hand.given[1])).refused, "it was taken away"
        hand = await stand(bench, member)
        assert not (await bench.act(member, ACK, again)).refused
        await bench.send("orders", b"c")
        assert bodies(hand) == [[b"c"]]
        assert member.in_flight == 1

    disk.run(scenario)


def test_what_is_purged_meanwhile_does_not_come_and_what_is_sent_then_does(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach(max_in_flight=1)
        hand = await stand(bench, member)
        for body in (b"a", b"b"):
            await bench.send("orders", body)
        assert bodies(hand) == [[b"a"]]
        await bench.broker.purge(Purge("orders"))
        await bench.act(member, ACK, hand.given[0])
        await bench.send("orders", b"c")
        await eventually_done(lambda: len(hand.given) == 2)
        assert bodies(hand) == [[b"a"], [b"c"]]

    disk.run(scenario)
