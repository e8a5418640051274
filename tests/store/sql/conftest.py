"""A database for each test."""

from __future__ import annotations

import pytest

from tests.inside.sql import SqlSettings
from tests.store.sql.server import new_database, sql_settings


@pytest.fixture
def url() -> str:
    return new_database()


@pytest.fixture
def settings(url: str) -> SqlSettings:
    return sql_settings(url)
