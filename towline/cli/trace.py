"""`towline trace`: the life of a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from towline.cli.options import Connection
from towline.cli.output import Output, first_line, print_json, stamp
from towline.cli.render import facts, preview
from towline.log_lines import harmless

if TYPE_CHECKING:
    from towline.client.admin.trace import GroupTrace, Step, Trace

__all__ = ["trace"]

HIDDEN = "(what it holds is shown to whoever may consume the topic)"


def trace(
    message: Annotated[
        str,
        Parameter(
            help="The message's id, as in `orders/middle/42`; or the one that it got when it was delayed, "
            "`orders/delay/17`."
        ),
    ],
    /,
    *,
    group: Annotated[str | None, Parameter(help="Only in this group.")] = None,
    whole: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Go on behind the first ack: a group that was set back may have consumed it again.",
        ),
    ] = False,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Show the life of a message: who sent it from where and, for each group, its status, who pulled it, acked it or
    failed it, when and why. Whoever may describe the topic, but not consume it, sees all but the message itself.

    A status is NEW, RUNNING, SUCCESS, FAIL (it failed or was given back, and comes again), DEAD, GONE (dropped by
    retention or damaged) or BEFORE (the group began behind it).
    """
    with connection.connect() as client:
        found = client.trace(message, group=group, whole=whole)
    if output == "json":
        print_json(_facts(found))
        return
    for line in _lines(found):
        print(line)


def _lines(found: Trace) -> list[str]:
    sent = found.message
    if sent is None:
        lines = [f"{found.id}  {HIDDEN if found.hidden else 'is not kept any more'}"]
    else:
        origin = (f" by {sent.token}" if sent.token else "") + (f" from {sent.source}" if sent.source else "")
        lines = [
            f"{found.id}  {preview(sent.body)}" + (f"  key {harmless(sent.key)}" if sent.key else ""),
            f"  {stamp(sent.produced_at_us if found.delay_id else sent.appended_at_us)}  sent{harmless(origin)}",
        ]
    if found.delay_id:
        came = f"  {stamp(sent.appended_at_us)}  due, and put into its lane" if sent is not None else "  delayed"
        lines.append(f"{came}; it waited as {found.delay_id}")
    for group in found.groups:
        lines.append(f"group {harmless(group.group)}: {group.status}{_note(group)}")
        lines += [f"  {stamp(step.at_us)}  {harmless(_sentence(step))}" for step in group.steps]
    return lines


def _note(group: GroupTrace) -> str:
    due = f", due {stamp(group.due_us)}" if group.due_us and group.status == "FAIL" else ""
    missing = "" if group.complete else " (older events were dropped by retention)"
    return due + missing


_SENTENCES = {
    "pulled": "pulled by {consumer}, attempt {attempt}{copy}",
    "acked": "acked by {consumer}",
    "failed": "nacked by {consumer}{reason}; due again {due}",
    "gaveup": "given up after attempt {attempt}{reason}",
    "returned": "given back by {consumer}",
    "released": "taken from {consumer}{reason}",
    "buried": "became dead letter {dead}",
    "resent": "dead letter {dead} was sent again",
    "skipped": "skipped{reason}",
    "overrun": "dropped by retention before the group came to it",
    "moved": "the group was moved{reason}",
    "started": "the group began behind it",
}


def _sentence(step: Step) -> str:
    return _SENTENCES.get(step.what, step.what + "{reason}").format(
        consumer=step.consumer or "its consumer",
        attempt=step.attempt,
        copy=", the copy that was sent again" if step.copy else "",
        reason=f": {first_line(step.reason)}" if step.reason else "",
        due=stamp(step.due_us),
        dead=step.dead,
    )


def _facts(found: Trace) -> dict[str, Any]:
    return {
        "id": found.id,
        "message": None if found.message is None else facts(found.message),
        "hidden": found.hidden,
        "delay_id": found.delay_id or None,
        "groups": [
            {
                "group": group.group,
                "status": group.status,
                "attempt": group.attempt,
                "due_at": stamp(group.due_us),
                "complete": group.complete,
                "steps": [
                    {
                        "at": stamp(step.at_us),
                        "what": step.what,
                        "consumer": step.consumer,
                        "attempt": step.attempt,
                        "reason": step.reason,
                        "due_at": stamp(step.due_us),
                        "pull": step.pull,
                        "dead": step.dead,
                        "copy": step.copy,
                    }
                    for step in group.steps
                ],
            }
            for group in found.groups
        ],
    }
