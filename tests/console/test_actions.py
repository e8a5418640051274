"""Everything that a button or a menu of the console does to a broker, in a browser: refused, readably, to those who may
not; done for those who may; and refused again once the role was taken from them.

The buttons are read off the source of the pages, so that one without a row fails. What each call to the broker needs,
and every page, is held against all roles in tests/broker/access/test_console_matrix.py."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.broker.access.expected import CLUSTER, Need, granted, group, topic
from tests.broker.access.secured import PASSWORD, Secured
from tests.broker.access.secured import secured as secured_broker
from tests.console.conftest import bury
from tests.console.process import ConsoleProcess
from tests.console.resting_page import leave, visitor
from tests.eventually import eventually
from tests.inside.alarms import AlarmRule
from tests.inside.console import pages
from towline.model import GroupConfig

SEER = ["viewer", "consumer"]
"""Sees everything, bodies as well, and may change nothing."""
ORDERS, BILLING = topic("orders"), group("billing")
ALTER_GROUP: list[Need] = [("alter", BILLING), ("describe", ORDERS)]
ALTER_CLUSTER: list[Need] = [("alter", CLUSTER)]


class Deed(NamedTuple):
    request: str
    """What the audit log calls it; sending is not in there."""
    path: str
    needs: list[Need]
    begin: Callable[[Page], None]
    """Up to where the broker is asked."""


def press(name: str) -> Callable[[Page], None]:
    return lambda page: page.get_by_role("button", name=re.compile(f"^{re.escape(name)}")).first.click()


def choose(menu: str, item: str) -> Callable[[Page], None]:
    def do(page: Page) -> None:
        page.get_by_role("button", name=menu).click()
        page.locator(".q-menu .q-item:visible").filter(has_text=item).click()

    return do


def fill(**fields: str) -> Callable[[Page], None]:
    def do(page: Page) -> None:
        for label, value in fields.items():
            page.get_by_role("dialog").get_by_label(label.replace("_", " ")).first.fill(value)

    return do


def go_on(label: str) -> Callable[[Page], None]:
    return lambda page: page.get_by_role("dialog").last.get_by_role("button", name=label, exact=True).click()


def pick(page: Page) -> None:
    page.locator("tbody tr").first.get_by_role("checkbox").click()


def word(text: str) -> Callable[[Page], None]:
    return lambda page: page.get_by_role("dialog").get_by_label(f"Type {text}").fill(text)


def then(*steps: Callable[[Page], None]) -> Callable[[Page], None]:
    def do(page: Page) -> None:
        for step in steps:
            step(page)

    return do


DEEDS: dict[tuple[str, str], Deed] = {
    ("topics", "New topic"): Deed(
        "CreateTopic",
        "/topics",
        [("create", topic("made"))],
        then(press("New topic"), fill(Name="made"), go_on("Make it")),
    ),
    ("topics", "Send"): Deed(
        "", "/topics/orders", [("send", ORDERS)], then(press("Send"), fill(Body="x"), go_on("Send"))
    ),
    ("topics", "Edit …"): Deed(
        "PutTopic",
        "/topics/orders",
        [("alter", ORDERS)],
        then(choose("More", "Edit"), fill(Author="mia"), go_on("Save")),
    ),
    ("topics", "Purge …"): Deed(
        "Purge",
        "/topics/purged",
        [("delete", topic("purged"))],
        then(choose("More", "Purge"), word("purged"), go_on("Purge")),
    ),
    ("topics", "Delete …"): Deed(
        "DeleteTopic",
        "/topics/doomed",
        [("delete", topic("doomed"))],
        then(choose("More", "Delete"), word("doomed"), go_on("Delete")),
    ),
    ("groups", "Pause"): Deed("Pause", "/groups/orders/billing", ALTER_GROUP, then(press("Pause"), go_on("Pause"))),
    ("groups", "Resume"): Deed("Pause", "/groups/orders/paused", ALTER_GROUP, press("Resume")),
    ("groups", "Move …"): Deed(
        "Seek",
        "/groups/orders/billing",
        ALTER_GROUP,
        then(
            press("Move"),
            fill(**{"Time_(2026": "2026-01-31 14:30"}),
            press("See what it means"),
            lambda page: expect(page.get_by_text("delivered again")).to_be_visible(),
            go_on("Move"),
            lambda page: expect(page.get_by_role("dialog")).to_have_count(2),
            go_on("Move"),
        ),
    ),
    ("groups", "Change the policy …"): Deed(
        "PutGroup", "/groups/orders/billing", ALTER_GROUP, then(choose("More", "policy"), go_on("Save"))
    ),
    ("groups", "Skip the backlog …"): Deed(
        "Seek", "/groups/orders/billing", ALTER_GROUP, then(choose("More", "Skip"), word("billing"), go_on("Skip"))
    ),
    ("groups", "Delete …"): Deed(
        "DeleteGroup",
        "/groups/orders/doomed",
        [("delete", group("doomed"))],
        then(choose("More", "Delete"), word("doomed"), go_on("Delete")),
    ),
    ("groups", "Kick"): Deed("Kick", "/groups/orders/kicked", ALTER_GROUP, then(press("Kick"), go_on("Kick"))),
    ("cluster", "Close"): Deed(
        "CloseConnection", "/cluster", [("admin", CLUSTER)], then(press("Close"), go_on("Close"))
    ),
    ("dead_letters", "Send selected again"): Deed(
        "Resend",
        "/dead?topic=orders&group=billing",
        ALTER_GROUP,
        then(pick, press("Send selected"), go_on("Send again")),
    ),
    ("dead_letters", "Send all again …"): Deed(
        "Resend", "/dead?topic=stock&group=billing", ALTER_GROUP, then(press("Send all"), go_on("Begin"))
    ),
    ("dead_letters", "Drop all …"): Deed(
        "PurgeDead",
        "/dead?topic=purged&group=billing",
        [("delete", BILLING)],
        then(choose("More", "Drop"), word("billing"), go_on("Drop")),
    ),
    ("dead_letters", "Send again"): Deed("Resend", "/dead/orders/billing/0", ALTER_GROUP, press("Send again")),
    ("dead_letters", "Edit and send …"): Deed(
        "ReviseDead",
        "/dead/orders/billing/1",
        [("alter", BILLING), ("send", ORDERS)],
        then(press("Edit and send"), fill(Body="mended"), go_on("Send")),
    ),
    ("message", "Send again"): Deed(
        "", "/message/orders/middle/0", [("send", ORDERS)], then(press("Send again"), go_on("Send again"))
    ),
    ("delayed", "Cancel selected …"): Deed(
        "CancelDelayed",
        "/delayed?topic=later",
        [("send", topic("later"))],
        then(pick, press("Cancel selected"), go_on("Cancel them")),
    ),
    ("delayed", "Move selected …"): Deed(
        "MoveDelayed",
        "/delayed?topic=later",
        [("send", topic("later"))],
        then(pick, press("Move selected"), fill(Time="2030-01-31 14:30"), go_on("Move")),
    ),
    ("transactions", "Commit …"): Deed(
        "Resolve", "/transactions", ALTER_CLUSTER, then(pick, press("Commit"), go_on("Commit"))
    ),
    ("transactions", "Roll back …"): Deed(
        "Resolve", "/transactions", ALTER_CLUSTER, then(pick, press("Roll back"), go_on("Rollback"))
    ),
    ("alarms", "New rule"): Deed(
        "PutAlarm", "/alarms", ALTER_CLUSTER, then(press("New rule"), fill(Name="new"), go_on("Save"))
    ),
    ("alarms", "Edit …"): Deed("PutAlarm", "/alarms", ALTER_CLUSTER, then(choose("Rule old", "Edit"), go_on("Save"))),
    ("alarms", "Send a test notice"): Deed("TestAlarm", "/alarms", ALTER_CLUSTER, choose("Rule old", "test")),
    ("alarms", "Silence …"): Deed(
        "SilenceAlarm", "/alarms", ALTER_CLUSTER, then(choose("Rule old", "Silence"), fill(Why="x"), go_on("Silence"))
    ),
    ("alarms", "End the silence"): Deed(
        "SilenceAlarm", "/alarms", ALTER_CLUSTER, choose("Rule quiet", "End the silence")
    ),
    ("alarms", "Remove …"): Deed(
        "DropAlarm", "/alarms", ALTER_CLUSTER, then(choose("Rule gone", "Remove"), go_on("Remove"))
    ),
}
HIDDEN = {
    ("access", name): "their list is not shown to whoever may not administer access"
    for name in ("New user", "Delete selected …", "New rule", "Remove selected …")
}
ELSEWHERE = {
    **HIDDEN,
    ("access", "New token"): "of one's own user everybody may; of others: test_console_matrix",
    ("access", "Revoke selected …"): "of one's own user everybody may; of others: test_console_matrix",
    ("access", "Change the password …"): "of one's own user everybody may: test_security",
    ("access", "I have it"): "nobody is asked",
    ("groups", "See what it means"): "it only looks",
    ("topics", "Messages"): "it only looks",
    ("messages", "Look"): "it only looks", ("messages", "Older"): "it only looks",
    ("messages", "Newer"): "it only looks", ("messages", "Open"): "it only looks",
    ("audit", "Look"): "it only looks", ("audit", "Older"): "it only looks", ("audit", "Newer"): "it only looks",
    ("delayed", "Look"): "it only looks", ("delayed", "Sooner"): "it only looks", ("delayed", "Later"): "it only looks",
    ("dead_letters", "Filter"): "it only looks", ("dead_letters", "Stop"): "nobody is asked",
}  # fmt: skip


def buttons() -> set[tuple[str, str]]:
    """What can be pressed, by page: `button(TEXT, …)`, `ui.menu_item(TEXT, …)`, lists' `new=` and `drop=`, and the
    buttons in cells of tables, `Column(NAME, TEXT, "button")`."""
    found = set()
    for file in Path(pages.__file__).parent.glob("*.py"):
        for call in (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)):
            first = call.args[0] if call.args else None
            if ast.unparse(call.func) in ("button", "ui.button", "ui.menu_item") and isinstance(first, ast.Constant):
                found.add((file.stem, str(first.value)))
            if ast.unparse(call.func) == "Column" and "'button'" in map(ast.unparse, call.args):
                found.add((file.stem, str(ast.literal_eval(call.args[1]))))
            for keyword in call.keywords:
                if keyword.arg in ("new", "drop") and isinstance(keyword.value, ast.Tuple):
                    found.add((file.stem, str(ast.literal_eval(keyword.value.elts[0]))))
    return found


def test_every_button_has_its_row() -> None:
    assert buttons() == {*DEEDS, *ELSEWHERE}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("deeds")
    with secured_broker(folder, store=f"file:{folder}/data", durability="os") as one:
        mq = one.admin
        for name in ("orders", "stock", "purged"):
            bury(mq, name, 3)
        mq.send("orders", b"x")
        mq.send("doomed", b"x")
        for name in ("paused", "doomed"):
            mq.put_group(GroupConfig("orders", name))
        mq.pause("orders", "paused", "")
        mq.send_many("later", [b"x"] * 3, delay=86400)
        for name in ("old", "gone", "quiet"):
            mq.put_alarm(AlarmRule(name, "dead", 1000))
        mq.silence_alarm("quiet", "for the test", for_s=86400)
        for name in ("one", "two", "three"):
            transaction = mq.prepare("shop", name)
            transaction.send("stock", b"x")
            transaction.store()
        mq.access.create_user("seer", PASSWORD, roles=SEER)
        with mq.consumer("orders", group="kicked", name="worker"):
            yield one
        assert "Traceback" not in one.process.errors, one.process.errors


@pytest.fixture(scope="module")
def seer(browser: Browser, broker: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    """A browser in which somebody is logged in who sees everything."""
    with ConsoleProcess(broker.url, tmp_path_factory.mktemp("deeds-console")) as console:
        with visitor(browser, console.url) as context:
            log_in(context)
            yield context
        assert "Traceback" not in console.log, console.log


def log_in(context: BrowserContext) -> None:
    page = context.new_page()
    page.goto("/login")
    page.get_by_label("Name").fill("seer")
    page.get_by_label("Password or secret").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    leave(page)


def told(page: Page, text: str) -> None:
    expect(page.get_by_text(text).first).to_be_visible()


def doings(broker: Secured, deed: Deed) -> object:
    """What shows that it was done: how often the audit log says so, or that it failed, but was not
    refused; and for what is tried out first, or is not in there, how things stand."""
    mq = broker.admin
    if not deed.request:
        return [lane.end for lane in mq.topic("orders").lanes]
    if deed.request == "Seek":
        return mq.group("orders", "billing").positions
    if deed.request == "Purge":
        return [lane.first for lane in mq.topic("purged").lanes]
    entries = mq.access.audit(actor="seer", what=deed.request, limit=1000).entries
    return sum(one.outcome != "refused" for one in entries)


@contextmanager
def opened(seer: BrowserContext, path: str) -> Iterator[Page]:
    """A page of its own: what was done leads a page elsewhere, maybe a while later."""
    page = seer.new_page()
    page.goto(path)
    page.wait_for_function("() => window.socket && window.socket.connected")
    yield page
    leave(page)


@pytest.mark.parametrize("what", DEEDS, ids=" ".join)
def test_a_deed_is_refused_readably_until_a_role_allows_it(
    broker: Secured, seer: BrowserContext, what: tuple[str, str]
) -> None:
    deed, admin = DEEDS[what], broker.admin.access
    role = next(role for role in ("producer", "operator", "admin") if granted(role, deed.needs))
    before = doings(broker, deed)
    with opened(seer, deed.path) as page:
        deed.begin(page)
        told(page, "'seer' may not")
        assert doings(broker, deed) == before, "nothing was done"
    admin.change_user("seer", roles=[*SEER, role])
    try:
        with opened(seer, deed.path) as page:
            deed.begin(page)
            eventually(lambda: doings(broker, deed) != before)
    finally:
        admin.change_user("seer", roles=SEER)


def test_what_was_allowed_is_refused_again_in_the_same_page(broker: Secured, seer: BrowserContext) -> None:
    admin = broker.admin.access
    admin.change_user("seer", roles=[*SEER, "producer"])
    with opened(seer, "/topics/orders") as page:
        press("Send")(page)
        fill(Body="too late")(page)
        admin.change_user("seer", roles=SEER)
        go_on("Send")(page)
        told(page, "'seer' may not send topic orders")
    assert all(one.body != b"too late" for one in broker.admin.browse("orders", "middle"))


def test_what_administers_access_is_not_there_for_others(broker: Secured, seer: BrowserContext) -> None:
    for role, there in ((None, 0), ("admin", 1), (None, 0)):
        broker.admin.access.change_user("seer", roles=[*SEER, role] if role else SEER)
        with opened(seer, "/access") as page:
            if not there:
                expect(page.get_by_text("You may not see them").first).to_be_visible()
            for _, name in HIDDEN:
                expect(page.get_by_role("button", name=name)).to_have_count(there)
