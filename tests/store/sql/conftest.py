"""Coroutines as tests, and a database for each."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from tests.store.sql.server import new_database, sql_settings
from towline.store.sql import SqlSettings


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def url() -> str:
    return new_database()


@pytest.fixture
def settings(url: str) -> SqlSettings:
    return sql_settings(url)
