"""How much one pull may bring."""

from __future__ import annotations

from typing import NamedTuple

from towline.client.connection import Call
from towline.errors import BadRequest
from towline.protocol.messages import Pull, Pulled

__all__ = ["Limits", "is_full"]


class Limits(NamedTuple):
    """How much one pull may bring."""

    max_messages: int = 1000
    max_bytes: int = 4 << 20
    min_messages: int = 1

    def asked(self, max_messages: int | None, max_bytes: int | None, min_messages: int) -> Limits:
        """These limits, as far as one pull does not ask for others."""
        messages = self.max_messages if max_messages is None else max_messages
        return Limits(messages, self.max_bytes if max_bytes is None else max_bytes, min_messages).checked()

    def checked(self) -> Limits:
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


def is_full(call: Call) -> bool:
    """More is waiting, most likely. Where it is not, the message at hand is better off without a request before it, and
    the next pull can carry its ack."""
    request, answer = call.request, call.answer
    assert isinstance(request, Pull)
    assert isinstance(answer, Pulled)
    count, size = sum(part.count for part in answer.parts), sum(part.length for part in answer.parts)
    return 2 * count >= request.max_messages or 2 * size >= request.max_bytes
