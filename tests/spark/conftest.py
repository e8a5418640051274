"""What the tests of the connector share: brokers with messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import towline
from tests.server.process import BrokerProcess
from tests.spark.session import sessions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker on a folder, with small segments: `tmp_path / "data"`."""
    with BrokerProcess(store=f"file:{tmp_path / 'data'}", durability="os", segment_bytes=1 << 20) as process:
        yield process


@pytest.fixture
def mq(broker: BrokerProcess) -> Iterator[towline.Client]:
    with towline.connect(f"towline://127.0.0.1:{broker.port}") as client:
        yield client


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests of a run."""
    yield from sessions(tmp_path_factory.mktemp("spark"))
