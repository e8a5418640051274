"""Jobs that wait for their transaction: units of frames, trims, documents."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
from sqlalchemy import Table

from towline.frame import Frame
from towline.frame.layout import KEY
from towline.store.spi import Append, Chunk
from towline.store.sql.describe import COLUMNS, describe
from towline.store.sql.read.streams import Stream
from towline.store.sql.write.encoding import Encoding, Into, Run, into
from towline.store.sql.write.rows import WHOLE, Origin, bare, dead_letter_rows, messages_of

__all__ = ["Entry", "Job", "Packing", "Trim", "batches"]


class Entry(NamedTuple):
    """A frame being written."""

    stream: Stream
    chunk: Chunk


class Trim(NamedTuple):
    """A stream that begins at `first` from now on, and is shorter by so many bytes; or is forgotten."""

    stream: Stream
    first: int
    freed_bytes: int
    forgets: bool = False


class Standing(NamedTuple):
    """The part of an entry that is stored even if the messages of its job are refused."""

    where: Into
    run: Run
    chunk: Chunk


class Packing(NamedTuple):
    """The form of rows: their encoding, and the approximate size of a piece."""

    encoding: Encoding
    piece_bytes: int


_FRAME: Final = ("stream_id", "end_seq", "records", "length", "serial", "at_us", "source_ip", "body_at", "frame")
_ROW_BYTES: Final = 64
"""The approximate size of a message's row beside its share of the frame."""


class Job:
    """A part of a transaction, done when that is committed."""

    __slots__ = (
        "copies",
        "done",
        "entries",
        "events",
        "keyed",
        "made",
        "rows",
        "size",
        "statements",
        "tables",
        "trims",
    )

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.done = done
        self.entries: list[Entry] = []
        self.made: list[tuple[Into, Run]] = []
        """The rows to insert."""
        self.tables: set[Table] = set()
        """Tables that must be there."""
        self.keyed: set[Table] = set()
        """Those of them that get messages with keys."""
        self.trims: list[Trim] = []
        self.events: dict[int, Standing] = {}
        """Entries that are events: these count from when they were appended, and cannot be refused. By their number,
        the rows that stand if messages are: their own, or those `instead`."""
        self.copies: set[int] = set()
        """Entries that are messages which the broker copies for itself."""
        self.statements: list[bytes] = []
        """Further statements of it."""
        self.rows = 0
        self.size = 0

    def add_frame(self, stream: Stream, append: Append, serial: int, at_us: int, packing: Packing) -> int:
        """Number a frame and make its rows; returns the number of its first record."""
        _, data, count, source, control, instead = append
        # A view may be of a buffer that is soon filled anew.
        data = data if isinstance(data, bytes) else bytes(data)
        first, frame = stream.next, Frame(data)
        assert count > 0, append
        chunk = Chunk(first, count, 0, data, at_us, source, serial)
        number = len(self.entries)
        self._add(*_frame_row(stream, frame, chunk, serial, packing))
        if stream.messages is not None:
            self._add_messages(stream, frame, Origin(first, at_us, source), packing)
            if control:
                self.copies.add(number)
        elif control and instead is None:
            self.events[number] = Standing(*self.made[-1], chunk)
        elif control and instead:
            other = msgspec.structs.replace(chunk, frame=instead)
            self.events[number] = Standing(*_frame_row(stream, Frame(instead), other, serial, packing), other)
        self.entries.append(Entry(stream, chunk))
        self.size += len(data)
        stream.next = first + count
        return first

    @property
    def refusable(self) -> bool:
        """Whether it has messages, which may be left out, or no records at all."""
        messages = (chunk.frame for number, (_, chunk) in enumerate(self.entries) if number not in self.events)
        return not self.entries or any(messages)

    def hollow(self) -> None:
        """Leave messages out. Their numbers stay taken, and are read as lost; but those of copies are free again, for
        their maker waits for it."""
        self.made = [(where, run) for where, run, _ in self.events.values()]
        self.rows = sum(run.rows for _, run in self.made)
        self.tables.clear()
        self.keyed.clear()
        entries, events = list[Entry](), dict[int, Standing]()
        for number, (stream, chunk) in enumerate(self.entries):
            standing = self.events.get(number)
            if standing is not None:
                events[len(entries)] = standing
                entries.append(Entry(stream, standing.chunk))
            elif number in self.copies and stream.next == chunk.first + chunk.count:
                stream.next = chunk.first
            else:
                entries.append(Entry(stream, msgspec.structs.replace(chunk, frame=b"")))
        self.entries, self.events = entries, events

    def _add_messages(self, stream: Stream, frame: Frame, origin: Origin, packing: Packing) -> None:
        encoding, piece_bytes = packing
        table = stream.messages
        assert table is not None, stream.name
        self.tables.add(table)
        count = frame.count
        if stream.lane is None:
            messages = messages_of(frame, origin, 0, count)
            columns, rows = dead_letter_rows(stream.id, stream.name, frame, messages)
            self._add(into(table, columns), encoding.rows(rows))
            return
        if frame.flags & KEY:
            self.keyed.add(table)
        length = len(frame.columns) + count * _ROW_BYTES  # of a compressed frame, as it is unpacked
        step = count if length <= 2 * piece_bytes else max(1, count * piece_bytes // length)
        for start in range(0, count, step):
            messages = messages_of(frame, origin, start, min(start + step, count))
            self._add(into(table, messages.columns), encoding.messages(messages))

    def _add(self, where: Into, run: Run) -> None:
        self.made.append((where, run))
        self.rows += run.rows


def _frame_row(stream: Stream, frame: Frame, chunk: Chunk, serial: int, packing: Packing) -> tuple[Into, Run]:
    """The row of a frame."""
    table = stream.frames
    body_at, kept = bare(frame) if stream.messages is not None else (WHOLE, bytes(chunk.frame))
    row = (
        stream.id,
        chunk.first + chunk.count,
        chunk.count,
        len(chunk.frame),
        serial,
        chunk.appended_at_us,
        chunk.source,
        body_at,
        kept,
        *describe(table.name, frame),
    )
    return into(table, _FRAME + COLUMNS.get(table.name, ())), packing.encoding.rows([row])


def batches(jobs: Sequence[Job], statement_bytes: int) -> Iterator[tuple[Into, list[bytes]]]:
    """The rows of these jobs, put together for statements of about so many bytes."""
    gathered: dict[Into, list[bytes]] = {}
    for job in jobs:
        for where, run in job.made:
            gathered.setdefault(where, []).append(run.data)
    for where, runs in gathered.items():
        chosen: list[bytes] = []
        size = 0
        for data in runs:
            if size and size + len(data) > statement_bytes:
                yield where, chosen
                chosen, size = [], 0
            chosen.append(data)
            size += len(data)
        yield where, chosen
