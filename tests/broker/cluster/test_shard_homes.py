"""Shards that wait for the backlog of other brokers, by what these tell."""

from __future__ import annotations

from tests.broker.conftest import ACK, Bench, World
from tests.broker.schedule.test_clock import AHEAD_S, TwoClocks
from tests.inside.broker import SETTLE_S
from tests.inside.frame import encode
from tests.inside.ground import SYSTEM
from tests.inside.protocol import Backlog, BrokerState, Decide, FrameHead, Prepare
from towline.model import TopicConfig, rank

SHARDS = 16


class Later:
    """The machine's clock, put forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now_us(self) -> int:
        return SYSTEM.now_us() + round(self.ahead_s * 1e6)

    def steady_s(self) -> float:
        return SYSTEM.steady_s() + self.ahead_s


def state(name: str) -> BrokerState:
    return BrokerState(name, name, f"{name}:1", 1, "alive", 0.0, "file")


def above(broker: str, other: str) -> list[int]:
    """The shards of which one broker is higher than another."""
    return [shard for shard in range(SHARDS) if rank(f"orders/{shard}", broker) > rank(f"orders/{shard}", other)]


async def filled(mq: Bench) -> list[int]:
    """A message in each shard; those that a broker called `old` is below."""
    await mq.broker.topics.create(TopicConfig("orders", shards=SHARDS))
    for shard in range(SHARDS):
        await mq.send("orders", b"%d" % shard, lane=shard)
    return above(mq.broker.registry.id, "old")


async def deliverable(mq: Bench) -> list[int]:
    """The shards that a consumer gets something of now; it is given back."""
    one = await mq.attach(start="earliest")
    got = await mq.pull(one)
    await mq.broker.consumers.detach(one)
    return sorted(int(body) for body in got.bodies)


def test_shards_wait_for_a_lower_broker_until_it_has_told_that_nothing_is_left(disk: World) -> None:
    clock = Later()

    async def scenario(mq: Bench) -> None:
        ours = await filled(mq)
        theirs = [shard for shard in range(SHARDS) if shard not in ours]
        assert ours
        assert theirs
        assert await deliverable(mq) == list(range(SHARDS)), "it is alone"
        clock.ahead_s += 2 * SETTLE_S
        mq.broker.registry.heard(state("old"))
        await mq.broker.homes.review()
        assert await deliverable(mq) == theirs, "nothing is known of it"
        await mq.broker.homes.heard("old", [Backlog("orders", ours, [], {"billing": ours[:2], "other": ours})])
        assert await deliverable(mq) == theirs, "what is kept there may grow, while producers do not know us yet"
        clock.ahead_s += 2 * SETTLE_S
        await mq.broker.homes.review()
        assert await deliverable(mq) == sorted({*range(SHARDS)} - {*ours[:2]}), "another group's backlog is its own"
        await mq.broker.homes.heard("old", [Backlog("orders", ours, [ours[0]], {"other": ours})])
        assert await deliverable(mq) == [shard for shard in range(SHARDS) if shard != ours[0]], "it is prepared there"
        await mq.broker.homes.heard("old", [Backlog("orders", ours, [], {"other": ours})])
        assert await deliverable(mq) == list(range(SHARDS))

    disk.run(scenario, clock=clock)


def test_shards_wait_for_a_broker_that_is_away_with_a_backlog_until_it_is_forgotten(disk: World) -> None:
    clock = Later()

    async def scenario(mq: Bench) -> None:
        ours = await filled(mq)
        await deliverable(mq)
        mq.broker.registry.heard(state("old"))
        await mq.broker.homes.heard("old", [Backlog("orders", ours, [], {"billing": ours[:1]})])
        clock.ahead_s += 1000
        await mq.broker.homes.review()
        assert ours[0] not in await deliverable(mq)
        mq.broker.registry.forget("old")
        await mq.broker.homes.review()
        assert await deliverable(mq) == list(range(SHARDS))

    disk.run(scenario, clock=clock)


def test_a_broker_that_had_nothing_is_not_waited_for_after_a_restart(disk: World) -> None:
    clock = Later()

    async def before(mq: Bench) -> None:
        await filled(mq)
        await deliverable(mq)
        for name in ("old", "unheard"):
            mq.broker.registry.heard(state(name))
        await mq.broker.homes.heard("old", [])
        clock.ahead_s += 2 * SETTLE_S
        await mq.broker.homes.heard("old", [])
        await mq.broker.registry.save()

    async def after(mq: Bench) -> None:
        ours = above(mq.broker.registry.id, "unheard")
        assert await deliverable(mq) == [shard for shard in range(SHARDS) if shard not in ours]

    disk.run(before, clock=clock)
    disk.run(after, clock=clock)


def test_a_group_made_by_a_clock_that_was_ahead_waits_no_longer_than_others(disk: World) -> None:
    clock = TwoClocks()

    async def scenario(mq: Bench) -> None:
        ours = await filled(mq)
        mq.broker.registry.heard(state("old"))
        await mq.broker.homes.heard("old", [])
        clock.set(AHEAD_S)
        await deliverable(mq)
        clock.set(-AHEAD_S)
        await mq.broker.homes.heard("old", [Backlog("orders", ours, [], {})])
        assert not set(ours).intersection(await deliverable(mq)), "its consumers may not be attached there yet"
        clock.advance(2 * SETTLE_S)
        await mq.broker.homes.review()
        assert await deliverable(mq) == list(range(SHARDS))

    disk.run(scenario, clock=clock)


def test_a_broker_tells_what_its_groups_have_left_of_the_shards_of_a_higher_one(disk: World) -> None:
    async def scenario(mq: Bench) -> None:
        await filled(mq)
        higher = above("new", mq.broker.registry.id)
        one = await mq.attach(start="earliest")
        [told] = mq.broker.homes.backlog_for("new")
        assert told == Backlog("orders", higher, [], {"billing": higher})
        got = await mq.pull(one)
        assert mq.broker.homes.backlog_for("new") == [told], "what consumers hold is not settled"
        await mq.act(one, ACK, got)
        assert mq.broker.homes.backlog_for("new") == [Backlog("orders", higher)]
        frame = encode([b"x"])
        request = Prepare("t1", "shop", "", [FrameHead("orders", higher[0], len(frame), SHARDS)])
        await mq.broker.transactions.prepare(request, [memoryview(frame)], source=b"", token=b"")
        assert mq.broker.homes.backlog_for("new") == [Backlog("orders", higher, higher[:1])]
        await mq.broker.transactions.decide(Decide("t1", True))
        assert mq.broker.homes.backlog_for("new") == [Backlog("orders", higher, [], {"billing": higher[:1]})]

    disk.run(scenario)
