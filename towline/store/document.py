"""One JSON file of the store's `config/`: readable, versioned, replaced whole; the one before it is kept as `.bak`.

The `.bak` is written first, from content that is known to be good, so that at every moment one of the two can be read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar, get_args, get_origin

import msgspec

from towline.clock import TimeSlice, in_slices
from towline.errors import NewerFormat, StoreDamaged
from towline.format import understood
from towline.store import Store

__all__ = ["NEWER", "ConfigFile", "DataVersion", "fits_log"]

log = logging.getLogger("towline.broker")


class DataVersion(msgspec.Struct, frozen=True):
    """Counts the writes of a file, with the time of the last one (milliseconds since 1970)."""

    counter: int = 0
    timestamp: int = 0

    def next(self, now_us: int) -> DataVersion:
        return DataVersion(self.counter + 1, now_us // 1000)


NEWER: Final = "config/ is newer than log/, as after a copy made in the wrong order, or on a disk that lost writes"


def fits_log(store: Store, name: str, ends: Mapping[str, int]) -> bool:
    """Whether the log has all streams of a document. If not, they are replayed from their beginning, and if that is
    missing the broker does not start: decisions in the document that the log has lost would be lost for good."""
    bounds = {stream: store.bounds(stream) for stream in ends}
    if all(end <= bounds[stream].end for stream, end in ends.items()):
        return True
    newer = f"{name} speaks of what the log does not have: {NEWER}"
    if any(one.first for one in bounds.values()):
        raise StoreDamaged(
            f"{newer}. Bring back both from one backup (towline restore); or remove {name}: what is undecided in the "
            "log then waits again, but what was decided long ago may be asked about, and sent, once more"
        )
    log.error("%s. %s are replayed instead", newer, " and ".join(bounds))
    return False


_T = TypeVar("_T", bound=msgspec.Struct)


class ConfigFile(Generic[_T]):
    """Reads and writes one document of the type `kind`."""

    def __init__(self, store: Store, name: str, kind: type[_T], *, indent: int = 2) -> None:
        self.name = name
        self.backup = f"{name}.bak"
        self._store = store
        self._kind = kind
        self._lists = {
            field.encode_name: (field.name, msgspec.json.Decoder(get_args(field.type)[0]))
            for field in msgspec.structs.fields(kind)
            if get_origin(field.type) is list
        }
        """Fields that may be long, by their names in the document, with the decoder of an item."""
        self._indent = indent
        self._good = b""
        """The content of the file, if it is whole: the next `.bak`."""

    async def load(self, part: TimeSlice | None = None) -> _T | None:
        """The document; from its `.bak` if the file is damaged or missing, which is logged as an error. None if there
        is neither. Raises `StoreDamaged` if neither can be read, and `NewerFormat` if it is whole and not understood:
        changes by another version would be undone by the one before it."""
        document = await self._store.load(self.name)
        problem = "it is missing"
        if document is not None:
            try:
                found = await self._decoded(self.name, document, part)
            except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
                problem = f"it cannot be read: {error}"
            else:
                self._good = document
                return found
        older = await self._store.load(self.backup)
        if older is None:
            if document is None:
                return None
            raise self._damaged(problem, "it is missing")
        try:
            found = await self._decoded(self.backup, older, part)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            raise self._damaged(problem, f"it cannot be read: {error}") from None
        log.error(
            "config file %s is not used: %s. Its predecessor %s is used instead: the last changes may be missing",
            self.name, problem, self.backup,
        )  # fmt: skip
        self._good = older
        return found

    async def load_older(self) -> _T | None:
        """The content of the `.bak`; None if it is missing or damaged, or not understood."""
        older = await self._store.load(self.backup)
        try:
            return None if older is None else await self._decoded(self.backup, older)
        except (NewerFormat, msgspec.MsgspecError, UnicodeDecodeError, ValueError):
            return None

    async def _decoded(self, name: str, document: bytes, part: TimeSlice | None = None) -> _T:
        """Lists are decoded item by item, and others run in between."""
        part = part or TimeSlice()
        lists: dict[str, list[Any]] = {}
        with understood(name, document):
            raw = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
            for key in self._lists.keys() & raw.keys():
                field, decoder = self._lists[key]
                items = msgspec.json.decode(raw[key], type=list[msgspec.Raw])
                raw[key] = msgspec.Raw(b"[]")
                lists[field] = [decoder.decode(item) async for item in in_slices(items, part)]
            found = msgspec.json.decode(msgspec.json.encode(raw), type=self._kind)
        for field, items in lists.items():
            msgspec.structs.force_setattr(found, field, items)
        return found

    async def save(self, document: _T) -> None:
        await self.replace(msgspec.json.format(msgspec.json.encode(document), indent=self._indent) + b"\n")

    async def replace(self, encoded: bytes) -> None:
        """Save an encoded document: in slices, because it is large."""
        if self._good:
            await self._store.save(self.backup, self._good)
        await self._store.save(self.name, encoded)
        self._good = encoded

    async def settle(self) -> None:
        """Drop the content before: nothing has changed for a while, so the `.bak` may hold the same."""
        if self._good:
            await self._store.save(self.backup, self._good)

    def _damaged(self, problem: str, backup_problem: str) -> StoreDamaged:
        return StoreDamaged(
            f"{self.name} in the store's config folder: {problem}. Its predecessor {self.backup}: {backup_problem}. "
            "Mend one of them, or bring one back from a backup; or remove both, then what they held begins anew"
        )
