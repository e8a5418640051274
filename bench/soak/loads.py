"""Workers that load the broker, each with one kind of use. A load is a generator: each round tells how many messages
it handled. What makes rounds frequent is the worker's; a load that fails begins anew."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count, cycle, islice
from typing import Final

import towline
from bench.soak.task import ABANDONED, Task
from tests.broker.raw_client import RawClient
from towline.client.produce.encode import FrameEncoder
from towline.delivery.producers import TOTAL_MAX
from towline.errors import TowlineError
from towline.model import GroupConfig, RetryPolicy
from towline.protocol.messages import Attach, Attached, FrameHead, Pull, Send, Sent

__all__ = ["LOADS", "Load", "furnish"]

Load = Callable[[Task], Iterator[int]]

BODY: Final = os.urandom(200)
GROUPS_A_TOPIC: Final = 100
AT_ONCE: Final = 100
QUICK: Final = RetryPolicy(kind="exponential", max_attempts=6, first_s=1, factor=2, cap_s=15, jitter=0.5)
SLOW_READERS: Final = 10
PRODUCERS_AT_ONCE: Final = 500
VICTIM_S: Final = 30.0


# What there is before the clock runs


def furnish(task: Task, say: Callable[[str], None]) -> None:
    """Make the groups and the topics, as many as are asked for, and as many producers as are remembered."""
    begin_s = told_s = time.monotonic()
    with towline.connect(task.url, timeout=120) as mq:
        for number in range(task.groups):
            topic, group = _place(number)
            if number % GROUPS_A_TOPIC == 0:
                mq.send(topic, BODY)
            mq.put_group(GroupConfig(topic, group))
            if time.monotonic() - told_s > 10:
                told_s = time.monotonic()
                say(f"  {number + 1:,} of {task.groups:,} groups after {told_s - begin_s:.0f} s")
        for number in range(task.topics):
            mq.send(_topic(number), BODY, durability="os")
            if time.monotonic() - told_s > 10:
                told_s = time.monotonic()
                say(f"  {number + 1:,} of {task.topics:,} topics after {told_s - begin_s:.0f} s")
    say(f"  {task.groups:,} groups and {task.topics:,} topics made in {time.monotonic() - begin_s:.0f} s")
    _fill_producers(task)
    say(f"  {TOTAL_MAX:,} producers have sent after {time.monotonic() - begin_s:.0f} s")


def _fill_producers(task: Task) -> None:
    """Their table would else grow for hours, and hide what else does."""
    with RawClient.hello(_port(task)) as client:
        for _ in range(0, TOTAL_MAX, PRODUCERS_AT_ONCE):
            frames = [FrameEncoder().single(BODY) for _ in range(PRODUCERS_AT_ONCE)]
            client.call(Send([FrameHead("short", 1, len(frame)) for frame in frames]), Sent, b"".join(frames))


def _port(task: Task) -> int:
    host, _, port = task.url.removeprefix("towline://").partition(":")
    assert host == "127.0.0.1"
    return int(port)


def _place(number: int) -> tuple[str, str]:
    """The topic of a group, and its name."""
    return f"shared-{number // GROUPS_A_TOPIC:03}", f"group-{number % GROUPS_A_TOPIC:03}"


def _topic(number: int) -> str:
    return f"many.{number:05}"


# Loads


def batches_in(task: Task) -> Iterator[int]:
    with towline.connect(task.url) as mq:
        while True:
            mq.send_many("batches", [BODY] * 500)
            yield 500


def batches_out(task: Task) -> Iterator[int]:
    with towline.connect(task.url) as mq, mq.consumer("batches", group="batches") as consumer:
        while True:
            batch = consumer.pull(max_messages=2_000, wait=1.0)
            batch.ack()
            yield len(batch)


def fragments(task: Task) -> Iterator[int]:
    """Every second message of a batch is consumed; of the rest one half fails, the other is given back by leaving."""
    with towline.connect(task.url) as mq:
        while True:
            mq.send_many("fragments", [BODY] * 2_000)
            # What is lost because the machine stood still is no news.
            with mq.consumer("fragments", group="fragments", retry=QUICK, on_lost=lambda _: None) as consumer:
                batch = consumer.pull(max_messages=5_000, wait=1.0)
                for number, message in enumerate(batch):
                    if number % 2 == 0:
                        message.ack()
                    elif number % 4 == 1:
                        message.nack("every fourth")
                done = len(batch)
            yield done


def slow_readers(task: Task) -> Iterator[int]:
    """Connections that ask, and do not read what they are told. The broker cuts them off, and they come again."""
    readers: dict[int, tuple[RawClient, int]] = {}
    try:
        while True:
            for number in range(SLOW_READERS):
                try:
                    if number not in readers:
                        client = RawClient.hello(_port(task))
                        attached = client.call(Attach("batches", f"slow-{number}", f"slow-{number}"), Attached)
                        client.socket.settimeout(0.01)
                        readers[number] = client, attached.subscription
                    client, subscription = readers[number]
                    client.post(Pull(subscription, 1_000, 1 << 20, 0))
                except (OSError, AssertionError, TowlineError):
                    if number in readers:
                        readers.pop(number)[0].socket.close()
            yield len(readers)
    finally:
        for client, _ in readers.values():
            client.socket.close()


def visits(task: Task) -> Iterator[int]:
    """One of many groups after the other gets a message and consumes what there is."""
    with towline.connect(task.url) as mq:
        for number in cycle(range(0, max(1, task.groups), 7)):
            topic, group = _place(number)
            mq.send(topic, BODY)
            with mq.consumer(topic, group=group) as consumer:
                batch = consumer.pull(max_messages=1_000, wait=1.0)
                batch.ack()
            yield 1 + len(batch)


def prefix_in(task: Task) -> Iterator[int]:
    with towline.connect(task.url) as mq:
        while True:
            mq.send_many(_topic(random.randrange(max(1, task.topics))), [BODY] * 5)
            yield 5


def prefix_out(task: Task) -> Iterator[int]:
    with towline.connect(task.url, timeout=120) as mq, mq.consumer("many.*", group="prefix") as consumer:
        while True:
            batch = consumer.pull(max_messages=1_000, wait=1.0)
            batch.ack()
            yield len(batch)


def dedup(task: Task) -> Iterator[int]:
    """New ids, so many that all that fit come within a window, and now and then some again."""
    run = os.urandom(4).hex()
    numbers = count()
    with towline.connect(task.url) as mq:
        while True:
            ids = [f"{run}-{number:012}" for number in islice(numbers, AT_ONCE)]
            mq.send_many("dedup", [BODY] * len(ids), dedup_ids=ids)
            if random.random() < 0.1:
                mq.send_many("dedup", [BODY] * len(ids), dedup_ids=ids)
            yield len(ids)


def producers(task: Task) -> Iterator[int]:
    """Connections that come, send a message or two, and go."""
    while True:
        with towline.connect(task.url) as mq:
            mq.send("short", BODY)
            with mq.producer() as producer:
                producer.send("short", BODY)
        yield 2


def delays_in(task: Task) -> Iterator[int]:
    with towline.connect(task.url) as mq:
        while True:
            mq.send_many("delayed", [BODY] * AT_ONCE, delays=[random.uniform(1, 120) for _ in range(AT_ONCE)])
            yield AT_ONCE


def delays_out(task: Task) -> Iterator[int]:
    with towline.connect(task.url) as mq, mq.consumer("delayed", group="delayed") as consumer:
        while True:
            batch = consumer.pull(max_messages=1_000, wait=1.0)
            batch.ack()
            yield len(batch)


def transactions(task: Task) -> Iterator[int]:
    """At once, in two steps, and rolled back."""
    with towline.connect(task.url) as mq:
        for number in count():
            with mq.transaction() as tx:
                for topic in ("tx-one", "tx-two"):
                    tx.send(topic, BODY)
            with mq.prepare("soak", f"number-{number}") as prepared:
                prepared.send("tx-one", BODY)
                prepared.store()
                if number % 3 == 0:
                    prepared.rollback()
            yield 3


def failures(task: Task) -> Iterator[int]:
    """Messages that fail until they are dead letters."""
    twice = RetryPolicy(max_attempts=2, delays_s=(1,))
    with towline.connect(task.url) as mq, mq.consumer("failing", group="failing", retry=twice) as consumer:
        while True:
            mq.send_many("failing", [BODY] * 20)
            batch = consumer.pull(max_messages=100, wait=0.5)
            batch.nack("it always fails")
            yield len(batch)


def abandoned(task: Task) -> Iterator[int]:
    """A group whose one consumer has left its loop early, and a topic that goes on."""
    with towline.connect(task.url) as mq:
        mq.send_many(ABANDONED, [BODY] * AT_ONCE)
        with mq.consumer(ABANDONED, group=ABANDONED, idle_timeout=5.0) as consumer:
            for number, message in enumerate(consumer):
                message.ack()
                if number == 10:
                    break
        while True:
            mq.send_many(ABANDONED, [BODY] * 10)
            yield 10


def kills(task: Task) -> Iterator[int]:
    """Consumers that are killed while they hold messages."""
    while True:
        with towline.connect(task.url) as mq:
            mq.send_many("killed", [BODY] * AT_ONCE)
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            _be_killed(task, theirs)
        os.close(theirs)
        os.read(ours, 1)
        os.close(ours)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        yield AT_ONCE


def _be_killed(task: Task, holds: int) -> None:
    """In a process of its own: consume a part, hold the rest, and say so."""
    try:
        mq = towline.connect(task.url)
        consumer = mq.consumer("killed", group="killed", retry=QUICK)
        batch = consumer.pull(max_messages=AT_ONCE * 2, wait=2.0)
        for message in batch[: AT_ONCE // 2]:
            message.ack()
        consumer.flush()
        os.write(holds, b".")
        time.sleep(VICTIM_S)
    finally:
        os._exit(1)


LOADS: Final[Mapping[str, tuple[float, Load]]] = {
    "batches in": (4.0, batches_in),
    "batches out": (4.0, batches_out),
    "fragments": (0.5, fragments),
    "slow readers": (1.0, slow_readers),
    "visits": (5.0, visits),
    "prefix in": (20.0, prefix_in),
    "prefix out": (5.0, prefix_out),
    "dedup ids": (0.0, dedup),
    "short-lived producers": (5.0, producers),
    "delayed in": (1.0, delays_in),
    "delayed out": (2.0, delays_out),
    "transactions": (3.0, transactions),
    "failures": (2.0, failures),
    "abandoned group": (1.0, abandoned),
    "killed consumers": (0.2, kills),
}
"""By role, how many rounds a second are made, and how; 0 follows from what is asked for."""
