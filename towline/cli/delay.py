"""`towline delay`: delayed messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from towline.cli.confirm import DryRun
from towline.cli.delivery_time import when
from towline.cli.options import Connection, Usage
from towline.cli.output import Output, about, many, note, print_json, print_table, size, stamp
from towline.cli.times import Duration

if TYPE_CHECKING:
    from towline.client.admin.delayed import DelayedEntry

__all__ = ["delay", "delayed_facts"]

delay = App(name="delay", help="Delayed messages: list, cancel and move what waits for its time.")

Topic = Annotated[str, Parameter(help="The topic.")]
Id = Annotated[str | None, Parameter(help="The id of the message, as `send` printed it or `delay ls` shows it.")]
Key = Annotated[str | None, Parameter(name=("--key", "-k"), help="All messages with this key, instead of one by id.")]


@delay.command
def ls(
    topic: Annotated[str | None, Parameter(help="The topic; without it, all.")] = None,
    /,
    *,
    limit: Annotated[int, Parameter(name=("--limit", "-n"), help="Show at most so many.")] = 100,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """List the messages that wait for their time, soonest first."""
    shown: list[DelayedEntry] = []
    with connection.connect() as client:
        while len(shown) <= limit:
            page = client.delayed(topic, after=shown[-1] if shown else None, max_messages=min(limit + 1, 1_000))
            shown += page
            if not page:
                break
    if len(shown) > limit:
        note("there are more: use a larger --limit")
        del shown[limit:]
    if output == "json":
        for entry in shown:
            print_json(delayed_facts(entry))
        return
    now_s = datetime.now(UTC).timestamp()
    rows = [
        (
            entry.id,
            stamp(entry.deliver_at_us),
            about(entry.deliver_at_us / 1e6 - now_s),
            entry.lane,
            entry.key or "",
            size(entry.size_bytes),
        )
        for entry in shown
    ]
    print_table(("MESSAGE", "DUE AT", "#IN", "LANE", "KEY", "#SIZE"), rows, empty="no delayed messages")


@delay.command
def cancel(
    topic: Topic,
    message: Id = None,
    /,
    *,
    key: Key = None,
    dry_run: DryRun = False,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Cancel delayed messages: one by its id, or all with a key. They will not be delivered."""
    _check(message, key)
    with connection.connect() as client:
        count = client.cancel(topic, message, key=key, dry_run=dry_run)
    if output == "json":
        print_json({"topic": topic, "cancelled": 0 if dry_run else count, "found": count, "dry_run": dry_run})
    else:
        print(f"{'would cancel' if dry_run else 'cancelled'} {many(count, 'delayed message')}")


@delay.command
def move(
    topic: Topic,
    message: Id = None,
    /,
    *,
    key: Key = None,
    delay: Annotated[Duration | None, Parameter(help="Deliver it so long from now, for example `30s`.")] = None,
    at: Annotated[
        str | None,
        Parameter(
            help="Deliver it at this time: `2026-05-01T12:00` in this machine's time zone, `2026-05-01T12:00Z` in UTC, "
            "or Unix time."
        ),
    ] = None,
    delay_level: Annotated[int | None, Parameter(help="A delay of the broker's table, by number.")] = None,
    dry_run: DryRun = False,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Deliver delayed messages at another time: one by its id, or all with a key."""
    _check(message, key)
    chosen: dict[str, Any] = when(delay, at, delay_level)
    if not chosen:
        raise Usage("say when: --delay, --at or --delay-level")
    with connection.connect() as client:
        count = client.reschedule(topic, message, key=key, dry_run=dry_run, **chosen)
    if output == "json":
        print_json({"topic": topic, "moved": 0 if dry_run else count, "found": count, "dry_run": dry_run})
    else:
        print(f"{'would move' if dry_run else 'moved'} {many(count, 'delayed message')}")


def _check(message: str | None, key: str | None) -> None:
    if (message is None) == (key is None):
        raise Usage("say which: give the id of a message, or --key")


def delayed_facts(entry: DelayedEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "topic": entry.topic,
        "lane": entry.lane,
        "priority": entry.priority,
        "deliver_at": stamp(entry.deliver_at_us),
        "produced_at": stamp(entry.produced_at_us),
        "key": entry.key,
        "size_bytes": entry.size_bytes,
    }
