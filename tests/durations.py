"""How many seconds each file of tests takes, from `durations.txt`; the slowest are begun first, so that no worker ends
long after the others. `--record-durations` writes it anew, see CONTRIBUTING.md."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

__all__ = ["Recorder", "slowest_first"]

FILE = Path(__file__).with_suffix(".txt")
UNKNOWN_S = 30
"""Of a file that is newer than the record."""


def slowest_first(items: list[pytest.Item]) -> None:
    """The tests of a file stay together, and in their order."""
    lines = [line.split() for line in FILE.read_text(encoding="utf-8").splitlines()]
    seconds = {file: int(taken) for taken, file in lines}
    items.sort(key=lambda item: -seconds.get(_file_of(item.nodeid), UNKNOWN_S))


class Recorder:
    """Writes what a whole run took; of files that did not run, what stood there is lost."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[_file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        lines = [f"{round(taken):4} {file}\n" for file, taken in sorted(self._seconds.items())]
        FILE.write_text("".join(lines), encoding="utf-8")


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]
