"""What every door is held against: without its rights nobody gets through, with all of them one does, and after they
were taken back no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tests.broker.access.secured import Secured
from tests.inside.broker import ROLES

Need = tuple[str, tuple[str, str]]
"""An action, and the kind and name of what it is done to."""

CLUSTER = ("cluster", "*")
BILLING = ("group", "billing")
SEE_ALL: list[Need] = [("describe", ("topic", "*")), ("describe", ("group", "*"))]


def topic(name: str) -> tuple[str, str]:
    return ("topic", name)


def group(name: str) -> tuple[str, str]:
    return ("group", name)


def granted(role: str, needs: Sequence[Need]) -> bool:
    """As the documents say it, without regard to names: the built-in roles have none."""
    return all(
        any(
            (grant.action in ("*", action) or action == "describe") and grant.resource in ("*", kind)
            for grant in ROLES.get(role, [])
        )
        for action, (kind, _) in needs
    )


@contextmanager
def allowed(broker: Secured, name: str, needs: Sequence[Need]) -> Iterator[None]:
    rules = [broker.admin.access.allow(name, action, *what) for action, what in needs]
    try:
        yield
    finally:
        for rule in rules:
            broker.admin.access.drop_rule(rule)


def hold_against(broker: Secured, name: str, needs: Sequence[Need], refused: Callable[[], bool]) -> None:
    """`refused` tries it in the name of `name`, who has no rights at first."""
    assert refused() == bool(needs), "without any rights"
    for left_out in range(len(needs)):
        with allowed(broker, name, [need for at, need in enumerate(needs) if at != left_out]):
            assert refused(), f"without {needs[left_out]}"
    with allowed(broker, name, needs):
        assert not refused(), f"with {needs}"
    assert refused() == bool(needs), "after they were taken back"


def furnish(broker: Secured) -> None:
    """What the tables speak of: two topics, a group with a dead letter."""
    mq = broker.admin
    for name in ("orders", "stock"):
        mq.send(name, b"x", key="k")
    with mq.consumer("orders", group="billing") as consumer:
        for message in consumer.pull(max_messages=1, wait=60):
            message.dead("no such customer")
        consumer.flush()
