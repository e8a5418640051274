"""The manifest of an archive: a list of commits.

    ARCHIVE/
      messages/topic=orders/day=2026-05-01/middle-00000000000000000000-00000000000001000000.parquet
      events/topic=orders/day=2026-05-01/billing-….parquet       delivery events of a group
      dead/topic=orders/day=2026-05-01/billing-….parquet         dead letters of a group
      own/topic=orders/day=2026-05-01/billing.middle-….parquet   what was sent again to one group alone
      messages/topic=orders/broker=ID/day=…/middle-….parquet     of a cluster, whose brokers have lanes of their own
      _manifest/0000000042.json                                  one commit: files that came, files that went, progress
      _manifest/base.json                                        all commits up to one, folded
      _tmp/                                                      files that are being written

A file is named after what it holds: records `first` up to but not including `end` of a stream. **A commit is one small
file.** Tasks write to `_tmp`; the commit names these files and where they belong, and replaces `_manifest/N.json`; only
then are they renamed, and what a commit of a compaction makes superfluous is removed first. Whoever opens the archive
next finishes the renames of the last commit, should they have been cut short. So an uncommitted batch leaves nothing
but files in `_tmp`, which are swept, and a committed one is never done again. Readers that know nothing of the manifest
(`messages/**/*.parquet`) never see a message twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from towline.errors import NotFound, StoreDamaged
from towline.spark.jobs.archive.archive_folder import ArchiveFolder

__all__ = [
    "KINDS",
    "Archive",
    "Commit",
    "Entry",
    "Lost",
    "Parts",
    "Writable",
    "day_of",
    "file_name",
    "kind_of",
    "parts_of",
]

VERSION: Final = 1
FOLD_AT: Final = 64
"""Commits that are folded into one file."""
LOOKS: Final = 20
"""Attempts to read a manifest that changes meanwhile."""
MANIFEST: Final = "_manifest"
TEMPORARY: Final = "_tmp"
BASE: Final = f"{MANIFEST}/base.json"
KINDS: Final = {"lane": "messages", "pull": "events", "dead": "dead", "own": "own"}
"""The folder for a stream, by the first part of its name."""


class Entry(msgspec.Struct, frozen=True, order=True):
    """One Parquet file: records `first` to `end` of a stream, of one day; `rows` of them, should some be lost."""

    stream: str
    first: int
    end: int
    path: str
    rows: int
    size_bytes: int
    from_us: int
    to_us: int
    checksum: str
    """Of the columns' values, whatever batches or row groups they come in: see `digest.py`."""


class Lost(msgspec.Struct, frozen=True):
    """Records that were damaged or gone when the archive came to them, and that it was allowed to skip."""

    stream: str
    first: int
    count: int
    reason: str


class Commit(msgspec.Struct):
    number: int
    made_at_us: int
    version: int = VERSION
    added: list[Entry] = []
    temporary: list[str] = []
    """The temporary names of `added`; empty once it was folded."""
    removed: list[str] = []
    positions: dict[str, int] = {}
    """By stream, the first record that is not in the archive."""
    lost: list[Lost] = []


def kind_of(stream: str) -> str:
    return KINDS[stream.partition("/")[0]]


class Parts(NamedTuple):
    """The parts of a stream's name: `lane/orders/middle`, `own/orders/billing/middle`; in a cluster, with `@ID` of the
    broker behind it."""

    kind: str
    topic: str
    group: str
    lane: str
    broker: str


def parts_of(stream: str) -> Parts:
    name, _, broker = stream.partition("@")
    kind, topic, *rest = name.split("/")
    return Parts(kind, topic, "" if kind == "lane" else rest[0], rest[-1] if kind in ("lane", "own") else "", broker)


def day_of(time_us: int) -> str:
    return datetime.fromtimestamp(time_us // 1_000_000, UTC).strftime("%Y-%m-%d")


def file_name(stream: str, day: str, first: int, end: int) -> str:
    """The name of a file for records of a stream."""
    parts = parts_of(stream)
    name = ".".join(part for part in (parts.group, parts.lane) if part)
    broker = f"broker={parts.broker}/" if parts.broker else ""
    return f"{kind_of(stream)}/topic={parts.topic}/{broker}day={day}/{name}-{first:020d}-{end:020d}.parquet"


class Archive:
    """Read an archive's manifest. `open` fails where there is none; `Writable` makes one."""

    def __init__(self, place: ArchiveFolder) -> None:
        self.place = place
        self.number = 0
        self.entries: dict[str, Entry] = {}
        """By path."""
        self.positions: dict[str, int] = {}
        self.lost: list[Lost] = []
        self.last: Commit | None = None

    @classmethod
    def open(cls, uri: str) -> Archive:
        place = ArchiveFolder(uri)
        archive = cls(place)
        archive.load()
        if not archive.number:
            raise NotFound(f"{place} is not an archive: it has no manifest")
        return archive

    def load(self) -> None:
        """Read the manifest. While a job adds to the archive it may fold commits away that were listed already: then
        their sum is there, and all is read again."""
        for _ in range(LOOKS):
            numbers = self._numbers()
            if self._load(numbers):
                return
            if numbers == self._numbers():
                break
        raise StoreDamaged(f"{self.place}: commit {self.number + 1} of the manifest is missing")

    def _load(self, numbers: list[int]) -> bool:
        self.number, self.last = 0, None
        self.entries, self.positions, self.lost = {}, {}, []
        base = self.place.read(BASE)
        if base is not None:
            self._apply(self._decode(BASE, base))
        for number in numbers:
            if number <= self.number:
                continue
            name = _commit_name(number)
            data = self.place.read(name)
            if data is None or number != self.number + 1:
                return False
            self._apply(self._decode(name, data))
        return True

    def _numbers(self) -> list[int]:
        names = [name.rpartition("/")[2] for name in self.place.sizes(MANIFEST)]
        return sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit())

    def _decode(self, name: str, data: bytes) -> Commit:
        try:
            commit = msgspec.json.decode(data, type=Commit)
        except msgspec.MsgspecError as error:
            raise StoreDamaged(f"{self.place}/{name} is damaged: {error}") from None
        if commit.version > VERSION:
            raise StoreDamaged(f"{self.place}/{name} has format {commit.version}: use a newer version of Towline")
        return commit

    def _apply(self, commit: Commit) -> None:
        for path in commit.removed:
            self.entries.pop(path, None)
        for entry in commit.added:
            self.entries[entry.path] = entry
        self.positions.update(commit.positions)
        self.lost.extend(commit.lost)
        self.number = commit.number
        self.last = commit

    # Contents

    def files(self, kind: str | None = None, topics: Sequence[str] | None = None) -> list[Entry]:
        """The files, by stream and number; of one kind and of some topics only."""
        return sorted(
            entry
            for entry in self.entries.values()
            if (kind is None or kind_of(entry.stream) == kind)
            and (topics is None or parts_of(entry.stream).topic in topics)
        )

    def topics(self) -> list[str]:
        return sorted({parts_of(entry.stream).topic for entry in self.entries.values()})

    def urls(self, kind: str, topics: Sequence[str] | None = None) -> list[str]:
        return [self.place.url(entry.path) for entry in self.files(kind, topics)]


class Writable(Archive):
    """An archive that this process alone adds to."""

    @classmethod
    @contextmanager
    def opened(cls, uri: str) -> Iterator[Writable]:
        place = ArchiveFolder(uri)
        with place.lock(f"{MANIFEST}/lock", "writes to this archive") as renew:
            archive = cls(place)
            archive.renew = renew  # type: ignore[method-assign]
            archive.load()
            archive.finish()
            place.remove_folder(TEMPORARY)
            yield archive

    def renew(self) -> None:
        """Renew the lock."""

    def commit(self, made_at_us: int, written: Iterable[tuple[str, Entry]], **changes: Any) -> Commit:
        """Add files, by where they were written, and the rest of the commit. Then it is done, whatever happens."""
        pairs = list(written)
        commit = Commit(
            self.number + 1,
            made_at_us,
            added=[entry for _, entry in pairs],
            temporary=[name for name, _ in pairs],
            **changes,
        )
        self.renew()
        self.place.replace(_commit_name(commit.number), msgspec.json.encode(commit))
        self._apply(commit)
        self.finish()
        self._fold()
        return commit

    def finish(self) -> None:
        """Rename the files of the last commit, if that was not done yet."""
        commit = self.last
        if commit is None or not (commit.temporary or commit.removed):
            return
        kept = {entry.path for entry in commit.added}
        self.place.remove(path for path in commit.removed if path not in kept)
        for temporary, entry in zip(commit.temporary, commit.added, strict=True):
            if not self.place.move(temporary, entry.path) and not self.place.exists(entry.path):
                raise StoreDamaged(f"{self.place}: {entry.path} of commit {commit.number} is gone")
        self.place.sync(entry.path for entry in commit.added)

    def _fold(self) -> None:
        numbers = self._numbers()
        if len(numbers) < FOLD_AT:
            return
        made_at_us = self.last.made_at_us if self.last else 0
        base = Commit(self.number, made_at_us, added=self.files(), positions=self.positions, lost=self.lost)
        self.place.replace(BASE, msgspec.json.encode(base))
        self.place.remove(_commit_name(number) for number in numbers)


def _commit_name(number: int) -> str:
    return f"{MANIFEST}/{number:010d}.json"
