"""A real MariaDB for tests: its own data folder and port, not as root; one a test process, a database a test."""

from __future__ import annotations

import atexit
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from functools import lru_cache
from pathlib import Path

import pytest

from tests.ports import free_port

__all__ = ["MariaDb", "copied_database", "drop_database", "mariadb", "needs_mariadb", "new_database"]

DEADLINE_S = 240.0
MEMORY = Path("/dev/shm")


def needs_mariadb() -> None:
    """A missing server skips on a laptop and fails in CI."""
    if shutil.which("mariadbd") is None or shutil.which("mariadb-install-db") is None:
        message = "MariaDB is not installed: apt-get install mariadb-server"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)


def system_user() -> list[str]:
    """A server must not run as root."""
    if os.geteuid() != 0:
        return []
    for name in ("mysql", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return [f"--user={name}"]
    return []


class MariaDb:
    """One server."""

    def __init__(self, *options: str, folder: Path | None = None, port: int = 0) -> None:
        self._parent = MEMORY if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) else None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="towline-db-", dir=self._parent))
        self.folder.chmod(0o755)
        self.data = self.folder / "data"
        # A server that starts removes the temporary tables that it finds, those of others too.
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.temporary.chmod(0o777)
        self.port = port or free_port()
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None

    def install(self) -> MariaDb:
        if os.geteuid() == 0 and system_user():
            shutil.chown(self.folder, system_user()[0].removeprefix("--user="))
        command = ["mariadb-install-db", "--no-defaults", f"--datadir={self.data}", *system_user()]
        command += ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        environment = os.environ | {"TMPDIR": str(self.temporary)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return self

    def begin(self, *more: str) -> MariaDb:
        """Start it, without waiting until it answers."""
        command = [shutil.which("mariadbd") or "mariadbd", "--no-defaults", *system_user(), f"--datadir={self.data}"]
        command += [f"--port={self.port}", "--bind-address=127.0.0.1", f"--socket={self.folder / 'sock'}"]
        command += [f"--pid-file={self.folder / 'pid'}", "--skip-name-resolve", "--innodb-buffer-pool-size=64M"]
        command += ["--innodb-log-file-size=48M", "--max-allowed-packet=64M", f"--tmpdir={self.temporary}"]
        command += [*self.options, *more]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        return self

    def start(self, *more: str) -> MariaDb:
        return self.begin(*more).wait()

    def wait(self) -> MariaDb:
        """Until it answers."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.answers():
            assert self.process is not None
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)
        return self

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as probe:
                probe.settimeout(1)
                return len(probe.recv(4)) == 4
        except OSError:
            return False

    def sql(self, text: str, database: str = "") -> list[list[str]]:
        command = ["mariadb", "--no-defaults", "-uroot", "-h127.0.0.1", f"-P{self.port}", "-N", "-B", "-r"]
        done = subprocess.run(
            [*command, database] if database else command,
            input=text,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [line.split("\t") for line in done.stdout.splitlines()]

    def copy(self, database: str, to: str) -> None:
        """A new database with what is committed in this one now."""
        self.sql(f"CREATE DATABASE {to}")
        command = ["mariadb-dump", "--no-defaults", "-uroot", "-h127.0.0.1", f"-P{self.port}", "--single-transaction"]
        options = ["--skip-lock-tables", "--skip-add-locks", "--skip-comments", "--hex-blob", database]
        dumped = subprocess.run(
            [*command, *options], capture_output=True, text=True, timeout=DEADLINE_S, check=False, encoding="utf-8"
        )
        assert dumped.returncode == 0, dumped.stderr
        self.sql("SET foreign_key_checks = 0, unique_checks = 0;\n" + dumped.stdout, to)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        if self.process is not None:
            self.process.wait(DEADLINE_S)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(DEADLINE_S)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def url(self, database: str) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/{database}"


@lru_cache(maxsize=1)
def mariadb() -> MariaDb:
    """The server of this test process."""
    needs_mariadb()
    server = MariaDb().install().start()
    atexit.register(server.remove)
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # A test run that is ended from outside must not leave its server behind.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    return server


_numbers = itertools.count(1)


def new_database() -> str:
    """The URL of a database that nobody has used."""
    server, name = mariadb(), f"t{next(_numbers)}"
    server.sql(f"CREATE DATABASE {name}")
    return server.url(name)


def copied_database(url: str) -> str:
    """The URL of a new database, as the one of this URL would be found after a crash now: what is not committed is not
    there, and nobody owns it any more."""
    server, name = mariadb(), f"t{next(_numbers)}"
    server.copy(url.rpartition("/")[2], name)
    server.sql("UPDATE mq_realm SET expires_at = NOW(6) - INTERVAL 1 SECOND", name)
    return server.url(name)


def drop_database(url: str) -> None:
    mariadb().sql(f"DROP DATABASE {url.rpartition('/')[2]}")
