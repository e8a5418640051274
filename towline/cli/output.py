"""Output of the commands: data on stdout, everything else on stderr, decoration only on a terminal."""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, Protocol, TextIO

import msgspec
from cyclopts import Parameter

from towline.log_lines import harmless

__all__ = [
    "Format",
    "Output",
    "OutputFailed",
    "about",
    "ask",
    "fail",
    "figure",
    "first_line",
    "guarded",
    "many",
    "note",
    "print_json",
    "print_line",
    "print_pairs",
    "print_table",
    "progress",
    "size",
    "span",
    "stamp",
]

Format = Literal["text", "json"]
Output = Annotated[
    Format, Parameter(name=("--output", "-o"), help="text for people, json (one object per line) for programs.")
]

FITTED_MAX: Final = 1_000
"""More rows than that are not fitted to the terminal: it would take too long."""


class OutputFailed(OSError):
    """Stdout cannot be written; a closed pipe is not meant, for that is how a reader tells that it has seen enough."""

    def __str__(self) -> str:
        return f"cannot write the output: {self.strerror}"


class _Stdout(io.FileIO):
    """The descriptor of stdout. Its errors can be told from all others, and it waits where it would block."""

    def write(self, data: Any, /) -> int:
        try:
            while (count := super().write(data)) is None:
                select.select((), (self,), ())
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputFailed(error.errno, error.strerror) from None
        return count


def guarded(stdout: TextIO) -> TextIO:
    """The same stdout, with errors of its own and always with a buffer. Without one (PYTHONUNBUFFERED) a write may take
    a part of the bytes only, and a caller that ignores its answer loses the rest."""
    kind = stdout if isinstance(stdout, io.TextIOWrapper) else None
    return io.TextIOWrapper(
        io.BufferedWriter(_Stdout(stdout.fileno(), "wb", closefd=False)),
        encoding=stdout.encoding,
        errors=stdout.errors,
        line_buffering=kind is not None and (kind.line_buffering or kind.write_through),
    )


class Step(Protocol):
    """Called with the progress of the work and, once it is known, the whole."""

    def __call__(self, done: int, total: int | None = None, /) -> None: ...


def print_json(value: Any, *, flush: bool = True) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    if flush:
        sys.stdout.buffer.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Columns whose title begins with `#` are numbers, and lean to the right."""
    lines = [[harmless(str(cell)) for cell in row] for row in rows]
    if not lines:
        note(empty)
    elif sys.stdout.isatty() and len(lines) <= FITTED_MAX:
        _print_fitted(columns, lines)
    else:
        _print_plain(columns, lines)


def _print_fitted(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """For the width of the terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for title in columns:
        table.add_column(title.removeprefix("#"), justify="right" if title.startswith("#") else "left")
    for line in lines:
        table.add_row(*map(Text, line))
    Console(file=sys.stdout).print(table)


def _print_plain(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Whole values, however long the line: the reader of a pipe wants them, and ten thousand rows take no time."""
    from rich.cells import cell_len

    titles = [title.removeprefix("#") for title in columns]
    widths = [max(map(cell_len, column)) for column in zip(titles, *lines, strict=True)]
    for line in (titles, *lines):
        cells = []
        for title, cell, width in zip(columns, line, widths, strict=True):
            space = " " * (width - cell_len(cell))
            cells.append(space + cell if title.startswith("#") else cell + space)
        print("  ".join(cells).rstrip())
    sys.stdout.flush()


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """One fact per line."""
    facts = [(name, harmless(str(value))) for name, value in pairs]
    width = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        print(f"{name:<{width}}  {value}")
    sys.stdout.flush()


def first_line(text: str) -> str:
    """The reason of a failure without the stack that follows it."""
    return text.partition("\n")[0]


def many(count: int, one: str, more: str = "") -> str:
    """So many of them, in words: `1 message`, `2 messages`."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def print_line(text: str) -> None:
    print(harmless(text), flush=True)


def note(text: str) -> None:
    print(harmless(text), file=sys.stderr, flush=True)


def fail(text: str) -> None:
    """The one line about an error."""
    line = "error: " + harmless(" ".join(text.split()))
    if sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        line = f"\x1b[31m{line}\x1b[0m"
    print(line, file=sys.stderr, flush=True)


def ask(question: str) -> bool:
    """Ask on the terminal; the question goes to stderr, since stdout is for data."""
    sys.stderr.write(harmless(question) + " [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


@contextmanager
def progress(title: str, total: int | None, unit: str = "messages", *, per_second: float = 10.0) -> Iterator[Step]:
    """A progress bar on stderr, where that is a terminal; `total` of None shows only the progress."""
    if not sys.stderr.isatty():
        yield lambda done, total=None, /: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import Task as Shown

    class Count(TextColumn):
        def render(self, task: Shown) -> Any:
            rate = task.completed / task.elapsed if task.elapsed else 0
            self.text_format = f"{task.completed:,.0f} {unit}  {rate:,.0f}/s"
            return super().render(task)

    parts = (TextColumn("{task.description}"), BarColumn(), Count(""), TimeElapsedColumn())
    with Progress(*parts, console=Console(stderr=True), transient=True, refresh_per_second=per_second) as bar:
        shown = bar.add_task(title, total=total)
        yield lambda done, total=None, /: bar.update(shown, completed=done, total=total)


def stamp(time_us: int) -> str:
    """A moment as ISO 8601 in UTC, to the microsecond; empty for none."""
    if not time_us:
        return ""
    moment = datetime.fromtimestamp(time_us // 1_000_000, UTC).replace(microsecond=time_us % 1_000_000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def span(seconds: float) -> str:
    """A length of time in its largest whole unit: 90 is `90s`, 7200 is `2h`."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds // length:.0f}{unit}"
    return f"{seconds:g}s"


def about(seconds: float) -> str:
    """A length of time for people, in its two largest units: 7193 is `1h 59m`."""
    left, parts = max(round(seconds), 0), list[str]()
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if left >= length or parts or unit == "s":
            parts.append(f"{left // length}{unit}")
            left %= length
    return " ".join(parts[:2])


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def figure(value: float) -> str:
    """A number that people read: thousands apart, and no more digits than it deserves."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
