"""Access: users, tokens and rules. The broker decides who may change them; this page only asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from nicegui import ui

from towline.console.layout import View, act, badge, button, console_page, empty, go, head, panel
from towline.console.number_format import many, plain
from towline.console.widgets.dialogs import confirm, form
from towline.console.widgets.table import Column, Query, Table
from towline.errors import TowlineError
from towline.protocol.access import ACTIONS, RESOURCES, Grant, Rule, TokenMade, TokenState, UserState

__all__ = ["access_page"]

DAY_S = 86400.0
T = TypeVar("T")


@console_page("/access", "Access")
async def access_page(view: View) -> None:
    me = await view.mq.access.who_am_i()
    with head("Access", "Users, tokens, and what they may do"):
        pass
    if not me.security:
        with panel():
            empty(
                "lock_open", "This broker has no security", "Whoever reaches it may do everything. Switch it on with:",
                "towline serve --security",
            )  # fmt: skip
        return
    with panel("You"), ui.element("div").classes("tl-row"):
        ui.label(me.user or me.name).style("font-weight:600")
        for role in me.roles:
            badge(role, "accent")
        if me.expires_at_us:
            ui.label(f"until {view.moment(me.expires_at_us)}").classes("tl-sub")
        ui.element("div").classes("tl-grow")
        button("Change the password …", on_click=lambda: _password(view, me.user or me.name)).classes("tl-plain")
    await _users(view)
    await _tokens(view)
    await _rules(view)


async def _panel(
    view: View,
    title: str,
    found: Callable[[], Awaitable[Sequence[T]]],
    row: Callable[[T], dict[str, Any]],
    columns: list[Column],
    *,
    about: str = "",
    nothing: tuple[str, str, str],
    new: tuple[str, Callable[[View], None]],
    drop: tuple[str, Callable[[View, list[str]], Awaitable[None]]],
) -> None:
    """A list of one kind, with actions to make and remove; or why it may not be seen."""
    try:
        all_ = await found()
    except TowlineError as error:
        with panel(title):
            empty("lock", "You may not see them", str(error))
        return

    async def fetch(query: Query) -> tuple[int, list[dict[str, Any]]]:
        return len(all_), [row(one) for one in all_[query.first : query.first + query.limit]]

    with panel(title, about):
        table = Table(columns, fetch, nothing=nothing, select=True)
        await table.load()
        with ui.element("div").classes("tl-row"):
            button(new[0], icon="add", on_click=lambda: new[1](view)).classes("tl-plain")
            button(drop[0], on_click=lambda: drop[1](view, table.selected)).classes("tl-danger")


async def _users(view: View) -> None:
    def row(one: UserState) -> dict[str, Any]:
        return {
            "id": one.name,
            "name": one.name,
            "roles": ", ".join(one.roles) or "–",
            "state": {"text": "disabled", "tone": "bad"} if one.disabled else {"text": "active", "tone": "good"},
            "password": "yes" if one.has_password else "no",
            "made": view.moment(one.created_at_us),
        }

    columns = [
        Column("name", "User"), Column("roles", "Roles"), Column("state", "State", "badge"),
        Column("password", "Password", wide=True), Column("made", "Made", wide=True),
    ]  # fmt: skip
    await _panel(
        view, "Users", view.mq.access.users, row, columns, nothing=("person", "No users", ""),
        new=("New user", _new_user), drop=("Delete selected …", _delete_users),
    )  # fmt: skip


async def _tokens(view: View) -> None:
    def row(one: TokenState) -> dict[str, Any]:
        return {
            "id": one.name,
            "name": one.name,
            "owner": one.owner or "–",
            "scopes": ", ".join(f"{s.action} {s.resource} {s.name}" for s in one.scopes) or "all its owner may",
            "expires": ", ".join(view.moment(s.expires_at_us) if s.expires_at_us else "never" for s in one.secrets),
            "used": view.moment(max((s.last_used_us for s in one.secrets), default=0)),
        }

    columns = [
        Column("name", "Token"), Column("owner", "Of"), Column("scopes", "May", "cut", wide=True),
        Column("expires", "Expires"), Column("used", "Last used", wide=True),
    ]  # fmt: skip
    await _panel(
        view, "Tokens", view.mq.access.tokens, row, columns,
        nothing=("key", "No tokens", "Programs log in with tokens."),
        new=("New token", _new_token), drop=("Revoke selected …", _revoke),
    )  # fmt: skip


async def _rules(view: View) -> None:
    roles: dict[str, list[Grant]] = {}

    async def found() -> list[Rule]:
        answer = await view.mq.access.rules()
        roles.update(answer.roles)
        return answer.rules

    def row(one: Rule) -> dict[str, Any]:
        return {
            "id": str(one.id),
            "effect": {"text": one.effect, "tone": "good" if one.effect == "allow" else "bad"},
            "subject": one.subject,
            "action": one.action,
            "what": f"{one.resource} {one.name}",
            "by": plain(one.created_by),
        }

    columns = [
        Column("effect", "", "badge"), Column("subject", "Who"), Column("action", "May"), Column("what", "On"),
        Column("by", "Made by", wide=True),
    ]  # fmt: skip
    await _panel(
        view, "Rules", found, row, columns, about="a deny beats every allow; what no rule allows is refused",
        nothing=("rule", "No rules", "Roles alone say who may what."),
        new=("New rule", _new_rule), drop=("Remove selected …", _drop_rules),
    )  # fmt: skip
    if roles:
        with panel("Roles"):
            for role, grants in sorted(roles.items()):
                with ui.element("div").classes("tl-row"):
                    badge(f"role:{role}", "accent")
                    ui.label(", ".join(f"{one.action} {one.resource}" for one in grants)).classes("tl-sub")


async def _made(work: Awaitable[Any], done: str) -> bool:
    """Do it, and show the page anew."""
    if await act(work, done):
        go("/access")
        return True
    return False


async def _each(
    view: View, names: list[str], question: tuple[str, str, str], drop: Callable[[str], Awaitable[Any]], done: str
) -> None:
    """Ask once, then remove one after the other."""
    title, text, label = question
    if names and await confirm(view, title, text, label=label):
        for name in names:
            await act(drop(name), f"{name} {done}")
        go("/access")


def _password(view: View, name: str) -> None:
    async def save() -> bool:
        return await act(
            view.mq.access.change_user(name, password=new.value or "", old_password=old.value or ""), "It was changed"
        )

    with form("Change the password", "Change", save):
        old = ui.input("The old one", password=True).props('outlined dense autocomplete="current-password"')
        new = ui.input("The new one", password=True).props('outlined dense autocomplete="new-password"')


def _new_user(view: View) -> None:
    async def save() -> bool:
        made = view.mq.access.create_user(
            (name.value or "").strip(), password.value or None, roles=(roles.value or "").replace(",", " ").split()
        )
        return await _made(made, "The user was made")

    with form("New user", "Make it", save):
        name = ui.input("Name").props("outlined dense autofocus maxlength=64")
        password = ui.input("Password", password=True).props('outlined dense autocomplete="new-password"')
        roles = ui.input("Roles").props("outlined dense")


async def _delete_users(view: View, names: list[str]) -> None:
    question = ("Delete users?", ", ".join(names) + ": with their tokens and rules.", "Delete")
    await _each(view, names, question, view.mq.access.delete_user, "was deleted")


def _new_token(view: View) -> None:
    async def save() -> bool:
        try:
            made = await view.mq.access.create_token(
                (name.value or "").strip(), owner=(owner.value or "").strip(), expires=float(days.value or 0) * DAY_S
            )
        except TowlineError as error:
            ui.notify(str(error), type="negative")
            return False
        _secret(view, made)
        return True

    with form("New token", "Make it", save, about="Its secret is shown once, and then never again."):
        name = ui.input("Name").props("outlined dense autofocus maxlength=64")
        owner = ui.input("Of which user (empty: yours)").props("outlined dense")
        days = ui.number("Good for so many days (0: for ever)", value=90, min=0).props("outlined dense")


def _secret(view: View, made: TokenMade) -> None:
    with view.main, ui.dialog().props("persistent") as dialog, ui.card().classes("tl-dialog"):
        with ui.element("h2"):
            ui.label(f"The secret of {made.name}")
        ui.label("Keep it now: the broker has only a hash of it.").classes("tl-sub")
        ui.label(made.secret).classes("tl-pre")

        def done() -> None:
            dialog.close()
            go("/access")

        button("I have it", on_click=done).classes("tl-main-act")
    dialog.open()


async def _revoke(view: View, names: list[str]) -> None:
    question = ("Revoke tokens?", ", ".join(names) + ": their connections are closed.", "Revoke")
    await _each(view, names, question, view.mq.access.revoke_token, "was revoked")


def _new_rule(view: View) -> None:
    async def save() -> bool:
        add = view.mq.access.allow if effect.value == "allow" else view.mq.access.deny
        made = add((who.value or "").strip(), action.value, resource.value, (name.value or "*").strip())
        return await _made(made, "The rule was made")

    with form("New rule", "Make it", save):
        with ui.element("div").classes("tl-row"):
            effect = ui.select(["allow", "deny"], value="allow", label="Effect").props("outlined dense")
            who = ui.input("Who: a name, role:NAME or *").props("outlined dense autofocus").classes("tl-grow")
        with ui.element("div").classes("tl-row"):
            action = (
                ui.select(["*", *ACTIONS], value="describe", label="May").props("outlined dense").classes("tl-grow")
            )
            resource = (
                ui.select(["*", *RESOURCES], value="topic", label="On").props("outlined dense").classes("tl-grow")
            )
        name = ui.input("Name, prefix* or *", value="*").props("outlined dense")


async def _drop_rules(view: View, ids: list[str]) -> None:
    question = ("Remove rules?", f"{many(len(ids), 'rule')}.", "Remove")
    await _each(view, ids, question, lambda one: view.mq.access.drop_rule(int(one)), "was removed")
