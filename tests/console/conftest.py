"""One browser, one broker and one console for all tests of the pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

import towline
from tests.console.browser import launch
from tests.console.process import ConsoleProcess
from tests.console.resting_page import PATIENCE_MS, come_to_rest, visitor
from tests.inside.load import BrokerProcess
from towline.model import RetryPolicy

ZONE = "Asia/Kolkata"

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For one file only: while it is open, its event loop counts as running, and no other test could run one."""
    with sync_playwright() as playwright:
        found = launch(playwright)
        yield found
        found.close()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    store = tmp_path_factory.mktemp("console") / "data"
    with BrokerProcess(f"file:{store}", durability="os", log_level="error", name="harbour") as process:
        yield process


@pytest.fixture(scope="session")
def console(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    with ConsoleProcess(broker.url, tmp_path_factory.mktemp("console-process")) as process:
        yield process
        assert "Traceback" not in process.log, process.log


@pytest.fixture
def mq(broker: BrokerProcess) -> Iterator[towline.Client]:
    with towline.connect(broker.url, token="shop") as client:
        yield client


Visit = Callable[[str], Page]


@pytest.fixture
def visit(browser: Browser, console: ConsoleProcess) -> Iterator[Visit]:
    """Open a page of the console. Whatever leaves this machine, and every error in the page, fails the test."""
    with visitor(browser, console.url, timezone_id=ZONE) as context:
        yield from watched(context.new_page(), console.url)


def watched(page: Page, url: str) -> Iterator[Visit]:
    elsewhere: list[str] = []
    errors: list[str] = []

    def asked(request: Request) -> None:
        if not request.url.startswith((url, "data:", "blob:")):
            elsewhere.append(request.url)

    page.on("request", asked)
    page.on(
        "websocket",
        lambda socket: None if socket.url.startswith(url.replace("http", "ws")) else elsewhere.append(socket.url),
    )
    page.on("pageerror", lambda error: errors.append(str(error)))

    def go(path: str) -> Page:
        come_to_rest(page)
        page.goto(path)
        page.wait_for_function("() => document.cookie.includes('towline_zone=')")
        page.wait_for_function("() => window.socket === undefined || window.socket.connected")
        return page

    yield go
    come_to_rest(page)
    assert elsewhere == []
    assert errors == []


def bury(mq: towline.Client, topic: str, count: int, reason: str = "no such customer", group: str = "billing") -> None:
    """Send messages, and give them up."""
    mq.send_many(topic, [b'{"n": %d}' % n for n in range(count)], keys=[f"k-{n}" for n in range(count)])
    with mq.consumer(topic, group=group, retry=RetryPolicy(1, (0,))) as consumer:
        left = count
        while left:
            for message in consumer.pull(max_messages=count, wait=60):
                message.dead(reason)
                left -= 1
        consumer.flush()
