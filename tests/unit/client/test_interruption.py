"""A thread is interrupted where it can bear it, and until it takes notice."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import towline
from towline.client.consume.interruption import _WATCH, Interruption
from towline.client.consume.time_limit import HandlerTimeout

LIMIT_S = 0.05


class Stop(BaseException):
    pass


class Thing:
    pass


def interrupted(work: Callable[[], object]) -> bool:
    """Whether this work is interrupted: it never ends by itself. Nothing is raised after it."""
    interruption = Interruption(Stop, sys._getframe())
    interruption.start(time.monotonic() + LIMIT_S)
    try:
        work()
    except Stop:
        interruption.end()
        spin(2 * LIMIT_S)
        return True
    finally:
        interruption.end()
    return False


def spin(seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.001)


def test_what_a_callback_swallows_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    swallowed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda about: swallowed.append(about.exc_type))

    def work() -> None:
        thing = Thing()
        _watched = weakref.ref(thing, lambda _: spin())
        del thing
        spin()

    assert interrupted(work)
    assert swallowed == [Stop]


def test_what_the_work_catches_is_raised_again() -> None:
    caught: list[bool] = []

    def work() -> None:
        while len(caught) < 2:
            try:
                spin()
            except Stop:
                caught.append(True)
        spin()

    assert interrupted(work)
    assert len(caught) == 2


def test_who_tidies_up_is_left_in_peace() -> None:
    tidied = []

    def work() -> None:
        try:
            spin()
        except Stop:
            try:
                raise KeyError
            finally:
                spin(0.5)
                tidied.append("within")

    def outer() -> None:
        try:
            work()
        except KeyError:
            spin(0.5)
            tidied.append("outside")
            raise

    with pytest.raises(KeyError):
        interrupted(outer)
    assert tidied == ["within", "outside"]


def test_nothing_is_raised_inside_the_client() -> None:
    """A pull is on its way when the time is over: it comes back, and the client goes on as if nothing had been."""
    got: list[bytes] = []
    with towline.connect("memory:") as mq, mq.consumer("other", group="g") as other:

        def send() -> None:
            time.sleep(6 * LIMIT_S)
            mq.send("other", b"x")

        def work() -> None:
            got.extend(other.pull(wait=30).bodies())
            spin()

        sending = threading.Thread(target=send)
        sending.start()
        assert interrupted(work)
        sending.join()
        assert got == [b"x"]
        mq.send("other", b"y")
        assert other.pull(wait=30).bodies() == [b"y"]


def test_a_message_is_settled_however_its_time_ends() -> None:
    """The end of the work and the end of the time come together, again and again: none is lost, none left open, and
    whoever comes next is not interrupted."""
    with towline.connect("memory:") as mq:
        mq.send_many("t", [b"x"] * 100, timeout=0.002)
        with mq.consumer("t", group="g", retry=towline.RetryPolicy(100, (0.0,)), idle_timeout=5.0) as consumer:
            for number, message in enumerate(consumer):
                try:
                    with message:
                        end = time.monotonic() + 0.0018 + number % 40 / 100_000
                        while message.attempt < 3 and time.monotonic() < end:
                            pass
                except HandlerTimeout:
                    pass
                assert message.settled
                if number >= 100 and number % 10 == 0:
                    consumer.flush()
                    if mq.group("t", "g").lag == 0:
                        break


@contextmanager
def wrapped(message: towline.Message) -> Iterator[towline.Message]:
    with message:
        yield message


@pytest.mark.parametrize("how", ["stack", "generator"])
def test_work_outside_of_the_frame_that_began_it_is_interrupted(how: str) -> None:
    with towline.connect("memory:") as mq, mq.consumer("t", group="g") as consumer:
        mq.send("t", b"x", timeout=LIMIT_S)
        [message] = consumer.pull(wait=30)

        def work() -> None:
            with ExitStack() as stack:
                stack.enter_context(message if how == "stack" else wrapped(message))
                spin()

        with pytest.raises(HandlerTimeout):
            work()
        assert message.settled


async def test_coroutines_beside_the_work_are_not_interrupted() -> None:
    with towline.connect("memory:") as mq, mq.consumer("t", group="g") as consumer:
        mq.send("t", b"x", timeout=LIMIT_S)
        [message] = consumer.pull(wait=30)
        others = threading.Event()

        async def work() -> None:
            with message:
                await asyncio.sleep(6 * LIMIT_S)
                others.wait(30)
                spin()

        working = asyncio.create_task(work())
        await asyncio.sleep(0)
        spin(4 * LIMIT_S)
        others.set()
        with pytest.raises(HandlerTimeout):
            await working


def test_work_that_ended_long_before_its_time_is_forgotten() -> None:
    for _ in range(20_000):
        interruption = Interruption(Stop, sys._getframe())
        interruption.start(time.monotonic() + 3600)
        interruption.end()
    assert len(_WATCH) < 5_000
