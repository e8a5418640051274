"""A worker process of the soak, `python -m bench.soak.worker`, and its other end.

It reads its task from stdin, goes round after round at its pace, and writes a note every few seconds, until stdin
ends: so it ends with whoever started it, whatever ends that."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import IO, Final

import msgspec

from bench.soak.task import Note, Span, Task

__all__ = ["Worker", "main"]

NOTE_S: Final = 2.0
PAUSE_S: Final = 1.0
"""After a failure."""
SLOW_MS: Final = {"sleep": 5.0, "disk": 5.0}
"""What is shorter is not noted, for there is too much of it."""
END_S: Final = 15.0

_NOTES: Final = msgspec.json.Decoder(Note)


class Worker:
    def __init__(self, task: Task) -> None:
        self.role = task.role
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin: IO[bytes] = self.process.stdin
        self.notes: IO[bytes] = self.process.stdout
        self._rest = b""
        self._stdin.write(msgspec.json.encode(task) + b"\n")

    def hear(self) -> list[Note] | None:
        """The notes that have come; None when it has ended."""
        data = os.read(self.notes.fileno(), 1 << 20)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [_NOTES.decode(line) for line in lines]

    def stop(self) -> None:
        """Let it end with its round."""
        self._stdin.close()

    def close(self) -> None:
        self._stdin.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.notes.close()


class _Notebook:
    """What is to be noted, until it is."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._done = 0
        self._failures: Counter[str] = Counter()
        self._spans: list[Span] = []
        self._least_ms = SLOW_MS.get(role, 0.0)
        self._next_s = time.monotonic() + NOTE_S

    def add(self, result: Span | int) -> None:
        if isinstance(result, int):
            self._done += result
            return
        self._done += 1
        if result.ms >= self._least_ms:
            self._spans.append(result)

    def fail(self, error: Exception) -> None:
        self._failures[f"{type(error).__name__}: {error}"[:200]] += 1

    def tell(self, *, ready: bool = False, now: bool = False) -> None:
        if not (ready or now or time.monotonic() >= self._next_s):
            return
        self._next_s = time.monotonic() + NOTE_S
        note = Note(role=self._role, done=self._done, failures=self._failures, spans=self._spans, ready=ready)
        sys.stdout.buffer.write(msgspec.json.encode(note) + b"\n")
        sys.stdout.buffer.flush()
        self._done, self._failures, self._spans = 0, Counter(), []


def main() -> None:
    # Here and not above, so that the other end, which only needs the name of this module, does not load a client.
    from bench.soak.loads import LOADS
    from bench.soak.probes import PROBES

    # Ctrl-C reaches all processes of a terminal; whoever started us decides what to do about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=Task)
    per_s, make = (PROBES | LOADS)[task.role]  # type: ignore[operator]
    if task.role == "dedup ids":
        per_s = task.dedup_ids / task.window_s / 100
    notebook = _Notebook(task.role)
    notebook.tell(ready=True)
    rounds: Iterator[Span | int] = make(task)
    next_s = time.monotonic()
    while not _is_over(next_s):
        try:
            notebook.add(next(rounds))
        except Exception as error:
            notebook.fail(error)
            rounds = make(task)
            next_s = time.monotonic() + PAUSE_S
        else:
            # What was missed is not made up for.
            next_s = max(next_s + 1 / per_s, time.monotonic()) if per_s else 0.0
        notebook.tell()
    rounds.close()  # type: ignore[attr-defined]
    notebook.tell(now=True)


def _is_over(until_s: float) -> bool:
    """Wait until then; whether stdin has ended."""
    readable, _, _ = select.select([sys.stdin], [], [], max(0.0, until_s - time.monotonic()))
    return bool(readable)


if __name__ == "__main__":
    main()
