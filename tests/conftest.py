"""Shared by all tests: options, one temporary folder, coroutines as tests, and patience with slow machines."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from tests import scratch
from tests.store.sql.server import remove_server, use_mysqld

# Tests may share their machine with others: none fails for being slow.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples in every run, so that none fails by chance; `--hypothesis-seed=N` tries others.
settings.register_profile("steady", settings.get_profile("patient"), derandomize=True)

# Brokers that tests start bring no web console along, unless they ask for one.
os.environ.setdefault("TOWLINE_CONSOLE", "off")
os.environ.setdefault("TOWLINE_SEGMENT_BYTES", str(scratch.SEGMENT_BYTES))


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("steady" if config.getoption("--hypothesis-seed") is None else "patient")
    use_mysqld(config.getoption("--mysqld"))
    # A run that is ended from outside leaves nothing behind either.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        config.add_cleanup(scratch.begin())


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
    parser.addoption("--kills", type=int, default=50, help="how often the broker is killed under load (default 50)")
    parser.addoption("--cuts", type=int, default=40, help="how often a connection is cut at COMMIT (default 40)")
    parser.addoption(
        "--rounds", type=int, default=2, help="how often a part of a Spark pipeline is killed under load (default 2)"
    )
    parser.addoption("--chaos", type=int, default=4, help="rounds in which a broker on a database is killed or frozen")
    parser.addoption("--chaos-seed", type=int, default=7, help="other seeds give other rounds")
    parser.addoption("--away-s", type=float, default=6.0, help="how long the database is away (default 6)")
    parser.addoption("--rewrite", action="store_true", help="write into delivery's scenarios what really happens")
    parser.addoption("--mysqld", default="", help="the program of a MySQL server, for all tests that start MariaDB")
    parser.addoption("--hdfs", default="", help="an empty folder of a real HDFS for archives, hdfs://HOST:PORT/FOLDER")
