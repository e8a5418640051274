"""A shop as a process of its own, to be killed at any moment: `python -m tests.system.crash.shop URL LEDGER NAME`.

Each order is a prepared transaction: its messages are stored with the broker, then the order is written to the ledger,
which is the shop's own database, then the transaction is committed or, every third time, rolled back without a word in
the ledger."""

from __future__ import annotations

import itertools
import os
import sys

import towline


def main() -> None:
    url, ledger, shop = sys.argv[1:]
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with towline.connect(url, timeout=60.0) as mq:
        print("open", flush=True)
        for number in itertools.count():
            order = f"{shop}-{number}"
            tx = mq.prepare("shop", name=order)
            tx.send("orders", order.encode())
            tx.send("stock", order.encode(), priority="high")
            tx.store()
            if number % 3 == 2:
                tx.rollback()
                continue
            os.write(descriptor, order.encode() + b"\n")
            tx.commit()


if __name__ == "__main__":
    main()
