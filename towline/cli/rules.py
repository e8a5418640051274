"""`towline acl`: the rules of a broker with security."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from towline.cli.confirm import DryRun, tell
from towline.cli.options import Connection
from towline.cli.output import Output, note, print_json, print_line, print_pairs, print_table, stamp
from towline.cli.tokens import scope_text
from towline.errors import NotFound
from towline.protocol.access import ACTIONS, RESOURCES, Rule

if TYPE_CHECKING:
    from towline.client._sync.client import Client

__all__ = ["acl"]

acl = App(name="acl", help="Rules: who may do what to which topics, groups and the cluster. A deny beats every allow.")

Subject = Annotated[str, Parameter(help="A user or token by its name, role:NAME, or * for everyone.")]
Action = Annotated[str, Parameter(help=f"One of {', '.join(ACTIONS)}; or * for all.")]
Resource = Annotated[str, Parameter(help=f"One of {', '.join(RESOURCES)}; or * for all.")]
Name = Annotated[str, Parameter(help="A name; a prefix with * behind it; or * for all.")]


@acl.command(name="ls")
def list_rules(
    subject: Annotated[str, Parameter(help="Only the rules of this subject.")] = "",
    /,
    *,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """List the rules."""
    with connection.connect() as client:
        found = client.access.rules(subject)
    if output == "json":
        for one in found.rules:
            print_json(_rule_facts(one))
        return
    rows = [
        (one.id, one.subject, one.effect, one.action, one.resource, one.name, one.created_by, stamp(one.created_at_us))
        for one in found.rules
    ]
    print_table(("#ID", "SUBJECT", "EFFECT", "ACTION", "RESOURCE", "NAME", "BY", "SINCE"), rows, empty="no rules")


@acl.command
def roles(*, output: Output = "text", connection: Connection = Connection()) -> None:  # noqa: B008
    """Show the built-in roles, and what they may."""
    with connection.connect() as client:
        found = client.access.rules("*").roles
    if output == "json":
        for role, grants in found.items():
            print_json({"role": role, "grants": [scope_text(one) for one in grants]})
        return
    print_pairs([(role, ", ".join(map(scope_text, grants))) for role, grants in found.items()])


@acl.command
def allow(
    subject: Subject,
    action: Action,
    resource: Resource,
    name: Name = "*",
    /,
    *,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Allow something.

    towline acl allow shop send topic 'orders.*'
    """
    _add("allow", subject, action, resource, name, output, connection)


@acl.command
def deny(
    subject: Subject,
    action: Action,
    resource: Resource,
    name: Name = "*",
    /,
    *,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Deny something, whatever else allows it."""
    _add("deny", subject, action, resource, name, output, connection)


def _add(  # noqa: PLR0917 - as the commands were given them
    effect: Literal["allow", "deny"],
    subject: str,
    action: str,
    resource: str,
    name: str,
    output: str,
    connection: Connection,
) -> None:
    with connection.connect() as client:
        change = client.access.allow if effect == "allow" else client.access.deny
        number = change(subject, action, resource, name)
        unknown = _is_unknown(client, subject)
    print_json({"id": number}) if output == "json" else print(number, flush=True)
    if unknown:
        note(f"{subject} is no user, token or role yet: the rule holds from when there is one")


def _is_unknown(client: Client, subject: str) -> bool:
    if subject == "*":
        return False
    known = [(one.name, one.roles) for one in client.access.users()]
    known += [(one.name, one.roles) for one in client.access.tokens()]
    role = subject.removeprefix("role:")
    if role == subject:
        return subject not in {name for name, _ in known}
    return role not in client.access.rules("*").roles and not any(role in roles for _, roles in known)


@acl.command(name="rm")
def remove_rule(
    number: Annotated[int, Parameter(help="The number of the rule, as `acl ls` shows it.")],
    /,
    *,
    dry_run: DryRun = False,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Remove a rule."""
    facts: dict[str, object] = {"rule": number}
    what = f"rule {number}"
    with connection.connect() as client:
        if dry_run:
            found = next((one for one in client.access.rules().rules if one.id == number), None)
            if found is None:
                raise NotFound(f"there is no rule {number}")
            what += f": {found.effect} {found.subject} {found.action} {found.resource} {found.name}"
            facts |= _rule_facts(found)
        else:
            client.access.drop_rule(number)
    tell(f"remove {what}", facts, dry_run=dry_run, output=output)


@acl.command
def check(
    action: Action,
    resource: Resource,
    name: Name = "",
    /,
    *,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> int:
    """Say whether the caller itself may do something: exit code 0 if so, 1 if not."""
    with connection.connect() as client:
        me = client.access.who_am_i([(action, resource, name)])
    facts = {"name": me.name, "user": me.user, "roles": me.roles, "allowed": me.allowed[0], "security": me.security}
    if output == "json":
        print_json(facts)
    else:
        verdict = "may" if me.allowed[0] else "may not"
        print_line(f"{me.user or me.name or 'anyone'} {verdict} {action} {resource} {name}".rstrip())
    return 0 if me.allowed[0] else 1


def _rule_facts(one: Rule) -> dict[str, Any]:
    return {
        "id": one.id,
        "subject": one.subject,
        "effect": one.effect,
        "action": one.action,
        "resource": one.resource,
        "name": one.name,
        "created_by": one.created_by,
        "created_at": stamp(one.created_at_us),
    }
