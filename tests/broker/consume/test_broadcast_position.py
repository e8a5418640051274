"""An unnamed consumer whose group the broker has forgotten says where it was: its new group begins there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.conftest import ACK, DEAD, Bench, World
from tests.eventually import eventually_done
from tests.inside.broker import Member, renewed_epoch
from tests.inside.frame import encode
from tests.inside.ground import ManualClock
from tests.inside.protocol import Attach, HandBack, Place, Places, Pull, Resend, Trace
from towline.errors import NotFound
from towline.model import GroupConfig

MIDDLE, OWN_MIDDLE = 1, 4
UNNAMED = GroupConfig("orders", "~me", start="latest", ephemeral=True)


@pytest.fixture(params=["log", "sql"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A store that outlives its broker. On a database the next broker may be another one."""
    return World(request.param, tmp_path)


async def at(bench: Bench, *places: Place, store: int | None = None, config: GroupConfig = UNNAMED) -> Member:
    told = Places(bench.broker.store_id if store is None else store, list(places))
    return await bench.broker.consumers.attach(Attach(config.topic, config.name, "me", config, [], told))


async def first(bench: Bench) -> Member:
    return await bench.broker.consumers.attach(Attach("orders", "~me", "me", UNNAMED))


async def ten_sent(bench: Bench) -> None:
    await bench.send("orders", *(b"%d" % number for number in range(10)))


async def test_after_a_restart_the_group_begins_where_its_consumer_was(kept: World) -> None:
    async with kept.open() as bench:
        await bench.send("orders", b"early")
        places = bench.broker.consumers.places(await first(bench))
        assert places == Places(bench.broker.store_id, [Place("orders", 0, [(MIDDLE, 1)])])
    async with kept.open() as bench:
        await ten_sent(bench)
        member = await at(bench, Place("orders", 0, [(MIDDLE, 9)], [(MIDDLE, 2, 2, 3), (MIDDLE, 6, 1, 1)]))
        assert bench.broker.consumers.places(member) == Places(places.store, [Place("orders", 0, [(MIDDLE, 9)])]), (
            "the store is the same"
        )
        got = await bench.pull(member)
        assert (got.bodies, got.attempts) == ([b"1", b"2", b"5", b"8", b"9"], [3, 3, 1, 1, 1])
        assert bench.broker.consumers.places(member) == Places(places.store), "it has been given something"


def test_what_retention_dropped_is_passed_over(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await ten_sent(bench)
        await bench.store.trim("lane/orders/middle", 4)
        member = await at(bench, Place("orders", 0, [(MIDDLE, 3)], [(MIDDLE, 1, 1, 1)]))
        assert (await bench.pull(member)).bodies == [b"4", b"5", b"6", b"7", b"8", b"9"]
        await bench.broker.consumers.detach(member)
        await bench.broker.groups.delete_left("orders", "~me")
        member = await at(bench, Place("orders", 0, [(MIDDLE, 9)], [(MIDDLE, 2, 4, 2)]))
        got = await bench.pull(member)
        assert (got.bodies, got.attempts) == ([b"4", b"5", b"9"], [2, 2, 1])

    world.run(scenario)


def test_one_that_was_further_than_the_lane_goes_on_at_its_end_and_the_log_says_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(bench: Bench) -> None:
        await ten_sent(bench)
        place = Place("orders", 0, [(0, 100), (MIDDLE, 12)], [(MIDDLE, 8, 4, 1), (0, 5, 1, 1)])
        member = await at(bench, place)
        assert bench.broker.consumers.places(member) == Places(
            bench.broker.store_id, [Place("orders", 0, [(MIDDLE, 10)])]
        )
        await bench.send("orders", b"new")
        assert (await bench.pull(member)).bodies == [b"8", b"9", b"new"]

    world.run(scenario)
    [told] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told == (
        "group ~me on topic orders: its consumer was given 102 messages more than there are: they were lost, and it "
        "goes on at the end"
    )


def test_a_place_counts_for_nothing_in_a_named_group_and_where_the_group_exists(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await ten_sent(bench)
        place = Place("orders", 0, [(MIDDLE, 5)], [(MIDDLE, 0, 1, 1)])
        for name in ("billing", "~named"):
            named = await at(bench, place, config=GroupConfig("orders", name, start="latest"))
            assert bench.broker.consumers.places(named) is None
            assert not (await bench.pull(named)).bodies
        await first(bench)
        again = await at(bench, place)
        assert not (await bench.pull(again)).bodies

    world.run(scenario)


async def test_places_of_another_store_mean_nothing(tmp_path: Path) -> None:
    ids = []
    for name in ("one", "one", "other"):
        async with World("log", tmp_path / name).open() as bench:
            ids.append(bench.broker.store_id)
            document = await bench.store.load("epoch.json")
    assert ids[0] == ids[1]
    assert document is not None
    assert str(ids[2]).encode() in renewed_epoch(document), "a restored store is the same"
    async with World("log", tmp_path / "other").open() as bench:
        await ten_sent(bench)
        member = await at(bench, Place("orders", 0, [(MIDDLE, 5)]), store=ids[0])
        assert not (await bench.pull(member)).bodies, "it begins as it asked for: with what comes"


def test_a_topic_that_is_new_or_another_one_of_the_name_is_consumed_from_its_first_message(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await ten_sent(bench)
        for places in ([], [Place("orders", 4, [(MIDDLE, 5)])]):
            member = await at(bench, *places)
            assert len((await bench.pull(member)).bodies) == 10
            await bench.broker.consumers.detach(member)
            await bench.broker.groups.delete_left("orders", "~me")

    world.run(scenario)


def test_by_prefix_each_topic_has_its_place_as_far_as_one_may_consume_it(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        for topic in ("orders.a", "orders.b", "orders.c", "orders.hidden"):
            await bench.send(topic, b"0", b"1", b"2")
        places = [Place(f"orders.{name}", 0, [(MIDDLE, 2)]) for name in ("a", "b", "hidden", "deleted")]
        config = GroupConfig("orders.", "~me", start="latest", ephemeral=True)
        request = Attach("orders.*", "~me", "me", config, [], Places(bench.broker.store_id, places))
        fan = await bench.broker.consumers.fan(request, may=lambda topic: topic != "orders.hidden")
        told = bench.broker.consumers.places(fan)
        assert told is not None
        assert sorted((place.topic, place.lanes) for place in told.topics) == [
            ("orders.a", [(MIDDLE, 2)]),
            ("orders.b", [(MIDDLE, 2)]),
            ("orders.c", []),
        ]
        counts = {}
        for _ in range(3):
            pulled, _ = await bench.broker.consumers.pull(fan, Pull(0, 10, 1 << 20))
            counts[pulled.topic] = sum(part.count for part in pulled.parts)
        assert counts == {"orders.a": 1, "orders.b": 1, "orders.c": 3}
        # That counts when it comes. A group that is deleted later begins as it was asked for.
        await bench.broker.groups.delete("orders.a", "~me")
        assert not (await bench.broker.consumers.pull(fan, Pull(0, 10, 1 << 20)))[0].parts
        assert not (await bench.broker.consumers.pull(fan, Pull(0, 10, 1 << 20)))[0].parts

    world.run(scenario)


async def test_a_dead_letter_that_was_sent_again_to_an_unnamed_consumer_is_not_lost(kept: World) -> None:
    async with kept.open() as bench:
        member = await first(bench)
        await bench.send("orders", b"a")
        await bench.act(member, DEAD, await bench.pull(member), reason="never")
        await eventually_done(lambda: bench.broker.group_state("orders", "~me").dead == 1)
        await bench.broker.dead_letters.resend(Resend("orders", "~me", [0]))
    async with kept.open() as bench:
        member = await at(bench, Place("orders", 0, [(MIDDLE, 1)]))
        got = await bench.pull(member)
        assert [(part.lane, part.first) for part in got.parts] == [(OWN_MIDDLE, 0)]


def test_what_comes_again_is_traced_as_for_the_group(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await ten_sent(bench)
        member = await at(bench, Place("orders", 0, [(MIDDLE, 5)], [(MIDDLE, 1, 2, 2)]))
        statuses = [(await bench.broker.browsing.trace(Trace("orders", "~me", 1, seq))).status for seq in (0, 1, 4, 5)]
        assert statuses == ["BEFORE", "FAIL", "BEFORE", "NEW"]
        await bench.act(member, ACK, await bench.pull(member))
        await bench.flush()
        traced = await bench.broker.browsing.trace(Trace("orders", "~me", 1, 1))
        assert (traced.status, [(step.what, step.attempt) for step in traced.steps]) == (
            "SUCCESS",
            [("pulled", 2), ("acked", 2)],
        )

    world.run(scenario)


def test_a_group_whose_consumer_is_not_here_is_not_made_by_a_hand_over(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        await ten_sent(bench)
        handed = HandBack("orders", "~me", UNNAMED, 1, 1, "it failed", 0.0)
        frame = encode([b"a"], producer_id=7, producer_seq=1)
        with pytest.raises(NotFound, match="no group ~me"):
            await bench.broker.hand_back(handed, frame)
        member = await at(bench, Place("orders", 0, [(MIDDLE, 9)]))
        await bench.broker.hand_back(handed, frame)
        assert (await bench.pull(member)).bodies == [b"a", b"9"]

    disk.run(scenario)


async def test_one_that_does_not_hear_that_it_is_attached_is_told_again_where_it_is(disk: World) -> None:
    clock = ManualClock()
    async with disk.open(clock, heartbeat_s=30.0) as bench:
        await ten_sent(bench)
        for place in (Place("orders", 0, [(MIDDLE, 5)]), Place("orders", 0, [(MIDDLE, 6)])):
            told = bench.broker.consumers.places(await at(bench, place))
            assert told == Places(bench.broker.store_id, [Place("orders", 0, [(MIDDLE, 5)])])
