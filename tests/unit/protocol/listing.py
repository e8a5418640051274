"""All that can be said on the wire, as text.

`python -m tests.unit.protocol.listing` writes it for the version that counts now; kept when a version is released:

- `version-N.txt`: each request, answer and part, with its fields and the values of those that have one of several
- `limits-N.txt`: each field, with its type and its limits; each text that is one of some words; each error
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tests.hints import text_of
from towline.errors import TowlineError
from towline.protocol import access, envelope  # noqa: F401 - the envelope adds to the messages that there are
from towline.protocol import messages as m
from towline.protocol.versions import RELEASED

FOLDER = Path(__file__).parent
WORDS = {
    access.Grant: {"action": ["*", *access.ACTIONS], "resource": ["*", *access.RESOURCES]},
    access.Rule: {"action": ["*", *access.ACTIONS], "resource": ["*", *access.RESOURCES]},
}
"""Of fields that are any text as far as the wire goes."""


def structs() -> dict[str, type[msgspec.Struct]]:
    """By their names."""
    found: dict[str, type[msgspec.Struct]] = {}
    waiting: list[type[msgspec.Struct]] = [*m.REQUESTS.values(), *m.ANSWERS.values()]
    while waiting:
        cls = waiting.pop()
        if cls.__name__ not in found:
            found[cls.__name__] = cls
            waiting += [one for hint in typing.get_type_hints(cls).values() for one in _structs(hint)]
    return dict(sorted(found.items()))


def listing() -> str:
    lines: list[str] = []
    for name, cls in structs().items():
        hints = typing.get_type_hints(cls)
        lines.append(f"{name}: {' '.join(_field(field, hints[field]) for field in cls.__struct_fields__)}\n")
    return "".join(lines)


def limits() -> str:
    lines: list[str] = []
    for name, cls in structs().items():
        hints = typing.get_type_hints(cls, include_extras=True)
        plain = (field for field in cls.__struct_fields__ if not any(_values(hints[field])))
        lines += [f"{name}.{field}: {text_of(hints[field])}\n" for field in plain]
    lines += [
        f"words of {cls.__name__}.{field}: {' '.join(words)}\n"
        for cls, fields in WORDS.items()
        for field, words in fields.items()
    ]
    lines += [f"error {cls.code}: {cls.older_code or '-'}\n" for cls in sorted(errors(), key=lambda one: one.code)]
    return "".join(lines)


def errors() -> set[type[TowlineError]]:
    def below(cls: type[TowlineError]) -> Iterator[type[TowlineError]]:
        yield cls
        for one in cls.__subclasses__():
            yield from below(one)

    return {cls for cls in below(TowlineError) if cls.__module__ == TowlineError.__module__}


def _field(name: str, hint: Any) -> str:
    values = sorted(_values(hint))
    return f"{name}={'|'.join(values)}" if values else name


def _values(hint: Any) -> Iterator[str]:
    if typing.get_origin(hint) is typing.Literal:
        yield from map(repr, typing.get_args(hint))
        return
    for inner in typing.get_args(hint):
        yield from _values(inner)


def _structs(hint: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(hint, type) and typing.get_origin(hint) is None and issubclass(hint, msgspec.Struct):
        yield hint
    for inner in typing.get_args(hint):
        yield from _structs(inner)


if __name__ == "__main__":
    if m.VERSION in RELEASED and (FOLDER / f"version-{m.VERSION}.txt").exists():
        sys.exit(f"version {m.VERSION} was released with Towline {RELEASED[m.VERSION]}: raise VERSION first")
    (FOLDER / f"version-{m.VERSION}.txt").write_text(listing(), encoding="utf-8")
    (FOLDER / f"limits-{m.VERSION}.txt").write_text(limits(), encoding="utf-8")
