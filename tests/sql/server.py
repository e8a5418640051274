"""A real server for tests: its own data folder and port, not as root; one a test process, a database a test.

It is MariaDB, or with `pytest --mysqld PATH` the MySQL server whose program that is.
"""

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

__all__ = [
    "MariaDb",
    "MySql",
    "copied_database",
    "drop_database",
    "mariadb",
    "needs_mariadb",
    "new_database",
    "new_server",
    "use_mysqld",
]

DEADLINE_S = 240.0
MEMORY = Path("/dev/shm")

_programs: list[str] = []


def use_mysqld(path: str) -> None:
    """Let this program be the server, instead of MariaDB's."""
    _programs[:] = [str(Path(path).resolve(strict=True))] if path else []


def needs_mariadb() -> None:
    """A missing server skips on a laptop and fails in CI."""
    if _programs:
        return
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

    log_size = "--innodb-log-file-size"

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
        command = self._installing()
        environment = os.environ | {"TMPDIR": str(self.temporary)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return self

    def _installing(self) -> list[str]:
        """The command that makes the data folder."""
        command = ["mariadb-install-db", "--no-defaults", f"--datadir={self.data}", *system_user()]
        return [*command, "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]

    def _program(self) -> list[str]:
        """The server, and what only this kind of it wants."""
        return [shutil.which("mariadbd") or "mariadbd", "--no-defaults"]

    def begin(self, *more: str) -> MariaDb:
        """Start it, without waiting until it answers."""
        command = [*self._program(), *system_user(), f"--datadir={self.data}"]
        command += [f"--port={self.port}", "--bind-address=127.0.0.1", f"--socket={self.folder / 'sock'}"]
        command += [f"--pid-file={self.folder / 'pid'}", "--skip-name-resolve", "--innodb-buffer-pool-size=64M"]
        command += [f"{self.log_size}=48M", "--max-allowed-packet=64M", f"--tmpdir={self.temporary}"]
        command += [*self.options, *more]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        return self

    @property
    def certificate(self) -> Path:
        """What a broker checks the server with, once it is certified."""
        return self.folder / "cert.pem"

    def certify(self) -> MariaDb:
        """A certificate of its own, for its address."""
        key = self.folder / "key.pem"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-days", "2", "-subj", "/CN=towline-test", "-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run([*command, "-keyout", str(key), "-out", str(self.certificate)], check=True, capture_output=True)
        if os.geteuid() == 0 and system_user():
            shutil.chown(key, system_user()[0].removeprefix("--user="))
        self.options += (f"--ssl-cert={self.certificate}", f"--ssl-key={key}", f"--ssl-ca={self.certificate}")
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


class MySql(MariaDb):
    """The same with MySQL's program, or a script that starts it. It wants passwords over encrypted connections only."""

    log_size = "--innodb-redo-log-capacity"

    def install(self) -> MariaDb:
        self.certify()
        return super().install()

    def _installing(self) -> list[str]:
        # Without it, root may come through the socket only.
        users = self.folder / "users.sql"
        users.write_text(
            "CREATE USER root@'127.0.0.1';\nGRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n", encoding="utf-8"
        )
        command = [*self._program(), "--initialize-insecure", f"--datadir={self.data}", *system_user()]
        return [*command, f"--init-file={users}"]

    def _program(self) -> list[str]:
        return [*_programs, "--no-defaults", "--secure-file-priv=NULL", "--mysqlx=OFF"]


def new_server(*options: str, folder: Path | None = None) -> MariaDb:
    """A server of the kind that is tested with."""
    return (MySql if _programs else MariaDb)(*options, folder=folder)


@lru_cache(maxsize=1)
def mariadb() -> MariaDb:
    """The server of this test process, of whichever kind."""
    needs_mariadb()
    server = new_server().install().start()
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
