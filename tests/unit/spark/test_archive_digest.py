"""A checksum does not depend on how rows are cut into batches, and changes with any value."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from towline.spark.jobs.archive.digest import Digest

COLUMNS: list[tuple[Any, list[Any]]] = [
    (pa.string(), ["a", None, "", "b", None, None]),
    (pa.binary(), [b"x", None, b"yy", b"", None, None]),
    (pa.int64(), [1, None, 3, 4, None, None]),
    (pa.timestamp("us", tz="UTC"), [1, None, 3, 4, None, None]),
    (pa.bool_(), [True, None, False, True, None, None]),
    (pa.map_(pa.string(), pa.string()), [[("a", "b")], None, [], [("c", "d"), ("e", "f")], None, None]),
    (pa.null(), [None] * 6),
]
"""The last two rows have no value, as most columns of most messages."""


def digest(*parts: pa.Array) -> str:
    whole = Digest()
    for part in parts:
        whole.update(pa.RecordBatch.from_arrays([part], ["column"]))
    return whole.text


@pytest.mark.parametrize(("kind", "values"), COLUMNS, ids=[str(kind) for kind, _ in COLUMNS])
def test_a_digest_is_of_the_values_not_of_the_batches(kind: Any, values: list[Any]) -> None:
    column = pa.array(values, kind)
    whole = digest(column)
    for at in range(len(values) + 1):
        assert digest(column.slice(0, at), column.slice(at)) == whole, at
    changed = {digest(column.take(pa.array([*range(at), *range(at + 1, len(values))]))) for at in range(len(values))}
    assert whole not in changed


def test_a_missing_value_is_not_an_empty_one() -> None:
    assert digest(pa.array(["a", None])) != digest(pa.array(["a", ""]))
    assert digest(pa.array([None, None], pa.string())) != digest(pa.array(["", ""]))
