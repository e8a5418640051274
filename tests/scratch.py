"""The temporary folder of a test run. Whatever tests, servers, browsers and JVMs leave in it goes with it.

To keep what failed tests left: `--basetemp FOLDER`, which pytest empties first.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["SEGMENT_BYTES", "begin", "memory_folder"]

SEGMENT_BYTES = 16 << 20
"""For brokers that tests start: each of them sets two segments aside, and there are many."""

MEMORY = Path("/dev/shm")
MEMORY_BYTES = 1 << 30
"""The least that must be free there: containers often have next to nothing."""
ENDING_S = 60.0
"""For processes that are about to end, and write until then."""


def begin() -> Callable[[], None]:
    """Let temporary files of this process, and of all it starts, be in a new folder; how to remove that again."""
    before = os.environ.get("TMPDIR")
    folder = Path(tempfile.mkdtemp(prefix="towline-tests-"))
    folder.chmod(0o711)  # a server that root starts runs as somebody else
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    # Java heeds no TMPDIR; these are Spark's words for options of its JVMs.
    java = f"-Djava.io.tmpdir={folder} -XX:-UsePerfData"
    os.environ |= dict.fromkeys(["SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"], java)

    def end() -> None:
        tempfile.tempdir = None
        os.environ.pop("TMPDIR")
        if before is not None:
            os.environ["TMPDIR"] = before
        for left in [folder, *MEMORY.glob(f"{folder.name}-*")]:
            remove(left)

    return end


def remove(folder: Path) -> None:
    deadline = time.monotonic() + ENDING_S
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            time.sleep(0.1)
    assert not folder.exists(), f"{folder} cannot be removed: {list(folder.rglob('*'))[:10]}"


def memory_folder(name: str) -> Path:
    """A new folder for what is written often, in memory if there is room."""
    run = Path(tempfile.gettempdir()).name
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES:
        return Path(tempfile.mkdtemp(prefix=f"{run}-{name}-", dir=MEMORY))
    return Path(tempfile.mkdtemp(prefix=f"{name}-"))
