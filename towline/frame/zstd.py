"""Compression of the columns of a frame, bounded on the way back by the length the header states."""

from __future__ import annotations

import sys

from towline.errors import BadFrame
from towline.frame.layout import pad8

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["compress_columns", "decompress_columns"]

# A window of 64 MiB covers the largest frame: a larger one would only waste memory.
_OPTIONS: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 26}


def compress_columns(columns: bytes) -> bytes:
    return zstd.compress(columns, level=1)


def decompress_columns(packed: memoryview, columns_length: int) -> bytes:
    """Unpack, but never more than `columns_length` bytes, whatever the packed bytes claim."""
    decompressor = zstd.ZstdDecompressor(options=_OPTIONS)
    try:
        # One byte more than stated, so that too much differs from just enough.
        columns = decompressor.decompress(packed, max_length=columns_length + 1)
    except zstd.ZstdError as error:
        raise BadFrame(f"the columns of a frame do not unpack: {error}") from None
    if len(columns) != columns_length or not decompressor.eof:
        raise BadFrame(f"the columns of a frame do not unpack to {columns_length} bytes as stated")
    padding = decompressor.unused_data
    if padding != pad8(len(packed) - len(padding)):
        raise BadFrame("the columns of a frame are followed by something else")
    return columns
