"""Pages of the browser that are left only when they have come to rest.

Chromium does not always answer when a page is closed, or sent elsewhere, in the moment in which it goes to another
page by itself; the test would wait for ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Error, Page
from playwright.sync_api import TimeoutError as Late

PATIENCE_MS = 60_000
LEAVING_MS = 10_000
SEE_IT_LEAVE = """navigation.addEventListener("navigate", event => {
    if (!event.destination.sameDocument && event.downloadRequest === null) window.leaving = true;
})"""
STOP_LISTENING = """() => {
    if (window.socket) window.socket.disconnect();
    return window.leaving === true || document.readyState !== "complete";
}"""
ARRIVED = """() => window.leaving !== true && document.readyState === "complete" """


def come_to_rest(page: Page) -> None:
    """The console sends a page elsewhere through its socket: once that is closed, and the page is where it was sent
    last, it stays there."""
    for _ in range(20):
        try:
            if not page.evaluate(STOP_LISTENING):
                return
            page.wait_for_function(ARRIVED, timeout=LEAVING_MS)
        except Late:
            page.evaluate("() => { window.leaving = false; }")  # what it went to was a file to be saved
        except Error as error:
            if "context was destroyed" not in error.message:
                raise
    raise AssertionError(f"{page.url} goes from page to page without end")


def leave(page: Page) -> None:
    come_to_rest(page)
    page.close()


@contextmanager
def visitor(browser: Browser, url: str, **options: Any) -> Iterator[BrowserContext]:
    """Somebody with a browser of their own, who has nothing open in the end."""
    context = browser.new_context(base_url=url, viewport={"width": 1400, "height": 900}, **options)
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(SEE_IT_LEAVE)
    yield context
    for page in context.pages:
        leave(page)
    context.close()
