"""A sub-range of a frame is a frame of its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.frame.forge import Batch, batches, columns_of, rich_frame
from towline.frame import Frame, encode, slice_frame


def cut(frame: Frame, start: int, stop: int) -> Frame:
    return Frame(b"".join(slice_frame(frame, start, stop))).verify()


def part_of(frame: Frame, start: int, stop: int) -> dict[str, object]:
    return {name: None if values is None else values[start:stop] for name, values in columns_of(frame).items()}


@given(batches(), st.data())
def test_a_slice_holds_its_messages_and_the_frames_header(batch: Batch, data: st.DataObject) -> None:
    whole = Frame(batch.encode()).verify()
    start = data.draw(st.integers(0, whole.count - 1))
    stop = data.draw(st.integers(start + 1, whole.count))
    part = cut(whole, start, stop)
    assert part.count == stop - start
    assert columns_of(part) == part_of(whole, start, stop)
    for name in ("flags", "token", "producer_id", "producer_seq", "produced_at_us", "latest_expiry_us"):
        assert getattr(part, name) == getattr(whole, name)


@given(batches(), st.data())
def test_a_slice_of_a_slice_of_a_slice_is_right_too(batch: Batch, data: st.DataObject) -> None:
    whole = part = Frame(batch.encode()).verify()
    begin = 0
    for _ in range(3):
        start = data.draw(st.integers(0, part.count - 1))
        stop = data.draw(st.integers(start + 1, part.count))
        part = cut(part, start, stop)
        begin += start
        assert columns_of(part) == part_of(whole, begin, begin + part.count)
    for index in range(part.count):
        assert part.bodies(index, index + 1) == [batch.bodies[begin + index]]


def test_bodies_are_not_copied_into_a_slice() -> None:
    encoded = encode([b"a" * 1000, b"b" * 1000, b"c" * 1000])
    buffers = slice_frame(Frame(encoded), 1, 3)
    views = [buffer for buffer in buffers if isinstance(buffer, memoryview)]
    assert all(view.obj is encoded for view in views)
    assert sum(map(len, views)) >= 2000


def test_a_slice_of_all_messages_is_the_frame_itself() -> None:
    for compress in (False, True):
        frame = Frame(rich_frame(50, compress=compress))
        assert slice_frame(frame, 0, 50) == [frame.data]


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 2), (3, 2), (0, 5)])
def test_a_slice_of_messages_that_are_not_there_is_a_bug(start: int, stop: int) -> None:
    with pytest.raises(AssertionError):
        slice_frame(Frame(rich_frame(4)), start, stop)


def test_cutting_a_compressed_frame_is_a_bug() -> None:
    frame = Frame(rich_frame(50, compress=True)).verify()
    assert frame.compressed
    with pytest.raises(AssertionError):
        slice_frame(frame, 0, 49)
