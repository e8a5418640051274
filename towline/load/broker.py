"""A broker as a process of its own, on a free port: for benchmarks, the demo and tests."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from towline.errors import TowlineError, Unavailable

__all__ = ["BrokerProcess"]

READY_S = 60.0
READY = "listening on "


class BrokerProcess:
    """`towline serve`. Starting it again after `stop` or `kill` takes the same port, so that clients find it again."""

    program: Sequence[str] = ("-m", "towline")
    """The arguments of Python."""
    process_group: int | None = None
    """0 puts it into a process group of its own, where Ctrl-C on the terminal does not reach it."""

    def __init__(self, store: str, **settings: Any) -> None:
        self.store = store
        self._settings = settings
        # Bound as long as this object lives, so that nobody else gets the port while the broker is away.
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind(("127.0.0.1", 0))
        self._address = f"127.0.0.1:{self._port.getsockname()[1]}"
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 it lives as long as this object

    def __enter__(self) -> BrokerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
            self.stop()
        self._log.close()
        self._port.close()

    @property
    def url(self) -> str:
        return f"towline://{self._address}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """Its stderr so far."""
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace")

    def start(self) -> float:
        """Start it; returns how many seconds it took until it was ready."""
        command = [sys.executable, *self.program, "serve", "--store", self.store, "--listen", self._address]
        for name, value in {"console": "off", **self._settings}.items():
            command.append(f"--{name.replace('_', '-')}={value}")
        begin = time.perf_counter()
        self._process = subprocess.Popen(  # noqa: S603 our own command
            command, stdout=subprocess.PIPE, stderr=self._log, process_group=self.process_group
        )
        self._address = self._wait_until_ready(begin + READY_S)
        return time.perf_counter() - begin

    def _wait_until_ready(self, deadline: float) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector, self._process.stdout as stdout:
            selector.register(stdout, selectors.EVENT_READ)
            if not selector.select(deadline - time.perf_counter()):
                self.kill()
                raise Unavailable(f"the broker was not ready after {READY_S:g} s:\n{self.log}")
            line = stdout.readline().decode().strip()
        if not line.startswith(READY):
            self._process.wait()
            raise TowlineError(f"the broker did not start: {line}\n{self.log}")
        return line.removeprefix(READY)

    def stop(self) -> float:
        """Stop it in an orderly way; returns how many seconds that took."""
        begin = time.perf_counter()
        self._end(signal.SIGTERM)
        return time.perf_counter() - begin

    def kill(self) -> None:
        """As `kill -9`, without any warning to it."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait()

    @property
    def cpu_s(self) -> float:
        """Processor time it has taken so far (Linux): the same on a quiet machine and on a busy one."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def peak_bytes(self) -> int:
        """The most memory it has taken so far (Linux)."""
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return 0
