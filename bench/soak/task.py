"""What a worker of the soak is told, and what it notes: one line of JSON each."""

from __future__ import annotations

import msgspec

__all__ = ["ABANDONED", "Note", "Span", "Task"]

ABANDONED = "abandoned"
"""The group that nobody comes back to."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    url: str
    pid: int
    """The broker's process."""
    folder: str
    """On the same disk as the broker's."""
    topics: int
    groups: int
    dedup_ids: int
    """How many come within the window."""
    window_s: float


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Something that took a while, on the steady clock, which all processes of a machine share."""

    begin_s: float
    ms: float
    waited_ms: float = 0.0
    """For how long of it the broker's loop or the client was ready to run, and had no processor."""
    ran_ms: float = 0.0
    """For how long of it the broker's loop ran."""

    @property
    def end_s(self) -> float:
        return self.begin_s + self.ms / 1e3


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker did since its last note."""

    role: str
    done: int = 0
    failures: dict[str, int] = {}
    spans: list[Span] = []
    ready: bool = False
