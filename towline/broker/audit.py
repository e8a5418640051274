"""The audit log: who did what to whom, and with what outcome. Append-only, one JSON object a line.

Each line holds the SHA-256 of the line before it, so that a line that was changed or taken out is found. Without a file
(memory store) the last ones are kept in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from towline.clock import Clock
from towline.errors import StoreFailed
from towline.files import open_private
from towline.protocol.access import Audit, AuditEntry, ListAudit
from towline.settings import BrokerSettings

__all__ = ["AuditLine", "AuditLog", "audit_path", "verify"]

log = logging.getLogger("towline.audit")

KEPT: Final = 10_000
STRIDE: Final = 1_000
"""Of every so many lines, the place of one is remembered."""
SCAN_MAX: Final = 50_000
"""Lines looked at for one request."""
REFUSALS_A_MINUTE: Final = 100
"""Strangers must not fill the disk."""
TEXT_MAX: Final = 300
FIRST: Final = "0" * 64


class AuditLine(msgspec.Struct, frozen=True):
    number: int
    at_us: int
    actor: str
    address: str
    what: str
    target: str
    outcome: str
    detail: str
    before: str
    """The hash of the line before."""


class AuditLog:
    def __init__(self, path: Path | None, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self._recent: deque[AuditEntry] = deque(maxlen=KEPT)
        self._number = 0
        self._hash = FIRST
        self._fd = -1
        self._end = 0
        self._places: list[int] = []
        self._syncing: asyncio.Future[None] | None = None
        self._minute = -1
        self._refusals = 0
        self._left_out = 0

    @classmethod
    async def open(cls, path: Path | None, clock: Clock) -> AuditLog:
        audit = cls(path, clock)
        if path is not None:
            await asyncio.to_thread(audit._open, path)
        return audit

    def _open(self, path: Path) -> None:
        try:
            self._fd = open_private(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        except OSError as error:
            raise StoreFailed(f"audit log {path}: {error.strerror}") from None
        with path.open("rb") as file:
            last = b""
            for line in file:
                if not line.endswith(b"\n"):
                    break  # torn by a crash: what follows begins a line of its own
                if self._number % STRIDE == 0:
                    self._places.append(self._end)
                self._end += len(line)
                self._number += 1
                last = line
            if last:
                self._hash = hashlib.sha256(last).hexdigest()
        if self._end < os.fstat(self._fd).st_size:
            log.warning("audit log %s: its last line is torn, and is cut off", path)
            os.ftruncate(self._fd, self._end)

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
            if self._number % STRIDE == 0:
                self._places.append(self._end)
            self._end += len(raw)
            self._sync_soon()
        else:
            self._recent.append(_entry(line))
        self._number += 1
        self._hash = hashlib.sha256(raw).hexdigest()

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
        if self._syncing is None or self._syncing.done():
            self._syncing = asyncio.get_running_loop().run_in_executor(None, _sync, self._fd)

    async def close(self) -> None:
        if self._syncing is not None:
            await asyncio.wait([self._syncing])
        if self._fd >= 0:
            await asyncio.to_thread(_sync, self._fd)
            os.close(self._fd)
            self._fd = -1

    # Reading

    async def list(self, request: ListAudit) -> Audit:
        return (
            await asyncio.to_thread(self._list, request) if self.path else self._select(iter(self._newest()), request)
        )

    def _newest(self) -> Iterator[AuditEntry]:
        return reversed(self._recent.copy())

    def _list(self, request: ListAudit) -> Audit:
        return self._select(self._backwards(request.before or self._number), request)

    def _backwards(self, before: int) -> Iterator[AuditEntry]:
        assert self.path is not None, "only a file is read"
        places, end = list(self._places), self._end
        with self.path.open("rb") as file:
            for block in range(min((before - 1) // STRIDE, len(places) - 1), -1, -1):
                at = places[block]
                until = places[block + 1] if block + 1 < len(places) else end
                file.seek(at)
                lines = file.read(until - at).splitlines()
                for line in reversed(lines):
                    with contextlib.suppress(msgspec.MsgspecError):
                        yield _entry(msgspec.json.decode(line, type=AuditLine))

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


def verify(path: Path) -> tuple[int, int | None]:
    """How many lines there are, and the number of the first that does not follow from the one before; None is fine."""
    before, count = FIRST, 0
    with path.open("rb") as file:
        for raw in file:
            try:
                line = msgspec.json.decode(raw, type=AuditLine)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                return count, count
            if line.before != before or line.number != count or not raw.endswith(b"\n"):
                return count, count
            before = hashlib.sha256(raw).hexdigest()
            count += 1
    return count, None


def _entry(line: AuditLine) -> AuditEntry:
    return AuditEntry(
        line.number, line.at_us, line.actor, line.address, line.what, line.target, line.outcome, line.detail
    )


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        log.error("the audit log could not be synced: %s", error.strerror)
