"""A program that uses a broker in all ways, with whichever version of Towline is on its path.

python errands.py URL          does all of it, and asserts that it comes out as it should
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import towline
from towline.model import RetryPolicy

WAIT_S = 30.0


def main(url: str) -> None:
    with towline.connect(url) as mq:
        for errand in (_plain, _attempts, _delayed, _transactions, _ordered, _prefix, _broadcast, _looked_at):
            errand(mq)
    asyncio.run(_handlers(url))
    print("done")


def _bodies(consumer: Any, count: int) -> list[bytes]:
    """So many messages, acked."""
    found: list[bytes] = []
    until = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < until, found
        batch = consumer.pull(wait=1)
        found += batch.bodies()
        batch.ack()
    return found


def _plain(mq: Any) -> None:
    with mq.consumer("plain", group="g") as consumer:
        mq.send("plain", b"one", key="k")
        mq.send_many("plain", [b"%d" % number for number in range(1000)])
        assert _bodies(consumer, 1001) == [b"one", *(b"%d" % number for number in range(1000))]


def _attempts(mq: Any) -> None:
    """Every third is nacked, which scatters them."""
    with mq.consumer("tried", group="g", retry=RetryPolicy(delays_s=(0.1,), max_attempts=3)) as consumer:
        mq.send_many("tried", [b"%d" % number for number in range(300)])
        again: list[tuple[bytes, int]] = []
        seen = 0
        until = time.monotonic() + WAIT_S
        while seen < 300 or len(again) < 100:
            assert time.monotonic() < until, (seen, again)
            for message in consumer.pull(wait=1):
                if message.attempt > 1:
                    again.append((bytes(message.body), message.attempt))
                    message.ack()
                elif int(message.body) % 3:
                    seen += 1
                    message.ack()
                else:
                    seen += 1
                    message.nack(reason="not yet")
        assert sorted(again, key=lambda one: int(one[0])) == [(b"%d" % number, 2) for number in range(0, 300, 3)]
        mq.send("tried", b"never")
        [message] = consumer.pull(wait=WAIT_S)
        message.dead("hopeless")
    [letter] = mq.dead_letters("tried", "g")
    assert bytes(letter.body) == b"never"


def _delayed(mq: Any) -> None:
    with mq.consumer("later", group="g") as consumer:
        begun = time.monotonic()
        mq.send("later", b"soon", delay=0.5)
        assert _bodies(consumer, 1) == [b"soon"]
        assert time.monotonic() - begun >= 0.49


def _transactions(mq: Any) -> None:
    with mq.consumer("both", group="g") as consumer:
        with mq.transaction() as tx:
            tx.send("both", b"left")
            tx.send("both", b"right")
        with mq.prepare("shop", name="order-1") as prepared:
            prepared.send("both", b"prepared")
            prepared.store()
        assert _bodies(consumer, 3) == [b"left", b"right", b"prepared"]
    first = mq.send("both", b"once", dedup_id="d1")
    assert mq.send("both", b"once", dedup_id="d1").id == first.id


def _ordered(mq: Any) -> None:
    mq.create_topic("ordered", shards=4)
    for number in range(40):
        mq.send("ordered", b"%d" % number, key=f"k{number % 4}")
    with mq.consumer("ordered", group="g") as consumer:
        bodies = [int(body) for body in _bodies(consumer, 40)]
    for key in range(4):
        assert [number for number in bodies if number % 4 == key] == list(range(key, 40, 4))


def _prefix(mq: Any) -> None:
    for name in ("many.a", "many.b"):
        mq.send(name, name.encode())
    with mq.consumer("many.*", group="g", start="earliest") as consumer:
        assert sorted(_bodies(consumer, 2)) == [b"many.a", b"many.b"]
        mq.send("many.c", b"many.c")
        assert _bodies(consumer, 1) == [b"many.c"]


def _broadcast(mq: Any) -> None:
    mq.send("news", b"before")
    with mq.consumer("news", start="latest") as one, mq.consumer("news", name="cache-1", start="latest") as two:
        mq.send("news", b"now")
        assert _bodies(one, 1) == _bodies(two, 1) == [b"now"]


def _looked_at(mq: Any) -> None:
    assert {topic.config.name for topic in mq.topics()} >= {"plain", "tried", "later", "both", "ordered", "news"}
    assert mq.group("tried", "g").dead == 1
    assert [state.state for state in mq.brokers()][:1] == ["alive"]
    mq.pause("plain", "g")
    mq.resume("plain", "g")
    mq.seek("plain", "g", "earliest")
    assert mq.group("plain", "g").lag == 1001
    mq.delete_topic("news")


async def _handlers(url: str) -> None:
    app = towline.App(url)
    seen: list[bytes] = []
    over = asyncio.Event()

    @app.on("handled", group="g", retry=RetryPolicy(delays_s=(0.1,)))
    def handle(message: Any) -> None:
        if message.attempt == 1:
            raise ValueError(message.body)
        seen.append(bytes(message.body))
        if len(seen) == 10:
            loop.call_soon_threadsafe(over.set)

    loop = asyncio.get_running_loop()
    async with app, towline.aio.connect(url) as mq:
        await mq.send_many("handled", [b"%d" % number for number in range(10)])
        await asyncio.wait_for(over.wait(), WAIT_S)
    assert sorted(seen) == [b"%d" % number for number in range(10)]


if __name__ == "__main__":
    main(sys.argv[1])
