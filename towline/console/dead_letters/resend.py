"""Sending dead letters again, at a rate, with the outcome of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from towline.client._async.client import Client
from towline.client.consume.message import DeadLetter
from towline.errors import NotFound, TowlineError

__all__ = ["Fits", "Resend", "open_letters"]

PAGE: Final = 500
FAILURES_MAX: Final = 1_000


Fits = Callable[[DeadLetter], bool]


async def open_letters(
    client: Client, topic: str, group: str, fits: Fits | None
) -> AsyncIterator[tuple[int, list[int]]]:
    """The number of letters searched, and the numbers of those that were not sent again and fit: oldest first, some at
    a time."""
    at = 0
    while True:
        page = await client.dead_letters(topic, group, first=at, max_messages=PAGE)
        yield len(page), [one.number for one in page if not one.resent and (fits is None or fits(one))]
        if page.next <= at or page.next >= page.end:
            return
        at = page.next


class Resend:
    """One job. It goes on while the page is open, until it is done or stopped."""

    def __init__(self, client: Client, topic: str, group: str, *, per_s: float) -> None:
        self._client = client
        self._topic = topic
        self._group = group
        self._per_s = min(max(per_s, 1.0), 100_000.0)
        self.sent = 0
        self.looked = 0
        """Of all dead letters, if all were to be searched."""
        self.failed: list[tuple[int, str]] = []
        self.stopped = False

    async def run(self, numbers: Sequence[int] | None, told: Callable[[], None], fits: Fits | None = None) -> None:
        """Send these again; or all, or all that fit."""
        if numbers is not None:
            await self._some(list(numbers), told)
            return
        async for looked, some in open_letters(self._client, self._topic, self._group, fits):
            await self._some(some, told)
            if self.stopped:
                return
            self.looked += looked
            told()

    async def _some(self, numbers: list[int], told: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        step = max(min(round(self._per_s / 4), 200), 1)
        for at in range(0, len(numbers), step):
            if self.stopped:
                return
            begin_s = loop.time()
            chunk = numbers[at : at + step]
            await self._send(chunk)
            told()
            await asyncio.sleep(max(len(chunk) / self._per_s - (loop.time() - begin_s), 0))

    async def _send(self, chunk: list[int]) -> None:
        try:
            self.sent += await self._client.resend(self._topic, self._group, chunk)
        except NotFound:
            # One of them is refused: find out which.
            for number in chunk:
                await self._one(number)
        except TowlineError as error:
            self._note([(number, str(error)) for number in chunk])
            self.stopped = not isinstance(error, NotFound)

    async def _one(self, number: int) -> None:
        try:
            self.sent += await self._client.resend(self._topic, self._group, [number])
        except TowlineError as error:
            self._note([(number, str(error))])

    def _note(self, failures: list[tuple[int, str]]) -> None:
        self.failed += failures[: FAILURES_MAX - len(self.failed)]
