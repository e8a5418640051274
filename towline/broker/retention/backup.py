"""Backups of a log store: the log is held while a copy is made, and a copy is checked by a start on it.

Documents of `config/` are as of some moment of the log; a start replays what came behind it. So a copy is whole if its
documents are older than the end of its log, and nothing was dropped in between that they need. A backup therefore has
all documents saved, copies them, asks for the end of the log, and copies the log up to there; meanwhile the broker
neither trims streams for its own sake nor deletes segments.
"""

from __future__ import annotations

import logging
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from towline.broker.epoch import Epoch
from towline.errors import BadRequest, Conflict, QueueFull
from towline.protocol.backup import BackupBegun, BackupHeld, HoldBackup
from towline.settings import BrokerSettings
from towline.store.log import LogSettings, LogStore
from towline.store.log.offline.backup import lay_out

if TYPE_CHECKING:
    from towline.broker.broker import Broker
    from towline.clock import Clock
    from towline.store import Store

__all__ = ["Backups", "Holdings", "holdings_of", "renewed_epoch"]

log = logging.getLogger("towline.broker")

LEASE_S: Final = 60.0
HELD_MAX: Final = 10
PROBLEMS_MAX: Final = 100
RESTARTS_MAX: Final = 1_000
"""Between a backup and its restore."""


class Backups:
    """The backups of this store that are under way."""

    def __init__(self, store: Store, clock: Clock, url: str) -> None:
        self._store, self._clock, self._url = store, clock, url
        self._held: dict[str, float] = {}
        """By ticket, until when."""

    def check(self) -> LogStore:
        """Raise why this store cannot be backed up."""
        if isinstance(self._store, LogStore):
            return self._store
        if self._url.startswith("mysql:"):
            raise BadRequest(
                "the messages of this broker are in a database: back that up, all of it at one point in time "
                "(mariadb-backup, or a dump with --single-transaction)"
            )
        raise BadRequest("a memory store holds nothing that outlives its broker: there is nothing to back up")

    def begin(self) -> BackupBegun:
        store = self.check()
        self._expire()
        if len(self._held) >= HELD_MAX:
            raise QueueFull(f"{HELD_MAX} backups of this broker are being made already: wait for one of them")
        ticket = secrets.token_hex(8)
        self._held[ticket] = self._clock.steady_s() + LEASE_S
        log.info("a backup begins: retention waits for it")
        return BackupBegun(ticket, str(store.folder), (store.folder / "lock").stat().st_ino, LEASE_S)

    async def hold(self, request: HoldBackup) -> BackupHeld:
        store = self.check()
        self._expire()
        if request.ticket not in self._held:
            raise Conflict("the broker does not hold its log for this backup any more: make it anew")
        if request.done:
            del self._held[request.ticket]
        else:
            self._held[request.ticket] = self._clock.steady_s() + LEASE_S
        segment, position = await store.end()
        return BackupHeld(segment, position, self._clock.now_us())

    def are_held(self) -> bool:
        """Whether nothing may be dropped now. A disk that is nearly full needs retention more than a backup."""
        self._expire()
        if self._held and self.check().is_short():
            log.error("the disk is nearly full: retention does not wait for the backup that is being made")
            self._held.clear()
        return bool(self._held)

    def _expire(self) -> None:
        now_s = self._clock.steady_s()
        for ticket in [ticket for ticket, until_s in self._held.items() if until_s < now_s]:
            del self._held[ticket]
            log.warning("a backup was not heard of for %d s: retention does not wait for it any more", LEASE_S)


class Holdings(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a store's folder, as a broker recovers them."""

    topics: int = 0
    messages: int = 0
    delayed: int = 0
    prepared: int = 0
    groups: int = 0
    problems: list[str] = []
    """Errors that a start reports."""


async def holdings_of(folder: Path) -> Holdings:
    """Recover a broker on a folder, without changing it: on links to its sealed files, and copies of all others. Raises
    what a start would raise."""
    from towline.broker.broker import Broker

    with tempfile.TemporaryDirectory(prefix="towline-check-") as scratch, _errors() as problems:
        place = Path(scratch) / "store"
        lay_out(folder, place)
        store = await LogStore.open(place, LogSettings(segment_bytes=64 << 10, min_free_bytes=0))
        broker = await Broker.recovered(store, BrokerSettings(store=f"file:{place}"))
        try:
            return Holdings(
                topics=len(broker.topics),
                messages=_messages(broker),
                delayed=sum(broker.scheduler.schedule.counts.values()),
                prepared=len(broker.transactions),
                groups=sum(len(topic.groups) for topic in broker.topics.values()),
                problems=[text.replace(scratch, "") for text in problems],
            )
        finally:
            await broker.close()


def _messages(broker: Broker) -> int:
    bounds = [broker.store.bounds(lane.stream) for topic in broker.topics.values() for lane in topic.lanes]
    return sum(end - first for first, end, _ in bounds)


def renewed_epoch(document: bytes) -> bytes:
    """The epoch of a restored store: behind all that the broker may have had since the backup, so that no consumer of
    that time takes a new pull for one of its own."""
    known = msgspec.json.decode(document, type=Epoch)
    known.epoch += RESTARTS_MAX
    return msgspec.json.encode(known)


@contextmanager
def _errors() -> Iterator[list[str]]:
    """Collect errors that are logged meanwhile, instead of writing them to stderr."""
    found: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.ERROR and len(found) < PROBLEMS_MAX:
                found.append(record.getMessage())

    ours, keep = logging.getLogger("towline"), Keep()
    ours.addHandler(keep)
    before, ours.propagate = ours.propagate, False
    try:
        yield found
    finally:
        ours.removeHandler(keep)
        ours.propagate = before
