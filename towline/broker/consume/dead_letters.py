"""Dead letters of a group: bury, list, revise, re-send, drop."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from towline.broker.consume.fetch import Fetched, collect
from towline.clock import SECOND_US, Clock
from towline.delivery import Bury, Part, Resend, Skip
from towline.delivery.group.events import Buried, Resent
from towline.errors import NotFound, TooLarge
from towline.frame import Frame, encode
from towline.model import (
    DIED_AT,
    DIED_ATTEMPT,
    DIED_ORIGIN,
    DIED_REASON,
    LANES,
    Durability,
    dead_stream,
    lane_name,
    message_id,
)
from towline.protocol import messages as wire
from towline.store import Append, Chunk

if TYPE_CHECKING:
    from towline.broker.consume.dispatcher import Dispatcher
    from towline.broker.consume.groups import Groups

__all__ = [
    "DeadLetterLog",
    "bury",
    "expire",
    "purge",
    "rank",
    "resend",
    "revise",
]


log = logging.getLogger("towline.broker")

ADDED: Final = (DIED_ORIGIN, DIED_ATTEMPT, DIED_REASON, DIED_AT)
LEFT_OUT: Final = ((DIED_REASON,), ADDED)
"""Headers without which a letter that is too large is tried."""

BATCH_MESSAGES: Final = 500
BATCH_BYTES: Final = 4 << 20
LETTERS_BYTES: Final = 16 << 20
"""Letters in one frame, unless it is a single one: they may have come compressed, and are not here."""
LETTER_OVERHEAD: Final = 64


class Letter(NamedTuple):
    lane: int
    body: bytes
    key: str | None
    headers: dict[str, str]
    shard_key: str | None = None
    limit: int = 0

    @property
    def size(self) -> int:
        """Its approximate size in a frame: characters count as one byte each."""
        headers = sum(len(name) + len(value) for name, value in self.headers.items())
        return len(self.body) + len(self.key or "") + headers + LETTER_OVERHEAD


class DeadLetters:
    """Those of all groups, for whoever sees to them."""

    def __init__(self, groups: Groups, durability: Durability) -> None:
        self._groups = groups
        self._durability = durability

    async def resend(self, request: wire.Resend) -> wire.Resent:
        return await resend(await self._of(request), request, self._durability)

    async def revise(self, request: wire.ReviseDead) -> wire.Revised:
        return await revise(await self._of(request), request, self._durability)

    async def purge(self, request: wire.PurgeDead) -> wire.DeadPurged:
        return await purge(await self._of(request), request.before)

    async def _of(self, request: wire.Resend | wire.ReviseDead | wire.PurgeDead) -> Dispatcher:
        dispatcher = await self._groups.buried(request.topic, request.group)
        dispatcher.use()
        return dispatcher


def dead_letters(dispatcher: Dispatcher) -> tuple[str, int, int]:
    """The stream of a group's dead letters, and its bounds."""
    stream = dead_stream(dispatcher.group.config.topic, dispatcher.group.config.name)
    first, end, _ = dispatcher.store.bounds(stream)
    return stream, first, end


def dead_waiting(dispatcher: Dispatcher) -> int:
    """Dead letters that were not sent again."""
    _, first, end = dead_letters(dispatcher)
    dispatcher.group.forget_resent(first)
    return end - first - dispatcher.group.resent_count


async def bury(dispatcher: Dispatcher, durability: Durability) -> None:
    """Copy all dying messages to the dead letters. The copy and its event are one unit, so that a crash leaves both or
    neither. Those that are too large stay dying: they are tried again when this is called later."""
    most = BATCH_MESSAGES
    dispatcher.refusals.keep(dispatcher.group.dying)
    while (chosen := _some(dispatcher, most)) and not dispatcher.closed:
        parts, reasons = list(chosen), list(chosen.values())
        fetched = await collect(dispatcher.store, dispatcher.lanes, _runs(parts), BATCH_BYTES)
        if dispatcher.closed:
            return
        if not all(map(dispatcher.group.dying.holds, parts)):
            # The group was moved meanwhile: some are dying no more.
            continue
        for span, why in fetched.lost:
            log.error("%s: a dead message cannot be read and is skipped: %s: %s", dispatcher.label, span, why)
            dispatcher.run(Skip(0, (span,), why))
        letters, buried = _compose(dispatcher, parts, reasons, fetched)
        if not letters:
            continue
        try:
            await _bury(dispatcher, letters, buried, durability)
            most = min(2 * most, BATCH_MESSAGES)
        except TooLarge as error:
            most = max(len(letters) // 2, 1)
            if len(letters) == 1 and dispatcher.group.dying.holds(next(iter(buried))):
                await _bury_less(dispatcher, letters[0], buried, error, durability)


def _some(dispatcher: Dispatcher, most: int) -> dict[Part, str]:
    """A few of the dying messages, with their reasons."""
    chosen: dict[Part, str] = {}
    for part, reason in dispatcher.group.dying.items():
        if not most:
            break
        if dispatcher.refusals.may_try(part):
            taken = part if part.count <= most else part._replace(count=most)
            chosen[taken] = reason
            most -= taken.count
    return chosen


def _runs(parts: Iterable[Part]) -> list[Part]:
    """The same messages in fewer parts, to be read: neighbours in one, whatever their attempts and reasons are."""
    runs: list[Part] = []
    for part in parts:
        last = runs[-1] if runs else None
        if last is not None and last.lane == part.lane and last.end == part.first:
            runs[-1] = last._replace(count=last.count + part.count)
        else:
            runs.append(part)
    return runs


def _compose(
    dispatcher: Dispatcher, parts: Sequence[Part], reasons: Sequence[str], fetched: Fetched
) -> tuple[list[Letter], dict[Part, str]]:
    """The letters of fetched messages, as many as go into a frame, and their parts, with the reasons."""
    died_at = f"{dispatcher.clock.now_us() / SECOND_US:.6f}"
    data, at, letters, buried = b"".join(fetched.buffers), 0, list[Letter](), dict[Part, str]()
    owner, room = 0, LETTERS_BYTES
    for one in fetched.parts:
        frame = Frame(data[at : at + one.length])
        at += one.length
        bodies = frame.bodies(one.start, one.start + one.count)
        sizes = list(accumulate(map(len, bodies)))
        count = max(bisect_right(sizes, room), 0 if letters else 1)
        if not count:
            break  # the rest is for the next frame
        room -= sizes[count - 1]
        first, end = one.first, one.first + count
        about: list[dict[str, str]] = []
        while first < end:
            # They were read in the order of the parts, some of which may have been lost.
            while not (parts[owner].lane == one.lane and parts[owner].first <= first < parts[owner].end):
                owner += 1
            part = parts[owner]
            piece = Part(part.lane, first, min(part.end, end) - first, part.attempt)
            buried[piece] = reasons[owner]
            about += [{DIED_ATTEMPT: str(part.attempt), DIED_REASON: reasons[owner], DIED_AT: died_at}] * piece.count
            first = piece.end
        letters += _letters(dispatcher, frame, one, bodies[:count], about)
        if count < one.count:
            break
    return letters, buried


async def _bury(
    dispatcher: Dispatcher, letters: Sequence[Letter], buried: Mapping[Part, str], durability: Durability
) -> None:
    now_us, reasons = dispatcher.clock.now_us(), list(buried.values())
    stream, _, end = dead_letters(dispatcher)
    copies = [Append(stream, _encode(letters, now_us), len(letters), control=True)]
    [event] = dispatcher.group.decide(Bury(tuple(buried), end), dispatcher.time.now_us())
    assert isinstance(event, Buried), event
    await dispatcher.record_copies(event, reasons, copies, durability).done
    dispatcher.obituary.note(len(letters), reasons[0])


async def _bury_less(
    dispatcher: Dispatcher, letter: Letter, buried: Mapping[Part, str], error: TooLarge, durability: Durability
) -> None:
    """A letter is too large, maybe only because of the headers about its death: these may be left out. The message
    itself may not, for it may be sent again."""
    [part] = buried
    for names in LEFT_OUT:
        kept = {name: value for name, value in letter.headers.items() if name not in names}
        try:
            await _bury(dispatcher, [letter._replace(headers=kept)], buried, durability)
            return
        except TooLarge as refused:
            error = refused
        if dispatcher.closed or not dispatcher.group.dying.holds(part):
            return
    dispatcher.group.set_apart(part)
    message = f"dying message {letter.headers[DIED_ORIGIN] or part.first}"
    dispatcher.refusals.note(part, f"{dispatcher.label}: {message}, which is too large for the dead letters,", error)


def _letters(
    dispatcher: Dispatcher, frame: Frame, one: wire.Part, bodies: Sequence[bytes], about: Sequence[dict[str, str]]
) -> list[Letter]:
    """Letters of the first messages of a part. `about` has the headers about the death of each."""
    count = len(bodies)
    stop = one.start + count
    keys = frame.keys(one.start, stop) or [None] * count
    headers = frame.headers(one.start, stop) or [{} for _ in range(count)]
    shard_keys = frame.shard_keys(one.start, stop) or [None] * count
    limits = frame.limits(one.start, stop) or [0] * count
    lane = rank(dispatcher, one.lane)
    return [
        Letter(
            lane,
            body,
            key,
            {**head, DIED_ORIGIN: _origin(dispatcher, one, number) or head.get(DIED_ORIGIN, ""), **death},
            shard_key,
            limit,
        )
        for number, (body, key, head, shard_key, limit, death) in enumerate(
            zip(bodies, keys, headers, shard_keys, limits, about, strict=True)
        )
    ]


def rank(dispatcher: Dispatcher, lane: int) -> int:
    """The priority of the group's own lane for a lane: a shard has none of its own."""
    group = dispatcher.group
    if lane >= group.topic_lanes:
        return lane - group.topic_lanes
    return lane if group.shards is None else LANES.index("middle")


def _origin(dispatcher: Dispatcher, one: wire.Part, number: int) -> str:
    """The place where a message was sent first; one that was sent again carries it already."""
    group = dispatcher.group
    if one.lane >= group.topic_lanes:
        return ""
    name = lane_name(one.lane, group.shards.count if group.shards is not None else 0)
    return message_id(group.config.topic, name, one.first + number)


def _encode(letters: Sequence[Letter], now_us: int) -> bytes:
    keys, headers = [letter.key for letter in letters], [letter.headers for letter in letters]
    shard_keys, limits = [letter.shard_key for letter in letters], [letter.limit for letter in letters]
    return encode(
        [letter.body for letter in letters],
        keys=keys if any(keys) else None,
        headers=headers if any(headers) else None,
        shard_keys=shard_keys if any(shard_keys) else None,
        limits=limits if any(limits) else None,
        produced_at_us=now_us,
    )


async def revise(dispatcher: Dispatcher, request: wire.ReviseDead, durability: Durability) -> wire.Revised:
    """Send one dead letter again, changed."""

    def change(letter: Letter) -> Letter:
        headers = letter.headers
        if request.headers is not None:
            kept = {DIED_ORIGIN: headers[DIED_ORIGIN]} if DIED_ORIGIN in headers else {}
            headers = {**request.headers, **kept}
        key = letter.key if request.key is None else request.key or None
        body = letter.body if request.body is None else request.body
        return letter._replace(body=body, key=key, headers=headers)

    chosen = wire.Resend(request.topic, request.group, [request.number])
    return wire.Revised((await resend(dispatcher, chosen, durability, change)).count)


async def purge(dispatcher: Dispatcher, before: int) -> wire.DeadPurged:
    """Drop the dead letters before this number; returns how many of them had not been sent again."""
    stream, first, end = dead_letters(dispatcher)
    until = min(before, end)
    going = sum(map(len, _not_resent(dispatcher, first, until)))
    if until > first:
        await dispatcher.store.trim(stream, until)
        log.warning("%s: %d dead letter(s) before number %d were purged", dispatcher.label, going, until)
    return wire.DeadPurged(going)


async def expire(dispatcher: Dispatcher) -> dict[str, int]:
    """Drop the dead letters that the group keeps no longer; returns the first that retention must not drop before
    that."""
    kept_s = dispatcher.group.config.dead_retention_s
    if not kept_s or dispatcher.closed:
        return {}
    stream, first, _ = dead_letters(dispatcher)
    oldest = await dispatcher.store.locate(stream, dispatcher.clock.now_us() - round(kept_s * SECOND_US))
    if oldest > first:
        await dispatcher.store.trim(stream, oldest)
        log.info("%s: %d dead letter(s) were older than %g s and are dropped", dispatcher.label, oldest - first, kept_s)
    return {stream: oldest}


async def resend(
    dispatcher: Dispatcher,
    request: wire.Resend,
    durability: Durability,
    change: Callable[[Letter], Letter] = lambda letter: letter,
) -> wire.Resent:
    """Append dead letters to the group's own lanes, where only this group gets them; as many at a time as a frame may
    hold. The copies and the event that marks the letters are one unit. A letter that a database refuses is not sent,
    and not marked; all others are."""
    stream, first, end = dead_letters(dispatcher)
    waiting = _not_resent(dispatcher, first, end) if not request.dead else []
    numbers = sorted(set(request.dead)) or list(islice(chain.from_iterable(waiting), request.limit))
    unknown = [number for number in numbers if not first <= number < end]
    if unknown:
        known = f"they are numbered {first} to {end - 1}" if first < end else "it has none"
        raise NotFound(f"{dispatcher.label} has no dead letter {unknown[0]}: {known}")
    dispatcher.group.decide(Resend(tuple(numbers)), dispatcher.time.now_us())  # it refuses all, or none
    at, refused = 0, dict[int, TooLarge]()
    while at < len(numbers):
        letters = [change(letter) for letter in await _read_letters(dispatcher, stream, numbers[at:])]
        refused |= await _send_some(dispatcher, numbers[at : at + len(letters)], letters, durability)
        at += len(letters)
    for number, error in refused.items():
        raise TooLarge(
            f"dead letter {number} of {dispatcher.label} stays where it is, {len(numbers) - len(refused)} of "
            f"{len(numbers)} were sent again: {error}"
        )
    return wire.Resent(len(numbers), max(sum(map(len, waiting)) - len(numbers), 0))


async def _send_some(
    dispatcher: Dispatcher, numbers: Sequence[int], letters: Sequence[Letter], durability: Durability
) -> dict[int, TooLarge]:
    """Send letters again; returns those that are too large."""
    try:
        await _send_again(dispatcher, numbers, letters, durability)
    except TooLarge as error:
        if len(letters) == 1:
            return {numbers[0]: error}
        half = len(letters) // 2
        return {
            **await _send_some(dispatcher, numbers[:half], letters[:half], durability),
            **await _send_some(dispatcher, numbers[half:], letters[half:], durability),
        }
    return {}


async def _send_again(
    dispatcher: Dispatcher, numbers: Sequence[int], letters: Sequence[Letter], durability: Durability
) -> None:
    by_lane: dict[int, list[Letter]] = {}
    for letter in letters:
        by_lane.setdefault(letter.lane, []).append(letter)
    now_us = dispatcher.clock.now_us()
    lanes = [dispatcher.lanes[dispatcher.group.topic_lanes + lane] for lane in by_lane]
    unit = [
        Append(lane.stream, _encode(some, now_us), len(some))
        for lane, some in zip(lanes, by_lane.values(), strict=True)
    ]
    [event] = dispatcher.group.decide(Resend(tuple(numbers)), dispatcher.time.now_us())
    assert isinstance(event, Resent), event
    appended = dispatcher.record_copies(event, (), unit, durability)
    for lane, first, one in zip(lanes, appended.firsts, unit, strict=False):
        lane.submitted(first, one, appended.at_us, appended.done)
    await appended.done
    for lane in lanes:
        lane.advance()
    dispatcher.wake()


def _not_resent(dispatcher: Dispatcher, first: int, end: int) -> list[range]:
    """The numbers between that were not sent again."""
    gaps, at = [], first
    for begin, count in dispatcher.group.resent:
        if begin + count > at:
            gaps.append(range(at, min(begin, end)))
            at = begin + count
    return [gap for gap in [*gaps, range(at, end)] if gap]


async def _read_letters(dispatcher: Dispatcher, stream: str, numbers: Sequence[int]) -> list[Letter]:
    """The first of these dead letters: as many as fit into a frame, one at least."""
    letters: list[Letter] = []
    room = LETTERS_BYTES
    while len(letters) < len(numbers):
        at, run = len(letters), 1
        number = numbers[at]
        while run < BATCH_MESSAGES and at + run < len(numbers) and numbers[at + run] == number + run:
            run += 1
        read = await dispatcher.store.read(stream, number, run, BATCH_BYTES)
        if not read.chunks or read.chunks[0].first != number:
            if letters:
                return letters  # earlier ones are sent
            reason = read.lost[0].reason if read.lost else "it was dropped"
            raise NotFound(
                f"dead letter {number} of {dispatcher.label} cannot be read: {reason}. Name others to send those, or "
                "purge it, with all before it"
            )
        whole = read.lost[0].first if read.lost else read.next
        for letter in chain.from_iterable(_letters_in(chunk) for chunk in read.chunks if chunk.first < whole):
            room -= letter.size
            if room < 0 and letters:
                return letters
            letters.append(letter)
    return letters


def _letters_in(chunk: Chunk) -> Iterator[Letter]:
    frame, start, stop = Frame(chunk.frame), chunk.start, chunk.start + chunk.count
    keys = frame.keys(start, stop) or [None] * chunk.count
    all_headers = frame.headers(start, stop) or [{}] * chunk.count
    shard_keys = frame.shard_keys(start, stop) or [None] * chunk.count
    limits = frame.limits(start, stop) or [0] * chunk.count
    for body, key, headers, shard_key, limit in zip(
        frame.bodies(start, stop), keys, all_headers, shard_keys, limits, strict=True
    ):
        origin = headers.get(DIED_ORIGIN, "")
        lane = next((n for n, name in enumerate(LANES) if f"/{name}/" in origin), 1)
        kept = {name: value for name, value in headers.items() if name not in (DIED_ATTEMPT, DIED_REASON, DIED_AT)}
        yield Letter(lane, body, key, kept, shard_key, limit)


EVERY_S: Final = 10.0
REASON_SHOWN: Final = 200


class DeadLetterLog:
    """Log lines about the dead letters of one group. However many messages die, and whatever the reasons, no line
    follows another within `EVERY_S`."""

    def __init__(self, label: str, clock: Clock) -> None:
        self._label = label
        self._clock = clock
        self._count = 0
        self._reason = ""
        self._told_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def note(self, count: int, reason: str) -> None:
        """Count dead letters; `reason` is that of one of them."""
        self._count += count
        self._reason = reason
        if self._timer is not None:
            return
        since_s = EVERY_S if self._told_s is None else self._clock.steady_s() - self._told_s
        if since_s >= EVERY_S:
            self.tell()
        else:
            self._timer = asyncio.get_running_loop().call_later(EVERY_S - since_s, self.tell)

    def tell(self) -> None:
        """Log the rest: when it is time, and at the end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._count:
            log.warning(
                "%s: %d message(s) went to the dead letters, the last because of: %s",
                self._label,
                self._count,
                self._reason[:REASON_SHOWN] or "(no reason given)",
            )
            self._count, self._told_s = 0, self._clock.steady_s()
