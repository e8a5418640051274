"""One message: its contents, its status in each group, and its life."""

from __future__ import annotations

from urllib.parse import urlencode

from nicegui import ui

from towline.client.admin.trace import GroupTrace, Step
from towline.client.consume.message import Message
from towline.console.layout import View, badge, button, console_page, empty, facts, go, head, panel, say
from towline.console.number_format import plain, size
from towline.console.widgets.body_view import HEAD_BYTES, Form, guess, render
from towline.console.widgets.dialogs import confirm
from towline.errors import TowlineError

__all__ = ["TEXT_SHOWN", "message_page", "show_body"]

TEXT_SHOWN = 2_000
_TONES = {"SUCCESS": "good", "DEAD": "bad", "FAIL": "warn", "RUNNING": "accent"}
_STEPS = {
    "pulled": ("delivered", "accent"), "acked": ("acknowledged", "good"), "failed": ("failed", "warn"),
    "gaveup": ("given up", "bad"), "buried": ("put to the dead letters", "bad"), "resent": ("sent again", "accent"),
    "returned": ("given back", ""), "released": ("taken back", "warn"), "skipped": ("skipped", "bad"),
    "overrun": ("dropped by retention", "bad"), "started": ("the group began behind it", ""),
}  # fmt: skip


def show_body(body: bytes, download: str) -> None:
    """A body in the form that suits it, with a choice of others. The page keeps no more of it than it shows."""
    chosen: Form = guess(body)
    length, start = len(body), body[:HEAD_BYTES]
    with ui.element("div").classes("tl-row"):
        forms = ui.toggle({"json": "JSON", "text": "Text", "hex": "Hex"}, value=chosen).props(
            "dense no-caps unelevated"
        )
        ui.label(size(length)).classes("tl-sub tl-grow")
        ui.link("Download", download).classes("tl-sub")
    text = ui.label("").classes("tl-pre").mark("body")
    left = ui.label("").classes("tl-sub")

    def show(form: Form) -> None:
        shown, rest = render(start, form, length)
        text.text, left.text = shown or "(empty)", rest
        text.classes(add="hex") if form == "hex" else text.classes(remove="hex")

    forms.on_value_change(lambda event: show(event.value))
    show(chosen)


@console_page("/message/{topic}/{lane}/{seq}", "Message")
async def message_page(view: View) -> None:
    topic, asked = view.part("topic"), f"{view.part('topic')}/{view.part('lane')}/{view.part('seq')}"
    trace = await view.mq.trace(asked)
    # A delayed one is shown where it is now.
    message, name = trace.message, trace.id if trace.delay_id else asked
    _, lane, number = name.split("/")
    waited = f"It waited as {asked}" if trace.delay_id else ""
    with head(name, waited, crumb=(topic, f"/messages?topic={topic}&lane={lane}")):
        if message is not None:
            button("Send again", icon="replay", on_click=lambda: _again(view, name)).classes("tl-plain")
    with ui.element("div").classes("tl-grid2"):
        with panel("Body"):
            if trace.hidden:
                empty("lock", "You may not read it", f"To see what a message holds takes the right to consume {topic}.")
            elif message is None:
                empty(
                    "inventory_2", "It is not kept any more", "Retention has dropped it; what happened to it is below."
                )
            else:
                show_body(message.body, "/download/message?" + urlencode({"id": name}))
        with panel("About it"):
            if message is None:
                facts([("Topic", topic), ("Lane", lane), ("Number in it", number)])
            else:
                facts(_about(view, message))
                _headers(message)
    with panel("What became of it"):
        if not trace.groups:
            empty("hub", "No group consumes this topic", "Or none that you may see.")
        else:
            for one in trace.groups:
                _group(view, topic, one)


def _about(view: View, message: Message) -> list[tuple[str, str]]:
    return [
        ("Key", plain((message.key or "–")[:TEXT_SHOWN])),
        ("Priority", message.priority),
        ("Appended", view.moment(message.appended_at_us, exact=True)),
        ("Produced", view.moment(message.produced_at_us, exact=True)),
        ("Sent by", plain(message.token or "–")),
        ("From", message.source or "–"),
        ("Size", size(len(message.body))),
    ]


def _headers(message: Message) -> None:
    headers = message.headers
    if headers:
        with ui.element("h3"):
            ui.label("Headers")
        facts((plain(name)[:200], plain(value)[:TEXT_SHOWN]) for name, value in list(headers.items())[:100])


def _group(view: View, topic: str, one: GroupTrace) -> None:
    with ui.element("div").classes("tl-row"):
        ui.link(one.group, f"/groups/{topic}/{one.group}").style("font-weight:600")
        badge(one.status, _TONES.get(one.status, ""))
        if one.attempt:
            ui.label(f"attempt {one.attempt}").classes("tl-sub")
        if one.due_us:
            ui.label(f"again at {view.moment(one.due_us)}").classes("tl-sub")
        if not one.complete:
            badge("older events were dropped", "warn")
    if not one.steps:
        ui.label("Nothing yet: it waits for a consumer.").classes("tl-sub")
        return
    with ui.element("ol").classes("tl-line"):
        for step in one.steps[:500]:
            _step(view, topic, one.group, step)


def _step(view: View, topic: str, group: str, step: Step) -> None:
    said, tone = _STEPS.get(step.what, (step.what, ""))
    with ui.element("li").classes(tone):
        with ui.element("div").classes("tl-row").style("gap:8px"):
            with ui.element("b"):
                ui.label(said + (" (the copy)" if step.copy else ""))
            if step.attempt:
                ui.label(f"attempt {step.attempt}").classes("tl-sub")
            ui.label(view.moment(step.at_us, exact=True)).classes("tl-sub")
        details = [f"by {step.consumer}"] if step.consumer and step.what == "pulled" else []
        details += [plain(step.reason)[:1000]] if step.reason else []
        details += [f"again at {view.moment(step.due_us)}"] if step.due_us and step.what == "failed" else []
        if details:
            ui.label(" · ".join(details)).classes("w")
        if step.dead is not None:
            ui.link(f"dead letter {step.dead}", f"/dead/{topic}/{group}/{step.dead}")


async def _again(view: View, message_id: str) -> None:
    text = f"A copy is sent to topic {message_id.partition('/')[0]}: all its groups get it."
    if not await confirm(view, "Send it again?", text, label="Send again", danger=False):
        return
    try:
        message = await view.mq.message(message_id)
        headers = {name: value for name, value in message.headers.items() if not name.startswith("towline-")}
        receipt = await view.mq.send(
            message.topic, message.body, key=message.key, priority=message.priority, headers=headers or None
        )
    except TowlineError as error:
        say(str(error), bad=True)
        return
    go(f"/message/{receipt.id}")
