"""Alarms: the present ones, the rules, and the notices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from nicegui import ui

from towline.alarms.rule import OF_BROKER, REASON_MAX, SILENCE_MAX_S, UNITS, AlarmRule
from towline.alarms.watch import Alarm
from towline.console.layout import View, act, badge, button, console_page, head, panel, say
from towline.console.number_format import number, plain, span
from towline.console.widgets.dialogs import confirm, form
from towline.console.widgets.keyed_list import KeyedList
from towline.errors import TowlineError
from towline.protocol.monitor import Alarms, Told

__all__ = ["alarms_page"]

Then = Callable[[], Awaitable[None]]

_WHAT = {
    "dead": "Dead letters", "failures": "Failures in 5 minutes", "backlog": "Messages waiting",
    "age": "Age of the oldest, in seconds", "offline": "Seconds without a consumer", "disk": "Free disk, in percent",
    "store": "Stores that failed", "retention": "Seconds that open messages hold retention back",
}  # fmt: skip


@console_page("/alarms", "Alarms")
async def alarms_page(view: View) -> None:
    page = _Page(view)
    found = await view.mq.alarms()
    with head("Alarms", "The broker looks every few seconds, and tells people"):
        button("New rule", icon="add", on_click=lambda: _edit(view, None, page.refresh)).classes("tl-main-act")
    page.build()
    page.show(found)
    ui.timer(10.0, page.refresh)


class _Shown(NamedTuple):
    alarm: Alarm
    rule: AlarmRule | None


class _Page:
    def __init__(self, view: View) -> None:
        self.view = view

    def build(self) -> None:
        with ui.element("div").classes("tl-note warn") as self._no_mail:
            ui.label("This broker knows no mail server, so no e-mail is sent: start it with --smtp HOST:PORT.")
        with panel("Now"):
            self._now = KeyedList[_Shown](
                lambda one: (one.alarm.rule, one.alarm.topic, one.alarm.group),
                self._active,
                nothing=("notifications_none", "All is well", "No rule is broken at the moment."),
            )
        with panel("Rules"):
            self._rules = KeyedList[AlarmRule](
                lambda rule: rule.name,
                lambda rule: _rule(self.view, rule, self.refresh),
                nothing=("rule", "No rules yet", "A rule says from which value on it is an alarm, and who is told."),
            )
        with panel("Last notices"):
            self._told = KeyedList[Told](
                lambda told: (told.at_us, told.subject, *told.to),
                self._notice,
                nothing=("outgoing_mail", "Nobody was told anything yet"),
            )

    async def refresh(self) -> None:
        """An error is shown."""
        try:
            found = await self.view.mq.alarms()
        except TowlineError as error:
            say(str(error), bad=True)
        else:
            self.show(found)

    def show(self, found: Alarms) -> None:
        self._no_mail.set_visibility(not found.mail and any(rule.emails or rule.topic_emails for rule in found.rules))
        rules = {rule.name: rule for rule in found.rules}
        self._now.show(_Shown(one, rules.get(one.rule)) for one in found.active[:200])
        self._rules.show(found.rules)
        self._told.show(found.told[:30])

    def _active(self, shown: _Shown) -> Callable[[_Shown], None]:
        one = shown.alarm
        with ui.element("div").classes("tl-row"):
            badge(one.rule, "bad")
            where = f"/groups/{one.topic}/{one.group}" if one.group else "/cluster"
            ui.link(f"{one.topic} · {one.group}" if one.group else "this broker", where)
            value = ui.label()
            ui.element("div").classes("tl-grow")
            with ui.element("span").classes("tl-badge warn") as silence:
                silenced = ui.label()
            since = ui.label().classes("tl-sub")

        def change(shown: _Shown) -> None:
            one, rule = shown
            value.text = f"{one.value:,.6g} {UNITS[rule.what] if rule is not None else ''}"
            since.text = f"since {self.view.moment(one.since_us)}"
            silenced.text = _silence_of(self.view, rule)
            silence.set_visibility(bool(silenced.text))

        change(shown)
        return change

    def _notice(self, told: Told) -> None:
        with ui.element("div").classes("tl-row"):
            badge("failed" if told.error else "told", "bad" if told.error else "good")
            ui.label(plain(told.subject)).classes("tl-grow")
            ui.label(", ".join(told.to) or "nobody: it is in the broker's log").classes("tl-sub")
            ui.label(self.view.moment(told.at_us)).classes("tl-sub")
        if told.error:
            ui.label(plain(told.error)[:300]).classes("tl-sub")


def _silence_of(view: View, rule: AlarmRule | None) -> str:
    if rule is None or not rule.silenced_until_us:
        return ""
    return f"silenced until {view.moment(rule.silenced_until_us)}"


def _rule(view: View, rule: AlarmRule, then: Then) -> Callable[[AlarmRule], None]:
    """A rule that is changed by somebody else changes in place: its menu stays open."""
    now = rule

    with ui.element("div").classes("tl-row").style("border-bottom:1px solid var(--line);padding-bottom:8px"):
        ui.label(rule.name).style("font-weight:600")
        off = badge("off")
        when = ui.label()
        where = ui.label().classes("tl-sub")
        lasting = ui.label().classes("tl-sub")
        ui.element("div").classes("tl-grow")
        told = ui.label().classes("tl-sub")
        with (
            button(icon="more_vert").props(f'flat round dense aria-label="Rule {rule.name}"').classes("tl-icon"),
            ui.menu(),
        ):
            ui.menu_item("Edit …", lambda: _edit(view, now, then))
            ui.menu_item("Silence …", lambda: _silence(view, now, then))
            end = ui.menu_item("End the silence", lambda: _unsilence(view, now, then))
            ui.menu_item("Send a test notice", lambda: _test(view, now))
            ui.menu_item("Remove …", lambda: _remove(view, now, then))
        with ui.element("div").classes("tl-row").style("width:100%") as silence:
            with ui.element("span").classes("tl-badge warn"):
                silenced = ui.label()
            reason = ui.label().classes("tl-sub")

    def change(rule: AlarmRule) -> None:
        nonlocal now
        now = rule
        off.set_visibility(not rule.enabled)
        when.text = _when(rule)
        _tell(where, f"topic {rule.topic}, group {rule.group}" if rule.what not in OF_BROKER else "")
        _tell(lasting, f"for {span(rule.for_s)}" if rule.for_s else "")
        told.text = "tells " + (", ".join(_told(rule)) or "the broker's log")
        for element in (end, silence):
            element.set_visibility(bool(rule.silenced_until_us))
        silenced.text, reason.text = _silence_of(view, rule), plain(rule.silence_reason)

    change(rule)
    return change


def _tell(label: ui.label, text: str) -> None:
    label.text = text
    label.set_visibility(bool(text))


def _when(rule: AlarmRule) -> str:
    sign = "below" if rule.what == "disk" else "from"
    value = number(rule.threshold) if rule.threshold >= 10 else f"{rule.threshold:g}"
    return f"{_WHAT[rule.what]}: {sign} {value} on"


def _told(rule: AlarmRule) -> list[str]:
    topics = ["the topic's e-mails"] if rule.topic_emails and rule.what not in OF_BROKER else []
    return [*rule.emails, *rule.webhooks, *topics]


async def _remove(view: View, rule: AlarmRule, then: Then) -> None:
    # In the page, not in the row that was pressed: that may be gone before the question is answered.
    with view.main:
        if await confirm(view, f"Remove {rule.name}?", "Nobody is told of it any more.", label="Remove") and await act(
            view.mq.drop_alarm(rule.name), "Removed"
        ):
            await then()


def _silence(view: View, rule: AlarmRule, then: Then) -> None:
    async def save() -> bool:
        done = await act(
            view.mq.silence_alarm(rule.name, reason.value or "", for_s=float(hours.value or 0) * 3600), "It is silenced"
        )
        if done:
            await then()
        return done

    about = "Nobody is told of it; it is shown here. If it still is an alarm when that is over, it is told then."
    with view.main, form(f"Silence {rule.name}", "Silence", save, about=about):
        hours = ui.number("For so many hours", value=2, min=0.01, max=SILENCE_MAX_S / 3600).props(
            "outlined dense autofocus"
        )
        reason = ui.input("Why", value=rule.silence_reason).props(f"outlined dense maxlength={REASON_MAX}")


async def _unsilence(view: View, rule: AlarmRule, then: Then) -> None:
    with view.main:
        if await act(view.mq.unsilence_alarm(rule.name), "It is told again"):
            await then()


async def _test(view: View, rule: AlarmRule) -> None:
    with view.main:
        await act(view.mq.test_alarm(rule.name), "The test notice was taken")


def _edit(view: View, rule: AlarmRule | None, then: Then) -> None:
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
            await then()
        return done

    old = rule or AlarmRule("new", "dead", 1)
    with view.main, form("New rule" if rule is None else f"Rule {rule.name}", "Save", save):
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
