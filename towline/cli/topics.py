"""`towline topic`: make, list, look at and remove topics."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from towline.cli.confirm import DryRun, Yes, confirm, tell
from towline.cli.options import Connection, Usage
from towline.cli.output import Output, many, note, print_json, print_pairs, print_table, size, span, stamp
from towline.cli.times import Duration, parse_duration
from towline.client._sync.client import Client
from towline.errors import Conflict
from towline.model import TopicConfig
from towline.protocol.messages import TopicState

__all__ = ["topic"]

topic = App(name="topic", help="Make, list, look at and remove topics.")

Name = Annotated[str, Parameter(help="The topic's name.")]
Line = Annotated[str | None, Parameter(help="The business line (application, team) that it belongs to.")]
Author = Annotated[str | None, Parameter(help="Whom to ask about it.")]
Emails = Annotated[
    list[str] | None,
    Parameter(
        name="--alarm-email",
        negative=(),
        help="Who is told of alarms about it; may be given several times. An empty one removes all.",
    ),
]


@topic.command
def create(
    name: Name,
    /,
    *,
    retention: Annotated[
        Duration | None,
        Parameter(
            help="How long its messages are kept, for example `7d`; 0 is for ever. Without it, the broker decides."
        ),
    ] = None,
    shards: Annotated[
        int,
        Parameter(
            help="Make an ordered topic with so many shards: messages with the same shard key are consumed in order. 1 "
            "is serial consumption; 0 is a shared topic with priorities. It cannot be changed later."
        ),
    ] = 0,
    business_line: Line = None,
    author: Author = None,
    alarm_emails: Emails = None,
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Make a topic.

    A broker with --auto-create-topics makes a topic upon the first send to it, so this is only needed to choose its
    settings beforehand. It is an error if the topic exists.
    """
    with connection.connect() as client:
        client.create_topic(
            name,
            retention_s=retention,
            shards=shards,
            business_line=business_line or "",
            author=author or "",
            alarm_emails=[email for email in alarm_emails or () if email],
        )


@topic.command
def edit(
    name: Annotated[str, Parameter(help="The topic's name; none with --template.")] = "",
    /,
    *,
    template: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Of the template, whose settings new topics take over."),
    ] = False,
    retention: Annotated[
        str | None,
        Parameter(help="How long its messages are kept, for example `7d`; 0 is for ever, `default` as the broker."),
    ] = None,
    broker_retention: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Keep messages for as long as the broker's setting says.")
    ] = False,
    business_line: Line = None,
    author: Author = None,
    alarm_emails: Emails = None,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Change the settings of a topic, or of the template for topics that are made by the first send to them.

    What is not given stays as it is; with nothing given the settings are only shown.
    """
    if bool(name) == template:
        raise Usage("say which: the name of a topic, or --template")
    if retention is not None and broker_retention:
        raise Usage("give --retention or --broker-retention, not both")
    try:
        kept_s = None if retention in (None, "default") else parse_duration(retention)
    except ValueError as error:
        raise Usage(f"--retention: {error}") from None
    with connection.connect() as client:
        changed: dict[str, Any] = {}
        if retention is not None or broker_retention:
            changed["retention_s"] = kept_s
        changed |= {} if business_line is None else {"business_line": business_line}
        changed |= {} if author is None else {"author": author}
        changed |= {} if alarm_emails is None else {"alarm_emails": tuple(email for email in alarm_emails if email)}
        config = _template(client, changes=bool(changed)) if template else client.topic(name).config
        if changed:
            config = msgspec.structs.replace(config, **changed)
            client.put_topic(config, template=template)
    if output == "json":
        facts = {"topic": None if template else name, "template": template, "retention_s": config.retention_s}
        print_json(facts | _about(config))
    else:
        print_pairs(
            [
                ("topic", "template" if template else name),
                ("retention", _kept(config.retention_s)),
                ("business line", config.business_line or "none"),
                ("author", config.author or "none"),
                ("alarm e-mails", ", ".join(config.alarm_emails) or "none"),
            ]
        )


@topic.command
def ls(*, output: Output = "text", connection: Connection = Connection()) -> None:  # noqa: B008
    """List all topics, with the messages they hold."""
    with connection.connect() as client:
        states = client.topics()
    if output == "json":
        for state in states:
            print_json(_facts(state))
        return
    columns = ("TOPIC", "#MESSAGES", "#SIZE", "#GROUPS", "RETENTION", "KIND")
    rows = [
        (
            state.config.name,
            f"{sum(lane.end - lane.first for lane in state.lanes):,}",
            size(sum(lane.size_bytes for lane in state.lanes)),
            len(state.groups),
            _retention(state),
            _kind(state),
        )
        for state in states
    ]
    print_table(columns, rows, empty="no topics")


@topic.command
def info(name: Name, /, *, output: Output = "text", connection: Connection = Connection()) -> None:  # noqa: B008
    """Show a topic: its lanes, its groups and its settings."""
    with connection.connect() as client:
        state = client.topic(name)
    if output == "json":
        print_json(_facts(state))
        return
    print_pairs(
        [
            ("topic", state.config.name),
            ("created", stamp(state.config.created_at_us)),
            ("retention", _retention(state)),
            ("kind", _kind(state)),
            ("groups", ", ".join(state.groups) or "none"),
            ("delayed", f"{state.delayed:,}"),
            ("business line", state.config.business_line or "none"),
            ("author", state.config.author or "none"),
            ("alarm e-mails", ", ".join(state.config.alarm_emails) or "none"),
        ]
    )
    rows = [
        (lane.lane, f"{lane.first:,}", f"{lane.end:,}", f"{lane.end - lane.first:,}", size(lane.size_bytes))
        for lane in state.lanes
    ]
    print_table(("LANE", "#FIRST", "#END", "#MESSAGES", "#SIZE"), rows, empty="no lanes")


@topic.command
def rm(
    name: Name,
    /,
    *,
    broker: Annotated[
        str | None,
        Parameter(
            help="In a cluster whose brokers keep their own messages: only at this one (its name or address), which "
            "takes the topic over as the others have it."
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> int:
    """Remove a topic with its messages, its groups and their dead letters. This cannot be undone."""
    with connection.connect() as client:
        state = client.topic(name, broker=broker)
        count = sum(lane.end - lane.first for lane in state.lanes)
        delayed = f", {many(state.delayed, 'delayed message')}" if state.delayed else ""
        what = f"topic {name} with {many(count, 'message')}{delayed} and {many(len(state.groups), 'group')}"
        what += f" at broker {broker}" if broker is not None else ""
        if not dry_run:
            if not confirm(f"Remove {what}?", yes=yes):
                note("nothing was removed")
                return 1
            client.delete_topic(name, broker=broker)
    facts = _facts(state)
    kept = {one: facts[one] for one in ("topic", "messages", "size_bytes", "delayed", "groups")}
    tell(f"remove {what}", kept, dry_run=dry_run, output=output)
    return 0


@topic.command
def purge(
    name: Name,
    /,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> int:
    """Drop all messages of a topic. Its groups go on with what comes then; dead letters are kept."""
    with connection.connect() as client:
        purged = client.purge(name, dry_run=True)
        if not dry_run:
            if not confirm(f"Drop all {purged.messages:,} messages of topic {name}?", yes=yes):
                note("nothing was dropped")
                return 1
            purged = client.purge(name)
    if output == "json":
        groups = [{"group": group, "passed": passed} for group, passed in purged.groups]
        facts = {"topic": name, "dry_run": dry_run, "messages": purged.messages, "size_bytes": purged.size_bytes}
        print_json(facts | {"groups": groups})
        return 0
    would = "would be dropped" if dry_run else "were dropped"
    print(f"{purged.messages:,} messages, {size(purged.size_bytes)}, {would}")
    rows = [(group, f"{passed:,}") for group, passed in purged.groups]
    print_table(("GROUP", "#NOT CONSUMED"), rows, empty="no groups")
    return 0


def _template(client: Client, *, changes: bool) -> TopicConfig:
    """The template; brokers with different ones get one by a change, which begins from the first one's."""
    try:
        return client.template()
    except Conflict:
        if not changes:
            raise
        return client.template(broker=client.separate_brokers()[0])


def _retention(state: TopicState) -> str:
    return _kept(state.config.retention_s)


def _kept(kept_s: float | None) -> str:
    return "broker's" if kept_s is None else span(kept_s) if kept_s else "for ever"


def _kind(state: TopicState) -> str:
    shards = state.config.shards
    return f"ordered, {shards} shard{'s' if shards > 1 else ''}" if shards else "shared"


def _about(config: TopicConfig) -> dict[str, Any]:
    return {
        "business_line": config.business_line,
        "author": config.author,
        "alarm_emails": list(config.alarm_emails),
    }


def _facts(state: TopicState) -> dict[str, Any]:
    return _about(state.config) | {
        "topic": state.config.name,
        "created_at": stamp(state.config.created_at_us),
        "retention_s": state.config.retention_s,
        "shards": state.config.shards,
        "messages": sum(lane.end - lane.first for lane in state.lanes),
        "size_bytes": sum(lane.size_bytes for lane in state.lanes),
        "lanes": [
            {"lane": lane.lane, "first": lane.first, "end": lane.end, "size_bytes": lane.size_bytes}
            for lane in state.lanes
        ],
        "groups": state.groups,
        "delayed": state.delayed,
    }
