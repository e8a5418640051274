"""Orderly stop: SIGINT and SIGTERM end a loop between two steps, never within one."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Stop"]


class Stop:
    """While entered, the first signal only raises a flag; a second one interrupts whatever is going on."""

    def __init__(self) -> None:
        self._flag = threading.Event()
        self._number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._flag.is_set():
            raise KeyboardInterrupt
        self._number = number
        self._flag.set()

    def __bool__(self) -> bool:
        return self._flag.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep, or until a signal."""
        return self._flag.wait(seconds)

    @property
    def exit_code(self) -> int:
        """A signal is how a service ends, so SIGTERM is a success; Ctrl-C has a shell's exit code."""
        return 130 if self._number == signal.SIGINT else 0
