"""The console in a process of its own, as users run it."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
READY_S = 240.0


class ConsoleProcess:
    def __init__(self, broker: str, folder: Path, *flags: str, script: str = "") -> None:
        """A `script` runs before the program does."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TOWLINE_")}
        environment |= {"PYTHONPATH": str(ROOT), "NICEGUI_STORAGE_PATH": str(folder / "nicegui")}
        command = [sys.executable, "-c", f"{script}\nfrom towline.cli import main\nmain()"]
        self._log = folder / "console.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "console", "--broker", broker, "--listen", "127.0.0.1:0", *flags],
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=folder,
            )
        self.url = ""

    def __enter__(self) -> ConsoleProcess:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], READY_S)
        line = self._process.stdout.readline().decode() if ready else ""
        found = re.fullmatch(r"console at (http://\S+)/\n", line)
        assert found, (line, self.log)
        self.url = found[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(READY_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def log(self) -> str:
        """What it complained about."""
        return self._log.read_text()
