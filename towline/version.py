"""The version of Towline that runs here, and which of two versions is the newer one."""

from __future__ import annotations

import re

__all__ = ["__version__", "order_of"]

__version__ = "0.2.0.dev0"

_NUMBERS = re.compile(r"\d+(?:\.\d+)*")


def order_of(version: str) -> tuple[list[int], bool, list[int]]:
    """To sort by: as numbers, and `0.3.0.dev1` or `0.3.0rc1` before `0.3.0`. What is no version comes first."""
    found = _NUMBERS.match(version)
    numbers, rest = (found[0], version[found.end() :]) if found else ("", version)
    return _ints(numbers), not rest, _ints(rest)


def _ints(text: str) -> list[int]:
    return [int(one) for one in re.findall(r"\d+", text)]
