"""The size of a pull, adapted to the speed of the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from towline.client.link.connection import Call
from towline.errors import BadRequest
from towline.protocol.messages import Pull, Pulled

__all__ = ["PullLimits", "PullSize", "fits", "is_behind", "is_full", "stands"]

_SLOW_S: Final = 0.5
_QUICK_S: Final = 0.1
_FIRST_SIZE: Final = 128
_BRISK_S: Final = 0.001
_CLOSE_S: Final = 0.01
_STANDING: Final = 64
_BEHIND: Final = 8


class PullLimits(NamedTuple):
    """The limits of one pull."""

    max_messages: int = 1000
    max_bytes: int = 4 << 20
    min_messages: int = 1
    adapts: bool = False
    """It brings fewer messages while the handler is slow."""

    def asked(self, max_messages: int | None, max_bytes: int | None, min_messages: int) -> PullLimits:
        """These limits, as far as one pull does not ask for others."""
        messages = self.max_messages if max_messages is None else max_messages
        size = self.max_bytes if max_bytes is None else max_bytes
        return PullLimits(messages, size, min_messages, max_messages is None).checked()

    def checked(self) -> PullLimits:
        for name, value in self._asdict().items():
            if not isinstance(value, int):
                raise TypeError(f"{name} is an int, not {type(value).__name__}")
        if not 1 <= self.max_messages <= 1_000_000:
            raise BadRequest(f"max_messages={self.max_messages}: give a number from 1 to 1,000,000")
        if not 1 <= self.max_bytes <= 1 << 30:
            raise BadRequest(f"max_bytes={self.max_bytes}: give a number from 1 to {1 << 30}")
        if not 1 <= self.min_messages <= self.max_messages:
            raise BadRequest(f"min_messages={self.min_messages}: give a number from 1 to max_messages")
        return self


class PullSize:
    """The number of messages to ask for: more at a time while the handler is quick, less when it is slow, because
    messages that wait here are kept from others. And the number of answers: while messages come one by one, each soon
    after the other, and the handler is done before the next, a pull stands, so that the next message need not wait for
    it."""

    __slots__ = ("_full", "_handed_out_at", "_last", "_limits", "answers", "size")

    def __init__(self, limits: PullLimits) -> None:
        self.size = min(limits.max_messages, _FIRST_SIZE)
        self._limits = limits
        self._handed_out_at = 0.0
        self._full = False
        self._last = 0.0
        self.answers = 1

    def handed_out(self, now: float, count: int, *, one_by_one: bool = False) -> None:
        """The handler begins with a batch; or with a single message, which it had to wait for."""
        self._full = 2 * count >= self.size
        self.answers = _STANDING if one_by_one and now - self._last < _CLOSE_S else 1
        self._last = now
        self._handed_out_at = now

    def asked(self, now: float) -> None:
        """The handler asks for the next message or batch, or is done with the one it has."""
        if not self._handed_out_at:
            return
        took_s = now - self._handed_out_at
        if took_s > _BRISK_S:
            self.answers = 1
        # A quick handler of a few messages may be slow with many.
        if took_s < _QUICK_S and self._full:
            self.size = min(self.size * 2, self._limits.max_messages)
        elif took_s > _SLOW_S:
            self.size = max(self.size // 2, 1, self._limits.min_messages)
        self._handed_out_at = 0.0


def is_behind(waiting: Sequence[Call]) -> bool:
    """Answers of a standing pull have piled up: a batch is better than those one by one."""
    return len(waiting) > _BEHIND and stands(waiting[-1])


def stands(call: Call) -> bool:
    """Whether a pull stands: it may be answered again, and nothing but another pull ends it at once."""
    request = call.request
    assert isinstance(request, Pull)
    return request.answers > 1 and not call.done


def fits(call: Call, limits: PullLimits) -> bool:
    """Whether a pull brings no more than these limits, or has brought no more."""
    request, answer = call.request, call.answer
    assert isinstance(request, Pull)
    if isinstance(answer, Pulled):
        return sum([part.count for part in answer.parts]) <= limits.max_messages
    return request.max_messages <= limits.max_messages


def is_full(call: Call) -> bool:
    """Whether more is waiting, most likely. Where it is not, the message at hand is better off without a request before
    it, and the next pull can carry its ack."""
    request, answer = call.request, call.answer
    assert isinstance(request, Pull)
    assert isinstance(answer, Pulled)
    count = size = 0
    for part in answer.parts:
        count += part.count
        size += part.length
    return 2 * count >= request.max_messages or 2 * size >= request.max_bytes
