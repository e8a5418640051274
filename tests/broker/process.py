"""A broker in a process of its own, as users run it."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.scratch import SEGMENT_BYTES

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import json, os, sys
from towline.broker.process.run import run
from towline.settings import load_settings
password = {name: os.environ[name] for name in ["TOWLINE_STORE_PASSWORD_FILE"] if name in os.environ}
sys.exit(run(load_settings(json.loads(sys.argv[1]), environment=password)))
"""
DEADLINE_S = 120.0


def failing_start(*, listen: str = "127.0.0.1:0", store: str = "memory:", **settings: Any) -> str:
    """Start a broker that must not come up: it exits with code 1 or 2 and one line on stderr, which is given back."""
    given = json.dumps({"listen": listen, "store": store, "segment_bytes": SEGMENT_BYTES, **settings})
    command = [sys.executable, "-c", SCRIPT, given]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode in (1, 2), done
    assert done.stdout == "", done
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


class BrokerProcess:
    """Runs until the `with` block ends, then is killed if it has not ended by itself."""

    def __init__(self, *, listen: str = "127.0.0.1:0", store: str = "memory:", **settings: Any) -> None:
        umask: int = settings.pop("umask", -1)
        given = json.dumps({"listen": listen, "store": store, "segment_bytes": SEGMENT_BYTES, **settings})
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, given],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            umask=umask,
        )
        self._errors: list[str] = []
        self._said = threading.Condition()
        self._listener = threading.Thread(target=self._collect, daemon=True)
        self._listener.start()
        self.port = 0

    def __enter__(self) -> BrokerProcess:
        line = self._first_line()
        found = re.fullmatch(r"listening on \S+:(\d+)\n", line)
        assert found, (line, self.wait(), self.errors)
        self.port = int(found[1])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        self._listener.join(DEADLINE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def errors(self) -> str:
        """What it has written to stderr so far."""
        return "".join(self._errors)

    @property
    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found, status
        return int(found[1]) / 1024

    def stop(self, number: int = signal.SIGTERM) -> None:
        os.kill(self.process.pid, number)

    def wait(self) -> int:
        """The exit code, once it has ended; all that it said is in `errors` then."""
        code = self.process.wait(DEADLINE_S)
        self._listener.join(DEADLINE_S)
        return code

    def rest_of_stdout(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.read()

    def wait_for_log(self, pattern: str) -> None:
        """Wait until a line of stderr matches."""
        deadline = time.monotonic() + DEADLINE_S
        with self._said:
            while not any(re.search(pattern, line) for line in self._errors):
                left = deadline - time.monotonic()
                assert left > 0, (pattern, self.errors)
                self._said.wait(left)

    def _first_line(self) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE_S)
        return self.process.stdout.readline() if ready else ""

    def _collect(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._said:
                self._errors.append(line)
                self._said.notify_all()
        self.process.stderr.close()
