"""Coroutines as tests, and the stores to run them on."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest

from tests.store.contract.stores import DURABLE, KINDS, Stores, make_stores


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(params=KINDS)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    return make_stores(request.param, tmp_path / "store")


@pytest.fixture(params=DURABLE)
def durable_stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    """Those that hold what they held before when they are opened again."""
    return make_stores(request.param, tmp_path / "store")
