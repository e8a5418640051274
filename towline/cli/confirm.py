"""Asking before something is lost."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from towline.cli.options import Usage
from towline.cli.output import ask

__all__ = ["Yes", "confirm"]

Yes = Annotated[bool, Parameter(name=("--yes", "-y"), negative=(), show_default=False, help="Do not ask.")]


def confirm(question: str, *, yes: bool) -> bool:
    """Whether to go on. Where nobody can be asked, only --yes goes on."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise Usage("nobody can be asked here: add --yes to go on")
    return ask(question)
