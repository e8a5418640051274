"""When a failed message is tried again."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.delivery.driver import MIDDLE, Driver
from towline.errors import BadRequest
from towline.model import RetryPolicy, Span


def test_an_exponential_policy_grows_up_to_its_cap() -> None:
    policy = RetryPolicy(kind="exponential", first_s=1, factor=3, cap_s=20)
    assert [policy.delay_s(attempt) for attempt in (1, 2, 3, 4, 5, 9_999)] == [1, 3, 9, 20, 20, 20]


def test_jitter_leaves_out_a_part_that_is_the_same_for_the_same_failure() -> None:
    policy = RetryPolicy(kind="exponential", first_s=10, factor=1, cap_s=10, jitter=0.5)
    waits = [policy.delay_s(1, (7, first)) for first in range(100)]
    assert waits == [policy.delay_s(1, (7, first)) for first in range(100)]
    assert 5 <= min(waits) < 6
    assert 9 < max(waits) <= 10


def test_messages_that_fail_together_are_not_tried_together() -> None:
    policy = RetryPolicy(kind="exponential", first_s=100, factor=2, cap_s=1000, jitter=1.0)
    mq = Driver()
    mq.group.config = msgspec.structs.replace(mq.config, retry=policy)
    mq.append(MIDDLE, 3)
    mq.pull()
    for first in (0, 1, 2):
        mq.nack(Span(MIDDLE, first, 1))
    assert len({due_us for _, due_us in mq.retries()}) == 3


@pytest.mark.parametrize(
    "wrong", [{"first_s": 10, "cap_s": 1}, {"factor": 0.5}, {"jitter": 2}, {"first_s": -1}, {"cap_s": 1e9}]
)
def test_an_exponential_policy_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadRequest, match="exponential"):
        RetryPolicy(kind="exponential", **wrong)  # type: ignore[arg-type]
