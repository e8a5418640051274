"""Staged frames, and the epochs that sinks have published. Pure.

    ──Staged──► STAGED ──Decided──► PUBLISHING ──Advanced … the last one──► PUBLISHED
                  └────Dropped──► gone

`Staged` is the head of the record that holds the frames; the others are marks. Once an epoch is decided it will be
published whole, from where it stands, however often the broker stops meanwhile. A record that the store does not take
is held; the others are published, but not the next epoch of that sink.

A sink is of the token that published its last epoch.

An epoch has a digest of its contents, if the sink gives one. The same number comes again when a sink does not know that
it was published: with the same digest it is the same epoch, with another one an error, never taken for the same.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from towline.clock import is_ahead
from towline.errors import Conflict, NotFound, QueueFull, Refused

__all__ = [
    "Advanced",
    "Decided",
    "Dropped",
    "Publications",
    "PublicationsSnapshot",
    "PublishMark",
    "Running",
    "Sink",
    "StagedHead",
    "Waiting",
    "decode_publish_mark",
    "decode_staged",
    "encode_publish_mark",
    "encode_staged",
]

STAGED_MAX: Final = 200_000
"""Records that may wait to be published."""
SINKS_MAX: Final = 20_000
"""Sinks that are remembered. Of the token that has most of them, the longest silent is forgotten first."""
DIGESTS_MAX: Final = 100
"""Epochs of a sink whose digests are remembered: as many batches as Spark's checkpoint keeps."""


class StagedHead(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The head of a record of staged frames."""

    at_us: int
    token: bytes
    source: bytes
    frames: list[tuple[str, int, int]]
    """Topic, lane number and number of messages of each frame."""

    @property
    def messages(self) -> int:
        return sum(count for _, _, count in self.frames)


class _Mark(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    at_us: int


class Decided(_Mark, frozen=True, array_like=True, tag=1):
    """The records that the sink publishes as this epoch."""

    sink: str
    epoch: int
    records: list[int]
    digest: bytes = b""
    members: list[str] = []
    """The brokers over which the epoch is spread, in a cluster."""
    token: bytes = b""
    """The token of the sink from now on."""


class Advanced(_Mark, frozen=True, array_like=True, tag=2):
    """The number of records of the epoch that are in their lanes; in the same unit as the last of them."""

    sink: str
    epoch: int
    done: int
    held: bool = False
    """But the last of them is not: it is too large for the store, and waits for one that says the same without it."""


class Dropped(_Mark, frozen=True, array_like=True, tag=3):
    records: list[int]


PublishMark = Decided | Advanced | Dropped

_ENCODE = msgspec.msgpack.Encoder().encode
_MARK: msgspec.msgpack.Decoder[PublishMark] = msgspec.msgpack.Decoder(PublishMark)
_STAGED = msgspec.msgpack.Decoder(StagedHead)


def encode_publish_mark(mark: PublishMark) -> bytes:
    return _ENCODE(mark)


def decode_publish_mark(record: bytes) -> PublishMark:
    return _MARK.decode(record)


def encode_staged(head: StagedHead) -> bytes:
    return _ENCODE(head)


def decode_staged(record: bytes) -> StagedHead:
    return _STAGED.decode(record)


class Waiting(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A staged record."""

    size: int
    """The entries of its frame: the head, and its frames."""
    messages: int
    at_us: int
    token: bytes


class Running(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """An epoch that is being published."""

    epoch: int
    records: list[int]
    done: int = 0
    digest: bytes = b""
    members: list[str] = []
    held: list[int] = []
    """The indices of records before `done` that are not published."""
    token: bytes = b""

    @property
    def left(self) -> list[int]:
        """The indices of the records that are not published yet."""
        return [*self.held, *range(self.done, len(self.records))]


class Sink(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    epoch: int
    at_us: int
    digests: dict[int, bytes] = {}
    """Of its last epochs, ascending; without those that had none."""
    members: list[str] = []
    """Of the last epoch."""
    token: bytes = b""
    """The token of its publisher; empty is not known."""


class PublicationsSnapshot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    staged_end: int
    """The position in the stream of staged records: those before it are included."""
    marks_end: int
    """The position in the stream of marks: those before it are included."""
    staged: list[tuple[int, Waiting]]
    running: list[tuple[str, Running]]
    sinks: list[tuple[str, Sink]]


class Publications:
    def __init__(self) -> None:
        self.staged: OrderedDict[int, Waiting] = OrderedDict()
        """By the number of the record, ascending."""
        self.running: dict[str, Running] = {}
        self.sinks: OrderedDict[str, Sink] = OrderedDict()
        """The last epoch of each, the longest silent first."""
        self._owned: Counter[bytes] = Counter()
        """Sinks by token."""
        self.mended = 0
        """How often times were corrected that are only in a snapshot."""

    # Deciding

    def admit(self) -> None:
        """Raises if there is no room to stage more."""
        if len(self.staged) >= STAGED_MAX:
            raise QueueFull(f"{STAGED_MAX} staged records wait to be published: publish or drop them first")

    def last_epoch(self, sink: str) -> Sink:
        found = self.sinks.get(sink, Sink(-1, 0))
        running = self.running.get(sink)
        return found if running is None else _next(found, running, 0)

    def decide(  # noqa: PLR0917 all of it is the epoch
        self,
        sink: str,
        epoch: int,
        records: Sequence[int],
        token: bytes,
        now_us: int,
        digest: bytes = b"",
        members: Sequence[str] = (),
    ) -> Decided | None:
        """The mark that decides an epoch; None if it was decided before."""
        if self._is_decided(sink, epoch, digest):
            return None
        taken = self._taken()
        for record in records:
            waiting = self.staged.get(record)
            if waiting is None or record in taken:
                raise NotFound(
                    f"staged record {record} for {sink} is not here: it was dropped after a day, or published already"
                )
            if waiting.token != token:
                raise Refused(f"record {record} was staged under another token: only that one may publish it")
        return Decided(now_us, sink, epoch, list(records), digest, list(members), token)

    def _is_decided(self, sink: str, epoch: int, digest: bytes) -> bool:
        """Raises if another one was, under the same number. The last epoch comes again when the sink was stopped before
        it could note it; an older one never does, unless the sink was set back."""
        last = self.last_epoch(sink)
        if epoch > last.epoch:
            return False
        known = last.digests.get(epoch, b"")
        if known and digest and known != digest:
            raise Conflict(f"epoch {epoch} of sink {sink} was published before, with other contents")
        if epoch < last.epoch and not (known and digest):
            raise Conflict(
                f"sink {sink} has published epoch {last.epoch} already; what was in epoch {epoch} is not remembered"
            )
        return True

    def drop(self, records: Iterable[int], token: bytes, now_us: int) -> Dropped | None:
        """The mark that drops these records, as far as they may be dropped; None if there are none."""
        taken = self._taken()
        gone = [
            record
            for record in records
            if record in self.staged and record not in taken and self.staged[record].token == token
        ]
        return Dropped(now_us, gone) if gone else None

    def expire(self, before_us: int, now_us: int) -> Dropped | None:
        """The mark that drops the records that were staged before this time and never published."""
        taken = self._taken()
        old: list[int] = []
        for record, waiting in self.staged.items():
            if is_ahead(waiting.at_us, now_us):
                self._set_right(now_us)
            if waiting.at_us >= before_us:
                break
            if record not in taken:
                old.append(record)
        return Dropped(now_us, old) if old else None

    def _set_right(self, now_us: int) -> None:
        """Records that were staged by a clock that was ahead count as staged now."""
        for waiting in self.staged.values():
            if is_ahead(waiting.at_us, now_us):
                waiting.at_us = now_us
        self.mended += 1

    def _taken(self) -> set[int]:
        return {record for running in self.running.values() for record in running.records}

    # Applying

    def staged_at(self, record: int, head: StagedHead) -> Waiting:
        waiting = self.staged[record] = Waiting(1 + len(head.frames), head.messages, head.at_us, head.token)
        return waiting

    def apply(self, mark: PublishMark) -> None:
        match mark:
            case Decided():
                self.running[mark.sink] = Running(
                    mark.epoch, mark.records, 0, mark.digest, mark.members, token=mark.token
                )
                if not mark.records:
                    self._finish(mark.sink, mark.at_us)
            case Advanced():
                running = self.running.get(mark.sink)
                if running is not None and running.epoch == mark.epoch:
                    running.done = max(running.done, mark.done)
                    held = {*running.held, mark.done - 1} if mark.held else {*running.held} - {mark.done - 1}
                    running.held = sorted(held)
                    if not running.left:
                        self._finish(mark.sink, mark.at_us)
            case Dropped():
                for record in mark.records:
                    self.staged.pop(record, None)

    def _finish(self, sink: str, at_us: int) -> None:
        running = self.running.pop(sink)
        for record in running.records:
            self.staged.pop(record, None)
        before = self.sinks.pop(sink, Sink(-1, 0))
        self._forget_of(before.token)
        self.sinks[sink] = found = _next(before, running, at_us)
        self._owned[found.token] += 1
        if len(self.sinks) > SINKS_MAX:
            self._forget_one()

    def _forget_one(self) -> None:
        """Forget a sink of the token that has most: nobody makes others' be forgotten."""
        [(token, _)] = self._owned.most_common(1)
        del self.sinks[next(name for name, one in self.sinks.items() if one.token == token)]
        self._forget_of(token)

    def _forget_of(self, token: bytes) -> None:
        self._owned[token] -= 1
        if self._owned[token] <= 0:
            del self._owned[token]

    # Recovery

    def first_needed(self, end: int) -> int:
        """The first staged record that is still needed; `end` if there is none."""
        return next(iter(self.staged), end)

    def snapshot(self, staged_end: int, marks_end: int) -> PublicationsSnapshot:
        running = [
            (sink, msgspec.structs.replace(one, records=list(one.records))) for sink, one in self.running.items()
        ]
        return PublicationsSnapshot(staged_end, marks_end, list(self.staged.items()), running, list(self.sinks.items()))

    def restore(self, snapshot: PublicationsSnapshot) -> None:
        self.staged = OrderedDict(snapshot.staged)
        self.running = dict(snapshot.running)
        self.sinks = OrderedDict(snapshot.sinks)
        self._owned = Counter(one.token for one in self.sinks.values())


def _next(sink: Sink, running: Running, at_us: int) -> Sink:
    """The sink after this epoch."""
    digests = [*sink.digests.items(), (running.epoch, running.digest)] if running.digest else [*sink.digests.items()]
    return Sink(running.epoch, at_us, dict(digests[-DIGESTS_MAX:]), running.members, running.token)
