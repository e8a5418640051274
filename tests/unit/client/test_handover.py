"""Messages that go to another broker, because their own is away."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from towline.client.cluster.handover import Handover, Pace, whole_frame
from towline.client.consume.lease import Lease
from towline.client.consume.message import NACKED
from towline.client.consume.message_block import MessageBlock
from towline.client.consume.pull_size import PullLimits
from towline.client.link.flow import drive
from towline.client.options import ConsumerOptions
from towline.client.produce.encode import FrameEncoder
from towline.errors import TooLarge
from towline.frame import Frame, Piece, encode, gather
from towline.model import GroupConfig
from towline.protocol.cluster import HandedBack
from towline.protocol.consume import ACK
from towline.protocol.messages import Act, Part, Settled


def test_a_frame_for_another_broker_has_all_that_the_messages_had() -> None:
    first = Frame(
        encode(
            [b"a", b"b"],
            keys=["k", None],
            headers=[{"x": "y"}, None],
            dedup_ids=[None, "d"],
            shard_keys=["s", None],
            expires_at_us=[0, 3_000_000_000_000_000],
            limits=[7, 7],
            produced_at_us=100,
        )
    )
    other = Frame(encode([b"c"], produced_at_us=90))
    sent = gather([Piece(first, 0, 2), Piece(other, 0, 1)])
    # As a pull brings them: of a frame that has more, the messages from the second on.
    section = MessageBlock("orders", Part(1, 41, 2, 1, len(sent), 3, 1_000, b""), memoryview(sent))
    whole = MessageBlock("orders", Part(1, 40, 3, 0, len(sent), 3, 1_000, b""), memoryview(sent))
    for held, begin in ((section, 1), (whole, 0)):
        frame = Frame(whole_frame(FrameEncoder("me"), held.messages())).verify().verify_columns()
        assert frame.bodies() == [b"a", b"b", b"c"][begin:]
        assert (frame.keys() or [None] * 2) == ["k", None, None][begin:]
        assert frame.dedup_ids() == [None, "d", None][begin:]
        assert (frame.shard_keys() or [None] * 2) == ["s", None, None][begin:]
        assert frame.expires_at_us() == [0, 3_000_000_000_000_000, 0][begin:]
        assert frame.limits() == [7, 7, 0][begin:]
        assert frame.produced_at_each_us() == [100, 100, 90][begin:]
        ids = [{"towline-origin": f"orders/middle/{number}"} for number in (40, 41, 42)]
        assert frame.headers() == [{"x": "y", **ids[0]}, ids[1], ids[2]][begin:]
        assert (frame.token, frame.earliest_expiry_us, frame.latest_expiry_us) == (b"me", 3_000_000_000_000_000, 0)


def test_of_a_consumer_by_prefix_only_what_is_not_ordered_is_handed_over() -> None:
    sent = encode([b"a"])
    leases: dict[int, Any] = {}
    for pull, shards in ((1, 8), (2, 0)):
        section = MessageBlock("orders", Part(0, 40, 1, 0, len(sent), 1, 1_000, b""), memoryview(sent), None, shards)
        section.flags[0] = NACKED
        leases[pull] = SimpleNamespace(shards=shards, sections=[section])
    acts = [Act(1, 1, [(0, 40, 1)]), Act(1, 2, [(0, 40, 1)]), Act(ACK, 1)]
    subscription: Any = SimpleNamespace(
        nacks=deque(acts), lease=leases.get, unanswered=list, settled_elsewhere=lambda pull, spans: None
    )
    handover = Handover(subscription, SimpleNamespace())  # type: ignore[arg-type]
    assert len(handover) == 1
    assert list(subscription.nacks) == [acts[0], acts[2]]
    handover.done()
    assert list(subscription.nacks) == [acts[0], acts[2], Act(ACK, 2, [(0, 40, 1)])]
    # Where there is nothing else, all stays as it is.
    subscription.nacks = deque(acts[::2])
    assert not len(Handover(subscription, SimpleNamespace()))  # type: ignore[arg-type]
    assert list(subscription.nacks) == acts[::2]


def test_what_is_too_large_for_another_broker_is_told_to_its_own_and_the_rest_is_handed_over_once() -> None:
    sent = encode([b"a", b"large", b"c"])
    section = MessageBlock("orders", Part(1, 40, 3, 0, len(sent), 1, 1_000, b""), memoryview(sent))
    section.flags[:] = bytes([NACKED] * 3)
    lease = SimpleNamespace(shards=0, sections=[section])
    nack = Act(1, 2, [(1, 40, 3)], reason="bad")
    terms = SimpleNamespace(of=lambda topic: GroupConfig(topic, "g"))
    elsewhere: list[Any] = []
    subscription: Any = SimpleNamespace(
        nacks=deque([nack]),
        lease={2: lease}.get,
        unanswered=list,
        terms=terms,
        group="g",
        settled_elsewhere=lambda pull, spans: elsewhere.append((pull, spans)),
    )
    handover = Handover(subscription, SimpleNamespace())  # type: ignore[arg-type]
    assert offered(handover) == [[b"a", b"large", b"c"], [b"a"], [b"large", b"c"], [b"large"], [b"c"]]
    assert handover.refused is not None
    assert offered(handover) == [[b"large"]], "what one has is not offered to another"
    assert handover.undone() == []
    assert list(subscription.nacks) == [
        Act(ACK, 2, [(1, 40, 1), (1, 42, 1)]),
        Act(1, 2, [(1, 41, 1)], reason="bad"),
    ]
    assert elsewhere == [(2, [(1, 40, 1), (1, 42, 1)])]


def offered(handover: Handover) -> list[list[bytes]]:
    """What a broker is told that takes nothing large."""
    told: list[list[bytes]] = []

    def do(call: Any) -> HandedBack:
        told.append(Frame(call.buffers[0]).bodies())
        if b"large" in told[-1]:
            raise TooLarge("it is")
        return HandedBack(0)

    with pytest.raises(TooLarge):
        drive(handover.flow(FrameEncoder("me")), do)
    return told


def test_nacks_are_handed_over_after_a_while_and_those_that_are_too_large_ever_more_rarely() -> None:
    pace = Pace()
    assert [now_s for now_s in range(10, 13) if pace.is_due(now_s)] == [12]
    tries = []
    for now_s in range(13, 300):
        if pace.is_due(now_s):
            tries.append(now_s)
            pace.in_vain(now_s)
    assert tries[:4] == [13, 16, 21, 30]
    assert tries[-1] - tries[-2] == 61
    pace.back()
    assert [now_s for now_s in range(300, 303) if pace.is_due(now_s)] == [302]


def test_until_its_own_broker_was_told_a_pull_counts_as_held() -> None:
    """The nack was on its way when that broker died. When it is back, it takes back what we do not say that we hold."""
    about: Any = ("orders", "g", "me", PullLimits(100, 1 << 20), 1, None, None, None, 0.0, None, 0.5, None)
    subscription = ConsumerOptions(*about).subscription(10)
    frame = encode([b"a", b"b", b"c"])
    raw = [(Part(1, 0, 3, 0, len(frame), 1, 0, b""), memoryview(frame))]
    lease = subscription._leases[7] = Lease(7, raw, subscription.nacks, subscription._dirty)
    lease.topic = "orders"
    lease.open()
    first, second, third = lease.messages()
    first.nack("bad")
    second.ack()
    third.ack()
    assert [step.call.number for step in subscription.start_settles()] == [-1]  # type: ignore[union-attr]
    abandoned: list[Any] = []
    handover = Handover(subscription, SimpleNamespace(abandon=abandoned.append))  # type: ignore[arg-type]
    assert (len(handover), len(abandoned)) == (1, 1)
    handover.done()
    assert abandoned[0].done
    assert subscription.attach().holding == [7]
    [step] = subscription.start_settles()
    told: Any = step.call  # type: ignore[union-attr]
    assert sorted(span for act in told.request.acts for span in act.spans) == [(1, 0, 3)]
    assert {act.what for act in told.request.acts} == {ACK}
    told.finish(Settled([]), memoryview(b""))
    assert subscription.attach().holding == []
