"""The audit log is kept in several files, up to a size: its hashes go on from one to the next."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from towline.broker.access import audit
from towline.broker.access.audit import AuditLog
from towline.broker.access.audit_files import BLOCK, DROPPED, older_files, verify
from towline.clock import SYSTEM
from towline.protocol.access import ListAudit
from towline.store.log import LogSettings, LogStore
from towline.store.log.offline.backup import copy_documents

KEPT = 40_000
MANY = 1_000


def size(path: Path) -> int:
    return sum(one.stat().st_size for one in path.parent.glob("audit*.jsonl"))


async def fill(path: Path, many: int = MANY, **settings: Any) -> None:
    log = await AuditLog.open(path, SYSTEM, **settings)
    for number in range(many):
        log.note("alice", "10.0.0.1", "PutTopic" if number % 2 else "login", f"topic t{number}")
    await log.close()


async def listed(log: AuditLog, **asked: Any) -> list[int]:
    """All numbers that there are, by pages."""
    found: list[int] = []
    before = 0
    while True:
        page = await log.list(ListAudit(before, **asked))
        found += [one.number for one in page.entries]
        if not (before := page.next):
            return found


def test_no_more_is_kept_than_a_size_over_many_starts(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for rounds in range(4):
        asyncio.run(fill(path, max_bytes=KEPT))
        assert KEPT <= size(path) <= KEPT * 5 // 4
        count, broken = verify(path)
        assert broken is None
        older = older_files(path)
        assert len(older) <= audit.FILES + 1
        assert older[0].first + count >= (rounds + 1) * MANY
    assert {stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()} == {0o600}
    assert verify(older[3].path)[1] is None, "an older file by itself"


def test_without_a_size_all_is_kept_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    asyncio.run(fill(path))
    assert (verify(path), list(tmp_path.iterdir())) == ((MANY, None), [path])


async def test_what_is_no_file_is_not_put_aside(tmp_path: Path) -> None:
    """A device, say: here it is a pipe, which could be renamed."""
    path = tmp_path / "audit.jsonl"
    os.mkfifo(path)

    log = await AuditLog.open(path, SYSTEM, 1)
    log.note("alice", "", "PutTopic", "topic a")
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    assert path.is_fifo()
    await log.close()


def test_a_file_of_before_is_put_aside_whole(tmp_path: Path) -> None:
    """However large it is: it goes when there is enough behind it."""
    path = tmp_path / "audit.jsonl"
    asyncio.run(fill(path))
    asyncio.run(fill(path, 1, max_bytes=KEPT))
    (older,) = older_files(path)
    assert (older.first, verify(path)) == (0, (MANY + 1, None))
    asyncio.run(fill(path, max_bytes=KEPT))
    assert not older.path.exists()
    assert size(path) <= KEPT * 5 // 4
    assert verify(path)[1] is None


async def test_the_list_goes_through_all_files(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    await fill(path, max_bytes=KEPT)
    log = await AuditLog.open(path, SYSTEM, KEPT)
    first, end = older_files(path)[0].first, log._number
    assert first > 100
    assert await listed(log, limit=7) == list(range(end - 1, first - 1, -1))
    drops = [entry for entry in (await log.list(ListAudit(what=DROPPED))).entries if entry.outcome == "done"]
    assert drops[0].target == f"lines before {first}"
    alice = await listed(log, limit=100, actor="alice", what="login")
    assert len(alice) > 30
    assert alice == sorted(alice, reverse=True)
    # Files come and go while somebody reads.
    asked = asyncio.ensure_future(log.list(ListAudit(limit=1_000)))
    await asyncio.sleep(0)
    for number in range(MANY):
        log.note("bob", "", "PutTopic", f"topic {number}")
    numbers = [one.number for one in (await asked).entries]
    assert numbers == list(range(end - 1, end - 1 - len(numbers), -1))
    await log.close()


@pytest.mark.parametrize("many", [5, 3_000])
async def test_a_page_begins_anywhere_also_behind_damage(tmp_path: Path, many: int) -> None:
    path = tmp_path / "audit.jsonl"

    await fill(path, many)
    log = await AuditLog.open(path, SYSTEM)
    for before in range(1, many, 1 + many // 50):
        page = await log.list(ListAudit(before, limit=3))
        assert [one.number for one in page.entries] == list(range(before - 1, max(before - 4, -1), -1))
    await log.close()
    if many > 5:
        data = path.read_bytes()
        path.write_bytes(data[:BLOCK] + b"x" * 3 * BLOCK + data[4 * BLOCK :])
        log = await AuditLog.open(path, SYSTEM)
        assert log._number == many
        there = await listed(log, limit=1_000)
        assert 0 < len(there) < many
        assert there == sorted(set(there), reverse=True)
        for before in range(10, many, 300):
            page = await log.list(ListAudit(before, limit=3))
            assert [one.number for one in page.entries] == [number for number in there if number < before][:3]
        await log.close()


def test_a_start_reads_no_more_than_the_end_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = tmp_path / "audit.jsonl", list[int]()
    asyncio.run(fill(path, 3_000))
    pread = os.pread

    def counted(fd: int, length: int, at: int) -> bytes:
        read.append(length)
        return pread(fd, length, at)

    monkeypatch.setattr(os, "pread", counted)

    async def main() -> None:
        log = await AuditLog.open(path, SYSTEM)
        assert log._number == 3_000
        assert sum(read) < 3 * BLOCK < path.stat().st_size
        await log.close()

    asyncio.run(main())


@pytest.mark.parametrize("crash", ["before the new file", "with a torn line", "before the oldest went"])
def test_it_goes_on_after_a_crash_at_the_end_of_a_file(tmp_path: Path, crash: str) -> None:
    path = tmp_path / "audit.jsonl"
    asyncio.run(fill(path, max_bytes=KEPT))
    gone = older_files(path)[0]
    data = gone.path.read_bytes()
    if crash == "before the new file":
        number = json.loads(path.read_bytes().splitlines()[0])["number"]
        path.rename(tmp_path / f"audit-{number:012d}.jsonl")
    elif crash == "with a torn line":
        path.write_bytes(path.read_bytes() + b'{"number":')
    else:
        while gone.path.exists():
            asyncio.run(fill(path, 5, max_bytes=KEPT))
        gone.path.write_bytes(data)
    asyncio.run(fill(path, 3, max_bytes=KEPT))
    assert verify(path)[1] is None
    asyncio.run(fill(path, max_bytes=KEPT))
    assert verify(path)[1] is None
    assert not gone.path.exists()


def test_what_was_taken_out_is_found(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    asyncio.run(fill(path, max_bytes=KEPT))
    older = older_files(path)

    def broken_without(one: Path, change: bytes | None) -> bool:
        data = one.read_bytes()
        one.unlink() if change is None else one.write_bytes(change)
        found = verify(path)[1] is not None
        one.write_bytes(data)
        return found

    assert verify(path)[1] is None
    assert broken_without(older[3].path, None), "a whole file"
    assert broken_without(older[0].path, None), "the oldest one, of which no line says that it went"
    lines = older[2].path.read_bytes().splitlines(keepends=True)
    assert broken_without(older[2].path, b"".join(lines[:-1]))
    assert broken_without(older[2].path, b"".join([lines[0], lines[1].replace(b"alice", b"bobby"), *lines[2:]]))
    assert verify(path)[1] is None


def test_a_backup_has_all_files_of_the_audit_log(tmp_path: Path) -> None:
    store, partial = tmp_path / "data", tmp_path / "partial"

    async def main() -> None:
        await (await LogStore.open(store, LogSettings())).close()
        await fill(store / "audit.jsonl", max_bytes=KEPT)

    asyncio.run(main())
    (partial / "config").mkdir(parents=True)
    copy_documents(store, partial)
    assert sorted(one.name for one in partial.glob("audit*")) == sorted(one.name for one in store.glob("audit*"))
    assert verify(partial / "audit.jsonl") == verify(store / "audit.jsonl")
