"""Processes that end without closing anything: what they held is sent, or it is said what is lost."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import towline
from tests.client.conftest import ROOT, Served
from tests.client.either import do, entered
from tests.client.peer import Peer
from tests.inside.client import MAGIC, FrameSpool, transport
from tests.inside.frame import Frame
from towline.errors import Timeout

LINGERS = "linger_ms=60_000"
"""Nothing leaves by itself before the process ends."""
IMPATIENT = "towline.client.process_end._left_s = 0.3"


def run(script: str, *arguments: str, say: Callable[[], None] | None = None, code: int = 0) -> str:
    """Run a script to its end; `say` is called when it says so. What it wrote to stderr."""
    with subprocess.Popen(
        [sys.executable, "-c", f"import asyncio, os, sys, threading, time, towline\n{script}", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            if say is not None:
                assert process.stdout.readline() == "ready\n", process.stderr.read()
                say()
            _, said = process.communicate("\n", timeout=60)
        except BaseException:
            process.kill()
            raise
        assert process.returncode == code, said
        return said


def stored(url: str, topic: str) -> list[int]:
    with towline.connect(url) as mq:
        return [int(message.body) for message in mq.browse(topic, max_messages=100_000)]


@pytest.mark.parametrize("where", ["broker", "file"])
def test_a_producer_that_nobody_closed_sends_what_it_holds(
    where: str, shared_broker: Served, tmp_path: Path, topic: str
) -> None:
    url = f"towline://{shared_broker.address}" if where == "broker" else f"file:{tmp_path / 'data'}?durability=os"
    script = f"""
def send():
    producer = towline.connect(sys.argv[1]).producer({LINGERS})
    for number in range(20_000):
        producer.send(sys.argv[2], b"%d" % number)
send()
sys.exit(3)
"""
    assert not run(script, url, topic, code=3)
    assert stored(url, topic) == list(range(20_000))


def test_threads_that_go_on_after_the_main_one_send_what_they_have(shared_broker: Served, topic: str) -> None:
    script = f"""
producer = towline.connect(sys.argv[1]).producer({LINGERS})
def work():
    threading.main_thread().join()
    while producer.buffered:  # what the main thread sent is flushed when it ends
        time.sleep(0.01)
    producer.send(sys.argv[2], b"1")
threading.Thread(target=work).start()
producer.send(sys.argv[2], b"0")
"""
    url = f"towline://{shared_broker.address}"
    assert not run(script, url, topic)
    assert stored(url, topic) == [0, 1]


def test_what_cannot_be_sent_is_told_with_its_number_and_topic(serve: Callable[..., Served]) -> None:
    broker = serve()
    script = f"""
producer = towline.connect(sys.argv[1]).producer({LINGERS})
print("ready", flush=True)
sys.stdin.readline()
for number in range(1_500):
    producer.send("orders", b"x")
    if number < 3:
        producer.send("stock", b"x")
{IMPATIENT}
"""
    said = run(script, f"towline://{broker.address}", say=lambda: broker.stop(kill=True))
    assert "lost messages: 1,500 for topic orders, 3 for topic stock: " in said
    assert "is a broker running there?" in said
    assert "Traceback" not in said


def test_what_was_refused_and_nobody_asked_for_is_told(shared_broker: Served, topic: str) -> None:
    script = """
producer = towline.connect(sys.argv[1]).producer()
producer.send(sys.argv[2], bytes(17 << 20))
"""
    said = run(script, f"towline://{shared_broker.address}", topic)
    assert f"1 for topic {topic}: " in said
    assert "limit" in said


@pytest.mark.parametrize("kind", ["blocking", "aio"])
def test_a_spool_keeps_what_was_not_sent(kind: str, serve: Callable[..., Served], tmp_path: Path) -> None:
    broker = serve()
    blocking = f"""
producer = towline.connect(sys.argv[1]).producer({LINGERS}, spool_dir=sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for number in range(100):
    producer.send("orders", b"%d" % number)
{IMPATIENT}
"""
    aio = f"""
async def main():
    mq = await towline.aio.connect(sys.argv[1])
    producer = mq.producer({LINGERS}, spool_dir=sys.argv[2])
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(100):
        await producer.send("orders", b"%d" % number)
asyncio.run(main())
"""
    address = f"towline://{broker.address}"
    said = run(blocking if kind == "blocking" else aio, address, str(tmp_path), say=lambda: broker.stop(kill=True))
    assert "lost" not in said
    spool = FrameSpool(tmp_path, 1 << 20)
    kept = spool.next()
    assert kept is not None
    assert Frame(kept.frame).bodies() == [b"%d" % number for number in range(100)]
    spool.close()


def test_an_asyncio_producer_that_nobody_closed_warns_of_what_it_held(shared_broker: Served, topic: str) -> None:
    script = f"""
async def main():
    mq = await towline.aio.connect(sys.argv[1])
    producer = mq.producer({LINGERS})
    for number in range(1_500):
        await producer.send(sys.argv[2], b"x")
asyncio.run(main())
"""
    said = run(script, f"towline://{shared_broker.address}", topic)
    assert "RuntimeWarning" in said
    assert f"1,500 for topic {topic}: its event loop ended" in said


@pytest.mark.parametrize("how", ["os", "multiprocessing"])
def test_a_forked_child_leaves_to_its_parent_what_that_holds(how: str, shared_broker: Served, topic: str) -> None:
    script = f"""
import multiprocessing, warnings
warnings.simplefilter("ignore", DeprecationWarning)
url, topic, how = sys.argv[1:]
def child():
    try:
        producer.send(topic, b"3")
    except towline.Closed as error:
        assert "before a fork" in str(error), error
        producer.close()
        # One of its own.
        towline.connect(url).producer({LINGERS}).send(topic, b"2")
with towline.connect(url) as mq:
    producer = mq.producer({LINGERS})
    producer.send(topic, b"0")
    if how == "multiprocessing":
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        assert process.exitcode == 0
    elif (number := os.fork()) == 0:
        child()
        sys.exit()
    else:
        assert os.waitpid(number, 0)[1] == 0
    producer.send(topic, b"1")
"""
    url = f"towline://{shared_broker.address}"
    assert not run(script, url, topic, how)
    assert stored(url, topic) == [2, 0, 1]


def test_acks_of_a_consumer_that_nobody_closed_are_told(shared_broker: Served, topic: str) -> None:
    url = f"towline://{shared_broker.address}"
    script = """
consumer = towline.connect(sys.argv[1]).consumer(sys.argv[2], group="g", ack_interval=60)
first, second, *others = consumer.pull(10)
assert len(others) == 8
first.nack("no", delay=3600)
for message in [second, *others[:-1]]:
    message.ack()
"""
    with towline.connect(url) as mq:
        mq.send_many(topic, [b"x"] * 10)
        assert not run(script, url, topic)
        state = mq.group(topic, "g")
    # The nacked one, and the one that nothing was said about.
    assert state.lag == 2
    assert state.next_retry_at_us


def test_acks_that_cannot_be_told_are_counted(serve: Callable[..., Served], tmp_path: Path) -> None:
    broker = serve()
    url = f"towline://{broker.address}"
    script = f"""
spool = sys.argv[2] or None
consumer = towline.connect(sys.argv[1]).consumer("orders", group="g", name="c", ack_interval=60, spool_dir=spool)
messages = list(consumer.pull(10, min_messages=10))
print("ready", flush=True)
sys.stdin.readline()
for message in messages[:7]:
    message.ack()
{IMPATIENT}
"""
    with towline.connect(url) as mq:
        mq.send_many("orders", [b"x"] * 10)
        said = run(script, url, "", say=lambda: broker.stop(kill=True))
    assert "lost the acks and nacks of 7 messages, which come again" in said
    broker = serve()
    url = f"towline://{broker.address}"
    with towline.connect(url) as mq:
        mq.send_many("orders", [b"x"] * 10)
        said = run(script, url, str(tmp_path), say=lambda: broker.stop(kill=True))
    assert "lost" not in said
    assert (tmp_path / "orders~g~c.acts").stat().st_size > len(MAGIC)


@pytest.mark.parametrize("spooled", [False, True])
def test_an_asyncio_consumer_that_nobody_closed_warns_of_acks_that_were_not_told(
    serve: Callable[..., Served], tmp_path: Path, spooled: bool
) -> None:
    script = """
async def main():
    mq = await towline.aio.connect(sys.argv[1])
    options = dict(name="c", ack_interval=60, spool_dir=sys.argv[2] or None)
    consumer = await mq.consumer("orders", group="g", **options)
    messages = list(await consumer.pull(10, min_messages=10))
    print("ready", flush=True)
    sys.stdin.readline()
    for message in messages[:7]:
        message.ack()
    messages[7].nack("no")
asyncio.run(main())
"""
    broker = serve()
    url = f"towline://{broker.address}"
    with towline.connect(url) as mq:
        mq.send_many("orders", [b"x"] * 10)
        said = run(script, url, str(tmp_path) if spooled else "", say=lambda: broker.stop(kill=True))
    assert ("acks and nacks of 8 messages" in said) is not spooled
    kept = tmp_path / "orders~g~c.acts"
    assert (kept.exists() and kept.stat().st_size > len(MAGIC)) is spooled


async def test_a_producer_whose_task_was_cancelled_sends_on(shared_broker: Served, topic: str) -> None:
    """Programs that end often cancel all the tasks that there are first."""
    url = f"towline://{shared_broker.address}"
    async with asyncio.timeout(60), towline.aio.connect(url) as mq:
        producer = mq.producer()
        await producer.send(topic, b"0")
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
        await producer.send(topic, b"1")
        await producer.close()
    assert await asyncio.to_thread(stored, url, topic) == [0, 1]


def test_a_task_that_closes_its_producer_while_the_loop_ends_loses_nothing(shared_broker: Served, topic: str) -> None:
    url = f"towline://{shared_broker.address}"

    async def main() -> None:
        sent = asyncio.Event()

        async def work() -> None:
            async with towline.aio.connect(url) as mq, mq.producer(linger_ms=60_000) as producer:
                await producer.send(topic, b"0")
                sent.set()
                await asyncio.Event().wait()

        working.append(asyncio.create_task(work()))
        await sent.wait()

    working: list[asyncio.Task[None]] = []
    ending = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    ending.start()
    ending.join(60)
    assert not ending.is_alive()
    assert stored(url, topic) == [0]


async def test_closing_does_not_wait_for_a_broker_that_stands_still(
    connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_STALLED_S", 600.0)
    closed = threading.Event()

    def script(peer: Peer) -> None:
        visitor = peer.accept()
        visitor.meet()
        sending = peer.accept()
        sending.greet()
        # It takes nothing more: whoever writes to it is stuck.
        assert closed.wait(60)
        sending.hang_up()
        visitor.until_gone()

    with Peer(script) as peer:
        async with entered(connect(peer.url)) as mq:
            producer = mq.producer(max_in_flight=64)
            for number in range(32):
                await do(producer.send(f"orders-{number}", bytes(1 << 20)))
            try:
                with pytest.raises(Timeout):
                    await asyncio.wait_for(_closed(producer), 30)
            finally:
                closed.set()


async def _closed(producer: Any) -> None:
    closing = producer.close if asyncio.iscoroutinefunction(producer.close) else None
    await (closing(0.5) if closing is not None else asyncio.to_thread(producer.close, 0.5))
