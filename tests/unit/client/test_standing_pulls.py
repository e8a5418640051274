"""Consumers whose pulls stand while messages come one by one: what is asked and told, without any socket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import pytest

from tests.client.peer import pulled
from tests.unit.client.test_connection import WELCOME, Wire
from towline.client.consume.lease import Lease
from towline.client.consume.pull_size import PullLimits, PullSize
from towline.client.consume.subscription import Subscription
from towline.client.link.connection import Call, Connection
from towline.client.link.flow import Flow, Start, Step, Wait
from towline.errors import Unavailable
from towline.model import GroupConfig
from towline.protocol.consume import GIVE_BACK
from towline.protocol.messages import Act, Attached, Pull, Pulled, Request, Settle, Settled, Stat

R = TypeVar("R", bound=Request)
LIMITS = PullLimits(max_messages=1000)


class Desk:
    """A consumer whose clock stands still, and the broker's end of its connection."""

    def __init__(
        self, topic: str = "t", *, shards: int = 0, prefetch: int = 1, limits: PullLimits = LIMITS, **config: Any
    ) -> None:
        self.now = 1000.0
        group = GroupConfig("t", "g", **config)
        self.subscription = Subscription(
            topic,
            "g",
            "c",
            group,
            unique=True,
            timeout_s=10.0,
            limits=limits,
            prefetch=prefetch,
            idle_timeout_s=None,
            ack_interval_s=0.1,
            on_lost=None,
            clock=lambda: self.now,
        )
        self.subscription.attached(Attached(1, [], group, shards))
        self.connection = Connection()
        self.connect()

    def connect(self) -> None:
        self.wire = Wire(self.connection)
        self.wire.answer(WELCOME)

    def asked(self, kind: type[R]) -> list[R]:
        return [request for _, request, _ in self.wire.asked if isinstance(request, kind)]

    def answer(self, pull: int, bodies: Sequence[bytes] = (), *, more: bool = False, which: int = -1) -> None:
        """To the last pull, or to another."""
        answer, frame = pulled(pull, bodies, first=pull) if bodies else (Pulled(0, []), b"")
        at = [at for at, (_, request, _) in enumerate(self.wire.asked) if isinstance(request, Pull)][which]
        self.wire.answer(msgspec.structs.replace(answer, more=more), at, frame)

    def next(self) -> Work:
        return Work(self, self.subscription.next())

    def pull(self, most: int | None = None, wait_s: float = 1.0, least: int = 1) -> Work:
        return Work(self, self.subscription.pull(self.subscription.limits.asked(most, None, least), wait_s))

    def stand(self) -> None:
        """Two messages come quickly; the pull behind them stands, and has brought a third."""
        for number in (1, 2, 3):
            work = self.next()
            self.answer(number, [b"%d" % number], more=number == 3)
            ack(work.lease)
        assert [request.answers > 1 for request in self.asked(Pull)] == [False, False, True]
        self.now += 0.1


class Work:
    """A flow, as far as it gets without an answer."""

    def __init__(self, desk: Desk, flow: Flow[Lease | None]) -> None:
        self._desk = desk
        self._flow = flow
        self.waits: Wait | None = None
        self.over = False
        self.found: Lease | None = None
        self._go_on(None)

    def _go_on(self, result: bool | None) -> None:
        self.waits = None
        try:
            step: Step = self._flow.send(result)
            while self.waits is None:
                if isinstance(step, Wait):
                    if not step.call.done:
                        self.waits = step
                        return
                    step = self._flow.send(True)
                else:
                    assert isinstance(step, Start)
                    self._desk.wire.submit(step.call)
                    step = self._flow.send(None)
        except StopIteration as stop:
            self.over, self.found = True, stop.value

    def is_late(self) -> None:
        """What it waits for does not come in time."""
        assert self.waits is not None
        self._desk.now += self.waits.seconds
        self._go_on(False)

    @property
    def lease(self) -> Lease:
        """What it found, once it was answered."""
        while not self.over and self.waits is not None and self.waits.call.done:
            self._go_on(True)
        assert self.found is not None, self.waits
        return self.found

    @property
    def bodies(self) -> list[bytes]:
        return self.lease.bodies()


def ack(lease: Lease) -> None:
    for message in lease.messages():
        message.ack()


def acked(desk: Desk) -> list[int]:
    return [act.pull for request in desk.asked(Settle) for act in request.acts]


# PullSize


def test_answers_are_asked_for_while_messages_are_handed_out_one_by_one_in_quick_succession() -> None:
    appetite = PullSize(LIMITS)
    assert appetite.answers == 1
    appetite.handed_out(100.0, 1, one_by_one=True)
    assert appetite.answers == 1, "one is no succession"
    appetite.asked(100.0001)
    appetite.handed_out(100.005, 1, one_by_one=True)
    appetite.asked(100.0051)
    assert appetite.answers > 1
    appetite.handed_out(100.006, 2)
    assert appetite.answers == 1, "that was a batch, or lay there already"
    appetite.asked(100.0061)
    appetite.handed_out(100.007, 1, one_by_one=True)
    assert appetite.answers > 1
    appetite.handed_out(100.1, 1, one_by_one=True)
    assert appetite.answers == 1, "that was a while"


def test_a_slow_handler_gets_one_answer_at_a_time() -> None:
    appetite = PullSize(LIMITS)
    for number in range(10):
        appetite.handed_out(100 + number * 0.005, 1)
        appetite.asked(100 + number * 0.005 + 0.003)
        assert appetite.answers == 1


def test_who_is_quick_with_a_few_messages_is_not_given_many() -> None:
    appetite = PullSize(LIMITS)
    first = appetite.size
    for number in range(10):
        appetite.handed_out(100.0 + number, 3)
        appetite.asked(100.01 + number)
    assert appetite.size == first
    appetite.handed_out(200.0, first)
    appetite.asked(200.01)
    assert appetite.size == 2 * first


# Pulls without a number


def _pull_and_work(desk: Desk, number: int, each_s: float) -> int:
    """How many messages were asked for; all of them came, and each took so long."""
    work = desk.pull()
    asked = desk.asked(Pull)[-1].max_messages
    desk.answer(number, [b"x"] * asked)
    lease = work.lease
    desk.now += each_s * asked
    ack(lease)
    return asked


def test_a_pull_asks_for_less_while_its_caller_is_slow_and_for_more_while_it_is_quick() -> None:
    desk = Desk()
    slow = [_pull_and_work(desk, number, 0.02) for number in range(1, 6)]
    assert slow == [128, 64, 32, 16, 16], "about half a second's worth"
    quick = [_pull_and_work(desk, number, 0.0001) for number in range(6, 14)]
    assert quick == [16, 32, 64, 128, 256, 512, 1000, 1000], "up to what the consumer was made with"


def test_a_pull_that_is_told_how_many_asks_for_that_many() -> None:
    desk = Desk()
    for number in range(1, 4):
        work = desk.pull(700)
        desk.answer(number, [b"x"] * 700)
        ack(work.lease)
        desk.now += 10.0
    assert [request.max_messages for request in desk.asked(Pull)] == [700, 700, 700]


def test_a_pull_asks_for_as_many_as_it_is_to_bring_at_least() -> None:
    desk = Desk()
    desk.pull(None, least=500)
    [request] = desk.asked(Pull)
    assert (request.max_messages, request.min_messages) == (500, 500)


def test_who_rests_between_two_pulls_is_not_slow() -> None:
    desk = Desk()
    for number in range(1, 5):
        asked = _pull_and_work(desk, number, 0.0001)
        for step in desk.subscription.start_settles():  # as the heartbeat does
            assert isinstance(step, Start)
            desk.wire.submit(step.call)
        desk.now += 60.0
    assert asked == 1000


# Iteration


def test_what_comes_under_one_number_is_handed_out_in_order_and_nothing_is_asked_meanwhile() -> None:
    desk = Desk()
    desk.stand()
    for number in range(4, 10):
        desk.answer(number, [b"%d" % number], more=number < 9)
    seen = [desk.next().bodies for _ in range(4, 10)]
    assert seen == [[b"%d" % number] for number in range(4, 10)]
    assert len(desk.asked(Pull)) == 3
    desk.next()
    assert len(desk.asked(Pull)) == 4, "the last answer was the last"


def test_an_empty_answer_ends_it_and_the_next_pull_is_asked() -> None:
    desk = Desk()
    desk.stand()
    work = desk.next()
    desk.answer(0)
    work._go_on(True)
    assert not work.over
    assert len(desk.asked(Pull)) == 4
    desk.answer(4, [b"4"])
    assert work.bodies == [b"4"]


def test_acks_wait_a_moment_for_company_and_are_told_together() -> None:
    desk = Desk()
    desk.stand()
    ack(_come(desk, 4))
    desk.next()
    assert acked(desk) == [2, 3, 4], "it was a while since anything was told; the first went with the second pull"
    for number in (5, 6):
        desk.answer(number, [b"x"], more=True)
        ack(desk.next().lease)
    work = desk.next()
    assert acked(desk)[3:] == []
    assert work.waits is not None
    assert work.waits.seconds <= 0.005
    work.is_late()
    assert acked(desk)[3:] == [5, 6]
    assert len(desk.asked(Pull)) == 3


def _come(desk: Desk, number: int) -> Lease:
    desk.answer(number, [b"x"], more=True)
    return desk.next().lease


def test_a_group_that_gives_little_at_a_time_is_told_of_acks_at_once() -> None:
    desk = Desk(max_in_flight=1)
    desk.stand()
    ack(_come(desk, 4))
    desk.next()
    told = len(acked(desk))
    ack(_come(desk, 5))
    desk.next()
    assert len(acked(desk)) == told + 1, "nothing comes before this is told"


@pytest.mark.parametrize(
    "options", [{"prefetch": 0}, {"shards": 4}, {"topic": "t.*"}, {"mode": "at-most-once"}], ids=str
)
def test_where_nothing_may_come_ahead_no_pull_stands(options: dict[str, Any]) -> None:
    desk = Desk(**options)
    for number in range(1, 10):
        work = desk.next()
        desk.answer(number, [b"x"])
        assert work.bodies == [b"x"]
    assert [request.answers for request in desk.asked(Pull)] == [1] * 9


def test_no_pull_stands_of_which_each_answer_would_be_a_full_one() -> None:
    desk = Desk(limits=PullLimits(max_messages=2))
    for number in range(1, 10):
        work = desk.next()
        desk.answer(number, [b"x"], which=number - 1)
        assert work.bodies == [b"x"]
    assert {request.answers for request in desk.asked(Pull)} == {1}


def test_what_nobody_looked_at_is_given_back_at_the_end() -> None:
    desk = Desk()
    desk.stand()
    for number in (4, 5):
        desk.answer(number, [b"x"], more=True)
    closing = desk.subscription.close()
    step = next(closing)
    assert isinstance(step, Start)
    settle = step.call.request
    assert isinstance(settle, Settle)
    assert [act.pull for act in settle.acts if act.what == GIVE_BACK] == [4, 5]
    assert [act.pull for act in settle.acts if act.what != GIVE_BACK] == [3]


# Pulling for oneself


def test_a_pull_for_less_ends_one_that_stands() -> None:
    desk = Desk()
    desk.stand()
    work = desk.pull(10)
    assert [(pull.max_messages, pull.answers) for pull in desk.asked(Pull)[3:]] == [(10, 1)]
    desk.answer(0, which=2)
    desk.answer(4, [b"4"])
    work._go_on(True)
    assert work.bodies == [b"4"]
    again = desk.pull(10)
    assert len(desk.asked(Pull)) == 5
    desk.answer(5, [b"5"])
    assert again.bodies == [b"5"]


def test_what_came_before_it_was_ended_is_handed_out_first() -> None:
    desk = Desk()
    desk.stand()
    work = desk.pull(10)
    desk.answer(4, [b"4"], more=True, which=2)
    assert work.bodies == [b"4"]
    again = desk.pull(10)
    desk.answer(0, which=2)
    desk.answer(5, [b"5"])
    again._go_on(True)
    assert again.bodies == [b"5"]
    assert len(desk.asked(Pull)) == 4


def test_what_came_before_it_was_ended_and_is_too_much_is_given_back_at_once() -> None:
    desk = Desk()
    desk.stand()
    work = desk.pull(1)
    desk.answer(4, [b"4", b"5"], which=2)
    work._go_on(True)
    assert not work.over
    [back] = [act for request in desk.asked(Settle) for act in request.acts if act.what == GIVE_BACK]
    assert back.pull == 4, "else nobody would have it while this one waits"
    desk.answer(6, [b"4"])
    assert work.bodies == [b"4"]


def test_a_pull_that_does_not_wait_still_learns_what_there_is() -> None:
    desk = Desk()
    desk.stand()
    work = desk.pull(10, wait_s=0.0)
    assert work.waits is not None
    assert work.waits.seconds > 1, "for the end of the one that stood, which is at hand"
    desk.answer(0, which=2)
    desk.answer(4, [b"4"])
    work._go_on(True)
    assert work.bodies == [b"4"]


def test_a_pull_for_as_much_takes_what_the_one_that_stands_brings() -> None:
    desk = Desk()
    desk.stand()
    work = desk.pull(1000)
    desk.answer(4, [b"4"], more=True)
    assert work.bodies == [b"4"]
    assert len(desk.asked(Pull)) == 3


# Broken connections


def test_on_a_new_connection_it_is_asked_again_without_its_acts() -> None:
    desk = Desk()
    answers: list[int] = []
    call = Call(Pull(1, 10, 1000, 1000, 1, [Act(0, 77)], 5), on_done=lambda one: answers.append(one.answer.pull))
    desk.wire.submit(call)
    desk.answer(4, [b"4"], more=True)
    number = desk.wire.asked[-1][0]
    desk.connection.broken(ConnectionResetError())
    desk.connect()
    assert desk.wire.asked[-1][:2] == (number, Pull(1, 10, 1000, 1000, 1, [], 5))
    desk.answer(5, [b"5"], more=True)
    desk.answer(6, [b"6"])
    assert answers == [4, 5, 6]
    assert desk.connection.unanswered == 0


def test_more_to_come_makes_sense_for_pulls_only() -> None:
    desk = Desk()
    call = Call(Stat())
    desk.wire.submit(call)
    desk.wire.answer(Pulled(0, [], more=True))
    assert call.done
    assert call.next is None
    assert desk.connection.unanswered == 0


def test_all_that_waits_fails_together() -> None:
    desk = Desk()
    desk.stand()
    work = desk.next()
    desk.connection.fail_all(Unavailable("gone"))
    with pytest.raises(Unavailable):
        work._go_on(True)
    assert desk.connection.unanswered == 0


def test_answers_to_acks_leave_nothing_behind() -> None:
    desk = Desk()
    desk.stand()
    for number in range(4, 40):
        ack(_come(desk, number))
        desk.now += 0.01
        desk.next()
        while desk.asked(Settle) and desk.subscription._settling:
            at = [at for at, (_, request, _) in enumerate(desk.wire.asked) if isinstance(request, Settle)]
            for one in at:
                desk.wire.answer(Settled(), one)
    assert not desk.subscription._leases
    assert len(desk.subscription._pulling) == 1


def test_what_piles_up_is_fetched_by_one_plain_pull_instead() -> None:
    desk = Desk()
    desk.stand()
    for number in range(4, 14):
        desk.answer(number, [b"%d" % number], more=True)
    seen = [b"".join(desk.next().lease.bodies()) for _ in range(10)]
    assert seen == [b"%d" % number for number in range(4, 14)]
    assert [request.answers > 1 for request in desk.asked(Pull)] == [False, False, True, False]
    desk.answer(0, which=-2)
    work = desk.next()
    desk.answer(14, [b"14", b"15"])
    assert work.lease.bodies() == [b"14", b"15"]
    desk.next()
    assert [request.answers > 1 for request in desk.asked(Pull)] == [False, False, True, False, False]


# At most once


def test_a_loop_over_messages_that_are_delivered_at_most_once_asks_for_one_at_a_time() -> None:
    desk = Desk(mode="at-most-once", limits=PullLimits(max_messages=1000, min_messages=5))
    for number in range(1, 4):
        work = Work(desk, desk.subscription.next(single=True))
        assert (desk.asked(Pull)[-1].max_messages, desk.asked(Pull)[-1].min_messages) == (1, 1)
        desk.answer(number, [b"x"])
        assert work.bodies == [b"x"]
    assert len(desk.asked(Pull)) == 3, "and asks for none before it is wanted"


def test_the_answer_of_an_interrupted_pull_that_cannot_be_given_back_is_handed_out_in_parts() -> None:
    desk = Desk(mode="at-most-once")
    desk.pull(100)  # and nobody waits for it any more
    desk.answer(1, [b"a", b"b", b"c", b"d", b"e"])
    assert desk.pull(2).bodies == [b"a", b"b"]
    assert Work(desk, desk.subscription.next(single=True)).bodies == [b"c"]
    rest = desk.pull(1000).lease
    assert [(message.body, message.seq) for message in rest.messages()] == [(b"d", 4), (b"e", 5)]
    assert len(desk.asked(Pull)) == 1
    assert not desk.asked(Settle), "nothing is given back"
