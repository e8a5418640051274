"""The files of an audit log: the one that is written to, and older ones, which are named by the number of their first
line: `audit.jsonl`, `audit-000000120000.jsonl`. Each line holds the hash of the one before, also across files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

__all__ = [
    "DROPPED",
    "FIRST",
    "AuditLine",
    "Older",
    "end_of",
    "first_of",
    "lines_before",
    "older_files",
    "older_path",
    "verify",
]

BLOCK: Final = 64 << 10
"""Read at once. No line is as long."""
FIRST: Final = "0" * 64
DROPPED: Final = "DropAudit"
"""The action of a line about deleted older ones; its target is the first that is still there."""


class AuditLine(msgspec.Struct, frozen=True):
    number: int
    at_us: int
    actor: str
    address: str
    what: str
    target: str
    outcome: str
    detail: str
    before: str
    """The hash of the line before."""


class Older(NamedTuple):
    """A file that is not written to any more."""

    first: int
    path: Path
    size: int


def older_path(path: Path, first: int) -> Path:
    return path.with_name(f"{path.stem}-{first:012d}{path.suffix}")


def older_files(path: Path) -> list[Older]:
    """Older files, the oldest first."""
    name = re.compile(rf"{re.escape(path.stem)}-(\d{{12}}){re.escape(path.suffix)}")
    found = [(match, one) for one in path.parent.iterdir() if (match := name.fullmatch(one.name)) is not None]
    return sorted(Older(int(match[1]), one, one.stat().st_size) for match, one in found)


def backwards(fd: int, end: int) -> Iterator[bytes]:
    """The lines before this offset, the last one first, without their ends."""
    rest = b""
    while end:
        begin = max(end - BLOCK, 0)
        block, end = os.pread(fd, end - begin, begin) + rest, begin
        rest = b""
        if begin:
            head, newline, block = block.partition(b"\n")
            rest = head + newline if len(head) < BLOCK else b""
        yield from reversed(block.split(b"\n")[:-1])


def _parsed(line: bytes) -> AuditLine | None:
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(line, type=AuditLine)
    return None


def end_of(fd: int) -> tuple[int, int, str]:
    """The end of the last whole line, the number of the next one, and its hash."""
    end = os.fstat(fd).st_size
    while end and os.pread(fd, 1, end - 1) != b"\n":
        begin = max(end - BLOCK, 0)
        end = begin + os.pread(fd, end - begin, begin).rfind(b"\n") + 1
    digest = FIRST
    for behind, line in enumerate(backwards(fd, end)):
        if not behind:
            digest = hashlib.sha256(line + b"\n").hexdigest()
        if (found := _parsed(line)) is not None:
            return end, found.number + behind + 1, digest
    return end, 0, digest


def first_of(fd: int) -> int | None:
    """The number of the first line; None if no line can be read."""
    for behind, line in enumerate(os.pread(fd, BLOCK, 0).split(b"\n")):
        if (found := _parsed(line)) is not None:
            return found.number - behind
    return None


def lines_before(fd: int, end: int, number: int) -> Iterator[AuditLine]:
    """The lines of a file before this number, the last one first; unreadable lines are skipped."""
    begin = 0
    while end - begin > 2 * BLOCK:
        middle = (begin + end) // 2
        found = [_parsed(line) for line in os.pread(fd, BLOCK, middle).split(b"\n")[1:-1]]
        first = next((line for line in found if line is not None), None)
        if first is None:
            break
        if first.number < number:
            begin = middle
        else:
            end = middle + BLOCK
    for line in backwards(fd, end):
        one = _parsed(line)
        if one is not None and one.number < number:
            yield one


def verify(path: Path) -> tuple[int, int | None]:
    """The number of lines, and the number of the first that does not follow from the one before; None is fine. The
    oldest follows from nothing if another one says that those before it were deleted. An older file by itself begins
    with the number in its name."""
    older = older_files(path)
    named = re.fullmatch(r".+-(\d{12})", path.stem)
    number = older[0].first if older else int(named[1]) if named else 0
    began, before, dropped = number, FIRST, int(named[1]) if named else 0
    for file_path in (*(one.path for one in older), path):
        with file_path.open("rb") as file:
            for raw in file:
                line = _parsed(raw)
                if line is None or line.number != number or not raw.endswith(b"\n"):
                    return number - began, number
                if line.before != before and (number != began or not number):
                    return number - began, number
                if (
                    line.what == DROPPED
                    and not line.actor
                    and (told := re.fullmatch(r"lines before (\d+)", line.target))
                ):
                    dropped = max(dropped, int(told[1]))
                before = hashlib.sha256(raw).hexdigest()
                number += 1
    return number - began, began if began > dropped else None
