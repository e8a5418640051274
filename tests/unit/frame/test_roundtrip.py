"""What goes into a frame comes out of it."""

from __future__ import annotations

import tracemalloc
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.frame.forge import Batch, batches, columns_of, expected_columns, int64, uint64
from towline.errors import BadFrame, TooLarge
from towline.frame import COUNT_MAX, EVENTS, FRAME_MAX, TOKEN_MAX, Frame, decode_headers, encode, encode_events
from towline.frame.encode import SINGLE_MAX, encode_single
from towline.frame.layout import attempts_in, limit_of, timeout_us_in


@given(batches(), st.booleans())
def test_every_column_comes_back_as_it_was(batch: Batch, compress: bool) -> None:
    frame = Frame(batch.encode(compress=compress)).verify()
    assert columns_of(frame) == expected_columns(batch)
    assert frame.count == len(batch.bodies)
    for name in ("producer_id", "producer_seq", "produced_at_us", "token"):
        assert getattr(frame, name) == batch.options[name]


@given(st.binary(max_size=40) | st.just(bytes(SINGLE_MAX)), uint64, uint64, int64, st.binary(max_size=64))
def test_a_single_body_is_laid_out_as_any_other(body: bytes, producer: int, seq: int, at_us: int, token: bytes) -> None:
    frame = encode_single(body, producer, seq, at_us, token)
    assert frame == encode([body], producer_id=producer, producer_seq=seq, produced_at_us=at_us, token=token)
    assert Frame(frame).verify_bodies(0, 1) == [body]


@given(batches(), st.data())
def test_any_range_of_a_column_can_be_asked_for(batch: Batch, data: st.DataObject) -> None:
    frame = Frame(batch.encode(compress=data.draw(st.booleans()))).verify()
    start = data.draw(st.integers(0, frame.count))
    stop = data.draw(st.integers(start, frame.count))
    for name, values in expected_columns(batch).items():
        assert getattr(frame, name)(start, stop) == (None if values is None else values[start:stop]), name


@given(batches())
def test_a_frame_can_be_read_from_any_kind_of_buffer(batch: Batch) -> None:
    encoded = batch.encode()
    within = memoryview(bytearray(b"abc" + encoded + b"defg"))[3:-4]
    assert (
        columns_of(Frame(bytearray(encoded)).verify())
        == columns_of(Frame(within).verify())
        == columns_of(Frame(encoded).verify())
    )


@given(batches())
def test_the_length_of_a_frame_is_a_multiple_of_eight(batch: Batch) -> None:
    assert len(batch.encode()) % 8 == len(batch.encode(compress=True)) % 8 == 0


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=9))
def test_events_come_back_and_are_told_from_messages(events: list[bytes]) -> None:
    frame = Frame(encode_events(events, produced_at_us=5)).verify()
    assert (frame.bodies(), frame.flags, frame.produced_at_us) == (events, EVENTS, 5)
    assert not Frame(encode(events)).flags & EVENTS


def test_columns_come_back_without_verify_too() -> None:
    frame = Frame(encode([b"a", b"b"], limits=[1, 2]))
    assert frame.limits() == [1, 2]
    assert frame.bodies() == [b"a", b"b"]


def test_compression_is_used_only_where_it_makes_the_frame_smaller() -> None:
    assert Frame(encode([b"a" * 1000], compress=True)).compressed
    assert not Frame(encode([b"a"], compress=True)).compressed


def test_a_list_of_nothing_is_an_absent_column() -> None:
    plain = encode([b"a", b"b"])
    assert encode([b"a", b"b"], keys=[None, ""], headers=[None, {}], limits=[0, 0]) == plain


@pytest.mark.parametrize(
    ("expiries", "earliest", "latest"),
    [([5, 9, 7], 5, 9), ([5, 0, 7], 5, 0), ([0, 0, 4], 4, 0), ([0, 0, 0], 0, 0), (None, 0, 0)],
)
def test_the_header_sums_up_the_expiries(expiries: list[int] | None, earliest: int, latest: int) -> None:
    frame = Frame(encode([b"a", b"b", b"c"], expires_at_us=expiries)).verify()
    assert (frame.earliest_expiry_us, frame.latest_expiry_us) == (earliest, latest)


@pytest.mark.parametrize(
    "column",
    [{"keys": [None]}, {"headers": [{"a": "b"}] * 3}, {"limits": [0]}, {"dedup_ids": []}, {"shard_keys": ["a"]}],
)
def test_a_column_of_another_length_than_the_bodies_is_refused(column: dict[str, list[object]]) -> None:
    with pytest.raises(BadFrame, match="beside 2 bodies"):
        encode([b"a", b"b"], **column)  # type: ignore[arg-type]


def test_a_frame_of_no_messages_is_refused() -> None:
    with pytest.raises(BadFrame, match="at least one"):
        encode([])
    with pytest.raises(BadFrame, match="at least one"):
        encode_events([])


def test_what_is_over_a_limit_is_refused() -> None:
    quarter = bytes(FRAME_MAX // 4)
    with pytest.raises(TooLarge, match="messages"):
        encode([b""] * (COUNT_MAX + 1))
    with pytest.raises(TooLarge, match="token"):
        encode([b"a"], token=bytes(TOKEN_MAX + 1))
    with pytest.raises(TooLarge, match="send fewer"):
        encode([quarter] * 5)
    with pytest.raises(TooLarge, match="send fewer"):
        encode([quarter] * 4)
    with pytest.raises(TooLarge, match="send fewer"):
        encode([quarter] * 4, compress=True)
    with pytest.raises(TooLarge, match="send fewer"):
        encode([quarter] * 257)


def test_what_is_too_large_is_not_copied_first() -> None:
    quarter = bytes(FRAME_MAX // 4)
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            encode([quarter] * 5)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_frame_may_be_as_large_as_the_limit() -> None:
    body = bytes(FRAME_MAX - len(encode([b""])))
    frame = encode([body])
    assert len(frame) == FRAME_MAX
    assert Frame(frame).verify().bodies() == [body]
    with pytest.raises(TooLarge):
        encode([body + b"a"])


def test_a_full_count_of_messages_comes_back() -> None:
    frame = Frame(encode([b"x"] * COUNT_MAX)).verify()
    assert frame.count == COUNT_MAX
    assert frame.bodies(COUNT_MAX - 2) == [b"x", b"x"]


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_a_time_over_64_bits_is_refused(value: int) -> None:
    with pytest.raises(BadFrame, match="64 bits"):
        encode([b"a"], deliver_at_us=[value])


def test_headers_other_than_strings_are_refused_rather_than_lost() -> None:
    with pytest.raises(BadFrame, match="headers"):
        encode([b"a"], headers=[{"n": 1}])  # type: ignore[dict-item]


def test_bodies_other_than_bytes_are_refused() -> None:
    with pytest.raises(TypeError):
        encode(["text"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="bytes"):
        encode([array("I", [1, 2])])  # type: ignore[list-item]


@given(st.binary(max_size=60))
def test_headers_that_are_no_map_of_strings_read_as_none(packed: bytes) -> None:
    headers = decode_headers(packed)
    assert all(isinstance(text, str) for pair in headers.items() for text in pair)


@pytest.mark.parametrize("packed", [b"\x81\xa1a\x01", b"\x81\xa1\xff\xa1b", b"\xc1", b"\x81", b"\x91" * 5000])
def test_malformed_headers_read_as_none(packed: bytes) -> None:
    assert decode_headers(packed) == {}


def test_a_limit_holds_a_timeout_and_a_number_of_attempts() -> None:
    for timeout_us, attempts in ((0, 0), (1, 0), (0, 1), (86_400_000_000, 10_000)):
        limit = limit_of(timeout_us, attempts)
        assert (timeout_us_in(limit), attempts_in(limit)) == (timeout_us, attempts)
        assert Frame(encode([b"a", b"b"], limits=[limit, 1])).verify().limits() == [limit, 1]
    assert (timeout_us_in(-1), attempts_in(-1)) == (0, 0), "nobody but a faulty client sends this"
