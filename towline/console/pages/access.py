"""Access: users, tokens and rules. The broker decides who may change them; this page only asks."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from towline.console.dialogs import confirm, form
from towline.console.frame import View, act, badge, button, console_page, empty, go, head, panel
from towline.console.table import Column, Query, Table
from towline.console.words import plain
from towline.errors import TowlineError
from towline.protocol.access import ACTIONS, RESOURCES, TokenMade

__all__ = ["access_page"]

DAY_S = 86400.0


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


async def _users(view: View) -> None:
    try:
        users = await view.mq.access.users()
    except TowlineError as error:
        with panel("Users"):
            empty("lock", "You may not see them", str(error))
        return

    async def fetch(query: Query) -> tuple[int, list[dict[str, Any]]]:
        rows = [
            {
                "id": one.name,
                "name": one.name,
                "roles": ", ".join(one.roles) or "–",
                "state": {"text": "disabled", "tone": "bad"} if one.disabled else {"text": "active", "tone": "good"},
                "password": "yes" if one.has_password else "no",
                "made": view.moment(one.created_at_us),
            }
            for one in users[query.first : query.first + query.limit]
        ]
        return len(users), rows

    columns = [
        Column("name", "User"), Column("roles", "Roles"), Column("state", "State", "badge"),
        Column("password", "Password", wide=True), Column("made", "Made", wide=True),
    ]  # fmt: skip
    with panel("Users"):
        table = Table(columns, fetch, nothing=("person", "No users", ""), select=True)
        await table.load()
        with ui.element("div").classes("tl-row"):
            button("New user", icon="person_add", on_click=lambda: _new_user(view)).classes("tl-plain")
            button("Delete selected …", on_click=lambda: _delete_users(view, table.selected)).classes("tl-danger")


async def _tokens(view: View) -> None:
    try:
        tokens = await view.mq.access.tokens()
    except TowlineError as error:
        with panel("Tokens"):
            empty("lock", "You may not see them", str(error))
        return

    async def fetch(query: Query) -> tuple[int, list[dict[str, Any]]]:
        rows = [
            {
                "id": one.name,
                "name": one.name,
                "owner": one.owner or "–",
                "scopes": ", ".join(f"{s.action} {s.resource} {s.name}" for s in one.scopes) or "all its owner may",
                "expires": ", ".join(view.moment(s.expires_at_us) if s.expires_at_us else "never" for s in one.secrets),
                "used": view.moment(max((s.last_used_us for s in one.secrets), default=0)),
            }
            for one in tokens[query.first : query.first + query.limit]
        ]
        return len(tokens), rows

    columns = [
        Column("name", "Token"), Column("owner", "Of"), Column("scopes", "May", "cut", wide=True),
        Column("expires", "Expires"), Column("used", "Last used", wide=True),
    ]  # fmt: skip
    with panel("Tokens"):
        table = Table(columns, fetch, nothing=("key", "No tokens", "Programs log in with tokens."), select=True)
        await table.load()
        with ui.element("div").classes("tl-row"):
            button("New token", icon="add", on_click=lambda: _new_token(view)).classes("tl-plain")
            button("Revoke selected …", on_click=lambda: _revoke(view, table.selected)).classes("tl-danger")


async def _rules(view: View) -> None:
    try:
        found = await view.mq.access.rules()
    except TowlineError as error:
        with panel("Rules"):
            empty("lock", "You may not see them", str(error))
        return

    async def fetch(query: Query) -> tuple[int, list[dict[str, Any]]]:
        rows = [
            {
                "id": str(one.id),
                "effect": {"text": one.effect, "tone": "good" if one.effect == "allow" else "bad"},
                "subject": one.subject,
                "action": one.action,
                "what": f"{one.resource} {one.name}",
                "by": plain(one.created_by),
            }
            for one in found.rules[query.first : query.first + query.limit]
        ]
        return len(found.rules), rows

    columns = [
        Column("effect", "", "badge"), Column("subject", "Who"), Column("action", "May"), Column("what", "On"),
        Column("by", "Made by", wide=True),
    ]  # fmt: skip
    with panel("Rules", "a deny beats every allow; what no rule allows is refused"):
        table = Table(columns, fetch, nothing=("rule", "No rules", "Roles alone say who may what."), select=True)
        await table.load()
        with ui.element("div").classes("tl-row"):
            button("New rule", icon="add", on_click=lambda: _new_rule(view)).classes("tl-plain")
            button("Remove selected …", on_click=lambda: _drop_rules(view, table.selected)).classes("tl-danger")
        for role, grants in sorted(found.roles.items()):
            with ui.element("div").classes("tl-row"):
                badge(f"role:{role}", "accent")
                ui.label(", ".join(f"{one.action} {one.resource}" for one in grants)).classes("tl-sub")


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
        done = await act(made, "The user was made")
        if done:
            go("/access")
        return done

    with form("New user", "Make it", save):
        name = ui.input("Name").props("outlined dense autofocus maxlength=64")
        password = ui.input("Password", password=True).props('outlined dense autocomplete="new-password"')
        roles = ui.input("Roles").props("outlined dense")


async def _delete_users(view: View, names: list[str]) -> None:
    if names and await confirm(
        view, "Delete users?", ", ".join(names) + ": with their tokens and rules.", label="Delete"
    ):
        for name in names:
            await act(view.mq.access.delete_user(name), f"{name} was deleted")
        go("/access")


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
    if names and await confirm(
        view, "Revoke tokens?", ", ".join(names) + ": their connections are closed.", label="Revoke"
    ):
        for name in names:
            await act(view.mq.access.revoke_token(name), f"{name} was revoked")
        go("/access")


def _new_rule(view: View) -> None:
    async def save() -> bool:
        add = view.mq.access.allow if effect.value == "allow" else view.mq.access.deny
        done = await act(
            add((who.value or "").strip(), action.value, resource.value, (name.value or "*").strip()),
            "The rule was made",
        )
        if done:
            go("/access")
        return done

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
    if ids and await confirm(view, "Remove rules?", f"{len(ids):,} rules.", label="Remove"):
        for one in ids:
            await act(view.mq.access.drop_rule(int(one)), "Removed")
        go("/access")
