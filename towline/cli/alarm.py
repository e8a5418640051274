"""`towline alarm`: rules that tell people when something is wrong."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from towline.alarms.rule import UNITS, AlarmRule, What
from towline.cli.confirm import DryRun, Yes, confirm, tell
from towline.cli.options import Connection
from towline.cli.output import Output, figure, note, print_json, print_table, span, stamp
from towline.cli.times import Duration
from towline.errors import NotFound

__all__ = ["alarm"]

alarm = App(
    name="alarm",
    help="Rules that tell people when something is wrong.\n\n"
    "The broker looks every few seconds: at dead letters, failures, backlog by count and by age, groups without a "
    "consumer, and its disk. It tells by e-mail (`towline serve --smtp`) and by webhooks: once when it begins, again "
    "after --repeat, and once when it is over.",
)

Name = Annotated[str, Parameter(help="The rule's name.")]


@alarm.command
def ls(
    *,
    show: Annotated[
        Literal["rules", "active", "notices"],
        Parameter(help="The rules, what is an alarm now, or the last notices."),
    ] = "rules",
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """List the rules, what is an alarm now, or the last notices."""
    with connection.connect() as client:
        found = client.alarms()
    rows: list[dict[str, Any]]
    columns: tuple[str, ...]
    lines: list[tuple[object, ...]]
    if show == "rules":
        rows = [_facts(rule) for rule in found.rules]
        columns = ("NAME", "WHAT", "#FROM", "TOPIC", "GROUP", "FOR", "REPEAT", "TELLS", "STATE")
        lines = [
            (
                rule.name,
                rule.what,
                figure(rule.threshold),
                rule.topic,
                rule.group,
                span(rule.for_s),
                span(rule.repeat_s),
                ", ".join([*rule.emails, *rule.webhooks, *(["the topic's"] if rule.topic_emails else [])]),
                "on" if rule.enabled else "off",
            )
            for rule in found.rules
        ]
    elif show == "active":
        rows = [
            {"rule": one.rule, "topic": one.topic, "group": one.group, "value": one.value, "since": stamp(one.since_us)}
            for one in found.active
        ]
        columns = ("RULE", "TOPIC", "GROUP", "#VALUE", "SINCE")
        lines = [(*list(row.values())[:3], figure(row["value"]), row["since"]) for row in rows]
    else:
        rows = [
            {"at": stamp(one.at_us), "subject": one.subject, "to": one.to, "error": one.error} for one in found.told
        ]
        columns = ("AT", "SUBJECT", "TO", "ERROR")
        lines = [(row["at"], row["subject"], ", ".join(row["to"]), row["error"]) for row in rows]
    if output == "json":
        for row in rows:
            print_json(row)
        return
    print_table(columns, lines, empty={"rules": "no alarm rules", "active": "no alarms"}.get(show, "no notices"))
    if show == "rules" and not found.mail and any(rule.emails or rule.topic_emails for rule in found.rules):
        note("the broker knows no mail server (setting smtp): no e-mail is sent")


@alarm.command
def add(
    name: Name,
    what: Annotated[
        What, Parameter(help="What is watched: " + "; ".join(f"{kind}, in {unit}" for kind, unit in UNITS.items()))
    ],
    threshold: Annotated[float, Parameter(help="It is an alarm from this value on; for a disk, below it.")],
    /,
    *,
    topic: Annotated[str, Parameter(help="A topic, a prefix that ends with `*`, or `*` for all.")] = "*",
    group: Annotated[str, Parameter(help="A group, a prefix that ends with `*`, or `*` for all.")] = "*",
    email: Annotated[list[str] | None, Parameter(negative=(), help="Who is told; may be given several times.")] = None,
    webhook: Annotated[
        list[str] | None, Parameter(negative=(), help="An address that is posted to; may be given several times.")
    ] = None,
    topic_emails: Annotated[bool, Parameter(help="Also tell the alarm e-mails of the topic.")] = True,
    lasting: Annotated[Duration, Parameter(help="It must have been so for this long.", show_default="0s")] = 0.0,
    repeat: Annotated[Duration, Parameter(help="Tell again after this long, if it is still so.", show_default="4h")] = 4
    * 3600.0,
    enabled: Annotated[bool, Parameter(help="Whether the rule is in force.")] = True,
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Make a rule, or replace the one of this name.

    For example: `towline alarm add late age 300 --topic "orders.*" --email ops@example.com`
    """
    rule = AlarmRule(
        name,
        what,
        threshold,
        topic,
        group,
        tuple(email or ()),
        tuple(webhook or ()),
        topic_emails,
        lasting,
        repeat,
        enabled,
    )
    with connection.connect() as client:
        client.put_alarm(rule)


@alarm.command
def rm(
    name: Name,
    /,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> int:
    """Remove a rule."""
    with connection.connect() as client:
        if dry_run:
            if name not in {one.name for one in client.alarms().rules}:
                raise NotFound(f"there is no alarm {name}")
        elif not confirm(f"Remove alarm {name}?", yes=yes):
            note("nothing was removed")
            return 1
        else:
            client.drop_alarm(name)
    tell(f"remove alarm {name}", {"alarm": name}, dry_run=dry_run, output=output)
    return 0


@alarm.command(name="test")
def send_test(name: Name, /, *, connection: Connection = Connection()) -> None:  # noqa: B008
    """Send a test notice to all that a rule names, and say what went wrong if something did."""
    with connection.connect() as client:
        client.test_alarm(name)
    note(f"alarm {name}: the test notice was taken")


def _facts(rule: AlarmRule) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(rule)
    return facts
