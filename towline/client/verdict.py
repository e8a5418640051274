"""What a handler may raise to say what is to become of its message."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Final

from towline.client.message import Message

__all__ = ["Reject", "Retry", "describe", "settle"]

_TEXT_MAX: Final = 500
_REASON_MAX: Final = 2000
_FRAMES: Final = 6


class Retry(Exception):
    """Not now: deliver the message again after `delay` seconds, or when the group's retry policy says.

    raise towline.Retry(delay=60)
    """

    def __init__(self, reason: str = "", *, delay: float | None = None) -> None:
        super().__init__(reason or "the handler asked for another try")
        self.delay = delay


class Reject(Exception):
    """Never: the message goes straight to the dead letters.

    raise towline.Reject("no such customer")
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler rejected it")


def settle(messages: Sequence[Message], error: BaseException | None) -> None:
    """Ack or nack what the handler did not settle by itself."""
    reason = "" if error is None else describe(error)
    for message in messages:
        if message.settled:
            continue
        if error is None:
            message.ack()
        elif isinstance(error, Retry):
            message.nack(str(error), error.delay)
        elif isinstance(error, Reject):
            message.dead(str(error))
        else:
            message.nack(reason)


def describe(error: BaseException) -> str:
    """The type and the text of an exception, and the innermost frames of its stack."""
    text = f"{type(error).__name__}: {error}"[:_TEXT_MAX]
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    stack = "".join(f"\n  {frame.filename}:{frame.lineno} {frame.name}: {frame.line or ''}" for frame in frames)
    return text + stack[-(_REASON_MAX - len(text)) :]
