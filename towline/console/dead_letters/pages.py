"""Dead letters of a group, the newest first, page by page, cut to what is shown of them: of one broker, or of all that
keep their own.

Each broker numbers its own letters, so no number says where a page of all of them begins. The end of each page is
known, by broker; a page further on is reached by walking there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Final

from towline.client._async.client import Client
from towline.client.cluster.ids import Numbered, split_broker
from towline.client.consume.message import DeadLetter
from towline.client.results import Page
from towline.errors import NotFound, TooLarge, TowlineError, Unavailable

__all__ = ["LetterPages", "name_of", "number_of"]

DIGITS_MAX: Final = 18
STEP: Final = 1_000
READ_BYTES: Final = 512 << 20
"""That are read for one page: more takes too long."""
BODY_KEPT: Final = 1_024
TEXT_KEPT: Final = 2_000
HEADERS_KEPT: Final = ("towline-origin", "towline-attempt", "towline-reason", "towline-died-at")


def name_of(letter: DeadLetter) -> str:
    """Its number, with its broker where each numbers its own."""
    return f"{letter.number}@{letter.broker}" if letter.broker else str(letter.number)


def number_of(name: str) -> int:
    """The number in a name; it knows its broker. 0 if it is none."""
    number, broker = split_broker(name)
    found = int(number) if number.isdigit() and len(number) <= DIGITS_MAX else 0
    return Numbered(found, broker) if broker else found


class LetterPages:
    def __init__(self, mq: Client, topic: str, group: str, read_bytes: int = READ_BYTES) -> None:
        self._mq = mq
        self._read_bytes = read_bytes
        self._topic = topic
        self._group = group
        self._starts: dict[str, int] = {}
        self._untils: dict[int, dict[str, int]] = {}
        """By how many come before: up to which number the letters of each broker are still to come."""
        self.total = 0

    async def page(self, first: int, limit: int) -> list[DeadLetter]:
        """So many letters behind the `first` newest ones. The first page asks for the present end."""
        if not first or not self._untils:
            await self._look()
        at = max(one for one in self._untils if one <= first)
        while at < first:
            passed = len(await self._next(at, min(STEP, first - at)))
            if not passed:
                return []
            at += passed
        return await self._next(first, limit)

    async def _look(self) -> None:
        pages: dict[str, Page[DeadLetter]] = {}
        problem: TowlineError | None = None
        for broker in self._mq.separate_brokers() or [""]:
            try:
                pages[broker] = await self._ask(broker, 0, 1, max_bytes=1)
            except (NotFound, Unavailable) as error:  # it has nothing of this group, or is away
                problem = error
        if not pages and problem is not None:
            raise problem
        self._starts = {broker: int(page.start) for broker, page in pages.items()}
        self._untils = {0: {broker: int(page.end) for broker, page in pages.items()}}
        self.total = sum(page.end - page.start for page in pages.values())

    async def _next(self, at: int, limit: int) -> list[DeadLetter]:
        untils = dict(self._untils[at])
        found = [
            _newest_first(broker, await self._read(broker, max(until - limit, self._starts[broker]), until))
            for broker, until in untils.items()
        ]
        chosen = list(islice(merge(*found, key=lambda row: row[0]), limit))
        for _, broker, letter in chosen:
            untils[broker] = int(letter.number)
        self._untils[at + len(chosen)] = untils
        return [letter for _, _, letter in chosen]

    async def _read(self, broker: str, first: int, until: int) -> list[DeadLetter]:
        letters: list[DeadLetter] = []
        size = 0
        while first < until:
            page = await self._ask(broker, first, until - first)
            size += sum(one.size_bytes for one in page)
            if letters and size > self._read_bytes:
                raise TooLarge(
                    f"the dead letters of group {self._group} on topic {self._topic} are too large to turn so many "
                    "over at once: look at fewer, or export them"
                )
            letters += map(_cut, page)
            if page.next <= first:
                break
            first = int(page.next)
        return letters

    async def _ask(self, broker: str, first: int, count: int, max_bytes: int = 4 << 20) -> Page[DeadLetter]:
        return await self._mq.dead_letters(
            self._topic, self._group, first=first, max_messages=count, max_bytes=max_bytes, broker=broker or None
        )


def _cut(letter: DeadLetter) -> DeadLetter:
    """What lists show of it, and filters look at: a thousand whole ones may not fit into memory."""
    letter.body = letter.body[:BODY_KEPT]
    letter.key, letter.shard_key = letter.key and letter.key[:TEXT_KEPT], None
    headers = letter.headers
    letter.headers = {name: headers[name][:TEXT_KEPT] for name in HEADERS_KEPT if name in headers}
    return letter


def _newest_first(broker: str, letters: Sequence[DeadLetter]) -> Iterator[tuple[int, str, DeadLetter]]:
    """By the time, but never against the numbers, should a clock have been set back."""
    least_us: int | None = None
    for letter in reversed(letters):
        least_us = letter.died_at_us if least_us is None else min(least_us, letter.died_at_us)
        yield -least_us, broker, letter
