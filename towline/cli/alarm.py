"""`towline alarm`: rules that send notices when something is wrong."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from towline.alarms.rule import UNITS, AlarmRule, What
from towline.cli.confirm import DryRun, Yes, confirm, tell
from towline.cli.delivery_time import parse_time
from towline.cli.options import Connection, Usage
from towline.cli.output import Output, figure, note, print_json, print_table, span, stamp
from towline.cli.times import Duration
from towline.clock import SYSTEM
from towline.errors import NotFound

__all__ = ["alarm"]

alarm = App(
    name="alarm",
    help="Rules that tell people when something is wrong.\n\n"
    "The broker looks every few seconds: at dead letters, failures, backlog by count and by age, groups without a "
    "consumer, and its disk. It tells by e-mail (`towline serve --smtp`) and by webhooks: once when it begins, again "
    "after --repeat, and once when it is over; nobody, while a rule is silenced.",
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
                _state(rule),
            )
            for rule in found.rules
        ]
    elif show == "active":
        rules = {rule.name: rule for rule in found.rules}
        rows = [
            {
                "rule": one.rule,
                "topic": one.topic,
                "group": one.group,
                "value": one.value,
                "since": stamp(one.since_us),
                **_silence(rules.get(one.rule)),
            }
            for one in found.active
        ]
        columns = ("RULE", "TOPIC", "GROUP", "#VALUE", "SINCE", "STATE")
        lines = [(*list(row.values())[:3], figure(row["value"]), row["since"], _quiet(row)) for row in rows]
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


@alarm.command
def silence(
    name: Name,
    /,
    *,
    lasting: Annotated[
        Duration | None, Parameter(name="--for", help="For how long, such as 30m, 2h or 3d.", show_default=False)
    ] = None,
    until: Annotated[
        str | None, Parameter(help="Until when, such as 2026-05-01T12:00 (by this machine's time zone).")
    ] = None,
    reason: Annotated[str, Parameter(help="Why, for those who wonder.")],
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Tell nobody of a rule for a while, or until a time.

    What is an alarm is still listed. If it still is one when the silence is over, it is told then; what is over by
    then, nobody hears of. `towline alarm unsilence` ends it earlier.

    For example: `towline alarm silence late --for 2h --reason "the warehouse moves"`
    """
    if (lasting is None) == (until is None):
        raise Usage("give --for or --until")
    end_s = parse_time(until) if until is not None else SYSTEM.now_us() / 1e6 + (lasting or 0.0)
    with connection.connect() as client:
        client.silence_alarm(name, reason, until=end_s)
    shown = stamp(round(end_s * 1e6))
    if output == "json":
        print_json({"alarm": name, "silenced_until": shown, "silence_reason": reason})
    else:
        note(f"alarm {name} is silenced until {shown}")


@alarm.command
def unsilence(name: Name, /, *, output: Output = "text", connection: Connection = Connection()) -> None:  # noqa: B008
    """Tell of a rule again, before its silence is over. What is an alarm then is told."""
    with connection.connect() as client:
        client.unsilence_alarm(name)
    if output == "json":
        print_json({"alarm": name, "silenced_until": None})


@alarm.command(name="test")
def send_test(name: Name, /, *, connection: Connection = Connection()) -> None:  # noqa: B008
    """Send a test notice to all that a rule names, and say what went wrong if something did."""
    with connection.connect() as client:
        client.test_alarm(name)
    note(f"alarm {name}: the test notice was taken")


def _facts(rule: AlarmRule) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(rule)
    del facts["silenced_until_us"]
    return facts | _silence(rule)


def _silence(rule: AlarmRule | None) -> dict[str, Any]:
    if rule is None or not rule.silenced_until_us:
        return {"silenced_until": None, "silence_reason": ""}
    return {"silenced_until": stamp(rule.silenced_until_us), "silence_reason": rule.silence_reason}


def _quiet(facts: dict[str, Any]) -> str:
    until = facts["silenced_until"]
    return f"silenced until {until}: {facts['silence_reason']}" if until else ""


def _state(rule: AlarmRule) -> str:
    return (_quiet(_silence(rule)) or "on") if rule.enabled else "off"
