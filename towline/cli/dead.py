"""`towline dead`: messages that were given up, and sending them again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from towline.cli.options import Connection, Usage
from towline.cli.output import Output, note, print_json, print_table, stamp
from towline.cli.render import preview, text_or_base64

if TYPE_CHECKING:
    from towline.client.blocking import Client
    from towline.client.message import DeadLetter

__all__ = ["dead"]

dead = App(name="dead", help="Dead letters: messages that were given up, and sending them again.")

Topic = Annotated[str, Parameter(help="The topic.")]
Group = Annotated[str, Parameter(help="The group that gave them up.")]

PAGE = 1_000


@dead.command
def ls(
    topic: Topic,
    group: Group,
    /,
    *,
    first: Annotated[int, Parameter(help="Begin with this number.")] = 0,
    limit: Annotated[int, Parameter(name=("--limit", "-n"), help="Show at most so many.")] = 100,
    all_: Annotated[
        bool, Parameter(name="--all", negative=(), show_default=False, help="Show also those that were sent again.")
    ] = False,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """List the dead letters of a group: when and why they died, at which attempt, and which messages they were.

    The numbers are what `towline dead resend` takes.
    """
    shown: list[DeadLetter] = []
    with connection.connect() as client:
        for letter in _letters(client, topic, group, first):
            if len(shown) == limit:
                note(f"there are more: --first {letter.number}, or a larger --limit")
                break
            if all_ or not letter.resent:
                shown.append(letter)
    if output == "json":
        for letter in shown:
            print_json(_facts(letter))
        return
    rows = [
        (
            letter.number,
            stamp(letter.died_at_us),
            letter.attempt,
            letter.origin,
            letter.key or "",
            "resent" if letter.resent else "",
            letter.reason,
            preview(letter.body),
        )
        for letter in shown
    ]
    print_table(
        ("#NUMBER", "DIED AT", "#ATTEMPT", "MESSAGE", "KEY", "STATE", "REASON", "BODY"), rows, empty="no dead letters"
    )


def _letters(client: Client, topic: str, group: str, first: int) -> Iterator[DeadLetter]:
    while True:
        page = client.dead_letters(topic, group, first=first, max_messages=PAGE)
        yield from page
        if page.next <= first or page.next >= page.end:
            return
        first = page.next


@dead.command
def resend(
    topic: Topic,
    group: Group,
    *numbers: Annotated[int, Parameter(help="The numbers of the dead letters, as `towline dead ls` shows them.")],
    all_: Annotated[
        bool, Parameter(name="--all", negative=(), show_default=False, help="All of them that were not sent again yet.")
    ] = False,
    limit: Annotated[
        int | None, Parameter(name=("--limit", "-n"), help="With --all: the oldest so many of them.")
    ] = None,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Deliver dead letters to their group again, counting attempts from one."""
    if bool(numbers) == all_:
        raise Usage("say which: give their numbers, or --all")
    if limit is not None and (not all_ or limit < 1):
        raise Usage("--limit is at least 1, and goes with --all")
    with connection.connect() as client:
        chosen = list(numbers) if limit is None else _oldest(client, topic, group, limit)
        count = client.resend(topic, group, chosen or None) if chosen or limit is None else 0
        left = client.group(topic, group).dead
    if output == "json":
        print_json({"topic": topic, "group": group, "resent": count, "left": left})
    else:
        print(f"resent {count:,} dead letters, {left:,} left")


def _oldest(client: Client, topic: str, group: str, limit: int) -> list[int]:
    waiting = (letter.number for letter in _letters(client, topic, group, 0) if not letter.resent)
    return list(islice(waiting, limit))


def _facts(letter: DeadLetter) -> dict[str, Any]:
    body, encoding = text_or_base64(letter.body)
    return {
        "number": letter.number,
        "origin": letter.origin,
        "attempt": letter.attempt,
        "reason": letter.reason,
        "died_at": stamp(letter.died_at_us),
        "resent": letter.resent,
        "key": letter.key,
        "headers": letter.headers,
        "encoding": encoding,
        "body": body,
    }
