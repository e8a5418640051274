"""Base classes of requests and answers."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, NamedTuple

import msgspec

from towline.model import MAX_SHARDS

__all__ = [
    "HEAD_ROOM",
    "LISTS_MAX_BYTES",
    "MANY",
    "Answer",
    "AnyLane",
    "Lane",
    "Name",
    "Natural",
    "Newer",
    "Request",
    "Text",
]

Name = Annotated[str, msgspec.Meta(max_length=100)]
Text = Annotated[str, msgspec.Meta(max_length=8192)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Lane = Annotated[int, msgspec.Meta(ge=0, le=MAX_SHARDS - 1)]
AnyLane = Annotated[int, msgspec.Meta(ge=0, le=MAX_SHARDS + 2)]
"""A lane of the topic, or behind them one of the group's own."""
HEAD_ROOM: Final = 64 << 10
"""Size of a request besides its frames."""
MANY: Final = 10_000
"""The longest list in a request."""
LISTS_MAX_BYTES: Final = 1 << 20
"""A request with lists of lists. Without this it could hold millions of spans, and a broker do nothing else for
seconds."""


class Newer(NamedTuple):
    """Something that came with a version, and its purpose, to finish "… cannot": empty for a hint."""

    since: int
    what: str = ""


class Request(msgspec.Struct, frozen=True, array_like=True):
    kind: ClassVar[int] = 0
    newer: ClassVar[Newer | None] = None
    """Not of the first version of the protocol."""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    kind: ClassVar[int] = 0
    newer: ClassVar[Newer | None] = None
