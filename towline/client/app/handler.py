"""A handler: a function for the messages of a topic, and its options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

from towline.errors import BadRequest
from towline.model import RetryPolicy, check_consumer, check_group, check_topics

__all__ = ["Handler", "batch_size"]

_BATCH: Final = 100


class Handler(NamedTuple):
    function: Callable[[Any], Any]
    topic: str
    group: str | None
    name: str | None
    concurrency: int
    timeout_s: float | None
    retry: RetryPolicy | None
    batch: int
    """The most messages of one call; 0 for a handler of single messages."""
    max_messages: int
    max_stuck: int
    start: Literal["earliest", "latest"] | None
    mode: Literal["at-least-once", "at-most-once"]

    @property
    def label(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))

    @property
    def is_async(self) -> bool:
        function = self.function
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004

    def checked(self) -> Handler:
        check_topics(self.topic)
        if self.group is not None:
            check_group(self.group)
        if self.name is not None:
            check_consumer(self.name)
        if not callable(self.function):
            raise TypeError(f"a handler of {self.topic} is a function, not {type(self.function).__name__}")
        if not 1 <= self.concurrency <= 10_000:
            raise self._wrong(f"concurrency={self.concurrency}: give a number from 1 to 10,000")
        if self.timeout_s is not None and not 0 < self.timeout_s <= 86400:
            raise self._wrong(f"timeout={self.timeout_s}: give seconds, more than 0 and up to 86,400")
        if not 0 <= self.batch <= 100_000:
            raise self._wrong(f"batch={self.batch}: give True, or a number from 1 to 100,000")
        if not 1 <= self.max_messages <= 100_000:
            raise self._wrong(f"max_messages={self.max_messages}: give a number from 1 to 100,000")
        if not 1 <= self.max_stuck <= 1_000:
            raise self._wrong(f"max_stuck={self.max_stuck}: give a number from 1 to 1,000")
        return self

    def _wrong(self, text: str) -> BadRequest:
        return BadRequest(f"handler {self.label} of topic {self.topic}: {text}")


def batch_size(batch: bool | int) -> int:
    """The value of `batch=`: False single messages, True up to 100 at a time, a number up to so many."""
    if batch is True:
        return _BATCH
    return -1 if batch is not False and batch < 1 else int(batch)
