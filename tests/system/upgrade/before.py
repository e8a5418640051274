"""The version before: its programs, where git has its history, and what was kept of it for where it has not."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path

import pytest

from tests.parts import needs_history

__all__ = ["FOLDER", "NAME", "ROOT", "SESSION", "environment", "installed", "unpack_folder"]

ROOT = Path(__file__).resolve().parents[3]
NAME = "0.1.0"
COMMITS = (f"v{NAME}", "d2735ebf79db7df3c342ddfd1302d0136883823c")
"""Its tag, or the last commit of it."""
SOURCES = ("towline", "pyspark_towline", "pyproject.toml", "README.md", "LICENSE")
KEPT = Path(__file__).with_name("before")
SESSION = KEPT / f"session-{NAME}.txt"
"""All bytes between a client and a broker, both of that version (`record.py`)."""
FOLDER = KEPT / f"folder-{NAME}.tar.xz"
"""The folder that the broker left behind."""


def _archive() -> bytes:
    """Its sources; empty if git has none of that time, as in a shallow clone or outside of one."""
    for commit in COMMITS:
        command = ["git", "-C", str(ROOT), "archive", "--format=tar", commit, *SOURCES]
        try:
            done = subprocess.run(command, capture_output=True, timeout=120, check=False)
        except OSError:
            return b""
        if done.returncode == 0:
            return done.stdout
    return b""


@cache
def _installed(into: Path) -> Path | None:
    """A wheel of it, built as for a release, and installed."""
    found = _archive()
    if not found:
        return None
    sources, wheels, programs = (into / name for name in ("sources", "wheels", "programs"))
    sources.mkdir(parents=True)
    _extract(found, sources)
    _run("-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels), cwd=sources)
    [wheel] = wheels.iterdir()
    _run("-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--target", str(programs), str(wheel))
    return programs


def _run(*words: str, cwd: Path = ROOT) -> None:
    done = subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def installed(factory: pytest.TempPathFactory) -> Path:
    """The folder that its wheel is installed in; without git's history of it, the test is skipped."""
    found = _installed(factory.getbasetemp() / f"towline-{NAME}")
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
