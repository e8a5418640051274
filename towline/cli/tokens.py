"""`towline token`: credentials of programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from towline.cli.confirm import DryRun, tell
from towline.cli.options import Connection, Usage
from towline.cli.output import Output, note, print_json, print_table, stamp
from towline.cli.quotas import Connections, InFlight, Rate, Roles, quota_facts, quota_of
from towline.cli.times import Duration
from towline.errors import NotFound
from towline.files import open_private
from towline.protocol.access import Grant, Quota, TokenMade, TokenState

__all__ = ["scope_text", "token"]

token = App(name="token", help="Tokens: how programs prove who they are. A secret is shown once, and kept as a hash.")

Token = Annotated[str, Parameter(help="The token's name.")]


@token.command(name="ls")
def list_tokens(
    owner: Annotated[str, Parameter(help="Only the tokens of this user.")] = "",
    /,
    *,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """List tokens: all of them, or for those who are no administrators their own."""
    with connection.connect() as client:
        tokens = client.access.tokens(owner)
    if output == "json":
        for one in tokens:
            print_json(_token_facts(one))
        return
    rows = [
        (
            one.name,
            one.owner,
            secret.id,
            ", ".join(map(scope_text, one.scopes)) or "all that its user may" if one.owner else "its own rules",
            stamp(secret.expires_at_us) if secret.expires_at_us else "never",
            stamp(secret.last_used_us) if secret.last_used_us else "",
        )
        for one in tokens
        for secret in one.secrets
    ]
    print_table(("TOKEN", "USER", "SECRET ID", "MAY", "EXPIRES", "LAST USED"), rows, empty="no tokens")


@token.command(name="create")
def create_token(
    name: Token,
    /,
    *,
    owner: Annotated[str, Parameter(help="The user whose rights it has; without one, it needs rules of its own.")] = "",
    scope: Annotated[
        list[str] | None,
        Parameter(
            help="What it is limited to, as ACTION:RESOURCE:NAME, for example send:topic:orders.*; may be repeated.",
            negative=(),
        ),
    ] = None,
    role: Roles = None,
    expires: Annotated[Duration | None, Parameter(help="How long it is good for, for example 90d.")] = None,
    bytes_per_s: Rate = None,
    connections: Connections = None,
    in_flight: InFlight = None,
    secret_to: Annotated[
        Path | None, Parameter(help="Write the secret to this new file, which only you can read, instead of stdout.")
    ] = None,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Make a token. Its secret is printed, this once.

    towline token create shop --scope send:topic:orders.* --expires 90d --secret-to shop.secret
    """
    scopes = [_parse_scope(one) for one in scope or ()]
    quota = quota_of(Quota(), bytes_per_s, connections, in_flight)
    with connection.connect() as client:
        made = client.access.create_token(
            name, owner=owner, scopes=scopes, expires=expires or 0, roles=role or (), quota=quota
        )
    _show_secret(made, secret_to, output)


@token.command
def rotate(
    name: Token,
    /,
    *,
    expires: Annotated[Duration | None, Parameter(help="How long the new secret is good for.")] = None,
    secret_to: Annotated[Path | None, Parameter(help="Write the secret to this new file instead of stdout.")] = None,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Make a second secret for a token. Give it to the program, then revoke the first one (`token revoke NAME ID`)."""
    with connection.connect() as client:
        made = client.access.rotate_token(name, expires=expires or 0)
    _show_secret(made, secret_to, output)


@token.command
def revoke(
    name: Token,
    secret_id: Annotated[str, Parameter(help="Only the secret with this id.")] = "",
    /,
    *,
    dry_run: DryRun = False,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Revoke a token, or one of its secrets. Connections that came in by it are closed at once."""
    what = f"secret {secret_id} of token {name}" if secret_id else f"token {name}"
    with connection.connect() as client:
        if dry_run:
            found = next((one for one in client.access.tokens() if one.name == name), None)
            if found is None or (secret_id and secret_id not in {one.id for one in found.secrets}):
                raise NotFound(f"there is no {what}")
        else:
            client.access.revoke_token(name, secret_id)
    tell(f"revoke {what}", {"token": name, "secret_id": secret_id or None}, dry_run=dry_run, output=output)


def _show_secret(made: TokenMade, file: Path | None, output: str) -> None:
    if file is not None:
        try:
            descriptor = open_private(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, secret=True)
            with os.fdopen(descriptor, "w", encoding="ascii") as out:
                out.write(made.secret + "\n")
        except OSError as error:
            raise Usage(
                f"token {made.name} was made, but its secret could not be written to {file}: {error.strerror}; "
                "revoke it and make another"
            ) from None
    facts = {
        "token": made.name,
        "secret_id": made.id,
        "expires_at": stamp(made.expires_at_us) if made.expires_at_us else None,
    }
    if file is None:
        facts["secret"] = made.secret
    if output == "json":
        print_json(facts)
    elif file is None:
        print(made.secret, flush=True)
    else:
        note(f"the secret of token {made.name} is in {file}")


def _parse_scope(text: str) -> Grant:
    parts = text.split(":", 2)
    if len(parts) < 2:
        raise Usage(f"scope {text!r}: write ACTION:RESOURCE:NAME, for example send:topic:orders.*")
    return Grant(parts[0], parts[1], parts[2] if len(parts) > 2 else "*")


def scope_text(one: Grant) -> str:
    return f"{one.action}:{one.resource}:{one.name}"


def _token_facts(one: TokenState) -> dict[str, Any]:
    return {
        "token": one.name,
        "owner": one.owner or None,
        "roles": one.roles,
        "scopes": [scope_text(scope) for scope in one.scopes],
        "quota": quota_facts(one.quota),
        "created_at": stamp(one.created_at_us),
        "secrets": [
            {
                "id": secret.id,
                "created_at": stamp(secret.created_at_us),
                "expires_at": stamp(secret.expires_at_us) if secret.expires_at_us else None,
                "last_used_at": stamp(secret.last_used_us) if secret.last_used_us else None,
            }
            for secret in one.secrets
        ],
    }
