"""Types of fields as text, with their limits: the same with every Python."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any

LIMITS = ("gt", "ge", "lt", "le", "min_length", "max_length", "pattern")


def text_of(hint: Any) -> str:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is None:
        return "…" if hint is ... else "None" if hint is type(None) else str(getattr(hint, "__qualname__", hint))
    if origin is typing.Annotated:
        limits = ", ".join(limit for meta in inner[1:] for limit in _limits_of(meta))
        return text_of(inner[0]) + (f" ({limits})" if limits else "")
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(text_of, inner))
    if origin is typing.Literal:
        return " | ".join(map(repr, sorted(inner)))
    return f"{origin.__qualname__}[{', '.join(map(text_of, inner))}]"


def _limits_of(meta: Any) -> Iterator[str]:
    for name in LIMITS:
        if (limit := getattr(meta, name, None)) is not None:
            yield f"{name} {limit}"
