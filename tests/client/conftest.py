"""Both clients against every kind of broker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import towline
from tests.ports import free_port
from tests.store.sql.server import new_database

ROOT = Path(__file__).resolve().parents[2]


class Served:
    """A broker as a process of its own; one that comes after it can take its port."""

    def __init__(self, *flags: str, port: int = 0) -> None:
        command = [
            sys.executable,
            "-m",
            "towline",
            "serve",
            "--console",
            "off",
            "--log-level",
            "error",
            "--listen",
            f"127.0.0.1:{port or free_port()}",
        ]
        self.process = subprocess.Popen(
            [*command, *flags], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), line
        self.address = line.split()[-1]
        self.port = int(self.address.rpartition(":")[2])

    def stop(self, *, kill: bool = False) -> None:
        if kill:
            self.process.kill()
        else:
            self.process.terminate()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="session")
def shared_broker() -> Iterator[Served]:
    # A memory store lets go of the events of what was consumed whenever it is tidied up, and traces tell of those.
    served = Served("--store", "memory:", "--maintenance-s", "3600")
    yield served
    served.stop()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Brokers as processes, as a test needs them."""
    started: list[Served] = []

    def start(*flags: str, port: int = 0) -> Served:
        started.append(Served(*(flags or ("--store", "memory:")), port=port))
        return started[-1]

    yield start
    for served in started:
        if served.process.poll() is None:
            served.stop(kill=True)


@pytest.fixture(scope="session")
def shared_sql_broker() -> Iterator[Served]:
    served = Served("--store", new_database())
    yield served
    served.stop()


@pytest.fixture(params=["memory", "file", "tcp", "sql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param in ("tcp", "sql"):
        shared: Served = request.getfixturevalue("shared_broker" if request.param == "tcp" else "shared_sql_broker")
        return f"towline://{shared.address}"
    return f"memory:{tmp_path.name}" if request.param == "memory" else f"file:{tmp_path / 'data'}?durability=os"


@pytest.fixture(params=["blocking", "aio"])
def connect(request: pytest.FixtureRequest) -> Any:
    return towline.connect if request.param == "blocking" else towline.aio.connect


_topics = iter(range(1_000_000))


@pytest.fixture
def topic() -> str:
    """A topic that no other test has used, because the broker of a process is shared."""
    return f"topic-{next(_topics)}"
