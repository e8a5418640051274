"""Frames that are checked together pass exactly if each would pass alone, and are of one kind."""

from __future__ import annotations

import struct
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.frame.forge import reseal, with_columns
from towline.errors import BadFrame, TooLarge
from towline.frame import COUNT_MAX, Frame, encode, encode_events
from towline.frame.layout import KEY, LIMIT
from towline.frame.many import Bundle, Series

ALIKE: dict[str, Any] = {"keys": ["a", None, "c"], "limits": [1, 2, 3], "token": b"who", "producer_id": 7}
FRAMES = [encode([b"one", b"", b"three"], **ALIKE, producer_seq=seq) for seq in (4, 5, 6)]
"""Each has offsets that begin at 0; those of a series go on from frame to frame."""


def series(counts: list[int], **columns: Any) -> list[memoryview]:
    numbers = iter(range(sum(counts)))
    groups = [[next(numbers) for _ in range(each)] for each in counts]
    bodies = [b"x" * (number % 5) for number in range(sum(counts))]
    whole, lengths = Series(groups, bodies, **columns).frames(7, count(4), 1)
    ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
    return [whole[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def each_passes(frames: list[bytes]) -> bool:
    try:
        for frame in frames:
            Frame(frame).verify().verify_columns()
    except (BadFrame, TooLarge):
        return False
    return True


def test_a_bundle_tells_what_its_frames_say() -> None:
    found = Bundle.verify(FRAMES, b"who")
    assert found == Bundle(KEY | LIMIT, tuple(map(len, FRAMES)), (3, 3, 3), 7, (4, 5, 6))


@pytest.mark.parametrize("token", [b"", b"who", b"12345678"])
@pytest.mark.parametrize("columns", [{}, {"keys": [f"key-{number}" for number in range(60)], "limit": 5}])
def test_the_frames_of_a_series_pass(token: bytes, columns: dict[str, Any]) -> None:
    counts = [1, 9, 50]
    found = Bundle.verify(series(counts, token=token, **columns), token)
    assert found is not None
    assert (found.counts, found.producer_id, found.producer_seqs) == (tuple(counts), 7, (4, 5, 6))


@pytest.mark.parametrize("messages", [40_000, 70_000])
def test_large_frames_pass_and_are_looked_through(messages: int) -> None:
    frames: list[bytes] = [bytes(frame) for frame in series([messages, 1])]
    assert Bundle.verify(frames, b"") is not None
    columns = bytearray(frames[0][72:])
    columns[4 * messages // 2 : 4 * messages // 2 + 4] = struct.pack("<I", 5 * messages)
    assert Bundle.verify([with_columns(frames[0], bytes(columns)), frames[1]], b"") is None


def test_every_flipped_bit_is_found() -> None:
    for at in range(len(FRAMES[1])):
        for bit in range(8):
            damaged = bytearray(FRAMES[1])
            damaged[at] ^= 1 << bit
            assert Bundle.verify([FRAMES[0], damaged, FRAMES[2]], b"who") is None


@pytest.mark.parametrize("size", [0, 71, 72, len(FRAMES[0]) - 8])
def test_a_cut_frame_is_found(size: int) -> None:
    assert Bundle.verify([FRAMES[0], FRAMES[1][:size]], b"who") is None


@given(st.data())
def test_forged_columns_pass_if_each_frame_would_pass_alone(data: st.DataObject) -> None:
    small = st.integers(0, 8)
    offset = small | st.sampled_from([2**31 - 1, 2**31, 2**32 - 1])
    forged = []
    for seq in range(data.draw(st.integers(1, 3))):
        count_ = data.draw(st.integers(1, 3))
        offsets = sorted(data.draw(st.lists(offset, min_size=count_ + 1, max_size=count_ + 1)))
        if data.draw(st.booleans()):
            offsets = data.draw(st.permutations(offsets))
        columns = struct.pack(f"<{count_ + 1}I", *offsets)
        columns += bytes(-len(columns) % 8) + bytes(8 * data.draw(st.integers(0, 2)))
        columns = columns[: data.draw(st.sampled_from([len(columns), len(columns), 4]))]
        forged.append(with_columns(encode([b"one"], producer_seq=seq), columns, count=count_))
    assert (Bundle.verify(forged, b"") is not None) == each_passes(forged)


@pytest.mark.parametrize("other", [
    encode([b"one", b"", b"three"], **ALIKE | {"token": b"you"}),
    encode([b"one", b"", b"three"], **ALIKE | {"token": b"whoever"}),
    encode([b"one", b"", b"three"], **ALIKE | {"producer_id": 8}),
    encode([b"one", b"", b"three"], **ALIKE | {"keys": None}),
    reseal(FRAMES[0], flags=KEY | LIMIT | 1024),
    reseal(FRAMES[0], count=0),
    reseal(FRAMES[0], count=COUNT_MAX + 1),
    reseal(FRAMES[0], columns_length=8),
    reseal(FRAMES[0], magic=1),
], ids=["token", "longer token", "producer", "columns", "flags", "none", "many", "length", "magic"])  # fmt: skip
def test_what_is_of_another_kind_is_looked_at_for_itself(other: bytes) -> None:
    assert Bundle.verify([FRAMES[0], other, FRAMES[2]], b"who") is None


@pytest.mark.parametrize(
    "frame", [encode_events([b"event"]), encode([b"x" * 500], compress=True)], ids=["events", "zstd"]
)
def test_what_is_not_plain_is_looked_at_for_itself(frame: bytes) -> None:
    assert each_passes([frame])
    assert Bundle.verify([frame, frame], b"") is None


def test_another_token_than_that_of_all_frames_is_found() -> None:
    assert Bundle.verify(FRAMES, b"you") is None
    assert Bundle.verify(FRAMES, b"") is None


@pytest.mark.parametrize(
    ("offsets", "sound"),
    [
        ([2**31 + 1, 2**31 + 1, 2**31 + 2, 2**31 + 2], True),
        ([2**31 + 1, 0, 2**30, 2**31 + 2], False),
        ([0, 2**31 + 1, 1, 1], False),
        ([5, 4, 5, 6], False),
        ([5, 5, 7, 6], False),
    ],
)
def test_offsets_of_any_size_are_compared(offsets: list[int], sound: bool) -> None:
    forged = with_columns(encode([b"one"]), struct.pack("<4I", *offsets) + bytes(8), count=3)
    assert each_passes([forged]) is sound
    assert (Bundle.verify([forged], b"") is not None) is sound
    assert (Bundle.verify([forged, forged], b"") is not None) is sound
