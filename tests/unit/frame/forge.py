"""Frames for tests: of any messages, and with anything wrong in them that a checksum does not find."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from crc32c import crc32c
from hypothesis import strategies as st

from towline.frame import Frame, encode
from towline.frame.layout import HEADER

FIELDS = (
    "magic",
    "length",
    "crc",
    "flags",
    "token_length",
    "count",
    "columns_length",
    "producer_id",
    "producer_seq",
    "produced_at_us",
    "earliest_expiry_us",
    "latest_expiry_us",
    "reserved",
)
COLUMNS = ("keys", "headers", "dedup_ids", "shard_keys", "expires_at_us", "deliver_at_us", "limits")


class Batch(NamedTuple):
    """What goes into `encode`."""

    bodies: list[bytes]
    options: dict[str, Any]

    def encode(self, *, compress: bool = False) -> bytes:
        return encode(self.bodies, **self.options, compress=compress)


def reseal(frame: bytes, **fields: int) -> bytes:
    """The frame with some fields of its header set, its length and checksum made right again, unless they are given."""
    header = dict(zip(FIELDS, HEADER.unpack_from(frame), strict=True)) | {"length": len(frame)} | fields
    tail = HEADER.pack(*header.values())[12:] + frame[HEADER.size :]
    crc = fields.get("crc", crc32c(tail))
    return struct.pack("<III", header["magic"], header["length"], crc) + tail


def with_columns(frame: bytes, columns: bytes, **fields: int) -> bytes:
    """The frame with other columns behind its header and token, and a right checksum."""
    token_length = Frame(frame).token.__len__()
    head = frame[: HEADER.size + (token_length + 7) // 8 * 8]
    return reseal(head + columns, **({"columns_length": len(columns)} | fields))


def columns_of(frame: Frame) -> dict[str, Any]:
    """Everything a frame says of its messages, as `encode` took it."""
    return {"bodies": frame.bodies()} | {name: getattr(frame, name)() for name in COLUMNS}


def expected_columns(batch: Batch) -> dict[str, Any]:
    """What `columns_of` should give: an empty text is none, and a column of nothing is not there."""
    columns: dict[str, Any] = {"bodies": batch.bodies}
    for name in COLUMNS:
        values = batch.options.get(name)
        if values is not None and any(values):
            none: Any = {} if name == "headers" else 0 if name.endswith("_us") or name == "limits" else None
            columns[name] = [value or none for value in values]
        else:
            columns[name] = None
    return columns


int64 = st.integers(-(2**63), 2**63 - 1)
uint64 = st.integers(0, 2**64 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def batches(draw: st.DrawFn, max_count: int = 12) -> Batch:
    bodies = draw(st.lists(st.binary(max_size=40), min_size=1, max_size=max_count))

    def column(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.none() | st.lists(values, min_size=len(bodies), max_size=len(bodies))

    options = {
        "keys": draw(column(st.none() | texts)),
        "headers": draw(column(st.none() | st.dictionaries(texts, texts, max_size=3))),
        "dedup_ids": draw(column(st.none() | texts)),
        "shard_keys": draw(column(st.none() | texts)),
        "expires_at_us": draw(column(st.just(0) | st.integers(0, 2**63 - 1))),
        "deliver_at_us": draw(column(st.just(0) | int64)),
        "limits": draw(column(st.just(0) | int64)),
        "producer_id": draw(uint64),
        "producer_seq": draw(uint64),
        "produced_at_us": draw(int64),
        "token": draw(st.binary(max_size=64)),
    }
    return Batch(bodies, options)


def rich_frame(count: int = 4, *, compress: bool = False) -> bytes:
    """A frame with every column."""
    return encode(
        [b"body %d" % index for index in range(count)],
        keys=[f"key-{index}" for index in range(count)],
        headers=[{"kind": f"test {index}"} for index in range(count)],
        dedup_ids=[f"dedup-{index}" for index in range(count)],
        shard_keys=[f"shard-{index}" for index in range(count)],
        expires_at_us=[1_000_000 + index for index in range(count)],
        deliver_at_us=[2_000_000 + index for index in range(count)],
        limits=[3_000_000 + index for index in range(count)],
        producer_id=1,
        producer_seq=2,
        produced_at_us=3,
        token=b"token",
        compress=compress,
    )
