"""A sub-range of a frame as a frame of its own, made of slices: bodies are neither looked at nor copied."""

from __future__ import annotations

from crc32c import crc32c

from towline.errors import BadFrame
from towline.frame.decode import Frame
from towline.frame.layout import COVERED, CRC_FROM, HEADER, MAGIC, PREFIX, numbers_in, pad8, texts_in

__all__ = ["slice_frame", "text_slices"]


def slice_frame(frame: Frame, start: int, stop: int) -> list[bytes | memoryview]:
    """The buffers that, back to back, are the frame of messages `start` to `stop`. A compressed frame is not opened for
    this: it is sent whole."""
    assert 0 <= start < stop <= frame.count, (start, stop, frame.count)
    if stop - start == frame.count:
        return [frame.data]
    assert not frame.compressed, "a compressed frame is sent whole"
    buffers: list[bytes | memoryview] = []
    for flag in texts_in(frame.flags):
        buffers += text_slices(frame, flag, start, stop)
    for flag in numbers_in(frame.flags):
        at = frame.number_column(flag)
        assert at is not None, "the flags name this column"
        buffers.append(frame.columns[at + 8 * start : at + 8 * stop])
    columns_length = sum(map(len, buffers))
    token = frame.token + pad8(len(frame.token))
    flags, token_length, _, _, *rest = COVERED.unpack_from(frame.data, CRC_FROM)
    covered = COVERED.pack(flags, token_length, stop - start, columns_length, *rest) + token
    checksum = crc32c(covered)
    for buffer in buffers:
        checksum = crc32c(buffer, checksum)
    return [PREFIX.pack(MAGIC, HEADER.size + len(token) + columns_length, checksum) + covered, *buffers]


def text_slices(frame: Frame, flag: int, start: int, stop: int) -> list[bytes | memoryview]:
    column = frame.text_column(flag)
    assert column is not None, "the flags name this column"
    region, at = frame.columns, column.offsets_at
    offsets = region[at + 4 * start : at + 4 * (stop + 1)]
    low, high = int.from_bytes(offsets[:4], "little"), int.from_bytes(offsets[-4:], "little")
    if not column.base <= low <= high <= column.base + column.data_length:
        raise BadFrame(f"the offsets of messages {start} to {stop} of a frame run backwards")
    data_at = column.data_at - column.base
    data = region[data_at + low : data_at + high]
    return [offsets, pad8(len(offsets)), data, pad8(len(data))]
