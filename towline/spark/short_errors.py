"""Errors as users of Spark see them: the cause in one sentence, without our own stack below it."""

from __future__ import annotations

from types import TracebackType

from towline.errors import TowlineError, from_code

__all__ = ["short_errors"]


class short_errors:  # noqa: N801 it is used as a word of a sentence
    """Spark prints whole tracebacks of Python errors, of which ours is the longest part and useless to users."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, TowlineError):
            raise from_code(error.code, str(error)) from None
