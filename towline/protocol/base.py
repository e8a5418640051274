"""What every request and answer is made of."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import msgspec

from towline.model import MAX_SHARDS

__all__ = ["MANY", "Answer", "Lane", "Name", "Natural", "Request", "Text"]

Name = Annotated[str, msgspec.Meta(max_length=100)]
Text = Annotated[str, msgspec.Meta(max_length=8192)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Lane = Annotated[int, msgspec.Meta(ge=0, le=MAX_SHARDS - 1)]
MANY: Final = 10_000
"""The longest list in a request."""


class Request(msgspec.Struct, frozen=True, array_like=True):
    kind: ClassVar[int] = 0


class Answer(msgspec.Struct, frozen=True, array_like=True):
    kind: ClassVar[int] = 0
