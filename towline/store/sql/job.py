"""What waits for its transaction: units of frames, trims, documents."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Table

from towline.frame import Frame
from towline.frame.layout import KEY
from towline.store.spi import Append, Chunk
from towline.store.sql import tables
from towline.store.sql.describe import COLUMNS, describe
from towline.store.sql.rows import WHOLE, Row, bare, dead_letter_rows, message_rows
from towline.store.sql.streams import Stream

__all__ = ["Entry", "Into", "Job", "Trim", "batches"]


class Entry(NamedTuple):
    """A frame on its way."""

    stream: Stream
    chunk: Chunk


class Trim(NamedTuple):
    """A stream that begins at `first` from now on, and is shorter by so many bytes."""

    stream: Stream
    first: int
    freed_bytes: int


class Into(NamedTuple):
    """What rows have in common that are inserted together."""

    table: str
    columns: tuple[str, ...]

    def head(self) -> str:
        names = ", ".join(f"`{name}`" for name in self.columns)
        return f"INSERT INTO {self.table} ({names}) VALUES "  # noqa: S608 - names of ours, checked and quoted


_FRAME = ("stream_id", "end_seq", "records", "length", "serial", "at_us", "source_ip", "body_at", "frame")


class Job:
    """Something that is in a transaction whole, and done when that is committed."""

    __slots__ = ("done", "entries", "keyed", "made", "rows", "size", "statements", "tables", "trims")

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.done = done
        self.entries: list[Entry] = []
        self.made: dict[Into, list[list[Row]]] = {}
        """The rows to insert, in runs of about the same size each."""
        self.tables: set[Table] = set()
        """Tables that must be there."""
        self.keyed: set[Table] = set()
        """Those of them that get messages with keys."""
        self.trims: list[Trim] = []
        self.statements: list[bytes] = []
        """Whatever else belongs to it."""
        self.rows = 0
        self.size = 0

    def add_frame(self, stream: Stream, append: Append, serial: int, at_us: int) -> int:
        _, data, count, source, _ = append
        # A view may be of a buffer that is soon filled anew.
        data = data if isinstance(data, bytes) else bytes(data)
        first, frame = stream.next, Frame(data)
        assert count > 0, append
        body_at, kept = bare(frame) if stream.messages is not None else (WHOLE, data)
        table = stream.frames
        more = describe(table.name, frame)
        row = (stream.id, first + count, count, len(data), serial, at_us, source, body_at, kept, *more)
        self._add(Into(tables.quoted(table), _FRAME + COLUMNS.get(table.name, ())), [row])
        if stream.messages is not None:
            columns, rows = message_rows(frame, first, at_us, source)
            if stream.lane is None:
                columns, rows = dead_letter_rows(stream.id, stream.name, frame, columns, rows)
            elif frame.flags & KEY:
                self.keyed.add(stream.messages)
            self._add(Into(tables.quoted(stream.messages), columns), rows)
            self.tables.add(stream.messages)
        self.entries.append(Entry(stream, Chunk(first, count, 0, data, at_us, source)))
        self.size += len(data)
        stream.next = first + count
        return first

    def _add(self, into: Into, rows: list[Any]) -> None:
        self.made.setdefault(into, []).append(rows)
        self.rows += len(rows)


def batches(jobs: Sequence[Job], statement_bytes: int) -> Iterator[tuple[Into, list[Row]]]:
    """The rows of these jobs, put together for statements of about so many bytes. How long a run of rows is, is told by
    the length of its frame; one that is much longer is split evenly."""
    gathered: dict[Into, list[list[Row]]] = {}
    lengths: dict[int, int] = {}
    for job in jobs:
        for into, runs in job.made.items():
            gathered.setdefault(into, []).extend(runs)
            for run, entry in zip(runs, job.entries, strict=False) if len(runs) == len(job.entries) else ():
                lengths[id(run)] = len(entry.chunk.frame)
    for into, runs in gathered.items():
        chosen: list[Row] = []
        size = 0
        for run in runs:
            length = lengths.get(id(run)) or _length(run)
            if size and size + length > statement_bytes:
                yield into, chosen
                chosen, size = [], 0
            if length > 2 * statement_bytes and len(run) > 1:
                step = max(1, len(run) * statement_bytes // length)
                for at in range(0, len(run), step):
                    yield into, run[at : at + step]
                continue
            chosen += run
            size += length
        if chosen:
            yield into, chosen


def _length(rows: list[Row]) -> int:
    return sum(len(value) if isinstance(value, (bytes, str)) else 8 for row in rows for value in row)
