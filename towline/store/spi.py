"""The interface of a store: a keeper of streams of frames.

A *stream* is a dense sequence of records: 0, 1, 2, … It comes to be by the first append to it, and is there for good,
unless it is forgotten. Its *kind* is what its name begins with, up to the first slash and with it; none ends with one.
Each kind has a *floor*: 0, or the highest next number of a stream of this kind that was forgotten. Streams of the kind
that are not there begin at it, so that no number is given twice under one name, and no name need be kept for that.
A *frame* holds some consecutive records of one stream. A *unit* is one or more frames, for one or more streams, that
survive a crash all or not at all. The docstrings here are the contract; `tests/store/contract/` checks it on every
store.

A store is used from one event loop. Sequence numbers are given when `append` is *called*, in the order of the calls:
the first call is first in the stream, whatever the order in which the appends become durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from towline.errors import TowlineError
from towline.model import Durability
from towline.store.eras import Times

__all__ = ["Append", "Appended", "Bounds", "Chunk", "Lost", "Read", "Store", "Trimmed", "kind_of"]


class Append(NamedTuple):
    """One frame of a unit. `frame` was checked already; `count` is its number of records."""

    stream: str
    frame: bytes | memoryview
    count: int  # type: ignore[assignment]  # a tuple's own count is of no use here
    source: bytes = b""
    """The sender's address, at most 16 bytes (IPv4 in 4, IPv6 in 16); kept beside the frame."""
    control: bool = False
    """Delivery events and the like: taken from a reserve when the store is full, so that consumers and acks go on."""
    instead: bytes | None = None
    """Of such events: the frame that is stored in their place if messages of their unit are refused late (see
    `Appended`). It has as many records; empty is none, and None is the event itself."""


class Appended(NamedTuple):
    """The positions of the frames of a unit: the sequence number of each one's first record, and the time."""

    firsts: tuple[int, ...]
    at_us: int
    done: asyncio.Future[None]
    """Resolved when the unit is as durable as was asked for; fails with the error if it never will be. A store may find
    out late that messages are too large for it: then it fails with `TooLarge`, the events of the unit (`control`), or
    what is to be `instead` of them, are stored all the same, and the numbers of its messages stay taken, and are read
    as lost. Those of copies that a broker makes for itself (dead letters, which are `control`) are given again: it
    makes one after the other."""


class Bounds(NamedTuple):
    """The records of a stream that can be read: `first` up to but not including `end`; and the bytes they take."""

    first: int
    end: int
    size_bytes: int


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Some consecutive records of one stored frame: `count` of them, the first has sequence number `first` and is
    number `start` within the frame. `frame` is the whole frame, its checksum verified."""

    first: int
    count: int
    start: int
    frame: bytes | memoryview
    appended_at_us: int
    source: bytes
    serial: int = 0
    """The number by which the eras of its store count: see `Store.times`."""


class Lost(NamedTuple):
    """Records within the bounds that cannot be read because their bytes are damaged."""

    first: int
    count: int  # type: ignore[assignment]  # a tuple's own count is of no use here
    reason: str


class Read(NamedTuple):
    """An answer to `read`: chunks and lost ranges, in order, together covering `first` up to `next` without a gap."""

    chunks: Sequence[Chunk]
    lost: Sequence[Lost]
    next: int


class Trimmed(NamedTuple):
    """The result of `retain`."""

    bytes_freed: int
    held_back: str
    """Empty, or why more could not be freed: for example the stream and record that a pin holds."""
    holders: tuple[str, ...] = ()
    """The streams whose pins hold it back; of several with the same file the one that comes first in `pinned`."""
    surplus_bytes: int = 0
    """By how much the store is larger than it should be, still."""


def kind_of(stream: str) -> str:
    """The beginning of its name; empty if it has no slash."""
    return stream[: stream.find("/") + 1]


class Store(Protocol):
    """Ten methods; opening is the implementation's own."""

    @property
    def failure(self) -> TowlineError | None:
        """Why the store takes no more writes until it is opened anew; None if it does take them."""

    @property
    def times(self) -> Times:
        """When frames were appended, as far as their stamps can be believed."""

    def append(self, unit: Sequence[Append], durability: Durability) -> Appended:
        """Append a unit. Returns sequence numbers at once; `done` of the answer tells when it is durable.

        An empty unit is a barrier: its `done` resolves when all that was appended before is as durable as asked.
        Raises `QueueFull` or `DiskFull` before anything is numbered if there is no room, `TooLarge` if the unit never
        fits, `StoreFailed` if the store takes no more writes, and `Closed` after `close`. Until a unit is written,
        `read` does not return it and `bounds` does not count it. With `RECEIVED`, `done` is resolved already and the
        write follows by itself.
        `done` of appends to the same stream resolve in order among equal durabilities.
        """

    async def read(self, stream: str, first: int, max_count: int, max_bytes: int) -> Read:
        """Read on from record `first`: at most `max_count` records (one or more), and no frame that would make the
        frames, counted whole, exceed `max_bytes`; but always at least one frame or lost range, if there is any.

        `first` below the bounds begins at the bounds' first record; at or beyond the end the answer is empty with
        `next == first`. Damaged frames come back as `Lost`. Bodies are not copied more than once."""

    def bounds(self, stream: str) -> Bounds:
        """The readable records of a stream; for one that is not there both numbers are the floor of its kind, 0 as long
        as none was forgotten. Never goes back, also not through a restart, and not when all its records were trimmed,
        or it was forgotten."""

    async def locate(self, stream: str, time_us: int, first: int = 0, key: bytes = b"") -> int:
        """The first record of the stream from `first` on whose frame was appended at `time_us` or later and that has,
        if one is given, this key; the end if there is none. A search by key never holds up the event loop, and is much
        faster than reading the stream; damaged frames are passed over."""

    def streams(self, prefix: str = "") -> list[str]:
        """The names of all streams that begin with `prefix`, sorted; those with no record left as well, until they are
        forgotten."""

    async def trim(self, stream: str, before: int, *, forget: bool = False) -> None:
        """Make the records before `before` unreadable; durable before it returns. Their space is freed some time
        later. `before` beyond the end means the end. With `forget` a stream that has no record left then, and none on
        its way, is there no more: from this call on; and the floor of its kind is raised to its next number, with it or
        before it. That is only for kinds whose streams nobody counts in before they are there: as they wait for their
        first record, the floor may rise. A stream whose name has no kind is kept."""

    async def retain(self, max_age_us: int, max_bytes: int, pinned: Mapping[str, int]) -> Trimmed:
        """Free space: drop the oldest records that are older than `max_age_us` (0: no limit) or that make the store
        larger than `max_bytes` (0: no limit), but never one at or behind its stream's number in `pinned`, and never
        more than the limits ask for, up to the coarseness of the store's files. Bounds follow."""

    async def load(self, name: str) -> bytes | None:
        """The small document saved under this name, or None."""

    async def save(self, name: str, document: bytes) -> None:
        """Replace a small document: after a crash the old or the new one is there, whole. Durable before it returns.
        Names are file names: lower- and upper-case letters, digits, dots, hyphens."""

    async def close(self) -> None:
        """Write and sync all appended frames, then release everything. A second call does nothing."""
