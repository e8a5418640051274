"""Errors as users of Spark see them: the cause in one sentence, without our own stack below it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from towline.errors import TowlineError, from_code

__all__ = ["plainly"]


@contextmanager
def plainly() -> Iterator[None]:
    """Spark prints whole tracebacks of Python errors, of which ours is the longest part and tells users nothing."""
    try:
        yield
    except TowlineError as error:
        raise from_code(error.code, str(error)) from None
