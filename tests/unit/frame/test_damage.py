"""Damaged and malicious frames: found, refused, and never read beyond."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.frame.forge import Batch, batches, columns_of, reseal, rich_frame, with_columns
from towline.errors import BadFrame, TooLarge
from towline.frame import COUNT_MAX, FRAME_MAX, Frame, encode, slice_frame
from towline.frame.layout import HEADER, ZSTD

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

REFUSED = (BadFrame, TooLarge)
SECRET = b"what lies beside the frame in memory"
SMALL = encode([b"one", b"", b"three"], keys=["a", None, "c"], limits=[1, 2, 3], token=b"t")
SINGLE = encode([b"one"], token=b"t")
PACKED = encode([b"a" * 200, b"b" * 200], compress=True)


@pytest.mark.parametrize("frame", [SMALL, PACKED], ids=["plain", "compressed"])
def test_every_flipped_bit_is_found(frame: bytes) -> None:
    for at in range(len(frame)):
        for bit in range(8):
            damaged = bytearray(frame)
            damaged[at] ^= 1 << bit
            with pytest.raises(REFUSED):
                Frame(damaged).verify()


def test_a_damaged_frame_has_no_body() -> None:
    for at in range(len(SINGLE)):
        for bit in range(8):
            damaged = bytearray(SINGLE)
            damaged[at] ^= 1 << bit
            with pytest.raises(REFUSED):
                Frame(damaged).verify_bodies(0, 1)


@given(st.data())
def test_a_single_body_is_what_verify_and_bodies_come_to(data: st.DataObject) -> None:
    near = st.integers(0, 24) | st.integers(0, 2**32 - 1)
    offsets = struct.pack("<II", data.draw(near), data.draw(near))
    columns = data.draw(st.just(b"") | st.binary(max_size=24).map(lambda behind: offsets + behind))
    forged = with_columns(SINGLE, columns)
    try:
        expected = Frame(forged).verify().bodies()
    except REFUSED:
        with pytest.raises(REFUSED):
            Frame(forged).verify_bodies(0, 1)
    else:
        assert Frame(forged).verify_bodies(0, 1) == expected


@pytest.mark.parametrize("frame", [SMALL, PACKED], ids=["plain", "compressed"])
def test_every_cut_is_found(frame: bytes) -> None:
    for length in range(len(frame)):
        with pytest.raises(BadFrame):
            Frame(frame[:length])


@pytest.mark.parametrize("frame", [SMALL, PACKED], ids=["plain", "compressed"])
def test_every_cut_is_found_even_with_a_right_length_and_checksum(frame: bytes) -> None:
    for length in range(HEADER.size, len(frame)):
        with pytest.raises(BadFrame):
            columns_of(Frame(reseal(frame[:length])).verify())


@pytest.mark.parametrize("extra", [1, 8, 4096])
@pytest.mark.parametrize("frame", [SMALL, PACKED], ids=["plain", "compressed"])
def test_bytes_behind_a_frame_are_refused(frame: bytes, extra: int) -> None:
    with pytest.raises(BadFrame):
        Frame(frame + bytes(extra))
    with pytest.raises(BadFrame):
        columns_of(Frame(reseal(frame + bytes(extra))).verify())


@pytest.mark.parametrize("extra", [1, 8, 4096])
def test_columns_that_do_not_fill_the_frame_are_refused(extra: int) -> None:
    with pytest.raises(BadFrame):
        Frame(with_columns(SMALL, bytes(Frame(SMALL).columns) + bytes(extra))).verify()


def test_a_token_that_reaches_beyond_the_frame_is_refused() -> None:
    with pytest.raises(BadFrame, match="token"):
        Frame(with_columns(encode([b"a"]), b"", flags=ZSTD, token_length=8))


@pytest.mark.parametrize("flag", [1024, 2048, 4096, 8192, 16384, 32768])
def test_unknown_flags_are_refused(flag: int) -> None:
    with pytest.raises(BadFrame, match="unknown flags"):
        Frame(reseal(SMALL, flags=Frame(SMALL).flags | flag)).verify()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"magic": 0x32465754}, BadFrame),
        ({"length": 8}, BadFrame),
        ({"count": 0}, BadFrame),
        ({"count": COUNT_MAX + 1}, TooLarge),
        ({"count": 2**32 - 1}, TooLarge),
        ({"token_length": 65}, BadFrame),
        ({"token_length": 0xFFFF}, BadFrame),
        ({"columns_length": FRAME_MAX + 1}, TooLarge),
        ({"columns_length": 0}, BadFrame),
    ],
)
def test_a_wild_header_is_refused(fields: dict[str, int], error: type[Exception]) -> None:
    with pytest.raises(error):
        Frame(reseal(SMALL, **fields)).verify()


def test_a_frame_over_the_limit_is_refused_unread() -> None:
    with pytest.raises(TooLarge):
        Frame(reseal(SMALL + bytes(FRAME_MAX), crc=0))


def read_all(frame: Frame) -> list[object]:
    """All that can be asked of a frame. What is refused is left out; any other error goes through."""
    answers: list[object] = []

    def ask(question: Callable[[], object]) -> None:
        try:
            answers.append(question())
        except REFUSED:
            pass

    ask(lambda: columns_of(frame))
    for index in range(frame.count):
        ask(lambda index=index: frame.bodies(index, index + 1))  # type: ignore[misc]
        ask(lambda index=index: frame.keys(index))  # type: ignore[misc]
        if not frame.compressed:
            ask(lambda index=index: b"".join(slice_frame(frame, index, index + 1)))  # type: ignore[misc]
            ask(lambda index=index: b"".join(slice_frame(frame, index, frame.count)))  # type: ignore[misc]
    return answers


def read_beside_secrets(frame: bytes) -> None:
    view = memoryview(SECRET + frame + SECRET)[len(SECRET) : -len(SECRET)]
    try:
        verified = Frame(view).verify()
    except REFUSED:
        return
    assert SECRET[:8] not in repr(read_all(verified)).encode()
    try:
        assert sum(map(len, verified.bodies())) <= len(verified.columns)
    except REFUSED:
        return


near_and_wild = st.integers(0, 64) | st.integers(0, 2**32 - 1)


@given(st.data())
def test_wild_offsets_are_refused_or_read_within_the_frame(data: st.DataObject) -> None:
    frame = rich_frame(3)
    columns = bytearray(Frame(frame).columns)
    # Any aligned place may be overwritten, so offsets of all columns, data and padding are hit.
    for _ in range(data.draw(st.integers(1, 4))):
        at = 4 * data.draw(st.integers(0, len(columns) // 4 - 1))
        columns[at : at + 4] = data.draw(near_and_wild).to_bytes(4, "little")
    read_beside_secrets(with_columns(frame, bytes(columns)))


@given(batches(max_count=4), st.data())
def test_random_columns_are_refused_or_read_within_the_frame(batch: Batch, data: st.DataObject) -> None:
    frame = batch.encode()
    columns = data.draw(st.binary(max_size=200)) + bytes(8 * data.draw(st.integers(0, 20)))
    fields = {"flags": data.draw(st.integers(0, 0xFFFF)), "count": data.draw(st.integers(0, 6))}
    read_beside_secrets(with_columns(frame, columns, **fields))


@given(st.lists(near_and_wild, min_size=5, max_size=5), st.binary(max_size=40))
def test_wild_offsets_of_compressed_columns_are_refused_or_read_within_them(wild: list[int], body: bytes) -> None:
    columns = struct.pack("<6I", *wild, 0) + body
    packed = zstd.compress(columns)
    frame = with_columns(
        encode([b"1", b"2", b"3", b"4"]),
        packed + bytes(-len(packed) % 8),
        flags=ZSTD,
        columns_length=len(columns),
    )
    read_beside_secrets(frame)


def verdict(frame: bytes, *, whole: bool) -> str:
    """What a broker says of a frame that came in: step by step, or in one go."""
    try:
        made = Frame(frame)
        made.verify_whole() if whole else made.verify().verify_columns()
    except REFUSED as error:
        return f"{type(error).__name__}: {error}"
    return repr(columns_of(made))


def bodies_or_refusal(frame: bytes, start: int, stop: int, *, whole: bool) -> str:
    """What a consumer gets out of a frame: in one go, or step by step."""
    try:
        made = Frame(frame)
        if stop > made.count:
            return "a part that is not in the frame"
        return repr(made.verify_bodies(start, stop) if whole else made.verify().bodies(start, stop))
    except REFUSED as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("middle", [(24, 8, 16), (8, 40, 24), (8, 16, 2**32 - 8), (8, 0, 24)])
def test_no_body_is_cut_by_offsets_that_run_backwards_or_out_of_the_column(middle: tuple[int, ...]) -> None:
    """The first and the last are right, and so is the checksum."""
    bodies = [b"%08d" % number for number in range(4)]
    columns = struct.pack("<5I4x", 0, *middle, 32) + b"".join(bodies)
    frame = with_columns(encode(bodies), columns)
    with pytest.raises(BadFrame, match="run backwards"):
        Frame(frame).verify_bodies(0, 4)
    for start in range(4):
        for stop in range(start + 1, 5):
            said = bodies_or_refusal(frame, start, stop, whole=True)
            assert said == bodies_or_refusal(frame, start, stop, whole=False)


@pytest.mark.parametrize("compress", [False, True])
@given(batches(max_count=4), st.data())
def test_one_go_and_step_by_step_come_to_the_same(compress: bool, batch: Batch, data: st.DataObject) -> None:
    """Sound frames, and frames with a right checksum in which single numbers are wrong."""
    frame = batch.encode(compress=compress)
    assert verdict(frame, whole=True) == verdict(frame, whole=False)
    assert Frame(frame).verify_bodies(0, len(batch.bodies)) == batch.bodies
    columns = bytearray(frame[HEADER.size + (len(batch.options["token"]) + 7 & ~7) :])
    for _ in range(data.draw(st.integers(0, 3))):
        at = 4 * data.draw(st.integers(0, len(columns) // 4 - 1))
        columns[at : at + 4] = data.draw(near_and_wild).to_bytes(4, "little")
    wrong = {"columns_length": Frame(frame)._columns_length}
    for field, most in (("flags", 0xFFFF), ("count", 6), ("columns_length", 400), ("token_length", 70)):
        if data.draw(st.booleans()):
            wrong[field] = data.draw(st.integers(0, most))
    for forged in (
        with_columns(frame, bytes(columns), **wrong),
        with_columns(frame, bytes(columns) + bytes(8), **wrong),
        frame[:-1] + bytes([frame[-1] ^ 1]),
    ):
        assert verdict(forged, whole=True) == verdict(forged, whole=False)
        for start, stop in combinations(range(7), 2):
            told = bodies_or_refusal(forged, start, stop, whole=True)
            assert told == bodies_or_refusal(forged, start, stop, whole=False)


def test_offsets_to_and_fro_do_not_multiply_the_bodies() -> None:
    count, size = 1000, 100_000
    offsets = [0, size] * (count // 2) + [size]
    columns = struct.pack(f"<{count + 2}I", *offsets, 0) + bytes(size)
    frame = Frame(with_columns(encode([b""] * count), columns)).verify()
    with pytest.raises(BadFrame, match="backwards"):
        frame.bodies()


@pytest.mark.parametrize("offset", [0, 99, 117, 2**32 - 1])
def test_an_offset_before_or_behind_its_column_is_refused_wherever_one_begins(offset: int) -> None:
    """The column's first and last offset are right, so that the frame verifies."""
    columns = struct.pack("<4I", 100, offset, 110, 116) + b"the sixteen here"
    frame = Frame(with_columns(encode([b""] * 3), columns)).verify()
    for start, stop in ((0, 1), (1, 2), (0, 3), (1, 3)):
        with pytest.raises(BadFrame, match="backwards"):
            frame.bodies(start, stop)
        if stop - start < 3:
            with pytest.raises(BadFrame, match="backwards"):
                slice_frame(frame, start, stop)
    assert frame.bodies(2, 3) == [b"n here"]


def test_a_slice_whose_edges_run_backwards_is_refused() -> None:
    columns = struct.pack("<4I", 0, 8, 4, 8) + bytes(8)
    frame = Frame(with_columns(encode([b""] * 3), columns)).verify()
    with pytest.raises(BadFrame, match="backwards"):
        slice_frame(frame, 1, 2)


def test_invalid_utf8_in_a_key_is_read_with_replacement_signs() -> None:
    frame = encode([b"a"], keys=["\N{EURO SIGN}"])
    columns = bytes(Frame(frame).columns).replace("\N{EURO SIGN}".encode(), b"\xff\xfe\xfd")
    assert Frame(with_columns(frame, columns)).verify().keys() == ["\N{REPLACEMENT CHARACTER}" * 3]


# --- compression ------------------------------------------------------------------------------------------------------


def packed_frame(packed: bytes, columns_length: int) -> Frame:
    padded = packed + bytes(-len(packed) % 8)
    return Frame(with_columns(encode([b"a"]), padded, flags=ZSTD, columns_length=columns_length)).verify()


def test_a_zstd_bomb_is_not_unpacked_beyond_the_stated_length() -> None:
    frame = packed_frame(zstd.compress(bytes(FRAME_MAX)), columns_length=1000)
    tracemalloc.start()
    try:
        with pytest.raises(BadFrame, match="as stated"):
            frame.bodies()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_columns_stated_larger_than_a_frame_may_be_are_refused_unopened() -> None:
    with pytest.raises(TooLarge):
        packed_frame(zstd.compress(b"a"), columns_length=FRAME_MAX + 1)


def test_columns_that_unpack_to_less_than_stated_are_refused() -> None:
    with pytest.raises(BadFrame, match="as stated"):
        packed_frame(zstd.compress(bytes(24)), columns_length=25).bodies()


def test_a_window_larger_than_a_frame_is_refused() -> None:
    options = {int(zstd.CompressionParameter.window_log): 27}
    compressor = zstd.ZstdCompressor(options=options)
    # In two steps, or the compressor knew the size and made the window smaller.
    packed = compressor.compress(bytes(12)) + compressor.compress(bytes(12)) + compressor.flush()
    with pytest.raises(BadFrame, match="do not unpack"):
        packed_frame(packed, columns_length=24).bodies()


@pytest.mark.parametrize("behind", [b"\1", b"\0" * 8, b"hidden data here"])
def test_anything_but_padding_behind_the_compressed_columns_is_refused(behind: bytes) -> None:
    columns = struct.pack("<2I", 0, 1) + b"a" + bytes(7)
    packed = zstd.compress(columns)
    assert packed_frame(packed, len(columns)).bodies() == [b"a"]
    with pytest.raises(BadFrame):
        packed_frame(packed + bytes(-len(packed) % 8) + behind, len(columns)).bodies()


def test_compressed_columns_without_their_end_are_refused() -> None:
    columns = struct.pack("<2I", 0, 1) + b"a" + bytes(7)
    packed = zstd.compress(columns, options={int(zstd.CompressionParameter.checksum_flag): 1})
    # Without the four bytes of its own checksum all columns unpack, but whether they are right is open.
    with pytest.raises(BadFrame, match="as stated"):
        Frame(with_columns(encode([b"a"]), packed[:-4], flags=ZSTD, columns_length=len(columns))).bodies()


@given(st.binary(max_size=60))
def test_what_is_not_zstd_is_refused(garbage: bytes) -> None:
    with pytest.raises(BadFrame):
        packed_frame(garbage, columns_length=16).bodies()
