"""What was acked and nacked, and how it is told."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from towline.client.consume.lease import Lease, in_portions, merged
from towline.client.consume.message import NACKED
from towline.client.link.backoff import Backoff
from towline.errors import BadRequest, Conflict
from towline.frame import encode
from towline.protocol.consume import ACK, NACK
from towline.protocol.messages import Act, Part


def lease_of(*counts: int, damaged: bool = False) -> tuple[Lease, deque[Act], deque[Lease]]:
    nacks: deque[Act] = deque()
    dirty: deque[Lease] = deque()
    raw, first = [], 0
    for count in counts:
        frame = bytearray(encode([b"%d" % (first + number) for number in range(count)]))
        if damaged:
            frame[-1] ^= 255
        raw.append((Part(1, first, count, 0, len(frame), 1, 0, b""), memoryview(bytes(frame))))
        first += count
    lease = Lease(41, raw, nacks, dirty)
    lease.topic = "orders"
    lease.open()
    return lease, nacks, dirty


def test_neighbours_are_acked_as_ranges() -> None:
    lease, _, dirty = lease_of(10)
    for index in (7, 1, 2, 3, 8):
        lease.messages()[index].ack()
    assert list(dirty) == [lease]
    assert lease.take_acks() == [Act(ACK, 41, [(1, 1, 3), (1, 7, 2)])]
    assert lease.take_acks() == []
    assert lease.open_count == 5


def test_all_of_them_are_acked_as_a_whole() -> None:
    lease, _, _ = lease_of(3, 2)
    assert len(lease) == 5
    assert [message.body for message in lease.messages()] == [b"0", b"1", b"2", b"3", b"4"]
    for message in lease.messages():
        message.ack()
    assert lease.take_acks() == [Act(ACK, 41)]
    lease.dirty = False
    assert lease.finished


def test_what_was_nacked_is_not_acked_with_the_rest() -> None:
    lease, nacks, _ = lease_of(3)
    first, second, third = lease.messages()
    first.ack()
    second.nack("bad", delay=5)
    third.ack()
    assert list(nacks) == [Act(NACK, 41, [(1, 1, 1)], False, 5, "bad")]
    assert lease.take_acks() == [Act(ACK, 41, [(1, 0, 1), (1, 2, 1)])]


class Meanwhile(bytearray):
    """Flags of which a part is read: just then another thread does something else with them."""

    act: Callable[[], object] | None = None

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if isinstance(key, slice) and self.act is not None:
            act, self.act = self.act, None
            other = threading.Thread(target=act)
            other.start()
            # It may have to wait for us: then it comes after.
            other.join(0.2)
        return found

    def translate(self, *tables: Any) -> Any:
        return self[:].translate(*tables)


@pytest.mark.parametrize("how", ["ack_all", "nack_all", "settle_all", "nack_in_place"])
def test_a_nack_in_another_thread_while_all_are_settled_is_not_overwritten(how: str) -> None:
    lease, nacks, _ = lease_of(4)
    (section,) = lease.sections
    flags = section.flags = Meanwhile(section.flags)
    first, second, *_ = lease.messages()
    refused: list[Conflict] = []
    done = threading.Event()

    def nack() -> None:
        try:
            second.nack("bad", delay=5)
        except Conflict as error:
            refused.append(error)
        done.set()

    flags.act = nack
    if how == "nack_in_place":
        section.shards = lease.shards = 3
        first.nack("before it")
    elif how == "settle_all":
        lease.settle_all(ACK)
    elif how == "nack_all":
        lease.nack_all("all")
    else:
        lease.ack_all()
    assert done.wait(60)
    told = Act(NACK, 41, [(1, 1, 1)], False, 5, "bad") in nacks
    assert (flags[1] == NACKED and told) if not refused else not told
    assert len(refused) <= 1


def test_a_message_is_settled_once() -> None:
    lease, nacks, _ = lease_of(2)
    acked, nacked = lease.messages()
    acked.ack()
    acked.ack()
    nacked.nack()
    for act in (acked.nack, nacked.ack, nacked.nack, lambda: acked.dead("x")):
        with pytest.raises(Conflict):
            act()
    assert acked.settled
    assert len(nacks) == 1
    with nacked:
        pass


def test_the_reason_of_a_failure_is_the_exception() -> None:
    lease, nacks, _ = lease_of(1)
    (message,) = lease.messages()
    with pytest.raises(ValueError, match="wrong"), message:
        raise ValueError("wrong" * 1000)
    assert nacks[0].reason.startswith("ValueError: wrong")
    assert len(nacks[0].reason) <= 1000, "what brokers keep of it"
    assert nacks[0].reason.endswith('raise ValueError("wrong" * 1000)'), "where it happened is not cut off"


@pytest.mark.parametrize("delay", [-1, 400 * 86400, float("nan")])
def test_a_delay_that_cannot_be_is_refused(delay: float) -> None:
    lease, nacks, _ = lease_of(1)
    with pytest.raises(BadRequest):
        lease.messages()[0].retry(delay)
    assert not nacks
    assert not lease.messages()[0].settled


def test_what_cannot_be_decoded_is_nacked() -> None:
    lease, nacks, _ = lease_of(2, damaged=True)
    assert lease.messages() == []
    (act,) = nacks
    assert (act.what, act.spans) == (NACK, [(1, 0, 2)])
    assert "checksum" in act.reason


def test_neighbours_that_failed_alike_become_one_act() -> None:
    acts = [Act(NACK, 41, [(1, seq, 1)], False, None, "bad") for seq in range(5)]
    other = [Act(NACK, 41, [(1, 5, 1)], False, None, "worse"), Act(NACK, 42, [(1, 6, 1)], False, None, "worse")]
    assert merged(acts + other) == [Act(NACK, 41, [(1, 0, 5)], False, None, "bad"), *other]


def test_many_acts_are_cut_into_bearable_portions() -> None:
    acts = [Act(NACK, 41, [(1, seq * 2, 1)], False, None, "x" * 1000) for seq in range(100)]
    portions = in_portions(acts)
    assert len(portions) > 1
    assert [act for portion in portions for act in portion] == acts
    lease, _, _ = lease_of(10_000)
    for message in lease.messages()[::2]:
        message.ack()
    spans = [span for act in lease.take_acks() for span in act.spans]
    assert spans == [(1, seq, 1) for seq in range(0, 10_000, 2)]


def test_the_first_new_try_is_at_once_and_the_next_are_ever_later() -> None:
    backoff = Backoff(0.1, 1.0, chance=lambda: 1.0)
    assert [backoff.next_s() for _ in range(7)] == [0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    backoff.reset()
    assert backoff.next_s() == 0
    calm = Backoff(0.1, 1.0, chance=lambda: 0.0, eager=False)
    assert [calm.next_s() for _ in range(3)] == [0.05, 0.1, 0.2]


@pytest.mark.parametrize("compress", [False, True])
def test_messages_without_anything_beside_their_bodies_hold_no_memory_of_their_frame(compress: bool) -> None:
    plain, keyed = (
        bytearray(encode([b"a" * 100, b"b" * 100], keys=keys, produced_at_us=7, token=b"me", compress=compress))
        for keys in (None, ["k", None])
    )
    for frame, key in ((plain, None), (keyed, "k")):
        lease = Lease(41, [(Part(1, 0, 2, 0, len(frame), 1, 9, b""), memoryview(frame))], deque(), deque())
        lease.topic = "orders"
        lease.open()
        message, other = lease.messages()
        if key is None:
            frame.extend(b"used for something else")  # refused while somebody looks at it
            frame[:] = bytes(len(frame))
        else:
            with pytest.raises(BufferError):
                frame.extend(b"more")
        assert (message.body, message.key, other.key) == (b"a" * 100, key, None)
        assert (message.headers, message.shard_key, message.timeout) == ({}, key, None)
        assert (message.produced_at.timestamp(), message.token) == (7e-6, "me")


RUNS = ((0, 10, 2), (2, 14, 1), (3, 20, 3))
"""Messages 10, 11, 14, 20, 21 and 22, in a frame of their own."""
WITHIN = ((1, 10, 2), (5, 14, 1), (11, 20, 3))
"""The same, in the frame that they were sent in."""


def scattered_lease(runs: tuple[tuple[int, int, int], ...], *, compress: bool = False) -> tuple[Lease, deque[Act]]:
    whole = [b"%d" % (9 + place) for place in range(20)]
    bodies = (
        whole if runs is WITHIN else [b"%d" % seq for _, first, count in runs for seq in range(first, first + count)]
    )
    frame = encode(bodies, keys=[body.decode() for body in bodies], compress=compress)
    nacks: deque[Act] = deque()
    part = Part(1, runs[0][1], sum(count for _, _, count in runs), runs[0][0], len(frame), 2, 0, b"", runs)
    lease = Lease(41, [(part, memoryview(frame))], nacks, deque())
    lease.topic = "orders"
    return lease, nacks


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("runs", [RUNS, WITHIN], ids=["picked", "whole"])
def test_scattered_messages_have_their_own_numbers(runs: tuple[tuple[int, int, int], ...], compress: bool) -> None:
    lease, _ = scattered_lease(runs, compress=compress)
    lease.open()
    assert [message.seq for message in lease.messages()] == [10, 11, 14, 20, 21, 22]
    assert [message.body for message in lease.messages()] == [b"10", b"11", b"14", b"20", b"21", b"22"]
    assert [message.key for message in lease.messages()] == ["10", "11", "14", "20", "21", "22"]


def test_scattered_messages_are_settled_by_their_numbers() -> None:
    lease, nacks = scattered_lease(RUNS)
    lease.open()
    for index in (1, 2, 3, 5):
        lease.messages()[index].ack()
    lease.messages()[4].nack("no")
    assert lease.take_acks() == [Act(ACK, 41, [(1, 11, 1), (1, 14, 1), (1, 20, 1), (1, 22, 1)])]
    assert [act.spans for act in nacks] == [[(1, 21, 1)]]
    assert lease.acked() == [(1, 11, 1), (1, 14, 1), (1, 20, 1), (1, 22, 1)]
    assert lease.open_count == 1


@pytest.mark.parametrize(("first", "count", "lost"), [(0, 10, []), (11, 9, [11, 14]), (12, 2, []), (21, 50, [21, 22])])
def test_scattered_messages_are_taken_away_by_their_numbers(first: int, count: int, lost: list[int]) -> None:
    lease, _ = scattered_lease(RUNS)
    lease.open()
    assert lease.lose_part(1, first, count, "too late") == len(lost)
    assert [message.seq for message in lease.messages() if message.lost] == lost


@pytest.mark.parametrize("runs", [RUNS, WITHIN], ids=["picked", "whole"])
@pytest.mark.parametrize("count", range(1, 6))
def test_a_lease_of_scattered_messages_can_be_cut_anywhere(runs: tuple[tuple[int, int, int], ...], count: int) -> None:
    lease, _ = scattered_lease(runs)
    rest = lease.cut(count)
    assert rest is not None
    lease.open()
    rest.open()
    assert [message.seq for one in (lease, rest) for message in one.messages()] == [10, 11, 14, 20, 21, 22]
    assert [message.body for message in rest.messages()] == [b"10", b"11", b"14", b"20", b"21", b"22"][count:]
    assert len(lease) == count
