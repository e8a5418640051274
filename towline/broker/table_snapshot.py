"""Incremental snapshots of a large table: parts are merged as in a log-structured merge tree, so work follows change.

The table lies in parts, each a document of its own; the latest changes are loose, in the document that names the parts.
When there are many, they become a part. A part takes in those before it that are no larger, up to a limit: so there are
few, and an entry is written anew some ten times at most. Of an entry that is in several parts the last one counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, count
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from towline.clock import TimeSlice, in_slices

__all__ = ["Part", "PartName", "Plan", "Slots", "TableSnapshot", "joined", "packed", "packed_struct"]

K = TypeVar("K")
_ENCODE = msgspec.msgpack.Encoder().encode


class PartName(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part in the document that names all of them."""

    slot: int
    """Its document is `producers-<slot>.bin`."""
    checksum: int
    until_us: int
    """Its entries are from then or before."""
    set_us: int = 0
    """By how much the clock of its times was ahead."""


class Part(NamedTuple, Generic[K]):
    name: PartName
    size: int
    keys: Sequence[K]
    """None, where it is too large to be written again with others."""


class Plan(NamedTuple, Generic[K]):
    """A plan: parts that stay, parts to be written; the rest stays loose."""

    kept: list[Part[K]]
    new: list[list[K]]
    loose: list[K]


class Slots:
    """Numbers of documents: none is written to that the file on disk may name."""

    def __init__(self) -> None:
        self.named: set[int] = set()
        self._taken: set[int] = set()
        self._left: set[int] = set()

    def take(self) -> int:
        slot = next(slot for slot in count() if slot not in self.named and slot not in self._taken)
        self._taken.add(slot)
        return slot

    def settle(self, named: set[int]) -> set[int]:
        """These are named from now on. Returns those that were not named before already, and may be emptied."""
        gone = self._left - named
        self._left = (self.named | self._taken) - named
        self.named, self._taken = named, set()
        return gone


async def packed(entries: Sequence[Any], step: int = 1, make: Callable[[Sequence[Any]], list[Any]] = list) -> bytes:
    """Entries as a MessagePack list; `make` returns them for a slice of the keys. Others run in between."""
    blocks: list[bytes] = []
    many, part = 0, TimeSlice()
    for at in range(0, len(entries), step):
        some = make(entries[at : at + step])
        many += len(some)
        blocks.append(b"".join(map(_ENCODE, some)))
        if part.over:
            await part.rest()
    return b"".join([b"\xdd", many.to_bytes(4, "big"), *blocks])


async def packed_struct(struct: msgspec.Struct) -> bytes:
    """A struct of few fields, of which some are long lists, as a MessagePack array."""
    fields = msgspec.structs.astuple(struct)
    assert len(fields) < 16
    blocks = [await packed(one, 100) if isinstance(one, list) else _ENCODE(one) for one in fields]
    return b"".join([bytes([0x90 + len(blocks)]), *blocks])


async def joined(pieces: Iterable[bytes]) -> bytes:
    """A document that is made piece by piece. Others have their turn."""
    made = [piece async for piece in in_slices(pieces)]
    # Megabytes are put together without holding up the loop.
    return await asyncio.to_thread(b"".join, made)


class TableSnapshot(Generic[K]):
    """The parts of one table, by keys; an entry is asked for when it is written."""

    def __init__(self, few: int, most: int, step: int, *, distinct: bool = False) -> None:
        self._distinct = distinct
        """Each key comes only once."""
        self.step = step
        """Keys of one slice, after which others may run."""
        self._few = few
        """Limit of loose keys."""
        self._most = most
        """Limit of keys of a part."""
        self.parts: list[Part[K]] = []
        self.loose: list[K] = []

    def plan(self, fresh: Iterable[K], all_keys: Sequence[K] | None = None) -> Plan[K]:
        """Plan a save. `all_keys` are those of the table, if all of it is to be written anew. What is not carried out
        is planned again."""
        self.loose = loose = self._last(self.loose, fresh)
        if all_keys is not None:
            return self._planned([], list(all_keys))
        if len(loose) <= self._few:
            return Plan(self.parts, [], loose)
        kept = list(self.parts)
        before: list[Sequence[K]] = []
        many = len(loose)
        while kept and kept[-1].size <= many and kept[-1].size + many <= self._most:
            before.append(kept.pop().keys)
            many += len(before[-1])
        return self._planned(kept, self._last(*reversed(before), loose) if before else loose)

    def _last(self, *runs: Iterable[K]) -> list[K]:
        """All of them in order, each where it comes last."""
        keys = list(chain.from_iterable(runs))
        return keys if self._distinct else list(dict.fromkeys(reversed(keys)))[::-1]

    def _planned(self, kept: list[Part[K]], keys: list[K]) -> Plan[K]:
        if len(keys) <= self._few:
            return Plan(kept, [], keys)
        return Plan(kept, [keys[at : at + self._most] for at in range(0, len(keys), self._most)], [])

    def is_stale(self, there: int) -> bool:
        """Whether the parts hold far more than the table does."""
        return sum(part.size for part in self.parts) > 2 * there + self._few

    def commit(self, plan: Plan[K], new: Sequence[PartName]) -> None:
        """The plan was carried out."""
        written = zip(new, plan.new, strict=True)
        made = [Part(name, len(keys), keys if 2 * len(keys) <= self._most else ()) for name, keys in written]
        self.parts = [*plan.kept, *made]
        self.loose = plan.loose
