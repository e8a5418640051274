"""`towline find`: messages by id, key or time."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter

from towline.cli.delay import delayed_facts
from towline.cli.options import Connection, Usage
from towline.cli.output import Output, note, print_json, print_table, stamp
from towline.cli.render import preview, renderer
from towline.cli.times import parse_start
from towline.model import DELAY, parse_message_id

if TYPE_CHECKING:
    from towline.client.admin.delayed import DelayedEntry
    from towline.client.consume.message import Message

__all__ = ["find", "moment"]

DELAYED: Final = "DELAYED"
"""The status of a delayed message: it is in no lane yet, and so new to no group."""


def find(
    topic: Annotated[str, Parameter(help="The topic.")],
    /,
    *,
    id_: Annotated[
        str | None,
        Parameter(
            name="--id",
            help="The message with this id: `orders/middle/42`, or only `middle/42`; or with the id that it got when "
            "it was delayed, `delay/17`.",
        ),
    ] = None,
    key: Annotated[str | None, Parameter(help="Messages with exactly this key.")] = None,
    since: Annotated[
        str | None, Parameter(help="Sent at this time or later: `2026-05-01T12:00Z`, or `10m` for that long ago.")
    ] = None,
    until: Annotated[str | None, Parameter(help="Sent before this time.")] = None,
    priority: Annotated[
        Literal["high", "middle", "low"] | None, Parameter(name=("--priority", "-p"), help="Only of this priority.")
    ] = None,
    limit: Annotated[int, Parameter(name=("--limit", "-n"), help="Show at most so many, the oldest ones.")] = 100,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Find messages by id, by key or by time, whether they were consumed or not. Nothing is changed by it.

    By key and by id, also those that are still delayed: they are shown with the time at which they are due. In its lane
    such a message gets another id; the one it had leads there.
    """
    if id_ is not None and any(given is not None for given in (key, since, until, priority)):
        raise Usage("--id says all: leave out the others")
    if id_ is None and key is None and since is None and until is None:
        raise Usage("say what to look for: --id, --key, --since or --until")
    found: list[Message] = []
    waiting: list[DelayedEntry] = []
    with connection.connect() as client:
        if id_ is not None:
            whole = id_ if id_.startswith(f"{topic}/") else f"{topic}/{id_}"
            if whole.startswith(f"{topic}/{DELAY}/"):
                waiting = client.delayed(topic, id=whole)
            if not waiting:
                parse_message_id(whole)
                found = [client.message(whole)]
        else:
            since_s, until_s = moment("--since", since), moment("--until", until)
            found = client.find(topic, key=key, since=since_s, until=until_s, priority=priority, limit=limit)
            if key is not None and since is None and until is None:
                waiting = client.delayed(topic, key=key, max_messages=limit)
                waiting = [one for one in waiting if priority in (None, one.lane)][: limit - len(found)]
    if output == "json":
        show = renderer("json")
        for message in found:
            sys.stdout.buffer.write(show(message))
        sys.stdout.buffer.flush()
        for one in waiting:
            print_json(delayed_facts(one) | {"status": DELAYED})
        return
    rows = [(m.id, stamp(m.appended_at_us), m.key or "", m.source, m.token, preview(m.body)) for m in found]
    rows += [
        (one.id, stamp(one.produced_at_us), one.key or "", "", "", f"{DELAYED}, due {stamp(one.deliver_at_us)}")
        for one in waiting
    ]
    print_table(("MESSAGE", "SENT AT", "KEY", "FROM", "BY", "BODY"), rows, empty="no such message")
    if len(rows) == limit:
        note("there may be more: a larger --limit shows them")


def moment(flag: str, text: str | None) -> float | None:
    """A time as people type it, as Unix time."""
    if text is None:
        return None
    try:
        start = parse_start(text, time.time_ns() // 1000)
    except ValueError as error:
        raise Usage(str(error).replace("--from", flag)) from None
    if start.where != "time":
        raise Usage(f"{flag} {text!r}: give a time (2026-05-01T12:00, 2026-05-01T12:00Z) or how long ago (10m)")
    return start.time_us / 1e6
