"""All that can be said on the wire, as text: a line for each request, answer and part, with its fields and the values
of those that have one of several.

`python -m tests.protocol.listing` prints it; kept as `version-N.txt` when a version is released.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from towline.protocol import envelope  # noqa: F401 - it adds to the messages that there are
from towline.protocol import messages as m


def listing() -> str:
    found: dict[str, str] = {}
    waiting: list[type[msgspec.Struct]] = [*m.REQUESTS.values(), *m.ANSWERS.values()]
    while waiting:
        cls = waiting.pop()
        if cls.__name__ not in found:
            hints = typing.get_type_hints(cls)
            found[cls.__name__] = " ".join(_field(name, hints[name]) for name in cls.__struct_fields__)
            waiting += [one for hint in hints.values() for one in _structs(hint)]
    return "".join(f"{name}: {found[name]}\n" for name in sorted(found))


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
    print(listing(), end="")
