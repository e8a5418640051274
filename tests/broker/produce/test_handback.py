"""Messages of another broker that a consumer hands over: what is told again has the fate of the first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.broker.conftest import Bench, World
from tests.inside.frame import encode
from tests.inside.protocol import HandBack
from tests.inside.store import Append, Appended
from towline.errors import DiskFull
from towline.model import Durability

HANDED = HandBack("orders", "billing", None, 1, 1, "it failed", 0.0)


def slow_sync(mq: Bench, monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Future[None]]:
    """What is appended from now on is durable when the test says so."""
    synced: list[asyncio.Future[None]] = []
    append = mq.store.append

    def appending(unit: Sequence[Append], durability: Durability) -> Appended:
        appended = append(unit, durability)
        synced.append(asyncio.get_running_loop().create_future())
        return appended._replace(done=synced[-1])

    monkeypatch.setattr(mq.store, "append", appending)
    return synced


async def several_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_hand_over_that_is_told_again_is_answered_when_the_first_is_durable(
    disk: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(mq: Bench) -> None:
        await mq.attach()
        frame = encode([b"a", b"b"], producer_id=7, producer_seq=1)
        with monkeypatch.context() as patch:
            synced = slow_sync(mq, patch)
            first = asyncio.ensure_future(mq.broker.hand_back(HANDED, frame))
            again = asyncio.ensure_future(mq.broker.hand_back(HANDED, frame))
            await several_turns()
            assert len(synced) == 1, "it is appended once"
            assert not first.done()
            assert not again.done(), "the messages are not durable yet"
            synced[0].set_result(None)
            await several_turns()
            assert len(synced) == 2, "that they failed is written behind them"
            assert not again.done(), "that they failed is not durable yet"
            synced[1].set_result(None)
            assert (await first).repeated is False
            assert (await again) == await mq.broker.hand_back(HANDED, frame)
        assert mq.broker.group_state("orders", "billing").retrying == 2

    disk.run(scenario)


def test_a_hand_over_that_is_told_again_fails_as_the_first_does_and_is_taken_the_next_time(
    disk: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(mq: Bench) -> None:
        await mq.attach()
        frame = encode([b"a"], producer_id=7, producer_seq=1)
        with monkeypatch.context() as patch:
            synced = slow_sync(mq, patch)
            told = [asyncio.ensure_future(mq.broker.hand_back(HANDED, frame)) for _ in range(3)]
            await several_turns()
            told[0].cancel()
            await several_turns()
            synced[0].set_exception(DiskFull("no room"))
            for one in told[1:]:
                with pytest.raises(DiskFull):
                    await one
        assert (await mq.broker.hand_back(HANDED, frame)).repeated is False

    disk.run(scenario)
