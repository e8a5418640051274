"""The browser that visits the console."""

from __future__ import annotations

from playwright.sync_api import Browser, Playwright

from tests.console.resting_page import PATIENCE_MS
from tests.parts import find_browser, need

__all__ = ["launch"]


def launch(playwright: Playwright) -> Browser:
    """Chromium or Chrome of this machine, or else Playwright's own."""
    need("browser")
    return playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"], timeout=4 * PATIENCE_MS)
