"""What all tests share: one option, and patience with slow machines."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# Tests may share their machine with others: none fails for being slow.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


# Brokers that tests start bring no web console along, unless they ask for one.
os.environ.setdefault("TOWLINE_CONSOLE", "off")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=50, help="how often the broker is killed under load (default 50)")
    parser.addoption("--cuts", type=int, default=40, help="how often a connection is cut at COMMIT (default 40)")
    parser.addoption(
        "--rounds", type=int, default=2, help="how often a part of a Spark pipeline is killed under load (default 2)"
    )
    parser.addoption("--chaos", type=int, default=4, help="rounds in which a broker on a database is killed or frozen")
    parser.addoption("--chaos-seed", type=int, default=7, help="other seeds give other rounds")
    parser.addoption("--away-s", type=float, default=6.0, help="how long the database is away (default 6)")
