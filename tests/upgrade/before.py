"""The version before: its programs, where git has its history, and what was kept of it for where it has not."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from functools import cache
from pathlib import Path

import pytest

from tests.parts import needs_history

__all__ = ["FOLDER", "NAME", "ROOT", "SESSION", "environment", "tree", "unpack_folder"]

ROOT = Path(__file__).resolve().parents[2]
NAME = "0.1.0"
COMMITS = (f"v{NAME}", "d2735ebf79db7df3c342ddfd1302d0136883823c")
"""Its tag, or the last commit of it."""
KEPT = Path(__file__).with_name("before")
SESSION = KEPT / f"session-{NAME}.txt"
"""All bytes between a client and a broker, both of that version (`record.py`)."""
FOLDER = KEPT / f"folder-{NAME}.tar.xz"
"""The folder that the broker left behind."""


def _archive() -> bytes:
    """Its files; empty if git has none of that time, as in a shallow clone or outside of one."""
    for commit in COMMITS:
        command = ["git", "-C", str(ROOT), "archive", "--format=tar", commit, "towline", "pyproject.toml"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=120, check=False)
        except OSError:
            return b""
        if done.returncode == 0:
            return done.stdout
    return b""


@cache
def _unpacked(into: Path) -> Path | None:
    found = _archive()
    if not found:
        return None
    into.mkdir()
    _extract(found, into)
    return into


def tree(factory: pytest.TempPathFactory) -> Path:
    """The folder of its programs; without git's history of it, the test is skipped."""
    found = _unpacked(factory.getbasetemp() / f"towline-{NAME}")
    if found is None:
        needs_history(f"Towline {NAME}")
    return found


def environment(programs: Path) -> dict[str, str]:
    """For a process that is to run these, with the packages that are installed here."""
    return {**os.environ, "PYTHONPATH": str(programs)}


def unpack_folder(into: Path) -> Path:
    _extract(FOLDER.read_bytes(), into)
    return into / "data"


def _extract(archived: bytes, into: Path) -> None:
    """Pythons of before 3.11.4 know no filters, newer ones want one."""
    with tarfile.open(fileobj=io.BytesIO(archived)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(into)
