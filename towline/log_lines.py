"""Lines of a log or a terminal, with texts of others escaped.

A nack's reason, the name of a transaction or of a client comes from whoever sent it. In a line of a log it must not
begin a line of its own, nor give orders to the terminal that shows it, nor turn the text around.
"""

from __future__ import annotations

import logging
import re
import sys
from types import TracebackType
from typing import Final

__all__ = ["LineFormatter", "RateLimitedLog", "harmless", "log_to_stderr"]

_CONTROL: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL and C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # which way text runs
    "\u2028\u2029"  # line ends elsewhere
    "\ud800-\udfff]"  # half characters: no stream takes them
)
_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def harmless(text: str, allowed: str = "") -> str:
    """The text without control characters, but for those `allowed`: they are written as Python writes them."""
    return _CONTROL.sub(lambda match: match[0] if match[0] in allowed else _escaped(ord(match[0])), text)


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class LineFormatter(logging.Formatter):
    """One line for each record. A traceback follows in lines of its own, indented, since an error in it may have been
    worded by others: only what begins a line is a record."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging calls
        return harmless(super().formatMessage(record))

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join("  " + harmless(line) for line in text.split("\n"))


def log_to_stderr(level: str, formatter: LineFormatter, *, force: bool = True) -> None:
    """Log to stderr; unless `force` is given, only if no handler is set."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=force)


class RateLimitedLog:
    """A logger with so many lines a minute, which then logs how many it left out: strangers must not fill the disk."""

    def __init__(self, logger: logging.Logger, per_minute: int = 20) -> None:
        self._logger = logger
        self._per_minute = per_minute
        self._minute = -1
        self._lines = 0
        self._left_out = 0

    def say(self, now_s: float, level: int, message: str, *arguments: object) -> None:
        minute = int(now_s // 60)
        if minute != self._minute:
            if self._left_out:
                self._logger.log(level, "%d more lines like these were left out", self._left_out)
            self._minute, self._lines, self._left_out = minute, 0, 0
        if self._lines < self._per_minute:
            self._lines += 1
            self._logger.log(level, message, *arguments)
        else:
            self._left_out += 1
