"""Columns whose values are all of one length take a short way: it comes to the same."""

from __future__ import annotations

import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.frame.forge import with_columns
from towline.errors import BadFrame
from towline.frame import FRAME_MAX, Frame, encode, encode_frame, even, slice_frame
from towline.frame.even import cut_even, even_offsets, even_size, even_step
from towline.frame.layout import HEADER, pad8
from towline.frame.spare import Spare

COUNTS = (1, 2, 15, 16, 17, 31, 32, 33, 1000, (1 << 14) - 1, 1 << 14, (1 << 14) + 1)


def column(bodies: list[bytes]) -> bytes:
    """What a text column is, word by word."""
    offsets, at = [0], 0
    for body in bodies:
        at += len(body)
        offsets.append(at)
    packed, data = struct.pack(f"<{len(offsets)}I", *offsets), b"".join(bodies)
    return packed + pad8(len(packed)) + data + pad8(len(data))


def numbered(size: int, count: int) -> list[bytes]:
    return [number.to_bytes(8, "little")[:size].ljust(size, b".") for number in range(count)]


def read(frame: bytes | memoryview, start: int, stop: int) -> list[list[bytes]]:
    """All ways to the bodies."""
    return [
        Frame(frame).verify_bodies(start, stop),
        Frame(frame).verify().bodies(start, stop),
        Frame(frame).verify_whole().bodies(start, stop),
        Frame(b"".join(slice_frame(Frame(frame).verify(), start, stop))).verify_bodies(0, stop - start),
    ]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("size", [0, 1, 7, 8, 300])
def test_even_bodies_are_laid_out_and_cut_as_any_others(size: int, count: int) -> None:
    bodies = numbered(size, count)
    frame = encode(bodies)
    assert frame[HEADER.size :] == column(bodies)
    for start, stop in ((0, count), (count // 3, count), (count // 3, count // 3 + 1)):
        for found in read(frame, start, stop):
            assert found == bodies[start:stop]


@given(st.integers(0, 9), st.integers(16, 40), st.integers(-1, 39), st.integers(0, 12), st.data())
def test_one_of_another_length_is_not_cut_like_the_rest(
    size: int, count: int, odd: int, odd_size: int, data: st.DataObject
) -> None:
    bodies = numbered(size, count)
    if 0 <= odd < count:
        bodies[odd] = b"#" * odd_size
        bodies[-1] = b"!" * max(0, 2 * size - odd_size)  # in the sum they are even again, where that can be
    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start + 1, count))
    frame = encode(bodies, keys=["k" * len(body) for body in bodies])
    for found in read(frame, start, stop):
        assert found == bodies[start:stop]
    if any(bodies):  # else it has no keys
        assert Frame(frame).keys(start, stop) == ["k" * len(body) or None for body in bodies[start:stop]]


@pytest.mark.parametrize("bodies", [numbered(100, 1000), [*numbered(100, 999), b"odd"], [bytes(70_000)]])
def test_a_large_frame_is_the_same_in_memory_that_is_used_again(
    monkeypatch: pytest.MonkeyPatch, bodies: list[bytes]
) -> None:
    # The process's own may all be in use: decoders hold pieces of it.
    monkeypatch.setattr(sys.modules[encode.__module__], "SPARE", Spare())
    sizes = [len(body) for body in bodies]
    keys = [str(number) for number in range(len(bodies))]
    expected = encode(bodies, keys=keys, token=b"token")
    for known in (None, sizes):
        frame = encode_frame(bodies, keys=keys, token=b"token", reuse=True, sizes=known)
        assert isinstance(frame, memoryview), "it lies in such memory"
        assert frame == expected
    assert encode_frame(bodies, keys=keys, token=b"token", reuse=True, compress=True, sizes=sizes) == encode(
        bodies, keys=keys, token=b"token", compress=True
    )


def with_offsets(offsets: list[int], data: bytes) -> bytes:
    packed = struct.pack(f"<{len(offsets)}I", *offsets)
    columns = packed + pad8(len(packed)) + data + pad8(len(data))
    return with_columns(encode([b"x"] * (len(offsets) - 1)), columns)


@pytest.mark.parametrize("at", [1, 7, 19])
def test_offsets_that_look_even_at_both_ends_are_looked_at_in_between(at: int) -> None:
    offsets = [number * 10 for number in range(21)]
    offsets[at] += 11 if at < 19 else -11  # beyond the next one, or before the one ahead
    frame = with_offsets(offsets, bytes(200))
    for look in (
        lambda: Frame(frame).verify_bodies(0, 20),
        lambda: Frame(frame).verify_whole(),
        lambda: Frame(frame).verify().bodies(),
    ):
        with pytest.raises(BadFrame, match="run backwards"):
            look()


@pytest.mark.parametrize("last", [1 << 31, (1 << 32) - 16, (1 << 32) - 1])
def test_a_column_that_claims_gigabytes_is_refused(last: int) -> None:
    offsets = [last // 20 * number for number in range(20)] + [last]
    frame = with_offsets(offsets, bytes(200))
    for look in (lambda: Frame(frame).verify_bodies(0, 20), lambda: Frame(frame).verify_whole()):
        with pytest.raises(BadFrame, match="states"):
            look()


def test_what_is_not_worth_it_is_not_even() -> None:
    assert even_size(16, 0, 10, 160) == even_size(1 << 14, 0, 10, 10 << 14) == 10
    assert even_size(20, 0, 0, 0) == 0
    for shape in ((15, 0, 10, 150), ((1 << 14) + 1, 0, 10, (10 << 14) + 10), (16, 10, 20, 170), (16, 0, 10, 161)):
        assert even_size(*shape) == -1, shape
    assert even_size(16, 0, 9, 160) == -1, "the first of them is shorter than the rest"
    assert even_size(16, 0, FRAME_MAX, 16 * FRAME_MAX) == -1
    assert even_step([5, *range(15, 176, 10)]) == 10
    for offsets in ([0] * 20, [*range(0, 150, 10)], [0, *range(20, 180, 10)], [0, 11, *range(20, 170, 10)]):
        assert even_step(offsets) == -1, offsets


@pytest.mark.parametrize("count", COUNTS)
def test_offsets_of_fewer_values_are_the_first_of_those_of_more(count: int) -> None:
    assert even_offsets(3, count) == struct.pack(f"<{count + 1}I", *range(0, 3 * count + 1, 3))


def test_more_sizes_and_counts_than_are_kept_come_to_the_same() -> None:
    for size in range(1, 100):
        for count in (16, 17, 1500 + size):
            bodies = numbered(size, count)
            frame = Frame(encode(bodies)).verify_whole()
            assert frame.verify_bodies(0, count) == frame.bodies() == bodies
    for cached in (even._offsets, even._cutter):
        info = cached.cache_info()
        assert info.maxsize is not None
        assert info.currsize == info.maxsize, "it was full"


def test_values_are_cut_from_anywhere() -> None:
    assert cut_even(memoryview(b"..aabbcc"), 2, 2, 3) == [b"aa", b"bb", b"cc"]
    with pytest.raises(struct.error):
        cut_even(memoryview(b"..aabbcc"), 2, 2, 4)
