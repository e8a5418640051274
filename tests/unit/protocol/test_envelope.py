"""Envelopes: cut up anywhere, bounded everywhere."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from towline.errors import ProtocolError, TooLarge, TowlineError
from towline.protocol.envelope import (
    PREFIX,
    Decoder,
    Envelope,
    Scratch,
    decode_answer,
    decode_request,
    split_attachments,
)

LIMIT = 1 << 20


def envelope(number: int, kind: int, head: bytes, attachments: bytes = b"") -> bytes:
    return PREFIX.pack(12 + len(head) + len(attachments), number, kind, len(head)) + head + attachments


def plain(envelopes: list[Envelope]) -> list[tuple[int, int, bytes, bytes]]:
    return [(e.number, e.kind, bytes(e.head), bytes(e.attachments)) for e in envelopes]


def feed_all(decoder: Decoder, portions: list[bytes]) -> list[Envelope]:
    return [got for portion in portions for got in decoder.feed(portion)]


def receive_all(decoder: Decoder, data: bytes, sizes: list[int]) -> list[Envelope]:
    """Receive into the decoder's own buffer, as much at a time as `sizes` says, over and over."""
    got: list[Envelope] = []
    at = turn = 0
    while at < len(data):
        buffer = decoder.get_buffer()
        assert len(buffer) > 0
        size = min(len(buffer), sizes[turn % len(sizes)], len(data) - at)
        buffer[:size] = data[at : at + size]
        got += decoder.received(size)
        at, turn = at + size, turn + 1
    return got


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in cuts)})
    return [data[begin:end] for begin, end in pairwise(places)]


messages = st.lists(
    st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 255), st.binary(max_size=40), st.integers(0, 9000).map(bytes)),
    max_size=8,
)


@given(messages, st.lists(st.integers(0, 100_000), max_size=12))
def test_where_the_bytes_are_cut_makes_no_difference(
    sent: list[tuple[int, int, bytes, bytes]], cuts: list[int]
) -> None:
    data = b"".join(envelope(*message) for message in sent)
    assert plain(feed_all(Decoder(LIMIT), cut(data, cuts))) == sent


@given(messages, st.lists(st.integers(1, 5000), min_size=1, max_size=5))
def test_received_bytes_are_the_same_as_fed_ones(sent: list[tuple[int, int, bytes, bytes]], sizes: list[int]) -> None:
    data = b"".join(envelope(*message) for message in sent)
    decoder = Decoder(LIMIT)
    assert plain(receive_all(decoder, data, sizes)) == sent
    assert decoder.pending_bytes == 0
    assert decoder.completed == len(sent)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 700_000), min_size=1, max_size=5),
    st.lists(st.sampled_from([1, 17, 4096, 65_536, 100_000, 262_144]), min_size=1, max_size=4),
)
def test_large_envelopes_survive_every_portion(sizes: list[int], portions: list[int]) -> None:
    sent = [(i, 3, b"head", bytes([i + 1]) * size) for i, size in enumerate(sizes)]
    data = b"".join(envelope(*message) for message in sent)
    if min(portions) == 1:
        portions = [*portions, 262_144]
    assert plain(receive_all(Decoder(LIMIT), data, portions)) == sent


@given(st.data())
def test_feeding_and_receiving_can_be_mixed(data: st.DataObject) -> None:
    sent = data.draw(messages)
    decoder, got = Decoder(LIMIT), []
    for portion in cut(b"".join(envelope(*message) for message in sent), data.draw(st.lists(st.integers(0, 50_000)))):
        got += decoder.feed(portion) if data.draw(st.booleans()) else receive_all(decoder, portion, [7000])
    assert plain(got) == sent


def test_decoders_that_share_a_buffer_do_not_disturb_each_other() -> None:
    scratch = Scratch()
    decoders = [Decoder(LIMIT, scratch) for _ in range(3)]
    data = [b"".join(envelope(n, d, b"h" * n, bytes([d]) * 30_000 * n) for n in range(1, 9)) for d in range(3)]
    got: list[list[Envelope]] = [[], [], []]
    for at in range(0, len(data[0]), 90_001):
        for d, decoder in enumerate(decoders):
            got[d] += receive_all(decoder, data[d][at : at + 90_001], [80_000, 1000])
    for d in range(3):
        assert plain(got[d]) == [(n, d, b"h" * n, bytes([d]) * 30_000 * n) for n in range(1, 9)]


def test_memory_follows_what_came_not_what_was_announced() -> None:
    decoder = Decoder(64 << 20)
    decoder.feed(PREFIX.pack(60 << 20, 1, 3, 10) + b"x")
    assert decoder.pending_bytes == 17
    assert len(decoder.get_buffer()) < 8192


@pytest.mark.parametrize(
    ("before", "least", "most"), [(10, 1000, 8192), (300_000, 299_000, 4 << 20), (8 << 20, 1_000_000, 4 << 20)]
)
def test_memory_for_what_has_begun_follows_the_envelope_before(before: int, least: int, most: int) -> None:
    decoder = Decoder(64 << 20)
    receive_all(decoder, envelope(1, 3, b"", bytes(before)), [100_000])
    decoder.feed(PREFIX.pack(60 << 20, 1, 3, 10))
    # Large pieces of memory come from a pool, and may be larger than was asked for.
    assert least <= len(decoder.get_buffer()) <= most


def test_an_idle_decoder_holds_no_buffer_of_its_own() -> None:
    scratch = Scratch()
    decoder = Decoder(LIMIT, scratch)
    receive_all(decoder, envelope(1, 2, b"", bytes(200_000)), [150_000])
    assert decoder.get_buffer() is scratch.view


@pytest.mark.parametrize("length", [LIMIT + 1, 0xFFFFFFFF])
def test_a_length_over_the_limit_is_refused_before_anything_else_comes(length: int) -> None:
    with pytest.raises(TooLarge, match=str(length)):
        Decoder(LIMIT).feed(struct.pack("<IIII", length, 1, 3, 0))


def test_a_length_at_the_limit_is_taken() -> None:
    [got] = Decoder(100).feed(envelope(1, 3, b"h", bytes(87)))
    assert len(got.attachments) == 87
    with pytest.raises(TooLarge):
        Decoder(100).feed(envelope(1, 3, b"h", bytes(88)))


@pytest.mark.parametrize(("length", "head_length"), [(0, 0), (11, 0), (12, 1), (100, 89), (100, 0xFFFFFFFF)])
def test_lengths_that_do_not_fit_together_are_refused(length: int, head_length: int) -> None:
    with pytest.raises(ProtocolError):
        Decoder(LIMIT).feed(struct.pack("<IIII", length, 1, 3, head_length) + bytes(100))


@given(st.integers(1, 60))
def test_what_came_before_a_broken_envelope_is_given_first(portion: int) -> None:
    decoder = Decoder(1000)
    data = envelope(1, 3, b"one") + envelope(2, 3, b"two") + struct.pack("<IIII", 5000, 3, 3, 0)
    got: list[Envelope] = []
    raised = False
    for at in range(0, len(data), portion):
        try:
            got += decoder.feed(data[at : at + portion])
        except TooLarge:
            raised = True
    assert [e.number for e in got] == [1, 2]
    assert isinstance(decoder.broken, TooLarge)
    if not raised:
        with pytest.raises(TooLarge):
            decoder.feed(b"")


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_garbage_is_an_error_of_ours_or_nothing(data: bytes, cuts: list[int]) -> None:
    decoder = Decoder(1000)
    try:
        got = feed_all(decoder, cut(data, cuts))
    except TowlineError:
        return
    for one in got:
        for decode in (decode_request, decode_answer):
            try:
                decode(one)
            except ProtocolError:
                pass


@given(st.integers(1, 19), st.binary(max_size=120))
def test_a_garbage_head_is_a_protocol_error(kind: int, head: bytes) -> None:
    [got] = Decoder(1000).feed(envelope(1, kind, head))
    try:
        assert decode_request(got).kind == kind
    except ProtocolError:
        pass


def test_huge_counts_in_a_head_are_refused_without_memory() -> None:
    for head in (b"\xdd\xff\xff\xff\xff", b"\x92\xdd\xff\xff\xff\xff\xc0", b"\x91" * 5000, b"\xdf\xff\xff\xff\xff"):
        [got] = Decoder(10_000).feed(envelope(1, 3, head))
        with pytest.raises(ProtocolError):
            decode_request(got)


def test_attachments_are_cut_where_they_were_announced() -> None:
    assert [bytes(part) for part in split_attachments(memoryview(b"abcdef"), [2, 0, 4])] == [b"ab", b"", b"cdef"]
    for lengths in ([], [5], [7], [1 << 62, 1]):
        with pytest.raises(ProtocolError):
            split_attachments(memoryview(b"abcdef"), lengths)
