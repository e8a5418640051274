"""The layout of every page: the user, the navigation, and the small pieces that pages are made of."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import tzinfo
from functools import partial
from typing import Any, Final

from fastapi import Request
from nicegui import ui

from towline.client._async.client import Client
from towline.clock import SYSTEM
from towline.console import number_format
from towline.console.sessions import Session, Sessions
from towline.errors import Closed, Refused, TowlineError

__all__ = [
    "SECTIONS",
    "View",
    "act",
    "badge",
    "button",
    "console_page",
    "empty",
    "facts",
    "figures",
    "go",
    "head",
    "panel",
    "say",
    "use_sessions",
]

log = logging.getLogger("towline.console")

SECTIONS: Final = (
    ("", (("Overview", "/", "space_dashboard"), ("Alarms", "/alarms", "notifications_none"))),
    (
        "Messages",
        (
            ("Topics", "/topics", "dns"),
            ("Groups", "/groups", "hub"),
            ("Messages", "/messages", "mail_outline"),
            ("Dead letters", "/dead", "mark_email_unread"),
            ("Delayed", "/delayed", "schedule"),
            ("Transactions", "/transactions", "sync_alt"),
        ),
    ),
    (
        "Administration",
        (
            ("Cluster", "/cluster", "storage"),
            ("Access", "/access", "key"),
            ("Audit", "/audit", "receipt_long"),
        ),
    ),
)
_sessions: list[Sessions] = []


def use_sessions(sessions: Sessions) -> None:
    """Pages are made by functions that the toolkit calls: this is how they find the sessions."""
    _sessions[:] = [sessions]


class View:
    """One page in one browser: its session, its path, its time zone."""

    def __init__(self, request: Request, session: Session) -> None:
        self.request = request
        self.session = session
        self.zone: tzinfo = number_format.zone_of(request.cookies.get("towline_zone"))
        self.address = request.client.host if request.client else ""
        self.main: ui.element
        """The element of the page: what is made there outlives the dialog that asked for it."""

    @property
    def sessions(self) -> Sessions:
        return _sessions[0]

    @property
    def mq(self) -> Client:
        if self.session.ended:
            raise Refused("your session has ended: load the page again to log in")
        return self.session.client

    def part(self, name: str) -> str:
        """A part of the path."""
        return str(self.request.path_params.get(name, ""))

    def asked(self, name: str, default: str = "") -> str:
        """The query of the address."""
        return self.request.query_params.get(name, default)[:500]

    def moment(self, at_us: int, *, exact: bool = False) -> str:
        return number_format.moment(at_us, self.zone, exact=exact)

    def age(self, at_us: int) -> str:
        return number_format.age(at_us, SYSTEM.now_us())


Builder = Callable[[View], Awaitable[None]]


def console_page(path: str, title: str) -> Callable[[Builder], Builder]:
    """A page of the console. A refusal by the broker is shown in place of the page."""

    def wrap(build: Builder) -> Builder:
        @ui.page(path, title=f"{title} · Towline", response_timeout=20)
        async def show(request: Request) -> None:
            session = request.scope["state"]["session"]
            view = View(request, session)
            ui.on_exception(_unexpected)
            _leave_with(session)
            await _frame(view, path)
            with ui.element("main").classes("tl-main").props('id="main" tabindex="-1"') as main:
                view.main = main
                try:
                    await build(view)
                except TowlineError as error:
                    main.clear()
                    await _failed(view, error)

        return build

    return wrap


def _leave_with(session: Session) -> None:
    """Nothing stays on the screen of a user who is not logged in any more."""
    page = ui.context.client
    session.pages[page.id] = partial(page.run_javascript, "location.reload()")
    page.on_delete(lambda: session.pages.pop(page.id, None))


def _unexpected(error: Exception) -> None:
    """An action failed before it was done: tell the user."""
    say(str(error) if isinstance(error, TowlineError) else "This did not work: see the console's log", bad=True)


async def _failed(view: View, error: TowlineError) -> None:
    if isinstance(error, Refused) and not view.session.secured:
        await view.sessions.everyone_changed()
    kind = {"refused": ("lock", "You may not see this"), "not-found": ("search_off", "There is no such thing")}
    icon, title = kind.get(error.code, ("cloud_off", "This did not work"))
    with ui.element("section").classes("tl-panel"):
        empty(icon, title, str(error))


async def _frame(view: View, path: str) -> None:
    chosen = view.request.cookies.get("towline_theme", "")
    ui.dark_mode({"dark": True, "light": False}.get(chosen))
    ui.add_head_html('<link rel="stylesheet" href="/static/theme.css"><script src="/static/console.js" defer></script>')
    ui.colors(primary="#0b6a8f", negative="#b42331", positive="#1a7f4b", warning="#9a6200")
    ui.link("Skip to the content", "#main").classes("tl-skip")
    with ui.element("header").classes("tl-top"):
        menu = button(icon="menu").props('flat dense round aria-label="Menu"').classes("tl-icon tl-menu")
        menu.on("click", js_handler='() => document.body.classList.toggle("tl-open")')
        with ui.link(target="/").classes("tl-brand"):
            ui.element("span").classes("tl-mark")
            ui.label("Towline")
        ui.element("div").classes("tl-grow")
        await _who(view)
        button(icon="contrast", on_click=_turn).props('flat dense round aria-label="Light or dark"').classes("tl-icon")
    with ui.element("aside").classes("tl-side"):
        _navigation(path)
    veil = ui.element("div").classes("tl-veil")
    veil.on("click", js_handler='() => document.body.classList.remove("tl-open")')


async def _who(view: View) -> None:
    if not view.session.secured:
        return
    ui.label(view.session.name).classes("tl-broker")
    with ui.element("form").props('method="post" action="/logout"'):
        ui.element("input").props(f'type="hidden" name="csrf" value="{view.session.csrf}"')
        button(icon="logout").props('flat dense round type="submit" aria-label="Log out"').classes("tl-icon")


def _turn() -> None:
    ui.run_javascript(
        "const on = document.body.classList.contains('body--dark');"
        "document.cookie = `towline_theme=${on ? 'light' : 'dark'}; path=/; max-age=31536000; samesite=strict`;"
        "location.reload();"
    )


def _navigation(path: str) -> None:
    here = "/" + path.strip("/").split("/")[0]
    with ui.element("nav").classes("tl-nav").props('aria-label="Pages"'):
        for title, pages in SECTIONS:
            if title:
                with ui.element("h2"):
                    ui.label(title)
            for name, target, icon in pages:
                on = target == here or (here == "/message" and target == "/messages")
                with ui.link(target=target).classes("on" if on else "") as link:
                    ui.icon(icon)
                    ui.label(name)
                if on:
                    link.props('aria-current="page"')


# Pieces


@contextmanager
def head(title: str, about: str = "", *, crumb: tuple[str, str] | None = None) -> Iterator[None]:
    """The title of a page, with its actions at the right."""
    with ui.element("div").classes("tl-head"):
        with ui.element("div").classes("tl-grow"):
            if crumb is not None:
                ui.link(crumb[0], crumb[1]).classes("tl-crumb")
            with ui.element("h1"):
                ui.label(title)
            if about:
                ui.label(about).classes("tl-sub")
        with ui.element("div").classes("tl-row"):
            yield


@contextmanager
def panel(title: str = "", about: str = "") -> Iterator[ui.element]:
    """A framed part of a page; the contents of the block go inside."""
    with ui.element("section").classes("tl-panel"):
        if title:
            with ui.element("header"):
                with ui.element("h3"):
                    ui.label(title)
                if about:
                    ui.label(about).classes("tl-sub")
        with ui.element("div").classes("tl-inside") as inside:
            yield inside


def figures(some: Iterable[tuple[str, str, str, str, str]]) -> dict[str, tuple[ui.label, ui.label, ui.element]]:
    """A strip of figures: (name, value, small print, tone, target). Returns the labels, to be changed later."""
    shown = {}
    with ui.element("div").classes("tl-stats"):
        for name, value, small, tone, target in some:
            with ui.link(target=target) if target else ui.element("div") as box:
                box.classes(f"tl-stat {tone}")
                ui.label(name).classes("k")
                shown[name] = (ui.label(value).classes("v"), ui.label(small).classes("s"), box)
    return shown


def facts(pairs: Iterable[tuple[str, str]]) -> None:
    with ui.element("dl").classes("tl-facts").style("margin:0"):
        for name, value in pairs:
            with ui.element("dt"):
                ui.label(name)
            with ui.element("dd"):
                ui.label(value)


def button(text: str = "", *, on_click: Callable[..., Any] | None = None, icon: str | None = None) -> ui.button:
    """A button without a colour of its own: the theme gives its look."""
    return ui.button(text, on_click=on_click, icon=icon, color=None)


def badge(text: str, tone: str = "") -> ui.element:
    with ui.element("span").classes(f"tl-badge {tone}") as shown:
        ui.label(text)
    return shown


def empty(icon: str, title: str, text: str = "", code: str = "") -> None:
    with ui.element("div").classes("tl-empty"):
        ui.icon(icon)
        with ui.element("b"):
            ui.label(title)
        if text:
            ui.label(number_format.plain(text)[:500])
        if code:
            with ui.element("code"):
                ui.label(code)


def say(text: str, *, bad: bool = False) -> None:
    """A short notification at the bottom; an error stays long enough to be read."""
    shown = number_format.plain(text)[:300]
    if bad:
        ui.notify(shown, type="negative", position="bottom", timeout=20_000, close_button="Close")
    else:
        ui.notify(shown, type="positive", position="bottom", timeout=4000)


async def act(work: Awaitable[Any], done: str = "") -> bool:
    """Run an action, and show its result."""
    try:
        await work
    except Closed:
        say("your session has ended: load the page again", bad=True)
    except TowlineError as error:
        say(str(error), bad=True)
    else:
        if done:
            say(done)
        return True
    return False


def go(target: str) -> None:
    ui.navigate.to(target)
