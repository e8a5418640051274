"""Asking before something is lost."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from towline.cli.options import Usage
from towline.cli.output import Format, ask, print_json, print_line

__all__ = ["DryRun", "Yes", "confirm", "tell"]

DryRun = Annotated[
    bool, Parameter(name="--dry-run", negative=(), show_default=False, help="Only say what it would mean.")
]
"""Without a short form: `-n` is how many, in every command that has it."""

Yes = Annotated[bool, Parameter(name=("--yes", "-y"), negative=(), show_default=False, help="Do not ask.")]


def confirm(question: str, *, yes: bool) -> bool:
    """Whether to go on. Where nobody can be asked, only --yes goes on."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise Usage("nobody can be asked here: add --yes to go on")
    return ask(question)


def tell(doing: str, facts: dict[str, object], *, dry_run: bool, output: Format) -> None:
    """The result, or the plan of a dry run: `doing` is `remove topic orders …`. A command that did what it was told
    prints nothing, unless it was asked for JSON."""
    if output == "json":
        print_json(facts | {"dry_run": dry_run})
    elif dry_run:
        print_line(f"would {doing}")
