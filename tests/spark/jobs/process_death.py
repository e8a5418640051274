"""A process that dies in the middle of its work with files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.inside.spark import ArchiveFolder


class Killed(BaseException):
    pass


@contextmanager
def killed_at(step: int, monkeypatch: pytest.MonkeyPatch, steps: Sequence[str]) -> Iterator[None]:
    """From this step on, of those with these names, this process changes nothing any more."""
    left = step

    def dying(method: Any) -> Any:
        def work(self: ArchiveFolder, *arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return method(self, *arguments)

        return work

    with monkeypatch.context() as patch:
        for name in steps:
            patch.setattr(ArchiveFolder, name, dying(getattr(ArchiveFolder, name)))
        yield
