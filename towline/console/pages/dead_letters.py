"""Dead letters: list, reasons, re-send, as they are or changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from towline.client.consume.message import DeadLetter
from towline.console.dead_letters.filter import LetterFilter
from towline.console.dead_letters.pages import LetterPages, name_of, number_of
from towline.console.dead_letters.reasons import Reasons
from towline.console.dead_letters.resend import Fits, Resend
from towline.console.layout import View, act, badge, button, console_page, empty, facts, go, head, panel, say
from towline.console.number_format import many, number, plain
from towline.console.pages.message import TEXT_SHOWN, show_body
from towline.console.widgets.body_view import preview
from towline.console.widgets.dialogs import confirm, form
from towline.console.widgets.keyed_list import KeyedList
from towline.console.widgets.table import Column, Query, Table
from towline.errors import TowlineError

__all__ = ["dead_page", "letter_page"]

REASONS_SHOWN = 8
COUNT_FIRST_S, COUNT_S, COUNT_EVERY_S = 0.1, 0.2, 0.5
"""Reasons are counted so long before the page is shown, then so long each time, and so often."""
SIFT_FIRST_S, SIFT_S, SIFT_EVERY_S = 0.2, 0.3, 0.5
"""The same, of the search with a filter."""

GROUPS = [
    Column("group", "Group", "link"),
    Column("topic", "Topic", "cut"),
    Column("dead", "Dead letters", "number", sort=True),
    Column("failed", "Failed, 5 min", "number", sort=True),
]
LETTERS = [
    Column("number", "Number", "link"),
    Column("reason", "Reason", "cut"),
    Column("key", "Key", "cut", wide=True),
    Column("attempt", "Attempts", "number", wide=True),
    Column("died", "Died", wide=True),
    Column("body", "Body", "cut", wide=True),
    Column("state", "", "badge"),
]


@console_page("/dead", "Dead letters")
async def dead_page(view: View) -> None:
    topic, group = view.asked("topic"), view.asked("group")
    if topic and group:
        await _Letters(view, topic, group).build()
        return
    with head("Dead letters", "Messages whose attempts ran out: kept, and waiting for you"):
        pass
    with panel():

        async def fetch(query: Query) -> tuple[int, list[dict[str, Any]]]:
            found = await view.mq.survey(
                "groups", topic=topic, sort=query.sort or "dead", descending=query.descending, first=query.first,
                limit=query.limit,
            )  # fmt: skip
            rows = [
                {
                    "id": f"{one.topic}/{one.group}",
                    "group": {"text": one.group, "href": f"/dead?topic={one.topic}&group={one.group}"},
                    "topic": one.topic,
                    "dead": number(one.dead),
                    "failed": number(one.failed),
                }
                for one in found.groups
                if one.dead or query.sort != "dead"
            ]
            most = (await view.mq.survey("groups", topic=topic, sort="dead", descending=True, limit=1)).groups
            some = bool(most and most[0].dead)
            return (min(found.total, query.first + len(rows) + (len(rows) == query.limit)) if some else 0), rows

        nothing = ("mark_email_read", "No dead letters", "Every message was consumed, or is still being tried.")
        table = Table(GROUPS, fetch, nothing=nothing, sort="dead", descending=True)
        await table.load()
    ui.timer(5.0, table.refresh)


class _Letters:
    """The dead letters of one group."""

    def __init__(self, view: View, topic: str, group: str) -> None:
        self.view = view
        self.topic = topic
        self.group = group
        self.reason = view.asked("reason")
        self.key = view.asked("key")
        self.sifting: LetterFilter | None = None
        self._newest = LetterPages(view.mq, topic, group)
        self.job: Resend | None = None

    async def build(self) -> None:
        state = await self.view.mq.group(self.topic, self.group)
        self._count = state.dead
        export = "/download/dead?" + urlencode({"topic": self.topic, "group": self.group, "reason": self.reason})
        about = f"{many(state.dead, 'dead letter')} of group {self.group} on topic {self.topic}"
        with head("Dead letters", about, crumb=("All groups", "/dead")):
            ui.link("Export", export).classes("tl-sub")
            self._some = button("Send selected again", icon="replay", on_click=self._send_selected).classes("tl-plain")
            self._some.set_enabled(False)
            button("Send all again …", icon="playlist_play", on_click=self._send_all).classes("tl-main-act")
            with button(icon="more_vert").props('flat round dense aria-label="More"').classes("tl-icon"), ui.menu():
                ui.menu_item("Drop all …", self._drop)
        self._progress = ui.element("div").style("width:100%")
        await self._reasons()
        with panel():
            with ui.element("div").classes("tl-row"):
                reason = ui.input("Reason contains", value=self.reason).props("outlined dense clearable")
                reason.classes("tl-search tl-grow")
                key = ui.input("Key", value=self.key).props("outlined dense clearable").classes("tl-grow")

                async def look() -> None:
                    self.reason, self.key = reason.value or "", key.value or ""
                    await self._search()
                    await self._table.first()

                button("Filter", icon="filter_list", on_click=look).classes("tl-plain")
                for field in (reason, key):
                    field.on("keydown.enter", look)
            with ui.element("div").classes("tl-row") as self._sifted:
                self._told = ui.label("").classes("tl-sub").props('role="status"').mark("sifted")
            self._further = ui.timer(SIFT_EVERY_S, self._look_further, active=False)
            await self._search()
            nothing = ("mark_email_read", "No dead letters here", "None is left, or none fits the filter.")
            self._table = Table(
                LETTERS,
                self._fetch,
                nothing=nothing,
                select=True,
                on_select=self._enable,
            )
            await self._table.load()

    def _enable(self, ids: list[str]) -> None:
        self._some.set_enabled(bool(ids))

    async def _search(self) -> None:
        sought = bool(self.reason or self.key)
        self.sifting = LetterFilter(self.topic, self.group, self.reason, self.key) if sought else None
        self._sifted.set_visibility(self.sifting is not None)
        await self._sift(SIFT_FIRST_S)

    async def _sift(self, spend_s: float) -> None:
        """The first search runs before the page is shown, the rest after, until enough are found."""
        sifting = self.sifting
        if sifting is not None:
            await sifting.go_on(self.view.mq, spend_s)
        if sifting is self.sifting:  # nobody has another filter meanwhile
            self._told.text = sifting.told if sifting is not None else ""
            self._further.active = sifting is not None and not sifting.over

    async def _look_further(self) -> None:
        if not _looked_at():
            return
        sifting = self.sifting
        found = len(sifting.found) if sifting is not None else 0
        try:
            await self._sift(SIFT_S)
        except TowlineError as error:
            self._further.active = False
            self._told.text += f": {plain(str(error))[:200]}"
            return
        if sifting is not None and sifting is self.sifting and len(sifting.found) != found:
            await self._table.refresh()

    async def _fetch(self, query: Query) -> tuple[int, list[dict[str, Any]]]:
        if self.sifting is not None:
            some = self.sifting.found[query.first : query.first + query.limit]
            return len(self.sifting.found), [self._row(one) for one in some]
        letters = await self._newest.page(query.first, query.limit)
        return self._newest.total, [self._row(one) for one in letters]

    def _row(self, one: DeadLetter) -> dict[str, Any]:
        return {
            "id": name_of(one),
            "number": {"text": name_of(one), "href": f"/dead/{self.topic}/{self.group}/{name_of(one)}"},
            "reason": plain(one.reason),
            "key": plain(one.key or ""),
            "attempt": str(one.attempt),
            "died": self.view.moment(one.died_at_us),
            "body": preview(one.body),
            "state": {"text": "sent again", "tone": "good"} if one.resent else None,
        }

    async def _reasons(self) -> None:
        """The reasons of their deaths. All are counted, however many: some before the page is shown, the rest after."""
        reasons = Reasons(self.topic, self.group)
        await reasons.go_on(self.view.mq, COUNT_FIRST_S)
        if not reasons.counts:
            return
        with panel("Reasons"):
            with ui.element("div").classes("tl-reasons"):
                rows = KeyedList[tuple[str, int]](lambda one: one[0], self._reason)
                rest = ui.label().classes("tl-sub")
            told = ui.label(reasons.told).classes("tl-sub").props('role="status"').mark("counted")

        def show() -> None:
            top = reasons.counts.most_common(REASONS_SHOWN)
            rows.show(top)
            rest.text = _rest(reasons, top)
            rest.set_visibility(bool(rest.text))
            told.text = reasons.told
            told.set_visibility(not reasons.over)

        async def go_on() -> None:
            if not _looked_at() or (self.sifting is not None and not self.sifting.over):
                return  # one after the other
            try:
                await reasons.go_on(self.view.mq, COUNT_S)
            except TowlineError as error:
                timer.cancel()
                told.text = f"{reasons.told}: {plain(str(error))[:200]}"
                return
            show()
            if reasons.over:
                timer.cancel()

        show()
        timer = ui.timer(COUNT_EVERY_S, go_on, active=not reasons.over)

    def _reason(self, one: tuple[str, int]) -> Callable[[tuple[str, int]], None]:
        reason, count = one
        href = "/dead?" + urlencode({"topic": self.topic, "group": self.group, "reason": reason[:200]})
        with ui.element("div").classes("tl-row").style("flex-wrap:nowrap"):
            with ui.element("span").classes("tl-badge bad"):
                shown = ui.label(f"{count:,}")
            ui.link(plain(reason)[:160] or "(no reason given)", href).style("overflow-wrap:anywhere")

        def change(one: tuple[str, int]) -> None:
            shown.text = f"{one[1]:,}"

        return change

    # Sending again

    async def _send_selected(self) -> None:
        numbers = [number_of(one) for one in self._table.selected]
        text = f"{many(len(numbers), 'message')} to group {self.group}, and to no other."
        if await confirm(self.view, "Send them again?", text, label="Send again", danger=False):
            self._table.table.selected = []
            await self._run(numbers, 1000.0, len(numbers))

    def _send_all(self) -> None:
        async def save() -> bool:
            per_s = float(rate.value or 100)
            count, fits = (self._count, None) if sifting is None else (sifting.total, sifting.fits)
            with self.view.main:  # the form goes when it is closed, and would take the work along
                ui.timer(0, lambda: self._run(None, per_s, count, fits), once=True)
            return True

        sifting = self.sifting
        which = sifting.which if sifting is not None else f"all {self._count:,}"
        with form(
            "Send dead letters again", "Begin", save, about=f"To group {self.group} alone: {which}, oldest first."
        ):
            rate = ui.number("Messages a second", value=100, min=1, max=100_000).props("outlined dense")

    async def _run(self, numbers: list[int] | None, per_s: float, count: int, fits: Fits | None = None) -> None:
        self.job = job = Resend(self.view.mq, self.topic, self.group, per_s=per_s)
        self._progress.clear()
        with self._progress, panel("Sending again"):
            bar = ui.linear_progress(0, show_value=False).props("rounded")
            with ui.element("div").classes("tl-row"):
                said = ui.label("").classes("tl-sub tl-grow").props('role="status"').mark("outcome")
                stop = button("Stop", on_click=lambda: setattr(job, "stopped", True)).classes("tl-plain")
            failures = ui.element("div")

        def told() -> None:
            done = job.looked if fits is not None else job.sent + len(job.failed)
            bar.value = min(done / max(count, 1), 1.0)
            of = "" if fits is not None else f" of {count:,}"
            said.text = f"{job.sent:,}{of} sent again, {len(job.failed):,} failed"
            if fits is not None:
                said.text += f"; looked through {job.looked:,} of {count:,}"

        try:
            await job.run(numbers, told, fits)
        except TowlineError as error:
            say(str(error), bad=True)
        told()
        said.text += ": stopped" if job.stopped else ": done"
        stop.set_visibility(False)
        with failures:
            for letter, why in job.failed[:20]:
                ui.label(f"{letter}: {plain(why)[:200]}").classes("tl-sub")
        await self._search()
        await self._table.refresh()

    async def _drop(self) -> None:
        page = await self.view.mq.dead_letters(self.topic, self.group, first=0, max_messages=1, max_bytes=1)
        text = f"All {page.end - page.start:,} dead letters of group {self.group} are dropped for good."
        if await confirm(self.view, "Drop all dead letters?", text, label="Drop", word=self.group) and await act(
            self.view.mq.purge_dead(self.topic, self.group, page.end), "They were dropped"
        ):
            go(f"/dead?topic={self.topic}&group={self.group}")


def _looked_at() -> bool:
    """A page that was left lives on for some seconds, in case its reader returns; it need not work meanwhile."""
    viewer = ui.context.client
    return bool(viewer.has_socket_connection)


@console_page("/dead/{topic}/{group}/{number}", "Dead letter")
async def letter_page(view: View) -> None:
    topic, group = view.part("topic"), view.part("group")
    letter = await view.mq.dead_letter(topic, group, number_of(view.part("number")))
    crumb = ("Dead letters", f"/dead?topic={topic}&group={group}")
    with head(f"Dead letter {name_of(letter)}", f"of group {group} on topic {topic}", crumb=crumb):
        if letter.resent:
            badge("sent again", "good")
        # Of the letter the page keeps no more than it shows.
        button("Edit and send …", icon="edit", on_click=lambda: _revise(view, topic, group)).classes("tl-plain")
        button("Send again", icon="replay", on_click=lambda: _resend(view, topic, group)).classes("tl-main-act")
    with ui.element("div").classes("tl-note bad"):
        ui.label(plain(letter.reason) or "No reason was given.")
    with ui.element("div").classes("tl-grid2"):
        with panel("Body"):
            show_body(
                letter.body,
                "/download/letter?" + urlencode({"topic": topic, "group": group, "number": name_of(letter)}),
            )
        with panel("About it"):
            facts(
                [
                    ("Was", letter.origin or "–"),
                    ("Key", plain((letter.key or "–")[:TEXT_SHOWN])),
                    ("Attempts", str(letter.attempt)),
                    ("Died", view.moment(letter.died_at_us, exact=True)),
                ]
            )
            if letter.origin:
                ui.link("The message and its trace", f"/message/{letter.origin}")
            own = {name: value for name, value in letter.headers.items() if not name.startswith("towline-")}
            if own:
                with ui.element("h3"):
                    ui.label("Headers")
                facts((plain(name)[:200], plain(value)[:TEXT_SHOWN]) for name, value in list(own.items())[:100])
    if not letter.origin:
        empty("help_outline", "Its origin is not known")


async def _resend(view: View, topic: str, group: str) -> None:
    name = view.part("number")
    if await act(view.mq.resend(topic, group, [number_of(name)]), "It was sent again"):
        go(f"/dead/{topic}/{group}/{name}")


async def _revise(view: View, topic: str, group: str) -> None:
    name = view.part("number")
    try:
        letter = await view.mq.dead_letter(topic, group, number_of(name))
    except TowlineError as error:
        say(str(error), bad=True)
        return
    try:
        text: str | None = letter.body.decode("utf-8") if len(letter.body) <= 64 << 10 else None
    except UnicodeDecodeError:
        text = None

    async def save() -> bool:
        changed = (body.value or "").encode() if text is not None else None
        done = await act(
            view.mq.revise(topic, group, number_of(name), body=changed, key=key.value or ""), "It was sent again"
        )
        if done:
            go(f"/dead/{topic}/{group}/{name}")
        return done

    about = "The letter itself stays as it is; what you send goes to its group alone."
    with form("Edit and send again", "Send", save, about=about):
        key = ui.input("Key", value=letter.key or "").props("outlined dense")
        if text is None:
            ui.label("Its body is no text, or too large to be edited here: it stays as it is.").classes("tl-sub")
        else:
            body = ui.textarea("Body", value=text).props("outlined dense autogrow").classes("tl-mono")


def _rest(reasons: Reasons, top: list[tuple[str, int]]) -> str:
    rest = len(reasons.counts) - len(top)
    if not rest:
        return ""
    more = " and more" if reasons.others else ""
    count = reasons.others + reasons.counts.total() - sum(count for _, count in top)
    return f"and {many(rest, 'other reason')}{more}: {many(count, 'dead letter')}"
