"""The console that `towline serve` starts: there when it is wanted, gone with its broker."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.certificates import KIND, openssl
from tests.eventually import eventually

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def running(folder: Path, program: list[str], *flags: str) -> Iterator[subprocess.Popen[str]]:
    """A broker, killed at the end if it still runs: a test that fails must not wait for it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOWLINE_")}
    environment |= {"PYTHONPATH": str(ROOT), "NICEGUI_STORAGE_PATH": str(folder / "nicegui")}
    listen = () if "--listen" in flags else ("--listen", "127.0.0.1:0")
    command = [sys.executable, *program, "serve", "--store", "memory:", *listen, *flags]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def serve(folder: Path, *flags: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return running(folder, ["-m", "towline"], *flags)


def wait_for(process: subprocess.Popen[str], pattern: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        found = re.search(pattern, line)
        if found:
            return found[found.lastindex or 0]
    raise AssertionError(pattern)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_is_there_and_ends_however_the_broker_ends(tmp_path: Path, number: signal.Signals) -> None:
    with serve(tmp_path, "--console", "127.0.0.1:0") as process:
        url = wait_for(process, r"console at (http://\S+)")
        with urllib.request.urlopen(url + "healthz", timeout=60) as answer:
            assert answer.read() == b"ok\n"
        process.send_signal(number)
        process.wait(60)
        where = urlsplit(url)

        def is_gone() -> bool:
            try:
                socket.create_connection((where.hostname, where.port), timeout=5).close()
            except OSError:
                return True
            return False

        eventually(is_gone)


def test_it_knows_its_broker_by_the_certificate_whatever_names_stand_in_that(tmp_path: Path) -> None:
    names = ["-subj", "/CN=broker.example", "-addext", "subjectAltName=DNS:broker.example"]
    openssl(tmp_path, "req", "-x509", *KIND, "-days", "2", *names, "-keyout", "key.pem", "-out", "cert.pem")
    with serve(tmp_path, "--console", "127.0.0.1:0", "--tls-cert", "cert.pem", "--tls-key", "key.pem") as process:
        url = wait_for(process, r"console at (https://\S+)")
        context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        context.check_hostname = False
        with urllib.request.urlopen(url + "api/topics", timeout=60, context=context) as answer:
            assert answer.status == 200
        process.terminate()
        process.communicate(timeout=60)


def test_an_address_in_use_leaves_the_broker_alone(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        serve(tmp_path, "--console", f"127.0.0.1:{taken.getsockname()[1]}") as process,
    ):
        wait_for(process, r"web console ended with code")
        assert process.poll() is None
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_without_its_packages_the_broker_says_so_once_and_goes_on(tmp_path: Path) -> None:
    script = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'nicegui' else find(name, *more)\n"
        "from towline.cli import main\nsys.argv[0] = 'towline'\nmain()"
    )
    with running(tmp_path, ["-c", script]) as process:
        wait_for(process, r"no web console: nicegui is not installed")
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    with serve(tmp_path, "--console", "off") as process:
        assert process.stdout is not None
        process.stdout.readline()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert children == []
    assert "console" not in said
