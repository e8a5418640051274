"""`python -m tests.console.pictures`: the pictures in docs/console, made anew from a broker where something goes on."""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, sync_playwright

import towline
from tests.console.browser import launch
from tests.console.process import ROOT, ConsoleProcess
from tests.inside.alarms import AlarmRule
from tests.inside.load import BrokerProcess
from towline.model import RetryPolicy

PAGES = {
    "overview": "/",
    "group": "/groups/orders/billing",
    "message": "/message/orders/middle/2",
    "dead": "/dead?topic=orders&group=billing",
}
WIDTHS = {1400: 900, 400: 860}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
SECONDS = 75.0
"""So much is to be seen in the charts."""
REASONS = ("CardDeclined: the bank said no", "TimeoutError: the ledger did not answer in 5 s", "KeyError: 'customer'")


def begin(mq: towline.Client) -> None:
    """A shop: one message with a story, dead letters, delayed ones, groups that lag."""
    mq.create_topic("orders", business_line="shop", author="mia", alarm_emails=["mia@example.com"])
    for n in range(40):
        body = b'{"order": %d, "customer": "c-%04d", "total": %d.90, "items": ["rope", "hook"]}' % (4400 + n, n * 37, n)
        mq.send("orders", body, key=f"order-{4400 + n}", headers={"source": "web", "traceparent": f"00-{n:032x}-01"})
    policy = RetryPolicy(3, (0.2,))
    with mq.consumer("orders", group="billing", name="billing-1", retry=policy) as consumer:
        for n in range(3):
            for message in consumer.pull(max_messages=40, wait=5):
                message.nack(REASONS[message.seq % 3]) if message.seq % 3 else message.dead(REASONS[0])
            consumer.flush()
            time.sleep(0.3 * (n < 2))
    for n in range(25):
        mq.send("reminders", b"pay", key=f"r-{n}", delay=3600 + 60 * n)
    mq.send_many("stock", [b"x" * 200] * 5_000)
    mq.put_alarm(AlarmRule("too-many-dead", "dead", 10, topic="orders", emails=("ops@example.com",)))


@contextmanager
def going_on(url: str) -> Iterator[None]:
    """People buy, and what they buy is billed, mostly; nobody counts the stock fast enough."""
    over = threading.Event()

    def sell() -> None:
        with towline.connect(url, token="shop") as mq:
            for n in itertools.count():
                if over.wait(0.25):
                    return
                mq.send_many("orders", [b'{"order": %d}' % n] * (80 + 60 * (n // 12 % 2)))
                mq.send_many("stock", [b"x" * 200] * 60)

    def work(topic: str, group: str, name: str, share: float) -> None:
        with towline.connect(url) as mq, mq.consumer(topic, group=group, name=name) as consumer:
            while not over.is_set():
                for message in consumer.pull(max_messages=40, wait=0.5):
                    message.nack(REASONS[1]) if message.seq % 997 == 0 else message.ack()
                time.sleep(share)

    jobs = [
        threading.Thread(target=sell),
        *(threading.Thread(target=work, args=("orders", "billing", f"billing-{n}", 0.2)) for n in (1, 2)),
        threading.Thread(target=work, args=("orders", "shipping", "shipping-1", 0.05)),
        threading.Thread(target=work, args=("stock", "count", "count-1", 0.4)),
    ]
    for job in jobs:
        job.start()
    try:
        yield
    finally:
        over.set()
        for job in jobs:
            job.join()


def take(browser: Browser, url: str, folder: Path) -> None:
    for (width, height), scheme in itertools.product(WIDTHS.items(), SCHEMES):
        context = browser.new_context(
            base_url=url, viewport={"width": width, "height": height}, color_scheme=scheme, timezone_id="Europe/Berlin"
        )
        page = context.new_page()
        page.goto("/")  # the zone is told once
        for name, path in PAGES.items():
            page.goto(path)
            page.wait_for_function("() => window.socket && window.socket.connected")
            page.wait_for_timeout(6_000 if name in ("overview", "group") else 2_500)  # charts draw themselves
            page.screenshot(path=folder / f"{name}-{width}-{scheme}.png")
        context.close()


def main() -> None:
    folder = ROOT / "docs" / "console"
    with (
        tempfile.TemporaryDirectory() as scratch,
        BrokerProcess(f"file:{scratch}/data", durability="os", log_level="error", name="harbour") as broker,
    ):
        with towline.connect(broker.url, token="shop") as mq:
            begin(mq)
        with ConsoleProcess(broker.url, Path(scratch)) as console, going_on(broker.url):
            time.sleep(SECONDS)
            with sync_playwright() as playwright:
                browser = launch(playwright)
                take(browser, console.url, folder)
                browser.close()


if __name__ == "__main__":
    main()
