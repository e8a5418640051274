"""Consumers that were replaced, and do not know it."""

from __future__ import annotations

from hypothesis.stateful import precondition, rule

from tests.broker.conftest import ACK
from tests.inside.broker import Member
from tests.inside.protocol import Act
from tests.system.everything.drawing import Stepping, pick, shares
from towline.errors import LeaseLost

__all__ = ["ZombieRules"]


class ZombieRules(Stepping):
    @precondition(lambda self: self.fenced)
    @rule(share=shares)
    def act_as_one_that_was_replaced(self, share: float) -> None:
        member = pick(self.fenced, share)
        pulls = [*self.model.ledgers[member.config.topic, member.config.name].deliveries, 1]
        self.step(self.zombie(member, pick(pulls, share)))

    async def zombie(self, member: Member, pull: int) -> None:
        for attempt in (
            self.plant.broker.consumers.settle(member, [Act(ACK, pull)]),
            self.plant.pull(member, 10, 1 << 20),
        ):
            try:
                await attempt
            except LeaseLost:
                continue
            raise AssertionError("one that was replaced still has a say")
