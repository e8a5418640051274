"""What somebody does on a page goes on while its lists come anew: a menu stays open, the focus where it is.

That a list came anew is seen in what it shows: something is changed behind its back."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import ElementHandle, Page, expect

import towline
from tests.console.conftest import Visit
from tests.inside.alarms import AlarmRule
from towline.model import GroupConfig


def item(page: Page, text: str) -> ElementHandle:
    """An entry of the menu that is open; this very element, not one like it."""
    found = page.locator(".q-menu .q-item").filter(has_text=text).element_handle()
    found.wait_for_element_state("stable")
    return found


def test_a_menu_and_a_form_in_a_list_stay_open_while_it_comes_anew(visit: Visit, mq: towline.Client) -> None:
    mq.put_alarm(AlarmRule("kept", "dead", 1000))
    page = visit("/alarms")
    page.get_by_role("button", name="Rule kept").click()
    edit = item(page, "Edit")
    for name in ("above-it", "far-below-it"):
        mq.put_alarm(AlarmRule(name, "dead", 1000))
        expect(page.get_by_text(name, exact=True)).to_be_visible()
        assert edit.is_visible()
    mq.put_alarm(AlarmRule("kept", "dead", 1500))
    expect(page.get_by_text("from 1,500 on")).to_be_visible()
    mq.silence_alarm("kept", "we know", for_s=86400)
    item(page, "End the silence")
    assert edit.is_visible(), "its menu stays open also if somebody else changes the rule itself"
    edit.click()
    field = page.get_by_role("dialog").get_by_label("From", exact=True)
    field.fill("7")
    mq.drop_alarm("above-it")
    mq.put_alarm(AlarmRule("kept", "dead", 2000))
    expect(page.get_by_text("from 2,000 on")).to_be_visible()
    expect(page.get_by_text("above-it", exact=True)).to_have_count(0)
    expect(field).to_have_value("7")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("from 7 on")).to_be_visible()
    for rule in mq.alarms().rules:
        mq.drop_alarm(rule.name)


@pytest.mark.parametrize("path", ["/topics/tended", "/groups/tended/keepers"])
def test_a_menu_beside_a_list_stays_open_while_it_comes_anew(visit: Visit, mq: towline.Client, path: str) -> None:
    mq.send("tended", b"x")
    mq.put_group(GroupConfig("tended", "keepers", start="earliest"))
    waiting = mq.group("tended", "keepers").lag
    page = visit(path)
    page.get_by_role("button", name="More").click()
    delete = item(page, "Delete")
    for _ in range(2):
        mq.send("tended", b"x")
        waiting += 1
        expect(page.locator("td", has_text=re.compile(rf"^\s*{waiting}\s*$")).first).to_be_visible()
        assert delete.is_visible()
    delete.click()
    expect(page.get_by_role("dialog")).to_contain_text("Delete")


def test_the_focus_and_a_selection_in_a_table_stay_while_it_comes_anew(visit: Visit, mq: towline.Client) -> None:
    mq.send("watched", b"x")
    mq.put_group(GroupConfig("watched", "lookouts", start="earliest"))
    page = visit("/groups?topic=watched")
    row = page.get_by_role("row", name=re.compile("lookouts"))
    link = row.get_by_role("link")
    link.focus()
    before = link.element_handle()
    row.get_by_role("cell", name="watched").evaluate("cell => getSelection().selectAllChildren(cell)")
    for count in (2, 3):
        mq.send("watched", b"x")
        expect(row.get_by_role("cell", name=str(count), exact=True)).to_be_visible()
    assert before.evaluate("link => link === document.activeElement")
    assert page.evaluate("getSelection().toString().trim()") == "watched"
