"""`towline audit`: the audit log of a broker with security."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from towline.cli.options import Connection, Usage
from towline.cli.output import Output, print_json, print_table, stamp
from towline.cli.times import Duration
from towline.clock import SYSTEM
from towline.protocol.access import AuditEntry

__all__ = ["audit"]

audit = App(name="audit", help="The audit log: who did what, and what was refused.")


@audit.command(name="ls")
def list_audit(
    *,
    actor: Annotated[str, Parameter(help="Only what this user or token did.")] = "",
    what: Annotated[str, Parameter(help="Only this request, for example DeleteTopic; or login.")] = "",
    outcome: Annotated[str, Parameter(help="Only this outcome: done, refused, or an error code.")] = "",
    since: Annotated[Duration | None, Parameter(help="Only since this long ago, for example 2h.")] = None,
    limit: Annotated[int, Parameter(name=("--limit", "-n"), help="How many, the newest first.")] = 100,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Show the audit log, the newest entries first."""
    if limit < 1:
        raise Usage("--limit is 1 or more")
    entries: list[AuditEntry] = []
    before = 0
    since_us = 0 if since is None else max(SYSTEM.now_us() - round(since * 1_000_000), 0)
    with connection.connect() as client:
        while len(entries) < limit:
            page = client.access.audit(
                before=before,
                limit=min(limit - len(entries), 1_000),
                actor=actor,
                what=what,
                outcome=outcome,
                since_us=since_us,
            )
            entries += page.entries
            before = page.next
            if not before:
                break
    if output == "json":
        for one in entries:
            print_json(
                {
                    "number": one.number,
                    "at": stamp(one.at_us),
                    "actor": one.actor,
                    "address": one.address,
                    "what": one.what,
                    "target": one.target,
                    "outcome": one.outcome,
                    "detail": one.detail,
                }
            )
        return
    rows = [
        (stamp(one.at_us), one.actor, one.address, one.what, one.target, one.outcome, one.detail) for one in entries
    ]
    print_table(("AT", "WHO", "FROM", "WHAT", "TARGET", "OUTCOME", "DETAIL"), rows, empty="nothing was noted")


@audit.command
def verify(
    file: Annotated[Path, Parameter(help="The audit log, for example data/audit.jsonl.")],
    /,
    *,
    output: Output = "text",
) -> int:
    """Verify an audit log: each line holds the hash of the one before. Exit code 1 if one was changed or is missing."""
    from towline.broker.access.audit_files import verify as verify_file

    try:
        count, broken = verify_file(file)
    except OSError as error:
        raise Usage(f"audit log {file}: {error.strerror}") from None
    if output == "json":
        print_json({"lines": count, "broken_at": broken})
    elif broken is None:
        print(f"{count} lines, each follows from the one before")
    else:
        print(f"line {broken + 1} does not follow from the one before it")
    return 0 if broken is None else 1
