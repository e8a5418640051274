"""`towline serve`: a broker. Its flags are the fields of `BrokerSettings`, and nothing else."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from cyclopts import Parameter

from towline.cli.options import Usage
from towline.errors import BadRequest
from towline.settings import GONE, PREFIX, BrokerSettings, load_settings

__all__ = ["Setting", "serve", "settings"]


class Setting(msgspec.Struct, frozen=True):
    """A field of the settings object, as people see it."""

    name: str
    type: Any
    default: Any
    help: str
    limits: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def shown_default(self) -> str:
        if isinstance(self.default, bool):
            return "yes" if self.default else "no"
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


def settings() -> list[Setting]:
    hints = get_type_hints(BrokerSettings, include_extras=True)
    found = []
    for field in msgspec.structs.fields(BrokerSettings):
        type_, meta = get_args(hints[field.name])
        found.append(Setting(field.name, type_, field.default, meta.description, _limits(meta)))
    return found


def _limits(meta: msgspec.Meta) -> str:
    bounds = ((">", meta.gt), ("≥", meta.ge), ("<", meta.lt), ("≤", meta.le))
    said = [f"{sign} {bound:,}" for sign, bound in bounds if bound is not None]
    if meta.max_length is not None:
        said.append(f"at most {meta.max_length} characters")
    return ", ".join(said)


def serve(*, config: Path | None = None, **given: Any) -> int:
    """Run a broker until it is told to stop (SIGTERM or Ctrl-C).

    When it is ready it prints one line to stdout, `listening on HOST:PORT`; its log goes to stderr. Every setting can
    be given as a flag, in the environment (the name in brackets) or in a TOML file (the flag's name with underscores);
    the first of these that names it wins.
    """
    try:
        chosen = load_settings(given, file=config)
    except BadRequest as error:
        raise Usage(str(error)) from None
    from towline.broker.process.run import run

    return run(chosen, console=True)


def _flag(setting: Setting) -> inspect.Parameter:
    limits = f" ({setting.limits})" if setting.limits else ""
    # The environment is read by `load_settings` alone, so it is named here and not handed to the parser.
    parameter = Parameter(
        help=f"{setting.help}{limits} [{setting.variable}]", show_default=setting.shown_default or "none"
    )
    annotation = Annotated[setting.type | None, parameter]  # type: ignore[name-defined]
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


_CONFIG = inspect.Parameter(
    "config",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[Path | None, Parameter(help="A TOML file with settings.")],
)
_GONE = [
    inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, Parameter(show=False)]
    )
    for name in GONE
]
"""Taken only to name the replacement."""
serve.__signature__ = inspect.Signature([_CONFIG, *map(_flag, settings()), *_GONE])  # type: ignore[attr-defined]
serve.__annotations__ = {}
