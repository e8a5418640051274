"""What waits for its transaction: units of frames, trims, documents."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sqlalchemy import Table

from towline.frame import Frame
from towline.store.spi import Append, Chunk
from towline.store.sql import tables
from towline.store.sql.describe import Describe
from towline.store.sql.rows import bare, frame_row, message_rows
from towline.store.sql.streams import Stream

__all__ = ["Entry", "Job", "Trim", "inserts"]


class Entry(NamedTuple):
    """A frame on its way."""

    stream: Stream
    chunk: Chunk


class Trim(NamedTuple):
    """A stream that begins at `first` from now on, and is shorter by so many bytes."""

    stream: Stream
    first: int
    freed_bytes: int


Into = tuple[str, str]
"""A table and the columns that are written, quoted: what rows have in common that go into one INSERT."""

_FRAME_COLUMNS = ("stream_id", "end_seq", "records", "length", "serial", "at_us", "source_ip", "body_at", "frame")
_MORE = {tables.pull_log.name: ("events",), tables.schedule.name: ("due_us", "parcels")}


class Job:
    """Something that is in a transaction whole, and done when that is committed."""

    __slots__ = ("done", "entries", "made", "rows", "size", "statements", "tables", "trims")

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.done = done
        self.entries: list[Entry] = []
        self.made: dict[Into, list[bytes]] = {}
        """The rows to insert, as SQL."""
        self.tables: set[Table] = set()
        """Tables that must be there."""
        self.trims: list[Trim] = []
        self.statements: list[bytes] = []
        """Whatever else belongs to it."""
        self.rows = 0
        self.size = 0

    def add_frame(self, stream: Stream, append: Append, serial: int, at_us: int, describe: Describe) -> int:
        _, data, count, source, _ = append
        # A view may be of a buffer that is soon filled anew.
        data = data if isinstance(data, bytes) else bytes(data)
        first, frame = stream.next, Frame(data)
        assert count > 0, append
        body_at, kept = bare(frame) if stream.messages is not None else (None, data)
        columns = _FRAME_COLUMNS + _MORE.get(stream.frames.name, ())
        row = frame_row(
            stream.id,
            first,
            count,
            len(data),
            serial=serial,
            at_us=at_us,
            source=source,
            body_at=body_at,
            kept=kept,
            more=describe(stream.name, frame),
        )
        self._add(stream.frames, columns, [row])
        if stream.messages is not None:
            own = stream.lane is None
            before = b"%d," % stream.id if own else b""
            width, rows = message_rows(frame, first, at_us, source, before)
            named = tables.MESSAGE_COLUMNS[:width]
            self._add(stream.messages, ("stream_id", *named) if own else named, rows)
            self.tables.add(stream.messages)
        self.entries.append(Entry(stream, Chunk(first, count, 0, data, at_us, source)))
        stream.next = first + count
        return first

    def _add(self, table: Table, columns: Sequence[str], rows: list[bytes]) -> None:
        into = (tables.quoted(table), ", ".join(f"`{name}`" for name in columns))
        self.made.setdefault(into, []).extend(rows)
        self.rows += len(rows)


def inserts(jobs: Sequence[Job], statement_bytes: int) -> Iterator[bytes]:
    """The statements that insert all rows of these jobs, each about so long."""
    gathered: dict[Into, list[list[bytes]]] = {}
    for job in jobs:
        for into, rows in job.made.items():
            gathered.setdefault(into, []).append(rows)
    for (table, columns), runs in gathered.items():
        head = f"INSERT INTO {table} ({columns}) VALUES ".encode()  # noqa: S608 - names of ours, checked and quoted
        chosen: list[bytes] = []
        size = 0
        for rows in runs:
            for row in rows:
                if size and size + len(row) > statement_bytes:
                    yield head + b",".join(chosen)
                    chosen, size = [], 0
                chosen.append(row)
                size += len(row) + 1
        yield head + b",".join(chosen)
