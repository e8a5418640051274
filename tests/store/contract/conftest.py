"""The stores that tests run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.contract.stores import DURABLE, KINDS, Stores, make_stores


@pytest.fixture(params=KINDS)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    return make_stores(request.param, tmp_path / "store")


@pytest.fixture(params=DURABLE)
def durable_stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    """Those that hold what they held before when they are opened again."""
    return make_stores(request.param, tmp_path / "store")
