"""The programs of the version before, and brokers of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.cluster.conftest import cluster_of
from tests.system.upgrade import before

__all__ = ["cluster_of"]


@pytest.fixture(scope="session")
def programs_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return before.installed(tmp_path_factory)
