"""The main flow of seed 001 through the broker's own API, on both stores."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from crc32c import crc32c

from tests.broker.conftest import ACK, DEAD, NACK, Bench, World
from tests.eventually import eventually_done
from tests.inside.broker import Dispatcher
from tests.inside.frame import Frame, encode, encode_events
from tests.inside.protocol import Attach, Browse, Locate, Resend
from towline.errors import BadFrame, BadRequest, Conflict, LeaseLost, NotFound, Refused, TooLarge, Unavailable
from towline.model import Durability, GroupConfig, TopicConfig


def test_a_message_sent_is_pulled_acked_and_gone(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        sent = await bench.send("orders", b"one", b"two")
        assert sent.firsts == [0]
        member = await bench.attach()
        got = await bench.pull(member)
        assert got.bodies == [b"one", b"two"]
        assert (await bench.act(member, ACK, got)).refused == []
        assert bench.broker.group_state("orders", "billing").lag == 0
        assert (await bench.pull(member)).pull == 0

    world.run(scenario)


def test_a_pull_takes_high_before_middle_before_low(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        for lane, body in ((2, b"low"), (1, b"middle"), (0, b"high")):
            await bench.send("orders", body, lane=lane)
        got = await bench.pull(await bench.attach())
        assert got.bodies == [b"high", b"middle", b"low"]

    world.run(scenario)


def test_consumers_of_a_group_share_and_groups_do_not(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", *(b"%d" % n for n in range(10)))
        one, two = await bench.attach(consumer="c1"), await bench.attach(consumer="c2")
        other = await bench.attach(group="mail", consumer="c1")
        first, second = await bench.pull(one, 6), await bench.pull(two, 6)
        assert first.bodies + second.bodies == [b"%d" % n for n in range(10)]
        assert len((await bench.pull(other)).bodies) == 10

    world.run(scenario)


def test_a_waiting_pull_gets_a_message_as_it_comes(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.broker.topics.create(TopicConfig("orders"))
        member = await bench.attach()
        waiting = asyncio.create_task(bench.pull(member, wait_ms=20_000))
        await eventually_done(lambda: member.waiting)
        await bench.send("orders", b"now")
        assert (await waiting).bodies == [b"now"]

    world.run(scenario)


def test_waiting_pulls_are_served_first_come_first_served(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        members = [await bench.attach(consumer=f"c{n}") for n in range(3)]
        tasks = []
        for member in members:
            tasks.append(asyncio.create_task(bench.pull(member, 1, wait_ms=20_000)))
            await eventually_done(partial(getattr, member, "waiting"))
        for n in range(3):
            await bench.send("orders", b"%d" % n)
        assert [(await task).bodies for task in tasks] == [[b"0"], [b"1"], [b"2"]]

    world.run(scenario)


def test_a_cancelled_wait_takes_nothing_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach()
        task = asyncio.create_task(bench.pull(member, wait_ms=20_000))
        await eventually_done(lambda: member.waiting)
        serve = Dispatcher.serve

        def serve_and_cancel(dispatcher: Dispatcher) -> None:
            serve(dispatcher)
            task.cancel()  # in the very moment between being granted and being told

        with monkeypatch.context() as patch:
            patch.setattr(Dispatcher, "serve", serve_and_cancel)
            await bench.send("orders", b"kept")
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(outcome, asyncio.CancelledError)
        got = await bench.pull(member)
        assert (got.bodies, got.attempts) == ([b"kept"], [1])

    world.run(scenario)


def test_an_empty_pull_answers_when_its_time_is_over(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach()
        assert (await bench.pull(member, wait_ms=30)).pull == 0

    world.run(scenario)


def test_a_pull_may_wait_for_a_number_of_messages(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"a")
        member = await bench.attach()
        waiting = asyncio.create_task(bench.pull(member, wait_ms=20_000, min_messages=3))
        await eventually_done(lambda: member.waiting)
        await bench.send("orders", b"b", b"c")
        assert len((await waiting).bodies) == 3
        await bench.send("orders", b"d")
        assert len((await bench.pull(member, wait_ms=30, min_messages=3)).bodies) == 1

    world.run(scenario)


def test_what_a_pull_got_in_the_end_though_it_is_less_than_asked_for_times_out(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"a")
        member = await bench.attach(delays_s=(0.01,), timeout_s=0.2)
        assert len((await bench.pull(member, wait_ms=30, min_messages=3)).bodies) == 1
        async with asyncio.timeout(20):
            await eventually_done(lambda: member.in_flight == 0)

    world.run(scenario)


def test_a_pull_keeps_to_its_bytes_and_the_rest_comes_next(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        bodies = [bytes([65 + n]) * (10 if n % 2 else 5000) for n in range(20)]
        await bench.send("orders", *bodies)
        member = await bench.attach()
        seen: list[bytes] = []
        while len(seen) < 20:
            got = await bench.pull(member, max_bytes=12_000)
            assert 0 < sum(map(len, got.bodies)) <= 20_000
            seen += got.bodies
            assert set(got.attempts) == {1}
            await bench.act(member, ACK, got)
        assert seen == bodies

    world.run(scenario)


def test_a_nacked_message_comes_again_with_its_attempt_and_then_dies(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"bad", b"good", keys=["k1", None], headers=[{"h": "v"}, None])
        member = await bench.attach(max_attempts=2)
        got = await bench.pull(member)
        await bench.act(member, NACK, got, (1, 0, 1), reason="no stock")
        await bench.act(member, ACK, got)
        again = await bench.pull(member, wait_ms=20_000)
        assert (again.bodies, again.attempts) == ([b"bad"], [2])
        await bench.act(member, NACK, again, reason="still none")
        await eventually_done(lambda: bench.broker.group_state("orders", "billing").dead == 1)
        state = bench.broker.group_state("orders", "billing")
        assert (state.lag, state.dying) == (0, 0)
        browsed, buffers = await bench.broker.browsing.browse(Browse("orders", group="billing"))
        frame = Frame(b"".join(buffers))
        assert frame.bodies() == [b"bad"]
        assert frame.keys() == ["k1"]
        headers = (frame.headers() or [{}])[0]
        assert headers["h"] == "v"
        assert headers["towline-reason"] == "still none"
        assert headers["towline-attempt"] == "2"
        assert headers["towline-origin"] == "orders/middle/0"
        assert browsed.end == 1

    world.run(scenario)


def test_a_dead_letter_sent_again_reaches_its_own_group_only_and_once(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"x", lane=0)
        mail = await bench.attach(group="mail")
        await bench.act(mail, ACK, await bench.pull(mail))
        member = await bench.attach()
        await bench.act(member, DEAD, await bench.pull(member), reason="wrong")
        await eventually_done(lambda: bench.broker.group_state("orders", "billing").dead == 1)
        assert (await bench.broker.dead_letters.resend(Resend("orders", "billing", [0]))).count == 1
        got = await bench.pull(member)
        assert (got.bodies, got.attempts, got.parts[0].lane) == ([b"x"], [1], 3)
        assert (await bench.pull(mail)).pull == 0
        assert bench.broker.group_state("orders", "billing").dead == 0
        with pytest.raises(Conflict):
            await bench.broker.dead_letters.resend(Resend("orders", "billing", [0]))
        with pytest.raises(NotFound, match="dead letter 7"):
            await bench.broker.dead_letters.resend(Resend("orders", "billing", [7]))
        await bench.act(member, DEAD, got, reason="wrong again")
        await eventually_done(lambda: bench.broker.group_state("orders", "billing").dead == 1)
        assert (await bench.broker.dead_letters.resend(Resend("orders", "billing"))).count == 1
        assert (await bench.pull(member)).bodies == [b"x"]

    world.run(scenario)


def test_a_frame_sent_twice_is_stored_once(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        first = await bench.send("orders", b"a", producer_id=7, producer_seq=1)
        again = await bench.send("orders", b"a", producer_id=7, producer_seq=1)
        assert (again.firsts, again.duplicate, first.duplicate) == (first.firsts, True, False)
        assert (await bench.send("orders", b"b", producer_id=7, producer_seq=2)).firsts == [1]
        assert (await bench.pull(await bench.attach())).bodies == [b"a", b"b"]

    world.run(scenario)


def test_a_frame_sent_twice_at_once_is_stored_once(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        frame = encode([b"a"], producer_id=7, producer_seq=1)
        answers = await asyncio.gather(*(bench.broker.send([("orders", 1, frame)]) for _ in range(3)))
        assert [answer.firsts for answer in answers] == [[0]] * 3
        assert bench.store.bounds("lane/orders/middle").end == 1

    world.run(scenario, durability="fsync")


def test_every_durability_is_delivered(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        for number, durability in enumerate(Durability):
            await bench.broker.send([("orders", 1, encode([b"%d" % number]))], durability)
        member = await bench.attach()
        seen: list[bytes] = []
        while len(seen) < 3:
            seen += (await bench.pull(member, wait_ms=20_000)).bodies
        assert seen == [b"0", b"1", b"2"]

    world.run(scenario)


def test_frames_that_a_producer_may_not_send_are_refused(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        good = encode([b"a"])
        for frame, error in (
            (good[:-1] + b"x", BadFrame),
            (encode_events([b"a"]), BadFrame),
            (encode([b"a"], token=b"else"), Refused),
            (encode([bytes(3000)]), TooLarge),
        ):
            with pytest.raises(error):
                bench.broker.send([("orders", 1, frame)])
        assert bench.store.bounds("lane/orders/middle").end == 0

    world.run(scenario, max_frame_bytes=2048)


def test_a_frame_that_would_break_its_readers_is_refused_at_the_door(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        frame = bytearray(encode([b"abc", b"def", b"ghi"]))
        frame[72 + 4 : 72 + 8] = (9).to_bytes(4, "little")
        frame[8:12] = crc32c(frame[12:]).to_bytes(4, "little")
        packed = bytearray(encode([bytes(1000)] * 3, compress=True))
        packed[80:88] = b"nonsense"
        packed[8:12] = crc32c(packed[12:]).to_bytes(4, "little")
        for bad in (frame, packed):
            with pytest.raises(BadFrame):
                bench.broker.send([("orders", 1, bytes(bad))])

    world.run(scenario)


def test_a_unit_is_stored_whole_or_not_at_all(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        with pytest.raises(BadFrame):
            bench.broker.send([("orders", 1, encode([b"a"])), ("stock", 0, b"nonsense")])
        assert await bench.broker.topic_states() == []
        await bench.broker.send([("orders", 1, encode([b"a"])), ("stock", 0, encode([b"b"]))])
        assert [state.config.name for state in await bench.broker.topic_states()] == ["orders", "stock"]

    world.run(scenario)


def test_topics_and_groups_are_not_made_by_themselves_when_switched_off(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        with pytest.raises(NotFound, match="orders"):
            bench.broker.send([("orders", 1, encode([b"a"]))])
        await bench.broker.topics.create(TopicConfig("orders"))
        with pytest.raises(Conflict):
            await bench.broker.topics.create(TopicConfig("orders"))
        await bench.send("orders", b"a")
        with pytest.raises(NotFound, match="billing"):
            await bench.attach()
        await bench.broker.groups.put(GroupConfig("orders", "billing"))
        assert (await bench.pull(await bench.attach())).bodies == [b"a"]

    world.run(scenario, auto_create_topics=False, auto_create_groups=False)


def test_a_group_can_begin_at_the_end_or_at_a_time(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"old")
        moment = (await bench.send("orders", b"new")).appended_at_us
        late = await bench.attach(group="late", start="latest")
        timed = await bench.attach(group="timed", start=f"@{moment}")
        early = await bench.attach(group="early")
        assert (await bench.pull(late)).pull == 0
        assert (await bench.pull(early)).bodies == [b"old", b"new"]
        assert b"new" in (await bench.pull(timed)).bodies
        located = await bench.broker.browsing.locate(Locate("orders", 1, moment + 1_000_000))
        assert located.seq == 2

    world.run(scenario)


def test_a_broadcast_consumer_has_its_own_progress_and_an_unnamed_one_is_forgotten(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"a")
        one = await bench.attach(group="~one", consumer="one")
        passing = await bench.attach(group="~passing", consumer="passing", ephemeral=True)
        assert (await bench.pull(one)).bodies == (await bench.pull(passing)).bodies == [b"a"]
        await bench.broker.consumers.detach(passing)
        await eventually_done(lambda: bench.broker.topic_state("orders").groups == ["~one"])

    world.run(scenario)


def test_the_in_flight_limit_holds_a_consumer_back_until_it_acks(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", *(b"%d" % n for n in range(10)))
        member = await bench.attach(max_in_flight=4)
        got = await bench.pull(member)
        assert len(got.bodies) == 4
        waiting = asyncio.create_task(bench.pull(member, wait_ms=20_000))
        await eventually_done(lambda: member.waiting)
        await bench.act(member, ACK, got)
        assert len((await waiting).bodies) == 4

    world.run(scenario)


def test_a_deleted_topic_is_gone_and_can_be_made_again(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"old")
        member = await bench.attach()
        await bench.broker.delete_topic("orders")
        with pytest.raises(NotFound):
            bench.broker.topic_state("orders")
        with pytest.raises((LeaseLost, Unavailable)):
            await bench.pull(member)
        await bench.send("orders", b"new")
        assert (await bench.pull(await bench.attach())).bodies == [b"new"]

    world.run(scenario)


def test_a_consumer_under_the_same_name_takes_over(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"a")
        old = await bench.attach()
        got = await bench.pull(old)
        new = await bench.attach()
        with pytest.raises(LeaseLost):
            await bench.act(old, ACK, got)
        assert (await bench.pull(new)).bodies == [b"a"]

    world.run(scenario)


def test_attaching_with_settings_of_another_group_is_refused(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        with pytest.raises(BadRequest):
            await bench.broker.consumers.attach(Attach("orders", "billing", "c", GroupConfig("orders", "other")))

    world.run(scenario)
