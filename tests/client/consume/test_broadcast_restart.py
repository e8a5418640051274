"""An unnamed consumer goes on at its place whose group its broker has forgotten: after a restart, or a long time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.breaking_proxy import RoughRoad
from tests.client.conftest import Served
from tests.client.either import do, entered
from tests.client.peer import Peer, Visitor, pulled
from tests.eventually import eventually_done
from tests.inside.protocol import Attach, Attached, Detach, Done, Place, Places, Pull, Settle, Settled
from towline.model import RetryPolicy

AT_ONCE = RetryPolicy(5, (0.0,))


class House:
    """A broker that can be stopped and started, and two ways there: one is blocked while the broker is away."""

    def __init__(self, serve: Callable[..., Served], folder: Path) -> None:
        self._serve = serve
        self.folder = folder
        self._broker = self._start()
        self.near = f"towline://{self._broker.address}"
        self.road = RoughRoad(self._broker.port, 0)
        self.road.mend()

    def _start(self, *flags: str, port: int = 0) -> Served:
        store = "--store", f"file:{self.folder}", "--segment-bytes", "65536"
        return self._serve(*store, "--reconnect-grace-s", "0", *flags, port=port)

    def stop(self, how: str = "kill") -> None:
        self.road.block()
        self._broker.stop(kill=how == "kill")

    def start(self, *flags: str) -> None:
        """On the same port. The way is blocked until somebody unblocks it."""
        self._broker = self._start(*flags, port=self._broker.port)

    def restart(self, how: str = "kill", *flags: str) -> None:
        self.stop(how)
        self.start(*flags)


@pytest.fixture
def house(serve: Callable[..., Served], tmp_path: Path) -> Iterator[House]:
    house = House(serve, tmp_path / "data")
    yield house
    house.road.close()


async def bodies(consumer: Any, count: int) -> list[tuple[bytes, int]]:
    """So many messages, with their attempts; acked."""
    found: list[tuple[bytes, int]] = []
    while len(found) < count:
        batch = await do(consumer.pull(wait=30))
        assert batch, f"nothing came after {found}"
        found += [(message.body, message.attempt) for message in batch]
        await do(batch.ack())
    return sorted(found)


@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize(("how", "subscribed"), [("kill", "to a topic"), ("term", "to a topic"), ("kill", "by prefix")])
async def test_after_a_restart_it_gets_what_it_has_not_settled_and_what_came_meanwhile(
    connect: Any, house: House, how: str, start: str, subscribed: str
) -> None:
    pattern = "orders.all" if subscribed == "to a topic" else "orders.*"
    async with entered(connect(house.near)) as near, entered(connect(house.road.url)) as far:
        await do(near.send("orders.all", b"early"))
        async with entered(far.consumer(pattern, start=start, retry=AT_ONCE)) as consumer:
            if start == "earliest":
                assert await bodies(consumer, 1) == [(b"early", 1)]
            await do(near.send_many("orders.all", [b"done", b"failed", b"held", b"done as well"]))
            done, failed, held, as_well = await do(consumer.pull(wait=60))
            done.ack()
            failed.nack("again")
            as_well.ack()
            await do(consumer.flush())
            house.restart(how)
            await do(near.send("orders.all", b"meanwhile"))
            house.road.unblock()
            assert await bodies(consumer, 3) == [(b"failed", 2), (b"held", 1), (b"meanwhile", 1)]
            assert held.lost
            assert consumer.lost == 1
            await do(near.send("orders.all", b"last"))
            assert await bodies(consumer, 1) == [(b"last", 1)]


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_one_that_was_given_nothing_yet_misses_nothing(connect: Any, house: House, start: str) -> None:
    async with entered(connect(house.near)) as near, entered(connect(house.road.url)) as far:
        await do(near.send("orders", b"early"))
        async with entered(far.consumer("orders", start=start)) as consumer:
            for _ in range(2):
                house.restart()
                await do(near.send("orders", b"meanwhile"))
                house.road.unblock()
                await eventually_done(lambda: _is_there(near, "orders"))
            expected = [(b"early", 1)] * (start == "earliest") + [(b"meanwhile", 1)] * 2
            assert await bodies(consumer, len(expected)) == expected


async def _is_there(mq: Any, topic: str) -> bool:
    return any(group.members for group in await do(mq.groups(topic)))


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_one_that_was_away_for_longer_than_a_heartbeat_goes_on_at_its_place(
    connect: Any, house: House, start: str
) -> None:
    house.restart("term", "--heartbeat-s", "0.5")
    house.road.unblock()
    async with entered(connect(house.near)) as near, entered(connect(house.road.url)) as far:
        await do(near.send("orders", b"early"))
        async with entered(far.consumer("orders", start=start)) as consumer:
            if start == "earliest":
                await bodies(consumer, 1)
            await do(near.send_many("orders", [b"done", b"held"]))
            done, _ = await do(consumer.pull(wait=60))
            done.ack()
            await do(consumer.flush())
            house.road.block()
            await eventually_done(lambda: near.groups("orders"), holds=lambda groups: not groups)
            await do(near.send("orders", b"meanwhile"))
            house.road.unblock()
            assert await bodies(consumer, 2) == [(b"held", 1), (b"meanwhile", 1)]


async def test_what_was_acked_and_could_not_be_told_does_not_come_again(connect: Any, house: House) -> None:
    async with (
        entered(connect(house.near)) as near,
        entered(connect(house.road.url, timeout=60)) as far,
        entered(far.consumer("orders", start="earliest", ack_interval=60)) as consumer,
    ):
        await do(near.send_many("orders", [b"single", b"held"]))
        single, _ = await do(consumer.pull(wait=60))
        await do(near.send_many("orders", [b"whole", b"also"]))
        batch = await do(consumer.pull(wait=60))
        house.stop()
        single.ack()
        house.start()
        house.road.unblock()
        # It is told when the broker is back, which knows nothing of these pulls.
        await do(batch.ack())
        await do(near.send("orders", b"meanwhile"))
        assert await bodies(consumer, 2) == [(b"held", 1), (b"meanwhile", 1)]
        assert consumer.lost == 1


async def test_an_ack_that_was_told_by_its_place_is_no_loss_though_the_answer_to_that_got_lost(connect: Any) -> None:
    begin = Places(5, [Place("orders", 0, [(1, 7)])])

    def attach(visitor: Visitor, places: Places | None) -> Places | None:
        request = visitor.expect(Attach)
        assert request.config is not None
        if places is not None:
            visitor.answer(Attached(7, [], request.config, places=places))
        return request.places

    def script(peer: Peer) -> None:
        peer.accept().meet()
        visitor = peer.accept()
        visitor.greet()
        assert attach(visitor, begin) is None
        visitor.expect(Pull)
        visitor.answer(*pulled(41, [b"a", b"b"], 7))
        visitor.expect(Settle)
        visitor.hang_up()
        for answered in (None, Places(5, [Place("orders", 0, [(1, 9)])]), Places(5)):
            visitor = peer.accept()
            visitor.greet()
            assert attach(visitor, answered) == Places(5, [Place("orders", 0, [(1, 9)])])
            if answered is None or answered.topics:
                visitor.hang_up()  # before it hears of it, or before the acts are answered
        visitor.expect(Settle)
        visitor.answer(Settled([(0, "lease-lost", "pull 41 is not leased to you")]))
        visitor.expect(Detach)
        visitor.answer(Done())

    with Peer(script) as peer:
        async with entered(connect(peer.url)) as mq, entered(mq.consumer("orders")) as consumer:
            await do((await do(consumer.pull())).ack())
            assert consumer.lost == 0


async def test_a_nack_that_could_not_be_told_is_no_loss(connect: Any, house: House) -> None:
    async with (
        entered(connect(house.near)) as near,
        entered(connect(house.road.url, timeout=60)) as far,
        entered(far.consumer("orders", start="latest", retry=AT_ONCE)) as consumer,
    ):
        await do(near.send_many("orders", [b"done", b"failed"]))
        batch = await do(consumer.pull(wait=60))
        house.stop()
        batch.messages[0].ack()
        house.start()
        house.road.unblock()
        await do(batch.nack("again"))
        assert await bodies(consumer, 1) == [(b"failed", 1)]
        assert consumer.lost == 0


async def test_what_was_given_up_does_not_come_again(connect: Any, house: House) -> None:
    async with (
        entered(connect(house.near)) as near,
        entered(connect(house.road.url)) as far,
        entered(far.consumer("orders", start="latest", retry=RetryPolicy(2, (0.0,)))) as consumer,
    ):
        await do(near.send_many("orders", [b"dead", b"failed"]))
        await do(near.send("orders", b"own limit", attempts=1))
        for expected in (3, 1):
            seen = 0
            while seen < expected:
                for message in await do(consumer.pull(wait=60)):
                    seen += 1
                    message.dead("never") if message.body == b"dead" else message.nack("no", delay=0.0)
                await do(consumer.flush())
        house.restart()
        await do(near.send("orders", b"last"))
        house.road.unblock()
        assert await bodies(consumer, 1) == [(b"last", 1)]


async def test_of_an_ordered_topic_each_shard_goes_on_in_order(connect: Any, house: House) -> None:
    async with entered(connect(house.near)) as near, entered(connect(house.road.url)) as far:
        await do(near.create_topic("orders", shards=4))
        sent = [b"%d" % number for number in range(100)]
        await do(near.send_many("orders", sent, shard_keys=[f"k{number % 10}" for number in range(100)]))
        seen: list[bytes] = []
        async with entered(far.consumer("orders", start="earliest", max_messages=7)) as consumer:
            for round_ in range(12):
                batch = await do(consumer.pull(wait=60))
                kept = batch.messages[: len(batch) // 2 + 1]
                for message in kept:
                    message.ack()
                seen += [message.body for message in kept]
                if round_ in (3, 7):
                    house.restart()
                    house.road.unblock()
                else:
                    await do(consumer.flush())
                    # Those behind it in its shard come again with it.
                    for message in batch.messages[len(kept) :]:
                        if not message.settled:
                            message.nack("later", delay=0.0)
            while len(seen) < 100:
                batch = await do(consumer.pull(wait=60))
                assert batch, seen
                seen += batch.bodies()
                await do(batch.ack())
            assert not await do(consumer.pull(wait=0.2))
        assert sorted(map(int, seen)) == list(range(100))
        for key in range(10):
            of_key = [int(body) for body in seen if int(body) % 10 == key]
            assert of_key == sorted(of_key)


async def test_it_begins_with_the_oldest_message_there_is_if_retention_has_passed_its_place(
    connect: Any, house: House
) -> None:
    async with (
        entered(connect(house.near)) as near,
        entered(connect(house.road.url)) as far,
        entered(far.consumer("orders", start="latest")) as consumer,
    ):
        await do(near.send_many("orders", [b"done", b"held"]))
        done, _ = await do(consumer.pull(wait=60))
        done.ack()
        await do(consumer.flush())
        house.restart("kill", "--retention-s", "0.5", "--maintenance-s", "0.1")
        await do(near.send_many("orders", [b"old" * 10_000] * 4))

        async def trimmed() -> bool:
            await do(near.send("orders", b"new" * 10_000))
            [state] = await do(near.topics())
            return bool(state.lanes[1].first > 2)

        await eventually_done(trimmed)
        house.restart()
        await do(near.send("orders", b"last"))
        [state] = await do(near.topics())
        house.road.unblock()
        seen: list[int] = []
        while len(seen) < state.lanes[1].end - state.lanes[1].first:
            batch = await do(consumer.pull(wait=60))
            assert batch, seen
            seen += [message.seq for message in batch]
            await do(batch.ack())
        assert seen == list(range(state.lanes[1].first, state.lanes[1].end))


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_by_prefix_topics_that_were_made_meanwhile_are_new_to_it(connect: Any, house: House, start: str) -> None:
    async with entered(connect(house.near)) as near, entered(connect(house.road.url)) as far:
        await do(near.send("orders.idle", b"idle, early"))
        await do(near.send("orders.busy", b"busy, early"))
        async with entered(far.consumer("orders.*", start=start)) as consumer:
            if start == "earliest":
                await bodies(consumer, 2)
            await do(near.send("orders.late", b"late, before"))
            assert await bodies(consumer, 1) == [(b"late, before", 1)]
            house.restart()
            for topic in ("orders.idle", "orders.late", "orders.new"):
                await do(near.send(topic, b"meanwhile"))
            house.road.unblock()
            assert await bodies(consumer, 3) == [(b"meanwhile", 1)] * 3


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_a_broker_with_another_disk_is_not_given_the_places_of_the_one_before(
    connect: Any, house: House, start: str
) -> None:
    async with (
        entered(connect(house.near)) as near,
        entered(connect(house.road.url)) as far,
        entered(far.consumer("orders", start=start)) as consumer,
    ):
        await do(near.send_many("orders", [b"before"] * 2))
        await bodies(consumer, 2)
        house.stop()
        shutil.rmtree(house.folder)
        house.start()
        await do(near.send_many("orders", [b"one", b"two", b"three"]))
        house.road.unblock()
        await eventually_done(lambda: _is_there(near, "orders"))
        await do(near.send("orders", b"four"))
        expected = [b"four", b"one", b"three", b"two"] if start == "earliest" else [b"four"]
        assert [body for body, _ in await bodies(consumer, len(expected))] == expected


async def test_at_most_once_nothing_comes_twice_and_nothing_is_passed_over(connect: Any, house: House) -> None:
    async with (
        entered(connect(house.near)) as near,
        entered(connect(house.road.url)) as far,
        entered(far.consumer("orders", start="earliest", mode="at-most-once")) as consumer,
    ):
        await do(near.send_many("orders", [b"a", b"b"]))
        seen = (await do(consumer.pull(wait=60))).bodies()
        house.restart()
        await do(near.send("orders", b"c"))
        house.road.unblock()
        while len(seen) < 3:
            seen += (await do(consumer.pull(wait=60))).bodies()
        assert seen == [b"a", b"b", b"c"]
