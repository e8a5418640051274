"""Memory is used again, but never while somebody looks at it."""

from __future__ import annotations

import threading

import pytest

from towline.frame import Frame, encode, encode_frame
from towline.frame.spare import PIECE_MAX, PIECES_MAX, Spare


def test_a_piece_is_given_out_again_once_nobody_has_a_view_of_it() -> None:
    spare = Spare()
    first = spare.view(1 << 20)
    first[15] = 1
    part = first[10:20]
    del first
    second = spare.view(1 << 20)
    second[15] = 2
    assert part[5] == 1, "a part of it is still in use"
    del part, second
    for _ in range(10):
        spare.view(1 << 20)
    assert len(spare._pieces) == 2


def test_there_is_a_limit_to_what_is_kept() -> None:
    spare = Spare()
    views = [spare.view(1 << 20) for _ in range(3 * PIECES_MAX)]
    for number, view in enumerate(views):
        view[0] = number
    assert [view[0] for view in views] == list(range(len(views)))
    assert len(spare._pieces) == PIECES_MAX
    assert len(spare.view(2 * PIECE_MAX)) == 2 * PIECE_MAX
    assert spare.join([b"x"], 1) is None, "all are in use"
    del views
    joined = spare.join([b"x", b"y"], 2)
    assert joined is not None
    assert bytes(joined) == b"xy"


def test_what_cannot_be_put_into_a_piece_does_not_use_it_up() -> None:
    spare = Spare()
    for _ in range(2 * PIECES_MAX):
        with pytest.raises(TypeError):
            spare.join([b"x"], 2)
    joined = spare.join([b"x", b"y"], 2)
    assert joined is not None
    assert bytes(joined) == b"xy"


def test_a_frame_in_used_memory_is_the_same_frame() -> None:
    bodies = [bytes([n % 251]) * (n % 3000) for n in range(700)]
    keys = [f"k{n}" if n % 3 else None for n in range(700)]
    options = {"keys": keys, "producer_id": 7, "producer_seq": 8, "token": b"abc"}
    plain = encode(bodies, **options)  # type: ignore[arg-type]
    held = []
    for _ in range(2 * PIECES_MAX):
        frame = encode_frame(bodies, reuse=True, **options)  # type: ignore[arg-type]
        assert frame == plain
        assert Frame(frame).verify().verify_columns().texts(1) is not None
        held.append(frame)
    assert all(frame == plain for frame in held)


def test_threads_do_not_get_into_each_others_frames() -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        bodies = [bytes([seed]) * 200] * 500
        expected = encode(bodies)
        wrong.extend(seed for _ in range(200) if encode_frame(bodies, reuse=True) != expected)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
