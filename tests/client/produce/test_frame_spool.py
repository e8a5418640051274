"""What a producer cannot send waits on the local disk, on both clients."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import ROOT
from tests.client.either import do, entered
from tests.client.peer import Peer
from tests.eventually import eventually_done
from tests.inside.client import (
    BatchLimits,
    ClusterAccumulator,
    Connection,
    FrameEncoder,
    FrameSpool,
    Pending,
    ShardMap,
    SpooledBatchSender,
    SpooledFrame,
    SpoolFile,
    cut_by_shard,
    shard_of,
)
from tests.inside.frame import Frame, encode
from tests.inside.protocol import Send, Sent, ShardCount
from towline.errors import BadRequest, QueueFull, WrongShard


async def stored(mq: Any, topic: str, count: int, lane: str = "middle") -> list[bytes]:
    """The bodies of a lane, once there are so many."""
    async with asyncio.timeout(60):
        while True:
            try:
                bodies = [message.body for message in await do(mq.browse(topic, lane, max_messages=100_000))]
            except Exception:
                bodies = []
            if len(bodies) >= count:
                return bodies
            await asyncio.sleep(0.02)


async def emptied(spool: Path) -> None:
    await eventually_done(lambda: all(path.stat().st_size <= 8 for path in spool.glob("*.frames")))


async def test_what_no_broker_takes_is_sent_in_order_when_one_is_back(
    connect: Any, serve: Callable[..., Any], tmp_path: Path
) -> None:
    flags = ("--store", f"file:{tmp_path / 'data'}", "--durability", "os")
    broker = serve(*flags)
    spool = tmp_path / "spool"
    async with (
        entered(connect(f"towline://{broker.address}", timeout=60)) as mq,
        entered(mq.producer(delivery_timeout=1.5, spool_dir=spool)) as producer,
    ):
        first = await do(producer.send("orders", b"0"))
        await do(producer.flush())
        assert not first.spooled
        broker.stop(kill=True)
        for number in range(1, 40):
            pending = await do(producer.send("orders", b"%d" % number))
            await do(producer.send("stock", b"%d" % number, priority="high"))
            if number % 10 == 0:
                await do(producer.flush())
                assert pending.spooled
                assert pending.result().seq == -1
        await do(producer.flush())
        await asyncio.to_thread(serve, *flags, port=broker.port)
        for number in range(40, 60):
            await do(producer.send("orders", b"%d" % number))
        assert await stored(mq, "orders", 60) == [b"%d" % number for number in range(60)]
        assert await stored(mq, "stock", 39, "high") == [b"%d" % number for number in range(1, 40)]
        await emptied(spool)
        last = await do(producer.send("orders", b"60"))
        await do(producer.flush())
        assert last.result().seq == 60
    assert not list(spool.iterdir())


PRODUCER = """
import sys, towline
url, spool = sys.argv[1:]
with towline.connect(url, timeout=60) as mq:
    producer = mq.producer(delivery_timeout=0.2, spool_dir=spool)
    print("connected", flush=True)
    sys.stdin.readline()
    for number in range(200):
        producer.send("orders", b"%d" % number)
        if number % 20 == 0:
            producer.flush()
    producer.flush()
    print("spooled", flush=True)
    sys.stdin.readline()
"""


async def test_the_next_process_sends_what_a_killed_one_left(
    connect: Any, serve: Callable[..., Any], tmp_path: Path
) -> None:
    flags = ("--store", f"file:{tmp_path / 'data'}", "--durability", "os")
    broker = serve(*flags)
    url, spool = f"towline://{broker.address}", tmp_path / "spool"
    with subprocess.Popen(
        [sys.executable, "-c", PRODUCER, url, str(spool)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "connected\n"
        broker.stop(kill=True)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "spooled\n"
        process.kill()
    (file,) = spool.iterdir()
    with file.open("ab") as torn:
        # As if it had been killed while it wrote.
        torn.write(b"\x40\0\0\0half")
    serve(*flags, port=broker.port)
    async with entered(connect(url)) as mq, entered(mq.producer(spool_dir=spool)) as producer:
        await do(producer.send("orders", b"200"))
        await do(producer.flush())
        assert await stored(mq, "orders", 201) == [b"%d" % number for number in range(201)]
        await emptied(spool)


async def test_a_full_spool_refuses(connect: Any, serve: Callable[..., Any], tmp_path: Path) -> None:
    broker = serve()
    async with (
        entered(connect(f"towline://{broker.address}", timeout=60)) as mq,
        entered(mq.producer(delivery_timeout=0.2, spool_dir=tmp_path, spool_bytes=2000)) as producer,
    ):
        broker.stop(kill=True)
        kept = await do(producer.send("orders", bytes(1000)))
        await do(producer.flush())
        assert kept.spooled
        await do(producer.send("orders", bytes(1000)))
        with pytest.raises(QueueFull, match="is full"):
            await do(producer.flush())


async def test_closing_keeps_what_is_not_sent(connect: Any, serve: Callable[..., Any], tmp_path: Path) -> None:
    broker = serve()
    async with entered(connect(f"towline://{broker.address}", timeout=60)) as mq:
        producer = mq.producer(spool_dir=tmp_path)
        broker.stop(kill=True)
        pending = [await do(producer.send("orders", b"%d" % number)) for number in range(100)]
        await do(producer.close(timeout=0.1))
        assert all(each.spooled for each in pending)
    spool = FrameSpool(tmp_path, 1 << 20)
    # The first ones may have left on their own: they are a frame of theirs then.
    bodies: list[bytes] = []
    while (kept := spool.next()) is not None:
        bodies += Frame(kept.frame).verify().bodies()
        spool.sent(kept)
    assert bodies == [b"%d" % number for number in range(100)]
    spool.close()


async def test_a_frame_that_may_be_stored_already_keeps_its_number(connect: Any, tmp_path: Path) -> None:
    """The broker took it but did not say so. It comes again under the same id and number; others get a new id."""
    seen: list[Frame] = []

    def script(peer: Peer) -> None:
        visitor = peer.accept()
        visitor.meet()
        deaf = peer.accept()
        deaf.greet()
        deaf.expect(Send)
        seen.append(Frame(deaf.attached))
        deaf.expect(Send)
        deaf.hang_up()
        again = peer.accept()
        again.greet()
        for number in range(2):
            again.expect(Send)
            seen.append(Frame(again.attached))
            again.answer(Sent([number], 1, number == 0))
        again.until_gone()
        visitor.until_gone()

    with Peer(script) as peer:
        async with (
            entered(connect(peer.url)) as mq,
            entered(mq.producer(delivery_timeout=2, spool_dir=tmp_path)) as p,
        ):
            first = await do(p.send("orders", b"1"))
            await do(p.flush())
            assert first.spooled
            second = await do(p.send("stock", b"2"))
            await do(p.flush())
            assert not second.spooled
            await emptied(tmp_path)
    one, again, other = seen if seen[1].producer_id == seen[0].producer_id else (seen[0], seen[2], seen[1])
    assert (one.producer_id, one.producer_seq) == (again.producer_id, again.producer_seq)
    assert bytes(one.data) == bytes(again.data)
    assert other.producer_id != one.producer_id


async def test_what_does_not_find_its_shard_in_time_is_spooled(connect: Any, tmp_path: Path) -> None:
    """The broker says that the topic has shards, and is too slow to say how many."""

    def script(peer: Peer) -> None:
        visitor = peer.accept()
        visitor.meet()
        sending = peer.accept()
        sending.greet()
        sending.expect(Send)
        sending.fail(WrongShard.code)
        assert isinstance(sending.next(), ShardCount)
        # No answer: the deadline passes. Then the spool is emptied.
        sending.expect(Send)
        sending.answer(Sent([0], 1))
        sending.until_gone()
        visitor.until_gone()

    with Peer(script) as peer:
        async with (
            entered(connect(peer.url)) as mq,
            entered(mq.producer(delivery_timeout=1, spool_dir=tmp_path)) as producer,
        ):
            pending = await do(producer.send("orders", b"1", key="k"))
            await do(producer.flush())
            assert pending.spooled
            await emptied(tmp_path)


async def test_what_was_refused_by_a_broker_that_is_gone_by_then_is_spooled(connect: Any, tmp_path: Path) -> None:
    """A broker that was full may have room again when it is back."""
    spooled = threading.Event()

    def script(peer: Peer) -> None:
        visitor = peer.accept()
        visitor.meet()
        sending = peer.accept()
        sending.greet()
        sending.expect(Send)
        sending.fail(QueueFull.code)
        sending.expect(Send)
        sending.hang_up()
        again = peer.accept()
        assert spooled.wait(60)
        again.greet()
        again.expect(Send)
        again.answer(Sent([0], 1))
        again.until_gone()
        visitor.until_gone()

    with Peer(script) as peer:
        async with (
            entered(connect(peer.url)) as mq,
            entered(mq.producer(delivery_timeout=1, spool_dir=tmp_path)) as producer,
        ):
            pending = await do(producer.send("orders", b"1"))
            try:
                await do(producer.flush())
            finally:
                spooled.set()
            assert pending.spooled
            await emptied(tmp_path)


@pytest.mark.parametrize(("reroutes", "kept"), [(True, True), (False, False)])
def test_an_answer_after_the_deadline_that_the_shard_is_wrong_leads_to_the_spool(
    tmp_path: Path, reroutes: bool, kept: bool
) -> None:
    """Where brokers keep messages of their own it fails: the right shard is another broker's."""
    spool = FrameSpool(tmp_path, 1 << 20)
    shipping = SpooledBatchSender(
        lambda: FrameEncoder(""), -1, False, 1 << 20,
        spool=spool, connection=Connection("", ""), shards=ShardMap(), reroutes=reroutes,
    )  # fmt: skip
    exchange: ClusterAccumulator[Pending] = ClusterAccumulator(
        BatchLimits(delivery_timeout_s=1.0), Pending, lambda: 100.0
    )
    pending = exchange.add("orders", b"1", "k", "middle", None)
    [parcel] = exchange.take(100.5)
    call = shipping.pack(parcel)
    assert call is not None
    call.fail(WrongShard())
    assert shipping.settle(exchange, 101.5) == [parcel]
    parcel.done = True
    assert pending.spooled is kept
    assert isinstance(parcel.error, WrongShard) is not kept
    assert spool.lanes.total() == kept
    shipping.close()


def test_a_spool_goes_on_at_its_last_mark(tmp_path: Path) -> None:
    spool = FrameSpool(tmp_path, 1 << 20)
    frames = [SpooledFrame("orders", 1, -1, b"%d" % number) for number in range(200)]
    for frame in frames:
        spool.append(frame)
    for frame in frames[:150]:
        assert spool.next() == frame
        spool.sent(frame)
    # Killed: nothing is closed in an orderly way.
    os.close(spool._file._fd)
    again = FrameSpool(tmp_path, 1 << 20)
    assert again.next() == frames[128]
    assert again.lanes == {("orders", 1, 0): 72}
    # Another producer of the same folder has a file of its own; when it is gone, the next takes over what it left.
    other = FrameSpool(tmp_path, 1 << 20)
    other.append(SpooledFrame("stock", 0, -1, b"x"))
    assert other.next() == SpooledFrame("stock", 0, -1, b"x")
    other.close()
    again.close()
    third = FrameSpool(tmp_path, 1 << 20)
    assert third.lanes == {("orders", 1, 0): 72, ("stock", 0, 0): 1}
    third.close()
    assert [path.name for path in tmp_path.iterdir()] == ["producer-0.frames"]


def left_by_two(folder: Path, count: int) -> list[SpooledFrame]:
    """Two producers left a file each; the frames of the second."""
    first, second = FrameSpool(folder, 1 << 20), FrameSpool(folder, 1 << 20)
    frames = [SpooledFrame("stock", 0, -1, b"%03d" % number * 100) for number in range(count)]
    first.append(SpooledFrame("orders", 1, -1, b"x"))
    for frame in frames:
        second.append(frame)
    first.close()
    second.close()
    return frames


def test_a_spool_is_taken_over_as_a_whole_or_not_at_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frames = left_by_two(tmp_path, 5)
    with caplog.at_level("WARNING"):
        small = FrameSpool(tmp_path, 1_200)  # there is room for three
    assert "producer-1.frames is not taken over yet" in caplog.text
    assert small.lanes == {("orders", 1, 0): 1}
    small.close()
    large = FrameSpool(tmp_path, 1 << 20)
    assert large.lanes == {("orders", 1, 0): 1, ("stock", 0, 0): 5}
    found = []
    while (frame := large.next()) is not None:
        found.append(frame)
        large.sent(frame)
    assert found[1:] == frames
    large.close()


def test_what_was_taken_over_by_one_who_was_killed_at_it_is_not_taken_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_by_two(tmp_path, 3)

    def killed(file: SpoolFile) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SpoolFile, "clear", killed)
        with pytest.raises(KeyboardInterrupt):
            FrameSpool(tmp_path, 1 << 20)
    again = FrameSpool(tmp_path, 1 << 20)
    assert again.lanes == {("orders", 1, 0): 1, ("stock", 0, 0): 3}
    again.close()
    assert not (tmp_path / "producer-1.frames").exists()


def test_a_refused_frame_is_put_aside(tmp_path: Path) -> None:
    spool = FrameSpool(tmp_path, 1 << 20)
    spool.append(SpooledFrame("orders", 1, -1, b"x"))
    frame = spool.next()
    assert frame is not None
    spool.put_aside(frame)
    spool.sent(frame)
    assert spool.next() is None
    spool.close()
    assert [path.name for path in tmp_path.iterdir()] == ["producer-0.refused"]


async def by_key(mq: Any, topic: str, shards: int, count: int) -> dict[str, list[int]]:
    """The numbers of all messages of an ordered topic, by key, once there are so many."""
    async with asyncio.timeout(60):
        while True:
            found: dict[str, list[int]] = defaultdict(list)
            for shard in range(shards):
                for message in await do(mq.browse(topic, shard, max_messages=100_000)):
                    assert shard_of(topic, shards, message.key, message.shard_key, "middle") == shard
                    found[message.shard_key].append(int(message.body))
            if sum(map(len, found.values())) >= count:
                return found
            await asyncio.sleep(0.02)


async def test_a_spool_keeps_the_order_of_each_key(connect: Any, serve: Callable[..., Any], tmp_path: Path) -> None:
    flags = ("--store", f"file:{tmp_path / 'data'}", "--durability", "os")
    broker = serve(*flags)
    spool = tmp_path / "spool"
    async with (
        entered(connect(f"towline://{broker.address}", timeout=60)) as mq,
        entered(mq.producer(delivery_timeout=1.5, spool_dir=spool)) as producer,
    ):
        for topic in ("known", "keyed", "new"):
            await do(mq.create_topic(topic, shards=5))
        for number in range(10):
            await do(producer.send("known", b"%d" % number, key=f"k{number % 4}"))
        await do(producer.flush())
        broker.stop(kill=True)
        last = None
        for number in range(10, 60):
            # Of these topics it is not known that they are ordered; but of one it is clear, from the shard key.
            await do(producer.send("keyed", b"%d" % (number - 10), shard_key=f"k{number % 4}"))
            await do(producer.send("new", b"%d" % (number - 10), key=f"k{number % 4}"))
            last = await do(producer.send("known", b"%d" % number, key=f"k{number % 4}"))
            if number % 20 == 0:
                await do(producer.flush())
        await do(producer.flush())
        assert last is not None
        assert last.spooled
        await asyncio.to_thread(serve, *flags, port=broker.port)
        for number in range(60, 90):
            for topic, begin in [("known", 0), ("keyed", 10), ("new", 10)]:
                key = {"shard_key" if topic == "keyed" else "key": f"k{number % 4}"}
                await do(producer.send(topic, b"%d" % (number - begin), **key))
        for topic, count in [("known", 90), ("keyed", 80), ("new", 80)]:
            found = await by_key(mq, topic, 5, count)
            assert all(numbers == sorted(set(numbers)) for numbers in found.values()), (topic, found)
            assert sorted(number for numbers in found.values() for number in numbers) == list(range(count))
        await emptied(spool)
    assert not list(spool.iterdir())


async def test_what_has_no_place_in_the_topic_is_put_aside(
    connect: Any, serve: Callable[..., Any], tmp_path: Path
) -> None:
    flags = ("--store", f"file:{tmp_path / 'data'}", "--durability", "os")
    broker = serve(*flags)
    spool = tmp_path / "spool"
    async with (
        entered(connect(f"towline://{broker.address}", timeout=60)) as mq,
        entered(mq.producer(delivery_timeout=1.5, spool_dir=spool)) as producer,
    ):
        await do(mq.create_topic("ordered", shards=3))
        await do(mq.create_topic("unknown", shards=3))
        await do(mq.create_topic("shared"))
        # While the broker is there, each is refused as ever.
        wrong = await do(producer.send("shared", b"x", shard_key="k"))
        keyless = await do(producer.send("ordered", b"x"))
        with pytest.raises(BadRequest):
            await do(producer.flush())
        assert "not an ordered one" in str(await do(wrong.exception()))
        assert "give a shard_key" in str(await do(keyless.exception()))
        broker.stop(kill=True)
        for body, key in [(b"0", "k"), (b"no key", None), (b"1", "k")]:
            await do(producer.send("unknown", body, key=key))
        await do(producer.send("shared", b"needs shards", shard_key="k"))
        await do(producer.send("shared", b"fine", key="k"))
        await do(producer.flush())
        await asyncio.to_thread(serve, *flags, port=broker.port)
        await emptied(spool)
        assert await by_key(mq, "unknown", 3, 2) == {"k": [0, 1]}
        assert await stored(mq, "shared", 1) == [b"fine"]
    assert [path.name for path in spool.iterdir()] == ["producer-0.refused"]


def test_a_frame_is_cut_by_shards_in_the_same_way_again() -> None:
    keys = [f"k{number % 50}" if number % 7 else None for number in range(600)]
    frame = Frame(
        encode(
            [b"%d" % number for number in range(600)],
            keys=keys,
            deliver_at_us=[-5_000_000 if number % 3 == 0 else 0 for number in range(600)],
            producer_id=7,
            producer_seq=9,
        )
    )
    cut, again = (cut_by_shard("orders", frame, 1, 1000) for _ in range(2))
    assert cut == again
    assert cut.lost is not None
    assert Frame(cut.lost).bodies() == [b"%d" % number for number in range(0, 600, 7)]
    pieces = [(lane, Frame(data).verify().verify_columns()) for unit in cut.units for lane, data in unit]
    numbers = [(piece.producer_id, piece.producer_seq) for _, piece in pieces]
    assert len(set(numbers)) == len(numbers)
    assert (7, 9) not in numbers
    assert cut_by_shard("orders", frame, 1, 999).units[0][0][1] != cut.units[0][0][1]
    for lane, piece in pieces:
        assert {shard_of("orders", 1000, key, None, "middle") for key in piece.keys() or []} == {lane}
        assert len({bool(time) for time in piece.deliver_at_us() or [0]}) == 1
        assert list(map(int, piece.bodies())) == sorted(map(int, piece.bodies()))
    assert sum(piece.count for _, piece in pieces) == 600 - len(range(0, 600, 7))
