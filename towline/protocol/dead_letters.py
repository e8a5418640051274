"""Requests about dead letters: send them again, as they are or changed, and drop them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from towline.protocol.base import MANY, Answer, Name, Natural, Request, Text

__all__ = ["DeadPurged", "PurgeDead", "Resend", "Resent", "ReviseDead", "Revised"]


class Resend(Request, frozen=True, array_like=True):
    """Deliver dead letters to their group again: those numbered in `dead`, or all (the oldest `limit` of them)."""

    kind = 17
    topic: Name
    group: Name
    dead: Annotated[list[int], msgspec.Meta(max_length=MANY)] = []  # noqa: RUF012 - a Struct copies it
    limit: Annotated[int, msgspec.Meta(ge=1, le=MANY)] = MANY


class Resent(Answer, frozen=True, array_like=True):
    kind = 145
    count: int
    left: int


class ReviseDead(Request, frozen=True, array_like=True):
    """Deliver one dead letter to its group again, changed: nil fields stay as they are; an empty key removes it. The
    letter itself is not changed. Answered by `Revised`."""

    kind = 55
    topic: Name
    group: Name
    number: Natural
    body: bytes | None = None
    key: Text | None = None
    headers: Annotated[dict[str, str], msgspec.Meta(max_length=MANY)] | None = None


class Revised(Answer, frozen=True, array_like=True):
    kind = 183
    count: int


class PurgeDead(Request, frozen=True, array_like=True):
    """Drop the dead letters before this number."""

    kind = 56
    topic: Name
    group: Name
    before: Natural


class DeadPurged(Answer, frozen=True, array_like=True):
    kind = 184
    count: int
