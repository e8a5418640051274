"""Reused memory for large frames.

A fresh megabyte costs a page fault for each of its 256 pages, and where the machine is a virtual one, that takes many
times as long as filling it. The C library gives large pieces back to the system as soon as they are freed; so a process
that sends and receives megabyte after megabyte pays each time. Here a few of them are kept.

A piece is dropped by its user: one that nobody has a view of any more is given out again. `BytesIO` knows this of
itself: it refuses to be written to while there is a view of it.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

__all__ = ["SPARE", "Spare"]

PIECES_MAX: Final = 8
PIECE_MAX: Final = 4 << 20
PIECE_MIN: Final = 256 << 10


class Spare:
    """Up to `PIECES_MAX` pieces of up to `PIECE_MAX` bytes. May be used from several threads."""

    __slots__ = ("_pieces", "_room")

    def __init__(self) -> None:
        self._pieces: deque[io.BytesIO] = deque()
        self._room: deque[None] = deque([None] * PIECES_MAX)

    def view(self, size: int) -> memoryview:
        """Memory to write to, of at least this size; its content is arbitrary."""
        if size <= PIECE_MAX:
            found = self._find(partial(_lend, size))
            if found is not None:
                return found
        return memoryview(bytearray(size))

    def join(self, parts: Sequence[bytes | memoryview], size: int) -> memoryview | None:
        """The parts, which take `size` bytes together, one after the other; None if there is no room for them here."""
        return self._find(partial(_fill, parts, size)) if size <= PIECE_MAX else None

    def _find(self, use: Callable[[io.BytesIO], memoryview | None]) -> memoryview | None:
        """The first free piece, or a new one; None if there are enough already."""
        for _ in range(len(self._pieces)):
            try:
                piece = self._pieces.popleft()
            except IndexError:  # another thread was quicker
                break
            try:
                return use(piece)
            except BufferError:
                continue
            finally:
                self._pieces.append(piece)
        try:
            self._room.pop()
        except IndexError:
            return None
        piece = io.BytesIO()
        try:
            return use(piece)
        finally:
            self._pieces.append(piece)


def _lend(size: int, piece: io.BytesIO) -> memoryview:
    piece.seek(0)
    piece.write(b"\0")
    if piece.seek(0, io.SEEK_END) < size:
        piece.seek(max(PIECE_MIN, 1 << (size - 1).bit_length()) - 1)
        piece.write(b"\0")
    return piece.getbuffer()


def _fill(parts: Sequence[bytes | memoryview], size: int, piece: io.BytesIO) -> memoryview:
    piece.seek(0)
    piece.writelines(parts)
    if piece.tell() != size:
        raise TypeError("bodies are bytes: the length of something else is not its number of bytes")
    return piece.getbuffer()[:size]


SPARE: Final = Spare()
"""The one of this process."""
