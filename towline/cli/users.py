"""`towline user`: users of a broker with security."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from towline.cli.confirm import DryRun, Yes, confirm, tell
from towline.cli.options import Connection, Usage
from towline.cli.output import Output, many, note, print_json, print_table, stamp
from towline.cli.quotas import Connections, InFlight, Rate, Roles, quota_facts, quota_of
from towline.protocol.access import Quota, UserState

if TYPE_CHECKING:
    from towline.client._sync.client import Client

__all__ = ["user"]

user = App(name="user", help="Users of a broker with security: people, and programs that have several tokens.")

User = Annotated[str, Parameter(help="The user's name.")]
Identities = Annotated[
    list[str] | None,
    Parameter(
        name="--identity",
        help="A client certificate that stands for the user: cn:NAME, dns:NAME, uri:URI or sha256:HEX; repeatable.",
        negative=(),
    ),
]
PasswordFile = Annotated[
    Path | None,
    Parameter(help="A file with the password, `-` is stdin. Without it, it is asked for on a terminal."),
]


@user.command(name="ls")
def list_users(*, output: Output = "text", connection: Connection = Connection()) -> None:  # noqa: B008
    """List the users."""
    with connection.connect() as client:
        users = client.access.users()
    if output == "json":
        for one in users:
            print_json(_user_facts(one))
        return
    rows = [
        (
            one.name,
            ", ".join(one.roles),
            "yes" if one.has_password else "",
            ", ".join(one.identities),
            "disabled" if one.disabled else "",
            stamp(one.created_at_us),
        )
        for one in users
    ]
    print_table(("USER", "ROLES", "PASSWORD", "CERTIFICATES", "STATE", "CREATED"), rows, empty="no users")


@user.command(name="create")
def create_user(
    name: User,
    /,
    *,
    role: Roles = None,
    identity: Identities = None,
    password_file: PasswordFile = None,
    no_password: Annotated[
        bool, Parameter(help="It logs in by tokens or certificates only.", negative=(), show_default=False)
    ] = False,
    bytes_per_s: Rate = None,
    connections: Connections = None,
    in_flight: InFlight = None,
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Make a user.

    The first one is made with the setup secret, which the broker wrote to a file at its start:

        towline user create root --role admin --token setup --secret-file data/setup-secret
    """
    password = None if no_password else _password(password_file, f"password of {name}: ")
    quota = quota_of(Quota(), bytes_per_s, connections, in_flight)
    with connection.connect() as client:
        client.access.create_user(name, password, roles=role or (), identities=identity or (), quota=quota)


@user.command(name="edit")
def edit_user(
    name: User,
    /,
    *,
    role: Roles = None,
    no_roles: Annotated[bool, Parameter(help="Take all its roles from it.", negative=(), show_default=False)] = False,
    identity: Identities = None,
    no_identities: Annotated[
        bool, Parameter(help="Take all its certificates from it.", negative=(), show_default=False)
    ] = False,
    disable: Annotated[
        bool | None, Parameter(help="Let it in no more, or (--enable) again.", negative="--enable")
    ] = None,
    bytes_per_s: Rate = None,
    connections: Connections = None,
    in_flight: InFlight = None,
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Change a user: what is given replaces what was there. Connections that are not allowed any more are closed."""
    with connection.connect() as client:
        quota = None
        if (bytes_per_s, connections, in_flight) != (None, None, None):
            quota = quota_of(_find(client, name).quota, bytes_per_s, connections, in_flight)
        client.access.change_user(
            name,
            roles=[] if no_roles else role,
            identities=[] if no_identities else identity,
            disabled=disable,
            quota=quota,
        )


@user.command
def password(
    name: User,
    /,
    *,
    password_file: PasswordFile = None,
    old_password_file: Annotated[
        Path | None, Parameter(help="A file with the old password, which users who are no administrators must say.")
    ] = None,
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Change a password. Whoever is logged in with the old one is logged out."""
    old = _password(old_password_file, "") if old_password_file is not None else ""
    new = _password(password_file, f"new password of {name}: ")
    with connection.connect() as client:
        client.access.change_user(name, password=new, old_password=old)


@user.command(name="rm")
def remove_user(
    name: User,
    /,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> int:
    """Remove a user with its tokens and rules."""
    if not dry_run and not confirm(f"Remove user {name} with its tokens and rules?", yes=yes):
        note("nothing was removed")
        return 1
    facts: dict[str, object] = {"user": name}
    with connection.connect() as client:
        if dry_run:
            _find(client, name)
            tokens = [one.name for one in client.access.tokens(name)]
            facts |= {"tokens": tokens, "rules": [one.id for one in client.access.rules(name).rules]}
            what = f"user {name}, tokens {', '.join(tokens) or 'none'}, {many(len(facts['rules']), 'rule')}"  # type: ignore[arg-type]
        else:
            client.access.delete_user(name)
            what = f"user {name}"
    tell(f"remove {what}", facts, dry_run=dry_run, output=output)
    return 0


def _find(client: Client, name: str) -> UserState:
    found = next((one for one in client.access.users() if one.name == name), None)
    if found is None:
        raise Usage(f"there is no user {name}")
    return found


def _password(file: Path | None, question: str) -> str:
    if file is None:
        if not sys.stdin.isatty():
            raise Usage("give --password-file (`-` is stdin), or run this on a terminal")
        return getpass.getpass(question)
    if str(file) == "-":
        return sys.stdin.readline().rstrip("\n")
    try:
        return file.read_text(encoding="utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise Usage(f"password file {file}: {error}") from None


def _user_facts(one: UserState) -> dict[str, Any]:
    return {
        "user": one.name,
        "roles": one.roles,
        "has_password": one.has_password,
        "identities": one.identities,
        "disabled": one.disabled,
        "quota": quota_facts(one.quota),
        "created_at": stamp(one.created_at_us),
    }
