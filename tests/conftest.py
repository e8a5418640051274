"""Shared by all tests: options, tiers, one temporary folder, coroutines as tests, and patience with slow machines."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings

from tests import scratch
from tests.durations import Recorder, slowest_first
from tests.store.sql.server import remove_server, use_mysqld

# Tests may share their machine with others: none fails for being slow.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples in every run, so that none fails by chance; `--hypothesis-seed=N` tries others.
settings.register_profile("steady", settings.get_profile("patient"), derandomize=True)

# Brokers that tests start bring no web console along, unless they ask for one.
os.environ.setdefault("TOWLINE_CONSOLE", "off")
os.environ.setdefault("TOWLINE_SEGMENT_BYTES", str(scratch.SEGMENT_BYTES))


TESTS = Path(__file__).parent
UNITS = (TESTS / "unit", TESTS / "store" / "log")
IN_PROCESS = {"disk", "durable_stores", "stores", "world"}
"""Fixtures of stores and brokers within the test's own process: on files, their tests are units, too."""
OUTSIDE = {
    subprocess.Popen: ["__init__"],
    os: ["fork", "posix_spawn", "system"],
    socket.socket: ["bind", "connect", "connect_ex"],
}
"""How a test would get at another process or at the network."""


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("steady" if config.getoption("--hypothesis-seed") is None else "patient")
    use_mysqld(config.getoption("--mysqld"))
    # A run that is ended from outside leaves nothing behind either.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        config.add_cleanup(scratch.begin())
        if config.getoption("--record-durations"):
            config.pluginmanager.register(Recorder())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        slowest_first(items)


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(tier_of(item))


def tier_of(item: pytest.Item) -> str:
    """`unit` needs neither another process nor the network, and no time to speak of; `system` is a folder."""
    if any(item.path.is_relative_to(folder) for folder in UNITS) or IN_PROCESS & set(getattr(item, "fixturenames", ())):
        said = {mark.name for mark in item.iter_markers()} | set(item.path.parts)
        said |= set(map(str, item.callspec.params.values())) if hasattr(item, "callspec") else set()
        if not {"slow", "service", "sql", "memory"} & said:
            return "unit"
    return "system" if item.path.is_relative_to(TESTS / "system") else "service"


@pytest.fixture(autouse=True)
def _stays_within_its_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail units that would start a process, listen or connect."""
    if request.node.get_closest_marker("unit") is None:
        return
    for owner, names in OUTSIDE.items():
        for name in names:
            monkeypatch.setattr(owner, name, _refuse)


def _refuse(*_: Any, **__: Any) -> NoReturn:
    pytest.fail("a unit test starts no process, and neither listens nor connects")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    # Not at exit: a worker that takes long to exit is killed.
    remove_server()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=20, help="how often the broker is killed under load (default 20)")
    parser.addoption("--cuts", type=int, default=12, help="how often a connection is cut at COMMIT (default 12)")
    parser.addoption(
        "--rounds", type=int, default=1, help="how often a part of a Spark pipeline is killed under load (default 1)"
    )
    parser.addoption("--chaos", type=int, default=3, help="rounds in which a broker on a database is killed or frozen")
    parser.addoption("--chaos-seed", type=int, default=7, help="other seeds give other rounds")
    parser.addoption("--away-s", type=float, default=6.0, help="how long the database is away (default 6)")
    parser.addoption("--rewrite", action="store_true", help="write into delivery's scenarios what really happens")
    parser.addoption("--record-durations", action="store_true", help="write tests/durations.txt from this run")
    parser.addoption("--mysqld", default="", help="the program of a MySQL server, for all tests that start MariaDB")
    parser.addoption("--hdfs", default="", help="an empty folder of a real HDFS for archives, hdfs://HOST:PORT/FOLDER")
