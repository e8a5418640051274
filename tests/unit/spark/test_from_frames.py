"""Frames become Arrow batches: what goes in comes out, whatever a frame has and has not."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from towline.client.bulk.scan import Piece
from towline.errors import BadFrame, BadRequest
from towline.frame import Frame, encode
from towline.frame.slice import slice_frame
from towline.spark.arrow.from_frames import MESSAGES, Origin, chosen, message_batch

AT_US = 1_700_000_000_000_000
ORIGIN = Origin("orders", "middle", "", "b1")


def piece(frame: bytes, first: int, start: int = 0, count: int | None = None, at_us: int = AT_US) -> Piece:
    whole = Frame(frame).count
    return Piece(
        first, whole - start if count is None else count, start, memoryview(frame), at_us, bytes([10, 0, 0, 7])
    )


def test_every_column_of_a_message_is_there() -> None:
    frame = encode(
        [b"one", b"", b"\xff\x00"],
        keys=["k1", None, "schlüssel"],
        headers=[{"a": "1", "b": "2"}, None, {"c": ""}],
        dedup_ids=["d1", None, None],
        shard_keys=[None, "s", None],
        expires_at_us=[0, AT_US + 5, 0],
        deliver_at_us=[AT_US + 7, 0, 0],
        limits=[0, 0, 2_500_000],
        producer_id=(1 << 64) - 1,
        producer_seq=9,
        produced_at_us=AT_US - 1,
        token=b"shop",
    )
    batch = message_batch(ORIGIN, [piece(frame, 40)])
    batch.validate(full=True)
    assert batch.schema == MESSAGES
    rows = batch.to_pylist()
    assert rows[0] == {
        "topic": "orders",
        "lane": "middle",
        "seq": 40,
        "id": "orders/middle/40",
        "key": "k1",
        "body": b"one",
        "headers": [("a", "1"), ("b", "2")],
        "appended_at": datetime.fromtimestamp(AT_US / 1e6, UTC),
        "produced_at": datetime.fromtimestamp((AT_US - 1) / 1e6, UTC),
        "priority": "middle",
        "shard": None,
        "shard_key": None,
        "dedup_id": "d1",
        "deliver_at": datetime.fromtimestamp((AT_US + 7) / 1e6, UTC),
        "expires_at": None,
        "timeout_s": None,
        "attempt": None,
        "source": "10.0.0.7",
        "token": "shop",
        "producer_id": -1,
        "producer_seq": 9,
        "broker": "b1",
    }
    assert [row["body"] for row in rows] == [b"one", b"", b"\xff\x00"]
    assert [row["key"] for row in rows] == ["k1", None, "schlüssel"]
    assert [row["headers"] for row in rows] == [[("a", "1"), ("b", "2")], None, [("c", "")]]
    assert [row["shard_key"] for row in rows] == [None, "s", None]
    assert [row["timeout_s"] for row in rows] == [None, None, 2.5]
    assert rows[1]["expires_at"] == datetime.fromtimestamp((AT_US + 5) / 1e6, UTC)


def test_frames_of_all_shapes_are_joined_in_their_order() -> None:
    dice = random.Random(7)
    pieces, expected, first = [], [], 0
    for number in range(60):
        count = dice.choice([1, 2, 17])
        bodies = [dice.randbytes(dice.randrange(20)) for _ in range(count)]
        keys = [dice.choice([None, "k", "ключ"]) for _ in range(count)] if dice.random() < 0.6 else None
        headers = [dice.choice([None, {"n": str(number)}]) for _ in range(count)] if dice.random() < 0.5 else None
        frame = encode(bodies, keys=keys, headers=headers, compress=dice.random() < 0.3, token=b"t%d" % (number % 3))
        start = dice.randrange(count)
        stop = dice.randrange(start + 1, count + 1)
        if not Frame(frame).compressed and dice.random() < 0.5:
            # As a broker sends it: a sub-range whose offsets do not begin at 0.
            part = b"".join(slice_frame(Frame(frame), start, stop))
            pieces.append(piece(part, first, 0, stop - start, AT_US + number))
        else:
            pieces.append(piece(frame, first, start, stop - start, AT_US + number))
        for at in range(start, stop):
            head = headers[at] if headers and headers[at] else None
            expected.append((first, bodies[at], (keys or [None] * count)[at], head, AT_US + number, f"t{number % 3}"))
            first += 1
        first += 5
    batch = message_batch(ORIGIN, pieces, chosen(MESSAGES, ["seq", "body", "key", "headers", "appended_at", "token"]))
    batch.validate(full=True)
    found = [
        (
            row["seq"],
            row["body"],
            row["key"],
            None if row["headers"] is None else dict(row["headers"]),
            round(row["appended_at"].timestamp() * 1e6),
            row["token"],
        )
        for row in batch.to_pylist()
    ]
    assert found == expected


def test_a_body_may_be_asked_for_as_text() -> None:
    frame = encode([b"plain", "größe".encode(), b"\xff!"])
    columns = pa.schema([("body", pa.string())])
    assert message_batch(ORIGIN, [piece(frame, 0)], columns).to_pydict() == {"body": ["plain", "größe", "\ufffd!"]}


def test_headers_that_are_no_map_read_as_none_and_harm_no_other() -> None:
    good = encode([b"x", b"y"], headers=[{"a": "1"}, {"b": "2"}])
    packed = Frame(good).texts(2)
    assert packed is not None
    bad = good.replace(packed[1], b"\xc0" + packed[1][1:])
    batch = message_batch(ORIGIN, [piece(bad, 0)], chosen(MESSAGES, ["headers"]))
    assert batch.to_pydict() == {"headers": [[("a", "1")], []]}


def test_offsets_that_run_backwards_are_damage() -> None:
    frame = bytearray(encode([b"aaaa", b"bb", b"cc"]))
    frame[72 + 4 : 72 + 8] = (7).to_bytes(4, "little")
    with pytest.raises(BadFrame, match="run backwards"):
        message_batch(ORIGIN, [piece(bytes(frame), 0)], chosen(MESSAGES, ["body"]))


def test_an_ordered_topics_lane_is_a_shard() -> None:
    batch = message_batch(
        Origin("orders", "12"), [piece(encode([b"x"]), 5)], chosen(MESSAGES, ["shard", "priority", "id"])
    )
    assert batch.to_pylist() == [{"shard": 12, "priority": None, "id": "orders/12/5"}]


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(BadRequest, match="no column 'boddy'"):
        chosen(MESSAGES, ["seq", "boddy"])
