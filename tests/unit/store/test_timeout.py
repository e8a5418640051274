"""A driver that takes a cancellation for something else does not make it vanish."""

from __future__ import annotations

import asyncio

import pytest

from towline.store.sql.timeout import within


async def _swallow(raises: bool) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if raises:
            raise ConnectionError("lost connection") from None


@pytest.mark.parametrize("raises", [True, False])
async def test_a_swallowed_cancellation_is_one_again(raises: bool) -> None:
    async def ask() -> None:
        async with within(30):
            await _swallow(raises)
        raise AssertionError("it goes on")

    task = asyncio.create_task(ask())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_an_answer_that_takes_too_long_is_no_cancellation() -> None:
    with pytest.raises(TimeoutError):
        async with within(0.01):
            await asyncio.Event().wait()
    with pytest.raises(ConnectionError):
        async with within(0.01):
            await _swallow(raises=True)
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0
