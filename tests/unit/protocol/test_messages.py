"""The wire format of every message: each round-trips, and its bytes are fixed by golden files."""

from __future__ import annotations

import pytest

from tests.unit.protocol import samples
from tests.unit.protocol.wire_tables import DOCUMENT, GOLDEN, document_with_tables
from towline.protocol import messages as m
from towline.protocol.envelope import Decoder, decode_answer, decode_request, encode_envelope


def _name(message: object) -> str:
    return type(message).__name__


def _golden() -> dict[str, str]:
    return dict(line.split(" ", 1) for line in GOLDEN.read_text().splitlines())


def test_there_is_a_sample_of_every_kind() -> None:
    assert {sample.kind for sample in samples.REQUESTS} == set(m.REQUESTS)
    assert {sample.kind for sample in samples.ANSWERS} == set(m.ANSWERS)


def test_no_two_messages_share_a_kind() -> None:
    assert len(m.REQUESTS) == len(m.Request.__subclasses__())
    assert len(m.ANSWERS) == len(m.Answer.__subclasses__())
    assert not set(m.REQUESTS) & set(m.ANSWERS)


@pytest.mark.parametrize("request_", samples.REQUESTS, ids=_name)
def test_every_request_comes_back_as_it_went(request_: m.Request) -> None:
    [envelope] = Decoder(1 << 20).feed(encode_envelope(4_000_000_000, request_, 3) + b"abc")
    assert (envelope.number, bytes(envelope.attachments)) == (4_000_000_000, b"abc")
    assert decode_request(envelope) == request_


@pytest.mark.parametrize("answer", samples.ANSWERS, ids=_name)
def test_every_answer_comes_back_as_it_went(answer: m.Answer) -> None:
    [envelope] = Decoder(1 << 20).feed(encode_envelope(1, answer))
    assert decode_answer(envelope) == answer


@pytest.mark.parametrize("message", [*samples.REQUESTS, *samples.ANSWERS], ids=_name)
def test_the_bytes_of_every_message_are_the_golden_ones(message: m.Request | m.Answer) -> None:
    assert encode_envelope(258, message).hex() == _golden()[_name(message)], "other versions would not understand"


def test_there_are_no_golden_bytes_too_many() -> None:
    assert set(_golden()) == {_name(message) for message in [*samples.REQUESTS, *samples.ANSWERS]}


def test_an_older_peer_passes_over_a_field_it_does_not_know() -> None:
    wire = bytearray(encode_envelope(1, m.TopicInfo("orders")))
    assert wire[16] == 0x91, "an array of one"
    wire[16] = 0x92
    wire += b"\xc0"
    wire[0] += 1
    wire[12] += 1
    [envelope] = Decoder(1 << 20).feed(bytes(wire))
    assert decode_request(envelope) == m.TopicInfo("orders")


def test_what_an_older_peer_says_of_pulls_is_understood() -> None:
    pull = (
        "4a00000002010000050000003e0000009601cd01f4ce00100000cd07d00a919601079293000a059302cf000001000000"
        "000001c2cb4029000000000000b06e6f207375636820637573746f6d6572"
    )
    pulled = (
        "4c00000002010000850000004000000097cf0000010000000005919801cd03e81403cd100002cf00060a24181e4002c4"
        "047f000001919300aa6c656173652d6c6f7374a8746f6f206c617465a0009090"
    )
    [request, answer] = Decoder(1 << 20).feed(bytes.fromhex(pull + pulled))
    assert decode_request(request) == m.Pull(1, 500, 1 << 20, 2000, 10, [samples.ACT])
    assert decode_answer(answer) == m.Pulled((1 << 40) + 5, [samples.PART], [(0, "lease-lost", "too late")])


def test_every_kind_is_in_the_document() -> None:
    text = DOCUMENT.read_text()
    kinds = {**m.REQUESTS, **m.ANSWERS}
    assert [cls for kind, cls in kinds.items() if f"| {kind} | `{cls.__name__}` |" not in text] == []


def test_the_tables_of_the_document_are_those_of_the_messages() -> None:
    text = DOCUMENT.read_text()
    assert document_with_tables(text) == text, "run: python -m tests.unit.protocol.wire_tables"
