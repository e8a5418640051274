"""Whatever is in a message, it is shown and does nothing."""

from __future__ import annotations

import re

from playwright.sync_api import expect

import towline
from tests.console.conftest import Visit, bury
from tests.eventually import eventually
from tests.inside.console import HEAD_BYTES, Form, guess, plain, preview, render

SCRIPT = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>{{ 7 * 7 }}"
BODIES = {
    "script": SCRIPT.encode(),
    "json": ('{"a": "' + SCRIPT.replace('"', "'") + '"}').encode(),
    "control": bytes(range(32)) + b"text \x1b[31mred\x7f",
    "bidi": "abc\u202egpj.exe\u2066\u200b".encode(),
    "broken": b"caf\xe9 \xff\xfe" * 3,
    "empty": b"",
    "deep": b"[" * 20_000 + b"]" * 20_000,
}


def test_hostile_bodies_keys_headers_and_reasons_are_shown_harmlessly(visit: Visit, mq: towline.Client) -> None:
    mq.send_many(
        "hostile", list(BODIES.values()), keys=[SCRIPT] * len(BODIES), headers={"<b>x</b>": SCRIPT, "y": "a\r\nb\x00"}
    )
    page = visit("/messages?topic=hostile")
    expect(page.locator("tbody tr")).to_have_count(len(BODIES))
    expect(page.get_by_text("<script>window.hacked").first).to_be_visible()
    for seq in range(len(BODIES)):
        page = visit(f"/message/hostile/middle/{seq}")
        expect(page.locator(".tl-pre")).to_be_visible()
        for form in ("Text", "Hex", "JSON"):
            page.get_by_role("button", name=form, exact=True).click()
        expect(page.get_by_text("<b>x</b>")).to_be_visible()
        assert page.evaluate("window.hacked") is None
    bury(mq, "hostile-dead", 1, reason=SCRIPT)
    eventually(lambda: mq.group("hostile-dead", "billing").dead == 1)
    page = visit("/dead?topic=hostile-dead&group=billing")
    expect(page.get_by_text("<script>window.hacked").first).to_be_visible()
    page = visit("/dead/hostile-dead/billing/0")
    expect(page.get_by_text("<script>window.hacked").first).to_be_visible()
    expect(page.get_by_text("49", exact=True)).to_have_count(0)
    assert page.evaluate("window.hacked") is None


def test_ten_megabytes_are_shown_in_part_and_downloaded_whole(visit: Visit, mq: towline.Client) -> None:
    body = b"0123456789abcdef" * (10 << 16)
    mq.send("large", body)
    page = visit("/message/large/middle/0")
    expect(page.get_by_text("32.0 KiB of 10.0 MiB are shown")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.path().read_bytes() == body
    expect(visit("/messages?topic=large").get_by_text("10.0 MiB")).to_be_visible()


def test_bodies_are_cut_and_cleaned_before_they_reach_the_browser() -> None:
    assert {name: guess(body) for name, body in BODIES.items()} == {
        "script": "text", "json": "json", "control": "hex", "bidi": "text", "broken": "hex", "empty": "text",
        "deep": "text",
    }  # fmt: skip
    for body in (*BODIES.values(), b"x" * (10 << 20)):
        forms: tuple[Form, ...] = ("json", "text", "hex")
        for form in forms:
            shown, left = render(body[:HEAD_BYTES], form, len(body))
            assert (shown, left) == render(body, form, len(body))
            assert guess(body[:HEAD_BYTES]) == guess(body)
            assert len(shown) < 400_000
            assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]", shown)
        assert len(preview(body)) <= 400
    assert plain("a\x00b\u202ec") == "a␀b⟨U+202E⟩c"
