"""The streams of a realm in memory; and the tables of the frames of each."""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final

from sqlalchemy import Table

from towline.model import DEAD_STREAMS, DELAY_STREAMS, PULL_STREAMS
from towline.store.spi import kind_of
from towline.store.sql.schema import tables

__all__ = ["REALM_STREAMS", "Stream", "Streams"]

REALM_STREAMS: Final = 1 << 32
"""A stream's number begins with that of its realm: so many may be in one."""

GONE: Final = "gone/"
"""A stream that is forgotten has another name until its rows are deleted: this, its number, and the name it had."""

_LANE: Final = re.compile(r"lane/(?P<topic>[a-z0-9][a-z0-9._-]{0,49})/(?P<lane>high|middle|low|[0-9]{1,4})")


class Stream:
    """`next` is the number of the next record, `end` the end of the readable ones."""

    __slots__ = ("end", "first", "frames", "id", "lane", "messages", "name", "next", "shown", "size_bytes", "swept")

    def __init__(self, stream_id: int, name: str, first: int = 0, end: int = 0, size_bytes: int = 0) -> None:
        self.id = stream_id
        self.name = name
        self.first = first
        self.end = self.next = end
        self.size_bytes = size_bytes
        self.swept = first
        self.shown = False
        """Whether it is in the database, and listed."""
        was = name.split("/", 2)[2] if name.startswith(GONE) else name
        self.frames, self.messages, self.lane = _tables_of(was)
        """The table of its frames; that of its messages, if they have rows; topic and lane, if it is one."""

    @property
    def gone_name(self) -> str:
        """Its name once it is forgotten: its own name may be another's then."""
        return f"{GONE}{self.id}/{self.name}"

    @property
    def is_gone(self) -> bool:
        return self.name.startswith(GONE)


def _tables_of(name: str) -> tuple[Table, Table | None, tuple[str, str] | None]:
    found = _LANE.fullmatch(name)
    if found is not None:
        return tables.frame, tables.lane_table(found["topic"], found["lane"]), (found["topic"], found["lane"])
    if name.startswith(DEAD_STREAMS):
        return tables.frame, tables.dead_letter, None
    if name.startswith(PULL_STREAMS):
        return tables.pull_log, None, None
    if name.startswith(DELAY_STREAMS):
        return tables.schedule, None, None
    return tables.frame, None, None


class Streams:
    """All streams of a realm that exist, by name; one that is being written exists as well, unseen. The floor of a kind
    is kept as a stream without records, by the name of the kind."""

    def __init__(self, realm_id: int) -> None:
        self._by_name: dict[str, Stream] = {}
        self._names: list[str] = []
        self._next_id = realm_id * REALM_STREAMS + 1
        self._last_id = 0
        """The highest number that is in the database."""

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._by_name.values())

    def get(self, name: str) -> Stream | None:
        return self._by_name.get(name)

    def add(self, stream: Stream) -> None:
        """One that was in the database; it is listed by `list_all`."""
        self._next_id = max(self._next_id, stream.id + 1)
        self._last_id = max(self._last_id, stream.id)
        if not stream.is_gone:
            self._by_name[stream.name] = stream
            self.note(stream)

    def list_all(self) -> None:
        """List all that were added: very many one by one would take seconds."""
        self._names = sorted(name for name in self._by_name if not name.endswith("/"))

    def make(self, name: str) -> Stream:
        """A new one; it is listed when its first unit is committed."""
        floor = self.floor(name)
        stream = self._by_name[name] = Stream(self._next_id, name, floor, floor)
        self._next_id += 1
        return stream

    def is_last(self, stream: Stream) -> bool:
        """Whether its number would be given again if its row were deleted: a higher one that is in memory only would go
        with a crash."""
        return stream.id == self._last_id

    def floor(self, name: str) -> int:
        """The first number of a stream that does not exist."""
        found = self._by_name.get(kind_of(name))
        return 0 if found is None else found.end

    def forget(self, stream: Stream) -> Stream:
        """Returns the floor of its kind, which is raised to its end."""
        del self._by_name[stream.name]
        index = bisect_left(self._names, stream.name)
        if index < len(self._names) and self._names[index] == stream.name:
            del self._names[index]
        kind = kind_of(stream.name)
        floor = self._by_name.get(kind) or self.make(kind)
        floor.first = floor.end = floor.next = floor.swept = max(floor.end, stream.next)
        return floor

    def note(self, stream: Stream) -> None:
        """It is in the database by now."""
        stream.shown = True
        self._last_id = max(self._last_id, stream.id)

    def show(self, stream: Stream) -> None:
        self.note(stream)
        if stream.name.endswith("/"):
            return
        index = bisect_left(self._names, stream.name)
        if index == len(self._names) or self._names[index] != stream.name:
            insort(self._names, stream.name)

    def names(self, prefix: str) -> list[str]:
        if not prefix:
            return list(self._names)
        begin = bisect_left(self._names, prefix)
        end = bisect_left(self._names, prefix + "\U0010ffff", begin)
        return self._names[begin:end]
