"""A real server for tests: its own data folder and port, not as root; one a test process, a database a test.

It is MariaDB, or with `pytest --mysqld PATH` the MySQL server whose program that is. A server of one's own is named by
its address: TOWLINE_TEST_DATABASE=mysql://USER@HOST:PORT, its password in the file TOWLINE_STORE_PASSWORD_FILE. Tests
that start, stop or freeze a server still start their own.
"""

from __future__ import annotations

import itertools
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import time
from functools import lru_cache
from pathlib import Path

import msgspec

from tests.certificates import KIND, openssl
from tests.inside.sql import SqlSettings, parse_url
from tests.parts import need, program
from tests.ports import free_port
from tests.scratch import memory_folder

__all__ = [
    "MariaDb",
    "MySql",
    "copied_database",
    "drop_database",
    "mariadb",
    "needs_mariadb",
    "new_database",
    "new_server",
    "remove_server",
    "sql_settings",
    "use_mysqld",
]

DEADLINE_S = 240.0

_programs: list[str] = []


def use_mysqld(path: str) -> None:
    """Let this program be the server, instead of MariaDB's."""
    _programs[:] = [str(Path(path).resolve(strict=True))] if path else []


def needs_mariadb() -> None:
    if not _programs:
        need("mariadb")


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
    user = "root"
    host = "127.0.0.1"

    def __init__(self, *options: str, folder: Path | None = None, port: int = 0) -> None:
        self.folder = folder or memory_folder("db")
        self.folder.chmod(0o755)
        self.data = self.folder / "data"
        # A server that starts removes the temporary tables that it finds, those of others too.
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.temporary.chmod(0o777)
        self.port = port or free_port()
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def _client(self) -> list[str]:
        """Options of the server's own programs. A password goes by their environment, see `_environment`."""
        return ["--no-defaults", f"-u{self.user}", f"-h{self.host}", f"-P{self.port}"]

    @property
    def _environment(self) -> dict[str, str]:
        return os.environ | ({"MYSQL_PWD": _password()} if _password() else {})

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
        command = [program("mariadb-install-db"), "--no-defaults", f"--datadir={self.data}", *system_user()]
        return [*command, "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]

    def _program(self) -> list[str]:
        """The server, and what only this kind of it wants."""
        return [program("mariadbd"), "--no-defaults"]

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
        names = ("-subj", "/CN=towline-test", "-addext", "subjectAltName=IP:127.0.0.1")
        files = ("-keyout", str(key), "-out", str(self.certificate))
        openssl(self.folder, "req", "-x509", *KIND, "-days", "2", *names, *files)
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
        command = [program("mariadb"), *self._client, "-N", "-B", "-r"]
        done = subprocess.run(
            [*command, database] if database else command,
            input=text,
            env=self._environment,
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
        command = [program("mariadb-dump"), *self._client, "--single-transaction"]
        options = ["--skip-lock-tables", "--skip-add-locks", "--skip-comments", "--hex-blob", database]
        dumped = subprocess.run(
            [*command, *options],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
            encoding="utf-8",
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
        return f"mysql://{self.user}@{self.host}:{self.port}/{database}"


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


class Named(MariaDb):
    """A server that is there already. Databases are made in it, and dropped in the end; it is neither started nor
    stopped."""

    def __init__(self, address: str) -> None:
        self._settings = sql_settings(f"{address.rstrip('/')}/none")
        self.user, (self.host, self.port) = self._settings.user, self._settings.hosts[0]
        self.made: list[str] = []

    def sql(self, text: str, database: str = "") -> list[list[str]]:
        for word, name in re.findall(r"\b(CREATE|DROP) DATABASE (\w+)", text):
            (self.made.append if word == "CREATE" else self.made.remove)(name)
        return super().sql(text, database)

    def remove(self) -> None:
        for name in list(self.made):
            self.sql(f"DROP DATABASE {name}")


def new_server(*options: str, folder: Path | None = None) -> MariaDb:
    """A server of the kind that is tested with."""
    return (MySql if _programs else MariaDb)(*options, folder=folder)


def mariadb() -> MariaDb:
    """The server of this test process, of whichever kind."""
    needs_mariadb()
    return _server()


@lru_cache(maxsize=1)
def _server() -> MariaDb:
    if address := os.environ.get("TOWLINE_TEST_DATABASE"):
        return Named(address)
    server = new_server()
    try:
        return server.install().start()
    except BaseException:
        server.remove()
        raise


def remove_server() -> None:
    """If it was started, with all its databases."""
    if _server.cache_info().currsize:
        _server().remove()
        _server.cache_clear()


_numbers = itertools.count(1)


def _password() -> str:
    """Of a server of one's own; brokers read the same file."""
    file = os.environ.get("TOWLINE_STORE_PASSWORD_FILE", "")
    return Path(file).read_text(encoding="utf-8").strip() if file else ""


def sql_settings(url: str) -> SqlSettings:
    """How to reach the database of this URL."""
    return msgspec.structs.replace(parse_url(url), password=_password())


def _new_name() -> str:
    return (
        f"towline_test_{os.getpid()}_{next(_numbers)}"
        if "TOWLINE_TEST_DATABASE" in os.environ
        else f"t{next(_numbers)}"
    )


def new_database() -> str:
    """The URL of a database that nobody has used."""
    server, name = mariadb(), _new_name()
    server.sql(f"CREATE DATABASE {name}")
    return server.url(name)


def copied_database(url: str) -> str:
    """The URL of a new database, as the one of this URL would be found after a crash now: what is not committed is not
    there, and nobody owns it any more."""
    server, name = mariadb(), _new_name()
    server.copy(url.rpartition("/")[2], name)
    server.sql("UPDATE mq_realm SET expires_at = NOW(6) - INTERVAL 1 SECOND", name)
    return server.url(name)


def drop_database(url: str) -> None:
    mariadb().sql(f"DROP DATABASE {url.rpartition('/')[2]}")
