"""What `towline check` says of open messages that hold retention back."""

from __future__ import annotations

import pytest

from towline.cli.check import WARNING, _look_at_retention


@pytest.mark.parametrize(("held_s", "said"), [(0, False), (1_000, False), (50_000, True), (90_000, True)])
def test_it_warns_from_half_of_the_time_on(held_s: float, said: bool) -> None:
    who = "group billing on topic orders"
    found = _look_at_retention({"retention_held_s": held_s, "retention_held_max_s": 86_400.0, "retention_held_by": who})
    assert [one.level for one in found] == [WARNING] * said
    assert all(f"open messages of {who} hold retention back for" in one.text for one in found)


def test_a_broker_of_an_earlier_version_says_nothing_of_it() -> None:
    assert _look_at_retention({}) == []
