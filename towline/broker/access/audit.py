"""The audit log: actions, their principals and outcomes. Append-only, one JSON object a line.

Each line holds the SHA-256 of the line before it, so that a line that was changed or taken out is found. Beyond
`--audit-max-bytes` the oldest files go, and a line says so. Without a file (memory store) the last lines are kept in
memory.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from towline.broker.access.audit_files import (
    DROPPED,
    FIRST,
    AuditLine,
    Older,
    end_of,
    first_of,
    lines_before,
    older_files,
    older_path,
)
from towline.clock import Clock
from towline.errors import StoreFailed
from towline.files import open_private
from towline.protocol.access import Audit, AuditEntry, ListAudit
from towline.settings import BrokerSettings
from towline.store.log.write.disk import REAL

__all__ = ["AuditLog", "audit_path"]

log = logging.getLogger("towline.audit")

KEPT: Final = 10_000
FILES: Final = 8
"""Files that are kept, besides the one that is written to."""
SCAN_MAX: Final = 50_000
"""Lines read for one request."""
REFUSALS_A_MINUTE: Final = 100
"""Refusals logged a minute: strangers must not fill the disk."""
TEXT_MAX: Final = 300


class AuditLog:
    def __init__(self, path: Path | None, clock: Clock, max_bytes: int = 0) -> None:
        self.path = path
        self._clock = clock
        self._recent: deque[AuditEntry] = deque(maxlen=KEPT)
        self._number = 0
        self._hash = FIRST
        self._fd = -1
        self._end = 0
        self._first = 0
        """The number of the first line of the file that is written to."""
        self._older: list[Older] = []
        self._max_bytes = max_bytes
        self._file_bytes = max(max_bytes // FILES, 1)
        self._to_close: list[int] = []
        self._to_drop: list[Path] = []
        self._syncing: asyncio.Future[None] | None = None
        self._unsynced = False
        self._minute = -1
        self._refusals = 0
        self._left_out = 0

    @classmethod
    async def open(cls, path: Path | None, clock: Clock, max_bytes: int = 0) -> AuditLog:
        """About so many bytes are kept; 0 is all."""
        audit = cls(path, clock, max_bytes)
        if path is not None:
            await asyncio.to_thread(audit._open, path)
        return audit

    def _open(self, path: Path) -> None:
        try:
            self._fd = open_private(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            self._older = older_files(path)
        except OSError as error:
            raise StoreFailed(f"audit log {path}: {error.strerror}") from None
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            self._max_bytes = 0  # a device is not put aside, and not read
            return
        self._end, self._number, self._hash = end_of(self._fd)
        if self._end < os.fstat(self._fd).st_size:
            log.warning("audit log %s: its last line is torn, and is cut off", path)
            os.ftruncate(self._fd, self._end)
        if not self._end and self._older:
            with self._older[-1].path.open("rb") as file:
                _, self._number, self._hash = end_of(file.fileno())
        first = first_of(self._fd)
        self._first = self._number if first is None else first

    def note(  # noqa: PLR0917 - the columns of a line, in their order
        self, actor: str, address: str, what: str, target: str, outcome: str = "done", detail: str = ""
    ) -> None:
        """Write a line. It is with the operating system when this returns, and on the disk soon after."""
        if outcome == "refused" and not self._may_note_refusal():
            return
        line = AuditLine(
            self._number,
            self._clock.now_us(),
            actor[:64],
            address[:64],
            what,
            target[:TEXT_MAX],
            outcome,
            detail[:TEXT_MAX],
            self._hash,
        )
        raw = msgspec.json.encode(line) + b"\n"
        if self._fd >= 0:
            try:
                os.write(self._fd, raw)
            except OSError as error:
                log.error("audit log %s: %s", self.path, error.strerror)
                return
            self._end += len(raw)
            self._sync_soon()
        else:
            self._recent.append(_entry(line))
        self._number += 1
        self._hash = hashlib.sha256(raw).hexdigest()
        if self._max_bytes and self._end >= self._file_bytes:
            self._begin_file()

    def _begin_file(self) -> None:
        """Begin a new file when this one is full, and delete the oldest beyond the bytes to be kept."""
        assert self.path is not None, "only a file is full"
        full = Older(self._first, older_path(self.path, self._first), self._end)
        try:
            self.path.rename(full.path)
            try:
                fd = open_private(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL)
            except OSError:
                full.path.rename(self.path)
                raise
        except OSError as error:
            log.error("audit log %s: no new file could be begun, the old one grows: %s", self.path, error.strerror)
            self._file_bytes = self._end + max(self._max_bytes // FILES, 1)
            return
        self._file_bytes = max(self._max_bytes // FILES, 1)
        self._to_close.append(self._fd)
        self._fd, self._end, self._first = fd, 0, self._number
        self._older.append(full)
        kept, going = sum(one.size for one in self._older), 0
        while kept - self._older[going].size >= self._max_bytes:
            kept -= self._older[going].size
            going += 1
        if going:
            self._to_drop += [one.path for one in self._older[:going]]
            del self._older[:going]
            self.note("", "", DROPPED, f"lines before {self._older[0].first}")
        self._sync_soon()

    def _may_note_refusal(self) -> bool:
        minute = int(self._clock.steady_s() // 60)
        if minute != self._minute:
            self._minute, self._refusals, left_out, self._left_out = minute, 0, self._left_out, 0
            if left_out:
                self.note("", "", "refusals", "", "left out", f"{left_out} more within a minute")
        self._refusals += 1
        self._left_out += self._refusals > REFUSALS_A_MINUTE
        return self._refusals <= REFUSALS_A_MINUTE

    def _sync_soon(self) -> None:
        self._unsynced = True
        if self._syncing is None:
            assert self.path is not None, "only a file is synced"
            self._unsynced = False
            work = self._fd, self.path, self._to_close, self._to_drop
            self._to_close, self._to_drop = [], []
            self._syncing = asyncio.get_running_loop().run_in_executor(None, _sync, *work)
            self._syncing.add_done_callback(self._synced)

    def _synced(self, _: asyncio.Future[None]) -> None:
        self._syncing = None
        if self._unsynced and self._fd >= 0:
            self._sync_soon()

    async def close(self) -> None:
        while self._syncing is not None:
            await asyncio.wait([self._syncing])
            await asyncio.sleep(0)
        if self._fd >= 0:
            assert self.path is not None
            await asyncio.to_thread(_sync, self._fd, self.path, self._to_close, self._to_drop)
            os.close(self._fd)
            self._fd = -1

    # Reading

    async def list(self, request: ListAudit) -> Audit:
        if self._fd < 0:
            return self._select(reversed(self._recent.copy()), request)
        # By another descriptor of it: it may be renamed meanwhile.
        fd, end, older = os.dup(self._fd), self._end, self._older.copy()
        return await asyncio.to_thread(self._list, request, fd, end, older)

    def _list(self, request: ListAudit, fd: int, end: int, older: Sequence[Older]) -> Audit:
        return self._select(_backwards(fd, end, older, request.before or self._number), request)

    def _select(self, entries: Iterator[AuditEntry], request: ListAudit) -> Audit:
        found: list[AuditEntry] = []
        for looked_at, entry in enumerate(entries):
            if request.before and entry.number >= request.before:
                continue
            if entry.at_us < request.since_us:
                break
            if (
                request.actor in ("", entry.actor)
                and request.what in ("", entry.what)
                and request.outcome in ("", entry.outcome)
            ):
                found.append(entry)
            if len(found) == request.limit or looked_at >= SCAN_MAX:
                return Audit(found, entry.number)
        return Audit(found, 0)


def audit_path(settings: BrokerSettings) -> Path | None:
    if settings.audit_file:
        return Path(settings.audit_file).expanduser().absolute()
    scheme, _, rest = settings.store.partition(":")
    return (Path(rest).expanduser() / "audit.jsonl").absolute() if scheme == "file" else None


def _entry(line: AuditLine) -> AuditEntry:
    return AuditEntry(
        line.number, line.at_us, line.actor, line.address, line.what, line.target, line.outcome, line.detail
    )


def _backwards(fd: int, end: int, older: Sequence[Older], before: int) -> Iterator[AuditEntry]:
    with open(fd, "rb", closefd=True) as file:
        yield from map(_entry, lines_before(file.fileno(), end, before))
    for one in reversed(older):
        if one.first < before:
            try:
                file = one.path.open("rb")
            except FileNotFoundError:
                return  # it went meanwhile
            with file:
                yield from map(_entry, lines_before(file.fileno(), one.size, before))


def _sync(descriptor: int, path: Path, full: Sequence[int], going: Sequence[Path]) -> None:
    try:
        for one in (*full, descriptor):
            os.fsync(one)
        for old in going:
            old.unlink(missing_ok=True)
        if full or going:
            REAL.sync_folder(path.parent)
    except OSError as error:
        log.error("the audit log could not be synced: %s", error.strerror)
    for one in full:
        os.close(one)
