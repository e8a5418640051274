"""A consumer by prefix, in a group of every topic, beside the model."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.broker.conftest import ACK, NACK, Got
from tests.inside.protocol import Act, Pulled
from tests.system.everything.drawing import Stepping, acts, pick, shares
from tests.system.everything.machine import PAT
from tests.system.everything.model import TOPICS, Key
from tests.system.everything.names import SETUP

__all__ = ["PrefixRules"]

GROUP = "billing"
PAT_KEYS: list[Key] = [key for key in SETUP if key[1] == GROUP]


class PrefixRules(Stepping):
    async def attach_by_prefix(self, hold: str) -> None:
        held = {key: self.model.ledgers[key].held_by(PAT) for key in PAT_KEYS}
        pulls = sorted(pull for some in held.values() for pull in some)
        holding = {"none": [], "all": pulls, "some": pulls[::2], "wrong": [*pulls, 17]}[hold]
        self.fan = await self.plant.attach_by_prefix(GROUP, PAT, holding)
        assert self.fan.held == sorted(set(holding) & set(pulls))
        assert {member.config.topic for member in self.fan.members} == set(TOPICS)
        for key, some in held.items():
            self.orphans.pop((key, PAT), None)
            for pull in some:
                if pull not in holding:
                    self.model.ledgers[key].give_back(pull, self.model.ledgers[key].deliveries[pull].open)
                    self.unsynced()

    async def pull_by_prefix(self, count: int, max_bytes: int) -> None:
        """What comes is of one topic; if nothing does, none has anything."""
        assert self.fan is not None
        positions = {key: self.plant.dispatcher(key).position for key in PAT_KEYS}
        for key in PAT_KEYS:
            self.model.ledgers[key].clock.append(self.now_us)
        got = await self.plant.pull(self.fan, count, max_bytes)
        assert bool(got.answer.topic) == bool(got.pull)
        for key, position in positions.items():
            mine = got if key[0] == got.answer.topic else Got(Pulled(0, []), b"")
            await self.took(key, PAT, count, max_bytes, mine, position)
            if not got.pull:
                self.nothing_due(key, PAT, count)

    async def settle_by_prefix(self, key: Key, act: Act) -> None:
        """An act about a pull from one of the topics; one of everything up to it reaches into the others."""
        assert self.fan is not None
        settled = await self.plant.broker.consumers.settle(self.fan, [act])
        codes = {code for _, code, _ in settled.refused}
        refusals, changed = self.act(key, PAT, act)
        assert bool(codes) == bool(refusals), (act, settled, refusals)
        assert codes <= refusals, (act, settled, refusals)
        for other in PAT_KEYS if act.up_to and not refusals else ():
            ledger = self.model.ledgers[other]
            older = [pull for pull in ledger.held_by(PAT) if pull < act.pull]
            if other != key and older:
                ledger.clock.append(self.now_us)
                ledger.ack_earlier(PAT, act.pull)
                changed = True
        self.synced() if changed else self.unsynced()

    # By chance

    @rule(hold=st.sampled_from(["none", "all", "all", "some", "wrong"]))
    def attach_pat(self, hold: str) -> None:
        self.step(self.attach_by_prefix(hold))

    @precondition(lambda self: self.fan is not None)
    @rule(count=st.sampled_from([1, 3, 20]), max_bytes=st.sampled_from([1 << 20, 1 << 20, 1_500]))
    def pull_as_pat(self, count: int, max_bytes: int) -> None:
        self.step(self.pull_by_prefix(count, max_bytes))

    def of_pat(self) -> list[tuple[Key, int]]:
        return [(key, pull) for key in PAT_KEYS for pull in self.model.ledgers[key].held_by(PAT)]

    @precondition(lambda self: self.fan is not None and self.of_pat())
    @rule(share=shares, drawn=acts)
    def settle_as_pat(self, share: float, drawn: Any) -> None:
        key, pull = pick(self.of_pat(), share)
        what, at, _, up_to, delay_s = drawn
        names = self.model.ledgers[key].deliveries[pull].open
        spans = [] if up_to or at < 0.4 else [(*pick(names, at), 1)]
        act = Act(what, pull, spans, up_to and what == ACK, delay_s if what == NACK else None, "why")
        self.step(self.settle_by_prefix(key, act))

    @precondition(lambda self: self.fan is not None)
    @rule(vanished=st.booleans())
    def pat_leaves(self, vanished: bool) -> None:
        async def work() -> None:
            assert self.fan is not None
            fan = self.fan
            members = fan.members
            if vanished:
                self.plant.broker.consumers.disconnected(fan)
                while not all(member.fenced for member in members):
                    await asyncio.sleep(0)
            else:
                await self.plant.broker.consumers.detach(fan)
            for key in PAT_KEYS:
                self.gone(key, PAT, vanished=vanished)

        self.step(work())
