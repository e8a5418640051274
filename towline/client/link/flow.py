"""Steps that a flow asks of its driver.

A flow is a generator: it holds all of an operation but the moving of bytes. It yields a step and is sent its result, or
has its error thrown in. Both drivers run the same flows:

    Call              ask, wait for the answer, and give it; raises the broker's error, or `Unavailable` in the end
    Start(call)       ask, but do not wait
    Wait(call, s)     wait up to `s` seconds for a call that was started; True when it is answered
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

import msgspec

from towline.client.link.connection import Call
from towline.errors import ProtocolError
from towline.protocol.messages import Answer, Request

__all__ = ["Flow", "Start", "Step", "Wait", "ask", "drive", "drive_later"]

S = TypeVar("S")
T = TypeVar("T")
A = TypeVar("A", bound=Answer)


# Structs, which are made faster than named tuples: there are a few for every message.


class Start(msgspec.Struct, frozen=True, eq=False, gc=False):
    call: Call


class Wait(msgspec.Struct, frozen=True, eq=False, gc=False):
    call: Call
    seconds: float


Step = Call | Start | Wait
Flow = Generator[Step, Any, T]


def ask(request: Request, expected: type[A], call: Call | None = None) -> Flow[A]:
    """The flow of one request, whose answer is of this kind."""
    answer = yield call or Call(request)
    if not isinstance(answer, expected):
        raise ProtocolError(f"{type(request).__name__} was answered by {type(answer).__name__}")
    return answer


def drive(steps: Generator[S, Any, T], do: Callable[[S], Any]) -> T:
    """Run all steps, one after the other."""
    result, error = None, None
    try:
        while True:
            step = steps.send(result) if error is None else steps.throw(error)
            result = error = None
            try:
                result = do(step)
            except BaseException as caught:
                error = caught
    except StopIteration as stop:
        value: T = stop.value
        return value


async def drive_later(steps: Generator[S, Any, T], do: Callable[[S], Awaitable[Any]]) -> T:
    result, error = None, None
    try:
        while True:
            step = steps.send(result) if error is None else steps.throw(error)
            result = error = None
            try:
                result = await do(step)
            except BaseException as caught:
                error = caught
    except StopIteration as stop:
        value: T = stop.value
        return value
