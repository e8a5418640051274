"""A frame in, its columns out. Nothing is copied before a column is asked for."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import msgspec
from crc32c import crc32c

from towline.errors import BadFrame, TooLarge
from towline.format import not_understood
from towline.frame.even import cut_even, even_offsets, even_size, even_step
from towline.frame.layout import (
    BODY,
    COUNT_MAX,
    CRC_FROM,
    DEDUP,
    DELIVER_AT,
    EXPIRES_AT,
    FRAME_MAX,
    HEADER,
    HEADERS,
    KEY,
    LIMIT,
    MAGIC,
    PRODUCED_AT,
    SHARD_KEY,
    TOKEN_MAX,
    UNKNOWN_FLAGS,
    ZSTD,
    numbers_in,
    texts_in,
)
from towline.frame.zstd import decompress_columns

__all__ = ["Column", "Frame", "decode_headers", "understood"]

Buffer = bytes | bytearray | memoryview

_LARGE: Final = 512
_HEADERS = msgspec.msgpack.Decoder(dict[str, str])
_OFFSET = struct.Struct("<I").unpack_from
_OFFSETS = struct.Struct("<II").unpack_from


class Column(NamedTuple):
    """The place of a text column within the columns region: its offsets, and its data. `base` is its first offset."""

    offsets_at: int
    data_at: int
    data_length: int
    base: int


class Frame:
    """A read view of one frame. Making one checks the header; `verify` checks the checksum and the shape. The offsets
    between the first and the last of a column are checked when they are used: then all of them are gone through."""

    __slots__ = (
        "_checksum",
        "_columns",
        "_columns_length",
        "_numbers",
        "_texts",
        "_view",
        "count",
        "earliest_expiry_us",
        "flags",
        "latest_expiry_us",
        "length",
        "produced_at_us",
        "producer_id",
        "producer_seq",
        "token",
    )

    def __init__(self, data: Buffer) -> None:
        view = memoryview(data)
        if len(view) < HEADER.size:
            raise BadFrame(f"a frame of {len(view)} bytes is shorter than its header")
        (
            magic,
            length,
            self._checksum,
            self.flags,
            token_length,
            count,
            columns_length,
            self.producer_id,
            self.producer_seq,
            self.produced_at_us,
            self.earliest_expiry_us,
            self.latest_expiry_us,
            _,
        ) = HEADER.unpack_from(view)
        if magic != MAGIC:
            raise BadFrame(f"a frame begins with TWF1, not with {bytes(view[:4])!r}")
        if length != len(view):
            raise BadFrame(f"a frame of {len(view)} bytes states a length of {length}")
        if count == 0:
            raise BadFrame("a frame holds at least one message")
        if count > COUNT_MAX:
            raise TooLarge(f"a frame holds at most {COUNT_MAX} messages, not {count}")
        if length > FRAME_MAX or columns_length > FRAME_MAX:
            raise TooLarge(f"a frame and its columns take at most {FRAME_MAX} bytes")
        if token_length > TOKEN_MAX or HEADER.size + token_length > length:
            raise BadFrame(f"a frame states a token of {token_length} bytes")
        self.length = length
        self.count = count
        self.token = bytes(view[HEADER.size : HEADER.size + token_length]) if token_length else b""
        self._columns_length: int = columns_length
        self._view = view
        self._columns: memoryview | None = None
        self._texts: dict[int, Column] | None = None
        self._numbers: dict[int, int] | None = None

    def verify(self) -> Frame:
        """Check the checksum, the flags and that the columns fill the frame; the work does not grow with the count
        but for the checksum's single pass."""
        if crc32c(self._view[CRC_FROM:]) != self._checksum:
            raise BadFrame(f"the checksum of a frame of {self.count} messages and {self.length} bytes does not match")
        if self.flags & UNKNOWN_FLAGS:
            unknown = self.flags & UNKNOWN_FLAGS
            raise BadFrame(f"a frame has unknown flags {unknown:#x}: was it made by a newer version?")
        if not self.flags & ZSTD:
            self._lay_out()
        return self

    def verify_columns(self) -> Frame:
        """Check that every value of every text column can be cut out, so that no later reader stumbles over the frame.
        A few calls that run over whole columns; a compressed frame is unpacked for it."""
        texts = self._texts or self._lay_out()
        if self.count > 1:  # the two offsets of a single message were looked at on the way
            region, length = self.columns, 4 * self.count + 4
            for at, _, data_length, base in texts.values():
                # The first and the last were looked at on the way, too.
                if not _is_sorted(region[at : at + length], self.count, base, base + data_length):
                    raise BadFrame(f"the offsets of messages 0 to {self.count} of a frame run backwards")
        return self

    def verify_whole(self) -> Frame:
        """`verify` and `verify_columns` in one pass, for frames that are only passed on: the place of the columns is
        found again on demand. A frame that fails here goes through both of them, which give the reason."""
        view, flags, count, length = self._view, self.flags, self.count, self.length
        at = HEADER.size + (len(self.token) + 7 & ~7)
        sound = length - at == self._columns_length and crc32c(view[CRC_FROM:]) == self._checksum
        if not sound or flags & (UNKNOWN_FLAGS | ZSTD):
            return self.verify().verify_columns()
        offsets_length = 4 * count + 4
        for _ in texts_in(flags):
            data_at = at + (offsets_length + 7 & ~7)
            if data_at > length:
                return self.verify().verify_columns()
            packed = view[at : at + offsets_length]
            first, last = _OFFSET(packed)[0], _OFFSET(packed, offsets_length - 4)[0]
            at = data_at + (last - first + 7 & ~7)
            if first > last or at > length or (count > 1 and not _is_sorted(packed, count, first, last)):
                return self.verify().verify_columns()
        if at + 8 * count * len(numbers_in(flags)) != length:
            return self.verify().verify_columns()
        return self

    def verify_bodies(self, start: int, stop: int) -> list[bytes]:
        """`verify`, then `bodies`, in one pass: a consumer gets many small frames at a time. The place of other columns
        is found again on demand. A frame that fails here goes through both of them, which give the reason."""
        view, flags, count, length = self._view, self.flags, self.count, self.length
        begin = at = HEADER.size + (len(self.token) + 7 & ~7)
        sound = length - at == self._columns_length and crc32c(view[CRC_FROM:]) == self._checksum
        if not sound or flags & (UNKNOWN_FLAGS | ZSTD) or not 0 <= start < stop <= count:
            return self.verify().bodies(start, stop)
        ahead, last = 4 * count + 11 & ~7, 4 * count
        for _ in texts_in(flags):
            size = _OFFSET(view, at + last)[0] - _OFFSET(view, at)[0] if at + ahead <= length else -1
            if size < 0:
                return self.verify().bodies(start, stop)
            at += ahead + (size + 7 & ~7)
        if at + 8 * count * len(numbers_in(flags)) != length:
            return self.verify().bodies(start, stop)
        low, high = _OFFSET(view, begin)[0], _OFFSET(view, begin + last)[0]
        if count == 1:
            return [bytes(view[begin + ahead : begin + ahead + high - low])]
        size = even_size(count, low, _OFFSET(view, begin + 4)[0], high)
        # As bytes: views are compared one byte after the other.
        if size >= 0 and bytes(view[begin : begin + last + 4]) == even_offsets(size, count):
            return cut_even(view, begin + ahead + start * size, size, stop - start)
        offsets = _from_little_endian("I", view[begin + 4 * start : begin + 4 * stop + 4])
        if offsets[0] < low or offsets[-1] > high or offsets != sorted(offsets):
            return self.verify().bodies(start, stop)
        return _values(view, begin + ahead - low, offsets)

    @property
    def compressed(self) -> bool:
        return bool(self.flags & ZSTD)

    @property
    def data(self) -> memoryview:
        return self._view

    @property
    def columns_length(self) -> int:
        """How many bytes the columns take, unpacked."""
        return self._columns_length

    @property
    def columns(self) -> memoryview:
        """The columns region, unpacked."""
        if self._columns is None:
            stored = self._view[HEADER.size + (len(self.token) + 7 & ~7) :]
            if self.flags & ZSTD:
                stored = memoryview(decompress_columns(stored, self._columns_length))
            elif len(stored) != self._columns_length:
                raise BadFrame(f"a frame has {len(stored)} bytes of columns, but states {self._columns_length}")
            self._columns = stored
        return self._columns

    def let_go(self) -> Frame:
        """Keep the frame as it came, and not its unpacked columns: they are unpacked again on demand."""
        if self.flags & ZSTD:
            self._columns = self._texts = self._numbers = None
        return self

    def _lay_out(self) -> dict[int, Column]:
        """Find where each column lies, and that together they fill the columns region."""
        region, at, texts = self.columns, 0, {}
        region_length, offsets_length = len(region), 4 * self.count + 4
        for flag in texts_in(self.flags):
            data_at = at + (offsets_length + 7 & ~7)
            if data_at > region_length:
                raise BadFrame(f"a frame of {self.count} messages ends within its offsets")
            base = _OFFSET(region, at)[0]
            length = _OFFSET(region, at + offsets_length - 4)[0] - base
            if not 0 <= length <= region_length - data_at:
                raise BadFrame(f"a column of a frame states {length} bytes where {region_length - data_at} are left")
            texts[flag] = Column(at, data_at, length, base)
            at = data_at + (length + 7 & ~7)
        numbers = {}
        for flag in numbers_in(self.flags):
            numbers[flag] = at
            at += 8 * self.count
        if at != region_length:
            raise BadFrame(f"the columns of a frame take {at} bytes, but it has {region_length}")
        self._texts, self._numbers = texts, numbers
        return texts

    def text_column(self, flag: int) -> Column | None:
        return (self._texts or self._lay_out()).get(flag)

    def number_column(self, flag: int) -> int | None:
        if self._numbers is None:
            self._lay_out()
        assert self._numbers is not None, "just laid out"
        return self._numbers.get(flag)

    def offsets(self, column: Column, start: int = 0, stop: int | None = None) -> list[int]:
        """The offsets of values `start` to `stop`, one more than there are values; they never run backwards, nor out
        of the column."""
        stop = self.count if stop is None else stop
        assert 0 <= start <= stop <= self.count, (start, stop, self.count)
        view = self.columns[column.offsets_at + 4 * start : column.offsets_at + 4 * (stop + 1)]
        offsets = _from_little_endian("I", view)
        # Sorting what is sorted already is the cheapest way to find out that it is. Were this not checked, a few bytes
        # of offsets to and fro could make gigabytes of bodies.
        if offsets[0] < column.base or offsets[-1] > column.base + column.data_length or offsets != sorted(offsets):
            raise BadFrame(f"the offsets of messages {start} to {stop} of a frame run backwards")
        return offsets

    def ends(self, column: Column, start: int, stop: int) -> tuple[int, int]:
        """The offset of value `start`, and that behind the last before `stop`."""
        begin: int = _OFFSET(self.columns, column.offsets_at + 4 * start)[0]
        end: int = _OFFSET(self.columns, column.offsets_at + 4 * stop)[0]
        if not column.base <= begin <= end <= column.base + column.data_length:
            raise BadFrame(f"the offsets of messages {start} to {stop} of a frame run backwards")
        return begin, end

    def texts_at(self, flag: int, indexes: Sequence[int]) -> list[bytes]:
        """Some values of a text column that is present, each by itself."""
        column = self.text_column(flag)
        assert column is not None, "the flags name this column"
        region, at, data_at = self.columns, column.offsets_at, column.data_at - column.base
        low, high = column.base, column.base + column.data_length
        values: list[bytes] = []
        for index in indexes:
            begin, end = _OFFSETS(region, at + 4 * index)
            if not low <= begin <= end <= high:
                raise BadFrame(f"the offsets of message {index} of a frame run backwards")
            values.append(bytes(region[data_at + begin : data_at + end]))
        return values

    def texts(self, flag: int, start: int = 0, stop: int | None = None) -> list[bytes] | None:
        column = self.text_column(flag)
        if column is None:
            return None
        if self.count == 1 and start == 0 and stop != 0:
            # Its two offsets were looked at on the way.
            return [bytes(self.columns[column.data_at : column.data_at + column.data_length])]
        return _values(self.columns, column.data_at - column.base, self.offsets(column, start, stop))

    def longest(self) -> int:
        """The length in bytes of the texts of the largest message."""
        sizes: list[int] = [0] * self.count
        for column in (self._texts or self._lay_out()).values():
            offsets = self.offsets(column)
            sizes = [size + end - begin for size, begin, end in zip(sizes, offsets, offsets[1:], strict=False)]
        return max(sizes)

    def numbers(self, flag: int, start: int = 0, stop: int | None = None) -> list[int] | None:
        at = self.number_column(flag)
        if at is None:
            return None
        stop = self.count if stop is None else stop
        assert 0 <= start <= stop <= self.count, (start, stop, self.count)
        return _from_little_endian("q", self.columns[at + 8 * start : at + 8 * stop])

    def bodies(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        bodies = self.texts(BODY, start, stop)
        assert bodies is not None, "the body column is always there"
        return bodies

    def keys(self, start: int = 0, stop: int | None = None) -> list[str | None] | None:
        return _strings(self.texts(KEY, start, stop))

    def dedup_ids(self, start: int = 0, stop: int | None = None) -> list[str | None] | None:
        return _strings(self.texts(DEDUP, start, stop))

    def shard_keys(self, start: int = 0, stop: int | None = None) -> list[str | None] | None:
        return _strings(self.texts(SHARD_KEY, start, stop))

    def headers(self, start: int = 0, stop: int | None = None) -> list[dict[str, str]] | None:
        packed = self.texts(HEADERS, start, stop)
        return None if packed is None else [decode_headers(value) for value in packed]

    def expires_at_us(self, start: int = 0, stop: int | None = None) -> list[int] | None:
        return self.numbers(EXPIRES_AT, start, stop)

    def deliver_at_us(self, start: int = 0, stop: int | None = None) -> list[int] | None:
        return self.numbers(DELIVER_AT, start, stop)

    def limits(self, start: int = 0, stop: int | None = None) -> list[int] | None:
        return self.numbers(LIMIT, start, stop)

    def produced_at_each_us(self, start: int = 0, stop: int | None = None) -> list[int] | None:
        """The times of the messages of a frame that were produced at different times; else `produced_at_us` holds for
        all."""
        return self.numbers(PRODUCED_AT, start, stop)


def decode_headers(packed: bytes) -> dict[str, str]:
    """The headers of one message. Anything but a map of strings, which only a faulty client sends, reads as none."""
    if not packed:
        return {}
    try:
        return _HEADERS.decode(packed)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}


def _values(view: memoryview, at: int, offsets: list[int]) -> list[bytes]:
    """The values between these offsets, which count from `at` and were checked."""
    first = offsets[0]
    size = even_step(offsets)
    if size >= 0:
        return cut_even(view, at + first, size, len(offsets) - 1)
    if offsets[-1] - first >= _LARGE * (len(offsets) - 1):
        # Each by itself: a copy of them all would cost more than the views.
        return [bytes(view[at + begin : at + end]) for begin, end in zip(offsets, offsets[1:], strict=False)]  # noqa: RUF007
    data = bytes(view[at + first : at + offsets[-1]])
    if first:
        offsets = [offset - first for offset in offsets]
    # zip is faster than pairwise, which makes a new tuple for each pair.
    return [data[begin:end] for begin, end in zip(offsets, offsets[1:], strict=False)]  # noqa: RUF007


def _is_sorted(packed: memoryview, count: int, first: int, last: int) -> bool:
    """Whether the offsets of so many values never run backwards."""
    size = even_size(count, first, _OFFSET(packed, 4)[0], last)
    if size >= 0 and bytes(packed) == even_offsets(size, count):
        return True
    offsets = _from_little_endian("I", packed)
    return offsets == sorted(offsets)


def _strings(values: list[bytes] | None) -> list[str | None] | None:
    return None if values is None else [value.decode("utf-8", "replace") if value else None for value in values]


def _from_little_endian(kind: Literal["I", "q"], view: memoryview) -> list[int]:
    if sys.byteorder == "little":
        return view.cast(kind).tolist()
    numbers = array(kind, view.tobytes())
    numbers.byteswap()
    return numbers.tolist()


def understood(frame: Frame, stream: str, first: int) -> Frame:
    """The same frame, which a later version may have stored: refused if it has flags that this one does not know."""
    if unknown := frame.flags & UNKNOWN_FLAGS:
        raise not_understood(f"{stream}: the frame of record {first}", f"unknown flags {unknown:#x}")
    return frame
