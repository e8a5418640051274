"""`towline group reset|pause|resume`: where groups go on, and whether they do."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from towline.cli.confirm import DryRun, Yes, confirm
from towline.cli.options import Connection, Usage
from towline.cli.output import Output, many, note, print_json, print_table
from towline.cli.times import parse_start
from towline.clock import SYSTEM
from towline.model import LANES, Priority

if TYPE_CHECKING:
    from towline.client.requests import Target
    from towline.protocol.ordering import Sought

__all__ = ["register"]

Topic = Annotated[str, Parameter(help="The topic.")]
Name = Annotated[str, Parameter(help="The group's name; `~NAME` is the consumer NAME that has no group.")]


def register(group: App) -> None:
    for command in (reset, pause, resume):
        group.command(command)


def reset(
    topic: Topic,
    name: Name,
    /,
    *,
    to: Annotated[
        str,
        Parameter(
            help="Where the group goes on: earliest, latest, a time (`2026-05-01T12:00Z`), how long ago (`10m`), or "
            "`LANE=NUMBER,…` for some lanes, such as `middle=17` or, in an ordered topic, the shards `0=17,3=4`."
        ),
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> int:
    """Let a group go on elsewhere.

    Backwards, everything from there on is delivered again. Forwards, everything up to there is passed over, also what
    waits to be tried again. Consumers lose what they hold of these messages.
    """
    target = _target(to)
    with connection.connect() as client:
        sought = client.seek(topic, name, target, dry_run=True)
        if not dry_run:
            question = f"Move group {name} of topic {topic}: {sought.again:,} again, {sought.passed:,} passed over?"
            if not confirm(question, yes=yes):
                note("nothing was moved")
                return 1
            sought = client.seek(topic, name, target)
    if output == "json":
        print_json(_facts(topic, name, sought, dry_run=dry_run))
        return 0
    rows = [(lane, f"{at:,}", f"{end:,}") for lane, at, end in sought.moves if at != end]
    print_table(("LANE", "#FROM", "#TO"), rows, empty="it is there already")
    would = "would be " if dry_run else ""
    print(f"{many(sought.again, 'message')} {would}delivered again, {sought.passed:,} {would}passed over")
    return 0


def pause(
    topic: Topic,
    name: Name,
    /,
    *,
    reason: Annotated[str, Parameter(help="Why; it is shown with the group.")] = "",
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Let a group rest: its consumers get nothing until it is resumed."""
    with connection.connect() as client:
        client.pause(topic, name, reason)
    if output == "json":
        print_json({"topic": topic, "group": name, "paused": True, "reason": reason})


def resume(
    topic: Topic,
    name: Name,
    /,
    *,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Let a paused group go on."""
    with connection.connect() as client:
        client.resume(topic, name)
    if output == "json":
        print_json({"topic": topic, "group": name, "paused": False})


def _target(text: str) -> Target:
    if "=" in text:
        return dict(_position(part) for part in text.split(","))
    try:
        start = parse_start(text, SYSTEM.now_us())
    except ValueError as error:
        raise Usage(str(error).replace("--from", "--to")) from None
    if start.where == "seq":
        raise Usage(f"--to {text}: say of which lane, for example middle={text}")
    return datetime.fromtimestamp(start.time_us / 1e6, UTC) if start.where == "time" else start.where


def _position(text: str) -> tuple[Priority | int, int]:
    lane, _, seq = text.strip().partition("=")
    known: Priority | int | None = next((one for one in LANES if one == lane), None)
    if known is None and lane.isascii() and lane.isdigit():
        known = int(lane)
    if known is None or not (seq.isascii() and seq.isdigit()):
        raise Usage(f"--to {text!r} is not LANE=NUMBER: lanes are high, middle and low, or numbers of shards")
    return known, int(seq)


def _facts(topic: str, name: str, sought: Sought, *, dry_run: bool) -> dict[str, object]:
    return {
        "topic": topic,
        "group": name,
        "dry_run": dry_run,
        "again": sought.again,
        "passed": sought.passed,
        "moves": [{"lane": lane, "from": at, "to": end} for lane, at, end in sought.moves],
    }
