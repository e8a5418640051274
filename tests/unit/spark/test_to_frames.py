"""Rows become frames: what went in is what a client reads."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from towline.errors import BadRequest, TooLarge
from towline.frame import Frame
from towline.spark.arrow.to_frames import Encoder, Numbering, Numbers, unnumbered


def frames(rows: dict[str, Any], schema: pa.Schema | None = None, **options: Any) -> list[tuple[str, int, Frame]]:
    given: dict[str, Any] = {"compress": False, "max_frame_bytes": 1 << 20, "frame_rows": 10_000} | options
    shards = given.pop("shards", {})
    priority = given.pop("priority", "")
    encoder = Encoder("orders", priority, "shop", lambda topic: shards.get(topic, 0), **given)
    found = encoder.frames(pa.RecordBatch.from_pydict(rows, schema), lambda _: Numbers(7, 3), 99)
    return [(one.topic, one.lane, Frame(one.frame).verify().verify_columns()) for one in found]


def test_all_columns_arrive() -> None:
    rows = {
        "body": ["eins", "", "größe"],
        "key": ["k1", None, "k3"],
        "headers": [[("a", "1")], None, []],
        "shard_key": [None, "s", None],
        "delay": [0.0, 2.5, 0.000_5],
    }
    schema = pa.schema(
        [
            ("body", pa.string()),
            ("key", pa.string()),
            ("headers", pa.map_(pa.string(), pa.string())),
            ("shard_key", pa.string()),
            ("delay", pa.float64()),
        ]
    )
    ((topic, lane, frame),) = frames(rows, schema)
    assert (topic, lane, frame.token, frame.produced_at_us) == ("orders", 1, b"shop", 99)
    assert (frame.producer_id, frame.producer_seq) == (7, 3)
    assert frame.bodies() == [b"eins", b"", "größe".encode()]
    assert frame.keys() == ["k1", None, "k3"]
    assert frame.headers() == [{"a": "1"}, {}, {}]
    assert frame.shard_keys() == [None, "s", None]
    assert frame.deliver_at_us() == [0, -2_500_000, 0]


def test_slices_of_a_larger_batch_are_encoded_alone() -> None:
    body = pa.array([b"%d" % n for n in range(100)])[40:60]
    key = pa.array([None if n % 3 else f"k{n}" for n in range(100)])[40:60]
    encoder = Encoder("t", "low", "", lambda _: 0, compress=True, max_frame_bytes=1 << 20, frame_rows=7)
    found = list(encoder.frames(pa.RecordBatch.from_arrays([body, key], ["body", "key"]), unnumbered, 0))
    assert [Frame(one.frame).count for one in found] == [7, 7, 6]
    assert [body for one in found for body in Frame(one.frame).bodies()] == [b"%d" % n for n in range(40, 60)]
    assert [key for one in found for key in Frame(one.frame).keys() or []] == key.to_pylist()


def test_rows_go_to_their_topic_and_priority_in_order() -> None:
    rows = {
        "topic": ["a", "b", "a", None, "a"],
        "priority": ["high", None, "low", "high", "high"],
        "body": [b"1", b"2", b"3", b"4", b"5"],
    }
    found = {(topic, lane): frame.bodies() for topic, lane, frame in frames(rows)}
    assert found == {("a", 0): [b"1", b"5"], ("a", 2): [b"3"], ("b", 1): [b"2"], ("orders", 0): [b"4"]}


def test_rows_of_an_ordered_topic_go_where_a_client_would_send_them() -> None:
    from towline.client.produce.sharding import shard_of

    keys = [f"customer-{n % 10}" for n in range(50)]
    found = frames({"body": [b"%d" % n for n in range(50)], "key": keys}, shards={"orders": 4})
    for _, lane, frame in found:
        bodies = [int(body) for body in frame.bodies()]
        assert bodies == sorted(bodies)
        assert {shard_of("orders", 4, key, None, "middle") for key in frame.keys() or []} == {lane}
    assert sum(frame.count for _, _, frame in found) == 50
    with pytest.raises(BadRequest, match="every row needs a shard_key or a key"):
        frames({"body": [b"x"]}, shards={"orders": 4})


def test_a_frame_is_known_again_by_its_number_only_if_it_is_the_same() -> None:
    rows = pa.RecordBatch.from_pydict({"body": [b"%d" % n for n in range(10)]})
    others = pa.RecordBatch.from_pydict({"body": [b"%d" % (n if n != 4 else 14) for n in range(10)]})

    def numbers(topic: str, batch: pa.RecordBatch, now_us: int) -> list[tuple[int, int]]:
        encoder = Encoder(topic, "low", "", lambda _: 0, compress=False, max_frame_bytes=1 << 20, frame_rows=2)
        found = [Frame(one.frame) for one in encoder.frames(batch, Numbering("query/7/0"), now_us)]
        return [(frame.producer_id, frame.producer_seq) for frame in found]

    first = numbers("orders", rows, 1)
    assert first == sorted(set(first))
    assert numbers("orders", rows, 2) == first
    assert [one == other for one, other in zip(first, numbers("orders", others, 1), strict=True)] == [
        *(True, True, False, True, True)
    ]
    assert not set(first) & set(numbers("copies", rows, 1))


def test_large_rows_are_cut_into_frames_that_fit() -> None:
    found = frames({"body": [bytes(100_000)] * 10}, max_frame_bytes=250_000)
    assert sum(frame.count for _, _, frame in found) == 10
    assert all(len(frame.data) <= 250_000 for _, _, frame in found)
    with pytest.raises(TooLarge, match="a message for topic orders"):
        frames({"body": [bytes(300_000)]}, max_frame_bytes=250_000)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"body": pa.array([None], pa.binary())}, "a message without a body"),
        ({"body": [b"x"], "priority": ["urgent"]}, "'urgent' is not one of"),
        ({"body": [b"x"], "topic": ["Bad Name"]}, "lower-case"),
        ({"body": [b"x"], "delay": [-1.0]}, "column delay: seconds, 0 or more"),
        ({"body": [b"x"], "dedup_id": ["x" * 201]}, "column dedup_id"),
    ],
)
def test_a_row_that_cannot_be_sent_is_told(rows: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        frames(rows)


def test_a_priority_for_an_ordered_topic_is_refused() -> None:
    rows, shards = {"body": [b"x"], "key": ["k"]}, {"orders": 4}
    with pytest.raises(BadRequest, match="option priority=middle: topic orders is ordered"):
        frames(rows, shards=shards, priority="middle")
    with pytest.raises(BadRequest, match="topic orders is ordered: there is no priority in it"):
        frames(rows | {"priority": ["high"]}, shards=shards)
    assert len(frames(rows | {"priority": pa.array([None], pa.string())}, shards=shards)) == 1


def test_in_an_ordered_topic_delayed_rows_go_in_frames_of_their_own() -> None:
    rows = {"body": [b"%d" % n for n in range(6)], "key": ["k"] * 6, "delay": [0.0, 5.0, None, 2.0, 0.0, 0.0]}
    found = frames(rows, shards={"orders": 4})
    assert [frame.bodies() for _, _, frame in found] == [[b"0", b"2", b"4", b"5"], [b"1", b"3"]]
    assert [frame.deliver_at_us() for _, _, frame in found] == [None, [-5_000_000, -2_000_000]]
