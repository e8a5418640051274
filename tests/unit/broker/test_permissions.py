"""The table of permissions says what the one that was written by hand says."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.unit.broker.permission_table import NEEDS, SUBSCRIBED, Need, cases
from towline.broker.server.requests import TABLE
from towline.protocol import access, monitor
from towline.protocol import messages as m
from towline.protocol.messages import Request


class Caller:
    """A connection that subscribes to group billing of topic orders, on a broker with two topics."""

    def subscribed(self, subscription: int) -> tuple[str, str] | None:
        return "orders", "billing"

    def has_topic(self, name: str) -> bool:
        return name in ("orders", "stock")

    def has_group(self, topic: str, group: str) -> bool:
        return True

    def topics_of(self, transaction: str) -> Sequence[str]:
        return []

    def may_have_sink(self, name: str) -> bool:
        return True


LATER = {
    **dict.fromkeys((access.PutUser, access.ListTokens, access.CreateToken, access.RevokeToken), "admin"),
    monitor.PutAlarm: "describe",
}
"""Rights that are asked for where it is known whose account it is, and what the alarm speaks of."""


def needs_of(request: Request) -> set[Need]:
    """Without those that others imply: who may do anything to a thing may see it."""
    found = {(action, (kind, name or "*")) for action, kind, name in TABLE[type(request)].needs(request, Caller())}
    done = {what for action, what in found if action != "describe"}
    return {(action, what) for action, what in found if action != "describe" or what not in done}


def test_every_request_is_in_the_table() -> None:
    assert {request.kind for request in [*NEEDS, *SUBSCRIBED]} == set(m.REQUESTS) == {one.kind for one in TABLE}


@pytest.mark.parametrize(("request_", "needs"), [pytest.param(*case, id=repr(case[0])[:40]) for case in cases()])
def test_a_request_needs_what_the_table_says(request_: Request, needs: list[Need]) -> None:
    assert needs_of(request_) == {need for need in needs if need[0] != LATER.get(type(request_))}


def test_pulls_and_settlements_need_what_their_subscription_does() -> None:
    for request in (m.Pull(1, 10, 1 << 20), m.Settle(1, []), m.Attach("orders", "billing", "c1")):
        assert needs_of(request) == {("consume", ("topic", "orders")), ("consume", ("group", "billing"))}
