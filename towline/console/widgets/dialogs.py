"""Questions: is this meant, and is it still you? And forms in a dialog."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from nicegui import ui

from towline.console.layout import View, button, say
from towline.errors import TowlineError

__all__ = ["confirm", "form"]


async def confirm(view: View, title: str, text: str, *, label: str, word: str = "", danger: bool = True) -> bool:
    """Ask whether it is meant. With a `word`, that has to be typed; and a user who did not give a password for a while
    has to give it again, because the action cannot be undone."""
    prove = danger and not view.sessions.is_fresh(view.session)
    with ui.dialog() as dialog, ui.card().classes("tl-dialog"):
        with ui.element("h2"):
            ui.label(title)
        ui.label(text).classes("tl-sub")
        typed = ui.input(f"Type {word} to go on").props("outlined dense autofocus") if word else None
        secret = (
            ui.input("Your password, once more", password=True).props(
                'outlined dense autocomplete="current-password" maxlength=512'
            )
            if prove
            else None
        )
        wrong = ui.label("").classes("tl-wrong")

        async def sure() -> None:
            if typed is not None and (typed.value or "").strip() != word:
                wrong.text = f"That is not {word}."
                return
            if secret is not None:
                try:
                    await view.sessions.prove(view.session, view.address, str(secret.value or "")[:512])
                except TowlineError as error:
                    wrong.text = str(error)
                    return
            dialog.submit(True)

        with ui.element("div").classes("tl-row").style("justify-content:flex-end"):
            button("Cancel", on_click=lambda: dialog.submit(False)).classes("tl-plain")
            button(label, on_click=sure).classes("tl-danger" if danger else "tl-main-act").mark("sure")
        for field in (typed, secret):
            if field is not None:
                field.on("keydown.enter", sure)
    answer = await dialog
    dialog.clear()
    return bool(answer)


@contextmanager
def form(title: str, label: str, save: Callable[[], Awaitable[bool]], *, about: str = "") -> Iterator[ui.dialog]:
    """A dialog with fields; it closes when `save` returns that it worked."""
    with ui.dialog() as dialog, ui.card().classes("tl-dialog"):
        with ui.element("h2"):
            ui.label(title)
        if about:
            ui.label(about).classes("tl-sub")
        yield dialog

        async def pressed() -> None:
            try:
                if await save():
                    dialog.close()
            except (TowlineError, ValueError) as error:
                say(str(error), bad=True)

        with ui.element("div").classes("tl-row").style("justify-content:flex-end"):
            button("Cancel", on_click=dialog.close).classes("tl-plain")
            button(label, on_click=pressed).classes("tl-main-act")
    dialog.on("hide", dialog.clear)
    dialog.open()
