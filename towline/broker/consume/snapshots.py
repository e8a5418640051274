"""Snapshots of groups: `consumerOffset.json`, and documents of their own for groups with very much open.

Each group has a position of its own in its pull log, so groups are noted one after another, and others run in between.
Only a group with new events is noted anew; one with very much open only after as many events as a part of that, or
after a while: the events behind its position are kept, and replayed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from crc32c import crc32c

from towline.broker.table_snapshot import Slots, joined
from towline.clock import Clock, SteadyClock, TimeSlice, in_slices, in_steps
from towline.delivery import GroupSnapshot, snapshot
from towline.delivery.group.snapshot import EXCERPT, OpenState, Rest, excerpt, open_parts, rest_in
from towline.errors import StoreDamaged
from towline.format import not_understood
from towline.model import OFFSETS_FILE, Durability, pull_stream
from towline.store.document import NEWER, ConfigFile, DataVersion

if TYPE_CHECKING:
    from towline.broker.consume.dispatcher import Dispatcher
    from towline.store import Store

__all__ = ["BYTES_PER_S", "LARGE_BYTES", "Snapshots"]

log = logging.getLogger("towline.broker")

SHARE: Final = 16
"""A group with very much open is noted anew after as many events as it has parts open, divided by this, …"""
RENEW_S: Final = 300.0
"""… or after this long."""
TEXTS_AT_ONCE: Final = 1_000
LARGE_BYTES: Final = 256 << 10
BYTES_PER_S: Final = 200 << 10
"""The average rate at which large files are written."""

Name = tuple[str, str]
"""Topic and group."""


class _Offsets(msgspec.Struct):
    version: DataVersion = msgspec.field(name="dataVersion", default=DataVersion())
    groups: list[GroupSnapshot] = []


class _Noted(NamedTuple):
    """A group as it is in the file."""

    position: int
    set_us: int
    refusals: int
    at_s: float
    size: int
    text: bytes
    slot: int = -1
    """Of the document with the rest of it; below 0 if it has none."""
    rest: bytes = b""
    """That document, until it is written."""


def _rest_name(slot: int) -> str:
    return f"consumerOffset-{slot}.bin"


def _slot_of(one: GroupSnapshot) -> int:
    return int(one.rest.partition("-")[2].partition(".")[0])


class Snapshots:
    """Writes the snapshots with which recovery begins. A snapshot never holds anything that is not durable."""

    def __init__(self, store: Store, clock: Clock, time: SteadyClock) -> None:
        self._store = store
        self._clock = clock
        self._time = time
        self._file = ConfigFile(store, OFFSETS_FILE, _Offsets, indent=1)
        self._version = DataVersion()
        self._noted: dict[Name, _Noted] = {}
        self._written: dict[Name, int] = {}
        self._before: dict[Name, int] = {}
        """The positions in the snapshot before, which the file's `.bak` holds."""
        self._slots = Slots()
        self._slots_before: set[int] = set()
        self._next_s = 0.0
        self._saving = asyncio.Lock()
        self.groups: dict[Name, GroupSnapshot] = {}
        """As loaded, by topic and group."""
        self.rests: dict[Name, Rest] = {}
        """Those with a document of their own."""

    # Recovery

    async def load(self, part: TimeSlice) -> None:
        try:
            offsets = await self._file.load(part)
        except StoreDamaged as error:
            log.error("%s. The pull logs are replayed from their beginning instead", error)
            return
        if offsets is None:
            return
        self._version = offsets.version
        self.groups = {(one.topic, one.group): one for one in offsets.groups}
        ahead = [name async for name, one in in_slices(self.groups.items(), part) if self._is_ahead(one)]
        if ahead:
            await self._go_back(ahead, f"it speaks of events that the log does not have: {NEWER}")
        for name in [name for name, one in self.groups.items() if one.rest]:
            await self._load_rest(name, part)
        older = await self._file.load_older()
        named = {_slot_of(one) for one in (*offsets.groups, *(older.groups if older else ())) if one.rest}
        self._slots.named = self._slots_before = named
        self._written = self._before = {name: one.position for name, one in self.groups.items()}

    async def _load_rest(self, name: Name, part: TimeSlice) -> None:
        if await self._find_rest(name, part):
            return
        document = self.groups[name].rest.split()[0]
        await self._go_back([name], f"{document} is missing or damaged")
        if name in self.groups and self.groups[name].rest and not await self._find_rest(name, part):
            log.error("%s: its rest is missing or damaged as well. The pull log is replayed instead", OFFSETS_FILE)
            del self.groups[name]

    async def _find_rest(self, name: Name, part: TimeSlice) -> bool:
        document, _, checksum = self.groups[name].rest.partition(" ")
        found = await self._store.load(document) or b""
        if f"{crc32c(found):08x}" != checksum:
            return False
        try:
            self.rests[name] = await in_steps(rest_in(found), part)
        except msgspec.MsgspecError as error:
            raise not_understood(document, error) from None
        return True

    def _is_ahead(self, one: GroupSnapshot) -> bool:
        """Whether it holds events that the log does not have: with it, a group would skip new messages."""
        return one.position > self._store.bounds(pull_stream(one.topic, one.group)).end

    async def _go_back(self, names: Iterable[Name], problem: str) -> None:
        """Take the snapshot before for these groups, if it fits the log, and else none."""
        older = await self._file.load_older()
        before = {} if older is None else {(one.topic, one.group): one for one in older.groups}
        for name in names:
            instead = before.get(name)
            fits = instead is not None and not self._is_ahead(instead)
            source = f"{self._file.backup} is used" if fits else "The pull log is replayed"
            log.error(
                "%s: what it says of group %s of topic %s is not used: %s. %s instead: messages may come twice, "
                "and none is lost",
                *(OFFSETS_FILE, name[1], name[0], problem, source),
            )
            if instead is not None and fits:
                self.groups[name] = instead
            else:
                del self.groups[name]

    # Saving

    async def save(self, dispatchers: Iterable[Dispatcher], *, everything: bool = False) -> None:
        """Note groups with new events; with `everything` all of them, though it costs much."""
        async with self._saving:
            if everything or self._clock.steady_s() >= self._next_s:
                await self._save([one for one in dispatchers if not one.group.config.ephemeral], everything=everything)

    async def _save(self, dispatchers: Sequence[Dispatcher], *, everything: bool) -> None:
        changed: dict[Dispatcher, _Noted] = {}
        there: dict[Name, Dispatcher] = {}
        part, new = TimeSlice(), False
        for one in dispatchers:
            if not one.closed:
                name = _name(one)
                there[name] = one
                new = new or name not in self._written
                if self._is_due(one, everything=everything):
                    changed[one] = await self._note(one)
            if part.over:
                await part.rest()
        if (
            not changed
            and not new
            and len(there) == len(self._written)
            and not any(one.closed for one in there.values())
        ):
            await self._settle()
            return
        await self._store.append([], Durability.FSYNC).done
        while refused := [one for one, noted in changed.items() if noted.refusals != one.log.refusals]:
            # What is refused meanwhile was never stored: what died is not among the dead letters.
            for one in refused:
                changed[one] = await self._note(one)
            await self._store.append([], Durability.FSYNC).done
        noted: dict[Name, _Noted] = {}
        async for name, one in in_slices(there.items()):
            found = changed.get(one) or self._noted.get(name)
            if found is not None and not one.closed:
                noted[name] = found
        await self._write(noted)

    def _is_due(self, one: Dispatcher, *, everything: bool) -> bool:
        noted = self._noted.get(_name(one))
        if noted is None or noted.set_us != self._time.set_us:
            return True
        events = one.position - noted.position
        if everything or noted.size < EXCERPT or not events:
            return events > 0
        return events >= noted.size // SHARE or self._clock.steady_s() >= noted.at_s + RENEW_S

    async def _note(self, one: Dispatcher) -> _Noted:
        """The group as it is at one moment. What takes long is made of it afterwards."""
        position, set_us, refusals, now_s = one.position, self._time.set_us, one.log.refusals, self._clock.steady_s()
        size = open_parts(one.group)
        if size < EXCERPT:
            return _Noted(position, set_us, refusals, now_s, size, _text(snapshot(one.group, position, set_us)))
        shown, state, slot = excerpt(one.group, position, set_us), OpenState(one.group, set_us), self._slots.take()
        try:
            document = await joined(state.pieces())
        finally:
            state.close()
        text = _text(msgspec.structs.replace(shown, rest=f"{_rest_name(slot)} {crc32c(document):08x}"))
        return _Noted(position, set_us, refusals, now_s, size, text, slot, document)

    async def _write(self, noted: dict[Name, _Noted]) -> None:
        for one in [one for one in noted.values() if one.rest]:
            await self._store.save(_rest_name(one.slot), one.rest)
        version = self._version.next(self._clock.now_us())
        head = b'{\n "dataVersion": {\n  "counter": %d,\n  "timestamp": %d\n },\n "groups": [\n'
        texts, pieces = list[bytes](), list[bytes]()
        async for one in in_slices(list(noted.values())):
            texts.append(one.text)
            if len(texts) == TEXTS_AT_ONCE:
                pieces.append(b",\n".join(texts))
                texts.clear()
        if texts:
            pieces.append(b",\n".join(texts))
        content = b"".join([head % msgspec.structs.astuple(version), b",\n".join(pieces), b"\n ]\n}\n"])
        await self._file.replace(content)
        self._version = version
        written: dict[Name, int] = {}
        async for name, one in in_slices(list(noted.items())):
            written[name] = one.position
            if one.rest:
                noted[name] = one._replace(rest=b"")
        self._noted = noted
        self._before, self._written = self._written, written
        if len(content) > LARGE_BYTES:
            self._next_s = self._clock.steady_s() + len(content) / BYTES_PER_S
        named = {one.slot for one in noted.values() if one.slot >= 0}
        gone, self._slots_before = self._slots.settle(named | self._slots_before), named
        for slot in gone:
            await self._store.save(_rest_name(slot), b"")

    async def _settle(self) -> None:
        """Nothing has happened. What only the older snapshot needs must not hold back retention for ever."""
        if self._before != self._written:
            await self._file.settle()
            self._before = self._written

    async def pins(self, dispatchers: Callable[[], Iterable[Dispatcher]]) -> dict[str, int]:
        """The events that recovery still needs, by pull log: also if it has to begin with the snapshot before the last
        one, because that is damaged. Of a group that is in no snapshot yet, all."""
        pins: dict[str, int] = {}
        part = TimeSlice()
        async for name in in_slices(list(self._written), part):
            pins[pull_stream(*name)] = self._before.get(name, 0)
        async for one in in_slices(list(dispatchers()), part):
            self._pin(one, pins)
        for one in dispatchers():  # those that were made meanwhile
            if one.stream not in pins:
                self._pin(one, pins)
        return pins

    def _pin(self, one: Dispatcher, pins: dict[str, int]) -> None:
        if not one.group.config.ephemeral:
            pins.setdefault(one.stream, self._before.get(_name(one), 0))


def _name(one: Dispatcher) -> Name:
    return one.group.config.topic, one.group.config.name


def _text(one: GroupSnapshot) -> bytes:
    """A snapshot as it is in the file, for people."""
    return b"  " + msgspec.json.format(msgspec.json.encode(one), indent=1).replace(b"\n", b"\n  ")
