"""Back-offs and timeouts that have begun by a clock that was two hours ahead, and is set right before the broker comes
back."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.delivery.driver import ANN, BOB, MIDDLE, NOON, SECOND, Driver, whole
from towline.delivery import Dedup, Event, Part, Pull, encode_event, restore, snapshot
from towline.delivery.dedup import Seen
from towline.delivery.group.events import Acked, Failed, Paused, Pulled, Released, Resumed, shifted
from towline.delivery.group.retry import Retry, RetryQueue

AHEAD_S = 7200


@pytest.fixture(params=[None, 0], ids=["from the log", "from a snapshot"])
def from_snapshot(request: pytest.FixtureRequest) -> int | None:
    found: int | None = request.param
    return found


@pytest.mark.parametrize("shards", [0, 3])
def test_no_back_off_lasts_longer_than_as_a_whole(from_snapshot: int | None, shards: int) -> None:
    mq = Driver(shards=shards)
    mq.append(1, 3)
    mq.append(2, 1)
    mq.pull(count=3)
    mq.nack(delay_s=3 * 3600)
    mq.pass_time(AHEAD_S)
    assert mq.pull(count=1) == [Part(2, 0, 1, 1)]
    mq.nack()
    mq.pass_time(60 - AHEAD_S)
    mq.restart(from_snapshot=from_snapshot)
    # What is not due lies ready nowhere, though a later event says that it is two hours later.
    assert whole(mq.group.cap_waits(mq.now_us)) == (AHEAD_S - 60) * SECOND
    assert mq.retries() == [(Part(1, 0, 3, 2), NOON + 3 * 3600 * SECOND), (Part(2, 0, 1, 2), mq.now_us + 10 * SECOND)]
    assert mq.pull() == []
    mq.pass_time(10)
    assert mq.pull() == [Part(2, 0, 1, 2)]
    mq.pass_time(3 * 3600 - 71)
    assert mq.pull() == []
    mq.pass_time(1)
    assert mq.pull() == [Part(1, 0, 3, 2)]


def test_a_retry_is_not_ready_because_another_pull_says_that_it_is_later(from_snapshot: int | None) -> None:
    mq = Driver()
    mq.append(MIDDLE, 1)
    mq.pull()
    mq.nack()
    mq.append(MIDDLE, 1)
    # Given the steady time a group delivers nothing early; what it does is written by the clock as it is.
    [pulled] = mq.group.decide(Pull(ANN, 2, 100, 1 << 30), mq.now_us)
    mq.group.apply(pulled)
    mq.log.append(encode_event(shifted(pulled, AHEAD_S * SECOND)))
    mq.restart(from_snapshot=from_snapshot)
    whole(mq.group.cap_waits(mq.now_us))
    assert mq.pull(BOB) == []
    mq.pass_time(10)
    assert mq.pull(BOB) == [Part(MIDDLE, 0, 1, 2)]


def test_no_timeout_lasts_longer_than_as_a_whole(from_snapshot: int | None) -> None:
    mq = Driver(timeout_s=600)
    mq.append(MIDDLE, 1)
    mq.pull(ANN)
    mq.pass_time(AHEAD_S)
    mq.append(MIDDLE, 1)
    mq.pull(BOB)
    mq.pass_time(60 - AHEAD_S)
    mq.restart(from_snapshot=from_snapshot)
    assert whole(mq.group.cap_waits(mq.now_us)) == (AHEAD_S - 60) * SECOND
    assert mq.group.next_wake_us() == NOON + 600 * SECOND
    mq.pass_time(540)
    assert [event.pull for event in mq.lapse() if isinstance(event, Released)] == [1]
    mq.pass_time(59)
    assert mq.lapse() == []
    mq.pass_time(1)
    assert [event.pull for event in mq.lapse() if isinstance(event, Released)] == [2]


def test_a_snapshot_is_by_the_clock_as_it_is() -> None:
    mq = Driver(timeout_s=600)
    mq.append(MIDDLE, 2)
    mq.pull(count=1)
    mq.nack()
    mq.pull(count=1)
    mq.give_back()
    mq.pull(count=1)
    document = snapshot(mq.group, 0, AHEAD_S * SECOND)
    assert [(part.first, due_us) for part, due_us, _ in document.retries] == [(0, NOON + (AHEAD_S + 10) * SECOND)]
    assert [one.deadline_us for one in document.leases] == [NOON + (AHEAD_S + 600) * SECOND]
    mq.group = whole(restore(mq.config, document))
    mq.pass_time(AHEAD_S)
    assert whole(mq.group.cap_waits(mq.now_us)) == 0


def test_only_back_offs_that_are_too_long_and_what_is_ready_too_early_are_touched() -> None:
    queue = RetryQueue(in_place=1)
    queue.add(Part(1, 10, 5, 2), 300, 100)  # its clock was ahead
    queue.add(Part(1, 20, 5, 2), 300, 250)
    queue.add(Part(1, 30, 5, 2), 60, 50)
    queue.add(Part(1, 40, 5, 2), 200, 0)  # how long its back-off is, is not known
    queue.add(Part(1, 50, 5, 2), 60, 20)
    queue.add(Part(0, 10, 5, 2), 300, 100)  # in place
    queue.add(Part(0, 15, 5, 3), 40, 100)
    queue.add(Part(2, 0, 5, 2), 60, 50)
    queue.expose([Part(1, 30, 5, 2), Part(1, 40, 5, 2), Part(1, 50, 5, 2)])
    untouched = queue._waiting[60][2]
    assert whole(queue.cap_waits(50)) == 150
    assert list(queue) == [
        (Part(0, 10, 5, 2), 150),
        (Part(0, 15, 5, 3), 40),
        (Part(1, 10, 5, 2), 150),
        (Part(1, 20, 5, 2), 300),
        (Part(1, 30, 5, 2), 60),
        (Part(1, 40, 5, 2), 200),
        (Part(1, 50, 5, 2), 60),
        (Part(2, 0, 5, 2), 60),
    ]
    assert (queue.size, queue.messages) == (8, 40)
    assert (list(queue.ready(1)), queue.next_due_us()) == ([], 60)
    assert queue._waiting[60][2] is untouched
    assert whole(queue.cap_waits(50)) == 0
    queue.ripen(200)
    assert [part.first for part in queue.ready(1)] == [10, 30, 40, 50]


@pytest.mark.parametrize(
    ("event", "later"),
    [
        (Pulled(1, 2, ANN, 5, ()), Pulled(11, 2, ANN, 15, ())),
        (Pulled(1, 2, ANN, 0, ()), Pulled(11, 2, ANN, 0, ())),
        (Failed(1, 2, (), 5, "no"), Failed(11, 2, (), 15, "no")),
        (Acked(1, 2, ()), Acked(11, 2, ())),
        (Paused(1, "why"), Paused(11, "why")),
        (Resumed(1, 7, "why"), Resumed(11, 7, "why")),
    ],
)
def test_an_event_by_another_clock_has_other_times_and_is_the_same_else(event: Event, later: Event) -> None:
    assert shifted(event, 10) == later


def test_documents_that_do_not_tell_how_long_a_back_off_is_can_be_read() -> None:
    [old] = msgspec.json.decode(b"[[[1, 0, 3, 2], 5]]", type=list[Retry])
    assert old == Retry(Part(1, 0, 3, 2), 5, 0)
    queue = RetryQueue()
    queue.add(*old)
    assert whole(queue.cap_waits(1)) == 0
    assert list(queue) == [(Part(1, 0, 3, 2), 5)]
    [seen] = msgspec.msgpack.decode(msgspec.msgpack.encode([(1, 7, 100)]), type=list[Seen])
    dedup = Dedup(60, 9)
    dedup.restore([(("orders", b"id"), seen)], 110)
    assert dedup.find("orders", b"id", 159) is not None
    assert dedup.find("orders", b"id", 160) is None
