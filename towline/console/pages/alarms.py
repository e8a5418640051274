"""Alarms: what is wrong now, the rules that say so, and who was told."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from towline.alarms.rule import UNITS, AlarmRule
from towline.console.dialogs import confirm, form
from towline.console.frame import View, act, badge, button, console_page, empty, head, panel
from towline.console.words import number, plain, span

__all__ = ["alarms_page"]

_WHAT = {
    "dead": "Dead letters", "failures": "Failures in 5 minutes", "backlog": "Messages waiting",
    "age": "Age of the oldest, in seconds", "offline": "Seconds without a consumer", "disk": "Free disk, in percent",
}  # fmt: skip


@console_page("/alarms", "Alarms")
async def alarms_page(view: View) -> None:
    found = await view.mq.alarms()
    with head("Alarms", "The broker looks every few seconds, and tells people"):
        button("New rule", icon="add", on_click=lambda: _edit(view, None, show)).classes("tl-main-act")

    @ui.refreshable
    async def content() -> None:
        nonlocal found
        found = await view.mq.alarms()
        if not found.mail and any(rule.emails or rule.topic_emails for rule in found.rules):
            with ui.element("div").classes("tl-note warn"):
                ui.label("This broker knows no mail server, so no e-mail is sent: start it with --smtp HOST:PORT.")
        with panel("Now"):
            if not found.active:
                empty("notifications_none", "All is well", "No rule is broken at the moment.")
            for one in found.active[:200]:
                with ui.element("div").classes("tl-row"):
                    badge(one.rule, "bad")
                    where = f"/groups/{one.topic}/{one.group}" if one.group else "/cluster"
                    ui.link(f"{one.topic} · {one.group}" if one.group else "this broker", where)
                    rule = next((rule for rule in found.rules if rule.name == one.rule), None)
                    ui.label(f"{one.value:,.6g} {UNITS[rule.what] if rule else ''}")
                    ui.element("div").classes("tl-grow")
                    ui.label(f"since {view.moment(one.since_us)}").classes("tl-sub")
        with panel("Rules"):
            if not found.rules:
                empty("rule", "No rules yet", "A rule says from which value on it is an alarm, and who is told.")
            for rule in found.rules:
                _rule(view, rule, show)
        with panel("Last notices"):
            if not found.told:
                empty("outgoing_mail", "Nobody was told anything yet")
            for told in found.told[:30]:
                with ui.element("div").classes("tl-row"):
                    badge("failed" if told.error else "told", "bad" if told.error else "good")
                    ui.label(plain(told.subject)).classes("tl-grow")
                    ui.label(", ".join(told.to) or "nobody: it is in the broker's log").classes("tl-sub")
                    ui.label(view.moment(told.at_us)).classes("tl-sub")
                if told.error:
                    ui.label(plain(told.error)[:300]).classes("tl-sub")

    def show() -> None:
        content.refresh()

    await content()
    ui.timer(10.0, show)


def _rule(view: View, rule: AlarmRule, then: Any) -> None:
    with ui.element("div").classes("tl-row").style("border-bottom:1px solid var(--line);padding-bottom:8px"):
        ui.label(rule.name).style("font-weight:600")
        if not rule.enabled:
            badge("off")
        sign = "below" if rule.what == "disk" else "from"
        ui.label(
            f"{_WHAT[rule.what]}: {sign} {number(rule.threshold) if rule.threshold >= 10 else f'{rule.threshold:g}'} on"
        )
        if rule.what != "disk":
            ui.label(f"topic {rule.topic}, group {rule.group}").classes("tl-sub")
        if rule.for_s:
            ui.label(f"for {span(rule.for_s)}").classes("tl-sub")
        ui.element("div").classes("tl-grow")
        to = [
            *rule.emails,
            *rule.webhooks,
            *(["the topic's e-mails"] if rule.topic_emails and rule.what != "disk" else []),
        ]
        ui.label("tells " + (", ".join(to) or "the broker's log")).classes("tl-sub")
        with (
            button(icon="more_vert").props(f'flat round dense aria-label="Rule {rule.name}"').classes("tl-icon"),
            ui.menu(),
        ):
            ui.menu_item("Edit …", lambda: _edit(view, rule, then))
            ui.menu_item("Send a test notice", lambda: act(view.mq.test_alarm(rule.name), "The test notice was taken"))
            ui.menu_item("Remove …", lambda: _remove(view, rule, then))


async def _remove(view: View, rule: AlarmRule, then: Any) -> None:
    if await confirm(view, f"Remove {rule.name}?", "Nobody is told of it any more.", label="Remove") and await act(
        view.mq.drop_alarm(rule.name), "Removed"
    ):
        then()


def _edit(view: View, rule: AlarmRule | None, then: Any) -> None:
    async def save() -> bool:
        made = AlarmRule(
            rule.name if rule is not None else (name.value or "").strip(),
            what.value,
            float(threshold.value or 0),
            (topic.value or "*").strip(),
            (group.value or "*").strip(),
            _words(emails.value),
            _words(webhooks.value),
            bool(topics_too.value),
            float(lasting.value or 0),
            float(repeat.value or 4) * 3600,
            bool(enabled.value),
        )
        done = await act(view.mq.put_alarm(made), "Saved")
        if done:
            then()
        return done

    old = rule or AlarmRule("new", "dead", 1)
    with form("New rule" if rule is None else f"Rule {rule.name}", "Save", save):
        if rule is None:
            name = ui.input("Name").props("outlined dense autofocus maxlength=50")
        with ui.element("div").classes("tl-row"):
            what = ui.select(_WHAT, value=old.what, label="What").props("outlined dense").classes("tl-grow")
            threshold = ui.number("From", value=old.threshold, min=0).props("outlined dense").style("width:110px")
        with ui.element("div").classes("tl-row"):
            topic = ui.input("Topic (name, prefix*, or *)", value=old.topic).props("outlined dense").classes("tl-grow")
            group = ui.input("Group", value=old.group).props("outlined dense").classes("tl-grow")
        emails = ui.input("E-mails", value=", ".join(old.emails)).props("outlined dense")
        webhooks = ui.input("Webhooks", value=", ".join(old.webhooks)).props("outlined dense")
        topics_too = ui.checkbox("Also the alarm e-mails of the topic", value=old.topic_emails)
        with ui.element("div").classes("tl-row"):
            lasting = (
                ui.number("Lasting, in seconds", value=old.for_s, min=0).props("outlined dense").classes("tl-grow")
            )
            repeat = ui.number("Again after so many hours", value=old.repeat_s / 3600, min=0.1).props("outlined dense")
        enabled = ui.checkbox("In force", value=old.enabled)


def _words(text: str | None) -> tuple[str, ...]:
    return tuple((text or "").replace(",", " ").split())
