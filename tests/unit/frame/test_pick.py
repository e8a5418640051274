"""Some messages of a frame as a frame of their own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.frame import Frame, encode, pick
from towline.frame.layout import EXPIRES_AT, LIMIT


@pytest.mark.parametrize("compress", [False, True])
@given(data=st.data())
def test_what_is_picked_is_what_was_sent(compress: bool, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 8))

    def column(values: st.SearchStrategy[object]) -> list[object]:
        return data.draw(st.lists(values, min_size=count, max_size=count))

    texts = st.one_of(st.none(), st.text(max_size=5))
    numbers = st.integers(0, 1 << 50)
    columns: dict[str, list[object]] = {
        "keys": column(texts),
        "headers": column(st.one_of(st.none(), st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2))),
        "dedup_ids": column(texts),
        "shard_keys": column(texts),
        "expires_at_us": column(numbers),
        "deliver_at_us": column(numbers),
        "limits": column(numbers),
    }
    bodies = data.draw(st.lists(st.binary(max_size=200), min_size=count, max_size=count))
    about = {"producer_id": 7, "producer_seq": 8, "produced_at_us": 9, "token": b"shop", "compress": compress}
    whole = encode(bodies, **columns, **about)  # type: ignore[arg-type]
    some = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=8))
    picked = Frame(pick(Frame(whole), some)).verify().verify_columns()
    expected = encode(
        [bodies[n] for n in some],
        **{name: [values[n] for n in some] for name, values in columns.items()},  # type: ignore[arg-type]
        **about | {"compress": Frame(whole).compressed},  # type: ignore[arg-type]
    )
    assert bytes(picked.data) == expected


def test_columns_that_become_empty_are_left_out() -> None:
    frame = Frame(encode([b"a", b"b"], expires_at_us=[5, 0], limits=[0, 9]))
    first, second = Frame(pick(frame, [0])).verify(), Frame(pick(frame, [1])).verify()
    assert (first.flags, first.earliest_expiry_us, first.latest_expiry_us) == (EXPIRES_AT, 5, 5)
    assert (second.flags, second.earliest_expiry_us) == (LIMIT, 0)
