"""Acks and nacks that cannot be told are kept on the local disk, on both clients."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.client.conftest import ROOT
from tests.client.either import do, entered
from tests.client.peer import Peer
from tests.eventually import eventually_done
from tests.inside.client import SpooledAck, SpoolFile
from tests.inside.protocol import Act, Attach, Attached, Settle, Settled
from towline.errors import BadRequest, StoreLocked

FLAGS = ("--durability", "os")


def kept_in(folder: Path) -> list[SpooledAck]:
    """What the spools of a folder hold."""
    kept = []
    for path in sorted(folder.glob("*.acts")):
        file = SpoolFile(path, 1 << 30)
        kept += [msgspec.msgpack.decode(record, type=SpooledAck) for record in file.records()]
        file.close()
    return kept


async def spooled(folder: Path, size: int) -> None:
    """Wait until the spool is larger than this."""
    await eventually_done(lambda: sum(path.stat().st_size for path in folder.glob("*.acts")) > size)


async def pull_durably(consumer: Any, count: int) -> Any:
    """A batch whose lease survives a killed broker: what follows it, an ack, is durable."""
    batch = await do(consumer.pull(count, wait=60, min_messages=count))
    await do((await do(consumer.pull(1, wait=60))).ack())
    return batch


CONSUMER = """
import json, sys, time, towline
url, spool = sys.argv[1:]
with towline.connect(url) as mq:
    consumer = mq.consumer("orders", group="g", name="one", spool_dir=spool)
    batch = consumer.pull(10, wait=60, min_messages=10)
    consumer.pull(1, wait=60).ack()
    print("pulled", flush=True)
    sys.stdin.readline()
    for message in batch.messages[:6]:
        message.ack()
    batch.messages[6].nack("it failed", delay=0.0)
    batch.messages[7].dead("never")
    print("settled", flush=True)
    sys.stdin.readline()
"""


async def test_the_next_process_tells_what_the_killed_one_could_not(
    connect: Any, serve: Callable[..., Any], tmp_path: Path
) -> None:
    flags = ("--store", f"file:{tmp_path / 'data'}", *FLAGS)
    broker = serve(*flags)
    url, spool = f"towline://{broker.address}", tmp_path / "spool"
    async with entered(connect(url)) as mq:
        await do(mq.send_many("orders", [b"%d" % number for number in range(11)]))
    with subprocess.Popen(
        [sys.executable, "-c", CONSUMER, url, str(spool)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "pulled\n"
        broker.stop(kill=True)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "settled\n"
        await spooled(spool, 8)
        process.kill()
    whats = [(kept.act.what, [message.body for message in kept.messages]) for kept in kept_in(spool)]
    assert whats == [(1, [b"6"]), (2, [b"7"]), (0, [])]

    serve(*flags, port=broker.port)
    async with entered(connect(url)) as mq:
        async with entered(mq.consumer("orders", group="g", name="one", spool_dir=spool)) as consumer:
            batch = await do(consumer.pull(10, wait=60, min_messages=3))
            # Neither the six acked nor the dead one; what was open has lost nothing, what was nacked counts.
            assert sorted((m.body, m.attempt) for m in batch) == [(b"6", 2), (b"8", 1), (b"9", 1)]
            await do(batch.ack())
        (dead,) = await do(mq.dead_letters("orders", "g"))
        assert (dead.body, dead.reason) == (b"7", "never")
        assert (await do(mq.group("orders", "g"))).lag == 0
    assert not list(spool.iterdir())


async def test_acks_of_a_consumer_that_outlives_its_broker_are_told_once_it_is_back(
    connect: Any, serve: Callable[..., Any], tmp_path: Path
) -> None:
    flags = ("--store", f"file:{tmp_path / 'data'}", *FLAGS)
    broker = serve(*flags)
    url, spool = f"towline://{broker.address}", tmp_path / "spool"
    async with (
        entered(connect(url, spool_dir=spool, timeout=60)) as mq,
        entered(mq.consumer("orders", group="g", name="one")) as consumer,
    ):
        await do(mq.send_many("orders", [b"1", b"2", b"3"]))
        batch = await pull_durably(consumer, 2)
        broker.stop(kill=True)
        for message in batch:
            message.ack()
        await spooled(spool, 8)
        await asyncio.to_thread(serve, *flags, port=broker.port)
        await do(consumer.flush())
        assert (await do(mq.group("orders", "g"))).lag == 0
    assert not list(spool.iterdir())


async def test_a_batch_kept_on_disk_counts_as_acked_and_close_keeps_the_rest(
    connect: Any, serve: Callable[..., Any], tmp_path: Path
) -> None:
    flags = ("--store", f"file:{tmp_path / 'data'}", *FLAGS)
    broker = serve(*flags)
    url, spool = f"towline://{broker.address}", tmp_path / "spool"
    async with entered(connect(url, timeout=5)) as mq:
        await do(mq.send_many("orders", [b"%d" % number for number in range(5)]))
        async with entered(mq.consumer("orders", group="g", name="one", spool_dir=spool)) as consumer:
            first = await do(consumer.pull(2, wait=60))
            second = await pull_durably(consumer, 2)
            broker.stop(kill=True)
            await do(first.ack())
            second.messages[0].ack()
    assert sum(len(kept.act.spans) or 2 for kept in kept_in(spool)) == 3
    serve(*flags, port=broker.port)
    async with (
        entered(connect(url)) as mq,
        entered(mq.consumer("orders", group="g", name="one", spool_dir=spool)) as consumer,
    ):
        assert (await do(consumer.pull(10, wait=60))).bodies() == [b"3"]


async def test_kept_acks_of_messages_that_others_have_are_dropped(
    connect: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nacks first, in order; what is not held is not told; what was not settled is given back."""
    file = SpoolFile(tmp_path / "orders~g~one.acts", 1 << 20)
    kept = [Act(0, 7, [(1, 0, 2)]), Act(1, 7, [(1, 2, 1)]), Act(0, 8), Act(2, 7, [(1, 3, 1)], False, None, "no")]
    file.append(msgspec.msgpack.encode(SpooledAck(act)) for act in kept)
    file.close()
    told: list[Act] = []

    def script(peer: Peer) -> None:
        visitor = peer.accept()
        visitor.meet()
        consumer = peer.accept()
        consumer.greet()
        attach = consumer.expect(Attach)
        assert attach.holding == [7, 8]
        assert attach.config is not None
        consumer.answer(Attached(1, [7], attach.config))
        told.extend(consumer.expect(Settle).acts)
        consumer.answer(Settled([(2, "lease-lost", "too late")]))
        consumer.until_gone()
        visitor.until_gone()

    with Peer(script) as peer:
        async with (
            entered(connect(peer.url)) as mq,
            entered(mq.consumer("orders", group="g", name="one", spool_dir=tmp_path)),
        ):
            pass
    assert [(act.what, act.pull, act.spans) for act in told] == [
        (1, 7, [(1, 2, 1)]), (2, 7, [(1, 3, 1)]), (0, 7, [(1, 0, 2)]), (3, 7, []),
    ]  # fmt: skip
    assert "pull 8 are dropped" in caplog.text
    assert "too late" in caplog.text


async def test_a_spool_needs_a_name_and_belongs_to_one_consumer(connect: Any, topic: str, tmp_path: Path) -> None:
    async with entered(connect(f"memory:{topic}")) as mq:
        with pytest.raises(BadRequest, match="needs a name"):
            await do(mq.consumer(topic, group="g", spool_dir=tmp_path))
        async with entered(mq.consumer(topic, group="g", name="one", spool_dir=tmp_path)):
            with pytest.raises(StoreLocked, match="in use"):
                await do(mq.consumer(topic, group="g", name="one", spool_dir=tmp_path))
        async with entered(mq.consumer(topic, group="g", name="one", spool_dir=tmp_path)):
            pass
