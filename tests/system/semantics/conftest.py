"""What messages may do, through both clients, on memory, log and SQL, in-process and over TCP: one suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.conftest import Served, connect, serve, shared_sql_broker, topic

__all__ = ["connect", "serve", "shared_sql_broker", "topic"]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Served]]:
    """One broker a store, as processes of their own."""
    folder = tmp_path_factory.mktemp("shared")
    served = {
        # A memory store lets go of what was consumed whenever it is tidied up, and some tests look for it afterwards.
        "tcp": Served("--store", "memory:", "--maintenance-s", "3600"),
        "tcp-log": Served("--store", f"file:{folder / 'data'}", "--durability", "os"),
    }
    yield served
    for one in served.values():
        one.stop()


@pytest.fixture(params=["memory", "file", "tcp", "tcp-log", "sql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param in ("tcp", "tcp-log"):
        shared: dict[str, Served] = request.getfixturevalue("shared")
        return f"towline://{shared[request.param].address}"
    if request.param == "sql":
        broker: Served = request.getfixturevalue("shared_sql_broker")
        return f"towline://{broker.address}"
    return f"memory:{tmp_path.name}" if request.param == "memory" else f"file:{tmp_path / 'data'}?durability=os"
