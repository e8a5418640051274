"""Messages of several frames as one."""

from __future__ import annotations

from itertools import chain
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from towline.frame import Frame, Piece, encode, gather

texts = st.none() | st.text(max_size=5)
messages = st.lists(
    st.tuples(st.binary(max_size=20), texts, st.none() | st.dictionaries(st.text(), st.text(), max_size=2),
              st.integers(0, 99), st.integers(0, 99)),
    min_size=1, max_size=8,
)  # fmt: skip


@given(st.lists(messages, min_size=1, max_size=4), st.data())
def test_gathered_messages_are_what_they_were(lists: list[list[Any]], data: st.DataObject) -> None:
    frames, pieces, rows = [], [], []
    for number, some in enumerate(lists):
        bodies, keys, headers, expiries, timeouts = map(list, zip(*some, strict=True))
        frame = Frame(
            encode(
                bodies, keys=keys, headers=headers, expires_at_us=expiries, limits=timeouts,
                produced_at_us=number, token=b"who", compress=data.draw(st.booleans()),
                deliver_at_us=[5] * len(some), producer_id=3, producer_seq=4,
            )
        ).verify()  # fmt: skip
        frames.append(frame)
        start = data.draw(st.integers(0, len(some) - 1))
        stop = data.draw(st.integers(start + 1, len(some)))
        pieces.append(Piece(frame, start, stop))
        rows += [(*row, number) for row in some[start:stop]]
    order = data.draw(st.none() | st.permutations(range(len(rows))))
    times = data.draw(st.none() | st.lists(st.integers(1, 9), min_size=len(rows), max_size=len(rows)))
    gathered = Frame(gather(pieces, order=order, deliver_at_us=times)).verify().verify_columns()
    expected = rows if order is None else [rows[place] for place in order]
    count = gathered.count
    assert count == len(rows)
    assert gathered.bodies() == [row[0] for row in expected]
    assert (gathered.keys() or [None] * count) == [row[1] or None for row in expected]
    assert (gathered.headers() or [{}] * count) == [row[2] or {} for row in expected]
    assert (gathered.expires_at_us() or [0] * count) == [row[3] for row in expected]
    assert (gathered.limits() or [0] * count) == [row[4] for row in expected]
    assert (gathered.produced_at_each_us() or [gathered.produced_at_us] * count) == [row[5] for row in expected]
    assert gathered.deliver_at_us() == times
    assert gathered.token == b"who"
    assert (gathered.producer_id, gathered.producer_seq) == (0, 0), "it is not what the producer sent"


def test_the_expiry_of_all_is_summed_up_anew() -> None:
    never = Frame(encode([b"a"]))
    soon = Frame(encode([b"b", b"c"], expires_at_us=[7, 9]))
    both = Frame(gather([Piece(never, 0, 1), Piece(soon, 0, 2)]))
    assert (both.earliest_expiry_us, both.latest_expiry_us) == (7, 0)
    assert list(chain.from_iterable([both.expires_at_us() or []])) == [0, 7, 9]
