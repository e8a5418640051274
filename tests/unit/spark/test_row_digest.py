"""The digest of rows is of their values, not of their order, batches or neighbours."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from towline.spark.arrow.row_digest import RowDigest

SCHEMA = pa.schema(
    [
        ("body", pa.binary()),
        ("key", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("delay", pa.float64()),
        ("deliver_at", pa.timestamp("us", tz="UTC")),
        ("number", pa.int32()),
    ]
)
DAY = datetime(2026, 5, 1, tzinfo=UTC)


def row(n: int) -> dict[str, Any]:
    """Of all lengths; some values are missing, or empty."""
    return {
        "body": b"%d" % n * (n % 7 if n % 50 else 5_000),
        "key": None if n % 3 else f"key-{n}",
        "headers": None if n % 4 else [(f"h{m}", str(n)) for m in range(n % 3)],
        "delay": None if n % 5 else n / 10,
        "deliver_at": None if n % 6 else DAY.replace(microsecond=n),
        "number": n % 11 or None,
    }


def digest(rows: list[dict[str, Any]], *cuts: int) -> bytes:
    """Of rows in batches, each a slice of one that holds more."""
    whole = pa.RecordBatch.from_pylist([row(-1), *rows, row(-2)], SCHEMA).slice(1, len(rows))
    found = RowDigest()
    for begin, end in zip((0, *cuts), (*cuts, len(rows)), strict=True):
        part = RowDigest()
        part.add(whole.slice(begin, end - begin))
        found += part
    return bytes(found)


def test_rows_in_another_order_and_in_other_batches_are_the_same() -> None:
    rows = [row(n) for n in range(400)]
    whole = digest(rows)
    dice = random.Random(7)
    for _ in range(20):
        dice.shuffle(rows)
        assert digest(rows, *sorted(dice.sample(range(400), 3))) == whole
    assert digest(rows[1:]) != whole
    assert digest([*rows, rows[0]]) != whole


@pytest.mark.parametrize("name", SCHEMA.names)
def test_any_value_makes_a_difference(name: str) -> None:
    rows = [row(n) for n in range(60)]
    whole = digest(rows)
    for at in range(59):
        mine, other = rows[at][name], rows[at + 1][name]
        if (mine or None) != (other or None):
            swapped = [one | {name: other} if one is rows[at] else one for one in rows]
            assert digest(swapped) != whole, at
            swapped[at + 1] = swapped[at + 1] | {name: mine}
            assert digest(swapped) != whole, f"{at}: the same values, in other rows"


def test_any_byte_of_a_body_makes_a_difference_and_so_does_its_place() -> None:
    body = bytes(range(1, 101)) * 90
    found = {digest([row(1) | {"body": body}])}
    for at in range(0, len(body) - 64, 61):
        for other in (at + 1, at + 8, at + 64):  # swapped with its neighbour, with the next word, and the next line
            changed = bytearray(body)
            changed[at], changed[other] = changed[other], changed[at]
            found.add(digest([row(1) | {"body": bytes(changed)}]))
    assert len(found) == 1 + 3 * len(range(0, len(body) - 64, 61))
    assert digest([row(1) | {"body": b"x"}]) != digest([row(1) | {"body": b"x\0"}])


def test_a_missing_column_is_one_without_values_and_text_is_its_bytes() -> None:
    with_key = pa.RecordBatch.from_pydict({"body": pa.array(["größe"]), "key": pa.array([None], pa.string())})
    without = pa.RecordBatch.from_pydict({"body": pa.array(["größe".encode()], pa.large_binary())})
    found = []
    for batch in (with_key, without):
        found.append(RowDigest())
        found[-1].add(batch)
    assert bytes(found[0]) == bytes(found[1])


def test_the_digest_is_the_one_that_brokers_remember() -> None:
    """Another version may have published the epoch."""
    assert digest([row(n) for n in range(100)]).hex() == "0000000000000064ce5762962d2511a4"
