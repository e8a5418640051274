"""`towline tx`: prepared transactions that are undecided, and deciding them by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from towline.cli.confirm import DryRun
from towline.cli.options import Connection
from towline.cli.output import Output, many, note, print_json, print_line, print_table, size, stamp

if TYPE_CHECKING:
    from towline.protocol.transactions import TransactionState

__all__ = ["tx"]

tx = App(name="tx", help="Prepared transactions: which wait to be decided, and deciding them by hand.")


@tx.command
def ls(
    transaction: Annotated[str | None, Parameter(help="Show this one only, decided or not.")] = None,
    /,
    *,
    parked: Annotated[
        bool,
        Parameter(
            negative=(), show_default=False, help="Only those that nobody could tell of, and that wait for a person."
        ),
    ] = False,
    limit: Annotated[int, Parameter(name=("--limit", "-n"), help="Show at most so many, the oldest first.")] = 1_000,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """List prepared transactions: who prepared them and when, what they hold, and how often they were asked after."""
    with connection.connect() as client:
        if transaction is not None:
            found = [client.find_transaction(transaction)]
        else:
            found = client.transactions(parked=parked, limit=limit)
    if output == "json":
        for one in found:
            print_json(_facts(one))
        return
    if transaction is None and len(found) == limit:
        note(f"there may be more than {limit:,}: raise --limit")
    rows = [
        (
            one.transaction,
            one.state,
            one.producer_group,
            one.name,
            stamp(one.prepared_at_us),
            one.messages,
            size(one.size_bytes),
            ", ".join(one.topics),
            one.checks,
            stamp(one.next_check_at_us),
        )
        for one in found
    ]
    titles = (
        "ID",
        "STATE",
        "PRODUCERS",
        "NAME",
        "PREPARED AT",
        "#MESSAGES",
        "#SIZE",
        "TOPICS",
        "#CHECKS",
        "NEXT CHECK",
    )
    print_table(titles, rows, empty="no transactions")


@tx.command
def resolve(
    transaction: Annotated[str, Parameter(help="Its id, as `towline tx ls` shows it.")],
    verdict: Annotated[
        Literal["commit", "rollback"], Parameter(help="Let everyone see its messages, or drop them for ever.")
    ],
    /,
    *,
    reason: Annotated[str, Parameter(help="Kept with it, for those who ask later.")] = "",
    dry_run: DryRun = False,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Decide a prepared transaction in place of its producers, who could not tell what became of it."""
    with connection.connect() as client:
        found = client.find_transaction(transaction)
        if not dry_run:
            client.resolve_transaction(transaction, verdict, reason=reason)
            found = client.find_transaction(transaction)
    if output == "json":
        print_json(_facts(found) | {"verdict": verdict, "dry_run": dry_run})
    elif not dry_run:
        print_line(f"transaction {transaction} is {found.state}")
    elif found.decided_at_us:
        print_line(f"transaction {transaction} is {found.state} already")
    else:
        doing = "show" if verdict == "commit" else "drop"
        what = f"{many(found.messages, 'message')} for {', '.join(found.topics)}"
        print_line(f"would {doing} {what} (producer group {found.producer_group}, {found.name!r}, {found.state})")


def _facts(one: TransactionState) -> dict[str, Any]:
    return {
        "transaction": one.transaction,
        "state": one.state,
        "producer_group": one.producer_group,
        "name": one.name,
        "token": one.token,
        "prepared_at": stamp(one.prepared_at_us),
        "messages": one.messages,
        "size_bytes": one.size_bytes,
        "topics": one.topics,
        "checks": one.checks,
        "next_check_at": stamp(one.next_check_at_us),
        "decided_at": stamp(one.decided_at_us),
        "reason": one.reason,
    }
