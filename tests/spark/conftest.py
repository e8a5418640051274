"""What the tests of the connector share: brokers with messages, on each store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import towline
from tests.broker.process import BrokerProcess
from tests.spark.session import sessions
from tests.store.sql.server import drop_database, new_database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
PATIENCE_S = 900
"""For one test. The first one of a run starts Spark as well, which takes minutes on a machine that does much else."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "stores(*names): the stores on which the broker of these tests runs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(PATIENCE_S))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("stores")
    if marker is not None and "broker" in metafunc.fixturenames:
        metafunc.parametrize("store", marker.args, indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Settings of a broker: on a folder, `tmp_path / "data"`, with small segments; or on a database."""
    if getattr(request, "param", "log") == "log":
        yield {"store": f"file:{tmp_path / 'data'}", "segment_bytes": 1 << 20, "durability": "os"}
        return
    url = new_database()
    yield {"store": url}
    drop_database(url)


@pytest.fixture
def broker(store: dict[str, Any]) -> Iterator[BrokerProcess]:
    with BrokerProcess(**store) as process:
        yield process


@pytest.fixture
def mq(broker: BrokerProcess) -> Iterator[towline.Client]:
    with towline.connect(f"towline://127.0.0.1:{broker.port}") as client:
        yield client


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests of a run."""
    yield from sessions(tmp_path_factory.mktemp("spark"))
