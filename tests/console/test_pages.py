"""Every page, driven in a real browser against a real broker."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import Page, expect

import towline
from tests.console.conftest import Visit, bury
from tests.eventually import eventually
from towline.model import RetryPolicy

PAGES = {
    "/": "Overview", "/topics": "Topics", "/groups": "Groups", "/messages": "Messages", "/dead": "Dead letters",
    "/delayed": "Delayed", "/transactions": "Transactions", "/cluster": "Cluster", "/alarms": "Alarms",
    "/access": "Access", "/audit": "Audit",
}  # fmt: skip


def sure(page: Page, word: str = "") -> None:
    """Answer the question whether it is meant."""
    dialog = page.get_by_role("dialog").last
    if word:
        dialog.get_by_role("textbox").first.fill(word)
    dialog.get_by_role("button").last.click()


@pytest.mark.parametrize("path", PAGES)
def test_every_page_opens_with_its_title_and_fits_a_narrow_screen(visit: Visit, path: str) -> None:
    page = visit(path)
    expect(page.get_by_role("heading", level=1)).to_have_text(PAGES[path])
    expect(page.locator('nav a[aria-current="page"]')).to_have_count(1)
    page.set_viewport_size({"width": 400, "height": 800})
    page.wait_for_function("() => document.documentElement.scrollWidth <= 400")


def test_a_topic_is_made_sent_to_and_its_message_looked_at(visit: Visit, mq: towline.Client) -> None:
    page = visit("/topics")
    page.get_by_role("button", name="New topic").click()
    page.get_by_label("Name", exact=True).fill("orders")
    page.get_by_label("Business line", exact=True).fill("Shop")
    page.get_by_label("Author").fill("Mia")
    page.get_by_role("button", name="Make it").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")
    expect(page.get_by_text("Shared, with three priorities")).to_be_visible()
    assert mq.topic("orders").config.business_line == "Shop"

    page.get_by_role("button", name="Send").click()
    page.get_by_label("Body").fill('{"order": 4423}')
    page.get_by_label("Key").fill("order-4423")
    page.get_by_label("Headers").fill("source=console")
    page.get_by_role("dialog").get_by_role("button", name="Send").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("orders/middle/0")
    expect(page.locator(".tl-pre")).to_have_text('{\n  "order": 4423\n}')
    expect(page.get_by_text("order-4423")).to_be_visible()
    expect(page.get_by_text("No group consumes this topic")).to_be_visible()
    page.get_by_role("button", name="Hex").click()
    expect(page.locator(".tl-pre")).to_contain_text("7b 22 6f 72 64 65 72 22")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.path().read_bytes() == b'{"order": 4423}'
    assert download.value.suggested_filename == "orders-middle-0.bin"
    page.get_by_role("button", name="Send again").click()
    sure(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("orders/middle/1")
    assert mq.message("orders/middle/1").body == b'{"order": 4423}'


def test_times_are_in_the_viewers_zone(visit: Visit, mq: towline.Client) -> None:
    mq.send("zones", b"x")
    at = mq.message("zones/middle/0").appended_at_us / 1e6
    shown = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at + 5.5 * 3600))
    expect(visit("/message/zones/middle/0").get_by_text(shown).first).to_be_visible()


def test_messages_are_browsed_found_and_followed(visit: Visit, mq: towline.Client) -> None:
    mq.send_many("browse", [f"body {n}".encode() for n in range(100)], keys=[f"k-{n % 10}" for n in range(100)])
    page = visit("/messages?topic=browse")
    expect(page.get_by_text("body 99")).to_be_visible()
    page.get_by_role("button", name="Older").click()
    expect(page.get_by_text("body 74")).to_be_visible()
    page.get_by_label("From number or time").fill("10")
    page.get_by_role("button", name="Look").click()
    expect(page.get_by_role("link", name="middle/10", exact=True)).to_be_visible()
    page.get_by_label("From number or time").fill("")
    page.get_by_label("Key").fill("k-7")
    page.get_by_role("button", name="Look").click()
    expect(page.get_by_text("10 found")).to_be_visible()
    expect(page.get_by_role("link", name="middle/97", exact=True)).to_be_visible()
    page.get_by_role("switch").click()
    mq.send("browse", b"came just now")
    expect(page.get_by_text("came just now")).to_be_visible()
    assert mq.topic("browse").groups == [], "looking makes no group"


def test_a_message_that_was_delayed_is_shown_in_its_lane(visit: Visit, mq: towline.Client) -> None:
    sent = mq.send("reminders", b"it is time", delay=0.05)
    with mq.consumer("reminders", group="bell") as consumer:
        consumer.pull(wait=60).ack()
        consumer.flush()
    page = visit(f"/message/{sent.id}")
    expect(page.get_by_role("heading", level=1)).to_have_text("reminders/middle/0")
    expect(page.get_by_text(f"It waited as {sent.id}")).to_be_visible()
    expect(page.get_by_text("SUCCESS", exact=True)).to_be_visible()


def test_a_failed_message_is_traced_mended_and_sent_again(visit: Visit, mq: towline.Client) -> None:
    mq.send("payments", b"broken", key="p-1")
    with mq.consumer("payments", group="ledger", retry=RetryPolicy(2, (0,))) as consumer:
        for reason in ("first failure", "the bank said no"):
            (message,) = consumer.pull(wait=60)
            message.nack(reason)
            consumer.flush()
    eventually(lambda: mq.group("payments", "ledger").dead == 1)
    page = visit("/message/payments/middle/0")
    expect(page.get_by_text("DEAD", exact=True)).to_be_visible()
    expect(page.locator(".tl-line li")).to_have_count(5)
    expect(page.get_by_text("first failure")).to_be_visible()
    page.get_by_role("link", name="dead letter 0").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Dead letter 0")
    page.get_by_role("button", name="Edit and send").click()
    page.get_by_label("Body").fill("mended")
    page.get_by_role("dialog").get_by_role("button", name="Send").click()
    expect(page.get_by_text("sent again", exact=True)).to_be_visible()
    with mq.consumer("payments", group="ledger") as consumer:
        (message,) = consumer.pull(wait=60)
        assert message.body == b"mended"
        message.ack()


def test_dead_letters_are_filtered_exported_and_sent_again_at_a_rate(visit: Visit, mq: towline.Client) -> None:
    bury(mq, "invoices", 40)
    bury(mq, "invoices", 3, reason="TimeoutError: too slow")
    eventually(lambda: mq.group("invoices", "billing").dead == 43)
    page = visit("/dead")
    page.get_by_role("row", name=re.compile("billing.*invoices")).get_by_role("link").click()
    expect(page.get_by_text("43 dead letters of group billing on topic invoices")).to_be_visible()
    expect(page.get_by_role("link", name="no such customer")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="Export").click()
    assert len(download.value.path().read_bytes().splitlines()) == 43
    page.get_by_label("Reason contains").fill("too slow")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("tbody tr")).to_have_count(3)
    page.locator("tbody tr").first.get_by_role("checkbox").click()
    page.get_by_role("button", name="Send selected again").click()
    sure(page)
    expect(page.get_by_text("1 of 1 sent again, 0 failed: done")).to_be_visible()
    eventually(lambda: mq.group("invoices", "billing").dead == 42)

    page = visit("/dead?topic=invoices&group=billing")
    page.get_by_role("button", name="Send all again").click()
    page.get_by_label("Messages a second").fill("1000")
    page.get_by_role("button", name="Begin").click()
    expect(page.get_by_text("42 of 42 sent again, 0 failed: done")).to_be_visible()
    assert mq.group("invoices", "billing").dead == 0


def test_a_group_is_watched_paused_moved_and_its_consumer_kicked(visit: Visit, mq: towline.Client) -> None:
    mq.send_many("stock", [b"x"] * 50)
    with mq.consumer("stock", group="count", name="worker-1") as consumer:
        consumer.pull(max_messages=20, wait=60).ack()
        consumer.pull(max_messages=5, wait=60)
        page = visit("/groups")
        page.get_by_label("Search").fill("count")
        page.get_by_role("link", name="count", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text("count")
        expect(page.get_by_text("worker-1")).to_be_visible()
        page.get_by_role("button", name="Kick").click()
        sure(page)
        eventually(lambda: mq.group("stock", "count").in_flight == 0)
    page.get_by_role("button", name="Pause").click()
    page.get_by_label("Why").fill("deploying")
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.get_by_text("paused: deploying")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()

    page.get_by_role("button", name="Move").click()
    page.get_by_label("Where to").click()
    page.get_by_role("option", name="To sequence numbers").click()
    page.get_by_label("Time (2026").fill("middle=10")
    page.get_by_role("button", name="See what it means").click()
    expect(page.get_by_text("15 messages delivered again, 0 passed over.")).to_be_visible()
    page.get_by_role("dialog").get_by_role("button", name="Move", exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(2)  # the question comes on top
    sure(page)
    eventually(lambda: mq.group("stock", "count").lag == 40)
    page = visit("/groups/stock/count")
    page.get_by_role("button", name="More").click()
    page.get_by_text("Skip the backlog").click()
    expect(page.get_by_text("40 messages passed over")).to_be_visible()
    sure(page, "count")
    eventually(lambda: mq.group("stock", "count").lag == 0)


def test_delayed_messages_are_moved_and_cancelled(visit: Visit, mq: towline.Client) -> None:
    for n in range(3):
        mq.send("reminders", b"pay", key=f"r-{n}", delay=3600 + n)
    page = visit("/delayed?topic=reminders")
    expect(page.locator("tbody tr")).to_have_count(3)
    page.get_by_role("row", name=re.compile("r-0")).get_by_role("checkbox").click()
    page.get_by_role("button", name="Cancel selected").click()
    sure(page)
    expect(page.locator("tbody tr")).to_have_count(2)
    assert [one.key for one in mq.delayed("reminders")] == ["r-1", "r-2"]
    page.get_by_role("row", name=re.compile("r-1")).get_by_role("checkbox").click()
    page.get_by_role("button", name="Move selected").click()
    page.get_by_label("Time, as").fill("2030-01-31 14:30")
    page.get_by_role("dialog").get_by_role("button", name="Move", exact=True).click()
    expect(page.get_by_text("2030-01-31 14:30:00")).to_be_visible()
    assert mq.delayed("reminders")[-1].deliver_at.isoformat() == "2030-01-31T09:00:00+00:00"


def test_a_stuck_transaction_is_decided(visit: Visit, mq: towline.Client) -> None:
    prepared = mq.prepare("shop", name="order-4711")
    prepared.send("shipping", b"parcel")
    prepared.store()
    page = visit("/transactions")
    page.get_by_role("row", name=re.compile("order-4711")).get_by_role("checkbox").click()
    page.get_by_role("button", name="Commit").click()
    sure(page)
    expect(page.get_by_text("No transactions wait")).to_be_visible()
    assert mq.message("shipping/middle/0").body == b"parcel"


def test_an_alarm_is_made_rings_and_is_removed(visit: Visit, mq: towline.Client) -> None:
    bury(mq, "alarming", 2)
    eventually(lambda: mq.group("alarming", "billing").dead == 2)
    page = visit("/alarms")
    page.get_by_role("button", name="New rule").click()
    page.get_by_label("Name", exact=True).fill("too-many-dead")
    page.get_by_label("From", exact=True).fill("2")
    page.get_by_label("Topic (name").fill("alarming")
    page.get_by_label("E-mails", exact=True).fill("ops@example.com")
    page.get_by_role("button", name="Save").click()
    eventually(lambda: mq.pulse().now["dead"] and any(one.topic == "alarming" for one in mq.alarms().active))
    page = visit("/alarms")
    expect(page.get_by_text("alarming · billing")).to_be_visible()
    expect(page.get_by_text("knows no mail server")).to_be_visible()
    expect(visit("/").get_by_role("alert")).to_contain_text("too-many-dead")
    page = visit("/alarms")
    page.get_by_role("button", name="Rule too-many-dead").click()
    page.get_by_text("Silence …").click()
    page.get_by_label("Why").fill("they are known")
    page.get_by_role("dialog").get_by_role("button", name="Silence").click()
    expect(page.get_by_text("silenced until")).to_have_count(2)  # at the rule, and at the alarm
    expect(page.get_by_text("they are known")).to_be_visible()
    assert mq.alarms().rules[0].silence_reason == "they are known"
    expect(visit("/").get_by_text("1 alarm, silenced")).to_be_visible()
    page = visit("/alarms")
    page.get_by_role("button", name="Rule too-many-dead").click()
    page.get_by_text("End the silence").click()
    expect(page.get_by_text("silenced until").filter(visible=True)).to_have_count(0)
    page.get_by_role("button", name="Rule too-many-dead").click()
    page.get_by_text("Remove …").click()
    sure(page)
    eventually(lambda: not mq.alarms().rules)


def test_a_topic_is_purged_and_deleted_only_when_its_name_is_typed(visit: Visit, mq: towline.Client) -> None:
    mq.send_many("doomed", [b"x"] * 5)
    page = visit("/topics/doomed")
    page.get_by_role("button", name="More").click()
    page.get_by_text("Purge …").click()
    expect(page.get_by_text("5 messages (")).to_be_visible()
    sure(page, "doome")
    expect(page.get_by_text("That is not doomed.")).to_be_visible()
    sure(page, "doomed")
    eventually(lambda: sum(lane.end - lane.first for lane in mq.topic("doomed").lanes) == 0)
    page = visit("/topics/doomed")
    page.get_by_role("button", name="More").click()
    page.get_by_text("Delete …").click()
    sure(page, "doomed")
    expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
    with pytest.raises(towline.NotFound):
        mq.topic("doomed")


def test_keys_lead_to_pages_and_into_the_search(visit: Visit) -> None:
    page = visit("/")
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
    page.wait_for_function("() => window.socket === undefined || window.socket.connected")
    page.keyboard.press("/")
    page.keyboard.type("nothing-like-this")
    expect(page.get_by_text("No topics")).to_be_visible()


def test_what_is_not_there_is_said_where_the_page_would_be(visit: Visit) -> None:
    for path in ("/topics/nowhere", "/groups/nowhere/x", "/message/nowhere/middle/0", "/dead/nowhere/x/0"):
        expect(visit(path).get_by_text("There is no such thing")).to_be_visible()


def test_light_and_dark_can_be_chosen(visit: Visit) -> None:
    page = visit("/topics")
    before = page.evaluate("document.body.classList.contains('body--dark')")
    page.get_by_role("button", name="Light or dark").click()
    page.wait_for_function(f"() => document.body.classList.contains('body--dark') === {'false' if before else 'true'}")
