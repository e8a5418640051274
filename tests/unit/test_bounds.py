"""No container without a bound: each that an object of the broker holds is listed with what bounds it."""

from __future__ import annotations

from collections import Counter

from tests.bounds import BOUNDS
from tests.containers import containers


def test_every_container_of_the_broker_has_a_bound() -> None:
    listed = Counter(name for names in BOUNDS.values() for name in names.split())
    there = set(containers())
    assert not there - listed.keys(), "give it a limit, and write what bounds it into tests/bounds.py and the docs"
    assert not listed.keys() - there, "it is gone: take it out of tests/bounds.py"
    assert not [name for name, times in listed.items() if times > 1]


def test_a_container_is_found_however_it_is_written() -> None:
    found = set(containers())
    assert {
        "broker.Topics",
        "broker.Topics._asked",
        "delivery.SettledPulls.reduced",
    } <= found
    assert {
        "broker.Dispatcher._waiters",
        "delivery.Lease.open",
        "broker.Rights._denies",
    } <= found
    assert {
        "connection_limit.ConnectionLimit._visitors",
        "console.Sessions._sessions",
        "delivery.Running.held",
        "frame.Spare._pieces",
        "store.Writer._queue",
        "store.FrameReader._locks",
        "store._QUERIES",
    } <= found
    assert "broker.FILTERS" not in found, "what a module never changes is no table"
