"""Figures of several brokers, or of the realms of one, as those of one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from towline.broker.broker import Broker
from towline.protocol.figures import _LIMITS, nearest
from towline.settings import BrokerSettings
from towline.store.memory import MemoryStore


@pytest.fixture(scope="module")
def quiet() -> dict[str, Any]:
    """The figures of a broker in which nothing happens."""

    async def main() -> dict[str, Any]:
        broker = await Broker.open(MemoryStore(), BrokerSettings(store="memory:"))
        figures = broker.figures()
        await broker.close()
        return figures

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("limit", "bad"),
    [
        ("retention", {"retention_held_s": 50_000.0, "retention_held_by": "group g on topic t"}),
        ("retention", {"retention_held_bytes": 9 << 30, "retention_held_by": "group g on topic t"}),
        ("retention", {"retention_held_s": 5.0, "retention_held_max_s": 6.0}),
        ("holds", {"retention_hold_s": 150_000.0, "retention_hold_by": "archive"}),
        ("dedup", {"dedup_kept_s": 20.0}),
        ("dedup", {"dedup_kept_s": 500.0, "dedup_window_s": 1200.0}),
        ("lag", {"loop_lag_s": 2.0, "loop_lag_by": "counting stars"}),
        ("snapshots", {"snapshot_age_s": 900.0}),
        ("remains", {"gone_streams": 90_000}),
    ],
    ids=str,
)
def test_of_each_limit_the_figures_are_those_of_whoever_is_nearest(
    quiet: dict[str, Any], limit: str, bad: dict[str, Any]
) -> None:
    for place in range(3):
        found = [quiet, quiet, quiet]
        found[place] = quiet | bad
        figures, numbers = nearest(found)
        assert numbers[limit] == place
        assert figures == {name: (found[place] if name in _LIMITS[limit][1] else quiet)[name] for name in figures}


def test_all_figures_of_a_limit_are_those_that_a_broker_has(quiet: dict[str, Any]) -> None:
    assert {name for _, names in _LIMITS.values() for name in names} <= quiet.keys()


def test_brokers_of_a_version_before_are_not_nearest_to_anything(quiet: dict[str, Any]) -> None:
    assert nearest([{"name": "old"}, quiet])[1]["snapshots"] == 1
    assert nearest([{"name": "old"}])[0] == {}
    assert nearest([]) == ({}, {})
