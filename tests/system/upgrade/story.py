"""What a program of the version before did while `record.py` listened; it left something of everything behind.

python story.py URL
"""

from __future__ import annotations

import sys

import towline
from towline.model import RetryPolicy

YEARS_S = 90 * 365 * 86400.0


def main(url: str) -> None:
    with towline.connect(url) as mq:
        mq.send_many("orders", [b"order %d" % number for number in range(20)], keys=[f"k{n % 3}" for n in range(20)])
        mq.send("orders", b"urgent", priority="high", key="k0", headers={"colour": "red"})
        mq.send("orders", b"once", dedup_id="d1")
        mq.send("orders", b"in a lifetime", delay=YEARS_S, key="late")
        with mq.transaction() as tx:
            tx.send("orders", b"both")
            tx.send("stock", b"both")
        prepared = mq.prepare("shop", name="order-1")
        prepared.send("orders", b"prepared")
        prepared.store()
        mq.create_topic("ordered", shards=2)
        mq.send_many("ordered", [b"%d" % number for number in range(6)], keys=[f"k{n % 2}" for n in range(6)])
        retry = RetryPolicy(delays_s=(YEARS_S / 90,), max_attempts=5)
        with mq.consumer("orders", group="billing", name="c1", retry=retry) as consumer:
            batch = list(consumer.pull(max_messages=8, wait=10))
            for message in batch[:5]:
                message.ack()
            batch[5].nack(reason="try again in a year")
            batch[6].dead("hopeless")
        print(*(message.body.decode() for message in batch), sep=",")


if __name__ == "__main__":
    main(sys.argv[1])
