"""Many frames at once hold what each would hold alone."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.errors import BadFrame, TooLarge
from towline.frame import COUNT_MAX, Frame, encode
from towline.frame.many import Series

texts = st.none() | st.text(max_size=5)
messages = st.lists(
    st.tuples(st.binary(max_size=20), texts, st.none() | st.dictionaries(st.text(), st.text(), max_size=2), texts),
    min_size=1, max_size=12,
)  # fmt: skip


def frames_of(whole: memoryview, lengths: list[int]) -> list[Frame]:
    frames, at = [], 0
    for length in lengths:
        frames.append(Frame(whole[at : at + length]).verify().verify_columns())
        at += length
    assert at == len(whole)
    return frames


def columns(frame: Frame) -> list[Any]:
    return [
        frame.bodies(), frame.keys(), frame.headers(), frame.shard_keys(), frame.expires_at_us(), frame.limits(),
        frame.flags, frame.token, frame.producer_id, frame.producer_seq, frame.produced_at_us,
        frame.earliest_expiry_us, frame.latest_expiry_us,
    ]  # fmt: skip


@given(messages, st.data())
def test_each_frame_is_as_if_it_were_encoded_alone(rows: list[Any], data: st.DataObject) -> None:
    bodies, keys, headers, shard_keys = map(list, zip(*rows, strict=True))
    given_columns = [data.draw(st.sampled_from([column, None])) for column in (keys, headers, shard_keys)]
    expires_at_us, limit = data.draw(st.sampled_from([0, 7])), data.draw(st.sampled_from([0, 9]))
    token = data.draw(st.sampled_from([b"", b"who"]))
    counts, left = list[int](), len(rows)
    while left:
        counts.append(data.draw(st.integers(1, left)))
        left -= counts[-1]
    names: dict[str, Any] = dict(zip(("keys", "headers", "shard_keys"), given_columns, strict=True))
    order = iter(data.draw(st.permutations(range(len(rows)))))
    groups = [[next(order) for _ in range(size)] for size in counts]
    sizes = data.draw(st.sampled_from([None, [len(body) for body in bodies]]))
    series = Series(groups, bodies, sizes=sizes, **names, expires_at_us=expires_at_us, limit=limit, token=token)
    found = frames_of(*series.frames(3, count(4), 5))
    for number, (frame, group) in enumerate(zip(found, groups, strict=True)):
        size = len(group)
        some: dict[str, Any] = {
            name: None if column is None else [column[place] for place in group] for name, column in names.items()
        }
        alone = encode(
            [bodies[place] for place in group],
            **some,
            expires_at_us=[expires_at_us] * size,
            limits=[limit] * size,
            producer_id=3,
            producer_seq=4 + number,
            produced_at_us=5,
            token=token,
        )
        assert columns(frame) == columns(Frame(alone))
        assert frame.length == len(alone)


def test_frames_that_are_too_large_for_spare_memory_are_whole() -> None:
    bodies = [bytes([number]) * (3 << 20) for number in range(4)]
    found = frames_of(*Series([[0], [1, 2, 3]], bodies).frames(3, count(1), 5))
    assert [frame.bodies() for frame in found] == [bodies[:1], bodies[1:]]


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(BadFrame, match="a column of 1 values beside 2 bodies"):
        Series([[0, 1]], [b"a", b"b"], keys=["k"])
    with pytest.raises(TooLarge, match="a token"):
        Series([[0]], [b"a"], token=bytes(65))
    with pytest.raises(TooLarge, match="a frame holds"):
        Series([[0], []], [b"a"])
    with pytest.raises(TooLarge, match="a frame holds"):
        Series([[0] * (COUNT_MAX + 1)], [b"a"])
    with pytest.raises(TypeError, match="bodies are bytes"):
        Series([[0]], [memoryview(bytes(16)).cast("I")]).frames(1, count(1), 1)  # type: ignore[list-item]


@pytest.mark.parametrize("size", [0, 1, 100])
@pytest.mark.parametrize("odd", [False, True])
def test_bodies_of_one_length_are_dealt_out_as_any_others(size: int, odd: bool) -> None:
    bodies = [bytes([number]) * size for number in range(100)]
    if odd:
        bodies[70] = b"longer" * size + b"!"
    groups = [list(range(lane, 100, 3)) for lane in (2, 0, 1)]
    chosen = [groups, groups[:2], [[5, 5, 5, *range(20)]]]  # all, not all, and some of them more than once
    for some in chosen:
        found = frames_of(*Series(some, bodies, keys=["k"] * 100).frames(3, count(4), 5))
        assert [frame.bodies() for frame in found] == [[bodies[place] for place in group] for group in some]
        assert [frame.keys() for frame in found] == [["k"] * len(group) for group in some]
