"""Exceptions by which a handler, or a `with message:` block, settles its message."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from towline.errors import BadRequest

if TYPE_CHECKING:
    from towline.client.consume.message import Message

__all__ = ["Reject", "Retry", "as_reason", "check_delay", "describe", "settle"]

_DELAY_MAX_S: Final = 366 * 86400
_TEXT_MAX: Final = 500
_REASON_MAX: Final = 1000
"""The part of a reason that brokers keep: the innermost frames, which are its end, must be within it."""
_FRAMES: Final = 6
_TOLD_MAX: Final = 2000


class Retry(Exception):
    """Not now: deliver the message again after `delay` seconds, or when the group's retry policy says.

    raise towline.Retry(delay=60)
    """

    def __init__(self, reason: str = "", *, delay: float | None = None) -> None:
        # Here, so that a wrong delay is an error of the handler like any other.
        check_delay(delay)
        super().__init__(reason or "the handler asked for another try")
        self.delay = delay


class Reject(Exception):
    """Never: the message goes straight to the dead letters.

    raise towline.Reject("no such customer")
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler rejected it")


def settle(messages: Sequence[Message], error: BaseException | None) -> None:
    """Ack or nack what is not settled yet, by the outcome of its handler: this error, or none."""
    reason = "" if error is None else describe(error)
    for message in messages:
        if message.settled or message.lost:
            continue
        if error is None:
            message.ack()
        elif isinstance(error, Retry):
            message.nack(str(error), error.delay)
        elif isinstance(error, Reject):
            message.dead(str(error))
        else:
            message.nack(reason)


def check_delay(delay_s: object) -> None:
    if delay_s is not None and not (isinstance(delay_s, int | float) and 0 <= delay_s <= _DELAY_MAX_S):
        raise BadRequest(f"a delay of {delay_s!r} seconds: give one between 0 and a year")


def as_reason(reason: str) -> str:
    """A reason as it can be sent: not too long, and without surrogates, as there are in names of files."""
    if not isinstance(reason, str):
        raise TypeError(f"a reason is a str, not {type(reason).__name__}")
    reason = reason[:_TOLD_MAX]
    return reason if reason.isascii() else reason.encode("utf-8", "replace").decode()


def describe(error: BaseException) -> str:
    """The type and the text of an exception, and the innermost frames of its stack."""
    text = f"{type(error).__name__}: {error}"[:_TEXT_MAX]
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    stack = "".join(f"\n  {frame.filename}:{frame.lineno} {frame.name}: {frame.line or ''}" for frame in frames)
    return text + stack[-(_REASON_MAX - len(text)) :]
