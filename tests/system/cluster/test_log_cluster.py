"""Three brokers, each with its own disk: what goes on when one of them does not."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import towline
from tests.client.consume.test_standing_pulls import one_by_one, pulls
from tests.client.either import do, each, entered
from tests.client.produce.test_process_end import run
from tests.eventually import eventually_done
from tests.inside.client import Call, ClusterBrokers, Dial, Flow, Liveness, Route, Start, requests
from tests.inside.protocol import AwaitChecks, Pull, TopicInfo
from tests.system.cluster.conftest import Brokers, eventually
from tests.system.cluster.load import Load
from towline.errors import BadRequest, Closed, NotFound, NotOwner, Partly, Timeout, Unavailable
from towline.model import RetryPolicy

__all__ = ["pulls"]

IN_HAND = 100
"""What two consumers may have in their hands at once: it may come again when its broker dies."""


def test_one_of_three_is_killed_and_everything_goes_on(brokers: Brokers, topic: str) -> None:
    load = Load(brokers.url, topic)
    try:
        eventually(lambda: len(load.seen) > 300)
        killed_at = time.monotonic()
        brokers.kill(1)
        time.sleep(2.5)
        until = time.monotonic()
        assert load.longest_gap(load.acked, killed_at, until) < 1.0
        assert load.longest_gap(load.seen, killed_at, until) < 1.0
        brokers.start(1)
        load.stop_sending()
        assert not load.failed
        assert len(load.acked) == load.sent
        eventually(lambda: not load.lost())
        assert load.stored() == load.sent
    finally:
        load.stop()
    assert not load.errors
    assert len(load.doubled()) < IN_HAND


async def test_what_one_worker_has_not_begun_another_one_gets(connect: Any, brokers: Brokers, topic: str) -> None:
    async with entered(connect(brokers.url)) as mq:
        await do(mq.send_many(topic, [b"%d" % number for number in range(300)]))
        async with (
            entered(mq.consumer(topic, group="g")) as first,
            entered(mq.consumer(topic, group="g")) as second,
        ):
            theirs = [await do(consumer.pull(wait=30)) for consumer in (first, second)]
            assert [len(batch) for batch in theirs] == [128, 128]


def test_a_broker_that_hangs_is_passed_over_and_used_again(brokers: Brokers, topic: str) -> None:
    load = Load(brokers.url, topic)
    try:
        eventually(lambda: len(load.seen) > 300)
        frozen_at = time.monotonic()
        brokers.freeze(2)
        time.sleep(3.0)
        until = time.monotonic()
        assert load.longest_gap(load.acked, frozen_at, until) < 2.5
        brokers.thaw(2)
        load.stop_sending()
        assert not load.failed
        eventually(lambda: not load.lost())
        assert load.stored() == load.sent
    finally:
        load.stop()
    assert len(load.doubled()) < IN_HAND


async def test_a_frozen_broker_holds_up_only_what_it_may_have(
    connect: Any, cluster_of: Callable[..., Brokers], topic: str
) -> None:
    """An ack and a look at all brokers wait for no more than a sign of life: here no heartbeat ends the connection."""
    brokers = cluster_of(3, "--heartbeat-s", "3600").start().wait_for()
    async with entered(connect(brokers.url, timeout=300)) as mq, entered(mq.consumer(topic, "g")) as consumer:
        await do(mq.send(topic, b"x"))
        batch = await eventually_done(lambda: consumer.pull(wait=1.0))
        address = batch._link.route.name
        victim = next(number for number in range(3) if brokers.address(number) == address)
        brokers.freeze(victim)
        await do(batch.ack())  # or it fails, because it waits until its own time is over
        assert (await do(mq.topic(topic))).config.name == topic
        brokers.thaw(victim)
        await do(consumer.flush())
        group = await do(mq.group(topic, "g"))
        assert (group.lag, group.in_flight) == (0, 0)


async def test_what_finds_no_room_on_the_way_to_a_frozen_broker_goes_elsewhere_and_the_rest_keeps_its_time(
    connect: Any, cluster_of: Callable[..., Brokers], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.inside.client.transport._STALLED_S", 3600.0)
    brokers = cluster_of(2).start().wait_for(2)
    topics = [f"{topic}-{number}" for number in range(60)]
    ended: dict[str, Exception | None] = {}

    async with entered(connect(brokers.url, timeout=5)) as mq:
        for name in topics:
            await do(mq.send(name, b"x"))
        brokers.freeze(1)

        async def send(name: str) -> None:
            try:
                await do(mq.send(name, bytes(1 << 20)))
                ended[name] = None
            except Exception as error:
                ended[name] = error

        # What the blocking client does stands in a thread of its own.
        threads = [threading.Thread(target=lambda name=name: asyncio.run(send(name)), daemon=True) for name in topics]
        if asyncio.iscoroutinefunction(mq.send):
            tasks = [asyncio.ensure_future(send(name)) for name in topics]
        else:
            tasks = []
            for thread in threads:
                thread.start()
        await eventually_done(lambda: len(ended) == 60)
        await asyncio.gather(*tasks)
        failed = {name for name, error in ended.items() if error is not None}
        assert {type(ended[name]) for name in failed} <= {Timeout}, "what never left does not fail"
        brokers.thaw(1)
        for name in topics:
            stored = sum(lane.end for lane in (await do(mq.topic(name))).lanes)
            assert stored == 2 if name not in failed else stored in (1, 2)


async def test_a_call_that_is_asked_elsewhere_keeps_its_deadline(
    connect: Any, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with entered(connect(brokers.url)) as mq:
        cluster, deadlines = mq._cluster, list[float]()
        monkeypatch.setattr(cluster.fleet, "shared", True)
        ask = cluster._ask

        def asked(topic: str, call: Call, at: str, deadline: float) -> Any:
            deadlines.append(deadline)
            if len(deadlines) < 3:
                raise NotOwner
            return ask(topic, call, at, deadline)

        monkeypatch.setattr(cluster, "_ask", asked)
        await do(cluster.run("", requests.ping()))
        assert len(deadlines) == 3
        assert len(set(deadlines)) == 1


def test_a_broker_that_is_busy_gives_a_sign_of_life_and_a_frozen_one_does_not(brokers: Brokers) -> None:
    with towline.connect(f"towline://{brokers.address(0)}", timeout=60) as mq:
        link, call, liveness = mq._new_link(), Call(AwaitChecks("shop", 60_000)), Liveness()
        link.start(call)
        for _ in range(30):  # for much longer than one that is silent is waited for
            assert not link.wait(call, time.monotonic() + 0.1)
            assert not liveness.is_away(time.monotonic(), link)
        brokers.freeze(0)
        eventually(lambda: link.wait(call, time.monotonic() + 0.1) or liveness.is_away(time.monotonic(), link))
        assert not call.done
        brokers.thaw(0)
        link.close()


async def test_what_nobody_waits_for_any_more_is_not_kept(connect: Any, brokers: Brokers, topic: str) -> None:
    """Else it would be asked again, whenever its broker comes back."""

    def failing() -> Flow[None]:
        yield Start(Call(TopicInfo(topic), [b"large"]))
        raise ValueError("of its own")

    def waiting() -> Flow[None]:
        yield Call(AwaitChecks("shop", 60_000))

    async with entered(connect(brokers.url)) as mq:
        cluster = mq._cluster
        with pytest.raises(ValueError, match="of its own"):
            await do(cluster.run(topic, failing()))
        assert not cluster._started
        assert not cluster._buffers
        if not asyncio.iscoroutinefunction(cluster.run):
            return  # a thread cannot be cancelled
        link = cluster.link(cluster.fleet.route(cluster._salt, topic))
        while link.connection.unanswered:
            await asyncio.sleep(0.01)
        task = asyncio.create_task(cluster.run(topic, waiting()))
        while not link.connection.unanswered:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        assert not link.connection.unanswered


def test_brokers_are_met_also_where_it_takes_a_while_to_connect(brokers: Brokers, topic: str) -> None:
    """As it does over TLS on a slow network. (The asyncio client connects beside all else.)"""
    with towline.connect(brokers.url) as mq:
        cluster = mq._cluster
        assert cluster is not None
        links = [cluster._watch, cluster.link(cluster.fleet.route(cluster._salt, topic))]
        for link in links:
            link._dial = partial(_slowly, link._dial)
            link.give_up(ConnectionResetError())
        with pytest.raises(NotFound):
            mq.topic(topic)
        eventually(lambda: all(link.connection.ready for link in links))


def _slowly(dial: Dial, route: Route, timeout_s: float) -> socket.socket:
    time.sleep(min(0.3, timeout_s))
    if timeout_s < 0.3:
        raise TimeoutError
    return dial(route, timeout_s)


async def test_a_producer_notes_that_nobody_says_any_more_whom_to_leave(
    connect: Any, brokers: Brokers, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a rolling upgrade, when the client asks a broker of a version before who is there."""
    async with entered(connect(brokers.url)) as mq, entered(mq.producer(linger_ms=0)) as producer:
        fleet: ClusterBrokers = mq._cluster.fleet
        with monkeypatch.context() as patch:
            patch.setattr(ClusterBrokers, "tells_owners", True)
            await do(producer.send(topic, b"x"))
            await do(producer.flush())
        [(broker, _)] = producer._branches.items()
        victim = brokers.number_of(broker, fleet.members)
        brokers.freeze(victim)
        sent = await do(producer.send(topic, b"y"))
        await eventually_done(lambda: broker in fleet._shut)
        brokers.thaw(victim)
        await do(producer.flush())
        assert sent.exception() is None


async def test_a_producer_that_closes_takes_nothing_more(
    connect: Any, brokers: Brokers, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came while it waits for the last answers would be given up in silence."""
    refused: list[Closed] = []
    async with entered(connect(brokers.url)) as mq:
        producer = mq.producer()
        sent = await do(producer.send(topic, b"x"))
        flush = producer.flush

        def flush_late(timeout: float | None = None) -> None:
            with pytest.raises(Closed) as caught:
                producer.send(topic, b"late")
            refused.append(caught.value)
            flush(timeout)

        async def aio_flush_late(timeout: float | None = None) -> None:
            with pytest.raises(Closed) as caught:
                await producer.send(topic, b"late")
            refused.append(caught.value)
            await flush(timeout)

        asyncio_one = asyncio.iscoroutinefunction(flush)
        monkeypatch.setattr(producer, "flush", aio_flush_late if asyncio_one else flush_late)
        await do(producer.close())
        assert len(refused) == 1
        assert sent.exception() is None


async def test_a_link_that_was_closed_is_not_led_any_more(connect: Any, brokers: Brokers) -> None:
    async with entered(connect(brokers.url)) as mq:
        cluster = mq._cluster
        staying, *others = [cluster.following_link() for _ in range(5)]
        for link in others:
            await do(link.close())
        latest = cluster.following_link()
        assert [link for link, _ in cluster._following] == [staying, latest]


async def test_a_link_that_fails_to_close_keeps_no_other_open(connect: Any, brokers: Brokers) -> None:
    async with entered(connect(brokers.url)) as mq:
        cluster = mq._cluster
        first, *others = [cluster.link(one.id) for one in cluster.fleet.members]
        close = first.close

        def fail() -> None:
            raise RuntimeError("of its own")

        first.close = fail
        with pytest.raises(RuntimeError, match="of its own"):
            await do(mq.close())
        assert all(link.closed for link in (*others, cluster._watch, mq._link))
        await do(close())


def test_a_process_that_ends_sends_what_its_producer_holds(brokers: Brokers, topic: str) -> None:
    script = """
producer = towline.connect(sys.argv[1]).producer(linger_ms=60_000)
for number in range(3_000):
    producer.send(f"{sys.argv[2]}-{number % 9}", b"%d" % number)
"""
    assert not run(script, brokers.url, topic)
    with towline.connect(brokers.url) as mq:
        assert _messages(mq.topics(), topic) == 3_000


async def test_clients_given_one_broker_find_all_and_use_them(connect: Any, brokers: Brokers, topic: str) -> None:
    url = f"towline://{brokers.address(1)}"
    async with entered(connect(url)) as mq:
        for number in range(30):
            await do(mq.send(f"{topic}-{number}", b"x"))
        ends = []
        for number in range(3):
            async with entered(connect(f"towline://{brokers.address(number)}")) as one:
                ends.append(_messages(await do(one._link.run(towline.client.requests.topics())), topic))
        assert sum(ends) == 30
        assert all(ends), ends
        assert _messages(await do(mq.topics()), topic) == 30


def _messages(states: list[Any], prefix: str) -> int:
    return sum(lane.end for state in states if state.config.name.startswith(prefix) for lane in state.lanes)


async def test_ordered_keys_stay_with_their_broker_and_in_order(connect: Any, brokers: Brokers, topic: str) -> None:
    async with entered(connect(brokers.url, timeout=20)) as mq:
        await do(mq.create_topic(topic, shards=8))
        async with entered(mq.producer()) as producer:
            for number in range(600):
                await do(producer.send(topic, b"%d" % number, key=f"k{number % 20}"))
                if number == 300:
                    await do(producer.flush())
                    brokers.kill(0)
                    brokers.start(0)
        keys = [f"k{number % 20}" for number in range(600, 900)]
        receipts = await do(mq.send_many(topic, [b"%d" % number for number in range(600, 900)], keys=keys))
        assert len(receipts) == 300
        assert len({receipt.lane for receipt in receipts}) > 1
        seen: defaultdict[str, list[int]] = defaultdict(list)
        async with entered(mq.consumer(topic, "g", idle_timeout=3.0)) as consumer:
            async for message in each(consumer):
                with message:
                    seen[message.key].append(int(message.body))
                if sum(map(len, seen.values())) == 900:
                    break
        assert sum(map(len, seen.values())) == 900
        assert all(numbers == sorted(numbers) for numbers in seen.values())


async def test_a_nack_whose_broker_is_away_goes_to_another_with_the_whole_message(
    connect: Any, brokers: Brokers, topic: str
) -> None:
    retry = towline.RetryPolicy(max_attempts=5, delays_s=(0.1,))
    async with (
        entered(connect(brokers.url)) as mq,
        entered(mq.consumer(topic, "g", retry=retry, ack_interval=0.05)) as consumer,
    ):
        headers = {"a": "b", "traceparent": f"00-{1:032x}-{2:016x}-01"}
        lives: dict[str, Any] = {"ttl": 3600, "timeout": 600, "attempts": 4}
        await do(mq.send(topic, b"work", key="k", headers=headers, priority="high", dedup_id="one", **lives))
        first = (await do(consumer.pull(wait=60)))[0]
        [home] = [one for one in await do(mq.brokers()) if await _holds(connect, one.address, topic)]
        number = brokers.ports.index(int(home.address.rpartition(":")[2]))
        brokers.kill(number)
        first.nack("it failed")
        again = await _next(consumer)
        assert (again.body, again.key, again.priority, again.attempt) == (b"work", "k", "high", 2)
        assert again.id == first.id
        assert again.headers == {**headers, "towline-origin": first.id}
        assert (again.timeout, again.max_attempts, again.produced_at) == (600, 4, first.produced_at)
        assert again.expires_at == first.expires_at is not None
        again.ack()
        brokers.start(number)
        # Its broker is told that the message is done with: it comes no more.
        assert not await do(consumer.pull(wait=3.0))
        state = await do(mq.group(topic, "g"))
        assert (state.lag, state.in_flight, state.retrying) == (0, 0, 0)


async def test_of_nacks_whose_broker_is_away_the_one_that_is_too_large_for_others_waits_for_it(
    connect: Any, tmp_path: Path, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    brokers = Brokers(tmp_path, 2)
    try:
        brokers.start(0)
        retry = towline.RetryPolicy(max_attempts=5, delays_s=(0.1,))
        async with (
            entered(connect(brokers.url)) as mq,
            entered(mq.consumer(topic, "g", retry=retry, ack_interval=0.05)) as consumer,
        ):
            await do(mq.send_many(topic, [b"before", b"x" * 100_000, b"after"]))
            batch = await do(consumer.pull(wait=60))
            assert len(batch) == 3
            brokers.flags = ("--max-frame-bytes", "65536")
            brokers.start(1)
            brokers.wait_for(2)
            await eventually_done(lambda: sum(one.ready for one in consumer._branches.values()) == 2)
            brokers.kill(0)
            for message in batch:
                message.nack(f"it failed, {len(message.body)}")  # each for itself
            bodies: list[bytes] = []
            deadline = time.monotonic() + 20
            while len(bodies) < 2:
                assert time.monotonic() < deadline
                for message in await do(consumer.pull(wait=0.5)):
                    bodies.append(message.body)
                    message.ack()
            assert sorted(bodies) == [b"after", b"before"]
            assert not await do(consumer.pull(wait=4.0)), "they come once"
            refused = [one for one in caplog.messages if "does not take nacks" in one]
            assert 1 <= len(refused) < 8, "it is offered ever more rarely"
            brokers.flags = ()
            brokers.start(0)
            last = await _next(consumer)
            assert (len(last.body), last.attempt) == (100_000, 2)
            last.ack()
            assert not await do(consumer.pull(wait=1.0))
    finally:
        brokers.close()


async def _holds(connect: Any, address: str, topic: str) -> bool:
    async with entered(connect(f"towline://{address}")) as one:
        found = await do(one._link.run(towline.client.requests.topics()))
        return _messages(found, topic) > 0


async def _next(consumer: Any) -> Any:
    deadline = time.monotonic() + 20
    while not (batch := await do(consumer.pull(wait=0.5))):
        assert time.monotonic() < deadline
    return batch[0]


def test_settings_reach_all_brokers_and_those_that_were_away(brokers: Brokers, topic: str) -> None:
    with towline.connect(brokers.url, timeout=10) as mq:
        late = f"{topic}-late"
        mq.create_topic(f"{topic}-early", shards=4)
        brokers.kill(2)
        mq.create_topic(late, shards=6)
        mq.put_group(towline.GroupConfig(late, "g"))
        with pytest.raises(Partly, match=f"{brokers.ports[2]}"):
            mq.pause(late, "g")
        brokers.start(2)
        brokers.wait_for(3)
        eventually(lambda: _shards(brokers, 2, late) == 6)
        mq.pause(late, "g", "resting")
        for number in range(3):
            with towline.connect(f"towline://{brokers.address(number)}") as one:
                assert one._link.run(towline.client.requests.group(late, "g")).config.paused
        mq.delete_topic(f"{topic}-early")
        names = [state.config.name for state in mq.topics() if state.config.name.startswith(topic)]
        assert names == [late]


def _shards(brokers: Brokers, number: int, topic: str) -> int:
    with towline.connect(f"towline://{brokers.address(number)}") as mq:
        return mq._link.run(mq._shards.look_up(topic))


async def test_a_transaction_is_whole_at_one_broker(connect: Any, brokers: Brokers, topic: str) -> None:
    async with entered(connect(brokers.url)) as mq:
        async with entered(mq.transaction()) as tx:
            for number in range(20):
                await do(tx.send(f"{topic}-{number % 4}", b"%d" % number))
        homes = [one for one in await do(mq.brokers()) if await _holds(connect, one.address, topic)]
        assert len(homes) == 1
        assert _messages(await do(mq.topics()), topic) == 20


async def test_a_transaction_in_order_goes_to_the_home_of_its_shards(
    connect: Any, brokers: Brokers, topic: str
) -> None:
    async with entered(connect(brokers.url, timeout=20)) as mq:
        await do(mq.create_topic(topic, shards=64))
        for number in range(10):
            async with entered(mq.transaction()) as tx:
                await do(tx.send_many(topic, [b"%d" % number] * 2, shard_keys=["one customer"] * 2))
            prepared = mq.prepare(f"{topic}-shop")
            await do(prepared.send(topic, b"%d" % number, shard_key="one customer", key="x"))
            await do(prepared.store())
            await do(prepared.commit())
            await do(mq.send(topic, b"%d" % number, shard_key="one customer"))
        homes = [one for one in await do(mq.brokers()) if await _holds(connect, one.address, topic)]
        assert len(homes) == 1
        tx = mq.transaction().begin()
        await do(tx.send_many(topic, [b"x"] * 64, keys=[f"k{number}" for number in range(64)]))
        with pytest.raises(BadRequest, match="belong to 3 brokers"):
            await do(tx.commit())
        tx.abort()
        seen: list[int] = []
        async with entered(mq.consumer(topic, "g", idle_timeout=10.0)) as consumer:
            async for message in each(consumer):
                with message:
                    seen.append(int(message.body))
                if len(seen) == 40:
                    break
        assert seen == [number for number in range(10) for _ in range(4)]


def test_without_any_broker_a_send_fails_clearly(brokers: Brokers, topic: str) -> None:
    with towline.connect(brokers.url, timeout=1.0) as mq:
        mq.send(topic, b"x")
        for number in range(3):
            brokers.kill(number)
        with pytest.raises(Unavailable, match="cannot be reached"):
            mq.send(topic, b"y")


def test_a_stopping_broker_is_left_at_once(brokers: Brokers, topic: str) -> None:
    load = Load(brokers.url, topic, producers=6, pause_s=0.0005)
    try:
        eventually(lambda: len(load.seen) > 200)
        begun = time.monotonic()
        brokers.terminate(0)
        time.sleep(1.5)
        assert load.longest_gap(load.acked, begun, time.monotonic()) < 1.0
        brokers.terminate(1)
        # Whatever came too late for them was not stored: it need not wait until they return.
        load.stop_sending()
        assert not load.failed
        assert len(load.acked) == load.sent
        brokers.start(0, 1)
        eventually(lambda: not load.lost())
        assert load.stored() == load.sent
    finally:
        load.stop()
    assert len(load.doubled()) < IN_HAND


def test_a_join_that_is_no_address_is_refused() -> None:
    from tests.inside.broker import join_addresses
    from tests.inside.ground import load_settings

    for text in ("somewhere", "0.0.0.0:7400", "host:0", "host:70000"):
        with pytest.raises(BadRequest, match="join"):
            join_addresses(load_settings({"join": text}, environment={}))


async def test_pulls_from_many_brokers_stand_and_nothing_is_lost_or_doubled(
    connect: Any, brokers: Brokers, topic: str, pulls: list[Pull]
) -> None:
    seen: list[bytes] = []
    async with entered(connect(brokers.url)) as mq:
        async with entered(mq.consumer(topic, "g", idle_timeout=60)) as consumer:
            sender = one_by_one(brokers.url, topic, 600)
            async for message in each(consumer):
                seen.append(message.body)
                message.ack()
                if len(seen) == 600:
                    break
            await asyncio.to_thread(sender.join)
            assert consumer.lost == 0
        state = await do(mq.group(topic, "g"))
        assert (state.lag, state.in_flight) == (0, 0), "all is acked when the consumer is closed"
    assert sorted(map(int, seen)) == list(range(600))
    assert any(pull.answers > 1 for pull in pulls)


async def test_leaving_a_loop_over_many_brokers_loses_nothing_that_is_delivered_at_most_once(
    connect: Any, brokers: Brokers, topic: str
) -> None:
    options: dict[str, Any] = {"mode": "at-most-once", "idle_timeout": 0.5}
    bodies = [b"%d" % number for number in range(30)]
    seen: list[bytes] = []
    async with entered(connect(brokers.url)) as mq:
        for body in bodies:
            await do(mq.send(topic, body))
        for _ in range(2):
            async with entered(mq.consumer(topic, "g", **options)) as consumer:
                async for message in each(consumer):
                    seen.append(message.body)
                    if len(seen) % 4 == 0:
                        break
                batch = await do(consumer.pull(2, wait=60))
                assert 1 <= len(batch) <= 2
                seen += batch.bodies()
        async with entered(mq.consumer(topic, "g", **options)) as consumer:
            async for message in each(consumer):
                seen.append(message.body)
    assert sorted(map(int, seen)) == list(range(30))


async def test_a_message_that_a_consumer_of_many_brokers_dies_of_has_failed(
    connect: Any, brokers: Brokers, topic: str
) -> None:
    async with entered(connect(brokers.url)) as mq:
        await do(mq.send_many(topic, [b"a", b"b", b"c"]))

        async def die() -> None:
            async with entered(mq.consumer(topic, "g", retry=RetryPolicy(delays_s=(0,)))) as consumer:
                async for message in each(consumer):
                    raise ZeroDivisionError(message.body)

        with pytest.raises(ZeroDivisionError):
            await die()
        attempts: dict[bytes, int] = {}
        async with entered(mq.consumer(topic, "g")) as consumer:
            while len(attempts) < 3:
                for message in await do(consumer.pull(wait=60)):
                    attempts[message.body] = message.attempt
    assert attempts == {b"a": 2, b"b": 1, b"c": 1}


async def test_what_a_loop_over_many_brokers_left_comes_with_the_next_pull(
    connect: Any, brokers: Brokers, topic: str
) -> None:
    seen: list[bytes] = []
    async with entered(connect(brokers.url)) as mq:
        await do(mq.send_many(topic, [b"%d" % number for number in range(40)]))
        async with entered(mq.consumer(topic, "g", idle_timeout=60)) as consumer:
            async for message in each(consumer):
                seen.append(message.body)
                message.ack()
                break
            while len(seen) < 40:
                batch = await do(consumer.pull(30, wait=60))
                assert batch
                seen += batch.bodies()
                await do(batch.ack())
    assert sorted(map(int, seen)) == list(range(40))
