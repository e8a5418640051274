"""Sending to ordered topics, sans I/O: the client finds the shard of each message.

A client takes a topic for a shared one until its broker refuses that (`WrongShard`), so that sends to shared topics
cost nothing more. Then it asks for the number of shards, remembers it, and sends again.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar, cast

from crc32c import crc32c

from towline.client import requests
from towline.client.link.connection import Buffer, Call
from towline.client.link.flow import Flow, Start
from towline.client.produce.encode import (
    FOREVER,
    Body,
    Columns,
    FrameEncoder,
    Lifetimes,
    as_bodies,
    as_body,
    as_keys,
    too_large,
)
from towline.client.produce.receipts import Receipts, ShardReceipts, places
from towline.errors import BadRequest, ProtocolError, WrongShard
from towline.model import Priority, Receipt, check_topic
from towline.protocol.messages import FrameHead, Send, Sent
from towline.protocol.topics import ShardCount, Sharded

__all__ = [
    "Common",
    "Content",
    "KnownKeys",
    "ShardMap",
    "count_shards",
    "joined",
    "not_ordered",
    "send",
    "send_counted",
    "send_many",
    "shard_of",
    "shards_by_key",
    "shards_of",
]

T = TypeVar("T")

_FRAMES_MAX: Final = 4
"""Messages for many shards go in larger batches: so many full frames' worth, or the frames would be small."""
_HEAD_BYTES: Final = 24
"""Size of a frame's entry in the head of its request, besides the topic's name."""
_KNOWN_MAX: Final = 10_000
_KEYS_MAX: Final = 10_000
_KEY_LENGTH_MAX: Final = 200
_KEYS_OF_MAX: Final = 4
DEFAULT: Final[Priority] = "middle"


def shard_of(topic: str, shards: int, key: str | None, shard_key: str | None, priority: Priority) -> int:
    """The shard of a message: the same for all that have the same shard key."""
    return shards_by_key(topic, shards, [key if shard_key is None else shard_key], priority)[0]


def shards_by_key(
    topic: str, shards: int, chosen: Sequence[str | None], priority: Priority, known: KnownKeys | None = None
) -> list[int]:
    if priority != DEFAULT:
        raise BadRequest(f"topic {topic} is ordered, with {shards} shards: there is no priority {priority!r} in it")
    if known is not None and (found := known.look_up(chosen)) is not None:
        return found
    if not all(chosen):
        raise BadRequest(
            f"topic {topic} is ordered, with {shards} shards: give a shard_key, or a key, to say which messages must "
            "stay in order"
        )
    keys = cast("Sequence[str]", chosen)
    return _hashed(keys, shards) if known is None else known.shards_of(keys, shards)


def _hashed(keys: Iterable[str], shards: int) -> list[int]:
    # No function of our own for each: this is where the time goes.
    return [crc32c(key.encode()) % shards for key in keys]


class KnownKeys:
    """The shards of frequent keys: to look one up takes a tenth of the time of its hash."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def look_up(self, keys: Sequence[str | None]) -> list[int] | None:
        """The shards of these keys, if all are known: then all are valid, too."""
        if not isinstance(keys, list | tuple) or len(keys) < 2:
            return None
        try:
            # All with one call: half the time of a call for each.
            found = list(itemgetter(*keys)(self._known))
        except (KeyError, TypeError):
            return None
        # An instance of a subclass of str only looks like a known key.
        return found if set(map(type, keys)) == {str} else None

    def shards_of(self, keys: Sequence[str], shards: int) -> list[int]:
        """The shards of these keys, which are known from now on if they come often."""
        known = self._known
        distinct = set(keys)
        if len(distinct) > min(len(keys) // 2, _KEYS_MAX) or max(map(len, distinct)) > _KEY_LENGTH_MAX:
            return _hashed(keys, shards)
        if len(known) + len(distinct) > _KEYS_MAX:
            known = self._known = {}
        known.update(zip(distinct, _hashed(distinct, shards), strict=True))
        return list(map(known.__getitem__, keys))


def not_ordered(topic: str) -> BadRequest:
    return BadRequest(
        f"topic {topic} is not an ordered one, so a shard key has no meaning there: leave it out, or create the topic "
        "with shards=N first"
    )


def shards_of(topic: str, shards: int, content: Content, priority: Priority) -> list[int]:
    """The shards of all messages of a call."""
    given, keys = content.shard_keys, content.keys
    none: Sequence[str | None] = [None] * len(content.bodies)
    own, other = none if given is None else given, none if keys is None else keys
    chosen = [key if one is None else one for one, key in zip(own, other, strict=True)]
    return shards_by_key(topic, shards, chosen, priority)


def count_shards(topic: str) -> Flow[Sharded]:
    """Ask a broker for the number of shards of a topic, if it knows the topic."""
    answer = yield Call(ShardCount(check_topic(topic)))
    if not isinstance(answer, Sharded):
        raise ProtocolError(f"ShardCount was answered by {type(answer).__name__}")
    return answer


class ShardMap:
    """The number of shards of topics, as far as this client knows."""

    __slots__ = ("_counts", "_keys")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._keys: dict[int, KnownKeys] = {}

    def get(self, topic: str) -> int | None:
        return self._counts.get(topic)

    def forget(self, topic: str) -> None:
        self._counts.pop(topic, None)

    def put(self, topic: str, shards: int) -> None:
        if len(self._counts) >= _KNOWN_MAX:
            self._counts.clear()
        self._counts[topic] = shards

    def keys(self, shards: int) -> KnownKeys:
        """The known keys where there are so many shards: they are the same for all topics."""
        known = self._keys.get(shards)
        if known is None:
            if len(self._keys) >= _KEYS_OF_MAX:
                self._keys.clear()
            known = self._keys[shards] = KnownKeys()
        return known

    def look_up(self, topic: str) -> Flow[int]:
        """Ask the broker."""
        answer = yield from count_shards(topic)
        self.put(topic, answer.shards)
        return answer.shards

    def find(self, topic: str, *, needed: bool) -> Flow[int]:
        """The number of shards, asked for if it is not known. `needed`: by a shard key, which a shared topic has no use
        for."""
        shards = self._counts.get(topic)
        if not shards:
            shards = yield from self.look_up(topic)
        if needed and not shards:
            raise not_ordered(topic)
        return shards


class Common(NamedTuple):
    """The fields that all messages of one call share."""

    sender: FrameEncoder
    shards: ShardMap
    priority: Priority
    durability: int
    compress: bool
    max_request_bytes: int
    lives: Lifetimes = FOREVER


class Content(NamedTuple):
    """The messages of one call, column by column."""

    bodies: Sequence[Body]
    keys: requests.Keys = None
    headers: requests.Headers = None
    shard_keys: requests.Keys = None
    dedup_ids: requests.Keys = None
    deliver_at_us: Sequence[int] | None = None

    @classmethod
    def of_one(
        cls,
        body: Body,
        key: str | None,
        headers: Mapping[str, str] | None,
        shard_key: str | None,
        *,
        dedup_id: str | None = None,
        deliver_at_us: int = 0,
    ) -> Content:
        return cls(
            [as_body(body)],
            [key],
            [headers],
            None if shard_key is None else [shard_key],
            None if dedup_id is None else [dedup_id],
            [deliver_at_us] if deliver_at_us else None,
        )


def joined(topic: str, count: int, parts: Sequence[tuple[Sequence[int], Receipts]]) -> Receipts:
    """The receipts of a call whose messages went to several brokers; with each part, its indices in the call."""
    receipts = ShardReceipts(topic, count)
    for numbers, some in parts:
        for number, receipt in zip(numbers, some, strict=True):
            receipts.put(receipt.lane, receipt.seq, [number], receipt.appended_at_us)
    return receipts


def send(common: Common, topic: str, content: Content) -> Flow[Receipt]:
    """One message to a topic that is ordered, or may be."""
    return (yield from send_many(common, topic, content))[0]


def send_many(common: Common, topic: str, content: Content) -> Flow[Receipts]:
    """Find the shards, and look again if the broker refuses them."""
    content = content._replace(bodies=as_bodies(content.bodies))
    needed = content.shard_keys is not None
    shards = common.shards.get(topic) or 0
    for last in (False, True):
        if last or (needed and not shards):
            shards = yield from common.shards.find(topic, needed=needed)
        try:
            return (yield from send_counted(common, topic, shards, content))
        except WrongShard:
            common.shards.forget(topic)
            if last:
                raise
    raise AssertionError("the second time is the last")


def send_counted(common: Common, topic: str, shards: int, content: Content) -> Flow[Receipts]:
    """Send checked bodies to a topic with so many shards. Cut into batches as ever; each has a frame for every shard
    that it touches, and is stored whole or not at all."""
    if not shards:
        return (yield from _send_shared(common, topic, content))
    return (yield from _send_batch(_Batch(common, topic, shards, content), common.durability))


def _send_shared(common: Common, topic: str, content: Content) -> Flow[Receipts]:
    return (
        yield from requests.send_many(
            common.sender,
            topic,
            cast("Sequence[bytes]", content.bodies),
            keys=content.keys,
            priority=common.priority,
            headers=content.headers,
            durability=common.durability,
            compress=common.compress,
            max_request_bytes=common.max_request_bytes,
            dedup_ids=content.dedup_ids,
            deliver_at_us=content.deliver_at_us,
            lives=common.lives,
        )
    )


class _Unit(NamedTuple):
    """Messages that are stored together: a frame for each shard, and one for its delayed messages; with their indices
    in the call."""

    lanes: list[int]
    frames: Sequence[Buffer]
    lengths: Sequence[int]
    numbers: list[list[int]]


class _Batch:
    """Many messages of one topic, by shard."""

    def __init__(self, common: Common, topic: str, shards: int, content: Content) -> None:
        limit = common.max_request_bytes - requests.HEAD_ROOM
        shard_keys, known = content.shard_keys, common.shards.keys(shards)
        lanes = known.look_up(content.keys) if content.keys is not None and shard_keys is None else None
        columns = Columns(
            cast("Sequence[bytes]", content.bodies),
            content.keys,
            content.headers,
            content.dedup_ids,
            content.deliver_at_us if any(content.deliver_at_us or ()) else None,
            max_frame_bytes=limit,
            lives=common.lives,
            valid_keys=lanes is not None,
        )
        if shard_keys is not None and len(shard_keys) != len(columns.bodies):
            raise BadRequest(f"{len(shard_keys)} shard keys for {len(columns.bodies)} bodies")
        self.topic = topic
        self.shards = shards
        self._common = common
        self._columns = columns
        self._shard_keys = None if shard_keys is None else as_keys(shard_keys)
        if lanes is None or common.priority != DEFAULT:
            keys, own = columns.keys or [None] * len(columns.bodies), self._shard_keys
            chosen = keys if own is None else [key if one is None else one for one, key in zip(own, keys, strict=True)]
            lanes = shards_by_key(topic, shards, chosen, common.priority, known)
        self._lanes = lanes

    def __len__(self) -> int:
        return len(self._lanes)

    def units(self) -> Iterator[_Unit]:
        for begin, end in self._columns.cuts(min(self.shards, _FRAMES_MAX)):
            yield from self._encoded(begin, end)

    def _encoded(self, begin: int, end: int) -> Iterator[_Unit]:
        lanes, numbers = self._by_lane(begin, end)
        unit = _Unit(lanes, *self._frames(numbers), numbers)
        if sum(unit.lengths) + len(unit.lanes) * (len(self.topic) + _HEAD_BYTES) <= self._columns.limit:
            yield unit
            return
        if end - begin == 1:
            raise too_large(len(self._columns.bodies[begin]), self._columns.limit)
        middle = (begin + end) // 2
        yield from self._encoded(begin, middle)
        yield from self._encoded(middle, end)

    def _by_lane(self, begin: int, end: int) -> tuple[list[int], list[list[int]]]:
        """The shards, and the messages that go to each in one frame: delayed ones apart from others."""
        by_lane: Mapping[int, list[int]] | list[list[int]]
        times, lanes = self._columns.times, self._lanes[begin:end]
        if times is not None:
            lanes = [~lane if time else lane for lane, time in zip(lanes, times[begin:end], strict=True)]
        # A list is quicker than a dict; but it has a place for each shard, whether messages go there or not.
        plain = times is None and self.shards <= len(lanes)
        by_lane = [[] for _ in range(self.shards)] if plain else defaultdict(list)
        # No step of our own for each message: this, too, is where the time goes.
        lists = itemgetter(*lanes)(by_lane) if len(lanes) > 1 else (by_lane[lanes[0]],)
        deque(map(list.append, lists, range(begin, end)), maxlen=0)
        found = enumerate(by_lane) if isinstance(by_lane, list) else by_lane.items()
        filled = {lane: numbers for lane, numbers in found if numbers}
        return [max(lane, ~lane) for lane in filled], list(filled.values())

    def _frames(self, numbers: list[list[int]]) -> tuple[Sequence[Buffer], Sequence[int]]:
        """The frames, maybe in one piece, and their lengths."""
        columns, common = self._columns, self._common
        if len(numbers) == 1 or columns.times is not None or columns.dedup_ids is not None or common.compress:
            frames = [self._frame(some) for some in numbers]
            return frames, [len(frame) for frame in frames]
        whole, lengths = common.sender.series(
            numbers,
            columns.bodies,
            columns.lives,
            sizes=self._columns.sizes,
            keys=columns.keys,
            headers=columns.headers,
            shard_keys=self._shard_keys,
        )
        return [whole], lengths

    def _frame(self, numbers: list[int]) -> Buffer:
        columns, common = self._columns, self._common
        return common.sender.frame(
            _chosen(columns.bodies, numbers),
            _chosen(columns.keys, numbers),
            _chosen(columns.headers, numbers),
            common.compress,
            _chosen(columns.dedup_ids, numbers),
            _times_of(columns.times, numbers),
            shard_keys=_chosen(self._shard_keys, numbers),
            **columns.lives.columns(len(numbers)),
        )


def _send_batch(batch: _Batch, durability: int) -> Flow[Receipts]:
    """One unit after the other, so that one that fails is followed by none; each is made while the one before it is in
    flight."""
    receipts = ShardReceipts(batch.topic, len(batch))
    before: tuple[Call, _Unit] | None = None
    for unit in batch.units():
        heads = zip(unit.lanes, unit.lengths, strict=True)
        request = Send([FrameHead(batch.topic, lane, length, batch.shards) for lane, length in heads], durability)
        call = Call(request, unit.frames)
        if before is not None:
            yield from _sent(receipts, *before)
        yield Start(call)
        before = call, unit
    if before is not None:
        yield from _sent(receipts, *before)
    return receipts


def _sent(receipts: ShardReceipts, call: Call, unit: _Unit) -> Flow[None]:
    answer = yield call
    if not isinstance(answer, Sent):
        raise ProtocolError(f"a send was answered by {type(answer).__name__}")
    if not answer.repeats and not answer.delayed:
        receipts.put_unit(unit.lanes, answer.firsts, unit.numbers, answer.appended_at_us)
        return
    shards = call.request.frames[0].shards if isinstance(call.request, Send) else 0
    for n, (lane, first, numbers) in enumerate(zip(unit.lanes, answer.firsts, unit.numbers, strict=True)):
        mine = [repeat for repeat in answer.repeats if repeat[0] == n]
        delayed = n in answer.delayed
        found = places(lane, first, len(numbers), answer.appended_at_us, mine, delayed=delayed, shards=shards)
        for number, (at, seq, at_us) in zip(numbers, found, strict=True):
            receipts.put(at, seq, [number], at_us)


def _times_of(times: Sequence[int] | None, numbers: list[int]) -> list[int] | None:
    """The messages of one frame are all delayed, or none is."""
    return None if times is None or not times[numbers[0]] else [times[number] for number in numbers]


def _chosen(column: Sequence[T] | None, numbers: list[int]) -> list[T] | None:
    return None if column is None else list(map(column.__getitem__, numbers))
